"""A trace as columns: numpy arrays with one place for each event, and texts in tables that the arrays point into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from inferlens.trace.forms import About

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# What stands in a column of whole numbers where it is not known; in a column of floats it is NaN.
UNKNOWN = -1


class Category(IntEnum):
    """Kind of an event; ``OTHER`` is any that is not known here, ``MARKER`` is no work of host or device."""

    OTHER = 0
    OPERATOR = 1
    ANNOTATION = 2
    PYTHON = 3
    RUNTIME = 4
    DRIVER = 5
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    GPU_ANNOTATION = 9
    SPAN = 10
    OVERHEAD = 11
    SYNCHRONISATION = 12
    MARKER = 13


GPU = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
CALLS = (Category.RUNTIME, Category.DRIVER)
SCOPES = (Category.OPERATOR, Category.ANNOTATION)

# Kinds of Kineto's categories (its ActivityType.h), of those before PyTorch 1.12, and of the processes of torch_npu,
# whose events have no category. Names in ``_VENDORS`` have a vendor's name in front, as in ``cuda_runtime``,
# ``xpu_driver``, ``gpu_memcpy`` and ``mlu_memset``, or stand alone in old traces.
_VENDORS = {
    "runtime": Category.RUNTIME, "driver": Category.DRIVER, "memcpy": Category.MEMCPY, "memset": Category.MEMSET,
    "kernel": Category.KERNEL, "sync": Category.SYNCHRONISATION, "user_annotation": Category.GPU_ANNOTATION,
    "event": Category.MARKER, "counters": Category.MARKER, "insight": Category.MARKER,
    "profiler_range": Category.MARKER, "scope_profiler": Category.MARKER, "workloadd": Category.RUNTIME,
}  # fmt: skip
_KINDS = {
    "cpu_op": Category.OPERATOR, "operator": Category.OPERATOR, "collective_comm": Category.OPERATOR,
    "user_annotation": Category.ANNOTATION, "python_function": Category.PYTHON, "python": Category.PYTHON,
    "pythonfunction": Category.PYTHON, "trace": Category.SPAN, "overhead": Category.OVERHEAD,
    "cpu_instant_event": Category.MARKER, "external_correlation": Category.MARKER,
    "hpu_op": Category.KERNEL, "mtia_ccp_events": Category.KERNEL, "ascend hardware": Category.KERNEL,
    "cann": Category.RUNTIME, "enqueue": Category.RUNTIME, "dequeue": Category.RUNTIME,
    "node": Category.OPERATOR, "session": Category.ANNOTATION, "api": Category.ANNOTATION,  # of ONNX Runtime
    "communication": Category.MARKER, "hccl": Category.MARKER, "overlap analysis": Category.MARKER,
}  # fmt: skip
# Categories with several kinds of work, and the kinds by an event's name (MTIA) or task type (Ascend).
MIXED = ("", "hpu_op", "mtia_ccp_events")
_TASKS = {
    "dma_request": Category.MEMCPY, "sdma": Category.MEMCPY, "memcpy_async": Category.MEMCPY,
    "event_wait": Category.SYNCHRONISATION, "event_record": Category.SYNCHRONISATION,
    "notify_wait": Category.SYNCHRONISATION, "notify_record": Category.SYNCHRONISATION,
}  # fmt: skip
# What was in the category of operators before there was one of annotations.
ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")


@cache
def category_of(name: str, task: str = "") -> int:
    """Return the number of the kind of a category or process; the task of a device is more exact than that."""
    name = name.lower()
    kind = _KINDS.get(name) or _VENDORS.get(name.partition("_")[2] or name, Category.OTHER)
    return int(_TASKS.get(task.lower(), kind))


@dataclass(frozen=True, eq=False)
class _Rows:
    row: Ints  # the event's place in the trace

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False)
class GpuEvents(_Rows):
    """What GPUs ran: kernels, copies and fills, in the order of their begins.

    Attributes:
        correlation: number that the launch shares.
        grid, block: of shape (events, 3); zeros where it is no kernel.
        registers: of each thread.
        shared_memory: of each block, in bytes.
        occupancy: estimated, achieved, in per cent.
    """

    device: Ints
    stream: Ints
    correlation: Ints
    grid: Ints
    block: Ints
    registers: Ints
    shared_memory: Ints
    blocks_per_sm: Floats
    occupancy: Floats


@dataclass(frozen=True, eq=False)
class Calls(_Rows):
    """Calls of the CUDA runtime and driver, in the order of their begins."""

    correlation: Ints


@dataclass(frozen=True, eq=False)
class Scopes(_Rows):
    """Operators and annotations of the host, by thread, then by begin, outer ones first.

    ``shapes``, ``stack``: places in the trace's ``texts``: JSON as the trace has it, empty where it has none.
    """

    shapes: Codes
    stack: Codes


@dataclass(frozen=True, eq=False)
class Allocations:
    """Memory that allocators gave (``change`` above zero) or took back, in the order of time; sizes in bytes.

    Attributes:
        time: in nanoseconds.
        device_type: PyTorch's number of it: 0 the host, 1 CUDA.
        device_id: -1 of the host.
        allocated: the allocator's sum after it; -1 where unknown.
    """

    time: Ints
    thread: Codes
    device_type: Ints
    device_id: Ints
    change: Ints
    address: Ints
    allocated: Ints

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, eq=False)
class Trace:
    """The complete events of a trace, in the order of the file.

    Attributes:
        strings: names; ``name`` holds places in it.
        texts: shapes and stacks.
        threads: process and thread, or device and stream; ``thread`` holds places in it.
        begin, duration: whole nanoseconds; the clock's zero is the writer's.
        about: devices and what else stands beside the events.
    """

    strings: tuple[str, ...]
    texts: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]
    name: Codes
    category: NDArray[np.int8]
    thread: Codes
    begin: Ints
    duration: Ints
    gpu: GpuEvents
    calls: Calls
    scopes: Scopes
    allocations: Allocations
    about: About = field(default_factory=About)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.name)

    def ends(self, rows: Ints) -> Ints:
        """When these events ended, in nanoseconds."""
        return self.begin[rows] + self.duration[rows]

    def rows(self, *categories: Category) -> Ints:
        """Places of the events of these categories."""
        return np.flatnonzero(np.isin(self.category, categories))

    def name_of(self, row: int) -> str:
        """The event's name."""
        name: str = self.strings[int(self.name[row])]
        return name

    def names_of(self, rows: Ints) -> list[str]:
        """The events' names."""
        return [self.strings[code] for code in self.name[rows].tolist()]

    def named(self, rows: Ints, holds: Callable[[str], bool]) -> Bools:
        """Which of these events have a name of which that holds; it is asked once of each name."""
        fits = np.zeros(len(self.strings), dtype=bool)
        codes = np.unique(self.name[rows])
        fits[codes] = [holds(self.strings[code]) for code in codes.tolist()]
        found: Bools = fits[self.name[rows]]
        return found

    def starting(self, rows: Ints, *prefixes: str) -> Bools:
        """Which of these events have a name that starts with one of these."""
        return self.named(rows, lambda name: name.startswith(prefixes))


# Which events belong together: GPU events and their launches, launches and the operators and scopes around them.
#
# A scope is around a moment when it runs on the same thread, has begun by then and has not ended. That is so for events
# that overlap without one being inside the other, too. Everything is linear but for sorting.

NONE = -1
_NEVER = 2**63 - 1
# Intervals that are Python's numbers at a time: these take five times the memory.
_AT_ONCE = 2**16


class LaunchLinks:
    """What belongs together in one trace, each made when first asked for."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def nest(self) -> Nest:
        """The scopes, as intervals in each other, by their places in ``trace.scopes``."""
        return Nest(self.trace, self.trace.scopes.row)

    @cached_property
    def launch(self) -> Ints:
        """For each GPU event the place, in ``trace.calls``, of the call that launched it; -1 where it is not known.

        Of several calls with its correlation it is the last that began before it, or else the first.
        """
        calls, gpu = self.trace.calls, self.trace.gpu
        if not len(calls):
            return np.full(len(gpu), NONE, dtype=np.int64)
        order = np.argsort(calls.correlation, kind="stable")  # of equal ones, in the order of their begins
        known = calls.correlation[order]
        first = np.searchsorted(known, gpu.correlation, "left")
        last = np.searchsorted(known, gpu.correlation, "right")
        found = (first < last) & (gpu.correlation > 0)
        place = np.where(found, order[np.minimum(first, len(order) - 1)], NONE)
        for index in np.flatnonzero(found & (last - first > 1)).tolist():
            several = order[first[index] : last[index]]
            begins = self.trace.begin[calls.row[several]]
            before = np.searchsorted(begins, self.trace.begin[gpu.row[index]], "right")
            place[index] = several[max(int(before) - 1, 0)]
        return place

    @cached_property
    def operator(self) -> Ints:
        """For each GPU event the place, in ``trace.scopes``, of the operator around its launch; -1 without one."""
        found = np.full(len(self.trace.gpu), NONE, dtype=np.int64)
        launched = self.launch >= 0
        found[launched] = self.around_calls(Category.OPERATOR)[self.launch[launched]]
        return found

    def around_calls(self, category: Category | None = None) -> Ints:
        """For each of ``trace.calls`` the innermost scope of that category around its begin."""
        rows = self.trace.calls.row
        return self.innermost(self.trace.thread[rows], self.trace.begin[rows], category)

    def innermost(self, thread: Codes, time: Ints, category: Category | None = None) -> Ints:
        """For each moment of a thread the place of the innermost scope, of that category, around it; -1 without one."""
        wanted = None if category is None else self.trace.category[self.trace.scopes.row] == category
        return self.nest.innermost(thread, time, wanted)

    def scopes_around(self, place: int, time: int) -> tuple[int, ...]:
        """All scopes around a moment, outermost first; ``place`` is the innermost one."""
        found = []
        while place >= 0:
            if self.nest.end[place] > time:  # one that only overlaps may have ended
                found.append(place)
            place = int(self.nest.parent[place])
        return tuple(reversed(found))


class Nest:
    """Some events of a trace as intervals on threads, and which are in which.

    Args:
        trace: whose events they are.
        rows: theirs, sorted by thread, then by begin, outer ones first.
    """

    def __init__(self, trace: Trace, rows: Ints) -> None:
        self.thread, self.begin, self.end = trace.thread[rows], trace.begin[rows], trace.ends(rows)
        # For each interval the innermost one around its begin, -1 without one, and how many are around it.
        self.parent, depth = nested(self.thread, self.begin, self.end)
        order = np.argsort(depth, kind="stable")
        # The intervals' places by how many are around them, those without any first.
        self.levels: list[Ints] = np.split(order, np.cumsum(np.bincount(depth))[:-1]) if len(depth) else []

    def innermost(self, thread: Codes, time: Ints, wanted: Bools | None = None) -> Ints:
        """For each moment of a thread the innermost interval around it, of those that are wanted; -1 without one."""
        found = np.full(len(time), NONE, dtype=np.int64)
        for item in np.unique(thread).tolist():
            here = thread == item
            low, high = np.searchsorted(self.thread, [item, item + 1])
            found[here] = np.searchsorted(self.begin[low:high], time[here], "right") + low - 1
            found[here & (found < low)] = NONE
        open_ones = np.flatnonzero(found >= 0)
        while len(open_ones):
            places = found[open_ones]
            fits = time[open_ones] < self.end[places]
            if wanted is not None:
                fits &= wanted[places]
            open_ones = open_ones[~fits]
            found[open_ones] = self.parent[found[open_ones]]
            open_ones = open_ones[found[open_ones] >= 0]
        return found


def nested(thread: Codes, begin: Ints, end: Ints) -> tuple[Ints, Codes]:
    """For each interval the place of the innermost one around its begin, -1 without one, and how many are around it.

    ``thread``, ``begin``, ``end``: sorted by thread, then by begin, outer ones first.
    """
    parent, depth = np.empty(len(begin), dtype=np.int64), np.empty(len(begin), dtype=np.int32)
    # The last one and all around it, outermost first: what has ended by a begin has ended for all that come later.
    places, ends, now = [NONE], [_NEVER], None
    for low in range(0, len(begin), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        above, around = [], []
        intervals = zip(thread[part].tolist(), begin[part].tolist(), end[part].tolist(), strict=True)
        for place, (of, start, stop) in enumerate(intervals, low):
            if of != now:
                places, ends, now = [NONE], [_NEVER], of
            while ends[-1] <= start:
                ends.pop()
                places.pop()
            above.append(places[-1])
            around.append(len(places) - 1)
            places.append(place)
            ends.append(stop)
        parent[part], depth[part] = above, around
    return parent, depth
