"""Latency and throughput of the backends side by side, and against the batch size, as SVG, PNG or one HTML file."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any, ClassVar

from inferlens.errors import InferlensError, MissingLibrary
from inferlens.record.record import Record
from inferlens.views.base import View
from inferlens.views.chart_panels import PANEL, Palette, bars, colours, colours_of_ways, lines
from inferlens.views.chart_theme import THEMES, Theme, config
from inferlens.views.columns import headline
from inferlens.views.page import page
from inferlens.views.plain import plain
from inferlens.views.row import Row
from inferlens.views.rows import rows
from inferlens.views.verdict import of_table

FORMATS = ("svg", "png", "html")
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
        if format not in FORMATS:
            raise InferlensError(
                f"A chart cannot be written as '{format}'.", expected=", ".join(FORMATS), hint="--output compare.svg"
            )
        if theme not in ("auto", *THEMES):
            raise InferlensError(f"A chart has no theme '{theme}'.", expected=f"auto, {', '.join(THEMES)}")
        self.format = format
        self.theme = theme

    def render(self, records: Sequence[Record]) -> str | bytes:
        """See :class:`View`. Text for SVG and HTML, bytes for PNG."""
        converter = _converter()
        shown = rows(records, self.reference)
        if not any(drawn(row) for row in shown):
            reasons = list(dict.fromkeys(plain(row.reason) for row in shown if row.reason))
            why = f" {reasons[0]}" if reasons else ""
            raise InferlensError(
                f"There is nothing to draw: no case ran with right outputs.{why}", hint="inferlens show"
            )
        if self.format == "html":
            light, dark = (
                self._chart(shown, THEMES[n if self.theme == "auto" else self.theme]) for n in ("light", "dark")
            )
            return page(light, dark, f"{plain(shown[0].model)} – Inferlens", converter.javascript_bundle())
        chart = self._chart(shown, THEMES["light" if self.theme == "auto" else self.theme])
        if self.format == "png":
            image: bytes = converter.vegalite_to_png(chart, scale=2)
            return image
        return _renumbered(converter.vegalite_to_svg(chart))

    def _chart(self, shown: Sequence[Row], theme: Theme) -> dict[str, Any]:
        """The Vega-Lite document."""
        import altair as alt

        tables: dict[tuple[str, str, str], list[Row]] = {}
        for row in shown:
            tables.setdefault(row.table, []).append(row)
        families = colours([row for row in shown if drawn(row)], by_series=False)
        blocks = [_block(table, families) for table in tables.values() if any(drawn(row) for row in table)]
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


def _renumbered(svg: str) -> str:
    """``svg`` with its clip paths numbered from 1: the converter counts on from its last chart."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"{match[1]}{numbers.setdefault(match[2], len(numbers) + 1)}"

    return re.sub(r'(id="clip|url\(#clip)(\d+)', number, svg)


def _why(row: Row) -> str:
    if not row.ok:
        return row.status
    return "wrong outputs" if row.agrees is False else "not measured like the others"


def _converter() -> Any:
    """The library that draws, if it and the one that describes charts are there."""
    try:
        import altair  # noqa: F401 - asked for here, so that both are missed at the same place
        import vl_convert
    except ImportError as error:
        raise MissingLibrary("altair" if error.name == "altair" else "vl-convert-python", extra="plots") from error
    return vl_convert
