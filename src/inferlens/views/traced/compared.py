"""Two traces compared, as tables: what changed most first, and what all changes so far come to."""

from __future__ import annotations

from inferlens.errors import InferlensError
from inferlens.trace import diff
from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import Columns
from inferlens.units import ABSENT, microseconds, milliseconds, percent, ratio, significant
from inferlens.views.table import Column, text
from inferlens.views.traced.tables import Selection, TraceTable, shapes, short

VIEWS = ("overview", "operators", "kernels", "modules", "timeline")


def _signed(value: float | None) -> str:
    """Milliseconds that were gained or lost, with their sign."""
    if value is None:
        return ABSENT
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{milliseconds(abs(value))}"


def _calls(value: float | None) -> str:
    """Calls in a step, of which there may be a fraction."""
    return ABSENT if not value else significant(value) if value % 1 else f"{value:,.0f}"


_TIMES = (
    Column("before", "before", "ms", milliseconds, 1),
    Column("after", "after", "ms", milliseconds, 2),
    Column("change", "change", "ms", _signed, 0),
)
_ROWS = (
    *_TIMES,
    Column("accumulated", "so far", "ms", _signed, 3),
    Column("calls_before", "calls before", "", _calls, 5),
    Column("calls_after", "calls after", "", _calls, 6),
    Column("state", "", "", text, 4, numeric=False),
)
_EVENTS = (
    Column("begin_before", "from before", "ms", milliseconds, 4),
    Column("before", "before", "µs", microseconds, 1),
    Column("begin_after", "from after", "ms", milliseconds, 5),
    Column("after", "after", "µs", microseconds, 0),
    Column("state", "", "", text, 2, numeric=False),
)
_SHAPES = Column("shapes", "shapes", "", shapes, 4, numeric=False, most=36)


def compared_tables(before: Analysis, after: Analysis, view: str, selection: Selection) -> list[TraceTable]:
    """The tables of a comparison.

    Raises:
        InferlensError: for a view that compares nothing.
    """
    if view not in VIEWS:
        raise InferlensError(f"The view '{view}' does not compare traces.", expected=", ".join(VIEWS))
    if view == "overview":
        return _overview(before, after)
    if view == "timeline":
        data = diff.execution(before, after)
        return [TraceTable("execution", "One step of each, side by side", "event", _EVENTS, data, top=selection.top)]
    data = diff.rows_compared(view, before, after)
    columns = (_SHAPES, *_ROWS) if view == "operators" else _ROWS
    label = short if view == "kernels" else "path" if view == "modules" else "name"
    title = f"{view.capitalize()}: what changed most first, per step"
    return [TraceTable(view, title, view[:-1], columns, data, label, sentences=[_sum(data)], top=selection.top)]


def _overview(before: Analysis, after: Analysis) -> list[TraceTable]:
    first, second = before.overview, after.overview
    parts = diff.parts_compared({**first.parts, "step": first.step_time}, {**second.parts, "step": second.step_time})
    said = []
    if first.step_time and second.step_time:
        times = f"{milliseconds(first.step_time)} ms before and {milliseconds(second.step_time)} ms after"
        said.append(f"A step took {times}: {ratio(first.step_time / second.step_time)} as fast.")
    for name, one in (("before", first), ("after", second)):
        said += [f"GPU {gpu.device} {name}: kernels ran in {percent(gpu.utilization)} of the time." for gpu in one.gpus]
    found = [TraceTable("parts", "What a step's time goes to", "part", _TIMES, parts, sentences=said)]
    if first.gpus or second.gpus:
        idle = diff.parts_compared(first.idle, second.idle)
        found.append(TraceTable("idle", "Why the GPU is idle", "cause", _TIMES, idle))
    return found


def _sum(table: Columns) -> str:
    """What was gained and lost."""
    changes, states = table.columns["change"], list(table.columns["state"])
    gained, lost = (sum(each for each in changes if each * sign > 0) for sign in (-1, 1))
    whole = f"{_signed(gained + lost)} ms a step: {milliseconds(-gained)} ms gained, {milliseconds(lost)} ms lost"
    return f"In all {whole}; {states.count(diff.NEW):,} rows are new, {states.count(diff.GONE):,} are gone."
