"""One graph as SVG: regions behind, edges, and nodes in front, from its own upper left corner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferlens.analysis.profile.graph import Edge, Graph
from inferlens.views.chart_theme import THEMES
from inferlens.views.graph.boxes import BAND, PAD, ROW, SMALL, TITLE, Box
from inferlens.views.graph.colours import BANDS, heat, inks
from inferlens.views.graph.place import LABEL, Placed, Point, label_of, numbered
from inferlens.views.graph.words import escaped, lines_escaped, shape, width

THEME = THEMES["light"]
LINE = "#8B949E"
REGION_FILLS = ("#F6F8FA", "#EEF1F4")
REGION_LINE = "#D0D7DE"


@dataclass(frozen=True)
class Label:
    """What is written over a region, and where."""

    left: float
    top: float
    right: float
    bottom: float
    svg: str


def picture(graph: Graph, boxes: Sequence[Box], where: Placed, most: float) -> Iterator[str]:
    """The parts of the drawing.

    Args:
        graph: with its ``boxes``.
        where: where everything goes.
        most: the share of a run that is the darkest fill.
    """
    labels = list(_labels(graph, where))
    yield from _regions(graph, where)
    yield from _edges(graph, boxes, where, labels)
    yield from (label.svg for label in labels)
    for index, box in enumerate(boxes):
        x, y = where.nodes[index]
        yield f'<g class="node" transform="translate({x - box.width / 2:.1f},{y - box.height / 2:.1f})">'
        yield f"<title>{lines_escaped(box.tooltip)}</title>"
        yield from _end(box) if box.node.role in ("input", "output") else _node(box, most)
        yield "</g>"


def _regions(graph: Graph, where: Placed) -> Iterator[str]:
    deep = {id(region): level for level, region in _levels(graph)}
    for number, region in enumerate(numbered(graph.regions)):
        left, top, right, bottom = where.regions[number]
        fill = REGION_FILLS[deep[id(region)] % 2]
        yield (
            f'<g class="region"><title>{escaped(".".join(region.path))}</title><rect x="{left:.1f}" y="{top:.1f}" '
            f'width="{right - left:.1f}" height="{bottom - top:.1f}" rx="8" fill="{fill}" stroke="{REGION_LINE}"/></g>'
        )


def _labels(graph: Graph, where: Placed) -> Iterator[Label]:
    """What regions are called, in front of lines that lead into them."""
    for number, region in enumerate(numbered(graph.regions)):
        left, top, _, _ = where.regions[number]
        words = label_of(region)
        drawn = text(left + 10, top + 19, words, LABEL, THEME.faint, bold=True, more=' class="halo"')
        yield Label(left + 10, top + 6, left + 14 + width(words, LABEL, bold=True), top + 24, drawn)


def _levels(graph: Graph) -> Iterator[tuple[int, object]]:
    level, regions = 0, list(graph.regions)
    while regions:
        yield from ((level, region) for region in regions)
        level, regions = level + 1, [inner for region in regions for inner in region.inner]


def _edges(graph: Graph, boxes: Sequence[Box], where: Placed, labels: Sequence[Label]) -> Iterator[str]:
    """Lines, and beside where the first of each tensor begins, its dimensions."""
    told: set[tuple[int, str]] = set()
    for number, edge in enumerate(graph.edges):
        line, head = where.edges.get(number, ([], []))
        if not line:
            continue
        dashes = "" if edge.known else ' stroke-dasharray="5 4"'
        yield f'<g class="edge"><title>{lines_escaped(_about(edge))}</title>'
        yield f'<path d="{_curve(line)}" fill="none" stroke="{LINE}" stroke-width="1.3"{dashes}/>'
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in head)
        yield f'<polygon points="{corners}" fill="{LINE}"/></g>' if head else "</g>"
        sizes = list(dict.fromkeys(filter(None, map(shape, edge.tensors))))
        if sizes and (edge.tail, sizes[0]) not in told:
            told.add((edge.tail, sizes[0]))
            size = f"{sizes[0]} +{len(sizes) - 1}" if sizes[1:] else sizes[0]
            yield _dimensions(size, line, where.nodes[edge.tail], boxes[edge.tail], labels)


def _about(edge: Edge) -> list[str]:
    lines = [" ".join(filter(None, (shape(one), one.dtype, one.format, one.name))) for one in edge.tensors[:20]]
    return lines if edge.known else [*lines, "the order of execution, no tensor"]


def _curve(points: Sequence[Point]) -> str:
    first, *others = [f"{x:.1f},{y:.1f}" for x, y in points]
    return f"M{first}C{' '.join(others)}"


def _dimensions(size: str, line: Sequence[Point], tail: Point, box: Box, labels: Sequence[Label]) -> str:
    """The dimensions of a tensor: beneath the node that it comes from, or where a label is there, above the next."""
    (x, y), (head_x, head_y) = line[0], line[-1]
    if y > head_y:  # it leads back
        (x, y), (head_x, head_y) = (head_x, head_y), (x, y)
    y = max(y, tail[1] + box.height / 2) + 20
    ends_left = head_x > x + 20
    wide = width(size, 9.5) + 8
    if any(each.left < x + wide and x < each.right and each.top < y + 3 and y - 9 < each.bottom for each in labels):
        x, y, ends_left = head_x, head_y + 3, False
    end = ' text-anchor="end"' if ends_left else ""
    return text(x - 5 if ends_left else x + 5, y, size, 9.5, THEME.faint, more=f'{end} class="halo"')


def _node(box: Box, most: float) -> Iterator[str]:
    node = box.node
    fill = heat(node.share, most)
    ink, faint = inks(fill)
    outline = f'width="{box.width:.1f}" height="{box.height:.1f}" rx="5" stroke="#57606A"'
    if node.role == "folded":  # a second sheet behind it
        yield f'<rect x="4" y="4" {outline} fill="#FFFFFF"/>'
    yield f'<rect {outline} fill="{fill}"/>'
    if node.precision in BANDS:
        height = box.height - 1
        band = f'd="M{BAND},0.5H5.5A5,5 0 0 0 0.5,5.5V{height - 4.5:.1f}A5,5 0 0 0 5.5,{height:.1f}H{BAND}Z"'
        yield f'<path {band} fill="url(#precision-{node.precision})"/>'
    left, y = BAND + PAD, PAD + 10.5
    yield text(left, y, box.title, TITLE, ink, bold=True)
    if node.precision:
        yield from _badge(node.precision, box.width)
    for row in box.rows:
        y += ROW
        yield text(left, y, row, SMALL, faint)
    if box.parts:
        yield from _parts(box, y + PAD - 1)
        y += len(box.parts) * ROW + PAD
    if box.time:
        yield text(left, y + ROW, box.time, SMALL + 0.5, ink)
        yield from _bar(box, y + ROW + 5, most)


def _badge(precision: str, right: float) -> Iterator[str]:
    wide = width(precision, 9.5, bold=True) + 9
    x = right - wide - 5
    yield f'<rect x="{x:.1f}" y="5" width="{wide:.1f}" height="14" rx="7" fill="#FFFFFF" stroke="#57606A"/>'
    yield text(x + wide / 2, 15.4, precision, 9.5, THEME.text, bold=True, more=' text-anchor="middle"')


def _parts(box: Box, top: float) -> Iterator[str]:
    """What a layer was fused from, in a region of its own."""
    left, wide = BAND + PAD - 2, box.width - BAND - 2 * PAD + 4
    tall = len(box.parts) * ROW + 3
    yield (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}" rx="4" fill="#FFFFFF" '
        f'fill-opacity="0.88" stroke="#57606A" stroke-dasharray="4 3"/>'
    )
    for number, part in enumerate(box.parts):
        yield text(left + 6, top + 12.5 + number * ROW, part, SMALL, THEME.text)


def _bar(box: Box, y: float, most: float) -> Iterator[str]:
    """The time as a length too: colours alone are not for everybody."""
    room = box.width - BAND - 2 * PAD
    length = room * min((box.node.share or 0.0) / most, 1.0) if most > 0 else 0.0
    place = f'x="{BAND + PAD}" y="{y:.1f}" height="3"'
    yield f'<rect {place} width="{room:.1f}" fill="#FFFFFF" stroke="#8B949E" stroke-width="0.4"/>'
    yield f'<rect {place} width="{length:.1f}" fill="#24292F"/>'


def _end(box: Box) -> Iterator[str]:
    tall = box.height
    yield f'<rect width="{box.width:.1f}" height="{tall}" rx="{tall / 2}" fill="#24292F"/>'
    yield text(box.width / 2, tall / 2 + 3.6, box.title, SMALL, "#FFFFFF", more=' text-anchor="middle"')


def text(x: float, y: float, words: str, size: float, colour: str, *, bold: bool = False, more: str = "") -> str:
    """A line of text; ``more``: further attributes."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}"{weight}{more}>{escaped(words)}</text>'
