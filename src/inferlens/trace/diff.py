"""Two traces compared: rows matched by name and shape, then by order; what was gained and lost, what takes most first.

Traces may have different numbers of steps, so times and calls are those of one step. What is in one trace alone is
kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inferlens.trace.analysis import Analysis
from inferlens.trace.module_tree import module_tree
from inferlens.trace.table import SECOND, Table

BOTH, NEW, GONE = "", "new", "gone"


def operators_compared(before: Analysis, after: Analysis) -> Table:
    """Operators by name and shapes: time on the GPU by itself, or on the host where one trace has no GPU events."""
    value = "device_self" if _gpus(before, after) else "host_self"
    return compared(_each(before, after, lambda one: one.operators("shapes")), ("name", "shapes"), value)


def kernels_compared(before: Analysis, after: Analysis) -> Table:
    """Kernels, copies and fills by name."""
    return compared(_each(before, after, lambda one: one.kernels()), ("name",), "total")


def modules_compared(before: Analysis, after: Analysis) -> Table:
    """Modules by path: time of their own on the GPU, or on the host where one trace has no GPU events."""
    value = "device_self" if _gpus(before, after) else "host_self"
    return compared(_each(before, after, module_tree), ("path",), value)


def parts_compared(before: Mapping[str, float], after: Mapping[str, float]) -> Table:
    """Seconds of a step by what they went to, of both."""
    names = list(dict.fromkeys([*before, *after]))
    first, second = ([times.get(name, 0.0) for name in names] for times in (before, after))
    change = [b - a for a, b in zip(first, second, strict=True)]
    return Table({"name": names, "before": first, "after": second, "change": change})


def compared(tables: Sequence[tuple[Table, float]], keys: Sequence[str], value: str) -> Table:
    """Two tables row by row.

    Args:
        tables: each with the number of steps that it is of.
        keys: columns by which rows are matched; several alike are matched in their order.
        value: the column that is compared.

    Returns:
        The keys, then for each row calls and seconds of one step before and after, the ``change``, the sum of the
        changes so far, and whether the row is ``new`` or ``gone``. The largest change comes first, in either direction.
    """
    first, second = (_rows(table, steps, keys, value) for table, steps in tables)
    found = []
    for key in dict.fromkeys([*first, *second]):
        (calls_a, a), (calls_b, b) = first.get(key, (0.0, 0.0)), second.get(key, (0.0, 0.0))
        state = BOTH if key in first and key in second else NEW if key in second else GONE
        found.append((key, calls_a, calls_b, a, b, b - a, state))
    found.sort(key=lambda row: -abs(row[5]))
    sums = np.cumsum([row[5] for row in found]) if found else np.empty(0)
    columns: dict[str, Any] = {name: [row[0][place] for row in found] for place, name in enumerate(keys)}
    for place, name in enumerate(("calls_before", "calls_after", "before", "after", "change"), 1):
        columns[name] = [row[place] for row in found]
    return Table({**columns, "accumulated": sums, "state": [row[6] for row in found]})


def execution(before: Analysis, after: Analysis) -> Table:
    """One step of each, event by event, in the order of the first; the n-th of a name is matched with the n-th there.

    Events are those of the GPU, or the outermost operators where one trace has no GPU events. What is new stands where
    it ran in the second.
    """
    gpu = _gpus(before, after)
    first, second = _sequence(before, gpu), _sequence(after, gpu)
    places = {key: place for place, (key, _, _) in enumerate(second)}
    rows: list[dict[str, Any]] = []
    reached = 0
    matched = {key for key, _, _ in first}
    for key, begin, length in first:
        place = places.get(key)
        if place is not None:
            rows += [_event(second[at], NEW) for at in range(reached, place) if second[at][0] not in matched]
            reached = max(reached, place + 1)
        row: dict[str, Any] = {"name": key[0], "begin_before": begin, "before": length, "state": GONE}
        row |= {"begin_after": None, "after": None, "change": None}
        if place is not None:
            _, begins, takes = second[place]
            row |= {"begin_after": begins, "after": takes, "change": takes - length, "state": BOTH}
        rows.append(row)
    rows += [_event(each, NEW) for each in second[reached:] if each[0] not in matched]
    names = ("name", "begin_before", "before", "begin_after", "after", "change", "state")
    return Table({name: [row[name] for row in rows] for name in names})


_Event = tuple[tuple[str, int], float, float]


def _event(event: _Event, state: str) -> dict[str, Any]:
    key, begin, length = event
    row = {"name": key[0], "begin_before": None, "before": None, "begin_after": begin, "after": length}
    return {**row, "change": None, "state": state}


def _sequence(analysis: Analysis, gpu: bool) -> list[_Event]:
    """Events of the first step that counts: name and how many there were before of that name, begin, duration."""
    trace, steps = analysis.trace, analysis.counted
    if not len(steps):
        return []
    one = Analysis(trace, steps.names[0]) if analysis.step is None else analysis
    if gpu:
        rows = trace.gpu.row if one.gpu_within is None else trace.gpu.row[one.gpu_within]
    else:
        outer = one.costs.is_operator & (one.costs.parent < 0)
        rows = trace.scopes.row[outer if one.scopes_within is None else outer & one.scopes_within]
    rows = rows[np.argsort(trace.begin[rows], kind="stable")]
    counts: dict[str, int] = {}
    found: list[_Event] = []
    start = int(steps.begin[0])
    for name, begin, length in zip(trace.names_of(rows), trace.begin[rows], trace.duration[rows], strict=True):
        counts[name] = number = counts.get(name, -1) + 1
        found.append(((name, number), float(begin - start) / SECOND, float(length) / SECOND))
    return found


def _gpus(before: Analysis, after: Analysis) -> bool:
    return len(before.trace.gpu) > 0 and len(after.trace.gpu) > 0


def _each(before: Analysis, after: Analysis, of: Any) -> list[tuple[Table, float]]:
    """A table of both, with the steps that it is of: all in the trace, or the one that was chosen."""
    return [(of(one), float(max(len(one.steps), 1)) if one.step is None else 1.0) for one in (before, after)]


def _rows(table: Table, steps: float, keys: Sequence[str], value: str) -> dict[tuple[Any, ...], tuple[float, float]]:
    found: dict[tuple[Any, ...], tuple[float, float]] = {}
    counts: dict[tuple[Any, ...], int] = {}
    for row in table.rows():
        key = tuple(row[name] for name in keys)
        counts[key] = number = counts.get(key, -1) + 1
        found[(*key, number)] = ((row["calls"] or 0) / steps, (row[value] or 0.0) / steps)
    return found
