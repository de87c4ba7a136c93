"""What a trace comes to: its steps, how its GPUs were used, where the time went and why GPUs were idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from inferlens.trace.gpu_use import GpuUse
from inferlens.trace.idle import idle_of
from inferlens.trace.shares import shares_of
from inferlens.trace.table import SECOND

if TYPE_CHECKING:
    from inferlens.trace.analysis import Analysis

# From this share of the step's time on one side decides; between the two, both do.
GPU_BOUND, HOST_BOUND = 0.8, 0.3


class Overview(Struct, frozen=True, kw_only=True):
    """Means over the steps that count; seconds.

    Attributes:
        steps: those that count; ``left_out`` were cut off by the profiler's end.
        step_time: of one step.
        parts: of one step, by what it went to; they add up to it.
        idle: of one step, by cause; the mean over GPUs.
        bound: ``GPU``, ``host``, ``both`` or ``CPU only``.
        gpus: each that ran a kernel.
        notes: what was skipped while reading.
    """

    steps: int
    left_out: int
    step_time: float
    parts: dict[str, float]
    idle: dict[str, float]
    bound: str
    gpus: tuple[GpuUse, ...]
    notes: tuple[str, ...] = ()


def overview_of(analysis: Analysis) -> Overview:
    """The overview of a trace, or of the step that was chosen."""
    steps = analysis.counted
    count = max(len(steps), 1)
    length = float((steps.end - steps.begin).sum()) / count / SECOND
    parts = {name: float(np.sum(times)) / count / SECOND for name, times in shares_of(analysis.parts, steps).items()}
    idle = {
        cause: time / count / SECOND for cause, time in idle_of(analysis.trace, analysis.launch_links, steps).items()
    }
    gpus = analysis.gpu_use
    bound = _bound(length, idle, bool(gpus))
    return Overview(
        steps=len(steps),
        left_out=len(analysis.steps) - len(steps) if analysis.step is None else 0,
        step_time=length,
        parts=parts,
        idle=idle,
        bound=bound,
        gpus=gpus,
        notes=analysis.trace.notes,
    )


def _bound(length: float, idle: dict[str, float], has_gpu: bool) -> str:
    if not has_gpu or not length:
        return "CPU only"
    if 1 - sum(idle.values()) / length >= GPU_BOUND:
        return "GPU"
    return "host" if (idle["waiting for the host"] + idle["synchronising"]) / length >= HOST_BOUND else "both"
