"""Latency and throughput of the backends side by side, and against the batch size, as SVG, PNG or one HTML file.

Rows come in, an Altair chart goes out. Bars start at zero; every value is written beside its mark, by ``units``.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, ClassVar

from inferlens.errors import InferlensError, check_choice
from inferlens.record.record import Record
from inferlens.units import milliseconds
from inferlens.views import View, picture
from inferlens.views.picture import THEMES, Theme, colours_of, config, shapes_of
from inferlens.views.plain import plain
from inferlens.views.records import COLUMNS, headline
from inferlens.views.rows import Row, by, rows
from inferlens.views.table import Column
from inferlens.views.verdict import of_table

PANEL = 330
_STEP = 27
# The right panel of lines has an axis of its own; with it, both right panels stand in line.
_BETWEEN = 76
_BETWEEN_LINES = 12
_HEADROOM = 1.22
_SCALES = {"ms": 1e3}  # of what is kept in seconds
CHARTED = tuple(column for column in COLUMNS if column.chart)
# Characters of 12-pixel type across the names and two panels.
_CHARACTERS = 2 * PANEL // 6 + 45


class Chart(View):
    """Panels of latency and throughput, one block for each model and machine."""

    name: ClassVar[str] = "chart"
    summary: ClassVar[str] = "latency and throughput side by side, as SVG, PNG or HTML"
    printable: ClassVar[bool] = False

    def __init__(self, *, reference: str | None = None, format: str = "svg", theme: str = "auto") -> None:
        """
        Args:
            reference: words that name the row others are compared with; ``None`` is the usual one.
            format: ``svg``, ``png``, or ``html``, which is interactive.
            theme: ``auto``, ``light`` or ``dark``, as of :func:`inferlens.views.picture.drawn`.
        """
        super().__init__(reference=reference)
        picture.check(format)
        check_choice("theme", theme, ("auto", *THEMES))
        self.format = format
        self.theme = theme

    def render(self, records: Sequence[Record]) -> str | bytes:
        """See :class:`View`. Text for SVG and HTML, bytes for PNG."""
        picture.converter()
        shown = rows(records, self.reference)
        if not any(drawn(row) for row in shown):
            reason = next((f" {plain(row.reason)}" for row in shown if row.reason), "")
            what = f"There is nothing to draw: no case ran with right outputs.{reason}"
            raise InferlensError(what, hint="inferlens show")
        return picture.drawn(lambda theme: _chart(shown, theme), self.format, shown[0].model, self.theme)


def _chart(shown: Sequence[Row], theme: Theme) -> dict[str, Any]:
    """The Vega-Lite document."""
    import altair as alt

    names = list(dict.fromkeys(_colour_key(row, False) for row in shown if drawn(row)))
    blocks = [_block(table, names) for table in by(shown, "table") if any(drawn(row) for row in table)]
    chart = alt.vconcat(*blocks, spacing=44).resolve_scale(color="independent", shape="independent")
    return {**chart.to_dict(), "config": config(theme)}


def drawn(row: Row) -> bool:
    """Whether a row is in the panels; those that are not are named beneath the title."""
    return row.ranked and row.seconds_per_call is not None


def _block(table: Sequence[Row], families: Sequence[str]) -> Any:
    """One model on one machine: lines over the batch sizes if there are several, bars for each of them."""
    import altair as alt

    able = [row for row in table if drawn(row)]
    comparisons = by(able, "comparison")
    several = len(comparisons) > 1
    largest = sorted(able, key=lambda row: (-(row.batch or 0), row.seconds_per_call or 0.0))
    names = list(dict.fromkeys(_colour_key(row, True) for row in largest)) if several else families
    panels = [_lines(able, names)] if several else []
    panels += [_bars(each, names, several, f"batch {each[0].batch}" if several else "") for each in comparisons]
    title = alt.TitleParams(
        plain(table[0].model), subtitle=_subtitle(table), fontSize=18, anchor="start", offset=18, frame="bounds"
    )
    # Each panel names its colours itself; sharing them would make one legend of those with and without.
    return alt.vconcat(*panels, spacing=30, title=title).resolve_scale(color="independent", shape="independent")


def _subtitle(table: Sequence[Row]) -> list[str]:
    """Device, inputs and precision; what was fastest; what the whiskers are; what is not drawn."""
    able = [row for row in table if drawn(row)]
    precisions = {row.precision for row in able}
    only = f" · {precisions.pop()}" if len(precisions) == 1 else ""
    paragraphs = [headline(table).partition(" · ")[2] + only, *of_table(table, named=False)]
    if any(row.p95 is not None for row in able):
        paragraphs.append("Whiskers: 5th to 95th percentile of the latency samples.")
    missing = dict.fromkeys(f"{row.name} ({_why(row)})" for row in table if row not in able)
    paragraphs += [f"Not drawn: {', '.join(missing)}."] if missing else []
    return [line for text in paragraphs for line in textwrap.wrap(plain(text), _CHARACTERS)]


def _why(row: Row) -> str:
    if not row.ok:
        return row.status
    return "wrong outputs" if row.agrees is False else "not measured like the others"


def _colour_key(row: Row, by_series: bool) -> str:
    """What decides a row's colour: the series, or the backend for all of its variants."""
    return plain(row.name if by_series else row.backend.partition(":")[0])


def _measured(values: Sequence[dict[str, Any]]) -> list[Column]:
    return [column for column in CHARTED if any(each[column.key] for each in values)]


def _bars(rows: Sequence[Row], series: Sequence[str], by_series: bool, title: str) -> Any:
    """What was measured in one comparison side by side, fastest on top; whiskers at the latency."""
    import altair as alt

    ordered = sorted(rows, key=lambda row: row.seconds_per_call or 0.0)
    names = labels(ordered)
    values = [{**_values(row, by_series), "name": name} for row, name in zip(ordered, names, strict=True)]
    colour_scale = alt.Scale(domain=list(series), range=colours_of(len(series)))
    colour = alt.Color("colour:N", scale=colour_scale, legend=None)
    data, panels = alt.Data(values=values), list[Any]()
    for column in _measured(values):
        first = not panels
        chart = alt.Chart(data, **({"title": title} if first else {}))
        y = alt.Y("name:N", sort=names, title=None, **({} if first else {"axis": None}))
        top = max(each[f"{column.key}_end"] for each in values) or 1.0
        scale = alt.Scale(domain=[0, top * _HEADROOM], nice=False)
        x = alt.X(f"{column.key}:Q", title=column.chart, scale=scale, axis=alt.Axis(tickCount=5))
        bar = chart.mark_bar(height=alt.RelativeBandSize(0.66), cornerRadiusEnd=2)
        text = chart.mark_text(align="left", baseline="middle", dx=6)
        end = alt.X(f"{column.key}_end:Q", scale=scale)
        layers = [
            bar.encode(x=x, y=y, color=colour, tooltip=_tooltip()),
            text.encode(x=end, y=y, text=f"{column.key}_text:N"),
        ]
        if column.key == "median":
            bare = alt.Chart(data)
            ticks = [bare.mark_tick(size=9, thickness=1.5).encode(x=f"{end}:Q", y=y) for end in ("low", "high")]
            layers[1:1] = [bare.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q", y=y), *ticks]
        panels.append(alt.layer(*layers).properties(width=PANEL, height=alt.Step(_STEP)))
    return alt.hconcat(*panels, spacing=_BETWEEN)


def _lines(rows: Sequence[Row], names: Sequence[str]) -> Any:
    """What was measured against the batch size, one line for each series."""
    import altair as alt

    values = [_values(row, True) for row in rows if row.batch]
    batches = sorted({each["batch"] for each in values})
    axis = alt.Axis(values=batches, format="d", labelOverlap=True)
    x = alt.X("batch:Q", title="batch size (log scale)", scale=alt.Scale(type="log", base=2, nice=False), axis=axis)
    legend = alt.Legend(title=None, orient="top", columns=max(1, 110 // (max(map(len, names)) + 6)), offset=16)
    domain, count = list(names), len(names)
    colour = alt.Color("colour:N", scale=alt.Scale(domain=domain, range=colours_of(count)), legend=legend)
    shape = alt.Shape("colour:N", scale=alt.Scale(domain=domain, range=shapes_of(count)), legend=legend)
    panels: list[Any] = []
    for column in _measured(values):
        known = [each[column.key] for each in values if each[column.key]]
        # A log scale keeps slow and fast apart; lines whose speed-up is the same at every batch are parallel.
        low, high = min(known) / 1.2, max(known) * 1.2
        axis = alt.Axis(values=_ticks(low, high), format=",~r", minExtent=44)
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        y = alt.Y(f"{column.key}:Q", title=f"{column.chart}, log scale", scale=scale, axis=axis)
        base = alt.Chart(alt.Data(values=values)).transform_filter(f"datum.{column.key} > 0")
        line = base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
        point = base.mark_point(filled=True, size=60, opacity=1)
        point = point.encode(x=x, y=y, color=colour, shape=shape, tooltip=_tooltip())
        panels.append(alt.layer(line, point).properties(width=PANEL, height=260))
    return alt.hconcat(*panels, spacing=_BETWEEN_LINES)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 in every decade between the two."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for decade in decades for step in (1, 2, 5) if low <= (tick := step * 10.0**decade) <= high]


def _tooltip() -> list[Any]:
    import altair as alt

    shown = {"case": "case", "spread": "p5 to p95 (ms)", **{f"{each.key}_text": each.chart for each in CHARTED}}
    return [alt.Tooltip(f"{name}:N", title=title) for name, title in shown.items()]


def labels(rows: Sequence[Row]) -> list[str]:
    """Names of the rows of one comparison with their roles."""
    fastest = "tied" if sum(row.fastest for row in rows) > 1 else "fastest"
    roles = [["reference"] * row.is_reference + [fastest] * row.fastest for row in rows]
    return [plain(row.name) + f" ({', '.join(mine)})" * bool(mine) for row, mine in zip(rows, roles, strict=True)]


def _values(row: Row, by_series: bool) -> dict[str, Any]:
    """What the panels draw of a row: numbers in the unit of their column, and texts."""
    values: dict[str, Any] = {
        "case": plain(row.name),
        "colour": _colour_key(row, by_series),
        "batch": row.batch,
        "low": None if row.p5 is None else 1e3 * row.p5,
        "high": None if row.p95 is None else 1e3 * row.p95,
        "spread": f"{milliseconds(row.p5)} to {milliseconds(row.p95)}",
    }
    for column in CHARTED:
        value = (getattr(row, column.key) or 0.0) * _SCALES.get(column.unit, 1.0)
        values[column.key], values[f"{column.key}_text"] = value, column.text(row) if value else "not measured"
        values[f"{column.key}_end"] = max(value, values["high"] or 0.0) if column.key == "median" else value
    return values
