"""What a callable of ``inferlens.load`` takes, and the script of ``inferlens export --best``, beside what was timed.

``python -m benchmarks.shipped [MODEL] [BACKENDS] [NAME=VALUE ...]`` measures a model on backends, names with commas, as
``inferlens bench --quick`` does. Then each case is loaded, in a process of its own, and blocks of three kinds of calls
take turns: the runner's, with inputs that lie ready, which is what a record has; the callable's, with a tensor on its
device, or an array; and those of ``run.py``. A ratio is the median over the turns of the median by the runner's.
"""

from __future__ import annotations

import json
import runpy
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


def main(model: str = "resnet18", backends: str = "", *words: str) -> None:
    """Prints the table."""
    table = Table(title=f"{model}: what is shipped beside its runner, {TURNS} turns", title_justify="left")
    headers = ("case", "record", "runner", "callable", "ratio", "of turns", "script", "ratio", "of turns")
    for header in headers:
        table.add_column(header, justify="left" if header == "case" else "right")
    given: Any = dict(word.split("=", 1) for word in words)
    with tempfile.TemporaryDirectory() as folder:
        inferlens.bench(model, backend=backends or None, output=folder, quick=True, mode="latency", **given)
        records = inferlens.load_records(folder)
        for record in records:
            if not record.ranked:
                continue
            taken = in_turns(records.folders[record.id])
            own = [turn["runner"] for turn in taken]
            shown = [duration(statistics.median(each)) for each in (record.samples("latency"), own)]
            for kind in ("callable", "script"):
                mine = [turn[kind] for turn in taken if kind in turn]
                ratios = sorted(each / one for each, one in zip(mine, own, strict=False))
                span = [f"{significant(ratios[0], 3)} to {significant(ratios[-1], 3)}"] if mine else ["–"]
                middle = (
                    [duration(statistics.median(mine)), significant(statistics.median(ratios), 3)]
                    if mine
                    else ["–"] * 2
                )
                shown += [*middle, *span]
            table.add_row(record.case.label, *shown)
    Console(width=150).print(table)


def in_turns(folder: Path) -> list[dict[str, float]]:
    """Seconds of a call of each kind, the medians of each turn, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.shipped", "--case", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


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

        kinds = {"runner": of_runner, "callable": of_callable}
        if script := exported(folder):
            kinds["script"] = lambda: timed(lambda: script["run"](*script["inputs"]), runner.synchronize)
        turns = []
        for turn in range(TURNS):  # who goes first changes
            turns.append({name: statistics.median(kinds[name]()) for name in sorted(kinds, reverse=bool(turn % 2))})
    print(json.dumps(turns))


def exported(folder: str) -> dict[str, Any]:
    """What the exported script of the case defines; nothing where it cannot be exported."""
    with tempfile.TemporaryDirectory() as made:
        command = [sys.executable, "-m", "inferlens", "export", "--best", folder, "-o", made]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return {}
        return runpy.run_path(str(Path(made, "run.py")))


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
