"""Two traces compared: what changed most first. The second is the candidate, and changes are of it against the base."""

from __future__ import annotations

from typing import Any

from inferlens.errors import InferlensError
from inferlens.trace import several
from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import Columns
from inferlens.trace.tables import NO_MODULE, module_tree
from inferlens.trace.trace import Category
from inferlens.units import ABSENT, duration, microseconds, milliseconds, plural
from inferlens.views.table import Column, text
from inferlens.views.traced.trace_columns import calls, shapes
from inferlens.views.traced.trace_views import LEAST, Row, Selection, TraceTable, TraceView, short

_LEAST_CHANGE = 0.05  # of what a row takes: less has no colour
COMPARED = ("overview", "operators", "kernels", "modules", "timeline")
_NONE = {"kernels": "No kernel", "operators": "No operator of the same shapes", "modules": "No module"}
_SPEED = "Tracing slows the host: inferlens bench measures the speed."
_ELSEWHERE = "inferlens modules compares profiles by module"  # of engines too, whose traces have no modules
_BY_MODULE = ("By module?", "--view modules")


def _signed(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{milliseconds(abs(value))}"


_TIMES = (
    Column("before", "base", "ms", milliseconds, 1),
    Column("after", "candidate", "ms", milliseconds, 2),
    Column("change", "change", "ms", _signed, 0),
)
_ROWS = (
    *_TIMES,
    Column("accumulated", "so far", "ms", _signed, 3, wide=True),
    Column("calls_before", "calls, base", "", calls, 5, wide=True),
    Column("calls_after", "calls, candidate", "", calls, 6, wide=True),
    Column("state", "", "", text, 4, numeric=False),
)
_EVENTS = (
    Column("begin_before", "from, base", "ms", milliseconds, 4, wide=True),
    Column("before", "base", "µs", microseconds, 1),
    Column("begin_after", "from, candidate", "ms", milliseconds, 5, wide=True),
    Column("after", "candidate", "µs", microseconds, 0),
    Column("state", "", "", text, 2, numeric=False),
)
_SHAPES = Column("shapes", "shapes", "", shapes, 4, numeric=False, most=36)


def compared(before: Analysis, after: Analysis, view: str, selection: Selection) -> TraceView:
    """One view of a base and a candidate; InferlensError if the view compares nothing."""
    if view not in COMPARED:
        raise InferlensError(f"The view '{view}' does not compare traces.", expected=", ".join(COMPARED))
    if view == "overview":
        return _overviews(before, after)
    if view == "timeline":
        return _events(before, after, selection)
    data = several.rows_compared(view, before, after)
    columns = (*_ROWS, _SHAPES) if view == "operators" else _ROWS
    label = short(data, selection.top) if view == "kernels" else "path" if view == "modules" else "name"
    table = TraceTable(view, "", view[:-1], columns, data, label, top=selection.top, style=_style)
    where = "GPU" if len(before.trace.gpu) and len(after.trace.gpu) else "host"
    what = "Kernels, copies and fills" if view == "kernels" else f"{view.capitalize()} on the {where}"
    said, look = [f"{what}: {_sum(data)}"], ("In the order of a step?", "--view timeline")
    if not len(data):
        said, look = [f"Neither has {view}."], ("Which operators changed?", "--view operators")
    elif _shared(view, before, after, data):
        said = [f"{said[0]}; {_states(data)}."]
    elif view != "modules" and _shared("modules", before, after):
        said, look = [f"{said[0]}.", f"{_NONE[view]} is in both."], _BY_MODULE
    else:
        said = [f"{said[0]}.", f"{_NONE[view]} is in both: {_ELSEWHERE}."]
    return TraceView(f"{view}, what changed most first", said, [table], look)


def _shared(view: str, before: Analysis, after: Analysis, data: Columns | None = None) -> bool:
    """Whether some kernel, module or operator of the same shapes is in both; ``data`` are the rows of operators."""
    if view == "operators":
        return data is not None and several.BOTH in data.columns["state"]
    first, second = (
        set(module_tree(each).columns["path"]) - {NO_MODULE}
        if view == "modules"
        else set(each.trace.names_of(each.trace.rows(Category.KERNEL)))
        for each in (before, after)
    )
    return not first.isdisjoint(second)


def _overviews(before: Analysis, after: Analysis) -> TraceView:
    first, second = before.overview, after.overview
    parts = several.parts_compared({**first.parts, "step": first.step_time}, {**second.parts, "step": second.step_time})
    said = []
    if first.step_time and second.step_time:
        took = f"Traced step: {_times(first.step_time, second.step_time)}."
        kernels = _times(first.parts["kernel"], second.parts["kernel"])
        said = [f"{took} Kernels: {kernels}." if first.gpus or second.gpus else took, _SPEED]
    found = [TraceTable("parts", "", "a step's time", _TIMES, parts, brief=_changed, style=_style)]
    if first.gpus or second.gpus:
        idle = several.parts_compared(first.idle, second.idle)
        found.append(TraceTable("idle", "", "why the GPU is idle", _TIMES, idle, brief=_changed, style=_style))
    return TraceView("", said, found, _look(before, after))


def _look(before: Analysis, after: Analysis) -> tuple[str, str]:
    """Where to look next: at what both have."""
    if not (before.overview.gpus and after.overview.gpus):
        return "Which operators changed?", "--view operators"
    if not _shared("kernels", before, after) and _shared("modules", before, after):
        return _BY_MODULE
    return "Which kernels changed?", "--view kernels"


def _times(before: float, after: float) -> str:
    """``17.1 -> 2.40 ms``."""
    first, second = duration(before), duration(after)
    number, _, unit = first.partition(" ")
    return f"{number if unit == second.partition(' ')[2] else first} -> {second}"


def _style(row: Row) -> str:
    """Green where the candidate takes less, red where it takes more, by a twentieth at least."""
    change = row["change"] or 0.0
    if abs(change) < _LEAST_CHANGE * max(row["before"] or 0.0, row["after"] or 0.0):
        return ""
    return "green" if change < 0 else "red" if change > 0 else ""


def _changed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What takes any time in one of them, what changed most first; a whole step last."""
    least = LEAST * max(row[key] for row in rows for key in ("before", "after"))
    there = [row for row in rows if max(row["before"], row["after"]) > least]
    return sorted(there, key=lambda row: (row["name"] == "step", -abs(row["change"])))


def _events(before: Analysis, after: Analysis, selection: Selection) -> TraceView:
    data = several.execution(before, after)
    said = f"{_states(data)}, of {plural(len(data), 'event')}."
    table = TraceTable(
        "execution", "", "event", _EVENTS, data, short(data, selection.top), top=selection.top, style=_style
    )
    return TraceView("one step of each, side by side", [said], [table], ("Added up?", "--view kernels"))


def _sum(data: Columns) -> str:
    first, second = (sum(data.columns[key]) for key in ("before", "after"))
    return f"{_times(first, second)} a step"


def _states(data: Columns) -> str:
    states = list(data.columns["state"])
    both, new, gone = (states.count(each) for each in (several.BOTH, several.NEW, several.GONE))
    return f"{both:,} in both, {new:,} new, {gone:,} gone"
