"""What a callable of ``inferlens.load`` takes, and the script of ``inferlens export --best``, beside what was timed.

``python -m benchmarks.shipped [MODEL] [BACKENDS] [NAME=VALUE ...]`` measures a model on backends, names with commas, as
``inferlens bench --quick`` does; names with a dot are options of a backend. Then each case is loaded, in a process of
its own, as many side by side as there are CPUs for. One after the other they are measured: blocks of three kinds of
calls take turns, the runner's, with inputs that lie ready, which is what a record has; the callable's, with such
tensors, or arrays; and those of ``run.py``. A ratio is the median over the turns of the median by the runner's. With
``--queued`` twenty calls follow each other before the GPU is waited for, as in a program that has more to do.
"""

from __future__ import annotations

import json
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import inferlens
from inferlens.measure.monitor.cpu import usable_cpus
from inferlens.units import duration, significant

TURNS, SECONDS, FEWEST = 15, 0.3, 5
QUEUE = 20  # calls
LINE = "{:40} {:>9} {:>9} {:>9} {:>6} {:>15} {:>9} {:>6} {:>15}"
READY = "ready\n"


def main(model: str = "resnet18", backends: str = "", *words: str, calls: int = 1) -> None:
    """Prints a line for each case, as soon as it is measured."""
    print(f"{model}: what is shipped beside its runner, {TURNS} turns")
    print(LINE.format("case", "record", "runner", *("callable", "ratio", "of turns"), *("script", "ratio", "of turns")))
    given: Any = dict(word.split("=", 1) for word in words)
    given["option"] = {name: given.pop(name) for name in [*given] if "." in name}
    with tempfile.TemporaryDirectory() as folder:
        inferlens.bench(model, backend=backends or None, output=folder, quick=True, mode="latency", **given)
        records = inferlens.load_records(folder)
        ranked = [record for record in records if record.ranked]
        while ranked:  # each has two processes that load
            first = [ranked.pop(0) for _ in range(min(len(ranked), max(1, len(usable_cpus()) // 2)))]
            some = [(record, begun(records.folders[record.id], calls)) for record in first]
            for _, process in some:
                next((item for item in process.stdout if item == READY), "")
            for record, process in some:
                said, label = process.communicate("begin\n")[0], record.case.label
                turns = [] if process.returncode else json.loads(said.splitlines()[-1])
                print(line(label, record.samples("latency"), turns) if turns else f"{label} failed", flush=True)


def begun(folder: Path, calls: int) -> Any:
    """A fresh process that makes a case ready, says so, and waits for a line before it measures."""
    command = [sys.executable, "-m", "benchmarks.shipped", "--case", str(folder), str(calls)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(label: str, samples: Sequence[float], turns: Sequence[dict[str, float]]) -> str:
    """The line of a case: medians, and of the ratios over the turns the median, the least and the most."""
    own = [turn["runner"] for turn in turns]
    shown = [duration(statistics.median(item)) for item in (samples, own)]
    for kind in ("callable", "script"):
        mine = [turn[kind] for turn in turns if kind in turn]
        ratios = sorted(item / one for item, one in zip(mine, own, strict=False))
        middle = [duration(statistics.median(mine)), significant(statistics.median(ratios), 3)] if mine else ["–"] * 2
        span = [f"{significant(ratios[0], 3)} to {significant(ratios[-1], 3)}"] if mine else ["–"]
        shown += [*middle, *span]
    return LINE.format(label, *shown)


def measure(folder: str, calls: int) -> None:
    """Makes a case ready, as a callable and as a script; prints the medians of its turns as JSON."""
    from inferlens.models.inputs import draw

    with tempfile.TemporaryDirectory() as made:
        command = [sys.executable, "-m", "inferlens", "export", "--best", folder, "-o", made]
        export = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        fast = inferlens.load(folder)
        script = None if export.wait() else runpy.run_path(str(Path(made, "run.py")))
    with fast:
        arrays = draw(fast.inputs, 0)
        runner = fast._runner
        with fast._on_stream, fast._mode():
            feed = runner.place(arrays)
        wait = sys.modules["torch"].cuda.synchronize if fast._on_gpu else lambda: None
        given: Any = arrays
        placed = feed.values() if isinstance(feed, dict) else feed
        if all(hasattr(tensor, "detach") for tensor in placed):  # PyTorch's, in the types that the case reads
            given = dict(zip(feed if isinstance(feed, dict) else arrays, placed, strict=True))

        def of_runner() -> list[float]:
            with fast._on_stream, fast._mode():
                return timed(lambda: runner.infer(feed), wait, calls)

        def of_callable() -> list[float]:
            return timed(lambda: fast(**given), wait, calls)

        kinds = {"runner": of_runner, "callable": of_callable}
        if script:
            kinds["script"] = lambda: timed(lambda: script["run"](*script["inputs"]), wait, calls)
        print(READY, end="", flush=True)
        input()
        turns = []
        for turn in range(TURNS):  # who goes first changes
            turns.append({name: statistics.median(kinds[name]()) for name in sorted(kinds, reverse=bool(turn % 2))})
    print(json.dumps(turns))


def timed(call: Callable[[], Any], wait: Callable[[], None], calls: int) -> list[float]:
    """Seconds of a call, of each of the queues of calls that fit into :data:`SECONDS`."""
    taken: list[float] = []
    while len(taken) < FEWEST or calls * sum(taken) < SECONDS:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        taken.append((time.perf_counter() - begin) / calls)
    return taken


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        measure(sys.argv[2], int(sys.argv[3]))
    else:
        given = [word for word in sys.argv[1:] if word != "--queued"]
        main(*given, calls=QUEUE if given != sys.argv[1:] else 1)
