"""Our GPU time of an engine, beside a bare loop of CUDA events around ``execute_async_v3``.

Both time the same engine with the same memory, in turns. The bare loop is what a careful person would write by hand:
an event, the call, an event, a wait.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.flavours import find
from inferlens.case import Case
from inferlens.models import inputs, resolve

CASES = (("resnet18", "fp16", 1), ("resnet18", "fp16", 32), ("resnet50", "fp32", 1), ("resnet50", "fp16", 8))
ROUNDS, CALLS, WARMUP = 9, 300, 50


def main() -> None:
    """Prints the table; without a GPU and TensorRT, that there is none."""
    variant = next((name for name in ("trt", "rtx") if find(name)[0]), None)
    able = TensorRT().capabilities()
    if variant is None or not able.supports:
        Console().print("engine_loop: needs an NVIDIA GPU and TensorRT or TensorRT for RTX.")
        return
    title = f"GPU time of an engine, medians of {ROUNDS} rounds of {CALLS} calls ({find(variant)[0].title})"  # type: ignore[union-attr]
    table = Table(title=title, title_justify="left")
    for header in ("model", "precision", "batch", "bare loop, ms", "inferlens, ms", "difference, %"):
        table.add_column(header, justify="left" if header == "model" else "right")
    for model, precision, batch in CASES:
        bare, ours = measured(model, precision, batch, variant)
        apart = (ours / bare - 1) * 100
        table.add_row(model, precision, str(batch), f"{bare * 1e3:.4f}", f"{ours * 1e3:.4f}", f"{apart:+.2f}")
    Console(width=120).print(table)


def measured(name: str, precision: str, batch: int, variant: str) -> tuple[float, float]:
    """Median GPU time in seconds by the bare loop, and by the runner's clock."""
    case = Case(
        model=f"torchvision:{name}", backend="tensorrt", variant=variant, precision=precision, batch=batch,
        device="cuda",
    )  # fmt: skip
    model = resolve.load(case)
    with tempfile.TemporaryDirectory() as folder:
        preparation = Preparation(Path(folder) / "case", Path(folder) / "cache")
        with TensorRT().prepare(model, case, preparation) as runner:
            feed = runner.place(inputs.make_inputs(model, case.seed))
            bare_loop(runner, feed, WARMUP)
            bare, ours = [], []
            for _ in range(ROUNDS):
                bare.append(statistics.median(bare_loop(runner, feed, CALLS)))
                ours.append(statistics.median(runner.clock.time(runner.infer, itertools.repeat(feed), CALLS).gpu))
    return statistics.median(bare), statistics.median(ours)


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
