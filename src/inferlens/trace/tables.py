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
    trace, scopes = costs.trace, costs.trace.scopes
    places = np.flatnonzero(costs.is_operator & within)
    groups = Groups.by(trace.name[scopes.row[places]], *(getattr(scopes, key)[places] for key in by))
    first = places[groups.first]

    def seconds(values: Ints) -> NDArray[np.float64]:
        return groups.sum(values[places]) / SECOND

    known = 1.0 if len(trace.gpu) else np.nan
    device, tensor = groups.sum(costs.device_total[places]), groups.sum(costs.tensor_total[places])
    columns: dict[str, Any] = {"name": trace.names_of(scopes.row[first])}
    columns |= {key: [_compact(trace.texts[code]) for code in getattr(scopes, key)[first].tolist()] for key in by}
    columns |= {
        "calls": groups.count,
        "host_self": seconds(costs.host_self),
        "host_total": seconds(costs.host_total),
        "device_self": seconds(costs.device_self) * known,
        "device_total": device / SECOND * known,
        "eligible": groups.sum(costs.eligible[places]) > 0,
        "tensor_share": np.divide(tensor, device, out=np.full(len(device), np.nan), where=device > 0),
    }
    table = Columns(columns).sorted_by("host_self")
    return table.sorted_by("device_self") if device.any() else table


def _compact(text: str) -> str:
    """JSON without blanks, which writers set as they like; a text of JSON as itself."""
    try:
        value = msgspec.json.decode(text) if text else ""
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def kernels(costs: Costs, within: Bools, *, by_operator: bool = False) -> Columns:
    """A row for each name of a GPU event, what takes most first.

    Args:
        costs: of the trace.
        within: which of its GPU events count.
        by_operator: told apart by the operator that launched it, grid, block, registers and shared memory too.

    Returns:
        Times in seconds, ``shared_memory`` in bytes, ``occupancy`` from 0 to 1. Blocks per SM and occupancy are means
        weighted by duration; registers, shared memory, grid and block are those of the longest call.
    """
    trace, gpu = costs.trace, costs.trace.gpu
    events = np.flatnonzero(within)
    rows = gpu.row[events]
    keys: list[NDArray[Any]] = [trace.name[rows], trace.category[rows]]
    if by_operator:
        launchers = costs.operator[events]
        # An operator is told apart by its name; without one it is a name of its own.
        names = trace.name[trace.scopes.row[launchers]] if len(trace.scopes) else launchers
        named = np.where(launchers >= 0, names, UNKNOWN)
        keys += [named, *gpu.grid[events].T, *gpu.block[events].T, gpu.registers[events], gpu.shared_memory[events]]
    groups = Groups.by(*keys)
    duration = trace.duration[rows]
    # The longest event of each group stands for it.
    order = np.lexsort((-duration, groups.of))
    longest = order[np.searchsorted(groups.of[order], np.arange(len(groups.first)))]
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
    """Whether each uses tensor cores, which copies and fills do not; ``None`` where its name does not say."""
    kernel = costs.trace.category[costs.trace.gpu.row[events]] == Category.KERNEL
    used, known = kernel & costs.uses_tensor_cores[events], ~kernel | costs.tells_tensor_cores[events]
    return [one if tells else None for one, tells in zip(used.tolist(), known.tolist(), strict=True)]


def _known(values: Ints) -> list[int | None]:
    return [None if value == UNKNOWN else value for value in values.tolist()]


def _triples(values: NDArray[np.int64]) -> list[str | None]:
    """``56x2x1``; nothing where there is none."""
    return ["x".join(map(str, each)) if any(each) else None for each in values.tolist()]
