"""Drawing: Vega-Lite documents as SVG, PNG, PDF or page, boxes as SVG, and the colours of all charts.

The palette follows M. Okabe and K. Ito, "Color Universal Design" (2008). Yellow and black, which vanish on white or
dark, are replaced, and four colours are added. Shapes, dashes or names repeat what colours say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import cycle
from typing import Any

import numpy as np

from inferlens.errors import InferlensError, MissingLibrary, check_choice
from inferlens.views.renderers.html import picture_page
from inferlens.views.renderers.terminal import wrap
from inferlens.views.table import Picture, cut_middle, plain

Part = dict[str, Any]  # a Vega-Lite document, or a part of one
Rows = Sequence[dict[str, Any]]  # the drawn values, row by row
Texts = str | Sequence[str]  # one line, or several

FORMATS = ("svg", "png", "html", "pdf")
PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7",
    "#8C8C8C", "#A07D00", "#7B4FE0", "#A8245F", "#4FC4B0", "#5F6A1E",
)  # fmt: skip
GREY = PALETTE[6]
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])  # for lines of one colour
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
POINT_LETTER, LINE, GAP = 6.6, 13.0, 13.0  # pixels: a letter and a line of a point's name, and its distance
PHONE, NAMES_ON_PHONE = 364, 110  # pixels of a chart on a phone and of its names
# Fonts of the same width: the layout uses the third.
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans Condensed', sans-serif"


def colours_of(series: Iterable[str], palette: Sequence[str] = PALETTE) -> dict[str, str]:
    """Assign the colours of the palette in order. It repeats after its last colour."""
    return dict(zip(series, cycle(palette), strict=False))


@dataclass(frozen=True)
class Theme:
    """Colours of everything that is not data."""

    background: str
    text: str
    faint: str
    grid: str


THEMES = {
    "light": Theme(background="#FFFFFF", text="#1F2328", faint="#59636E", grid="#E4E7EB"),
    "dark": Theme(background="#161B22", text="#E6EDF3", faint="#9DA7B3", grid="#2D333B"),
}


def config(theme: Theme) -> dict[str, Any]:
    small = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8}
    lines = {"gridColor": theme.grid, "domainColor": theme.grid, "tickColor": theme.grid}
    colours = {"labelColor": theme.text, "titleColor": theme.faint}
    title = {"color": theme.text, "fontSize": 13, "fontWeight": "bold", "anchor": "start", "offset": 8}
    return {
        "background": theme.background, "padding": 20, "font": FONT, "view": {"stroke": None},
        "axis": {**colours, **lines, **small, "labelLimit": 560, "labelFlush": False},
        "title": {**title, "subtitleColor": theme.faint, "subtitleFontSize": 12, "subtitlePadding": 6},
        "legend": {
            **colours, "labelFontSize": 12, "labelLimit": 700, "symbolSize": 90,
            "columnPadding": 24,  # names may be wider where they are read than where they were laid out
            "layout": {"top": {"margin": 24}, "bottom": {"margin": 24}},  # between two legends
        },
        "text": {"color": theme.text, "fontSize": 12}, "rule": {"color": theme.text}, "tick": {"color": theme.text},
        "concat": {"spacing": 28},
    }  # fmt: skip


_NOTHING = re.compile(
    r'<path class="(?:fore|back)ground" [^>]*(?:display="none"|d="M0,0h0v0h0Z")[^>]*/>'
    r'| (?:opacity="1"|aria-roledescription="[^"]*(?: mark|container|bar|point|tick)")'
)
_PLACES = re.compile(r' (?:d|transform|[xy][12]?|width|height)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")


def check_picture(format: str, hint: str = "--output compare.svg", theme: str = "auto") -> None:
    """Raise InferlensError for an unknown format or theme."""
    if format not in FORMATS:
        problem = f"A picture cannot be written as '{format}'."
        raise InferlensError(problem, expected=", ".join(FORMATS), hint=hint)
    check_choice("theme", theme, ("auto", *THEMES))


def draw_chart(document: Callable[[Theme], Part], format: str, title: str, theme: str = "auto") -> str | bytes:
    """Return a chart as text, or as bytes of a PNG or PDF; ``document`` makes the Vega-Lite document for a theme.

    The theme ``auto`` is light, except in HTML, where it follows the system. Raises :class:`MissingLibrary`
    without the converter.
    """
    library = converter()
    if format == "html":
        return picture_page(title, picture("chart", "", document), theme="" if theme == "auto" else theme)
    chart = document(THEMES["light" if theme == "auto" else theme])
    if format in ("png", "pdf"):
        image: bytes = library.vegalite_to_png(chart, scale=2) if format == "png" else library.vegalite_to_pdf(chart)
        return image
    return _tidy(library.vegalite_to_svg(chart))


def converter() -> Any:
    """Import the drawing library. Raise MissingLibrary if it is absent."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingLibrary("vl-convert-python", extra="plots") from error
    return vl_convert


def field(name: str, **more: Any) -> dict[str, Any]:
    """Return a channel for a data field such as ``latency:Q``: Q for quantities, N for names."""
    column, _, kind = name.rpartition(":")
    return {"field": column, "type": {"Q": "quantitative", "N": "nominal"}[kind], **more}


def fields(*names: tuple[str, str]) -> list[dict[str, Any]]:
    """Return the tooltip channels for pairs of field and title."""
    return [field(f"{name}:N", title=title) for name, title in names]


def marks(kind: str, channels: Mapping[str, Any], values: Rows | None = None, where: str = "", **look: Any) -> Part:
    """Return a chart of marks of one kind, such as ``bar``; ``where`` filters the data."""
    transform = {"transform": [{"filter": where}]} if where else {}
    return {"mark": {"type": kind, **look}, **_data_part(values), **transform, "encoding": dict(channels)}


def overlay(layers: Sequence[Part], values: Rows | None = None, **more: Any) -> Part:
    """Draw charts on top of each other with shared ``values``."""
    return {**_data_part(values), "layer": list(layers), **more}


def stack_charts(
    parts: Sequence[Part], across: bool = False, values: Rows | None = None, own_scales: Sequence[str] = (), **more: Any
) -> Part:
    """Place charts beneath each other, or ``across``. The channels ``own_scales`` are not shared."""
    resolve = {"resolve": {"scale": dict.fromkeys(own_scales, "independent")}} if own_scales else {}
    return {**_data_part(values), "hconcat" if across else "vconcat": list(parts), **resolve, **more}


def _data_part(values: Rows | None) -> Part:
    return {} if values is None else {"data": {"values": values}}


Ends = tuple[float, float, bool]  # both ends of an axis, and whether it is logarithmic


def place_labels(
    points: Rows, name: str, axes: Mapping[str, Ends], size: tuple[float, float], lines: Sequence[Rows] = ()
) -> list[dict[str, Any]]:
    """Return points with the inner ``side`` for their label, empty where it would overlap another label or a line.

    ``name`` is the key of the label, ``axes`` are the keys of both measures. First points have priority. ``lines``
    are points from left to right that never fall.
    """

    def pixels(point: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(_axis_share(point[key], *axes[key]) * room for key, room in zip(axes, size, strict=True))

    curves = [tuple(zip(*map(pixels, line), strict=True)) for line in lines]
    occupied: list[tuple[float, float, float]] = []
    placed = []
    for point in points:
        across, up = pixels(point)
        reach = POINT_LETTER * len(point[name]) + GAP
        side = "left" if across < size[0] / 2 else "right"
        begin, end = (across, across + reach) if side == "left" else (across - reach, across)
        free = all(abs(up - height) > LINE or end < first or last < begin for height, first, last in occupied)
        free = free and not any(_crosses(curve, begin, end, up) for curve in curves)
        if free and point[name]:
            occupied.append((up, begin, end))
        placed.append({**point, "side": side if free else ""})
    return placed


def _crosses(curve: Sequence[tuple[float, ...]], begin: float, end: float, up: float) -> bool:
    across, heights = curve
    low, high = (float(np.interp(edge, across, heights)) for edge in (begin, end))
    return low - LINE / 2 < up < high + LINE / 2


def _axis_share(value: float, low: float, high: float, log: bool) -> float:
    """Return the position of a value between both ends of its axis."""
    if log:
        value, low, high = (math.log(max(number, 1e-300)) for number in (value, low, high))
    return (value - low) / (high - low)


def title(text: Texts, subtitle: Texts = "", size: int = 18, offset: int = 18, frame: str = "bounds") -> Part:
    """Return a document title with an optional subtitle."""
    beneath = {"subtitle": subtitle} if subtitle else {}
    return {"text": text, **beneath, "fontSize": size, "anchor": "start", "offset": offset, "frame": frame}


def vega_document(chart: Part, theme: Theme) -> Part:
    return {"$schema": SCHEMA, **chart, "config": config(theme)}


def _tidy(svg: str) -> str:
    """Remove invisible elements, keep two decimals, and name the font once. This halves the size.

    Number clip paths from 1, because the converter continues from its last chart.
    """
    numbers: dict[str, int] = {}
    font = f' font-family="{FONT}"'
    svg = _NOTHING.sub("", svg).replace(font, "").replace('class="marks"', f'class="marks"{font}', 1)
    svg = _PLACES.sub(lambda match: _DECIMALS.sub(r"\1", match[0]), svg)
    return re.sub(
        r'(id="clip|url\(#clip)(\d+)', lambda match: f"{match[1]}{numbers.setdefault(match[2], len(numbers) + 1)}", svg
    )


def picture(name: str, caption: str, document: Callable[[Theme], Part]) -> Picture:
    """Return a chart for a page: SVG for light paper, and its values."""
    chart = document(THEMES["light"])

    @cache
    def svg(phone: bool) -> str:
        return _tidy(converter().vegalite_to_svg(_for_phone(chart) if phone else chart))

    return Picture(name, caption, svg, _largest_dataset(chart))


def _for_phone(part: Part) -> Part:
    """Adapt a chart to the width of a phone: stack panels, cut long names and fold texts."""
    chart = {"vconcat" if name == "hconcat" else name: value for name, value in part.items()}
    for name in {"layer", "vconcat"} & chart.keys():
        chart[name] = list(map(_for_phone, chart[name]))
    if "width" in chart:
        chart["width"] = PHONE - NAMES_ON_PHONE
    if "title" in chart:
        words = chart["title"]
        texts = words if isinstance(words, dict) else {"text": words}
        folded = {name: _fold(texts[name]) for name in ("text", "subtitle") if name in texts}
        chart["title"] = {**texts, **folded, "fontSize": min(texts.get("fontSize", 13), 14), "frame": "bounds"}
    if chart.get("mark", {}).get("type") == "text":
        chart["mark"] = {**chart["mark"], "limit": NAMES_ON_PHONE * 1.2}
    if "encoding" in chart:
        chart["encoding"] = {name: _channel_for_phone(channel) for name, channel in chart["encoding"].items()}
    if "config" in chart:
        axis, legend = ({**chart["config"][name], "labelLimit": NAMES_ON_PHONE} for name in ("axis", "legend"))
        legend["labelLimit"] = PHONE - 40
        chart["config"] = {**chart["config"], "padding": 2, "axis": axis, "legend": legend}
    return chart


def _channel_for_phone(channel: Any) -> Any:
    if not isinstance(channel, dict):
        return channel
    title, legend = channel.get("title"), channel.get("legend")
    folded = {"title": _fold(title)} if title else {}
    return {**channel, **folded, **({"legend": {**legend, "columns": 1}} if legend else {})}


def _fold(text: str | Sequence[str]) -> list[str]:
    return wrap(text if isinstance(text, str) else " ".join(text), PHONE // 9)


def chart_data(part: Part) -> Iterator[Rows]:
    if part.get("data"):
        yield part["data"]["values"]
    for name in ("layer", "hconcat", "vconcat"):
        for panel in part.get(name, ()):
            yield from chart_data(panel)


def _largest_dataset(chart: Part) -> Rows:
    """Return the largest data set, with those of other panels that have the same columns."""
    datasets = [values for values in chart_data(chart) if values]
    columns = max(datasets, key=len)[0].keys() if datasets else ()
    return [row for values in datasets if values[0].keys() == columns for row in values]


# Boxes in rows as SVG. A box is as wide as its share and contains its name.

# Pixels: of a panel, a row of boxes, a title, between panels.
BOXES_WIDTH, BOX_TALL, BOX_HEAD, BOX_GAP = 1100, 21, 26, 14
BOX_LETTER, BOX_TITLE_LETTER, MIN_BOX = 6.1, 8.0, 0.35  # pixels: letters; a box that is narrower is not drawn


@dataclass(frozen=True)
class Box:
    """One box.

    Attributes:
        left: begin; ``wide``: width; both are shares of the panel.
        row: index from the top.
        names: candidates for its label; the first that fits is used.
        about: tooltip, with ``; `` between lines.
        colour: as in ``PALETTE``.
    """

    left: float
    wide: float
    row: int
    names: Sequence[str]
    about: str
    colour: str


def boxes_svg(title: str, panels: Sequence[tuple[str, Sequence[Box]]], phone: bool) -> str:
    """Draw panels of boxes under their names; screen readers get ``title``."""
    wide = PHONE if phone else BOXES_WIDTH
    top, parts = 0.0, []
    for name, boxes in panels:
        heading = escape(cut_middle(name, int(wide / BOX_TITLE_LETTER)))
        parts.append(f'<text x="0" y="{top + 15:g}" font-size="13" font-weight="bold">{heading}</text>')
        top += BOX_HEAD
        parts += [_box_svg(box, top, wide) for box in boxes if box.wide * wide >= MIN_BOX]
        top += BOX_TALL * (1 + max((box.row for box in boxes), default=0)) + BOX_GAP
    size = f'viewBox="0 0 {wide} {top - BOX_GAP:g}" width="{wide}" height="{top - BOX_GAP:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" {size} '
        f'font-family="{FONT}" font-size="11"><g fill="{THEMES["light"].text}">{"".join(parts)}</g></svg>'
    )


def _box_svg(box: Box, top: float, room: float) -> str:
    x, y, wide = box.left * room, top + box.row * BOX_TALL, box.wide * room
    label = next((name for name in box.names if len(name) * BOX_LETTER <= wide - 6), "")
    text = f'<text x="{x + 4:.6g}" y="{y + 14:g}" pointer-events="none">{escape(label)}</text>' if label else ""
    edge = f' stroke="{THEMES["light"].background}"' if wide > 6 else ""
    return (
        f'<rect x="{x:.6g}" y="{y:g}" width="{wide:.4g}" height="{BOX_TALL - 1}" fill="{box.colour}" fill-opacity=".38"'
        f'{edge} data-tip="{escape(plain(box.about))}"/>{text}'
    )
