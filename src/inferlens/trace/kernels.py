"""Kernels, copies and fills: how often each ran, how long, and how much of the GPU it used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferlens.trace.category import Category
from inferlens.trace.costs import Costs
from inferlens.trace.table import SECOND, Groups, Table
from inferlens.trace.trace import UNKNOWN, Bools, Ints

KINDS = {Category.KERNEL: "kernel", Category.MEMCPY: "copy", Category.MEMSET: "fill"}


def kernels(costs: Costs, *, by_operator: bool = False, within: Bools | None = None) -> Table:
    """A row for each name of a GPU event, what takes most first.

    Args:
        costs: of the trace.
        by_operator: told apart by the operator that launched it, grid, block, registers and shared memory too.
        within: which of the trace's GPU events count; all by default.

    Returns:
        Times in seconds, ``shared_memory`` in bytes, ``occupancy`` from 0 to 1. Blocks per SM and occupancy are means
        weighted by duration; registers, shared memory, grid and block are those of most calls' time.
    """
    trace, gpu = costs.trace, costs.trace.gpu
    events = np.arange(len(gpu)) if within is None else np.flatnonzero(within)
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
        "min": groups.least(duration) / SECOND,
        "max": groups.most(duration) / SECOND,
        "blocks_per_sm": groups.weighted(gpu.blocks_per_sm[events], duration),
        "occupancy": groups.weighted(costs.occupancy[events], duration) / 100,
        "tensor_cores": _tensor_cores(costs, of),
        "registers": _known(gpu.registers[of]),
        "shared_memory": _known(gpu.shared_memory[of]),
        "grid": _triples(gpu.grid[of]),
        "block": _triples(gpu.block[of]),
    }
    return Table(columns).sorted_by("total")


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
