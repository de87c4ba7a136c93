"""What watching the machine costs the case: latencies with the watch on and off, in turns, in a process of their own.

As in a run, the timed calls are in a child process and the watch is a thread of its parent. Each pair of rounds has one
with the watch and one without, which of them first changes from pair to pair. The ratio is the median of the pairs'
ratios, on over off; its interval is that of the sign test, with 95 % at least (of 12 ordered ratios from the 3rd to the
10th, which is 96 %). It covers chance, not other machines. Below the table: how long each reading takes in the watching
thread.

    python -m benchmarks.watch_cost [--pairs 12] [--seconds 0.7] [--minutes 5]
        [--load cpu-one cpu-all cuda-small cuda-large]

With --minutes, each load has as many of the pairs as begin in that time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from inferlens.backends.clocks import CudaClock, HostClock
from inferlens.measure.monitor.gpu import gpu_before
from inferlens.measure.monitor.monitor import Monitor
from inferlens.record.machine import MachineLog
from inferlens.stats.intervals import fractional_rank
from inferlens.stats.samples import quantile

PAIRS = 12
SECONDS = 0.7
LOADS = {
    "cpu-one": "matmul 256, one thread",
    "cpu-all": "matmul 256, all threads",
    "cuda-small": "add of 1000 numbers on the GPU",
    "cuda-large": "matmul 4096 fp16 on the GPU",
}
FIGURES: dict[str, Callable[[list[float]], float]] = {
    "median": lambda samples: quantile(samples, 0.5),
    "mean": lambda samples: sum(samples) / len(samples),
    "p99": lambda samples: quantile(samples, 0.99),
}


def main(words: Sequence[str] = ()) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch_cost")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each round, of which a pair has two")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no pair of a load begins")
    parser.add_argument("--load", nargs="+", choices=LOADS, default=list(LOADS))
    args = parser.parse_args(words)
    gpu = _has_gpu()
    loads = [name for name in args.load if gpu or not name.startswith("cuda")]
    table = Table(title="Latency with the watch over latency without", title_justify="left")
    for header in ("call", "pairs", "median, µs", *FIGURES):
        table.add_column(header, justify="left" if header == "call" else "right", no_wrap=True)
    log: MachineLog | None = None
    for name in loads:
        pairs, log = compare(name, args.pairs, args.seconds, args.minutes)
        off = quantile([FIGURES["median"](without) for _, without in pairs], 0.5)
        ratios = [
            sorted(figure(watched) / figure(without) for watched, without in pairs) for figure in FIGURES.values()
        ]
        table.add_row(LOADS[name], str(len(pairs)), f"{off * 1e6:.1f}", *map(with_interval, ratios))
    console = Console(width=140)
    console.print(table)
    if log and log.absent:
        console.print(f"Not told: {log.absent}")


def compare(
    name: str, count: int, seconds: float, minutes: float
) -> tuple[list[tuple[list[float], list[float]]], MachineLog]:
    """Latencies with the watch and without it, of ``count`` pairs if that many begin in time, and the last log."""
    gpu = name.startswith("cuda")
    before = gpu_before() if gpu else None
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.watch_cost", "--", name, str(seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _ask(child)  # the first round is warm-up
        pairs = []
        deadline = time.monotonic() + 60 * minutes
        for pair in range(count):
            if pairs and time.monotonic() > deadline:
                break
            found: dict[bool, list[float]] = {}
            for on in (pair % 2 == 0, pair % 2 == 1):
                if not on:
                    found[on] = _ask(child)
                    continue
                with Monitor(lambda: [child.pid], gpu=gpu, before=before) as watch:
                    _until_it_sees(watch)
                    found[on] = _ask(child)
            pairs.append((found[True], found[False]))
        return pairs, watch.log()
    finally:
        child.kill()
        child.communicate()


def work(name: str, seconds: float) -> None:
    """The child: for every line it reads, times calls for a while and prints the latencies."""
    import torch

    clock: Any = CudaClock() if name.startswith("cuda") else HostClock()
    if name == "cpu-one":
        torch.set_num_threads(1)
    with torch.inference_mode():
        infer, feed = _call(name, torch)
        feeds = itertools.repeat(feed)
        count = 10
        while sum(clock.time(infer, feeds, count).latency) < seconds / 10:
            count *= 2
        for _ in sys.stdin:
            sys.stdout.write(json.dumps(clock.time(infer, feeds, 10 * count).latency) + "\n")
            sys.stdout.flush()


def _call(name: str, torch: Any) -> tuple[Callable[[Any], Any], Any]:
    """A function and its argument."""
    if name == "cuda-small":
        return lambda x: x + 1, torch.zeros(1000, device="cuda")
    if name == "cuda-large":
        return lambda x: x @ x, torch.zeros(4096, 4096, device="cuda", dtype=torch.float16)
    return lambda x: x @ x, torch.zeros(256, 256)


def _ask(child: subprocess.Popen[str]) -> list[float]:
    assert child.stdin
    assert child.stdout
    child.stdin.write("\n")
    child.stdin.flush()
    latencies: list[float] = json.loads(child.stdout.readline())
    return latencies


def _until_it_sees(watch: Monitor) -> None:
    """Waits for the first samples: in a run the watch begins long before the first timed call."""
    deadline = time.monotonic() + 10
    while not watch.log().cpu and time.monotonic() < deadline:
        time.sleep(0.05)


def _has_gpu() -> bool:
    """Whether PyTorch finds a GPU; asked in another process, so that this one holds no part of it."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def with_interval(ordered: list[float]) -> str:
    """The median of ordered ratios with the interval of the sign test, if they are enough for one."""
    rank = int(fractional_rank(len(ordered), 0.5, 0.975))
    if not rank:
        return f"{quantile(ordered, 0.5):.4f}"
    low, high = ordered[rank - 1], ordered[-rank]
    return f"{quantile(ordered, 0.5):.4f} [{low:.4f}, {high:.4f}]"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--"]:
        work(sys.argv[2], float(sys.argv[3]))
    else:
        main(sys.argv[1:])
