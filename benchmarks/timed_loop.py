"""What timing costs: our timed loop on an empty call, beside torch.utils.benchmark's and a bare loop.

Each loop calls the fake backend's ``infer``, which does nothing. *Cost* is the wall time of a loop with the timing,
less that of the bare loop, per sample; *reads* is what the empty call is reported to take.
"""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from inferlens.backends.base import Preparation
from inferlens.backends.fake import Fake
from inferlens.case import Case, TensorSpec
from inferlens.clocks import HostClock
from inferlens.models.model import Model

CALLS = 100_000
ROUNDS = 7


def main() -> None:
    """Prints the table."""
    case = Case(model="fake:demo", backend="fake", variant="steady", options={"clock": "host"})
    model = Model("fake:demo", "demo", "fake", (TensorSpec("x", (1, 3)),))
    infer = Fake().prepare(model, case, Preparation(Path("."), Path("."))).infer
    rows = [round_of(infer) for _ in range(ROUNDS)]
    bare = statistics.median(row["bare loop"][0] for row in rows)
    table = Table(title=f"Timing an empty call, {CALLS:,} calls, median of {ROUNDS} rounds", title_justify="left")
    for header in ("loop", "ns per call", "cost, ns", "reads, ns"):
        table.add_column(header, justify="left" if header == "loop" else "right")
    for name in rows[0]:
        total = statistics.median(row[name][0] for row in rows)
        added = statistics.median(row[name][1] for row in rows)
        table.add_row(name, f"{total * 1e9:.0f}", f"{(total - bare) * 1e9:.0f}", f"{added * 1e9:.0f}" if added else "–")
    Console().print(table)


def round_of(infer: Any) -> dict[str, tuple[float, float]]:
    """Seconds per call of each loop, and what it reports for one call."""
    return {
        "bare loop": (HostClock().window(infer, itertools.repeat({}), CALLS) / CALLS, 0.0),
        "inferlens: each call": ours(infer),
        "torch.utils.benchmark: all calls at once": theirs(infer, CALLS, 1),
        "torch.utils.benchmark: each call": theirs(infer, 1, CALLS // 50),
    }


def ours(infer: Any) -> tuple[float, float]:
    """Our timed loop."""
    begin = time.perf_counter()
    timings = HostClock().time(infer, itertools.repeat({}), CALLS)
    return (time.perf_counter() - begin) / CALLS, statistics.median(timings.latency)


def theirs(infer: Any, calls: int, samples: int) -> tuple[float, float]:
    """torch.utils.benchmark with ``samples`` measurements of ``calls`` calls each."""
    from torch.utils.benchmark import Timer

    timer = Timer("infer(feed)", globals={"infer": infer, "feed": {}})
    begin = time.perf_counter()
    medians = [timer.timeit(calls).median for _ in range(samples)]
    return (time.perf_counter() - begin) / (calls * samples), statistics.median(medians)


if __name__ == "__main__":
    main()
