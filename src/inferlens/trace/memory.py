"""Memory that PyTorch's allocators gave out while the profiler looked: the curve, the peak, and who held it then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct

from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import SECOND, Columns, Groups
from inferlens.trace.trace import UNKNOWN, Category, Ints

SLICES = 200
NO_OPERATOR, BEFORE = "(no operator)", "(before the trace)"
# What asks for memory on behalf of the operator around it.
_ASKING = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_", "aten::new_empty"}
_DEVICES = {0: "CPU", 1: "GPU", 6: "HIP", 12: "XPU"}


class Peak(Struct, frozen=True, kw_only=True):
    """The most that a device's allocator had given out; bytes, seconds since the trace's first allocation.

    Attributes:
        absolute: whether what was there before the trace is in it; else it is what came on top of that.
        reserved: what the allocator then held of the device; ``None``: not told.
    """

    device: str
    peak: int
    time: float
    absolute: bool
    reserved: int | None
    events: int


@dataclass(frozen=True, eq=False)
class _Device:
    """Events of a device's memory: their places, and bytes given out after each; ``absolute`` as of a peak."""

    name: str
    places: Ints
    level: Ints
    absolute: bool

    @property
    def top(self) -> int:
        return int(self.level.argmax())


def _devices(analysis: Analysis) -> list[_Device]:
    """Each device, the host first; of the step that was chosen."""
    memory = analysis.trace.allocations
    within = analysis.within(memory.time)
    found = []
    for kind, number in sorted(set(zip(memory.device_type.tolist(), memory.device.tolist(), strict=True))):
        places = np.flatnonzero(within & (memory.device_type == kind) & (memory.device == number))
        if len(places):
            name = _DEVICES.get(kind, f"device type {kind}")
            told = memory.allocated[places]
            absolute = bool((told != UNKNOWN).all())
            level = told if absolute else np.cumsum(memory.change[places])
            found.append(_Device(name if number < 0 or kind == 0 else f"{name} {number}", places, level, absolute))
    return found


def peaks(analysis: Analysis) -> list[Peak]:
    """The peak of each device."""
    memory = analysis.trace.allocations
    found = []
    for each in _devices(analysis):
        at = each.places[each.top]
        reserved = int(memory.reserved[at])
        found.append(
            Peak(
                device=each.name,
                peak=int(each.level[each.top]),
                time=float(memory.time[at] - memory.time[0]) / SECOND,
                absolute=each.absolute,
                reserved=None if reserved in (UNKNOWN, 0) else reserved,
                events=len(each.places),
            )
        )
    return found


def holders(analysis: Analysis) -> Columns:
    """Who held memory at each device's peak, by operator: bytes, and how many allocations; most first.

    Only what was allocated in the trace has an operator, that which needed it. Without addresses it is what an operator
    took in all until then less what it gave back.
    """
    rows = [row for device in _devices(analysis) for row in _holders(analysis, device)]
    return Columns.named(("device", "operator", "held", "allocations"), rows)


def _holders(analysis: Analysis, device: _Device) -> list[tuple[Any, ...]]:
    trace, memory = analysis.trace, analysis.trace.allocations
    alive = places = device.places[: device.top + 1]
    if (memory.address[places] != UNKNOWN).all():
        alive = _alive(memory.address[places].tolist(), memory.change[places].tolist(), places)
    around = _asking(analysis, alive)
    named = np.where(around >= 0, trace.name[trace.scopes.row[around]] if len(trace.scopes) else UNKNOWN, UNKNOWN)
    groups = Groups.by(named)
    held = groups.sum(memory.change[alive])
    given = groups.sum(memory.change[alive] > 0)
    order = np.argsort(-held, kind="stable")
    names = [trace.strings[code] if code >= 0 else NO_OPERATOR for code in named[groups.first].tolist()]
    rows: list[tuple[Any, ...]] = [
        (device.name, names[place], int(held[place]), int(given[place])) for place in order.tolist() if held[place] > 0
    ]
    before = int(device.level[device.top]) - int(held.sum()) if device.absolute else 0
    return [*rows, (device.name, BEFORE, before, None)] if before > 0 else rows


def _asking(analysis: Analysis, places: Ints) -> Ints:
    """For each allocation the operator that it was for: not the one that only asks for memory; -1 without one."""
    trace, memory = analysis.trace, analysis.trace.allocations
    around = analysis.launch_links.innermost(memory.thread[places], memory.time[places], Category.OPERATOR)
    if not len(trace.scopes):
        return around
    asks = trace.named(trace.scopes.row, _ASKING.__contains__)
    while True:
        above = analysis.costs.parent[around]
        climbs = (around >= 0) & (above >= 0) & asks[around]
        if not climbs.any():
            return around
        around = np.where(climbs, above, around)


def _alive(addresses: list[int], changes: list[int], places: Ints) -> Ints:
    """The places of allocations that were not given back by the end."""
    alive: dict[int, int] = {}
    for place, address, change in zip(places.tolist(), addresses, changes, strict=True):
        if change > 0:
            alive[address] = place
        else:
            alive.pop(address, None)
    return np.array(sorted(alive.values()), dtype=np.int64)


def curves(analysis: Analysis, points: int | None = None) -> Columns:
    """The curve of each device: the most that was given out in each of 200 equal slices of the time.

    Args:
        analysis: of the trace.
        points: of each device, no more than so many of the slices where there are more than twice as many in all.
    """
    memory, devices = analysis.trace.allocations, _devices(analysis)
    some = SLICES if points is None or len(devices) * SLICES <= 2 * points else min(points, SLICES)
    rows: list[tuple[Any, ...]] = []
    for each in devices:
        times = memory.time[each.places]
        edges = np.linspace(times[0], times[-1], SLICES + 1)
        slices = np.clip(np.searchsorted(edges, times, "right") - 1, 0, SLICES - 1)
        # What was given out when a slice began counts in it too.
        before = np.searchsorted(times, edges[:-1], "right") - 1
        most = each.level[np.maximum(before, 0)]
        np.maximum.at(most, slices, each.level)
        times = (edges[:-1] - memory.time[0]) / SECOND
        for part in np.array_split(np.arange(SLICES), some):
            at = part[most[part].argmax()]
            rows.append((each.name, float(times[at]), most[at].item()))
    return Columns.named(("device", "time", "allocated"), rows)
