"""Memory that PyTorch's allocators allocated during a trace: the curve, the peak, and the operators that held it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from inferlens.trace.analysis import Analysis
from inferlens.trace.model import SECOND, SLICES, UNKNOWN, Category, Columns, Groups, Ints

NO_OPERATOR, BEFORE = "(no operator)", "(before the trace)"
# What asks for memory on behalf of the operator around it.
_ASKING = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_", "aten::new_empty"}
_DEVICES = {0: "CPU", 1: "GPU", 6: "HIP", 12: "XPU"}


@dataclass(frozen=True, eq=False)
class AllocatedMemory:
    """The memory that a device's allocator allocated; bytes, seconds since the trace's first allocation."""

    name: str
    places: Ints  # of its events among the trace's allocations
    level: Ints  # allocated after every event, including memory from before the trace
    top: int  # place of the peak in ``level``
    time: float

    @property
    def peak(self) -> int:
        return int(self.level[self.top])


def devices(analysis: Analysis) -> list[AllocatedMemory]:
    """Return the memory of all devices in the chosen step, the host first."""
    memory = analysis.trace.allocations
    within = analysis.within(memory.time)
    memories = []
    for kind, number in sorted(set(zip(memory.device_type.tolist(), memory.device_id.tolist(), strict=True))):
        places = np.flatnonzero(within & (memory.device_type == kind) & (memory.device_id == number))
        if not len(places):
            continue
        level = memory.allocated[places]
        top = int(level.argmax())
        time = float(memory.time[places[top]] - memory.time[0]) / SECOND
        name = _DEVICES.get(kind, f"device type {kind}") + (f" {number}" if number >= 0 and kind != 0 else "")
        memories.append(AllocatedMemory(name, places, level, top, time))
    return memories


def holders(analysis: Analysis) -> Columns:
    """Return bytes and number of allocations by operator at the peak of every device, most first.

    Only memory that was allocated in the trace has an operator: the one that needed it.
    """
    rows = [row for device in devices(analysis) for row in _holders(analysis, device)]
    return Columns.named(("device", "operator", "held", "allocations"), rows).sorted_by("held")


def _holders(analysis: Analysis, device: AllocatedMemory) -> list[tuple[Any, ...]]:
    trace, memory = analysis.trace, analysis.trace.allocations
    alive = _alive(analysis, device.places[: device.top + 1])
    around = _asking(analysis, alive)
    named = np.where(around >= 0, trace.name[trace.scopes.row[around]] if len(trace.scopes) else UNKNOWN, UNKNOWN)
    groups = Groups.group_by(named)
    held, given = groups.sum(memory.change[alive]), groups.sum(memory.change[alive] > 0)
    names = [trace.strings[code] if code >= 0 else NO_OPERATOR for code in named[groups.first].tolist()]
    order = np.argsort(-held, kind="stable").tolist()
    rows: list[tuple[Any, ...]] = [
        (device.name, names[place], int(held[place]), int(given[place])) for place in order if held[place] > 0
    ]
    before = device.peak - int(held.sum())
    return [*rows, (device.name, BEFORE, before, None)] if before > 0 else rows


def _asking(analysis: Analysis, places: Ints) -> Ints:
    """Return the operators that allocations were for, not those that only allocate; -1 without one."""
    trace, memory = analysis.trace, analysis.trace.allocations
    around = analysis.launch_links.innermost(memory.thread[places], memory.time[places], Category.OPERATOR)
    asks = trace.named(trace.scopes.row, _ASKING.__contains__)
    while len(asks):
        above = analysis.costs.parent[around]
        climbs = (around >= 0) & (above >= 0) & asks[around]
        if not climbs.any():
            break
        around = np.where(climbs, above, around)
    return around


def _alive(analysis: Analysis, places: Ints) -> Ints:
    memory = analysis.trace.allocations
    alive: dict[int, int] = {}
    events = zip(places.tolist(), memory.address[places].tolist(), memory.change[places].tolist(), strict=True)
    for place, address, change in events:
        if change > 0:
            alive[address] = place
        else:
            alive.pop(address, None)
    return np.array(sorted(alive.values()), dtype=np.int64)


def curves(analysis: Analysis) -> Columns:
    """Return the curves of all devices: the most allocated memory in equal slices of the time."""
    memory = analysis.trace.allocations
    rows: list[tuple[Any, ...]] = []
    for device in devices(analysis):
        times = memory.time[device.places]
        edges = np.linspace(times[0], times[-1], SLICES + 1)
        slices = np.clip(np.searchsorted(edges, times, "right") - 1, 0, SLICES - 1)
        # What was given out when a slice began counts in it too.
        before = np.searchsorted(times, edges[:-1], "right") - 1
        most = device.level[np.maximum(before, 0)]
        np.maximum.at(most, slices, device.level)
        begins = (edges[:-1] - memory.time[0]) / SECOND
        rows += zip([device.name] * SLICES, begins.tolist(), most.tolist(), strict=True)
    return Columns.named(("device", "time", "allocated"), rows)
