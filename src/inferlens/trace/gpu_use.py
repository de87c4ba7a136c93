"""How much of each GPU was used in the steps: the numbers of torch-tb-profiler's overview, with its definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from inferlens.trace.costs import Costs
from inferlens.trace.intervals import Intervals
from inferlens.trace.reading.forms import DeviceProperties
from inferlens.trace.steps import Steps
from inferlens.trace.trace import Category, Floats, Ints, Trace


class GpuUse(Struct, frozen=True, kw_only=True):
    """A GPU in the steps, from the first one's begin to the last one's end; shares from 0 to 1, ``None``: not told.

    Attributes:
        utilization: share of the time in which at least one kernel ran.
        sm_efficiency: estimate of the share of multiprocessors at work: blocks per multiprocessor of all kernels that
            run at a moment, at most 1, as a mean over the time.
        occupancy: estimated achieved occupancy of the kernels, a mean weighted by their time.
        tensor_share: share of the kernels' time, of the whole trace, that is of kernels with tensor cores.
        tensor_untold: share of that time in kernels whose names do not tell whether they use any.
        properties: as the trace tells them.
    """

    device: int
    name: str = ""
    utilization: float = 0.0
    sm_efficiency: float | None = None
    occupancy: float | None = None
    tensor_share: float | None = None
    tensor_untold: float | None = None
    properties: DeviceProperties | None = None


def gpu_use(costs: Costs, steps: Steps) -> tuple[GpuUse, ...]:
    """Each GPU that ran a kernel."""
    trace = costs.trace
    kernels = trace.category[trace.gpu.row] == Category.KERNEL
    known = {device.id: device for device in trace.about.devices}
    devices = np.unique(trace.gpu.device[kernels]).tolist() if len(steps) else []
    return tuple(_one(costs, steps, device, known.get(device)) for device in devices)


def _one(costs: Costs, steps: Steps, device: int, properties: DeviceProperties | None) -> GpuUse:
    trace = costs.trace
    kernels = trace.category[trace.gpu.row] == Category.KERNEL
    here = np.flatnonzero(kernels & (trace.gpu.device == device))
    rows = trace.gpu.row[here]
    begin, end = trace.begin[rows], trace.ends(rows)
    low, high = int(steps.begin[0]), int(steps.end[-1])
    length = max(high - low, 1)
    duration = end - begin
    whole = int(duration.sum())
    return GpuUse(
        device=device,
        name=properties.name if properties else "",
        utilization=int(Intervals.union(begin, end).covered(steps.begin[:1], steps.end[-1:])[0]) / length,
        sm_efficiency=_efficiency(trace, here, low, high),
        occupancy=_occupancy(trace, costs.occupancy, here, low, high),
        tensor_share=float(duration[costs.uses_tensor_cores[here]].sum() / whole) if whole else None,
        tensor_untold=float(duration[~costs.tells_tensor_cores[here]].sum() / whole) if whole else None,
        properties=properties,
    )


def _efficiency(trace: Trace, here: Ints, low: int, high: int) -> float | None:
    blocks = trace.gpu.blocks_per_sm[here]
    told = blocks > 0
    if not told.any():
        return None
    moments, level = levels(trace, here[told], blocks[told])
    moments = np.clip(moments, low, high)
    return float((np.minimum(level[:-1], 1.0) * np.diff(moments)).sum() / max(high - low, 1))


def levels(trace: Trace, here: Ints, values: Any) -> tuple[Ints, Any]:
    """The sum of what runs at a time: moments, sorted, and the sum from each of them to the next."""
    rows = trace.gpu.row[here]
    moments = np.concatenate([trace.begin[rows], trace.ends(rows)])
    order = np.argsort(moments, kind="stable")
    level = np.cumsum(np.concatenate([values, -values])[order])
    return moments[order], np.maximum(level, 0.0)  # sums of floats may end a little below zero


def _occupancy(trace: Trace, every: Floats, here: Ints, low: int, high: int) -> float | None:
    rows, occupancy = trace.gpu.row[here], every[here]
    inside = np.minimum(trace.ends(rows), high) - np.maximum(trace.begin[rows], low)
    told = (occupancy >= 0) & (inside > 0)
    if not told.any():
        return None
    return float((occupancy[told] * inside[told]).sum() / inside[told].sum() / 100)
