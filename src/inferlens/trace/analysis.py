"""One trace with everything that is derived from it, each part made once and only when it is asked for.

How much of each GPU was used: the numbers of torch-tb-profiler's overview, with its definitions.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from inferlens.errors import InferlensError
from inferlens.record.display import Struct
from inferlens.stats.host_bound import gpu_waits_for_host
from inferlens.trace.columns import SECOND
from inferlens.trace.forms import DeviceProperties
from inferlens.trace.occupancy import occupancy_of
from inferlens.trace.reader import read
from inferlens.trace.steps import (
    HOST,
    PREFIXES,
    SYNCHRONISING,
    Intervals,
    Steps,
    idle_of,
    parts_of,
    shares_of,
    steps_of,
    synchronising,
)
from inferlens.trace.tensor_cores import ELIGIBLE, uses_tensor_cores
from inferlens.trace.trace import NONE, Bools, Category, Floats, Ints, LaunchLinks, Trace, nested

# What each call of an operator cost: on the host and on the GPU, by itself and with what it called.
#
# The definitions are torch-tb-profiler's. Host time by itself is without the operators that it called and without calls
# of the CUDA runtime. Time on the GPU is that of everything that was launched, added up, also where it ran at the same
# time. An operator that only calls one of the same name is one call.


class Costs:
    """Costs of every scope of a trace in nanoseconds; those that are no operators have none.

    Attributes:
        parent: the operator around each scope, merged ones left out; -1 without one.
        is_operator: which scopes are calls of operators; those merged into the one around them are none.
        host_total: from begin to end.
    """

    def __init__(self, trace: Trace, launch_links: LaunchLinks) -> None:
        self.trace, self.launch_links = trace, launch_links
        rows, nest = trace.scopes.row, launch_links.nest
        self.host_total: Ints = trace.duration[rows]
        self._operators: Bools = trace.category[rows] == Category.OPERATOR
        self.parent = nest.parent.copy()
        for level in nest.levels[1:]:
            others = level[~self._operators[self.parent[level]]]
            self.parent[others] = self.parent[self.parent[others]]
        # Operators that another one called, and those that are all that an operator of the same name calls.
        self._called: Bools = self._operators & (self.parent >= 0)
        alone = np.bincount(self.parent[self._called], minlength=len(rows))[self.parent] == 1
        names = trace.name[rows]
        inside = (names == names[self.parent]) & (nest.end <= nest.end[self.parent])
        self._merged: Bools = self._called & alone & inside
        self.is_operator: Bools = self._operators & ~self._merged

    @cached_property
    def host_self(self) -> Ints:
        """Without operators that it called and calls of the runtime."""
        nest, own = self.launch_links.nest, self.host_total.copy()
        child = np.flatnonzero(self._called)
        above = self.parent[child]
        # What only overlaps the operator around its begin is in it for that long.
        np.subtract.at(own, above, np.minimum(nest.end[child], nest.end[above]) - nest.begin[child])
        rows = self.trace.calls.row  # the runtime calls the driver: what is within another call does not count
        begin, duration, thread = self.trace.begin[rows], self.trace.duration[rows], self.trace.thread[rows]
        order = np.lexsort((-duration, begin, thread))
        calls = order[nested(thread[order], begin[order], (begin + duration)[order])[0] == NONE]
        around = self.launch_links.around_calls(Category.OPERATOR)[calls]
        known = around >= 0
        np.subtract.at(own, around[known], duration[calls[known]])
        least_zero: Ints = np.maximum(self._given_on(own, self._merged), 0)
        return least_zero

    @cached_property
    def device_self(self) -> Ints:
        """Of GPU events that it launched itself."""
        return self._launched(np.ones(len(self.trace.gpu), bool))

    @cached_property
    def device_total(self) -> Ints:
        """Of GPU events that it or what it called launched."""
        return self._given_on(self.device_self, self._called)

    @cached_property
    def tensor_total(self) -> Ints:
        """Of kernels with tensor cores among them."""
        return self._given_on(self._launched(self.uses_tensor_cores), self._called)

    @cached_property
    def eligible(self) -> Bools:
        """Which operators could use tensor cores, or call one that could."""
        could = self.trace.named(self.trace.scopes.row, ELIGIBLE.__contains__) & self._operators
        own = could | (self._launched(self.uses_tensor_cores) > 0)
        found: Bools = self._given_on(own.astype(np.int64), self._called) > 0
        return found

    @cached_property
    def uses_tensor_cores(self) -> Bools:
        """For each GPU event, as far as its name says."""
        return self.trace.named(self.trace.gpu.row, lambda name: uses_tensor_cores(name) is True)

    @cached_property
    def tells_tensor_cores(self) -> Bools:
        """For each GPU event whether its name says if it uses tensor cores."""
        return self.trace.named(self.trace.gpu.row, lambda name: uses_tensor_cores(name) is not None)

    @cached_property
    def occupancy(self) -> Floats:
        """For each GPU event, estimated, in per cent."""
        return occupancy_of(self.trace)

    @cached_property
    def operator(self) -> Ints:
        """For each GPU event the operator that launched it, merged ones counted to the one around; -1 without one."""
        found = self.launch_links.operator.copy()
        while len(self._merged) and (merged := (found >= 0) & self._merged[found]).any():
            found[merged] = self.parent[found[merged]]
        return found

    def _launched(self, which: Bools) -> Ints:
        sums = np.zeros(len(self.trace.scopes), dtype=np.int64)
        known = which & (self.operator >= 0)
        np.add.at(sums, self.operator[known], self.trace.duration[self.trace.gpu.row[known]])
        return sums

    def _given_on(self, own: Ints, which: Bools) -> Ints:
        """Values of scopes, those of ``which`` given on to the operator around, inner ones first."""
        total = own.copy()
        for level in reversed(self.launch_links.nest.levels):
            given = level[which[level]]
            np.add.at(total, self.parent[given], total[given])
        return total


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


# What torch.profiler writes of itself, whether or not it records; and its steps.
_ITS_OWN = (Category.SPAN, Category.OVERHEAD, Category.MARKER)
_EXPORT = "export in on_trace_ready: profile(..., on_trace_ready=lambda prof: prof.export_chrome_trace('trace.json'))"


def load_analysis(path: Path, step: int | str | None = None) -> Analysis:
    """Read a trace file.

    Raises InferlensError if there is no trace, no such step, or nothing that the profiler recorded of a program.
    """
    trace = read(path)
    if not len(trace):
        raise InferlensError(f"{path} is a trace without events.", hint="profile more steps")
    own = np.isin(trace.category, _ITS_OWN) | trace.starting(np.arange(len(trace)), *PREFIXES)
    own[synchronising(trace, LaunchLinks(trace))] = True
    if own.all():
        raise InferlensError(
            f"{path} has only the profiler's own events: it was exported outside of the active steps "
            "of its schedule, such as after a cycle.",
            hint=_EXPORT,
        )
    return Analysis(trace, step)


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
        bound = "host" if gpu_waits_for_host(idle[HOST] + idle[SYNCHRONISING], length) else "both"
        bound = bound if gpu_waits_for_host(sum(idle.values()), length) else "GPU"
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
        device_properties = next(
            (device_properties for device_properties in trace.about.devices if device_properties.id == device), None
        )
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
            name=device_properties.name if device_properties else "",
            utilization=int(Intervals.union(begin, end).covered(np.array([low]), np.array([high]))[0]) / length,
            sm_efficiency=None if at_work is None else float(at_work),
            occupancy=None if occupied is None else float(occupied),
            tensor_share=float(duration[costs.uses_tensor_cores[here]].sum() / whole) if whole else None,
            tensor_untold=float(duration[~costs.tells_tensor_cores[here]].sum() / whole) if whole else None,
            properties=device_properties,
        )


def filling(trace: Trace, here: Ints) -> tuple[Ints, Floats]:
    """The estimated share of multiprocessors at work: moments, sorted, and the share from each of them to the next."""
    here = here[trace.gpu.blocks_per_sm[here] > 0]
    rows, blocks = trace.gpu.row[here], trace.gpu.blocks_per_sm[here]
    moments = np.concatenate([trace.begin[rows], trace.ends(rows)])
    order = np.argsort(moments, kind="stable")
    level: Any = np.cumsum(np.concatenate([blocks, -blocks])[order])
    return moments[order], np.clip(level, 0.0, 1.0)[:-1]  # sums of floats may end a little below zero
