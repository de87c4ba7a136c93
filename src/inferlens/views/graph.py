"""Graphs of executed layers as pictures.

Graphviz draws in its own process, because its C code may crash or hang on an unusual graph.
"""

from __future__ import annotations

import html
import importlib.util
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from inferlens.analysis.graph import SCHEMA, Graph, Node, Region
from inferlens.analysis.modules import Path, module_path
from inferlens.errors import InferlensError, MissingLibrary, check_choice
from inferlens.record.profile import Tensor
from inferlens.units import duration, percent, plural
from inferlens.views.picture import FONT, PALETTE, THEMES
from inferlens.views.renderers import json_text
from inferlens.views.renderers.html import picture_page
from inferlens.views.table import Picture, cut_end, cut_middle, plain

# The fill is the time, the band at the left the precision, and both are text, too. Times range from white to dark red
# (C. Brewer's OrRd): falling lightness keeps the order in grey and for colour-blind people.

HEAT = ("#FFFFFF", "#FEF0D9", "#FDD49E", "#FDBB84", "#FC8D59", "#E34A33", "#B30000")
BANDS = {
    "fp32": PALETTE[0], "tf32": PALETTE[10], "fp64": PALETTE[7], "fp16": PALETTE[2], "bf16": PALETTE[3],
    "int8": PALETTE[5], "int4": PALETTE[9], "fp8": PALETTE[1], "fp4": PALETTE[4], "int": PALETTE[6],
    "bool": PALETTE[11],
}  # fmt: skip
MANY = 400  # nodes: larger graphs get a faster layout
LONGEST = 500  # characters of a name that are kept at all
TOOLTIP = 2_500  # characters: Graphviz reads no string of more than 16 KiB, and each may become six bytes
_ROW, _NOTE, _PARTS = 36, 110, 8  # characters of a row and of a note; rows of what a layer was fused from
_THEME = THEMES["light"]
_FRAME, _DARK = "#57606A", "#24292F"


def dot(graphs: Sequence[Graph], title: str, *, fused: bool) -> str:
    """Return all graphs side by side with title, legend and notes. Names become escaped text."""
    highest = max((node.share or 0.0 for graph in graphs for node in graph.nodes), default=0.0)
    font = FONT.replace("'", "")
    lines = [
        f'digraph {{ nodesep=0.3 ranksep=0.4 pad=0.15 fontname="{font}" labelloc=t labeljust=l',
        "nslimit=1 nslimit1=1 mclimit=0.3" if sum(len(graph.nodes) for graph in graphs) > MANY else "",
        f'node [shape=plain fontname="{font}" fontsize=10.5 fontcolor="{_THEME.text}"]',
        f'edge [arrowsize=0.6 color="#8B949E"] label=<{_label_table(_header(graphs, title, highest), cellpadding=3)}>',
    ]
    for number, graph in enumerate(graphs):
        if len(graphs) > 1:
            label = _label_table([_font(_cut(graph.title, 60), 14, _THEME.text, bold=True), _font(_account(graph), 11)])
            lines.append(f'subgraph cluster_{number} {{ color="#FFFFFF" label=<{label}>')
        lines += [*_graph_lines(graph, f"g{number}", highest, fused), "}" if len(graphs) > 1 else ""]
    return "\n".join([*lines, "}"])


def heat(share: float | None, highest: float) -> str:
    """Return the fill for a share of the run: one of seven."""
    at = min(max((share or 0.0) / highest, 0.0), 1.0) if highest > 0 else 0.0
    return HEAT[round(at * (len(HEAT) - 1))]


def ink(fill: str) -> str:
    """Return the text colour on a fill: white where dark letters have less contrast."""
    red, green, blue = bytes.fromhex(fill[1:])
    return "#FFFFFF" if 0.299 * red + 0.587 * green + 0.114 * blue < 110 else _THEME.text


def clean_name(text: str) -> str:
    """Return a name on one line without characters that XML forbids, cut to a readable length."""
    return cut_end(plain(text[: LONGEST + 1]), LONGEST)


def _header(graphs: Sequence[Graph], title: str, highest: float) -> Iterator[str]:
    single = graphs[:1] if len(graphs) == 1 else ()
    names = dict.fromkeys([title, *(graph.title for graph in single)])
    yield _font(_cut(" · ".join(names), 60), 18, _THEME.text, bold=True)
    about = dict.fromkeys(graph.about for graph in graphs if graph.about)
    yield from (_font(_cut(words, _NOTE), 12) for words in [*about, *map(_account, single)])
    if highest > 0:
        squares = "".join(_font("■", 15, colour) for colour in HEAT[1:])
        yield squares + _font(f"  up to {percent(highest)}: share of a run", 10.5, _THEME.text)
    for note in dict.fromkeys(note for graph in graphs for note in graph.notes):
        yield from (_font(line, 11) for line in textwrap.wrap(clean_name(note), _NOTE))
    yield _font("", 11)  # room above the first node


def _account(graph: Graph) -> str:
    return plural(graph.layers, "layer") + (f" · whole run {duration(graph.whole)}" if graph.whole else "")


def _graph_lines(graph: Graph, name: str, highest: float, fused: bool) -> Iterator[str]:
    """Return regions, nodes and edges of one graph; all identifiers start with ``name``."""
    inside: dict[int, Path] = {}
    yield from _clusters(graph.regions, name, inside)
    for index, node in enumerate(graph.nodes):
        if node.role in ("input", "output"):
            (tensor,) = node.outputs or node.inputs
            text = f"{_cut(node.name) or '(no name)'}  {_shape_text(tensor)}"
            label = f'label={_quoted(text)} shape=box style="rounded,filled" fillcolor="{_DARK}"'
            label += ' fontcolor="#FFFFFF" height=0.3'
            tip = [f"{node.role} of the model", node.name, f"{_shape_text(tensor)} {tensor.dtype}"]
        else:
            label, tip = f"label=<{_box(node, inside.get(index, ()), highest, fused)}>", _node_tooltip(node)
        yield f"{name}_{index} [{label} tooltip={_quoted(*tip)}]"
    for edge in graph.edges:
        tip = [*map(_tensor, edge.tensors[:20])] if edge.known else ["the order of execution, no tensor"]
        style = "" if edge.known else " style=dashed"
        yield f"{name}_{edge.tail}->{name}_{edge.head} [tooltip={_quoted(*tip)}{style}]"


def _clusters(regions: Sequence[Region], name: str, inside: dict[int, Path], level: int = 0) -> Iterator[str]:
    """Return regions as clusters, and store the deepest region of each node in ``inside``."""
    for region in regions:
        inside.update(dict.fromkeys(region.nodes, region.path))
        above = region.path[: -region.label.count(".") - 1]
        heading = _font(_cut(_with_parent(region.label, above), 50), 12, bold=True)
        label = _label_table([heading, *([_font(_time(region), 11)] if _time(region) else [])])
        yield f'subgraph cluster_{name}_{level}_{region.nodes[0]} {{ margin=10 style="rounded,filled" color="#D0D7DE"'
        yield f'fillcolor="{("#F6F8FA", "#EEF1F4")[level % 2]}" tooltip={_quoted(".".join(region.path))}'
        yield f"label=<{label}>"
        yield from _clusters(region.inner, name, inside, level + 1)
        yield " ".join(f"{name}_{index}" for index in region.nodes if inside[index] == region.path)
        yield "}"


def _box(node: Node, inside: Path, highest: float, fused: bool) -> str:
    """Return the label of a layer: kind, origin, time and output sizes."""
    folded, fill = node.role == "folded", heat(node.share, highest)
    colour, name = ink(fill), node.kind or node.name
    if folded:
        name = _with_parent(module_label([".".join(node.module or ())], inside), inside) or "several layers"
    sizes = list(dict.fromkeys(filter(None, map(_shape_text, node.outputs))))
    size = f"{sizes[0]} +{len(sizes) - 1}" if sizes[1:] else "".join(sizes)
    rows = [
        _font(_cut(name) or "(no name)", 12, colour, bold=True) + _font(f"  {node.precision}", 10, colour, bold=True),
        *(_font(_cut(row), 10.5, colour) for row in _node_rows(node, inside, fused)),
        *([_font("   ".join(filter(None, (_time(node), _cut(size)))), 11, colour)] if _time(node) or size else []),
    ]
    band = f'<TD WIDTH="8" ROWSPAN="{len(rows)}" BGCOLOR="{BANDS.get(node.precision, fill)}"></TD>'
    return _label_table(rows, band, border=3 if folded else 1, cellpadding=3, color=_FRAME, bgcolor=fill)


def _node_rows(node: Node, inside: Path, fused: bool) -> list[str]:
    """Return the rows beneath a layer's kind: what it was fused from, its modules, or its own name."""
    if node.role == "folded":
        operators_text = ", ".join(f"{count} {kind}" for kind, count in Counter(node.operators).most_common(3))
        return [f"{plural(len(node.places), 'layer')}{f' from {operators_text}' if operators_text else ''}"]
    parts = next((parts for parts in (node.modules, node.operators) if len(parts) > 1), ())
    if fused and parts:
        more = [f"and {len(parts) - _PARTS} more"] * (len(parts) > _PARTS)
        return [f"fused from {len(parts)}", *(part or "the model itself" for part in parts[:_PARTS]), *more]
    operators = "= " + " + ".join(node.operators) if len(node.operators) > 1 else ""
    return [row for row in (operators, module_label(node.modules, inside) or node.name) if row]


def module_label(paths: Sequence[str], inside: Path = ()) -> str:
    """Return module paths relative to the frame: ``conv1 + bn1``."""
    names = [path[len(inside) :] if path[: len(inside)] == inside else path for path in map(module_path, paths)]
    return " + ".join(filter(None, map(".".join, names)))


def _with_parent(name: str, inside: Path) -> str:
    """Return a number with its parent module: ``layer1.0``."""
    return f"{inside[-1]}.{name}" if inside and name[:1].isdigit() else name


def _node_tooltip(node: Node) -> list[str]:
    """Return all data of a node, one line each."""
    first, last = node.places[0], node.places[-1]
    order = f"#{first}" if first == last else f"#{first} to #{last}"
    return [
        node.name or "(no name)",
        " · ".join(filter(None, (order, node.kind, node.precision, _time(node)))),
        f"from: {', '.join(node.operators[:20])}" if len(node.operators) > 1 else "",
        *(f"module: {path or '(the model itself)'}" for path in node.modules[:40]),
        *(f"in: {_tensor(tensor)}" for tensor in node.inputs[:8]),
        *(f"out: {_tensor(tensor)}" for tensor in node.outputs[:8]),
        *(f"{key}: {value}" for key, value in list(node.details.items())[:12]),
    ]


def _cut(text: str, most: int = _ROW) -> str:
    return cut_middle(clean_name(text), most)


def _font(text: str, size: float, colour: str = _THEME.faint, *, bold: bool = False) -> str:
    """Return text of an HTML-like label. Graphviz rejects an empty one."""
    content = _escape_label(text) or " "
    return f'<FONT POINT-SIZE="{size:g}" COLOR="{colour}">{f"<B>{content}</B>" if bold else content}</FONT>'


def _label_table(rows: Sequence[str] | Iterator[str], first: str = "", **attributes: object) -> str:
    """Return a table of an HTML-like label with one cell per row; ``first`` precedes the first cell."""
    values = {"border": 0, "cellborder": 0, "cellspacing": 0, "cellpadding": 0, **attributes}
    cells = "".join(f'<TR>{"" if place else first}<TD ALIGN="LEFT">{row}</TD></TR>' for place, row in enumerate(rows))
    written = "".join(f' {name.upper()}="{value}"' for name, value in values.items())
    return f"<TABLE{written}>{cells}</TABLE>"


def _quoted(*lines: str) -> str:
    text = "\n".join(filter(None, map(clean_name, lines)))[:TOOLTIP]
    return f'"{_escape_label(text)}"'.replace("\n", "&#10;")


def _escape_label(text: str) -> str:
    """Escape text. Backslashes start Graphviz escapes, so a similar sign replaces them."""
    return html.escape(text).replace("\\", "\N{SET MINUS}")


def _time(part: Node | Region) -> str:
    texts = [] if part.seconds is None else [duration(part.seconds)]
    return " · ".join(texts if part.share is None else [*texts, percent(part.share)])


def _shape_text(tensor: Tensor) -> str:
    """Return ``1x64x56x56``; a free dimension is ``?``."""
    return "x".join("?" if size < 0 else str(size) for size in tensor.shape)


def _tensor(tensor: Tensor) -> str:
    return " ".join(filter(None, (_shape_text(tensor), tensor.dtype, tensor.format, tensor.name)))


FORMATS = ("svg", "png", "html", "json")
MOST_GRAPHS = 6
TALLEST = 30_000  # pixels of a PNG: what most programs open
DEADLINE = 240.0  # seconds
HINT = "a smaller --depth, or --regions none"
# The current folder must not shadow libraries.
_CHILD = """
import sys
del sys.path[0]
import pygraphviz
with pygraphviz.AGraph(string=sys.stdin.buffer.read().decode()) as graph:
    sys.stdout.buffer.write(graph.draw(format="svg", prog="dot"))
"""
_DRAWING = re.compile(r'<svg width="([\d.]+)pt"\s+height="([\d.]+)pt"\s+(.*</svg>\n)', re.S)
_NAMES = re.compile(r"<title>.*?</title>")  # Graphviz's titles would hide the tooltips


def render_graphs(
    graphs: Sequence[Graph], format: str, *, title: str, fused: bool = False, deadline: float = DEADLINE
) -> str | bytes:
    """Draw graphs side by side: text for SVG, HTML and JSON, bytes for PNG.

    ``fused`` lists the parts of fused layers, one row each.

    Raises:
        InferlensError: for another format, for too many graphs, or if a library is missing.
    """
    check_choice("format of graphs", format, FORMATS)
    if format == "json":
        return json_text({"schema": SCHEMA, "title": plain(title), "graphs": list(graphs)})
    if len(graphs) > MOST_GRAPHS:
        raise InferlensError(
            f"These are {len(graphs)} graphs, and {MOST_GRAPHS} at most fit side by side.",
            expected="a folder with fewer cases",
            hint="the folder of one case, such as RESULTS/MODEL/CASE",
        )
    drawn = _svg(graphs, title, fused, deadline)
    if format == "html":
        about = "Drag to move, wheel to zoom, double click to see all."
        picture = Picture("graph", "", lambda _: drawn, light_only=True)
        return picture_page(clean_name(title), picture, about, name="graph")
    return _png(drawn) if format == "png" else drawn


def _svg(graphs: Sequence[Graph], title: str, fused: bool, deadline: float) -> str:
    """Run Graphviz.

    Raises:
        MissingLibrary: if Graphviz is not there.
        InferlensError: if it crashed, or took too long.
    """
    if importlib.util.find_spec("pygraphviz") is None:
        raise MissingLibrary("pygraphviz, which lays graphs out,", extra="graphs")
    nodes, edges = sum(len(graph.nodes) for graph in graphs), sum(len(graph.edges) for graph in graphs)
    problem = f"Graphviz cannot lay out {plural(nodes, 'node')} and {plural(edges, 'edge')}"
    child, source = [sys.executable, "-c", _CHILD], dot(graphs, title, fused=fused).encode()
    try:
        process = subprocess.run(child, input=source, capture_output=True, timeout=deadline, check=False)
    except subprocess.TimeoutExpired as error:
        raise InferlensError(f"{problem} within {deadline:.0f} seconds.", hint=HINT) from error
    drawn = _DRAWING.search(process.stdout.decode(errors="replace"))
    if drawn is None:
        last = process.stderr.decode(errors="replace").strip().splitlines()[-1:]
        why = last[0][:200] if last else f"it ended with {process.returncode}"
        raise InferlensError(f"{problem}: {why}.", hint=HINT)
    return f'<svg width="{drawn[1]}" height="{drawn[2]}" {_NAMES.sub("", drawn[3])}'


def _png(svg: str) -> bytes:
    """Return the drawing in pixels, at up to two per unit."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingLibrary("vl-convert-python", extra="graphs") from error
    wide, tall = (float(size) for size in re.findall(r'(?:width|height)="([\d.]+)"', svg)[:2])
    image: bytes = vl_convert.svg_to_png(svg, scale=min(2.0, TALLEST / max(wide, tall)))
    return image
