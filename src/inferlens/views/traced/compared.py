"""Two traces compared, as sheets: what changed most first, and what all changes so far come to."""

from __future__ import annotations

from inferlens.errors import InferlensError
from inferlens.trace import diff
from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import Columns
from inferlens.units import ABSENT, milliseconds, percent, ratio, significant
from inferlens.views.traced.sheet import Column, Sheet, microseconds, shapes, text, time
from inferlens.views.traced.sheets import Choice, short

VIEWS = ("overview", "operators", "kernels", "modules", "timeline")


def signed(value: float | None) -> str:
    """Milliseconds that were gained or lost, with their sign."""
    if value is None:
        return ABSENT
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{milliseconds(abs(value))}"


def calls(value: float | None) -> str:
    """Calls in a step, of which there may be a fraction."""
    return ABSENT if not value else significant(value) if value % 1 else f"{value:,.0f}"


_TIMES = (
    Column("before", "before", "ms", time, 1),
    Column("after", "after", "ms", time, 2),
    Column("change", "change", "ms", signed, 0),
)
_ROWS = (
    *_TIMES,
    Column("accumulated", "so far", "ms", signed, 3),
    Column("calls_before", "calls before", "", calls, 5),
    Column("calls_after", "calls after", "", calls, 6),
    Column("state", "", "", text, 4),
)
_EVENTS = (
    Column("begin_before", "from before", "ms", time, 4),
    Column("before", "before", "µs", microseconds, 1),
    Column("begin_after", "from after", "ms", time, 5),
    Column("after", "after", "µs", microseconds, 0),
    Column("state", "", "", text, 2),
)


def sheets_of(before: Analysis, after: Analysis, view: str, choice: Choice) -> list[Sheet]:
    """The sheets of a comparison.

    Raises:
        InferlensError: for a view that compares nothing.
    """
    if view not in VIEWS:
        raise InferlensError(f"The view '{view}' does not compare traces.", expected=", ".join(VIEWS))
    if view == "overview":
        return _overview(before, after)
    if view == "timeline":
        table = diff.execution(before, after)
        title = "One step of each, side by side"
        return [Sheet("execution", title, ("name", "event"), _EVENTS, table, top=choice.top)]
    makers = {
        "operators": ("name", (Column("shapes", "shapes", "", shapes, 4, 36),)),
        "kernels": ("name", ()),
        "modules": ("path", ()),
    }
    first, more = makers[view]
    table = diff.rows_compared(view, before, after)
    sheet = Sheet(
        view,
        f"{view.capitalize()}: what changed most first, per step",
        (first, view.removesuffix("s")),
        (*more, *_ROWS),
        table,
        sentences=_sentences(table),
        shown=short if view == "kernels" else None,
        top=choice.top,
    )
    return [sheet]


def _overview(before: Analysis, after: Analysis) -> list[Sheet]:
    first, second = before.overview, after.overview
    parts = diff.parts_compared({**first.parts, "step": first.step_time}, {**second.parts, "step": second.step_time})
    idle = diff.parts_compared(first.idle, second.idle)
    said = []
    if first.step_time and second.step_time:
        told = (milliseconds(first.step_time), milliseconds(second.step_time))
        speed = ratio(first.step_time / second.step_time)
        said.append(f"A step took {told[0]} ms before and {told[1]} ms after: {speed} as fast.")
    for name, one in (("before", first), ("after", second)):
        for gpu in one.gpus:
            said.append(f"GPU {gpu.device} {name}: kernels ran in {percent(gpu.utilization)} of the time.")
    sheets = [Sheet("parts", "What a step's time goes to", ("name", "part"), _TIMES, parts, sentences=said)]
    if first.gpus or second.gpus:
        sheets.insert(1, Sheet("idle", "Why the GPU is idle", ("name", "cause"), _TIMES, idle))
    return sheets


def _sentences(table: Columns) -> list[str]:
    """What was gained and lost."""
    rows = list(table.rows())
    gained = sum(row["change"] for row in rows if row["change"] < 0)
    lost = sum(row["change"] for row in rows if row["change"] > 0)
    new = sum(row["state"] == diff.NEW for row in rows)
    gone = sum(row["state"] == diff.GONE for row in rows)
    whole = f"{signed(gained + lost)} ms a step: {milliseconds(-gained)} ms gained, {milliseconds(lost)} ms lost"
    return [f"In all {whole}; {new:,} rows are new, {gone:,} are gone."]
