"""Tables of a trace or of one of its steps: modules, operators, kernels, steps, slices of the time, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferlens.trace.analysis import PARTS, PREFIXES, Analysis, Intervals, filling, shares_of
from inferlens.trace.model import CALLS, SECOND, SLICES, UNKNOWN, Category, Columns, Groups, Ints, Nest, Trace

# Modules as a tree: their time on the host and on the GPU, with and without the modules in them.
#
# Modules come from the calls of ``nn.Module`` that the profiler records with stacks, or, where it recorded none, from
# the ``record_function`` scopes. A module is its path: the names of the calls around it. GPU time is that of everything
# that was launched while the module was the innermost one; what autograd launches from a thread of its own belongs to
# none.

_MODULE = "nn.Module: "
_NOT_MODULES = (
    *PREFIXES, "inferlens step ", "inferlens run", "enumerate(DataLoader)", "enumerate(DataPipe)", "Optimizer.",
)  # fmt: skip
NO_MODULE = "(no module)"


def module_tree(analysis: Analysis, *, depth: int | None = None) -> Columns:
    """Return a row per module, in the order of a walk through the tree. The last row is for time outside of modules.

    ``depth`` is how deep to unfold; 1 is the outermost modules alone. Times are seconds, paths have dots.
    """
    trace = analysis.trace
    rows = _module_rows(analysis)
    nest, duration = Nest(trace, rows), trace.duration[rows]
    of, numbers = _paths(trace, nest, rows)
    count = len(numbers)
    host = np.bincount(of, weights=duration, minlength=count)
    own, inner = host.copy(), nest.parent >= 0
    np.subtract.at(own, of[nest.parent[inner]], duration[inner])
    device = _launched(analysis, nest, of, count)
    total = device.copy()
    names: list[str] = []
    paths: list[str] = []
    walks: list[tuple[int, ...]] = []  # those around it, outermost first, and itself: in their order one goes down
    for number, (around, name) in enumerate(numbers):
        names.append(trace.strings[name].removeprefix(_MODULE))
        paths.append(f"{paths[around]}.{names[-1]}" if around >= 0 else names[-1])
        walks.append((*walks[around], number) if around >= 0 else (number,))
        for item in walks[-1][:-1]:
            total[item] += device[number]
    order = [walk[-1] for walk in sorted(walks) if depth is None or len(walk) <= depth]
    calls = np.bincount(of, minlength=count)
    columns: dict[str, list[Any]] = {
        "path": [paths[item] for item in order],
        "name": [names[item] for item in order],
        "depth": [len(walks[item]) - 1 for item in order],
        "calls": calls[order].tolist(),
        "host_total": (host[order] / SECOND).tolist(),
        "host_self": (np.maximum(own[order], 0) / SECOND).tolist(),
        "device_total": (total[order] / SECOND).tolist() if len(trace.gpu) else [None] * len(order),
        "device_self": (device[order] / SECOND).tolist() if len(trace.gpu) else [None] * len(order),
    }
    if device[count]:
        left = float(device[count]) / SECOND
        for column, value in zip(columns.values(), (NO_MODULE, NO_MODULE, 0, *[None] * 3, left, left), strict=True):
            column.append(value)
    return Columns(columns)


def call_stacks(analysis: Analysis) -> tuple[Ints, list[str]]:
    """Return the places of the scopes' stacks in the texts: the Python calls around them, innermost first, with ``;``.

    Earlier versions of PyTorch wrote them as an argument of operators. Later ones write only the calls.
    """
    trace = analysis.trace
    rows = trace.rows(Category.PYTHON)
    rows = _nested(trace, rows[~trace.starting(rows, "<built-in")])
    nest, scopes = Nest(trace, rows), trace.scopes.row
    of, numbers = _paths(trace, nest, rows)
    texts = [""]
    for around, name in numbers:
        outer = texts[around + 1]
        texts.append(f"{trace.strings[name]};{outer}" if outer else trace.strings[name])
    place = nest.innermost(trace.thread[scopes], trace.begin[scopes])
    return (of[place] + 1) * (place >= 0) if len(of) else np.zeros(len(scopes), dtype=np.int64), texts


def _paths(trace: Trace, nest: Nest, rows: Ints) -> tuple[Ints, dict[tuple[int, int], int]]:
    """Return the numbers of the calls' paths, and all numbers by the parent path's number and the code of the name."""
    numbers: dict[tuple[int, int], int] = {}
    path_numbers: list[int] = []
    for parent, name in zip(nest.parent.tolist(), trace.name[rows].tolist(), strict=True):
        around = path_numbers[parent] if parent >= 0 else -1
        path_numbers.append(numbers.setdefault((around, name), len(numbers)))
    return np.array(path_numbers, dtype=np.int64), numbers


def _nested(trace: Trace, rows: Ints) -> Ints:
    return rows[np.lexsort((-trace.duration[rows], trace.begin[rows], trace.thread[rows]))]


def _module_rows(analysis: Analysis) -> Ints:
    """Return the calls of modules in the chosen step, sorted as in a nest."""
    trace = analysis.trace
    rows = trace.rows(Category.PYTHON)
    rows = rows[trace.starting(rows, _MODULE)]
    if not len(rows):
        rows = trace.rows(Category.ANNOTATION)
        rows = rows[~trace.starting(rows, *_NOT_MODULES)]
    return _nested(trace, rows[analysis.within(trace.begin[rows])])


def _launched(analysis: Analysis, nest: Nest, of: Ints, count: int) -> Any:
    """Return the GPU nanoseconds that modules launched themselves; the last value is for no module."""
    trace, launch = analysis.trace, analysis.launch_links.launch
    modules = np.full(len(launch), count, dtype=np.int64)
    launched = np.flatnonzero(launch >= 0)
    if len(launched) and count:
        rows = trace.calls.row[launch[launched]]
        place = nest.innermost(trace.thread[rows], trace.begin[rows])
        modules[launched] = np.where(place >= 0, of[place], count)
    return np.bincount(modules, weights=trace.duration[trace.gpu.row] * analysis.gpu_within, minlength=count + 1)


CUT_OFF = "cut off by the profiler"
KINDS: dict[int, str] = {Category.KERNEL: "kernel", Category.MEMCPY: "copy", Category.MEMSET: "fill"}


def operators(analysis: Analysis, *by: str) -> Columns:
    """Return a row per operator, also by ``shapes`` or ``stack``; the longest on the GPU, or else on the host, first.

    Times are seconds; those on a GPU are NaN where the trace has no GPU events. ``tensor_share`` is that of kernels
    with tensor cores in the operator's GPU time; ``eligible`` says whether it could use them.
    """
    trace, costs, scopes = analysis.trace, analysis.costs, analysis.trace.scopes
    places = np.flatnonzero(costs.is_operator & analysis.within(trace.begin[scopes.row]))
    arguments: dict[str, tuple[NDArray[Any], Sequence[str]]] = {
        "shapes": (scopes.shapes, trace.texts), "stack": (scopes.stack, trace.texts),
    }  # fmt: skip
    if "stack" in by and not any(trace.texts[code] for code in set(scopes.stack.tolist())):
        arguments["stack"] = call_stacks(analysis)
    groups = Groups.group_by(trace.name[scopes.row[places]], *(arguments[key][0][places] for key in by))
    first = places[groups.first]

    def seconds(values: Ints) -> NDArray[np.float64]:
        return groups.sum(values[places]) / SECOND

    gpu_factor = 1.0 if len(trace.gpu) else np.nan
    device, tensor = groups.sum(costs.device_total[places]), groups.sum(costs.tensor_total[places])
    columns: dict[str, Any] = {"name": trace.names_of(scopes.row[first])}
    columns |= {key: [_compact(arguments[key][1][code]) for code in arguments[key][0][first].tolist()] for key in by}
    columns |= {
        "calls": groups.count,
        "host_self": seconds(costs.host_self),
        "host_total": seconds(costs.host_total),
        "device_self": seconds(costs.device_self) * gpu_factor,
        "device_total": device / SECOND * gpu_factor,
        "eligible": groups.sum(costs.eligible[places]) > 0,
        "tensor_share": np.divide(tensor, device, out=np.full(len(device), np.nan), where=device > 0),
    }
    table = Columns(columns).sorted_by("host_self")
    return table.sorted_by("device_self") if device.any() else table


def _compact(text: str) -> str:
    """Return JSON without blanks; a JSON string as its text."""
    try:
        value = msgspec.json.decode(text) if text else ""
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def kernels(analysis: Analysis, *, by_operator: bool = False) -> Columns:
    """Return a row per name of a GPU event, the longest first; ``by_operator``: also by operator and launch.

    Times are seconds, sizes bytes, ``occupancy`` is from 0 to 1. Blocks per SM and occupancy are means weighted by
    duration; registers, shared memory, grid and block are those of the longest call.
    """
    trace, costs, gpu = analysis.trace, analysis.costs, analysis.trace.gpu
    events = np.flatnonzero(analysis.gpu_within)
    rows = gpu.row[events]
    keys: list[NDArray[Any]] = [trace.name[rows], trace.category[rows]]
    if by_operator:
        launchers = costs.operator[events]
        # The key of an operator is its name. No operator has a key of its own.
        names = trace.name[trace.scopes.row[launchers]] if len(trace.scopes) else launchers
        named = np.where(launchers >= 0, names, UNKNOWN)
        keys += [named, *gpu.grid[events].T, *gpu.block[events].T, gpu.registers[events], gpu.shared_memory[events]]
    groups = Groups.group_by(*keys)
    duration = trace.duration[rows]
    # The longest event of a group stands for it.
    order = np.lexsort((-duration, groups.group))
    last = np.cumsum(groups.count)
    longest = order[last - groups.count]
    of = events[longest]
    columns: dict[str, Any] = {"name": trace.names_of(gpu.row[of])}
    if by_operator:
        columns["operator"] = [trace.strings[code] if code >= 0 else None for code in named[longest].tolist()]
    total = groups.sum(duration)
    whole = total.sum()
    columns |= {
        "kind": [KINDS[code] for code in trace.category[gpu.row[of]].tolist()],
        "calls": groups.count,
        "total": total / SECOND,
        "share": total / whole if whole else np.zeros(len(total)),
        "mean": total / groups.count / SECOND,
        "min": duration[order[last - 1]] / SECOND,
        "max": duration[longest] / SECOND,
        "blocks_per_sm": groups.weighted(gpu.blocks_per_sm[events], duration),
        "occupancy": groups.weighted(costs.occupancy[events], duration) / 100,
        "tensor_cores": _tensor_cores(analysis, of),
        "registers": _plain_numbers(gpu.registers[of]),
        "shared_memory": _plain_numbers(gpu.shared_memory[of]),
        "grid": _triples(gpu.grid[of]),
        "block": _triples(gpu.block[of]),
    }
    return Columns(columns).sorted_by("total")


def _tensor_cores(analysis: Analysis, events: Ints) -> list[bool | None]:
    trace, costs = analysis.trace, analysis.costs
    kernel = trace.category[trace.gpu.row[events]] == Category.KERNEL
    used, certain = kernel & costs.uses_tensor_cores[events], ~kernel | costs.tells_tensor_cores[events]
    return [one if says else None for one, says in zip(used.tolist(), certain.tolist(), strict=True)]


def _plain_numbers(values: Ints) -> list[int | None]:
    return [None if value == UNKNOWN else value for value in values.tolist()]


def _triples(values: NDArray[np.int64]) -> list[str | None]:
    """Return sizes as ``56x2x1``; an empty text for zeros."""
    return ["x".join(map(str, item)) if any(item) else None for item in values.tolist()]


def stepping(analysis: Analysis) -> Columns:
    """Return a row per step, in order of time; seconds, ``begin`` since the first one began."""
    steps = analysis.steps if analysis.step is None else analysis.counted
    length = steps.end - steps.begin
    kernels = analysis.trace.rows(Category.KERNEL)
    used = Intervals.of_events(analysis.trace, kernels).covered(steps.begin, steps.end) / np.maximum(length, 1)
    shares = shares_of(analysis.parts, steps)
    return Columns(
        {
            "step": list(steps.names),
            "begin": (steps.begin - steps.begin[:1]) / SECOND,
            "time": length / SECOND,
            "utilization": used if len(kernels) else np.full(len(steps), np.nan),
            "launched": steps.launched,
            **{name: shares[name] / SECOND for name in PARTS},
            "note": np.where(steps.counted_in_means, "", CUT_OFF).tolist(),
        }
    )


_RUNNING = {
    "kernel": (Category.KERNEL,), "copy": (Category.MEMCPY, Category.MEMSET),
    "operator": (Category.OPERATOR,), "runtime": CALLS,
}  # fmt: skip


def timeline(analysis: Analysis) -> Columns:
    """Return a row per slice of the time, of :data:`SLICES` equal ones.

    Columns are shares of the slice: in which a ``kernel``, a ``copy`` (or fill) ran on any GPU, in which the host was
    in an ``operator`` or a call of the ``runtime``, and the estimated ``sm_efficiency`` (the mean over GPUs).
    """
    trace, steps = analysis.trace, analysis.counted
    if not len(steps):
        return Columns({name: np.empty(0) for name in ("begin", "length", *_RUNNING, "sm_efficiency")})
    if analysis.step is not None:
        low, high = int(steps.begin[0]), int(steps.end[-1])
    else:
        every = trace.rows(*(category for category in Category if category not in (Category.SPAN, Category.OVERHEAD)))
        low, high = int(trace.begin[every].min()), int(trace.ends(every).max())
    edges = low + np.linspace(0, high - low, SLICES + 1).astype(np.int64)
    begin, end = edges[:-1], edges[1:]
    length = np.maximum(end - begin, 1)
    columns: dict[str, Any] = {"begin": (begin - low) / SECOND, "length": length / SECOND}
    for name, categories in _RUNNING.items():
        columns[name] = Intervals.of_events(trace, trace.rows(*categories)).covered(begin, end) / length
    return Columns({**columns, "sm_efficiency": _efficiency(analysis, edges) / length})


def _efficiency(analysis: Analysis, edges: Ints) -> Any:
    """Return the nanoseconds of the slices, weighted by the share of busy multiprocessors; NaN if unknown."""
    gpu = analysis.trace.gpu
    devices = np.unique(gpu.device[gpu.blocks_per_sm > 0]).tolist()
    total = np.zeros(len(edges) - 1) if devices else np.full(len(edges) - 1, np.nan)
    for device in devices:
        moments, filled = filling(analysis.trace, np.flatnonzero(gpu.device == device))
        sums = np.concatenate([[0.0], np.cumsum(filled * np.diff(moments))])
        total += np.diff(np.interp(edges, moments, sums)) / len(devices)
    return total


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


def memory_devices(analysis: Analysis) -> list[AllocatedMemory]:
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


def memory_holders(analysis: Analysis) -> Columns:
    """Return bytes and number of allocations by operator at the peak of every device, most first.

    Only memory that was allocated in the trace has an operator: the one that needed it.
    """
    rows = [row for device in memory_devices(analysis) for row in _holders(analysis, device)]
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


def memory_curves(analysis: Analysis) -> Columns:
    """Return the curves of all devices: the most allocated memory in equal slices of the time."""
    memory = analysis.trace.allocations
    rows: list[tuple[Any, ...]] = []
    for device in memory_devices(analysis):
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
