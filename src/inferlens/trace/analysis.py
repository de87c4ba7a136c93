"""One trace with everything that is derived from it, each part made once and only when it is asked for.

How much of each GPU was used: the numbers of torch-tb-profiler's overview, with its definitions.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from inferlens.stats.host_bound import gpu_waits
from inferlens.trace.columns import SECOND
from inferlens.trace.costs import Costs
from inferlens.trace.forms import DeviceProperties
from inferlens.trace.intervals import Intervals
from inferlens.trace.launch_links import LaunchLinks
from inferlens.trace.steps import HOST, SYNCHRONISING, Steps, idle_of, parts_of, shares_of, steps_of
from inferlens.trace.trace import Bools, Category, Floats, Ints, Trace


class GpuUse(Struct, frozen=True, kw_only=True):
    """A GPU in the steps, from the first one's begin to the last one's end; shares from 0 to 1, ``None``: not known.

    Attributes:
        utilization: share of the time in which at least one kernel ran.
        sm_efficiency: estimate of the share of multiprocessors at work: blocks per multiprocessor of all kernels that
            run at a moment, at most 1, as a mean over the time.
        occupancy: estimated achieved occupancy of the kernels, a mean weighted by their time.
        tensor_share: share of the kernels' time, of the whole trace, that is of kernels with tensor cores.
        tensor_untold: share of that time in kernels whose names do not say whether they use any.
    """

    device: int
    name: str = ""
    utilization: float = 0.0
    sm_efficiency: float | None = None
    occupancy: float | None = None
    tensor_share: float | None = None
    tensor_untold: float | None = None
    properties: DeviceProperties | None = None


class Overview(Struct, frozen=True, kw_only=True):
    """Means over the steps that count; seconds.

    Attributes:
        steps: those that count; ``left_out`` were cut off by the profiler's end.
        step_time: of one step.
        parts: of one step, by what it went to; they add up to it.
        idle: of one step, by cause; the mean over GPUs.
        bound: ``GPU``, ``host``, ``both`` or ``CPU only``.
    """

    steps: int
    left_out: int
    step_time: float
    parts: dict[str, float]
    idle: dict[str, float]
    bound: str
    gpus: tuple[GpuUse, ...]
    notes: tuple[str, ...] = ()

    @property
    def waiting(self) -> float:
        """Seconds of one step in which the GPU waited for the host, synchronising included."""
        return self.idle[HOST] + self.idle[SYNCHRONISING]


class Analysis:
    """A trace, looked at as a whole or one step of it, by its number; InferlensError if there is no such step."""

    def __init__(self, trace: Trace, step: int | str | None = None) -> None:
        self.trace, self.launch_links = trace, LaunchLinks(trace)
        self.step = None if step is None else str(step)
        self.steps = steps_of(trace, self.launch_links)
        # What means are over: the step that was chosen, or all that the profiler did not cut off.
        self.counted: Steps = self.steps.counted() if self.step is None else self.steps.only(self.step)

    @property
    def tables_of(self) -> int:
        """How many steps the tables of operators, kernels and modules are of: all in the trace, or the chosen one."""
        return max(len(self.steps), 1) if self.step is None else 1

    @cached_property
    def costs(self) -> Costs:
        """What each call of an operator cost."""
        return Costs(self.trace, self.launch_links)

    @cached_property
    def parts(self) -> dict[str, Intervals]:
        """When kernels, copies and so on ran."""
        return parts_of(self.trace, self.launch_links)

    @cached_property
    def gpu_use(self) -> tuple[GpuUse, ...]:
        """How much of each GPU that ran a kernel was used."""
        gpu = self.trace.gpu
        kernels = self.trace.category[gpu.row] == Category.KERNEL
        devices = np.unique(gpu.device[kernels]).tolist() if len(self.counted) else []
        return tuple(self._used(device, np.flatnonzero(kernels & (gpu.device == device))) for device in devices)

    @cached_property
    def overview(self) -> Overview:
        """What the trace, or the step that was chosen, comes to."""
        steps = self.counted
        count = max(len(steps), 1)
        length = float((steps.end - steps.begin).sum()) / count / SECOND
        parts = {name: float(np.sum(times)) / count / SECOND for name, times in shares_of(self.parts, steps).items()}
        idle = {why: time / count / SECOND for why, time in idle_of(self.trace, self.launch_links, steps).items()}
        bound = "host" if gpu_waits(idle[HOST] + idle[SYNCHRONISING], length) else "both"
        bound = bound if gpu_waits(sum(idle.values()), length) else "GPU"
        return Overview(
            steps=len(steps),
            left_out=len(self.steps) - len(steps) if self.step is None else 0,
            step_time=length,
            parts=parts,
            idle=idle,
            bound=bound if self.gpu_use and length else "CPU only",
            gpus=self.gpu_use,
            notes=self.trace.notes,
        )

    def within(self, moments: Ints) -> Bools:
        """Which moments of the host are in the chosen step; all if none was chosen."""
        if self.step is None:
            return np.ones(len(moments), bool)
        found: Bools = (moments >= self.counted.host_begin[0]) & (moments < self.counted.host_end[0])
        return found

    @cached_property
    def gpu_within(self) -> Bools:
        """Which GPU events were launched in the chosen step; those that nobody launched begin in it."""
        trace, launch = self.trace, self.launch_links.launch
        moment = trace.begin[trace.gpu.row]
        known = launch >= 0
        began = np.ones(len(moment), bool)
        if self.step is not None:
            began = (moment >= self.counted.host_begin[0]) & (moment < self.counted.end[0])
        began[known] = self.within(trace.begin[trace.calls.row[launch[known]]])
        return began

    def _used(self, device: int, here: Ints) -> GpuUse:
        trace, costs = self.trace, self.costs
        known = next((each for each in trace.about.devices if each.id == device), None)
        rows = trace.gpu.row[here]
        begin, end = trace.begin[rows], trace.ends(rows)
        low, high = int(self.counted.begin[0]), int(self.counted.end[-1])
        length, duration = max(high - low, 1), end - begin
        whole = int(duration.sum())
        inside = np.minimum(end, high) - np.maximum(begin, low)
        seen = (costs.occupancy[here] >= 0) & (inside > 0)
        occupied = (costs.occupancy[here][seen] * inside[seen]).sum() / inside[seen].sum() / 100 if seen.any() else None
        moments, filled = filling(trace, here)
        at_work = (filled * np.diff(np.clip(moments, low, high))).sum() / length if len(filled) else None
        return GpuUse(
            device=device,
            name=known.name if known else "",
            utilization=int(Intervals.union(begin, end).covered(np.array([low]), np.array([high]))[0]) / length,
            sm_efficiency=None if at_work is None else float(at_work),
            occupancy=None if occupied is None else float(occupied),
            tensor_share=float(duration[costs.uses_tensor_cores[here]].sum() / whole) if whole else None,
            tensor_untold=float(duration[~costs.tells_tensor_cores[here]].sum() / whole) if whole else None,
            properties=known,
        )


def filling(trace: Trace, here: Ints) -> tuple[Ints, Floats]:
    """The estimated share of multiprocessors at work: moments, sorted, and the share from each of them to the next."""
    here = here[trace.gpu.blocks_per_sm[here] > 0]
    rows, blocks = trace.gpu.row[here], trace.gpu.blocks_per_sm[here]
    moments = np.concatenate([trace.begin[rows], trace.ends(rows)])
    order = np.argsort(moments, kind="stable")
    level: Any = np.cumsum(np.concatenate([blocks, -blocks])[order])
    return moments[order], np.clip(level, 0.0, 1.0)[:-1]  # sums of floats may end a little below zero
