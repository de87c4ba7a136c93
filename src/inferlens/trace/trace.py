"""A trace as columns: numpy arrays with one place for each event, and texts in tables that the arrays point into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferlens.trace.category import Category
from inferlens.trace.forms import About
from inferlens.trace.room import Room

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# What stands in a column of whole numbers where the event does not tell; in a column of floats it is NaN.
UNKNOWN = -1


@dataclass(frozen=True)
class Thread:
    """A row of the trace: of the host a thread of a process, of a GPU a stream (``tid``) of a device (``pid``)."""

    pid: int | str
    tid: int | str
    name: str = ""


@dataclass(frozen=True, eq=False)
class GpuEvents:
    """What GPUs ran: kernels, copies and fills, in the order of their begins.

    Attributes:
        row: the event's place in the trace.
        device, stream: numbers.
        correlation: number that the launch shares.
        external: ``External id`` of the operator that launched it.
        grid, block: of shape (events, 3); zeros where it is no kernel.
        registers: of each thread.
        shared_memory: of each block, in bytes.
        blocks_per_sm, warps_per_sm: NaN where not told.
        occupancy: estimated, achieved, in per cent.
        bytes: that a copy or a fill moved.
    """

    row: Ints
    device: Ints
    stream: Ints
    correlation: Ints
    external: Ints
    grid: Ints
    block: Ints
    registers: Ints
    shared_memory: Ints
    blocks_per_sm: Floats
    warps_per_sm: Floats
    occupancy: Floats
    bytes: Ints

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls of the CUDA runtime and driver, in the order of their begins; ``row`` is the place in the trace."""

    row: Ints
    correlation: Ints
    external: Ints

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False)
class Scopes:
    """Operators and annotations of the host, by thread, then by begin, outer ones first.

    Attributes:
        row: place in the trace.
        external: ``External id``.
        shapes, types, stack: places in the trace's ``texts``: JSON as the trace has it, empty where it has none.
    """

    row: Ints
    external: Ints
    shapes: Codes
    types: Codes
    stack: Codes

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False)
class Allocations:
    """Memory that allocators gave (``change`` above zero) or took back, in the order of time; sizes in bytes.

    Attributes:
        time: in nanoseconds.
        thread: place in the trace's ``threads``.
        device_type: PyTorch's number of it: 0 the host, 1 CUDA.
        device: its number, -1 of the host.
        allocated, reserved: the allocator's sums after it; -1 where not told.
    """

    time: Ints
    thread: Codes
    device_type: Ints
    device: Ints
    change: Ints
    address: Ints
    allocated: Ints
    reserved: Ints

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, eq=False)
class Trace:
    """The complete events of a trace, in the order of the file.

    Attributes:
        strings: names; ``name`` holds places in it.
        texts: shapes, types and stacks.
        threads: ``thread`` holds places in it.
        begin, duration: whole nanoseconds; the clock's zero is the writer's.
        about: devices and what else stands beside the events.
        notes: sentences on what was skipped, mended or missing.
        room: where the arrays are held, and what is derived from them.
    """

    strings: Sequence[str]
    texts: Sequence[str]
    threads: Sequence[Thread]
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
    room: Room = field(default_factory=Room)

    def __len__(self) -> int:
        return len(self.name)

    def ends(self, rows: Ints) -> Ints:
        """When these events ended, in nanoseconds."""
        return self.begin[rows] + self.duration[rows]

    @property
    def pid(self) -> NDArray[Any]:
        """Process of each event: a number, or a text where the trace has one."""
        return np.array([thread.pid for thread in self.threads], dtype=object)[self.thread]

    @property
    def tid(self) -> NDArray[Any]:
        """Thread of each event, or stream."""
        return np.array([thread.tid for thread in self.threads], dtype=object)[self.thread]

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
