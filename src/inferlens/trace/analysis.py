"""The steps of a trace: the parts of their time, and the causes of idle GPUs.

``torch.profiler.profile.step()`` writes ``ProfilerStep#N`` around a step, and ONNX Runtime ``model_run`` around a run.
As in torch-tb-profiler, a step ends with the last GPU event that was launched in it, and begins at the end of the step
before. A trace without steps counts as one step.

A moment of a step counts once, for the first of the parts that ran in it. Names and order are torch-tb-profiler's: a
kernel goes before a copy, and the host counts while no GPU works.

A gap between two events of a device has two parts. Up to the end of the call that launched the next event the device
waited *for the host*, or for its *synchronising* if the host was in a call that waits for the device. The rest is the
time that the device takes *between kernels*. The time after the last event of a step is the host's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferlens.errors import InferlensError
from inferlens.record.display import Struct
from inferlens.stats.samples import gpu_waits_for_host
from inferlens.trace.kernels import ELIGIBLE, occupancy_of, uses_tensor_cores
from inferlens.trace.model import (
    CALLS,
    NONE,
    SECOND,
    Bools,
    Category,
    DeviceProperties,
    Floats,
    Ints,
    LaunchLinks,
    Nest,
    Trace,
)
from inferlens.trace.read import read_trace

# Sets of moments, as sorted intervals that do not touch: two arrays, begins and ends, in nanoseconds.


@dataclass(frozen=True, eq=False)
class Intervals:
    """Half-open intervals, sorted, none empty, none touching the next."""

    begin: Ints
    end: Ints

    @classmethod
    def union(cls, begin: Ints, end: Ints) -> Intervals:
        """Return the union of intervals, which may overlap and be in any order."""
        kept = end > begin
        order = np.argsort(begin[kept], kind="stable")
        begin, end = begin[kept][order], end[kept][order]
        if not len(begin):
            return cls(begin, end)
        reach = np.maximum.accumulate(end)
        starts = np.concatenate([[True], begin[1:] > reach[:-1]])
        lasts = np.concatenate([starts[1:], [True]])
        return cls(begin[starts], reach[lasts])

    @classmethod
    def of_events(cls, trace: Trace, rows: Ints) -> Intervals:
        """Return the moments in which at least one of the events ran."""
        return cls.union(trace.begin[rows], trace.ends(rows))

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def total(self) -> int:
        return int((self.end - self.begin).sum())

    def intersection(self, intervals: Intervals) -> Intervals:
        # The other intervals that meet one of these are neighbors: ``count`` of them from ``first`` on.
        first = np.searchsorted(intervals.end, self.begin, "right")
        count = np.maximum(np.searchsorted(intervals.begin, self.end, "left") - first, 0)
        own_index = np.repeat(np.arange(len(self)), count)
        index = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
        begin = np.maximum(self.begin[own_index], intervals.begin[index])
        end = np.minimum(self.end[own_index], intervals.end[index])
        kept = end > begin
        return Intervals(begin[kept], end[kept])

    def difference(self, intervals: Intervals) -> Intervals:
        if not len(self) or not len(intervals):
            return self
        begin = np.concatenate([[min(self.begin[0], intervals.begin[0])], intervals.end])
        end = np.concatenate([intervals.begin, [max(self.end[-1], intervals.end[-1])]])
        kept = end > begin
        return self.intersection(Intervals(begin[kept], end[kept]))

    def covered(self, begin: Ints, end: Ints) -> Ints:
        """Return how many nanoseconds of the intervals from ``begin`` to ``end`` are in this."""
        sums = np.concatenate([[0], np.cumsum(self.end - self.begin)])
        return self._until(end, sums) - self._until(begin, sums)

    def _until(self, time: Ints, sums: Ints) -> Ints:
        index = np.searchsorted(self.begin, time, "right") - 1
        safe = np.maximum(index, 0)
        if not len(self):
            return np.zeros(len(time), dtype=np.int64)
        inside = np.minimum(time, self.end[safe]) - self.begin[safe]
        return np.where(index >= 0, sums[safe] + inside, 0)


PREFIXES = "ProfilerStep#", "model_run"  # of the names of steps in PyTorch's profiler, and in ONNX Runtime's
WHOLE_TRACE = "whole trace"  # the name of the only step, where none is marked
# A last step with fewer of the GPU events of the one before was cut off by the profiler's end.
_CUT_OFF = 0.8
CAUSES = HOST, SYNCHRONISING, BETWEEN = "waiting for the host", "synchronising", "between kernels"
PARTS = ("kernel", "copy", "fill", "communication", "runtime", "data loader", "CPU", "other")
_LIBRARIES = ("nccl:", "xccl:", "hccl:")  # of collectives on devices
_COMMUNICATION = (*_LIBRARIES, "gloo:")
_COLLECTIVES = ("nccl", "hccl", "hcom_", "oneccl", "xccl")  # in names of kernels
_WAITS = ("synchronize", "ureventwait", "urqueuefinish")  # in names of calls
# Annotations that PyTorch itself makes around work of the host; older traces have them among the operators.
_OPTIMIZER = ("Optimizer.",)
_LOADER = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps in the order of time; times in nanoseconds."""

    names: NDArray[np.object_]  # numbers as the trace has them, or :data:`WHOLE_TRACE`
    host_begin: Ints  # ``host_begin`` and ``host_end``: of the annotation
    host_end: Ints
    begin: Ints  # ``begin`` and ``end``: of the step with the GPU events that it launched
    end: Ints
    launched: Ints  # number of GPU events that the step launched
    counted_in_means: Bools  # whether it counts in means; a step that the profiler has cut off does not

    def __len__(self) -> int:
        return len(self.names)

    def only(self, name: str) -> Steps:
        """Return one step by its number, which then counts. Raises InferlensError if there is none."""
        indices = np.flatnonzero(self.names == name)[:1]
        if not len(indices):
            raise InferlensError(f"The trace has no step {name}.", expected=f"one of {', '.join(self.names[:20])}")
        return self._select(indices)

    def counted(self) -> Steps:
        return self._select(np.flatnonzero(self.counted_in_means))

    def _select(self, indices: Ints) -> Steps:
        columns = {field.name: getattr(self, field.name)[indices] for field in fields(self)}
        return Steps(**{**columns, "counted_in_means": np.ones(len(indices), bool)})


def steps_of(trace: Trace, launch_links: LaunchLinks) -> Steps:
    """Return all steps of a trace: at least one, unless the trace has no events."""
    names, begin, end = _host_steps(trace)
    step_of_event = _launching_steps(trace, launch_links, begin, end)
    launched = np.bincount(step_of_event[step_of_event >= 0], minlength=len(names))
    gpu_begin, gpu_end = trace.begin[trace.gpu.row], trace.ends(trace.gpu.row)
    step_begin, step_end = begin.copy(), end.copy()
    if launched.any():
        previous_end = begin[0]
        if launched[0]:
            first_event = gpu_begin[step_of_event == 0].min()
            earlier_ends = gpu_end[(step_of_event < 0) & (gpu_end < first_event)]
            previous_end = earlier_ends.max(initial=previous_end)
        for step in range(len(names)):
            step_begin[step] = max(previous_end, begin[step])
            last_event = gpu_end[step_of_event == step].max(initial=end[step])
            step_end[step] = previous_end = max(last_event, step_begin[step])
    kept = np.ones(len(launched), bool)
    if len(launched) >= 2 and launched.any():
        # The last steps are incomplete if they launched nothing, or far too little.
        last = int(np.flatnonzero(launched)[-1])
        kept[last + 1 :] = False
        kept[last] = last == 0 or launched[last - 1] * _CUT_OFF <= launched[last]
    timed = kept & (end > begin)  # a step that the profiler left open has no duration
    counted = timed if timed.any() else kept
    return Steps(np.array(names, dtype=object), begin, end, step_begin, step_end, launched, counted)


def _host_steps(trace: Trace) -> tuple[list[str], Ints, Ints]:
    """Return names, begins and ends of the annotations of steps; without any, the whole trace as one step."""
    annotations = trace.scopes.row[trace.category[trace.scopes.row] == Category.ANNOTATION]
    for prefix in PREFIXES:
        rows = annotations[trace.starting(annotations, prefix)]
        if not len(rows) or (prefix == PREFIXES[1] and set(trace.names_of(rows)) != {prefix}):
            continue
        # A trace of several processes repeats its steps. Only the steps of the first thread count.
        rows = rows[trace.thread[rows] == trace.thread[rows[0]]]
        rows = rows[np.argsort(trace.begin[rows], kind="stable")]
        names = [name.removeprefix(prefix) or str(number) for number, name in enumerate(trace.names_of(rows))]
        return names, trace.begin[rows], trace.ends(rows)
    rows = trace.rows(Category.OPERATOR, Category.ANNOTATION)
    if not len(rows):
        rows = trace.rows(*(category for category in Category if category is not Category.SPAN))
    if not len(rows):
        return [], np.empty(0, np.int64), np.empty(0, np.int64)
    return [WHOLE_TRACE], trace.begin[rows].min(keepdims=True), trace.ends(rows).max(keepdims=True)


def _launching_steps(trace: Trace, launch_links: LaunchLinks, begin: Ints, end: Ints) -> Ints:
    """Return for every GPU event the step in which its launch began and ended; -1 without one."""
    steps = np.full(len(trace.gpu), -1, dtype=np.int64)
    launched = launch_links.launch >= 0
    if len(begin) and launched.any():
        rows = trace.calls.row[launch_links.launch[launched]]
        step = np.searchsorted(begin, trace.begin[rows], "right") - 1
        is_inside = (step >= 0) & (trace.ends(rows) <= end[np.maximum(step, 0)])
        steps[launched] = np.where(is_inside, step, -1)
    return steps


def parts_of(trace: Trace, launch_links: LaunchLinks) -> dict[str, Intervals]:
    """Return the intervals of :data:`PARTS` in the whole trace, without ``other``."""
    communicates = communication(trace, launch_links)
    kernels = trace.category[trace.gpu.row] == Category.KERNEL
    scopes = trace.scopes.row
    operators = trace.category[scopes] == Category.OPERATOR
    loads, talks = trace.starting(scopes, *_LOADER), trace.starting(scopes, *_COMMUNICATION)
    rows = {
        "kernel": trace.gpu.row[kernels & ~communicates],
        "copy": trace.rows(Category.MEMCPY),
        "fill": trace.rows(Category.MEMSET),
        "communication": np.concatenate([trace.gpu.row[communicates], scopes[talks]]),
        "runtime": trace.rows(*CALLS),
        "data loader": scopes[loads],
        "CPU": scopes[(operators | trace.starting(scopes, *_OPTIMIZER)) & ~talks & ~loads],
    }
    return {name: Intervals.of_events(trace, part_rows) for name, part_rows in rows.items()}


def shares_of(parts: dict[str, Intervals], steps: Steps) -> dict[str, Ints]:
    """Return the nanoseconds of all steps by :data:`PARTS`, which add up to the step."""
    remaining = Intervals.union(steps.begin, steps.end)
    shares: dict[str, Ints] = {}
    for name, part in parts.items():
        intervals = part.intersection(remaining)
        shares[name] = intervals.covered(steps.begin, steps.end)
        remaining = remaining.difference(intervals)
    return {**shares, "other": remaining.covered(steps.begin, steps.end)}


def communication(trace: Trace, launch_links: LaunchLinks) -> Bools:
    """Return a mask of the kernels that exchange data between devices, by their names or those of their operators."""
    collective = trace.named(trace.gpu.row, lambda name: any(word in name.lower() for word in _COLLECTIVES))
    launched = launch_links.operator >= 0
    collective[launched] |= trace.starting(trace.scopes.row[launch_links.operator[launched]], *_LIBRARIES)
    mask: Bools = collective & (trace.category[trace.gpu.row] == Category.KERNEL)
    return mask


def idle_of(trace: Trace, launch_links: LaunchLinks, steps: Steps) -> dict[str, float]:
    """Return the idle nanoseconds of all steps by cause, as a mean over the devices that ran anything."""
    sums = dict.fromkeys(CAUSES, 0.0)
    gaps = _gaps(trace, launch_links, Intervals.union(steps.begin, steps.end))
    waits = Intervals.of_events(trace, synchronising(trace, launch_links))
    for waiting, idle in gaps:
        synchronised = waiting.intersection(waits).total
        for cause, time in zip(CAUSES, (waiting.total - synchronised, synchronised, idle.total), strict=True):
            sums[cause] += time / len(gaps)
    return sums


def host_gaps(trace: Trace, launch_links: LaunchLinks, window: Intervals) -> Intervals:
    """Return the intervals in the window in which all devices that ran anything waited for work."""
    gaps = [waiting for waiting, _ in _gaps(trace, launch_links, window)]
    return reduce(Intervals.intersection, gaps) if gaps else Intervals(window.begin[:0], window.end[:0])


def synchronising(trace: Trace, launch_links: LaunchLinks) -> Ints:
    """Return the rows of calls in which the host waits for the device, including copies to unpinned memory."""
    rows, launch, copies = trace.calls.row, launch_links.launch, trace.gpu.row
    waits = trace.named(rows, lambda name: any(word in name.lower() for word in _WAITS))
    to_host = trace.named(copies, lambda name: "DtoH" in name and "Pinned" not in name) & (launch >= 0)
    calls = launch[to_host]
    waits[calls[trace.ends(copies[to_host]) <= trace.ends(rows[calls])]] = True
    return rows[waits]


def _gaps(trace: Trace, launch_links: LaunchLinks, window: Intervals) -> list[tuple[Intervals, Intervals]]:
    """Return for each device when it waited for work, and when it had work and did not run it, within the window."""
    gaps = []
    for device in np.unique(trace.gpu.device).tolist() if len(window) else []:
        events = np.flatnonzero(trace.gpu.device == device)
        rows, launch = trace.gpu.row[events], launch_links.launch[events]
        begin, reach = trace.begin[rows], np.maximum.accumulate(trace.ends(rows))
        calls = trace.calls.row[np.maximum(launch, 0)] if len(trace.calls) else np.zeros(len(events), np.int64)
        # Events without a launch count as launched from the start.
        launch_end = np.where(launch >= 0, trace.ends(calls), np.iinfo(np.int64).min)
        window_begin, window_end = int(window.begin[0]), int(window.end[-1])
        gap_begin = np.concatenate([[min(window_begin, int(begin[0]))], reach])
        gap_end = np.concatenate([begin, [max(window_end, int(reach[-1]))]])
        work_given = np.concatenate([launch_end, [window_end]]).clip(gap_begin, np.maximum(gap_begin, gap_end))
        waiting, idle = Intervals.union(gap_begin, work_given), Intervals.union(work_given, gap_end)
        gaps.append((waiting.intersection(window), idle.intersection(window)))
    return gaps


# The cost of operator calls: on the host and on the GPU, with and without the operators that they called.
#
# The definitions are torch-tb-profiler's. Host time by itself is without the operators that it called and without calls
# of the CUDA runtime. Time on the GPU is that of everything that was launched, added up, also where it ran at the same
# time. An operator that only calls one of the same name is one call.


class Costs:
    """Costs of every scope of a trace in nanoseconds. Only operators have costs."""

    def __init__(self, trace: Trace, launch_links: LaunchLinks) -> None:
        self.trace, self.launch_links = trace, launch_links
        rows, nest = trace.scopes.row, launch_links.nest
        self.host_total: Ints = trace.duration[rows]
        self._operators: Bools = trace.category[rows] == Category.OPERATOR
        self.parent = nest.parent.copy()  # the operator around a scope, merged ones left out; -1 without one
        for level in nest.levels[1:]:
            others = level[~self._operators[self.parent[level]]]
            self.parent[others] = self.parent[self.parent[others]]
        # An operator is merged into its caller if both have one name and the caller calls nothing else.
        self._called: Bools = self._operators & (self.parent >= 0)
        only_call = np.bincount(self.parent[self._called], minlength=len(rows))[self.parent] == 1
        names = trace.name[rows]
        inside = (names == names[self.parent]) & (nest.end <= nest.end[self.parent])
        self._merged: Bools = self._called & only_call & inside
        self.is_operator: Bools = self._operators & ~self._merged  # without those merged into the one around them

    @cached_property
    def host_self(self) -> Ints:
        """Host time without called operators and without calls of the runtime."""
        trace, nest = self.trace, self.launch_links.nest
        self_time = self.host_total.copy()
        called = np.flatnonzero(self._called)
        callers = self.parent[called]
        # An operator that outlasts the one around its begin counts there for as long as both run.
        np.subtract.at(self_time, callers, np.minimum(nest.end[called], nest.end[callers]) - nest.begin[called])
        rows = trace.calls.row
        order = Nest.order(trace, rows)
        # The runtime calls the driver: a call within another call does not count.
        outermost = order[Nest(trace, rows[order]).parent == NONE]
        operators = self.launch_links.around_calls(Category.OPERATOR)[outermost]
        inside = operators >= 0
        np.subtract.at(self_time, operators[inside], trace.duration[rows[outermost[inside]]])
        return np.maximum(self._added_to_parents(self_time, self._merged), 0)

    @cached_property
    def device_self(self) -> Ints:
        return self._launched_time(np.ones(len(self.trace.gpu), bool))

    @cached_property
    def device_total(self) -> Ints:
        return self._added_to_parents(self.device_self, self._called)

    @cached_property
    def tensor_total(self) -> Ints:
        return self._added_to_parents(self._launched_time(self.uses_tensor_cores), self._called)

    @cached_property
    def eligible(self) -> Bools:
        """A mask of the operators that could use tensor cores, or call one that could."""
        listed = self.trace.named(self.trace.scopes.row, ELIGIBLE.__contains__) & self._operators
        eligible = listed | (self._launched_time(self.uses_tensor_cores) > 0)
        return self._added_to_parents(eligible.astype(np.int64), self._called) > 0

    @cached_property
    def uses_tensor_cores(self) -> Bools:
        """A mask of the GPU events whose name says that they use tensor cores."""
        return self.trace.named(self.trace.gpu.row, lambda name: uses_tensor_cores(name) is True)

    @cached_property
    def tells_tensor_cores(self) -> Bools:
        """A mask of the GPU events whose name says whether they use tensor cores."""
        return self.trace.named(self.trace.gpu.row, lambda name: uses_tensor_cores(name) is not None)

    @cached_property
    def occupancy(self) -> Floats:
        return occupancy_of(self.trace)

    @cached_property
    def operator(self) -> Ints:
        """The operators that launched the GPU events; -1 without one. A merged operator counts as its parent."""
        operators = self.launch_links.operator.copy()
        while len(self._merged) and (merged := (operators >= 0) & self._merged[operators]).any():
            operators[merged] = self.parent[operators[merged]]
        return operators

    def _launched_time(self, mask: Bools) -> Ints:
        """Return for every scope the time of the GPU events of a mask that it launched."""
        sums = np.zeros(len(self.trace.scopes), dtype=np.int64)
        launched = mask & (self.operator >= 0)
        np.add.at(sums, self.operator[launched], self.trace.duration[self.trace.gpu.row[launched]])
        return sums

    def _added_to_parents(self, values: Ints, mask: Bools) -> Ints:
        """Return the values of scopes. Values of a mask are added to the operators around them, inner ones first."""
        total = values.copy()
        for level in reversed(self.launch_links.nest.levels):
            scopes = level[mask[level]]
            np.add.at(total, self.parent[scopes], total[scopes])
        return total


class GpuUse(Struct, frozen=True, kw_only=True):
    """The use of a GPU from the first step's begin to the last one's end; shares from 0 to 1, ``None`` if unknown."""

    device: int
    name: str = ""
    utilization: float = 0.0  # share of the time in which at least one kernel ran
    # Estimate of the share of multiprocessors at work: blocks per multiprocessor of all kernels that run at a
    # moment, at most 1, as a mean over the time.
    sm_efficiency: float | None = None
    occupancy: float | None = None  # estimated achieved occupancy of the kernels, a mean weighted by their time
    # Share of the kernels' time, of the whole trace, that is of kernels with tensor cores.
    tensor_share: float | None = None
    tensor_untold: float | None = None  # share of that time in kernels whose names do not say whether they use any
    properties: DeviceProperties | None = None


class Overview(Struct, frozen=True, kw_only=True):
    """Means over the steps that count; seconds."""

    steps: int  # number of steps that count; ``left_out`` were cut off by the profiler's end
    left_out: int
    step_time: float  # of one step
    parts: dict[str, float]  # the time of one step by :data:`PARTS`; they add up to the step
    idle: dict[str, float]  # of one step, by cause; the mean over GPUs
    bound: str  # ``GPU``, ``host``, ``both`` or ``CPU only``
    gpus: tuple[GpuUse, ...]
    notes: tuple[str, ...] = ()

    @property
    def waiting(self) -> float:
        """Seconds per step in which the GPU waited for the host, including synchronising."""
        return self.idle[HOST] + self.idle[SYNCHRONISING]


# Events of torch.profiler itself, which it writes whether or not it records.
_ITS_OWN = (Category.SPAN, Category.OVERHEAD, Category.MARKER)
_EXPORT = "export in on_trace_ready: profile(..., on_trace_ready=lambda prof: prof.export_chrome_trace('trace.json'))"


def load_analysis(path: Path, step: int | str | None = None) -> Analysis:
    """Read a trace file.

    Raises InferlensError if there is no trace, no such step, or nothing that the profiler recorded of a program.
    """
    trace = read_trace(path)
    if not len(trace):
        raise InferlensError(f"{path} is a trace without events.", hint="profile more steps")
    from_profiler = np.isin(trace.category, _ITS_OWN) | trace.starting(np.arange(len(trace)), *PREFIXES)
    from_profiler[synchronising(trace, LaunchLinks(trace))] = True
    if from_profiler.all():
        raise InferlensError(
            f"{path} has only the profiler's own events: it was exported outside of the active steps "
            "of its schedule, such as after a cycle.",
            hint=_EXPORT,
        )
    return Analysis(trace, step)


class Analysis:
    """The analysis of a whole trace or of one step, by its number. Raises InferlensError if there is no such step."""

    def __init__(self, trace: Trace, step: int | str | None = None) -> None:
        self.trace, self.launch_links = trace, LaunchLinks(trace)
        self.step = None if step is None else str(step)
        self.steps = steps_of(trace, self.launch_links)
        # Means are over the chosen step, or over all steps that the profiler did not cut off.
        self.counted: Steps = self.steps.counted() if self.step is None else self.steps.only(self.step)

    @property
    def tables_of(self) -> int:
        """The number of steps in the tables of operators, kernels and modules: all in the trace, or the chosen one."""
        return max(len(self.steps), 1) if self.step is None else 1

    @cached_property
    def costs(self) -> Costs:
        return Costs(self.trace, self.launch_links)

    @cached_property
    def parts(self) -> dict[str, Intervals]:
        return parts_of(self.trace, self.launch_links)

    @cached_property
    def gpu_use(self) -> tuple[GpuUse, ...]:
        gpu = self.trace.gpu
        kernels = self.trace.category[gpu.row] == Category.KERNEL
        devices = np.unique(gpu.device[kernels]).tolist() if len(self.counted) else []
        return tuple(self._gpu_use(device, np.flatnonzero(kernels & (gpu.device == device))) for device in devices)

    @cached_property
    def overview(self) -> Overview:
        steps = self.counted
        count = max(len(steps), 1)
        length = float((steps.end - steps.begin).sum()) / count / SECOND
        parts = {name: float(np.sum(times)) / count / SECOND for name, times in shares_of(self.parts, steps).items()}
        idle = {why: time / count / SECOND for why, time in idle_of(self.trace, self.launch_links, steps).items()}
        bound = "host" if gpu_waits_for_host(idle[HOST] + idle[SYNCHRONISING], length) else "both"
        bound = bound if gpu_waits_for_host(sum(idle.values()), length) else "GPU"
        return Overview(
            steps=len(steps), left_out=len(self.steps) - len(steps) if self.step is None else 0, step_time=length,
            parts=parts, idle=idle, bound=bound if self.gpu_use and length else "CPU only", gpus=self.gpu_use,
            notes=self.trace.notes,
        )  # fmt: skip

    def within(self, moments: Ints) -> Bools:
        """Return a mask of host moments in the chosen step; all if none was chosen."""
        if self.step is None:
            return np.ones(len(moments), bool)
        mask: Bools = (moments >= self.counted.host_begin[0]) & (moments < self.counted.host_end[0])
        return mask

    @cached_property
    def gpu_within(self) -> Bools:
        """A mask of GPU events that were launched in the chosen step, or began in it without a launch."""
        trace, launch = self.trace, self.launch_links.launch
        moment = trace.begin[trace.gpu.row]
        launched = launch >= 0
        began = np.ones(len(moment), bool)
        if self.step is not None:
            began = (moment >= self.counted.host_begin[0]) & (moment < self.counted.end[0])
        began[launched] = self.within(trace.begin[trace.calls.row[launch[launched]]])
        return began

    def _gpu_use(self, device: int, events: Ints) -> GpuUse:
        """Return the use of a GPU; ``events`` are its kernels."""
        trace, costs = self.trace, self.costs
        properties = next((properties for properties in trace.about.devices if properties.id == device), None)
        rows = trace.gpu.row[events]
        begin, end, duration = trace.begin[rows], trace.ends(rows), trace.duration[rows]
        window_begin, window_end = int(self.counted.begin[0]), int(self.counted.end[-1])
        length = max(window_end - window_begin, 1)
        inside = np.minimum(end, window_end) - np.maximum(begin, window_begin)
        occupancy = costs.occupancy[events]
        usable = (occupancy >= 0) & (inside > 0)
        moments, filled = filling(trace, events)
        filled_time = (filled * np.diff(np.clip(moments, window_begin, window_end))).sum()

        def share(mask: Bools) -> float | None:
            total = int(duration.sum())
            return float(duration[mask].sum() / total) if total else None

        busy = Intervals.union(begin, end).covered(self.counted.begin[:1], self.counted.end[-1:])
        return GpuUse(
            device=device,
            name=properties.name if properties else "",
            utilization=int(busy[0]) / length,
            sm_efficiency=float(filled_time / length) if len(filled) else None,
            occupancy=float(np.average(occupancy[usable], weights=inside[usable])) / 100 if usable.any() else None,
            tensor_share=share(costs.uses_tensor_cores[events]),
            tensor_untold=share(~costs.tells_tensor_cores[events]),
            properties=properties,
        )


def filling(trace: Trace, events: Ints) -> tuple[Ints, Floats]:
    """Return sorted moments, and the estimated share of busy multiprocessors from one moment to the next."""
    events = events[trace.gpu.blocks_per_sm[events] > 0]
    rows, blocks = trace.gpu.row[events], trace.gpu.blocks_per_sm[events]
    moments = np.concatenate([trace.begin[rows], trace.ends(rows)])
    order = np.argsort(moments, kind="stable")
    level: Any = np.cumsum(np.concatenate([blocks, -blocks])[order])
    return moments[order], np.clip(level, 0.0, 1.0)[:-1]  # sums of floats may end a little below zero
