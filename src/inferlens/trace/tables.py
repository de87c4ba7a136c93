"""Operators and kernels: how often each was called, and what it took on the host and on the GPU."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferlens.trace.columns import SECOND, Columns, Groups
from inferlens.trace.costs import Costs
from inferlens.trace.trace import UNKNOWN, Bools, Category, Ints

KINDS = {Category.KERNEL: "kernel", Category.MEMCPY: "copy", Category.MEMSET: "fill"}


def operators(costs: Costs, within: Bools, by: tuple[str, ...] = ()) -> Columns:
    """A row for each operator, what takes most on the GPU first, or without one on the host.

    Args:
        costs: of the trace.
        within: which of its scopes count.
        by: told apart not by name alone: ``shapes`` of the inputs, ``stack`` of calls.

    Returns:
        Times in seconds. ``tensor_share`` is that of kernels with tensor cores in the operator's GPU time; ``eligible``
        says whether it could use them. Times on a GPU are NaN where the trace has no GPU events.
    """
    trace = costs.trace
    places = np.flatnonzero(costs.is_operator & within)
    scopes = trace.scopes
    keys = [trace.name[scopes.row[places]], *(getattr(scopes, key)[places] for key in by)]
    groups = Groups.by(*keys)
    first = places[groups.first]
    device, tensor = groups.sum(costs.device_total[places]), groups.sum(costs.tensor_total[places])
    columns: dict[str, Any] = {"name": trace.names_of(scopes.row[first])}
    for key in by:
        columns[key] = [_compact(trace.texts[code]) for code in getattr(scopes, key)[first].tolist()]
    columns |= {
        "calls": groups.count,
        "host_self": groups.sum(costs.host_self[places]) / SECOND,
        "host_total": groups.sum(costs.host_total[places]) / SECOND,
        "device_self": _if_gpu(groups.sum(costs.device_self[places]) / SECOND, costs),
        "device_total": _if_gpu(device / SECOND, costs),
        "eligible": groups.sum(costs.eligible[places]) > 0,
        "tensor_share": np.divide(tensor, device, out=np.full(len(device), np.nan), where=device > 0),
    }
    table = Columns(columns)
    has_device = float(np.max(device, initial=0.0)) > 0
    return table.sorted_by("host_self").sorted_by("device_self") if has_device else table.sorted_by("host_self")


def _compact(text: str) -> str:
    """JSON without blanks, which writers set as they like; a text of JSON as itself."""
    try:
        value = msgspec.json.decode(text) if text else ""
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _if_gpu(seconds: NDArray[np.float64], costs: Costs) -> NDArray[np.float64]:
    """Times on a GPU; not known where the trace has none."""
    return seconds if len(costs.trace.gpu) else np.full(len(seconds), np.nan)


def kernels(costs: Costs, within: Bools, *, by_operator: bool = False) -> Columns:
    """A row for each name of a GPU event, what takes most first.

    Args:
        costs: of the trace.
        within: which of its GPU events count.
        by_operator: told apart by the operator that launched it, grid, block, registers and shared memory too.

    Returns:
        Times in seconds, ``shared_memory`` in bytes, ``occupancy`` from 0 to 1. Blocks per SM and occupancy are means
        weighted by duration; registers, shared memory, grid and block are those of most calls' time.
    """
    trace, gpu = costs.trace, costs.trace.gpu
    events = np.flatnonzero(within)
    rows = gpu.row[events]
    launchers = costs.operator[events]
    # An operator is told apart by its name; without one it is a name of its own.
    named = trace.name[trace.scopes.row[launchers]] if len(trace.scopes) else np.full(len(events), UNKNOWN)
    named = np.where(launchers >= 0, named, UNKNOWN)
    keys: list[NDArray[Any]] = [trace.name[rows], trace.category[rows]]
    if by_operator:
        keys += [named, *gpu.grid[events].T, *gpu.block[events].T, gpu.registers[events], gpu.shared_memory[events]]
    groups = Groups.by(*keys)
    duration = trace.duration[rows]
    longest = _longest(groups, duration)
    of = events[longest]
    kinds = {int(category): kind for category, kind in KINDS.items()}
    columns: dict[str, Any] = {"name": trace.names_of(gpu.row[of])}
    if by_operator:
        columns["operator"] = [trace.strings[code] if code >= 0 else None for code in named[longest].tolist()]
    total = groups.sum(duration)
    whole = total.sum()
    columns |= {
        "kind": [kinds[code] for code in trace.category[gpu.row[of]].tolist()],
        "calls": groups.count,
        "total": total / SECOND,
        "share": total / whole if whole else np.zeros(len(total)),
        "mean": total / groups.count / SECOND,
        "min": groups.extreme(duration, np.minimum) / SECOND,
        "max": groups.extreme(duration, np.maximum) / SECOND,
        "blocks_per_sm": groups.weighted(gpu.blocks_per_sm[events], duration),
        "occupancy": groups.weighted(costs.occupancy[events], duration) / 100,
        "tensor_cores": _tensor_cores(costs, of),
        "registers": _known(gpu.registers[of]),
        "shared_memory": _known(gpu.shared_memory[of]),
        "grid": _triples(gpu.grid[of]),
        "block": _triples(gpu.block[of]),
    }
    return Columns(columns).sorted_by("total")


def _tensor_cores(costs: Costs, events: Ints) -> list[bool | None]:
    """Whether each uses tensor cores, which copies and fills do not; ``None`` where its name does not tell."""
    kernel = costs.trace.category[costs.trace.gpu.row[events]] == Category.KERNEL
    told = ~kernel | costs.tells_tensor_cores[events]
    used = kernel & costs.uses_tensor_cores[events]
    return [one if known else None for one, known in zip(used.tolist(), told.tolist(), strict=True)]


def _longest(groups: Groups, duration: Ints) -> Ints:
    """The longest event of each group, which stands for it."""
    order = np.lexsort((-duration, groups.of))
    firsts = np.searchsorted(groups.of[order], np.arange(len(groups.first)))
    return order[firsts].astype(np.int64)


def _known(values: Ints) -> list[int | None]:
    return [None if value == UNKNOWN else value for value in values.tolist()]


def _triples(values: NDArray[np.int64]) -> list[str | None]:
    """``56x2x1``; nothing where there is none."""
    return ["x".join(map(str, each)) if any(each) else None for each in values.tolist()]
