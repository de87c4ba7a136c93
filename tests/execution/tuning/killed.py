"""Runs a command again and again, killed at one moment after the other: the program of ``test_troubles.py``.

    python -m tests.execution.tuning.killed MOMENTS COMMAND...

A moment is a number of things done to files; with a word before it, as ``best:3``, of things done to paths with that
word. At each the command is killed with all of its session, and begun anew for the next; 0 lets it end. Printed is what
each run left. Nothing is done in processes of its own, so that runs take no time; the first of all is one that nothing
disturbs, in a folder of its own.
"""

import gc
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from inferlens.cli import main as program
from inferlens.record.store import load_records
from tests.commands import stay

DONE = ("os.rename", "os.mkdir", "os.remove", "os.rmdir")


def run(moment, command):
    """The command, killed at a moment; its session is its own."""
    os.setsid()
    word, _, number = moment.rpartition(":")
    left = int(number)

    def count(event, arguments):
        nonlocal left
        on = str(arguments[0]) if arguments else ""
        counted = event in DONE or (event == "open" and f"{os.sep}results{os.sep}" in os.path.abspath(on))
        if counted and word in on:
            left -= 1
            if left == 0:
                os.killpg(0, signal.SIGKILL)

    sys.addaudithook(count)
    commanded(command)
    sys.stdout.flush()
    os._exit(0)


def commanded(command):
    """The command, in this process."""
    sys.argv = ["inferlens", *command]
    with suppress(SystemExit):
        program.main()


def left():
    """The rounds that were kept, with the ids and options of their records; and what is in the winner's folder."""
    trials, best = Path("results/demo/tuning/trials.jsonl"), Path("results/demo/best")
    kept = []
    for line in trials.read_bytes().split(b"\n")[1:] if trials.exists() else []:
        with suppress(ValueError):
            kept.append([[each["id"], each["case"]["options"]] for each in json.loads(line)["records"]])
    files = sorted(path.name for path in best.iterdir()) if best.exists() else []
    return {
        "kept": kept, "best": load_records(best).records[0].case.options if files else None, "files": files,
        "beside": sorted(path.name for path in Path("results/demo").iterdir()) if files else [],
    }  # fmt: skip


def main():
    """Prints what each run left."""
    _, moments, *command = sys.argv
    found = []
    Path("absent").mkdir()
    Path("absent/torch.py").write_text("raise ImportError('no test needs it')")  # it takes two seconds to import
    sys.path.insert(0, os.path.abspath("absent"))
    stay(pytest.MonkeyPatch())
    Path("whole").mkdir()
    os.chdir("whole")
    commanded(command)  # which also reads all that later runs need
    found.append({"killed": False, **left()})
    os.chdir("..")
    gc.freeze()
    for moment in moments.split(","):
        child = os.fork()
        if not child:
            run(moment, command)
        _, status = os.waitpid(child, 0)
        found.append({"killed": os.WIFSIGNALED(status), **left()})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
