"""What timing costs: our timed loop on an empty call, beside torch.utils.benchmark's and a bare loop.

Each loop calls the fake backend's ``infer``, which does nothing. *Cost* is the wall time of a loop with the timing,
less that of the bare loop, per sample; *reads* is what the empty call is reported to take. In the cost of our loop are
the arrays made beforehand and the lists of seconds made afterwards; *between samples* is without these: from the first
begin to the last.

Where there is a GPU a second table has the CUDA clock, on an empty call and on a tiny kernel, beside what a careful
person would write by hand: an event, the call, an event, a wait, the events made beforehand. *Reads* is the GPU time
between the events; of an empty call that is the least that the events can tell. *Latency* is the host's.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from inferlens.backends.base import Preparation
from inferlens.backends.clocks import CudaClock, HostClock
from inferlens.backends.fake import Fake
from inferlens.models.model import Model
from inferlens.spec.case import Case, TensorSpec

CALLS = 100_000
GPU_CALLS = 2_000
ROUNDS = 7


class Took(NamedTuple):
    """Seconds per call of a loop, and what it reports for one call."""

    wall: float
    reads: float = 0.0
    latency: float = 0.0


def main() -> None:
    """Prints the tables."""
    case = Case(model="fake:demo", backend="fake", variant="steady", options={"clock": "host"})
    model = Model("fake:demo", "demo", "fake", (TensorSpec("x", (1, 3)),))
    infer = Fake().prepare(model, case, Preparation(Path("."), Path("."))).infer
    rows = [round_of(infer) for _ in range(ROUNDS)]
    console = Console(width=120)
    console.print(on_host(rows))
    if not has_gpu():
        console.print("timed_loop: no NVIDIA GPU with PyTorch here, so nothing of the CUDA clock.")
        return
    for name, call in gpu_calls().items():
        loops = {"bare loop": bare_calls, "bare loop of events": bare_events, "inferlens: CudaClock": cuda_clock}
        for loop in loops.values():
            loop(call, GPU_CALLS)  # warm-up
        found = [{item: loop(call, GPU_CALLS) for item, loop in loops.items()} for _ in range(ROUNDS)]
        console.print(on_gpu(name, found))


def on_host(rows: list[dict[str, Took]]) -> Table:
    """The host clock's table."""
    bare = _median(rows, "bare loop", "wall")
    table = _table(f"Timing an empty call, {CALLS:,} calls, median of {ROUNDS} rounds", "loop", "ns per call",
                   "cost, ns", "least and most, ns", "reads, ns")  # fmt: skip
    for name in rows[0]:
        total, added = _median(rows, name, "wall"), _median(rows, name, "reads")
        costs = [(row[name].wall - row["bare loop"].wall) * 1e9 for row in rows]
        span = f"{min(costs):.0f} to {max(costs):.0f}" if name != "bare loop" else "–"
        table.add_row(name, f"{total * 1e9:.0f}", f"{(total - bare) * 1e9:.0f}", span,
                      f"{added * 1e9:.0f}" if added else "–")  # fmt: skip
    return table


def round_of(infer: Any) -> dict[str, Took]:
    """Every loop once."""
    return {
        "bare loop": Took(HostClock().window(infer, itertools.repeat({}), CALLS) / CALLS),
        **ours(infer),
        "torch.utils.benchmark: all calls at once": theirs(infer, CALLS, 1),
        "torch.utils.benchmark: each call": theirs(infer, 1, CALLS // 50),
    }


def ours(infer: Any) -> dict[str, Took]:
    """Our timed loop."""
    begin = time.perf_counter()
    timings = HostClock().time(infer, itertools.repeat({}), CALLS)
    wall = time.perf_counter() - begin
    reads = statistics.median(timings.latency)
    return {
        "inferlens: each call": Took(wall / CALLS, reads),
        "inferlens: between samples": Took((timings.begins[-1] - timings.begins[0]) / (CALLS - 1), reads),
    }


def theirs(infer: Any, calls: int, samples: int) -> Took:
    """torch.utils.benchmark with ``samples`` measurements of ``calls`` calls each."""
    from torch.utils.benchmark import Timer

    timer = Timer("infer(feed)", globals={"infer": infer, "feed": {}})
    begin = time.perf_counter()
    medians = [timer.timeit(calls).median for _ in range(samples)]
    return Took((time.perf_counter() - begin) / (calls * samples), statistics.median(medians))


def has_gpu() -> bool:
    """Whether PyTorch sees a GPU."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def gpu_calls() -> dict[str, Callable[[Any], Any]]:
    """What is called on the GPU."""
    import torch

    numbers = torch.zeros(1000, device="cuda")
    return {"an empty call": lambda _: None, "add of 1000 numbers": lambda _: numbers.add_(1)}


def on_gpu(name: str, rows: list[dict[str, Took]]) -> Table:
    """The CUDA clock's table for one call."""
    bare = _median(rows, "bare loop of events", "wall")
    table = _table(f"Timing {name} on CUDA, {GPU_CALLS:,} calls, median of {ROUNDS} rounds", "loop", "µs per call",
                   "more than the bare loop of events, µs", "GPU time: reads, µs", "latency: reads, µs")  # fmt: skip
    for loop in rows[0]:
        wall, reads, latency = (_median(rows, loop, what) for what in Took._fields)
        cells = [f"{value * 1e6:.2f}" if value else "–" for value in (reads, latency)]
        table.add_row(loop, f"{wall * 1e6:.2f}", f"{(wall - bare) * 1e6:+.2f}", *cells)
    return table


def bare_calls(call: Callable[[Any], Any], count: int) -> Took:
    """Calls, each waited for, with no timing."""
    import torch

    stream = torch.cuda.current_stream()
    begin = time.perf_counter()
    for _ in range(count):
        call(None)
        stream.synchronize()
    return Took((time.perf_counter() - begin) / count)


def bare_events(call: Callable[[Any], Any], count: int) -> Took:
    """An event, the call, an event, a wait."""
    import torch

    stream = torch.cuda.current_stream()
    pairs = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(count)]
    for event in itertools.chain(*pairs):  # CUDA creates an event when it is first recorded
        event.record(stream)
    stream.synchronize()
    begin = time.perf_counter()
    for before, after in pairs:
        before.record(stream)
        call(None)
        after.record(stream)
        stream.synchronize()
    wall = (time.perf_counter() - begin) / count
    return Took(wall, statistics.median(before.elapsed_time(after) for before, after in pairs) * 1e-3)


def cuda_clock(call: Callable[[Any], Any], count: int) -> Took:
    """Our timed loop; its wall time from the begin of the first sample to the end of the last."""
    timings = CudaClock().time(call, itertools.repeat(None), count)
    wall = (timings.begins[-1] + timings.latency[-1] - timings.begins[0]) / count
    return Took(wall, statistics.median(timings.gpu), statistics.median(timings.latency))


def _median(rows: list[dict[str, Took]], name: str, what: str) -> float:
    return statistics.median(getattr(row[name], what) for row in rows)


def _table(title: str, first: str, *headers: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for header in headers:
        table.add_column(header, justify="right")
    return table


if __name__ == "__main__":
    main()
