"""A trace as columns: numpy arrays with one value per event, and tables of texts that the arrays point into."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from inferlens.errors import library

if TYPE_CHECKING:
    from polars import DataFrame


Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# The value for unknown whole numbers in a column. In a column of floats it is NaN.
UNKNOWN = -1
PROBLEMS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class DeviceProperties(Struct, frozen=True):
    """A GPU, as the trace describes it; sizes in bytes, 0 where it does not say."""

    id: int = 0
    name: str = ""
    memory: int = msgspec.field(default=0, name="totalGlobalMem")
    major: int = msgspec.field(default=0, name="computeMajor")
    minor: int = msgspec.field(default=0, name="computeMinor")
    multiprocessors: int = msgspec.field(default=0, name="numSms")
    threads_per_multiprocessor: int = msgspec.field(default=0, name="maxThreadsPerMultiprocessor")
    registers_per_multiprocessor: int = msgspec.field(default=0, name="regsPerMultiprocessor")
    shared_memory_per_multiprocessor: int = msgspec.field(default=0, name="sharedMemPerMultiprocessor")

    @property
    def compute_capability(self) -> str:
        """The compute capability as CUDA writes it, such as ``9.0``."""
        return f"{self.major}.{self.minor}"


class Distributed(Struct, frozen=True):
    """The process of a distributed job that wrote the trace."""

    rank: int | None = None
    world_size: int | None = None


class TraceMetadata(Struct, frozen=True):
    """The fields of a trace other than its events; ``base`` in nanoseconds."""

    devices: list[DeviceProperties] = msgspec.field(default_factory=list, name="deviceProperties")
    distributed: Distributed = msgspec.field(default=Distributed(), name="distributedInfo")
    base: int = msgspec.field(default=0, name="baseTimeNanoseconds")

    @classmethod
    def decode(cls, fields: Mapping[str, Raw]) -> TraceMetadata:
        """Return the metadata from the fields that have a valid form."""
        values = {}
        for info in msgspec.structs.fields(cls):
            with suppress(*PROBLEMS, KeyError):
                values[info.name] = msgspec.json.decode(fields[info.encode_name], type=info.type, strict=False)
        return cls(**values)


class Category(IntEnum):
    """Kind of an event; ``OTHER`` is any unknown kind, ``MARKER`` is no work of host or device."""

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
    row: Ints  # the event's row in the trace

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False)
class GpuEvents(_Rows):
    """The events of GPUs: kernels, copies and fills, in the order of their begins."""

    device: Ints
    stream: Ints
    correlation: Ints  # number that the launch shares
    grid: Ints  # ``grid`` and ``block``: of shape (events, 3); zeros where it is no kernel
    block: Ints
    registers: Ints  # per thread
    shared_memory: Ints  # bytes per block
    blocks_per_sm: Floats
    occupancy: Floats  # estimated, achieved, in per cent


@dataclass(frozen=True, eq=False)
class Calls(_Rows):
    """Calls of the CUDA runtime and driver, in the order of their begins."""

    correlation: Ints


@dataclass(frozen=True, eq=False)
class Scopes(_Rows):
    """Operators and annotations of the host, by thread, then by begin, outer ones first."""

    shapes: Codes  # ``shapes`` and ``stack``: indices in the trace's ``texts``, which are JSON, or empty if unknown
    stack: Codes


@dataclass(frozen=True, eq=False)
class Allocations:
    """Memory that allocators allocated (``change`` above zero) or freed, in the order of time; sizes in bytes."""

    time: Ints  # in nanoseconds
    thread: Codes
    device_type: Ints  # PyTorch's number of it: 0 the host, 1 CUDA
    device_id: Ints  # -1 of the host
    change: Ints
    address: Ints
    allocated: Ints  # the allocator's sum after it; -1 where unknown

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, eq=False)
class Trace:
    """The complete events of a trace, in the order of the file."""

    strings: tuple[str, ...]  # names; ``name`` holds indices of it
    texts: tuple[str, ...]  # shapes and stacks
    threads: tuple[tuple[str, str], ...]  # process and thread, or device and stream; ``thread`` holds indices of it
    name: Codes
    category: NDArray[np.int8]
    thread: Codes
    begin: Ints  # ``begin`` and ``duration``: whole nanoseconds; the clock's zero is the writer's
    duration: Ints
    gpu: GpuEvents
    calls: Calls
    scopes: Scopes
    allocations: Allocations
    about: TraceMetadata = field(default_factory=TraceMetadata)  # devices and the other metadata
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.name)

    def ends(self, rows: Ints) -> Ints:
        return self.begin[rows] + self.duration[rows]

    def rows(self, *categories: Category) -> Ints:
        return np.flatnonzero(np.isin(self.category, categories))

    def name_of(self, row: int) -> str:
        return self.strings[int(self.name[row])]

    def names_of(self, rows: Ints) -> list[str]:
        return [self.strings[code] for code in self.name[rows].tolist()]

    def named(self, rows: Ints, predicate: Callable[[str], bool]) -> Bools:
        """Return a mask of the events whose name satisfies the predicate, which is called once per distinct name."""
        fits = np.zeros(len(self.strings), dtype=bool)
        codes = np.unique(self.name[rows])
        fits[codes] = [predicate(self.strings[code]) for code in codes.tolist()]
        return fits[self.name[rows]]

    def starting(self, rows: Ints, *prefixes: str) -> Bools:
        return self.named(rows, lambda name: name.startswith(prefixes))


# The links between events: from GPU events to their launches, from launches to the operators and scopes around them.
#
# A scope is around a moment if it runs on the same thread, has begun by then and has not ended. This also holds for
# events that overlap without one being inside the other. Everything but sorting takes linear time.

NONE = -1
_NEVER = 2**63 - 1
# Intervals that are Python's numbers at a time, because these take five times the memory.
_AT_ONCE = 2**16


class LaunchLinks:
    """The links between the events of one trace, computed on first use."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def nest(self) -> Nest:
        """The scopes as nested intervals, by their indices in ``trace.scopes``."""
        return Nest(self.trace, self.trace.scopes.row)

    @cached_property
    def launch(self) -> Ints:
        """The index in ``trace.calls`` of the launch of every GPU event; -1 if unknown.

        Among several calls with the event's correlation it is the last that began before the event, or else the first.
        """
        calls, gpu = self.trace.calls, self.trace.gpu
        if not len(calls):
            return np.full(len(gpu), NONE, dtype=np.int64)
        order = np.argsort(calls.correlation, kind="stable")  # of equal ones, in the order of their begins
        correlations = calls.correlation[order]
        first = np.searchsorted(correlations, gpu.correlation, "left")
        last = np.searchsorted(correlations, gpu.correlation, "right")
        matched = (first < last) & (gpu.correlation > 0)
        launches = np.where(matched, order[np.minimum(first, len(order) - 1)], NONE)
        for index in np.flatnonzero(matched & (last - first > 1)).tolist():
            candidates = order[first[index] : last[index]]
            begins = self.trace.begin[calls.row[candidates]]
            before = np.searchsorted(begins, self.trace.begin[gpu.row[index]], "right")
            launches[index] = candidates[max(int(before) - 1, 0)]
        return launches

    @cached_property
    def operator(self) -> Ints:
        """The index in ``trace.scopes`` of the operator around the launch of every GPU event; -1 without one."""
        operators = np.full(len(self.trace.gpu), NONE, dtype=np.int64)
        launched = self.launch >= 0
        operators[launched] = self.around_calls(Category.OPERATOR)[self.launch[launched]]
        return operators

    def around_calls(self, category: Category | None = None) -> Ints:
        """Return the innermost scope of a category around the begin of every call in ``trace.calls``."""
        rows = self.trace.calls.row
        return self.innermost(self.trace.thread[rows], self.trace.begin[rows], category)

    def innermost(self, thread: Codes, time: Ints, category: Category | None = None) -> Ints:
        """Return the index of the innermost scope of a category around every moment of a thread; -1 without one."""
        wanted = None if category is None else self.trace.category[self.trace.scopes.row] == category
        return self.nest.innermost(thread, time, wanted)

    def scopes_around(self, scope: int, time: int) -> tuple[int, ...]:
        """Return all scopes around a moment, outermost first; ``scope`` is the innermost one."""
        scopes = []
        while scope >= 0:
            if self.nest.end[scope] > time:  # one that only overlaps may have ended
                scopes.append(scope)
            scope = int(self.nest.parent[scope])
        return tuple(reversed(scopes))


class Nest:
    """The events in the ``rows`` of a trace as nested intervals on threads. The rows are in :meth:`order`."""

    @staticmethod
    def order(trace: Trace, rows: Ints) -> Ints:
        """Return the order of events by thread, then by begin, outer ones first."""
        return np.lexsort((-trace.duration[rows], trace.begin[rows], trace.thread[rows]))

    def __init__(self, trace: Trace, rows: Ints) -> None:
        self.thread, self.begin, self.end = trace.thread[rows], trace.begin[rows], trace.ends(rows)
        # The innermost interval around the begin of each interval, -1 without one, and the number of those around it.
        self.parent, depth = nested(self.thread, self.begin, self.end)
        order = np.argsort(depth, kind="stable")
        # The indices of the intervals by their depth, the outermost first.
        self.levels: list[Ints] = np.split(order, np.cumsum(np.bincount(depth))[:-1]) if len(depth) else []

    def innermost(self, thread: Codes, time: Ints, wanted: Bools | None = None) -> Ints:
        """Return the innermost wanted interval around every moment of a thread; -1 without one."""
        innermost = np.full(len(time), NONE, dtype=np.int64)
        for thread_code in np.unique(thread).tolist():
            on_thread = thread == thread_code
            low, high = np.searchsorted(self.thread, [thread_code, thread_code + 1])
            innermost[on_thread] = np.searchsorted(self.begin[low:high], time[on_thread], "right") + low - 1
            innermost[on_thread & (innermost < low)] = NONE
        unresolved = np.flatnonzero(innermost >= 0)
        while len(unresolved):
            candidates = innermost[unresolved]
            satisfies = time[unresolved] < self.end[candidates]
            if wanted is not None:
                satisfies &= wanted[candidates]
            unresolved = unresolved[~satisfies]
            innermost[unresolved] = self.parent[innermost[unresolved]]
            unresolved = unresolved[innermost[unresolved] >= 0]
        return innermost


def nested(thread: Codes, begin: Ints, end: Ints) -> tuple[Ints, Codes]:
    """Return the innermost interval around the begin of every interval, -1 without one, and how many are around it.

    ``thread``, ``begin``, ``end``: sorted by thread, then by begin, outer ones first.
    """
    parent = np.empty(len(begin), dtype=np.int64)
    depth = np.empty(len(begin), dtype=np.int32)
    # The stack has the last interval and all around it. An interval that ended by a begin is around no later one.
    stack, ends, current_thread = [NONE], [_NEVER], None
    for low in range(0, len(begin), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        parents, depths = [], []
        intervals = zip(thread[part].tolist(), begin[part].tolist(), end[part].tolist(), strict=True)
        for interval, (thread_code, start, stop) in enumerate(intervals, low):
            if thread_code != current_thread:
                stack, ends, current_thread = [NONE], [_NEVER], thread_code
            while ends[-1] <= start:
                ends.pop()
                stack.pop()
            parents.append(stack[-1])
            depths.append(len(stack) - 1)
            stack.append(interval)
            ends.append(stop)
        parent[part], depth[part] = parents, depths
    return parent, depth


# Rows of an analysis as named columns of equal length; seconds and bytes, ``None`` or NaN for unknown values.

# Nanoseconds. Divide by it: a multiplication by a billionth gives another number.
SECOND = 1e9
SLICES = 60  # the number of equal parts of the time in a timeline or a curve
# Types of the columns of data frames, which are the same for every trace. All other columns are floats.
_TEXTS = {
    "name", "shapes", "stack", "operator", "kind", "grid", "block", "path", "device", "step", "note", "category",
    "process", "thread",
}  # fmt: skip
_WHOLE = {"calls", "registers", "shared_memory", "depth", "held", "allocations", "launched"}
_TRUTHS = {"eligible", "tensor_cores"}


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns by name: lists, or arrays of numbers or truth values."""

    columns: Mapping[str, Sequence[Any] | NDArray[Any]]

    @classmethod
    def named(cls, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Columns:
        """Return columns from rows of values in the order of the names."""
        return cls({name: [row[index] for row in rows] for index, name in enumerate(names)})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def rows(self, top: int | None = None) -> Iterator[dict[str, Any]]:
        """Return the rows as dictionaries of plain Python values; unknown values are ``None``."""
        lists = [_plain(column)[:top] for column in self.columns.values()]
        for values in zip(*lists, strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def sorted_by(self, column: str) -> Columns:
        """Return the rows with the largest first; equal ones stay in their order."""
        order = np.argsort(-np.asarray(self.columns[column], dtype=np.float64), kind="stable")
        return Columns(
            {
                name: values[order] if isinstance(values, np.ndarray) else [values[index] for index in order.tolist()]
                for name, values in self.columns.items()
            }
        )

    def frame(self) -> DataFrame:
        """Return a polars data frame with the same types for every trace.

        Raises MissingLibrary if polars is not installed.
        """
        polars = library("polars", extra="traces")
        kinds = {"f": polars.Float64, "i": polars.Int64, "b": polars.Boolean, "U": polars.String}
        kinds |= dict.fromkeys(_TEXTS, polars.String) | dict.fromkeys(_WHOLE, polars.Int64)
        kinds |= dict.fromkeys(_TRUTHS, polars.Boolean)
        schema = {
            name: kinds[column.dtype.kind] if isinstance(column, np.ndarray) else kinds.get(name, kinds["f"])
            for name, column in self.columns.items()
        }
        data = {name: _plain(column) for name, column in self.columns.items()}
        frame: DataFrame = polars.DataFrame(data, schema=schema, strict=False)
        return frame


def _plain(column: Sequence[Any] | NDArray[Any]) -> list[Any]:
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    if values and isinstance(values[0], float):
        return [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
    return values


@dataclass(frozen=True, eq=False)
class Groups:
    """Events that share a key."""

    first: NDArray[np.int64]  # the index of the first member of every group, in the order of first members
    group: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def group_by(cls, *keys: NDArray[Any]) -> Groups:
        """Return groups by one or several whole numbers per event."""
        codes = np.zeros(len(keys[0]), dtype=np.int64)
        for key in keys:
            values, value_codes = np.unique(key, return_inverse=True)
            codes = np.unique(codes * len(values) + value_codes, return_inverse=True)[1]
        _, first, of, count = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(first)
        return cls(first[order], np.argsort(order)[of], count[order])

    def sum(self, values: NDArray[Any]) -> NDArray[np.float64]:
        return np.bincount(self.group, values, len(self.first)).astype(np.float64)

    def weighted(self, values: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
        """Return the groups' weighted means of finite values; NaN without a value or a weight."""
        finite = np.isfinite(values)
        total = self.sum(np.where(finite, weights, 0))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(total > 0, self.sum(np.where(finite, values, 0.0) * weights) / total, np.nan)
