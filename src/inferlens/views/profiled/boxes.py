"""A box plot of the layers' times over the runs, one panel for each case, as SVG, PNG or one HTML file.

A box is the middle half of the runs with a line at the median; the whiskers reach from the 5th to the 95th percentile,
or over all runs where those are too few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferlens.analysis.profile.layers import LayerRow, LayerTable, layer_table
from inferlens.errors import InferlensError
from inferlens.stats.quantiles import LEAST_FOR_P95
from inferlens.units import milliseconds
from inferlens.views import picture
from inferlens.views.picture import Theme, colours_of, config
from inferlens.views.plain import plain
from inferlens.views.profiled.cases import Profiled
from inferlens.views.profiled.layers import check_sort
from inferlens.views.profiled.sentences import by_time, layer_name, name_of
from inferlens.views.profiled.tables import TOP

_WIDTH = 560
_STEP = 20
_LONGEST_NAME = 48


def render(cases: Sequence[Profiled], format: str, *, sort: str = "time", top: int | None = None) -> str | bytes:
    """The layers of each case as boxes: text for SVG and HTML, bytes for PNG.

    Args:
        cases: profiles, named.
        format: ``svg``, ``png`` or ``html``.
        sort: ``time``, what takes most on top, or ``order``, that of execution.
        top: how many layers, those that take most; ``None`` is :data:`.tables.TOP`.

    Raises:
        InferlensError: for another format or order, if a library is missing, or if no layer has a time.
    """
    picture.check(format, "--plot layers.svg")
    check_sort(sort)
    picture.converter()
    panels = [panel for case in cases if (panel := _panel(case, sort, TOP if top is None else top))]
    if not panels:
        raise InferlensError("There is nothing to draw: no layer has a time.", hint="inferlens layers without --plot")
    return picture.drawn(lambda theme: _chart(panels, theme), format, panels[0]["title"])


def not_drawn(cases: Sequence[Profiled]) -> list[str]:
    """A sentence for each case that has no box, and why."""
    found = []
    for case in cases:
        table = layer_table(case.profile)
        why = table if isinstance(table, str) else "" if any(table.runs.was_timed) else "No layer has a time."
        found += [plain(f"Not drawn: {case.name}. {why}")] if why else []
    return found


def _panel(case: Profiled, sort: str, top: int) -> dict[str, Any] | None:
    """Title and values of one case."""
    table = layer_table(case.profile)
    if isinstance(table, str):
        return None
    rows = [row for row in by_time(table.rows)[:top] if row.times]
    rows = rows if sort == "time" else sorted(rows, key=lambda row: row.place)
    if not rows:
        return None
    runs = table.reconciliation.runs
    whiskers = "5th to 95th percentile" if runs >= LEAST_FOR_P95 else "all runs"
    about = f"{case.headline} · {len(rows)} of {len(table.rows)} layers · {runs} runs"
    return {
        "title": case.name,
        "subtitle": [_short(about, 110), f"Boxes: the middle half of the runs, and the median. Whiskers: {whiskers}."],
        "values": [_box(row, table) for row in rows],
    }


def _box(row: LayerRow, table: LayerTable) -> dict[str, Any]:
    """One box, in milliseconds."""
    seconds = table.runs.layers[row.place - 1]
    ends = (0.05, 0.95) if table.runs.count >= LEAST_FOR_P95 else (0.0, 1.0)
    low, lower, middle, upper, high = (
        float(value) for value in np.quantile(seconds, [ends[0], 0.25, 0.5, 0.75, ends[1]])
    )
    text = ("low", low), ("lower", lower), ("middle", middle), ("upper", upper), ("high", high)
    return {
        **{name: value * 1e3 for name, value in text},
        # A number tells apart what the shortened names may not.
        "name": f"{_short(name_of(layer_name(row)), _LONGEST_NAME)}  #{row.place}",
        "kind": _short(plain(row.kind), _LONGEST_NAME),
        "text": f"{milliseconds(middle)} ({milliseconds(lower)} to {milliseconds(upper)})",
    }


def _chart(panels: Sequence[dict[str, Any]], theme: Theme) -> dict[str, Any]:
    """The Vega-Lite document."""
    import altair as alt

    blocks = [_block(panel, colour) for panel, colour in zip(panels, colours_of(len(panels)), strict=True)]
    document: dict[str, Any] = alt.vconcat(*blocks, spacing=40).to_dict()
    document["config"] = config(theme)
    return document


def _block(panel: dict[str, Any], colour: str) -> Any:
    """The boxes of one case."""
    import altair as alt

    values = panel["values"]
    data = alt.Data(values=values)
    y = alt.Y("name:N", sort=[each["name"] for each in values], title=None)
    scale = alt.Scale(domain=[0, max(each["high"] for each in values) * 1.05 or 1.0], nice=False)
    tooltip = [alt.Tooltip(f"{name}:N", title=name) for name in ("name", "kind")]
    tooltip.append(alt.Tooltip("text:N", title="median (middle half), ms"))
    whisker = alt.Chart(data).mark_rule(strokeWidth=1.2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y)
    box = (
        alt.Chart(data)
        .mark_bar(height=alt.RelativeBandSize(0.6), color=colour)
        .encode(x=alt.X("lower:Q", title="time in each run (ms)", scale=scale), x2="upper:Q", y=y, tooltip=tooltip)
    )
    median = (
        alt.Chart(data)
        .mark_tick(size=_STEP * 0.6, thickness=2)
        .encode(x=alt.X("middle:Q", scale=scale), y=y, tooltip=tooltip)
    )
    title = alt.TitleParams(panel["title"], subtitle=panel["subtitle"], fontSize=16, anchor="start", frame="bounds")
    layered = alt.layer(whisker, box, median)
    return layered.properties(width=_WIDTH, height=alt.Step(_STEP), title=title)


def _short(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[: half - 1]}…{text[-half:]}"
