"""Latency and throughput of the backends side by side, and against the batch size, as SVG, PNG or one HTML file.

Rows come in, an Altair chart goes out. Bars start at zero; every value is written beside its mark, by ``units``.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, ClassVar

from inferlens.errors import InferlensError
from inferlens.record.record import Record
from inferlens.units import ABSENT, milliseconds, rate
from inferlens.views import picture
from inferlens.views.base import View
from inferlens.views.columns import headline
from inferlens.views.picture import THEMES, Theme, colours_of, config, shapes_of
from inferlens.views.plain import plain
from inferlens.views.row import Row
from inferlens.views.rows import rows
from inferlens.views.verdict import by, of_table

# Names of a legend, and colour and shape of each.
Palette = tuple[list[str], list[str], list[str]]

PANEL = 330
_STEP = 27
# The right panel of lines has an axis of its own; with it, both right panels stand in line.
_BETWEEN = 76
_BETWEEN_LINES = 12
_HEADROOM = 1.22
MOST_LINES = 10  # in a panel; more of several precisions are drawn apart
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
            reference: words that name the row others are compared with; ``None`` is plain PyTorch.
            format: ``svg``, ``png``, or ``html``, which is interactive.
            theme: ``auto`` is light, and in HTML whatever the reader's system is set to.

        Raises:
            InferlensError: for another format or theme.
        """
        super().__init__(reference=reference)
        picture.check(format)
        if theme not in ("auto", *THEMES):
            raise InferlensError(f"A chart has no theme '{theme}'.", expected=f"auto, {', '.join(THEMES)}")
        self.format = format
        self.theme = theme

    def render(self, records: Sequence[Record]) -> str | bytes:
        """See :class:`View`. Text for SVG and HTML, bytes for PNG."""
        picture.converter()
        shown = rows(records, self.reference)
        if not any(drawn(row) for row in shown):
            reasons = list(dict.fromkeys(plain(row.reason) for row in shown if row.reason))
            why = f" {reasons[0]}" if reasons else ""
            raise InferlensError(
                f"There is nothing to draw: no case ran with right outputs.{why}", hint="inferlens show"
            )
        return picture.drawn(lambda theme: self._chart(shown, theme), self.format, shown[0].model, self.theme)

    def _chart(self, shown: Sequence[Row], theme: Theme) -> dict[str, Any]:
        """The Vega-Lite document."""
        import altair as alt

        families = colours([row for row in shown if drawn(row)], by_series=False)
        blocks = [_block(table, families) for table in by(shown, "table") if any(drawn(row) for row in table)]
        chart = alt.vconcat(*blocks, spacing=44).resolve_scale(color="independent", shape="independent")
        document: dict[str, Any] = chart.to_dict()
        document["config"] = config(theme)
        return document


def drawn(row: Row) -> bool:
    """Whether a row is in the panels; those that are not are named beneath the title."""
    return row.ranked and row.pace is not None


def _block(table: Sequence[Row], families: Palette) -> Any:
    """One model on one machine: lines over the batch sizes if there are several, bars for each of them."""
    import altair as alt

    able = [row for row in table if drawn(row)]
    batches = list(dict.fromkeys(row.comparison for row in able))
    several = len(batches) > 1
    largest = sorted(able, key=lambda row: (-(row.batch or 0), row.pace or 0.0))
    palette, panels = _lines(able, largest) if several else (families, [])
    for comparison in batches:
        rows_of = [row for row in able if row.comparison == comparison]
        title = f"batch {rows_of[0].batch}" if several else ""
        panels.append(bars(rows_of, palette, several, title))
    title = alt.TitleParams(
        plain(table[0].model), subtitle=_subtitle(table), fontSize=18, anchor="start", offset=18, frame="bounds"
    )
    # Each panel names its colours itself; sharing them would make one legend of those with and without.
    return alt.vconcat(*panels, spacing=30, title=title).resolve_scale(color="independent", shape="independent")


def _lines(able: Sequence[Row], largest: Sequence[Row]) -> tuple[Palette, list[Any]]:
    """Panels of lines, those of each precision apart where there are many; and the colours of all that is drawn."""
    palette = colours(largest, by_series=True)
    precisions = list(dict.fromkeys(row.precision for row in largest))
    if len(palette[0]) <= MOST_LINES or len(precisions) == 1:
        return palette, [lines(able, palette)]
    palette = colours_of_ways(largest)
    return palette, [lines([row for row in able if row.precision == each], palette, each) for each in precisions]


def _subtitle(table: Sequence[Row]) -> list[str]:
    """Device, inputs and precision; what was fastest; what the whiskers are; what is not drawn."""
    about = headline(table).partition(" · ")[2]
    precisions = list(dict.fromkeys(row.precision for row in table if drawn(row)))
    only = f" · {precisions[0]}" if len(precisions) == 1 else ""
    paragraphs = [
        about + only,
        *of_table(table, named=False),
    ]
    if any(row.p95 is not None for row in table if drawn(row)):
        paragraphs.append("Whiskers: 5th to 95th percentile of the latency samples.")
    missing = dict.fromkeys(f"{plain(row.name)} ({_why(row)})" for row in table if not drawn(row))
    paragraphs += [f"Not drawn: {', '.join(missing)}."] if missing else []
    return [line for text in paragraphs for line in textwrap.wrap(plain(text), _CHARACTERS)]


def _why(row: Row) -> str:
    if not row.ok:
        return row.status
    return "wrong outputs" if row.agrees is False else "not measured like the others"


def colours(rows: Sequence[Row], by_series: bool) -> Palette:
    """Names, colours and shapes of the legend: each series its own, or one for all of a backend's variants."""
    names = list(dict.fromkeys(colour_key(row, by_series) for row in rows))
    return names, colours_of(len(names)), shapes_of(len(names))


def colours_of_ways(rows: Sequence[Row]) -> Palette:
    """As :func:`colours` of series, but what differs in precision alone looks the same."""
    ways = list(dict.fromkeys(map(_way, rows)))
    names = {colour_key(row, True): ways.index(_way(row)) for row in rows}
    order = sorted(names, key=lambda name: names[name])
    colours, shapes = colours_of(len(ways)), shapes_of(len(ways))
    return order, [colours[names[name]] for name in order], [shapes[names[name]] for name in order]


def _way(row: Row) -> str:
    """A series' name without its precision, and what it was computed in instead."""
    return row.name.replace(f" {row.precision}", "", 1).removesuffix(" (TF32)")


def colour_key(row: Row, by_series: bool) -> str:
    """What decides a row's colour."""
    return plain(row.name if by_series else row.backend.partition(":")[0])


def bars(rows: Sequence[Row], palette: Palette, by_series: bool, title: str) -> Any:
    """Median latency and items per second of one comparison side by side, as measured, fastest on top."""
    import altair as alt

    ordered = sorted(rows, key=lambda row: row.pace or 0.0)
    names = labels(ordered)
    values = [{**_values(row, by_series), "name": name} for row, name in zip(ordered, names, strict=True)]
    data = alt.Data(values=values)
    y = alt.Y("name:N", sort=names, title=None)
    colour = alt.Color("colour:N", scale=alt.Scale(domain=palette[0], range=palette[1]), legend=None)
    chart, layers = alt.Chart(data, title=title), []
    if any(row.median for row in ordered):
        latency = _panel(chart, "latency", "median latency (ms)", y, colour, _top(ordered, "p95"))
        spread = alt.Chart(data).mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q", y=y)
        ends = [alt.Chart(data).mark_tick(size=9, thickness=1.5).encode(x=f"{end}:Q", y=y) for end in ("low", "high")]
        layers.append(alt.layer(latency[0], spread, *ends, latency[1]))
        chart, y = alt.Chart(data), alt.Y("name:N", sort=names, title=None, axis=None)
    top = max((row.items_per_second or 0.0 for row in ordered), default=0.0)
    if top:
        layers.append(alt.layer(*_panel(chart, "items", "throughput (items per second)", y, colour, top)))
    panels = [layer.properties(width=PANEL, height=alt.Step(_STEP)) for layer in layers]
    return alt.hconcat(*panels, spacing=_BETWEEN)


def _panel(chart: Any, field: str, title: str, y: Any, colour: Any, top: float) -> tuple[Any, Any]:
    """Bars of a field, and its values written at their ends."""
    import altair as alt

    scale = alt.Scale(domain=[0, (top or 1.0) * _HEADROOM], nice=False)
    x = alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5))
    tooltip = [alt.Tooltip(f"{name}:N", title=shown) for name, shown in _TOOLTIP.items()]
    bar = chart.mark_bar(height=alt.RelativeBandSize(0.66), cornerRadiusEnd=2).encode(
        x=x, y=y, color=colour, tooltip=tooltip
    )
    text = chart.mark_text(align="left", baseline="middle", dx=6).encode(
        x=alt.X(f"{field}_end:Q", scale=scale), y=y, text=f"{field}_text:N"
    )
    return bar, text


def lines(rows: Sequence[Row], palette: Palette, heading: str = "") -> Any:
    """Latency and items per second against the batch size, one line for each series, under a heading."""
    import altair as alt

    own = {colour_key(row, True) for row in rows}
    legend_rows = [each for each in zip(*palette, strict=True) if each[0] in own]
    names, colours, shapes = ([each[place] for each in legend_rows] for place in range(3))
    data = alt.Data(values=[_values(row, True) for row in rows if row.batch])
    batches = sorted({row.batch for row in rows if row.batch})
    axis = alt.Axis(values=batches, format="d", labelOverlap=True)
    x = alt.X("batch:Q", title="batch size (log scale)", scale=alt.Scale(type="log", base=2, nice=False), axis=axis)
    in_a_row = max(1, 110 // (max(map(len, names)) + 6))
    legend = alt.Legend(title=None, orient="top", columns=in_a_row, offset=16)
    colour = alt.Color("colour:N", scale=alt.Scale(domain=names, range=colours), legend=legend)
    shape = alt.Shape("colour:N", scale=alt.Scale(domain=names, range=shapes), legend=legend)
    tooltip = [alt.Tooltip(f"{name}:N", title=shown) for name, shown in _TOOLTIP.items()]
    panels: list[Any] = []
    for field, title in (("latency", "median latency (ms, log scale)"), ("items", "items per second (log scale)")):
        known = [value for row in rows for value in [_values(row, True)[field]] if value]
        if not known:
            continue  # it was not measured
        # A log scale keeps slow and fast apart; lines whose speed-up is the same at every batch are parallel.
        low, high = _range(known)
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        y = alt.Y(
            f"{field}:Q", title=title, scale=scale, axis=alt.Axis(values=_ticks(low, high), format=",~r", minExtent=44)
        )
        base = alt.Chart(data, title="" if panels else heading).transform_filter(f"datum.{field} > 0")
        line = base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
        point = base.mark_point(filled=True, size=60, opacity=1).encode(
            x=x, y=y, color=colour, shape=shape, tooltip=tooltip
        )
        panels.append(alt.layer(line, point).properties(width=PANEL, height=260))
    return alt.hconcat(*panels, spacing=_BETWEEN_LINES)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From a little below the least to a little above the most."""
    return min(values) / 1.2, max(values) * 1.2


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 in every decade between the two."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        tick for decade in decades for tick in (10.0**decade, 2 * 10.0**decade, 5 * 10.0**decade) if low <= tick <= high
    ]


_TOOLTIP = {"case": "case", "latency_text": "median (ms)", "spread": "p5 to p95 (ms)", "items_text": "items per second"}


def _top(rows: Sequence[Row], field: str) -> float:
    return max((max(row.median or 0.0, getattr(row, field) or 0.0) * 1e3 for row in rows), default=0.0)


def labels(rows: Sequence[Row]) -> list[str]:
    """Names of the rows of one comparison with their roles, long ones without their middle, no two alike."""
    tied = sum(row.fastest for row in rows) > 1
    names = [shortened(plain(row.name)) for row in rows]
    if len(set(names)) < len(names):
        names = [plain(row.name) for row in rows]
    roles = [["reference"] * row.is_reference + ["tied" if tied else "fastest"] * row.fastest for row in rows]
    return [f"{name} ({', '.join(mine)})" if mine else name for name, mine in zip(names, roles, strict=True)]


def shortened(name: str, most: int = 52) -> str:
    """``name`` with its middle left out if it is long: backend and options are at its ends."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"


def _values(row: Row, by_series: bool) -> dict[str, Any]:
    """What the panels draw of a row: milliseconds and texts."""
    known = row.p5 is not None and row.p95 is not None
    low, high = (1e3 * (row.p5 or 0.0), 1e3 * (row.p95 or 0.0)) if known else (None, None)
    return {
        "case": plain(row.name),
        "colour": colour_key(row, by_series),
        "batch": row.batch,
        "latency": 1e3 * (row.median or 0.0),
        "latency_end": max(1e3 * (row.median or 0.0), high or 0.0),
        "latency_text": milliseconds(row.median),
        "low": low,
        "high": high,
        "spread": f"{milliseconds(row.p5)} to {milliseconds(row.p95)}" if known else ABSENT,
        "items": row.items_per_second,
        "items_end": row.items_per_second or 0.0,
        "items_text": rate(row.items_per_second) if row.items_per_second else "not measured",
    }
