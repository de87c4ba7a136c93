"""Commands as a person runs them: started, or in the process of the test, where nothing has to be imported again.

What a fresh process is for (a crash, a deadline, a clean import, two results that do not touch) is tested where that is
the subject, and at least one test of bench, build and export starts it. What a command says and writes is the same.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec
import pytest

from inferlens import cli
from inferlens.execution import run as api
from inferlens.execution import scheduler, tasks
from inferlens.execution.protocol import Answered, Event, Job
from inferlens.execution.subprocess import Outcome
from inferlens.execution.worker import DOING, Pipe


def started(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in processes of its own, in the folder ``cwd``."""
    command = [sys.executable, "-m", "inferlens", *arguments]
    environment = dict(os.environ)  # not what C code has put into it: the width of a terminal, where there is none
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300, check=False)


class Straight(Pipe):
    """The way back to the parent, which is here; what goes through it is JSON all the same."""

    def __init__(self, heard: Callable[[Event], None]) -> None:
        self.answered = b""
        self._heard = heard

    def send(self, event: Event) -> None:
        event = msgspec.json.decode(msgspec.json.encode(event), type=Event)
        if isinstance(event, Answered):
            self.answered = bytes(event.answer)
        self._heard(event)


def launch(
    job: Job,
    *,
    timeout: float,
    log: Path | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
    watch: object = None,
    slot: object = None,
) -> Outcome:
    """Does what a worker does, here, unwatched and without a deadline; what it prints is kept apart."""
    pipe, printed = Straight(on_event), io.StringIO()
    job = msgspec.json.decode(msgspec.json.encode(job), type=Job)
    with redirect_stdout(printed), redirect_stderr(printed):
        DOING[type(job)](job, pipe)
    if log and printed.getvalue():
        log.write_text(printed.getvalue())
    return Outcome(answer=pipe.answered, tail=tuple(printed.getvalue().splitlines()))


def stay(patch: pytest.MonkeyPatch) -> None:
    """Has everything that would be done in a process of its own done here."""
    for module in (api, scheduler, tasks):
        patch.setattr(module, "launch", launch)
    patch.setattr(scheduler, "both", lambda first, second: (first(None), second(None)))


def inferlens(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process, in the folder ``cwd``, from which it can import what lies there."""
    command, out, err = ["inferlens", *arguments], io.StringIO(), io.StringIO()
    loaded, code = set(sys.modules), 0
    terminated = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.syspath_prepend(cwd)
        patch.setattr(sys, "argv", command)
        stay(patch)
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
    signal.signal(signal.SIGTERM, terminated)
    for name in set(sys.modules) - loaded:
        place = getattr(sys.modules[name], "__file__", None)
        if place and os.path.realpath(place).startswith(os.path.realpath(cwd) + os.sep):
            del sys.modules[name]  # another test may have a module of that name in its own folder
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())
