"""A trace as columns: numpy arrays with one place for each event, and texts in tables that the arrays point into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache

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
    """Category of an event; ``OTHER`` is any that is not known here."""

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


GPU = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
CALLS = (Category.RUNTIME, Category.DRIVER)
SCOPES = (Category.OPERATOR, Category.ANNOTATION)

# Kineto's names of today, then those of before PyTorch 1.12; of CUDA, ROCm (which uses CUDA's) and XPU.
_NAMES = {
    "cpu_op": Category.OPERATOR, "user_annotation": Category.ANNOTATION, "python_function": Category.PYTHON,
    "cuda_runtime": Category.RUNTIME, "xpu_runtime": Category.RUNTIME, "cuda_driver": Category.DRIVER,
    "xpu_driver": Category.DRIVER, "kernel": Category.KERNEL, "gpu_memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET, "gpu_user_annotation": Category.GPU_ANNOTATION, "trace": Category.SPAN,
    "overhead": Category.OVERHEAD, "cuda_sync": Category.SYNCHRONISATION,
    "operator": Category.OPERATOR, "runtime": Category.RUNTIME, "memcpy": Category.MEMCPY, "memset": Category.MEMSET,
    "python": Category.PYTHON, "pythonfunction": Category.PYTHON,
}  # fmt: skip
# What was in the category of operators before there was one of annotations.
ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")


@cache
def category_of(name: str) -> int:
    """Number of the category that a trace calls ``name``."""
    return int(_NAMES.get(name.lower(), Category.OTHER))


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
