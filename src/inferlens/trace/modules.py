"""Modules as a tree: what each took on the host and on the GPU, with those in it and by itself.

Modules come from the calls of ``nn.Module`` that the profiler records with stacks, or, where it recorded none, from the
``record_function`` scopes. A module is its path: the names of the calls around it. GPU time is that of everything that
was launched while the module was the innermost one; what autograd launches from a thread of its own belongs to none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import SECOND, Columns
from inferlens.trace.launch_links import Nest
from inferlens.trace.steps import PREFIX
from inferlens.trace.trace import Category, Ints, Trace

_MODULE = "nn.Module: "
_NOT_MODULES = (
    PREFIX, "inferlens step ", "inferlens run", "enumerate(DataLoader)", "enumerate(DataPipe)", "Optimizer.",
)  # fmt: skip
NO_MODULE = "(no module)"


def module_tree(analysis: Analysis, *, depth: int | None = None) -> Columns:
    """A row for each module, in the order of a walk through the tree; the last is for what belongs to none.

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
        for each in walks[-1][:-1]:
            total[each] += device[number]
    order = [walk[-1] for walk in sorted(walks) if depth is None or len(walk) <= depth]
    calls = np.bincount(of, minlength=count)
    columns: dict[str, list[Any]] = {
        "path": [paths[each] for each in order],
        "name": [names[each] for each in order],
        "depth": [len(walks[each]) - 1 for each in order],
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
    """For each scope the place of its stack in the texts: the Python calls around it, innermost first, with ``;``.

    PyTorch wrote them beside each operator once, and writes the calls alone now.
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
    """The number of each call's path; and the numbers by that of the path around and the code of the name."""
    numbers: dict[tuple[int, int], int] = {}
    found: list[int] = []
    for parent, name in zip(nest.parent.tolist(), trace.name[rows].tolist(), strict=True):
        around = found[parent] if parent >= 0 else -1
        found.append(numbers.setdefault((around, name), len(numbers)))
    return np.array(found, dtype=np.int64), numbers


def _nested(trace: Trace, rows: Ints) -> Ints:
    """Rows sorted as a nest is."""
    return rows[np.lexsort((-trace.duration[rows], trace.begin[rows], trace.thread[rows]))]


def _module_rows(analysis: Analysis) -> Ints:
    """Calls of modules in the step that was chosen, sorted as a nest is."""
    trace = analysis.trace
    rows = trace.rows(Category.PYTHON)
    rows = rows[trace.starting(rows, _MODULE)]
    if not len(rows):
        rows = trace.rows(Category.ANNOTATION)
        rows = rows[~trace.starting(rows, *_NOT_MODULES)]
    return _nested(trace, rows[analysis.within(trace.begin[rows])])


def _launched(analysis: Analysis, nest: Nest, of: Ints, count: int) -> Any:
    """Nanoseconds on GPUs of what each module launched itself; behind the last one, of what none did."""
    trace, launch = analysis.trace, analysis.launch_links.launch
    found = np.full(len(launch), count, dtype=np.int64)
    known = np.flatnonzero(launch >= 0)
    if len(known) and count:
        rows = trace.calls.row[launch[known]]
        place = nest.innermost(trace.thread[rows], trace.begin[rows])
        found[known] = np.where(place >= 0, of[place], count)
    return np.bincount(found, weights=trace.duration[trace.gpu.row] * analysis.gpu_within, minlength=count + 1)
