"""Modules as a tree: what each took on the host and on the GPU, with those in it and by itself.

Modules come from the calls of ``nn.Module`` that the profiler records with stacks, or, where it recorded none, from the
``record_function`` scopes. A module is its path: the names of the calls around it. GPU time is that of everything that
was launched while the module was the innermost one; what autograd launches from a thread of its own belongs to none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import SECOND, Columns
from inferlens.trace.launch_links import Nest
from inferlens.trace.steps import PREFIX
from inferlens.trace.trace import Category, Ints

_MODULE = "nn.Module: "
_NOT_MODULES = (
    PREFIX,
    "inferlens step ",
    "inferlens run",
    "enumerate(DataLoader)",
    "enumerate(DataPipe)",
    "Optimizer.",
)
NO_MODULE = "(no module)"


@dataclass(frozen=True, eq=False)
class _Calls:
    """Calls of modules, sorted as a nest is, and for each its path's number; ``names`` and ``above`` are by path."""

    rows: Ints
    nest: Nest
    path: Ints
    names: list[str]
    above: list[int]


def module_tree(analysis: Analysis, *, depth: int | None = None, most_rows: int | None = None) -> Columns:
    """A row for each module, in the order of a walk through the tree; the last is for what belongs to none.

    Args:
        analysis: of the trace.
        depth: how deep to unfold; 1 is the outermost modules alone.
        most_rows: where no depth is given, as deep as there are no more rows than that.

    Returns:
        ``path`` with dots, ``depth`` from 0, ``calls``, seconds of ``host_total``, ``host_self``, ``device_total`` and
        ``device_self``.
    """
    trace = analysis.trace
    calls = _calls(analysis)
    count = len(calls.names)
    duration = trace.duration[calls.rows]
    host = np.bincount(calls.path, weights=duration, minlength=count)
    own = host.copy()
    inner = calls.nest.parent >= 0
    np.subtract.at(own, calls.path[calls.nest.parent[inner]], duration[inner])
    launched = trace.duration[trace.gpu.row] * analysis.gpu_within
    device = np.bincount(_of_events(analysis, calls), weights=launched, minlength=count + 1)
    total = device.copy()
    for path in range(count - 1, -1, -1):
        if calls.above[path] >= 0:
            total[calls.above[path]] += total[path]
    order, levels, paths = _walk(calls)
    deepest = _depth(levels, depth, most_rows)
    order = [path for path in order if levels[path] < deepest]
    times = np.bincount(calls.path, minlength=count)
    columns: dict[str, list[Any]] = {
        "path": [paths[each] for each in order],
        "name": [calls.names[each] for each in order],
        "depth": [levels[each] for each in order],
        "calls": times[order].tolist(),
        "host_total": (host[order] / SECOND).tolist(),
        "host_self": (np.maximum(own[order], 0) / SECOND).tolist(),
        "device_total": (total[order] / SECOND).tolist() if len(trace.gpu) else [None] * len(order),
        "device_self": (device[order] / SECOND).tolist() if len(trace.gpu) else [None] * len(order),
    }
    if device[count]:
        left = float(device[count]) / SECOND
        rest = (NO_MODULE, NO_MODULE, 0, None, None, None, left, left)
        for column, value in zip(columns.values(), rest, strict=True):
            column.append(value)
    return Columns(columns)


def _depth(levels: list[int], depth: int | None, most_rows: int | None) -> int:
    """How many levels to show: at least one."""
    counts = np.cumsum(np.bincount(levels)) if levels else np.ones(1)
    if depth is not None or most_rows is None:
        return len(counts) if depth is None else depth
    return max(1, int(np.searchsorted(counts, most_rows, "right")))


def _calls(analysis: Analysis) -> _Calls:
    trace = analysis.trace
    rows = _module_rows(analysis)
    rows = rows[analysis.within(trace.begin[rows])]
    rows = rows[np.lexsort((-trace.duration[rows], trace.begin[rows], trace.thread[rows]))]
    nest = Nest.of(trace, rows)
    numbers: dict[tuple[int, int], int] = {}
    path: list[int] = []
    for parent, name in zip(nest.parent.tolist(), trace.name[rows].tolist(), strict=True):
        key = (path[parent] if parent >= 0 else -1, name)
        path.append(numbers.setdefault(key, len(numbers)))
    names = [trace.strings[name].removeprefix(_MODULE) for _, name in numbers]
    return _Calls(rows, nest, np.array(path, dtype=np.int64), names, [above for above, _ in numbers])


def _module_rows(analysis: Analysis) -> Ints:
    trace = analysis.trace
    python = trace.rows(Category.PYTHON)
    rows = python[trace.named(python, lambda name: name.startswith(_MODULE))]
    if len(rows):
        return rows
    annotations = trace.rows(Category.ANNOTATION)
    return annotations[~trace.named(annotations, lambda name: name.startswith(_NOT_MODULES))]


def _of_events(analysis: Analysis, calls: _Calls) -> Ints:
    """For each GPU event the path of the module around its launch; the number of paths where there is none."""
    trace, launch = analysis.trace, analysis.launch_links.launch
    found = np.full(len(launch), len(calls.names), dtype=np.int64)
    known = np.flatnonzero(launch >= 0)
    if len(known) and len(calls.rows):
        rows = trace.calls.row[launch[known]]
        place = calls.nest.innermost(trace.thread[rows], trace.begin[rows])
        found[known] = np.where(place >= 0, calls.path[place], len(calls.names))
    return found


def _walk(calls: _Calls) -> tuple[list[int], list[int], list[str]]:
    """Paths in the order of a walk, those first called first; how deep each is, and its names with dots."""
    below: dict[int, list[int]] = {}
    depth: list[int] = []
    paths: list[str] = []
    for path, (name, parent) in enumerate(zip(calls.names, calls.above, strict=True)):
        below.setdefault(parent, []).append(path)
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
        paths.append(f"{paths[parent]}.{name}" if parent >= 0 else name)
    order: list[int] = []
    waiting = below.get(-1, [])[::-1]
    while waiting:
        path = waiting.pop()
        order.append(path)
        waiting += below.get(path, [])[::-1]
    return order, depth, paths
