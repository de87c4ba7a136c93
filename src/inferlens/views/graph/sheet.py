"""A whole drawing: what it is of, what its colours mean, the graphs side by side, and what must be known of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferlens.analysis.profile.graph import Graph
from inferlens.units import duration, percent, plural
from inferlens.views.chart_theme import FONT
from inferlens.views.graph.boxes import Box, boxes
from inferlens.views.graph.colours import BANDS, HEAT
from inferlens.views.graph.draw import LINE, THEME, picture, text
from inferlens.views.graph.place import Placed, placed
from inferlens.views.graph.words import clean, fitted, width

MARGIN = 24.0
GAP = 48.0  # between graphs
NARROWEST = 560.0
_LEGEND = 220.0  # width of the scale of times
_NOTE = 11.0


@dataclass(frozen=True)
class Panel:
    """One graph, placed."""

    graph: Graph
    boxes: list[Box]
    where: Placed

    @property
    def account(self) -> str:
        """How many layers it has, and what a run takes."""
        run = f" · whole run {duration(self.graph.whole)}" if self.graph.whole else ""
        return f"{plural(self.graph.layers, 'layer')}{run}"

    @property
    def wide(self) -> float:
        """Width of the graph with its heading."""
        return max(self.where.width, min(width(self.graph.title[:200], 14, bold=True), 420.0), width(self.account, 11))


@dataclass(frozen=True)
class Sheet:
    """An SVG document and its size, in units of which most screens have 96 to an inch."""

    svg: str
    width: float
    height: float


def sheet(graphs: Sequence[Graph], title: str, *, fused: bool = False) -> Sheet:
    """Graphs side by side, on one scale of shares of a run.

    Args:
        graphs: of the same model on the same machine, or of anything.
        title: what all of them are of.
        fused: whether layers show what they were fused from as a region inside of them.

    Raises:
        InferlensError: if the library that lays out is missing, or fails.
    """
    panels = [_panel(graph, fused) for graph in graphs]
    most = max((node.share or 0.0 for graph in graphs for node in graph.nodes), default=0.0)
    wide = max(sum(panel.wide + GAP for panel in panels) - GAP, NARROWEST)
    head, top = _head(panels, title, most, wide)
    tall = top + max(panel.where.height for panel in panels)
    parts = [_opening(wide + 2 * MARGIN, tall + 2 * MARGIN), *_patterns(), *head]
    left = (wide - (sum(panel.wide + GAP for panel in panels) - GAP)) / 2
    for panel in panels:
        if len(panels) > 1:
            name = fitted(clean(panel.graph.title), panel.wide, 14, bold=True)
            parts.append(text(left, top - 32, name, 14, THEME.text, bold=True))
            parts.append(text(left, top - 15, panel.account, 11, THEME.faint))
        shift = left + (panel.wide - panel.where.width) / 2
        parts.append(f'<g transform="translate({shift:.1f},{top:.1f})">')
        parts += picture(panel.graph, panel.boxes, panel.where, most)
        parts.append("</g>")
        left += panel.wide + GAP
    return Sheet("\n".join([*parts, "</g>", "</svg>", ""]), wide + 2 * MARGIN, tall + 2 * MARGIN)


def _panel(graph: Graph, fused: bool) -> Panel:
    made = boxes(graph, fused=fused)
    return Panel(graph, made, placed(graph, made))


def _opening(wide: float, tall: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{tall:.0f}" '
        f'viewBox="0 0 {wide:.0f} {tall:.0f}" font-family="{FONT}">\n'
        "<style>.halo{paint-order:stroke;stroke:#FFFFFF;stroke-width:2.5px;stroke-linejoin:round}</style>\n"
        f'<rect width="100%" height="100%" fill="{THEME.background}"/>\n'
        f'<g transform="translate({MARGIN:g},{MARGIN:g})">'
    )


def _patterns() -> Iterator[str]:
    """What fills the bands of precisions, and the scale of times."""
    yield "<defs>"
    stops = (f'<stop offset="{i / (len(HEAT) - 1):.3f}" stop-color="{colour}"/>' for i, colour in enumerate(HEAT))
    yield f'<linearGradient id="times">{"".join(stops)}</linearGradient>'
    for name, band in BANDS.items():
        yield (
            f'<pattern id="precision-{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
            f'<rect width="6" height="6" fill="{band.colour}"/>{band.pattern}</pattern>'
        )
    yield "</defs>"


def _head(panels: Sequence[Panel], title: str, most: float, wide: float) -> tuple[list[str], float]:
    """Title, legend and notes, and where the graphs begin."""
    y = 16.0
    alone = panels[0] if len(panels) == 1 else None
    names = dict.fromkeys([title, alone.graph.title] if alone else [title])
    headline = fitted(clean(" · ".join(names)), wide, 18, bold=True)
    parts = [text(0, y, headline, 18, THEME.text, bold=True)]
    about = dict.fromkeys(panel.graph.about for panel in panels if panel.graph.about)
    for words in [*about, *([alone.account] if alone else [])]:
        y += 20
        parts.append(text(0, y, fitted(clean(words), wide, 12), 12, THEME.faint))
    y += 18
    if most > 0:
        parts += _scale(panels, most, y)
        y += 40
    y, swatches = _precisions(panels, y, wide)
    parts += swatches
    for note in _notes(panels):
        for line in textwrap.wrap(clean(note), max(int(wide / (_NOTE * 0.52)), 40)):
            y += 15
            parts.append(text(0, y, line, _NOTE, THEME.faint))
        y += 3
    return parts, y + (24 if alone else 76)


def _scale(panels: Sequence[Panel], most: float, y: float) -> Iterator[str]:
    """From none to the largest share of a node; in time too where there is one graph."""
    outline = f'width="{_LEGEND}" height="12" stroke="#57606A" stroke-width="0.6"'
    yield f'<rect x="0" y="{y:.1f}" {outline} fill="url(#times)"/>'
    whole = panels[0].graph.whole if len(panels) == 1 else None
    last = percent(most) + (f" ({duration(most * whole)})" if whole else "")
    yield text(0, y + 26, "0", 10.5, THEME.text)
    yield text(_LEGEND, y + 26, last, 10.5, THEME.text, more=' text-anchor="end"')
    yield text(_LEGEND + 12, y + 10.5, "share of a run, as fill and as bar", 10.5, THEME.text)


def _precisions(panels: Sequence[Panel], y: float, wide: float) -> tuple[float, list[str]]:
    """A swatch for each precision that is there, in the order of :data:`BANDS`."""
    used = {node.precision for panel in panels for node in panel.graph.nodes}
    parts, x = [], 0.0
    for name in (name for name in BANDS if name in used):
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="16" height="12" fill="url(#precision-{name})"/>')
        parts.append(text(x + 21, y + 10, name, 10.5, THEME.text))
        x += 21 + width(name, 10.5) + 18
    if any(not edge.known for panel in panels for edge in panel.graph.edges):
        x = x if x < wide - 200 else 0.0
        line = f'<path d="M{x:.1f},{y + 6:.1f}h28" stroke="{LINE}" stroke-width="1.3" stroke-dasharray="5 4"/>'
        parts += [line, text(x + 34, y + 10, "order of execution alone", 10.5, THEME.text)]
    return (y + 18 if parts else y), parts


def _notes(panels: Sequence[Panel]) -> list[str]:
    """Each note once; with the name of its graph where only some have it."""
    found: dict[str, list[str]] = {}
    for panel in panels:
        for note in panel.graph.notes:
            found.setdefault(note, []).append(panel.graph.title)
    several = len(panels) > 1
    return [
        f"{', '.join(titles)}: {note}" if several and len(titles) < len(panels) else note
        for note, titles in found.items()
    ]
