"""The steps of a trace, what their time went to, and why GPUs were idle in them.

``torch.profiler.profile.step()`` writes ``ProfilerStep#N`` around each, and ONNX Runtime ``model_run`` around a run. As
torch-tb-profiler has it, a step lasts until the last GPU event that was launched in it has ended, and begins when the
one before has. A trace without steps is one.

Each moment of a step counts once, for what stands first among what went on in it. Names and order are
torch-tb-profiler's: a kernel goes before a copy, and what the host does counts while no GPU works.

For every gap between the events of a device: up to the end of the call that launched the next event the device waited
*for the host*, or, where the host was in a call that waits for the device at that moment, for its *synchronising*.
After that the work was there already, and the gap is what the device takes *between kernels*. What is after the last
event of a step is the host's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from inferlens.errors import InferlensError
from inferlens.trace.trace import CALLS, Bools, Category, Ints, LaunchLinks, Trace

# Sets of moments, as sorted intervals that do not touch: two arrays, begins and ends, in nanoseconds.


@dataclass(frozen=True, eq=False)
class Intervals:
    """Half-open intervals, sorted, none empty, none touching the next."""

    begin: Ints
    end: Ints

    @classmethod
    def union(cls, begin: Ints, end: Ints) -> Intervals:
        """Every moment that is in at least one of some intervals, which may overlap and be in any order."""
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
    def of(cls, trace: Trace, rows: Ints) -> Intervals:
        """Every moment in which at least one of some events ran."""
        return cls.union(trace.begin[rows], trace.ends(rows))

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def total(self) -> int:
        """Nanoseconds."""
        return int((self.end - self.begin).sum())

    def both(self, intervals: Intervals) -> Intervals:
        """The moments that are in both."""
        # The intervals of the other that meet each of these are neighbours there.
        first = np.searchsorted(intervals.end, self.begin, "right")
        last = np.searchsorted(intervals.begin, self.end, "left")
        count = np.maximum(last - first, 0)
        mine = np.repeat(np.arange(len(self)), count)
        its = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        begin = np.maximum(self.begin[mine], intervals.begin[its])
        end = np.minimum(self.end[mine], intervals.end[its])
        kept = end > begin
        return Intervals(begin[kept], end[kept])

    def without(self, intervals: Intervals) -> Intervals:
        """The moments that are in this and not in the other."""
        if not len(self) or not len(intervals):
            return self
        begin = np.concatenate([[min(self.begin[0], intervals.begin[0])], intervals.end])
        end = np.concatenate([intervals.begin, [max(self.end[-1], intervals.end[-1])]])
        kept = end > begin
        return self.both(Intervals(begin[kept], end[kept]))

    def covered(self, begin: Ints, end: Ints) -> Ints:
        """For each of some intervals, how many of its nanoseconds are in this."""
        sums = np.concatenate([[0], np.cumsum(self.end - self.begin)])
        return self._until(end, sums) - self._until(begin, sums)

    def _until(self, time: Ints, sums: Ints) -> Ints:
        place = np.searchsorted(self.begin, time, "right") - 1
        safe = np.maximum(place, 0)
        if not len(self):
            return np.zeros(len(time), dtype=np.int64)
        inside = np.minimum(time, self.end[safe]) - self.begin[safe]
        return np.where(place >= 0, sums[safe] + inside, 0)


PREFIXES = "ProfilerStep#", "model_run"  # what PyTorch's profiler writes, and ONNX Runtime's
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
    """Steps in the order of time; times in nanoseconds.

    Attributes:
        names: numbers as the trace has them, or :data:`WHOLE_TRACE`.
        host_begin, host_end: of the annotation.
        begin, end: with what was launched.
        launched: GPU events that were.
        kept: whether it counts in means; what the profiler has cut off does not.
    """

    names: NDArray[np.object_]
    host_begin: Ints
    host_end: Ints
    begin: Ints
    end: Ints
    launched: Ints
    kept: Bools

    def __len__(self) -> int:
        return len(self.names)

    def only(self, name: str) -> Steps:
        """The step of that number alone, which then counts; InferlensError if there is none."""
        places = np.flatnonzero(self.names == name)[:1]
        if not len(places):
            raise InferlensError(f"The trace has no step {name}.", expected=f"one of {', '.join(self.names[:20])}")
        return self._taken(places)

    def counted(self) -> Steps:
        """The steps that count in means."""
        return self._taken(np.flatnonzero(self.kept))

    def _taken(self, places: Ints) -> Steps:
        columns = {field.name: getattr(self, field.name)[places] for field in fields(self)}
        return Steps(**{**columns, "kept": np.ones(len(places), bool)})


def steps_of(trace: Trace, launch_links: LaunchLinks) -> Steps:
    """All steps of a trace; there is at least one, unless it has no events."""
    names, begin, end = _on_the_host(trace)
    inside = _launched_in(trace, launch_links, begin, end)
    launched = np.bincount(inside[inside >= 0], minlength=len(names))
    ends = trace.ends(trace.gpu.row)
    begins = trace.begin[trace.gpu.row]
    from_, until = begin.copy(), end.copy()
    if launched.any():
        before = begin[0]
        if launched[0]:
            first = begins[inside == 0].min()
            earlier = ends[(inside < 0) & (ends < first)]
            before = max(before, earlier.max(initial=before))
        for place in range(len(names)):
            from_[place] = max(before, begin[place])
            until[place] = max(end[place], ends[inside == place].max(initial=end[place]), from_[place])
            before = until[place]
    kept = _kept(launched)
    timed = kept & (end > begin)  # a step that the profiler left open has no duration
    return Steps(np.array(names, dtype=object), begin, end, from_, until, launched, timed if timed.any() else kept)


def _on_the_host(trace: Trace) -> tuple[list[str], Ints, Ints]:
    annotations = trace.scopes.row[trace.category[trace.scopes.row] == Category.ANNOTATION]
    for prefix in PREFIXES:
        rows = annotations[trace.starting(annotations, prefix)]
        if not len(rows) or (prefix == PREFIXES[1] and set(trace.names_of(rows)) != {prefix}):
            continue
        # A trace of several processes has each step several times; those of the first thread are the steps.
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


def _launched_in(trace: Trace, launch_links: LaunchLinks, begin: Ints, end: Ints) -> Ints:
    """For each GPU event the step in which the call that launched it began and ended; -1 without one."""
    found = np.full(len(trace.gpu), -1, dtype=np.int64)
    known = launch_links.launch >= 0
    if len(begin) and known.any():
        rows = trace.calls.row[launch_links.launch[known]]
        place = np.searchsorted(begin, trace.begin[rows], "right") - 1
        fits = (place >= 0) & (trace.ends(rows) <= end[np.maximum(place, 0)])
        found[known] = np.where(fits, place, -1)
    return found


def _kept(launched: Ints) -> Bools:
    """All but the last steps that launched nothing, and a last one that launched far less than the one before."""
    kept = np.ones(len(launched), bool)
    if len(launched) >= 2 and launched.any():
        last = int(np.flatnonzero(launched)[-1])
        kept[last + 1 :] = False
        kept[last] = last == 0 or launched[last - 1] * _CUT_OFF <= launched[last]
    return kept


def parts_of(trace: Trace, launch_links: LaunchLinks) -> dict[str, Intervals]:
    """When each of :data:`PARTS` went on, in the whole trace, but ``other``."""
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
    return {name: Intervals.of(trace, item) for name, item in rows.items()}


def shares_of(parts: dict[str, Intervals], steps: Steps) -> dict[str, Ints]:
    """Nanoseconds of each step that went to each of :data:`PARTS`; they add up to the step."""
    left = Intervals.union(steps.begin, steps.end)
    found: dict[str, Ints] = {}
    for name, part in parts.items():
        intervals = part.both(left)
        found[name] = intervals.covered(steps.begin, steps.end)
        left = left.without(intervals)
    return {**found, "other": left.covered(steps.begin, steps.end)}


def communication(trace: Trace, launch_links: LaunchLinks) -> Bools:
    """Return a mask of the kernels that exchange data between devices: by their names, or those of their operators."""
    found = trace.named(trace.gpu.row, lambda name: any(word in name.lower() for word in _COLLECTIVES))
    launched = launch_links.operator >= 0
    found[launched] |= trace.starting(trace.scopes.row[launch_links.operator[launched]], *_LIBRARIES)
    which: Bools = found & (trace.category[trace.gpu.row] == Category.KERNEL)
    return which


def idle_of(trace: Trace, launch_links: LaunchLinks, steps: Steps) -> dict[str, float]:
    """Nanoseconds of all steps that a GPU was idle, by cause; the mean over the devices that ran anything."""
    devices = np.unique(trace.gpu.device)
    sums = dict.fromkeys(CAUSES, 0.0)
    window = Intervals.union(steps.begin, steps.end)
    if not len(devices) or not len(window):
        return sums
    waits = Intervals.of(trace, synchronising(trace, launch_links))
    for device in devices.tolist():
        host, between = _gaps(trace, launch_links, np.flatnonzero(trace.gpu.device == device), window)
        synchronised = host.both(waits).total
        for cause, time in zip(CAUSES, (host.total - synchronised, synchronised, between.total), strict=True):
            sums[cause] += time / len(devices)
    return sums


def host_gaps(trace: Trace, launch_links: LaunchLinks, window: Intervals) -> Intervals:
    """Return when all devices that ran anything waited to be given work within the window."""
    intervals = Intervals(window.begin[:0], window.end[:0])
    devices = np.unique(trace.gpu.device).tolist() if len(window) else []
    for number, device in enumerate(devices):
        host, _ = _gaps(trace, launch_links, np.flatnonzero(trace.gpu.device == device), window)
        intervals = intervals.both(host) if number else host
    return intervals


def synchronising(trace: Trace, launch_links: LaunchLinks) -> Ints:
    """Rows of calls in which the host waits for the device, copies to memory that is not pinned among them."""
    rows, launch, copies = trace.calls.row, launch_links.launch, trace.gpu.row
    waits = trace.named(rows, lambda name: any(word in name.lower() for word in _WAITS))
    to_host = trace.named(copies, lambda name: "DtoH" in name and "Pinned" not in name) & (launch >= 0)
    calls = launch[to_host]
    waits[calls[trace.ends(copies[to_host]) <= trace.ends(rows[calls])]] = True
    found: Ints = rows[waits]
    return found


def _gaps(trace: Trace, launch_links: LaunchLinks, here: Ints, window: Intervals) -> tuple[Intervals, Intervals]:
    """When a device waited to be given work within the window, and when it had work and did not run it."""
    rows = trace.gpu.row[here]
    begin, reach = trace.begin[rows], np.maximum.accumulate(trace.ends(rows))
    launch = launch_links.launch[here]
    calls = trace.calls.row[np.maximum(launch, 0)] if len(trace.calls) else np.zeros(len(here), np.int64)
    # What nobody launched, as far as is known, was there from the start.
    given = np.where(launch >= 0, trace.ends(calls), np.iinfo(np.int64).min)
    low, high = int(window.begin[0]), int(window.end[-1])
    start = np.concatenate([[min(low, int(begin[0]))], reach])
    end = np.concatenate([begin, [max(high, int(reach[-1]))]])
    until = np.clip(np.concatenate([given, [high]]), start, np.maximum(start, end))
    return Intervals.union(start, until).both(window), Intervals.union(until, end).both(window)
