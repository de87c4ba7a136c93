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
from inferlens.trace.category import Category
from inferlens.trace.launch_links import Nest
from inferlens.trace.steps import PREFIX
from inferlens.trace.table import SECOND, Table
from inferlens.trace.trace import Ints

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


def module_tree(analysis: Analysis, *, depth: int | None = None, most_rows: int | None = None) -> Table:
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
    device = np.zeros(count + 1)
    np.add.at(device, _of_events(analysis, calls), _durations(analysis))
    total = device.copy()
    for path in range(count - 1, -1, -1):
        if calls.above[path] >= 0:
            total[calls.above[path]] += total[path]
    order, levels = _walk(calls.above)
    deepest = _depth(levels, depth, most_rows)
    order = [path for path in order if levels[path] < deepest]
    paths = _paths(calls)
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
    return Table(columns)


def _depth(levels: list[int], depth: int | None, most_rows: int | None) -> int:
    """How many levels to show: at least one."""
    counts = np.cumsum(np.bincount(levels)) if levels else np.ones(1)
    if depth is not None or most_rows is None:
        return len(counts) if depth is None else depth
    return max(1, int(np.searchsorted(counts, most_rows, "right")))


def _calls(analysis: Analysis) -> _Calls:
    trace = analysis.trace
    rows = _module_rows(analysis)
    if analysis.step is not None:
        steps = analysis.counted
        begin = trace.begin[rows]
        rows = rows[(begin >= steps.host_begin[0]) & (begin < steps.host_end[0])]
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
    is_module = np.array([name.startswith(_MODULE) for name in trace.strings], dtype=bool)
    rows = python[is_module[trace.name[python]]] if len(python) else python
    if len(rows):
        return rows
    annotations = trace.rows(Category.ANNOTATION)
    others = np.array([not name.startswith(_NOT_MODULES) for name in trace.strings], dtype=bool)
    return annotations[others[trace.name[annotations]]] if len(annotations) else annotations


def _durations(analysis: Analysis) -> Any:
    durations = analysis.trace.duration[analysis.trace.gpu.row].astype(np.float64)
    return durations if analysis.gpu_within is None else np.where(analysis.gpu_within, durations, 0.0)


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


def _walk(above: list[int]) -> tuple[list[int], list[int]]:
    """Paths in the order of a walk, those first called first; and how deep each is."""
    below: dict[int, list[int]] = {}
    depth: list[int] = []
    for path, parent in enumerate(above):
        below.setdefault(parent, []).append(path)
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    order: list[int] = []
    waiting = below.get(-1, [])[::-1]
    while waiting:
        path = waiting.pop()
        order.append(path)
        waiting += below.get(path, [])[::-1]
    return order, depth


def _paths(calls: _Calls) -> list[str]:
    paths: list[str] = []
    for name, parent in zip(calls.names, calls.above, strict=True):
        paths.append(f"{paths[parent]}.{name}" if parent >= 0 else name)
    return paths
