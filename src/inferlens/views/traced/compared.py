"""Two traces compared: what changed most first. The second is the candidate, and changes are of it against the base."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferlens.errors import InferlensError
from inferlens.trace import several
from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import Columns
from inferlens.units import ABSENT, duration, microseconds, milliseconds, ratio, significant
from inferlens.views.table import Column, text
from inferlens.views.traced.answers import Row, short
from inferlens.views.traced.trace_columns import shapes
from inferlens.views.traced.trace_views import LEAST, Selection, TraceTable, TraceView

_LEAST_CHANGE = 0.05  # of what a row takes: less has no colour
COMPARED = ("overview", "operators", "kernels", "modules", "timeline")


def _signed(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{milliseconds(abs(value))}"


def _calls(value: float | None) -> str:
    return ABSENT if not value else significant(value) if value % 1 else f"{value:,.0f}"


_TIMES = (
    Column("before", "base", "ms", milliseconds, 1),
    Column("after", "candidate", "ms", milliseconds, 2),
    Column("change", "change", "ms", _signed, 0),
)
_ROWS = (
    *_TIMES,
    Column("accumulated", "so far", "ms", _signed, 3, wide=True),
    Column("calls_before", "calls, base", "", _calls, 5, wide=True),
    Column("calls_after", "calls, candidate", "", _calls, 6, wide=True),
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
    """One view of a base and a candidate.

    Raises:
        InferlensError: if the view compares nothing.
    """
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
    said = f"{view.capitalize()} take {_sum(data)}"
    return TraceView(
        f"{view}, what changed most first", [said], [table], ("In the order of a step?", "--view timeline")
    )


def _overviews(before: Analysis, after: Analysis) -> TraceView:
    first, second = before.overview, after.overview
    parts = several.parts_compared({**first.parts, "step": first.step_time}, {**second.parts, "step": second.step_time})
    said = []
    if first.step_time and second.step_time:
        faster = ratio(first.step_time / second.step_time)
        said = [
            f"A step takes {duration(second.step_time)}, {duration(first.step_time)} in the base: {faster} as fast."
        ]
    found = [TraceTable("parts", "", "a step's time", _TIMES, parts, brief=_changed, style=_style)]
    if first.gpus or second.gpus:
        idle = several.parts_compared(first.idle, second.idle)
        found.append(TraceTable("idle", "", "why the GPU is idle", _TIMES, idle, brief=_changed, style=_style))
    return TraceView("", said, found, ("Which kernels changed?", "--view kernels"))


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
    states = list(data.columns["state"])
    both = states.count(several.BOTH)
    said = f"{both:,} of {len(data):,} events are in both; {_new_and_gone(states)}."
    table = TraceTable(
        "execution", "", "event", _EVENTS, data, short(data, selection.top), top=selection.top, style=_style
    )
    return TraceView("one step of each, side by side", [said], [table], ("Added up?", "--view kernels"))


def _sum(data: Columns) -> str:
    first, second = (sum(data.columns[key]) for key in ("before", "after"))
    times = f"{milliseconds(second)} ms of a step, {milliseconds(first)} in the base ({_signed(second - first)})"
    return f"{times}; {_new_and_gone(list(data.columns['state']))}."


def _new_and_gone(states: Sequence[str]) -> str:
    return f"{states.count(several.NEW):,} are new, {states.count(several.GONE):,} are gone"
