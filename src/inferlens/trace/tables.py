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
    """Return a row per module, in pre-order. The last row is for time outside of modules.

    Modules deeper than ``depth`` are left out; 1 is the outermost modules alone. Times are seconds, paths have dots.
    """
    trace = analysis.trace
    rows = _module_calls(analysis)
    nest, duration = Nest(trace, rows), trace.duration[rows]
    path_codes, numbers = _paths(trace, nest, rows)
    count = len(numbers)
    host = np.bincount(path_codes, weights=duration, minlength=count)
    self_time, has_parent = host.copy(), nest.parent >= 0
    np.subtract.at(self_time, path_codes[nest.parent[has_parent]], duration[has_parent])
    device = _launched_time(analysis, nest, path_codes, count)
    total = device.copy()
    names: list[str] = []
    paths: list[str] = []
    # The ancestors of each module, outermost first, and the module itself. Sorted, they are in pre-order.
    lineages: list[tuple[int, ...]] = []
    for number, (parent, name) in enumerate(numbers):
        names.append(trace.strings[name].removeprefix(_MODULE))
        paths.append(f"{paths[parent]}.{names[-1]}" if parent >= 0 else names[-1])
        lineages.append((*lineages[parent], number) if parent >= 0 else (number,))
        for ancestor in lineages[-1][:-1]:
            total[ancestor] += device[number]
    order = [lineage[-1] for lineage in sorted(lineages) if depth is None or len(lineage) <= depth]
    calls = np.bincount(path_codes, minlength=count)
    columns: dict[str, list[Any]] = {
        "path": [paths[index] for index in order],
        "name": [names[index] for index in order],
        "depth": [len(lineages[index]) - 1 for index in order],
        "calls": calls[order].tolist(),
        "host_total": (host[order] / SECOND).tolist(),
        "host_self": (np.maximum(self_time[order], 0) / SECOND).tolist(),
        "device_total": (total[order] / SECOND).tolist() if len(trace.gpu) else [None] * len(order),
        "device_self": (device[order] / SECOND).tolist() if len(trace.gpu) else [None] * len(order),
    }
    if device[count]:
        outside = float(device[count]) / SECOND
        row = (NO_MODULE, NO_MODULE, 0, *[None] * 3, outside, outside)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    return Columns(columns)


def call_stacks(analysis: Analysis) -> tuple[Ints, list[str]]:
    """Return for each scope the index of its stack, and the stacks: the Python calls around it, innermost first.

    Calls are separated by ``;``. Earlier versions of PyTorch wrote stacks as an argument of operators, later ones write
    only the calls.
    """
    trace = analysis.trace
    rows = trace.rows(Category.PYTHON)
    rows = rows[~trace.starting(rows, "<built-in")]
    rows = rows[Nest.order(trace, rows)]
    nest, scopes = Nest(trace, rows), trace.scopes.row
    path_codes, numbers = _paths(trace, nest, rows)
    stacks = [""]
    for parent, name in numbers:
        stacks.append(f"{trace.strings[name]};{stacks[parent + 1]}".removesuffix(";"))
    calls = nest.innermost(trace.thread[scopes], trace.begin[scopes])
    codes = np.append(path_codes, -1)[calls] + 1  # the last value is for scopes without a call around them
    return codes, stacks


def _paths(trace: Trace, nest: Nest, rows: Ints) -> tuple[Ints, dict[tuple[int, int], int]]:
    """Return the numbers of the calls' paths, and all numbers by the parent path's number and the code of the name."""
    numbers: dict[tuple[int, int], int] = {}
    path_numbers: list[int] = []
    for parent, name in zip(nest.parent.tolist(), trace.name[rows].tolist(), strict=True):
        parent_path = path_numbers[parent] if parent >= 0 else -1
        path_numbers.append(numbers.setdefault((parent_path, name), len(numbers)))
    return np.array(path_numbers, dtype=np.int64), numbers


def _module_calls(analysis: Analysis) -> Ints:
    """Return the calls of modules in the chosen step, sorted as in a nest."""
    trace = analysis.trace
    rows = trace.rows(Category.PYTHON)
    rows = rows[trace.starting(rows, _MODULE)]
    if not len(rows):
        rows = trace.rows(Category.ANNOTATION)
        rows = rows[~trace.starting(rows, *_NOT_MODULES)]
    rows = rows[analysis.within(trace.begin[rows])]
    return rows[Nest.order(trace, rows)]


def _launched_time(analysis: Analysis, nest: Nest, path_codes: Ints, count: int) -> Any:
    """Return the GPU nanoseconds that modules launched themselves; the last value is for no module."""
    trace, launch = analysis.trace, analysis.launch_links.launch
    modules = np.full(len(launch), count, dtype=np.int64)
    launched = np.flatnonzero(launch >= 0)
    if len(launched) and count:
        rows = trace.calls.row[launch[launched]]
        innermost = nest.innermost(trace.thread[rows], trace.begin[rows])
        modules[launched] = np.where(innermost >= 0, path_codes[innermost], count)
    return np.bincount(modules, weights=trace.duration[trace.gpu.row] * analysis.gpu_within, minlength=count + 1)


# A step is an outlier if it is this many interquartile ranges beyond the middle half (Tukey's fences).
FENCE = 1.5
LEAST_STEPS = 5  # for outliers
CUT_OFF, SLOW, FAST = "cut off by the profiler", "slower than the others", "faster than the others"
KINDS: dict[int, str] = {Category.KERNEL: "kernel", Category.MEMCPY: "copy", Category.MEMSET: "fill"}


def operators(analysis: Analysis, *by: str) -> Columns:
    """Return a row per operator, also by ``shapes`` or ``stack``; the longest on the GPU, or else on the host, first.

    Times are seconds; those on a GPU are NaN where the trace has no GPU events. ``tensor_share`` is that of kernels
    with tensor cores in the operator's GPU time; ``eligible`` says whether it could use them.
    """
    trace, costs, scopes = analysis.trace, analysis.costs, analysis.trace.scopes
    selected = np.flatnonzero(costs.is_operator & analysis.within(trace.begin[scopes.row]))
    arguments: dict[str, tuple[NDArray[Any], Sequence[str]]] = {
        "shapes": (scopes.shapes, trace.texts), "stack": (scopes.stack, trace.texts),
    }  # fmt: skip
    if "stack" in by and not any(trace.texts[code] for code in set(scopes.stack.tolist())):
        arguments["stack"] = call_stacks(analysis)
    groups = Groups.group_by(trace.name[scopes.row[selected]], *(arguments[key][0][selected] for key in by))
    representatives = selected[groups.first]

    def seconds(values: Ints) -> NDArray[np.float64]:
        return groups.sum(values[selected]) / SECOND

    gpu_factor = 1.0 if len(trace.gpu) else np.nan
    device, tensor = groups.sum(costs.device_total[selected]), groups.sum(costs.tensor_total[selected])
    columns: dict[str, Any] = {"name": trace.names_of(scopes.row[representatives])}
    for key in by:
        codes, texts = arguments[key]
        columns[key] = [_compact_json(texts[code]) for code in codes[representatives].tolist()]
    columns |= {
        "calls": groups.count,
        "host_self": seconds(costs.host_self),
        "host_total": seconds(costs.host_total),
        "device_self": seconds(costs.device_self) * gpu_factor,
        "device_total": device / SECOND * gpu_factor,
        "eligible": groups.sum(costs.eligible[selected]) > 0,
        "tensor_share": np.divide(tensor, device, out=np.full(len(device), np.nan), where=device > 0),
    }
    table = Columns(columns).sorted_by("host_self")
    return table.sorted_by("device_self") if device.any() else table


def _compact_json(text: str) -> str:
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
        operator_codes = np.where(launchers >= 0, names, UNKNOWN)
        keys += [operator_codes, *gpu.grid[events].T, *gpu.block[events].T]
        keys += [gpu.registers[events], gpu.shared_memory[events]]
    groups = Groups.group_by(*keys)
    duration = trace.duration[rows]
    # The longest event of a group stands for it.
    order = np.lexsort((-duration, groups.group))
    last = np.cumsum(groups.count)
    longest = order[last - groups.count]
    representatives = events[longest]
    columns: dict[str, Any] = {"name": trace.names_of(gpu.row[representatives])}
    if by_operator:
        columns["operator"] = [trace.strings[code] if code >= 0 else None for code in operator_codes[longest].tolist()]
    total = groups.sum(duration)
    all_time = total.sum()
    columns |= {
        "kind": [KINDS[code] for code in trace.category[gpu.row[representatives]].tolist()],
        "calls": groups.count,
        "total": total / SECOND,
        "share": total / all_time if all_time else np.zeros(len(total)),
        "mean": total / groups.count / SECOND,
        "min": duration[order[last - 1]] / SECOND,
        "max": duration[longest] / SECOND,
        "blocks_per_sm": groups.weighted(gpu.blocks_per_sm[events], duration),
        "occupancy": groups.weighted(costs.occupancy[events], duration) / 100,
        "tensor_cores": _tensor_cores(analysis, representatives),
        "registers": _or_none(gpu.registers[representatives]),
        "shared_memory": _or_none(gpu.shared_memory[representatives]),
        "grid": _size_texts(gpu.grid[representatives]),
        "block": _size_texts(gpu.block[representatives]),
    }
    return Columns(columns).sorted_by("total")


def _tensor_cores(analysis: Analysis, events: Ints) -> list[bool | None]:
    """Return whether events use tensor cores: never copies and fills, and ``None`` if a kernel's name does not tell."""
    trace, costs = analysis.trace, analysis.costs
    kernel = trace.category[trace.gpu.row[events]] == Category.KERNEL
    uses = np.where(kernel, costs.uses_tensor_cores[events], False).astype(object)
    uses[kernel & ~costs.tells_tensor_cores[events]] = None
    return list(uses)


def _or_none(values: Ints) -> list[int | None]:
    return [None if value == UNKNOWN else value for value in values.tolist()]


def _size_texts(values: NDArray[np.int64]) -> list[str | None]:
    """Return sizes as ``56x2x1``; ``None`` for zeros."""
    return ["x".join(map(str, sizes)) if any(sizes) else None for sizes in values.tolist()]


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
            "note": _step_notes(length, steps.counted_in_means),
        }
    )


def _step_notes(length: Any, counted: Any) -> list[str]:
    """Return a note for each step that is cut off, or an outlier among the others."""
    low, high = np.quantile(length[counted], [0.25, 0.75]) if counted.sum() >= LEAST_STEPS else (-np.inf, np.inf)
    reach = FENCE * (high - low)
    outliers = np.where(length > high + reach, SLOW, np.where(length < low - reach, FAST, ""))
    notes: list[str] = np.where(counted, outliers, CUT_OFF).tolist()
    return notes


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
        rows = trace.rows(*(category for category in Category if category not in (Category.SPAN, Category.OVERHEAD)))
        low, high = int(trace.begin[rows].min()), int(trace.ends(rows).max())
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
# Operators that allocate memory for the operator around them.
_ALLOCATING = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_", "aten::new_empty"}
_DEVICES = {0: "CPU", 1: "GPU", 6: "HIP", 12: "XPU"}


@dataclass(frozen=True, eq=False)
class AllocatedMemory:
    """The memory that a device's allocator allocated; bytes, seconds since the trace's first allocation."""

    name: str
    places: Ints  # indices of its events in the trace's allocations
    level: Ints  # allocated after every event, including memory from before the trace
    top: int  # index of the peak in ``level``
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

    Only memory that was allocated in the trace has an operator.
    """
    rows = [row for device in memory_devices(analysis) for row in _holders(analysis, device)]
    return Columns.named(("device", "operator", "held", "allocations"), rows).sorted_by("held")


def _holders(analysis: Analysis, device: AllocatedMemory) -> list[tuple[Any, ...]]:
    trace, memory = analysis.trace, analysis.trace.allocations
    held = _held_allocations(analysis, device.places[: device.top + 1])
    operator = _operators_of(analysis, held)
    names = trace.name[trace.scopes.row] if len(trace.scopes) else np.array([UNKNOWN])
    name_codes = np.where(operator >= 0, names[operator], UNKNOWN)
    groups = Groups.group_by(name_codes)
    sizes, counts = groups.sum(memory.change[held]), groups.count
    rows: list[tuple[Any, ...]] = []
    for index in np.argsort(-sizes, kind="stable").tolist():
        code = int(name_codes[groups.first[index]])
        name = trace.strings[code] if code >= 0 else NO_OPERATOR
        rows.append((device.name, name, int(sizes[index]), int(counts[index])))
    before = device.peak - int(sizes.sum())
    return [*rows, (device.name, BEFORE, before, None)] if before > 0 else rows


def _operators_of(analysis: Analysis, allocations: Ints) -> Ints:
    """Return the operators that needed the memory of allocations, not those that only allocate; -1 without one."""
    trace, memory = analysis.trace, analysis.trace.allocations
    threads, times = memory.thread[allocations], memory.time[allocations]
    operator = analysis.launch_links.innermost(threads, times, Category.OPERATOR)
    only_allocates = trace.named(trace.scopes.row, _ALLOCATING.__contains__)
    while len(only_allocates):
        callers = analysis.costs.parent[operator]
        climbs = (operator >= 0) & (callers >= 0) & only_allocates[operator]
        if not climbs.any():
            break
        operator = np.where(climbs, callers, operator)
    return operator


def _held_allocations(analysis: Analysis, events: Ints) -> Ints:
    """Return the allocations among the events that none of the events freed."""
    memory = analysis.trace.allocations
    held: dict[int, int] = {}
    addresses, changes = memory.address[events].tolist(), memory.change[events].tolist()
    for event, address, change in zip(events.tolist(), addresses, changes, strict=True):
        if change > 0:
            held[address] = event
        else:
            held.pop(address, None)
    return np.array(sorted(held.values()), dtype=np.int64)


def memory_curves(analysis: Analysis) -> Columns:
    """Return the curves of all devices: the most allocated memory in equal slices of the time."""
    memory = analysis.trace.allocations
    rows: list[tuple[Any, ...]] = []
    for device in memory_devices(analysis):
        times = memory.time[device.places]
        edges = np.linspace(times[0], times[-1], SLICES + 1)
        slices = np.clip(np.searchsorted(edges, times, "right") - 1, 0, SLICES - 1)
        # The memory that was allocated when a slice began counts in it, too.
        latest = np.searchsorted(times, edges[:-1], "right") - 1
        highest = device.level[np.maximum(latest, 0)]
        np.maximum.at(highest, slices, device.level)
        begins = (edges[:-1] - memory.time[0]) / SECOND
        rows += zip([device.name] * SLICES, begins.tolist(), highest.tolist(), strict=True)
    return Columns.named(("device", "time", "allocated"), rows)
