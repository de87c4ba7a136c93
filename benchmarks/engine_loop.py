"""Our GPU time of an engine, beside a bare loop of CUDA events around ``execute_async_v3``.

Both time the same engine with the same memory, in turns; which is first changes from round to round. The bare loop is
what a careful person would write by hand: an event, the call, an event, a wait. The difference is that of the rounds'
medians, in the middle of all rounds, with its 95 % interval.

    python -m benchmarks.engine_loop [--rounds 21] [--output FILE]

With --output every round's medians are kept, with the machine they are of.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.library import find_flavour
from inferlens.measure import environment
from inferlens.models import inputs, resolve
from inferlens.record.files import write_whole
from inferlens.spec.case import Case
from inferlens.stats.intervals import ends, median_interval
from inferlens.units import change, change_range

CASES = (
    ("factory:benchmarks.engine_loop:small", "fp16", 1), ("torchvision:mobilenet_v3_small", "fp16", 1),
    ("torchvision:resnet18", "fp16", 1), ("torchvision:resnet18", "fp16", 32),
    ("torchvision:resnet50", "fp32", 1), ("torchvision:resnet50", "fp16", 8),
)  # fmt: skip
ROUNDS, CALLS, WARMUP = 21, 300, 50


class Rounds(NamedTuple):
    """Median GPU times in seconds of each round of one case, by the bare loop and by the runner's clock."""

    model: str
    precision: str
    batch: int
    bare: list[float]
    ours: list[float]


def small() -> Any:
    """A model of one kernel or two."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()), torch.zeros(1, 64)


def main(words: Sequence[str] = ()) -> None:
    """Prints the table; without a GPU and TensorRT, that there is none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_loop")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, help="a JSON file for every round's medians")
    args = parser.parse_args(words)
    variant = next((name for name in ("trt", "rtx") if find_flavour(name)[0]), None)
    able = TensorRT().capabilities()
    if variant is None or not able.supports:
        Console().print("engine_loop: needs an NVIDIA GPU and TensorRT or TensorRT for RTX.")
        return
    found = [measured(*case, variant, args.rounds) for case in CASES]
    flavour = find_flavour(variant)[0]
    title = f"GPU time of an engine, {args.rounds} rounds of {CALLS} calls ({flavour.title if flavour else variant})"
    Console(width=120).print(table(title, found))
    if args.output:
        kept = {"title": title, "environment": environment.collect(), "rounds": [one._asdict() for one in found]}
        write_whole(args.output, msgspec.json.format(msgspec.json.encode(kept), indent=1))


def table(title: str, found: Sequence[Rounds]) -> Table:
    """Medians of each case, and how far apart they are."""
    shown = Table(title=title, title_justify="left")
    for header in ("model", "precision", "batch", "bare loop, µs", "inferlens, µs", "difference", "interval, 95 %"):
        shown.add_column(header, justify="left" if header == "model" else "right")
    for one in found:
        apart = [ours / bare - 1 for bare, ours in zip(one.bare, one.ours, strict=True)]
        times = [f"{statistics.median(item) * 1e6:.2f}" for item in (one.bare, one.ours)]
        interval = change_range(*ends(median_interval(apart)))
        shown.add_row(one.model, one.precision, str(one.batch), *times, change(statistics.median(apart)), interval)
    return shown


def measured(name: str, precision: str, batch: int, variant: str, rounds: int) -> Rounds:
    """One case, in turns."""
    case = Case(
        model=name, backend="tensorrt", variant=variant, precision=precision, batch=batch, device="cuda"
    )  # fmt: skip
    model = resolve.load(case)
    with tempfile.TemporaryDirectory() as folder:
        preparation = Preparation(Path(folder) / "case", Path(folder) / "cache")
        with TensorRT().prepare(model, case, preparation) as runner:
            feed = runner.place(inputs.make_inputs(model, case.seed))
            bare_loop(runner, feed, WARMUP)
            our_loop(runner, feed, WARMUP)
            times: dict[Any, list[float]] = {bare_loop: [], our_loop: []}
            for number in range(rounds):
                for loop in (bare_loop, our_loop)[:: 1 if number % 2 else -1]:
                    times[loop].append(statistics.median(loop(runner, feed, CALLS)))
    return Rounds(name, precision, batch, times[bare_loop], times[our_loop])


def our_loop(runner: Any, feed: Any, count: int) -> list[float]:
    """GPU times of ``count`` calls in seconds, by the runner's clock."""
    gpu: list[float] = runner.clock.time(runner.infer, itertools.repeat(feed), count).gpu
    return gpu


def bare_loop(runner: Any, feed: Any, count: int) -> list[float]:
    """GPU times of ``count`` calls in seconds, on the context alone."""
    import torch

    runner.infer(feed)  # binds the feed
    call = runner.calls[0]
    context, stream = call.context, call.stream
    before = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    after = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    stream.synchronize()
    for begin, end in zip(before, after, strict=True):
        begin.record(stream)
        context.execute_async_v3(stream.cuda_stream)
        end.record(stream)
        stream.synchronize()
    return [begin.elapsed_time(end) * 1e-3 for begin, end in zip(before, after, strict=True)]


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
