"""What a callable of ``inferlens.load`` takes, beside the calls that were timed for its record.

``python -m benchmarks.shipped [MODEL] [BACKENDS]`` measures a model on backends, names with commas, as ``inferlens
bench --quick`` does. Then each case is loaded, in a process of its own, and blocks of two kinds of calls take turns:
the runner's, with inputs that lie ready, which is what a record has; and the callable's, with a tensor on its device,
or an array. *Ratio* is the median over the turns of the callable's median by the runner's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import inferlens
from inferlens.units import duration, significant

TURNS, SECONDS, FEWEST = 15, 0.3, 5


def main(model: str = "resnet18", backends: str = "") -> None:
    """Prints the table."""
    table = Table(title=f"{model}: a loaded callable beside its runner, {TURNS} turns", title_justify="left")
    for header in ("case", "record", "runner", "callable", "ratio", "least and most"):
        table.add_column(header, justify="left" if header == "case" else "right")
    with tempfile.TemporaryDirectory() as folder:
        inferlens.bench(model, backend=backends or None, output=folder, quick=True, mode="latency")
        records = inferlens.load_records(folder)
        for record in records:
            if not record.ranked:
                continue
            taken = in_turns(records.folders[record.id])
            ratios = sorted(fast / own for own, fast in taken)
            own, fast = (statistics.median(each) for each in zip(*taken, strict=True))
            shown = duration(statistics.median(record.samples("latency"))), duration(own), duration(fast)
            span = f"{significant(ratios[0], 3)} to {significant(ratios[-1], 3)}"
            table.add_row(record.case.label, *shown, significant(statistics.median(ratios), 3), span)
    Console(width=120).print(table)


def in_turns(folder: Path) -> list[tuple[float, float]]:
    """Seconds of a call of the runner and of the callable, the medians of each turn, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.shipped", "--case", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [(own, fast) for own, fast in json.loads(done.stdout.splitlines()[-1])]


def measure(folder: str) -> None:
    """Loads a case and prints the medians of its turns as JSON."""
    from inferlens.models.inputs import draw

    with inferlens.load(folder) as fast:
        arrays = draw(fast.inputs, 0)
        runner, torch = fast._runner, sys.modules.get("torch")
        given: Any = arrays
        if torch and fast.record.case.device == "cuda":
            given = {name: torch.from_numpy(array).cuda() for name, array in arrays.items()}
        with fast._on_stream(), fast._mode():
            feed = runner.place(arrays)

        def of_runner() -> list[float]:
            with fast._on_stream(), fast._mode():
                return timed(lambda: runner.infer(feed), runner.synchronize)

        def of_callable() -> list[float]:
            return timed(lambda: fast(**given), runner.synchronize)

        turns = []
        for turn in range(TURNS):  # who goes first changes
            kinds = {"own": of_runner, "fast": of_callable}
            taken = {name: statistics.median(kinds[name]()) for name in sorted(kinds, reverse=bool(turn % 2))}
            turns.append((taken["own"], taken["fast"]))
    print(json.dumps(turns))


def timed(call: Callable[[], Any], wait: Callable[[], None]) -> list[float]:
    """Seconds of each of the calls that fit into :data:`SECONDS`."""
    taken: list[float] = []
    while len(taken) < FEWEST or sum(taken) < SECONDS:
        begin = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - begin)
    return taken


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        measure(sys.argv[2])
    else:
        main(*sys.argv[1:])
