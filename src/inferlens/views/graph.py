"""Graphs as pictures: nodes coloured by time, marked by precision, in frames of modules; SVG, PNG, HTML or JSON.

Graphviz places and draws, in a process of its own: it is C code that may crash or take for ever on a graph that nobody
has seen yet, and a process has a deadline and leaves this one alive.
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

import msgspec

from inferlens.analysis.graph import SCHEMA, Graph, Node, Region
from inferlens.analysis.modules import Path, module_path
from inferlens.errors import InferlensError, MissingLibrary, check_choice
from inferlens.record.layer_profile import Tensor
from inferlens.units import duration, percent, plural
from inferlens.views.picture import FONT, PALETTE, THEMES
from inferlens.views.plain import plain, without_middle
from inferlens.views.renderers.html import pictured
from inferlens.views.report.blocks import Picture

# Graphs in Graphviz's language: what stands in a node, what its colours mean, and what is said above the drawing.
#
# The fill is the time, the band at the left the precision; both stand there in letters too. Times go from white to dark
# red (OrRd of C. Brewer's palettes): lightness falls all the way, so the order is seen in grey and by people who see
# colours differently. Names come from files: each is cleaned and escaped where it is written.

HEAT = ("#FFFFFF", "#FEF0D9", "#FDD49E", "#FDBB84", "#FC8D59", "#E34A33", "#B30000")
BANDS = {
    "fp32": PALETTE[0], "tf32": PALETTE[10], "fp64": PALETTE[7], "fp16": PALETTE[2], "bf16": PALETTE[3],
    "int8": PALETTE[5], "int4": PALETTE[9], "fp8": PALETTE[1], "fp4": PALETTE[4], "int": PALETTE[6],
    "bool": PALETTE[11],
}  # fmt: skip
MANY = 400  # nodes, from which on less time is spent on placing each
LONGEST = 500  # characters of a name that are kept at all
TOOLTIP = 2_500  # characters: Graphviz reads no string of more than 16 KiB, and each may become six bytes
_ROW, _NOTE, _PARTS = 36, 110, 8  # characters of a row and of a note; rows of what a layer was fused from
_THEME = THEMES["light"]
_FRAME, _DARK = "#57606A", "#24292F"


def dot(graphs: Sequence[Graph], title: str, *, fused: bool) -> str:
    """All graphs side by side, with title, legend and notes above them; what is in their names is only text here."""
    most = max((node.share or 0.0 for graph in graphs for node in graph.nodes), default=0.0)
    font = FONT.replace("'", "")
    lines = [
        f'digraph {{ nodesep=0.3 ranksep=0.4 pad=0.15 fontname="{font}" labelloc=t labeljust=l',
        "nslimit=1 nslimit1=1 mclimit=0.3" if sum(len(graph.nodes) for graph in graphs) > MANY else "",
        f'node [shape=plain fontname="{font}" fontsize=10.5 fontcolor="{_THEME.text}"]',
        f'edge [arrowsize=0.6 color="#8B949E"] label=<{_table(_head(graphs, title, most), cellpadding=3)}>',
    ]
    for number, graph in enumerate(graphs):
        if len(graphs) > 1:
            label = _table([_words(_short(graph.title, 60), 14, _THEME.text, bold=True), _words(_account(graph), 11)])
            lines.append(f'subgraph cluster_{number} {{ color="#FFFFFF" label=<{label}>')
        lines += [*_drawn(graph, f"g{number}", most, fused), "}" if len(graphs) > 1 else ""]
    return "\n".join([*lines, "}"])


def heat(share: float | None, most: float) -> str:
    """The fill for a share of the run, from none to ``most``."""
    at = min(max((share or 0.0) / most, 0.0), 1.0) * (len(HEAT) - 1) if most > 0 else 0.0
    index = min(int(at), len(HEAT) - 2)
    ends = zip(bytes.fromhex(HEAT[index][1:]), bytes.fromhex(HEAT[index + 1][1:]), strict=True)
    return "#" + "".join(f"{round(low + (high - low) * (at - index)):02X}" for low, high in ends)


def ink(fill: str) -> str:
    """What is written with on a fill: white from the one on that dark letters have less contrast on."""
    red, green, blue = bytes.fromhex(fill[1:])
    return "#FFFFFF" if 0.299 * red + 0.587 * green + 0.114 * blue < 110 else _THEME.text


def clean(text: str) -> str:
    """A name on one line, without what no XML may contain, and no longer than anybody reads."""
    found = plain(text[: LONGEST + 1])
    return f"{found[: LONGEST - 1]}…" if len(text) > LONGEST else found


def _head(graphs: Sequence[Graph], title: str, most: float) -> Iterator[str]:
    """Title, legend and notes."""
    alone = graphs[:1] if len(graphs) == 1 else ()
    names = dict.fromkeys([title, *(graph.title for graph in alone)])
    yield _words(_short(" · ".join(names), 60), 18, _THEME.text, bold=True)
    about = dict.fromkeys(graph.about for graph in graphs if graph.about)
    yield from (_words(_short(words, _NOTE), 12) for words in [*about, *map(_account, alone)])
    if most > 0:
        squares = "".join(_words("■", 15, colour) for colour in HEAT[1:])
        yield squares + _words(f"  up to {percent(most)}: share of a run", 10.5, _THEME.text)
    for note in dict.fromkeys(note for graph in graphs for note in graph.notes):
        yield from (_words(line, 11) for line in textwrap.wrap(clean(note), _NOTE))
    yield _words("", 11)  # room above the first node


def _account(graph: Graph) -> str:
    return plural(graph.layers, "layer") + (f" · whole run {duration(graph.whole)}" if graph.whole else "")


def _drawn(graph: Graph, name: str, most: float, fused: bool) -> Iterator[str]:
    """Regions, nodes and edges of one graph, whose names all begin with ``name``."""
    inside: dict[int, Path] = {}
    yield from _clusters(graph.regions, name, inside)
    for index, node in enumerate(graph.nodes):
        if node.role in ("input", "output"):
            (tensor,) = node.outputs or node.inputs
            said = f"{_short(node.name) or '(no name)'}  {_shape(tensor)}"
            label = f'label={_quoted(said)} shape=box style="rounded,filled" fillcolor="{_DARK}"'
            label += ' fontcolor="#FFFFFF" height=0.3'
            tip = [f"{node.role} of the model", node.name, f"{_shape(tensor)} {tensor.dtype}"]
        else:
            label, tip = f"label=<{_box(node, inside.get(index, ()), most, fused)}>", _tooltip(node)
        yield f"{name}_{index} [{label} tooltip={_quoted(*tip)}]"
    for edge in graph.edges:
        tip = [*map(_tensor, edge.tensors[:20])] if edge.known else ["the order of execution, no tensor"]
        style = "" if edge.known else " style=dashed"
        yield f"{name}_{edge.tail}->{name}_{edge.head} [tooltip={_quoted(*tip)}{style}]"


def _clusters(regions: Sequence[Region], name: str, inside: dict[int, Path], level: int = 0) -> Iterator[str]:
    """Regions as clusters; ``inside`` becomes the deepest region of each node."""
    for region in regions:
        inside.update(dict.fromkeys(region.nodes, region.path))
        above = region.path[: -region.label.count(".") - 1]
        name_of = _words(_short(_numbered(region.label, above), 50), 12, bold=True)
        label = _table([name_of, *([_words(_time(region), 11)] if _time(region) else [])])
        yield f'subgraph cluster_{name}_{level}_{region.nodes[0]} {{ margin=10 style="rounded,filled" color="#D0D7DE"'
        yield f'fillcolor="{("#F6F8FA", "#EEF1F4")[level % 2]}" tooltip={_quoted(".".join(region.path))}'
        yield f"label=<{label}>"
        yield from _clusters(region.inner, name, inside, level + 1)
        yield " ".join(f"{name}_{index}" for index in region.nodes if inside[index] == region.path)
        yield "}"


def _box(node: Node, inside: Path, most: float, fused: bool) -> str:
    """A layer: what it is, what it came from, its time, what it writes; of folded layers, what they are."""
    folded = node.role == "folded"
    fill = heat(node.share, most)
    colour = ink(fill)
    name = _short(
        (_numbered(named([".".join(node.module or ())], inside), inside) or "several layers")
        if folded
        else node.kind or node.name
    )
    sizes = list(dict.fromkeys(filter(None, map(_shape, node.outputs))))
    size = f"{sizes[0]} +{len(sizes) - 1}" if sizes[1:] else "".join(sizes)
    rows = [
        _words(name or "(no name)", 12, colour, bold=True) + _words(f"  {node.precision}", 10, colour, bold=True),
        *(_words(_short(row), 10.5, colour) for row in _rows(node, inside, fused)),
        *([_words("   ".join(filter(None, (_time(node), _short(size)))), 11, colour)] if _time(node) or size else []),
    ]
    band = f'<TD WIDTH="8" ROWSPAN="{len(rows)}" BGCOLOR="{BANDS.get(node.precision, fill)}"></TD>'
    return _table(rows, band, border=3 if folded else 1, cellpadding=3, color=_FRAME, bgcolor=fill)


def _rows(node: Node, inside: Path, fused: bool) -> list[str]:
    """Beneath a layer's kind: what it was fused from, and the modules, or its own name where these are not known."""
    if node.role == "folded":
        most = ", ".join(f"{count} {kind}" for kind, count in Counter(node.operators).most_common(3))
        return [f"{plural(len(node.places), 'layer')}{f' from {most}' if most else ''}"]
    parts = next((item for item in (node.modules, node.operators) if len(item) > 1), ())
    if fused and parts:
        more = [f"and {len(parts) - _PARTS} more"] * (len(parts) > _PARTS)
        return [f"fused from {len(parts)}", *(part or "the model itself" for part in parts[:_PARTS]), *more]
    operators = "= " + " + ".join(node.operators) if len(node.operators) > 1 else ""
    return [row for row in (operators, named(node.modules, inside) or node.name) if row]


def named(paths: Sequence[str], inside: Path = ()) -> str:
    """Modules seen from the one they are drawn in: ``conv1 + bn1``."""
    known = [module_path(path) for path in paths]
    return " + ".join(filter(None, (".".join(p[len(inside) :] if p[: len(inside)] == inside else p) for p in known)))


def _numbered(name: str, inside: Path) -> str:
    """A number alone says nothing: ``layer1.0``."""
    return f"{inside[-1]}.{name}" if inside and name[:1].isdigit() else name


def _tooltip(node: Node) -> list[str]:
    """Everything that is known of a node, a line each, nothing cut."""
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


# Text


def _short(text: str, most: int = _ROW) -> str:
    return without_middle(clean(text), most)


def _words(text: str, size: float, colour: str = _THEME.faint, *, bold: bool = False) -> str:
    """Text of an HTML-like label; Graphviz takes no empty one."""
    said = _escaped(text) or " "
    return f'<FONT POINT-SIZE="{size:g}" COLOR="{colour}">{f"<B>{said}</B>" if bold else said}</FONT>'


def _table(rows: Sequence[str] | Iterator[str], first: str = "", **attributes: object) -> str:
    """A table of an HTML-like label, a cell in each row, after the cell ``first`` in the first."""
    given = {"border": 0, "cellborder": 0, "cellspacing": 0, "cellpadding": 0, **attributes}
    cells = "".join(f'<TR>{"" if at else first}<TD ALIGN="LEFT">{row}</TD></TR>' for at, row in enumerate(rows))
    chosen = "".join(f' {name.upper()}="{value}"' for name, value in given.items())
    return f"<TABLE{chosen}>{cells}</TABLE>"


def _quoted(*lines: str) -> str:
    """Lines as an attribute."""
    return f'"{_escaped(chr(10).join(filter(None, map(clean, lines)))[:TOOLTIP]).replace(chr(10), "&#10;")}"'


def _escaped(text: str) -> str:
    """Text as text; a backslash, which begins words of Graphviz's own, becomes a sign that looks like it."""
    return html.escape(text).replace("\\", "\N{SET MINUS}")


def _time(of: Node | Region) -> str:
    shown = [] if of.seconds is None else [duration(of.seconds)]
    return " · ".join([*shown, *([] if of.share is None else [percent(of.share)])])


def _shape(tensor: Tensor) -> str:
    """``1x64x56x56``; a free dimension is ``?``."""
    return "x".join("?" if size < 0 else str(size) for size in tensor.shape)


def _tensor(tensor: Tensor) -> str:
    return " ".join(filter(None, (_shape(tensor), tensor.dtype, tensor.format, tensor.name)))


FORMATS = ("svg", "png", "html", "json")
MOST_GRAPHS = 6
TALLEST = 30_000  # pixels of a PNG: what most programs open
DEADLINE = 240.0  # seconds
HINT = "a smaller --depth, or --regions none"
# The current folder goes from the path: what lies there is no library.
_CHILD = """
import sys
del sys.path[0]
import pygraphviz
with pygraphviz.AGraph(string=sys.stdin.buffer.read().decode()) as graph:
    sys.stdout.buffer.write(graph.draw(format="svg", prog="dot"))
"""
_DRAWING = re.compile(r'<svg width="([\d.]+)pt"\s+height="([\d.]+)pt"\s+(.*</svg>\n)', re.S)
_NAMES = re.compile(r"<title>.*?</title>")  # of nodes: Graphviz's own, in place of which tooltips are to be seen
_STYLE = """\
body { max-width: none; height: 100vh; box-sizing: border-box; padding-bottom: .6rem; }
body, main { display: flex; flex-direction: column; }
main { flex: 1; min-height: 0; }
figure.white { flex: 1; min-height: 0; max-height: none; margin: .6rem 0 0; overflow: hidden; }
figure.white svg { width: 100%; height: 100%; cursor: grab; touch-action: none; }
.node:hover { filter: drop-shadow(0 0 3px #0072B2); }
.edge:hover path, .cluster:hover path { stroke: #0072B2; stroke-width: 2; }
"""
_SCRIPT = """
const svg = document.querySelector("figure svg");
const [width, height] = ["width", "height"].map(name => Number(svg.getAttribute(name)));
svg.setAttribute("preserveAspectRatio", "xMidYMin meet");
let x, y, scale, held = null;
function show() {
  svg.setAttribute("viewBox", [x, y, svg.clientWidth / scale, svg.clientHeight / scale].join(" "));
}
function fit(whole) {
  scale = Math.min(svg.clientWidth / width, whole ? svg.clientHeight / height : 1.25);
  [x, y] = [(width - svg.clientWidth / scale) / 2, 0];
  show();
}
svg.addEventListener("pointerdown", event => { held = [event.clientX, event.clientY]; });
window.addEventListener("pointerup", () => { held = null; });
window.addEventListener("pointermove", event => {
  if (!held) return;
  x -= (event.clientX - held[0]) / scale;
  y -= (event.clientY - held[1]) / scale;
  held = [event.clientX, event.clientY];
  show();
});
svg.addEventListener("wheel", event => {
  event.preventDefault();
  const old = scale;
  scale = Math.min(Math.max(old * Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), 0.01), 20);
  x += event.clientX / old - event.clientX / scale;
  y += event.clientY / old - event.clientY / scale;
  show();
}, {passive: false});
svg.addEventListener("dblclick", () => fit(true));
window.addEventListener("resize", show);
fit(false);
"""


def render(
    graphs: Sequence[Graph], format: str, *, title: str, fused: bool = False, deadline: float = DEADLINE
) -> str | bytes:
    """Graphs side by side: text for SVG, HTML and JSON, bytes for PNG.

    ``title`` is what all of them are of; ``fused``: whether layers show what they were fused from, a row each.

    Raises:
        InferlensError: for another format, for too many graphs, or if a library is missing.
    """
    check_choice("format of graphs", format, FORMATS)
    if format == "json":
        data = {"schema": SCHEMA, "title": plain(title), "graphs": list(graphs)}
        return msgspec.json.format(msgspec.json.encode(data), indent=1).decode() + "\n"
    if len(graphs) > MOST_GRAPHS:
        raise InferlensError(
            f"These are {len(graphs)} graphs, and {MOST_GRAPHS} at most fit side by side.",
            expected="a folder with fewer cases",
            hint="the folder of one case, such as RESULTS/MODEL/CASE",
        )
    drawn = _svg(graphs, title, fused, deadline)
    if format == "html":
        about = "Drag to move, wheel to zoom, double click to see all."
        picture = Picture("graph", "", lambda _: drawn, white=True)
        return pictured(clean(title), picture, about, style=_STYLE, scripts=[_SCRIPT])
    return _png(drawn) if format == "png" else drawn


def _svg(graphs: Sequence[Graph], title: str, fused: bool, deadline: float) -> str:
    """What Graphviz draws.

    Raises:
        MissingLibrary: if Graphviz is not there.
        InferlensError: if it crashed, or took too long.
    """
    if importlib.util.find_spec("pygraphviz") is None:
        raise MissingLibrary("pygraphviz, which lays graphs out,", extra="graphs")
    nodes, edges = sum(len(graph.nodes) for graph in graphs), sum(len(graph.edges) for graph in graphs)
    what = f"Graphviz cannot lay out {plural(nodes, 'node')} and {plural(edges, 'edge')}"
    child, given = [sys.executable, "-c", _CHILD], dot(graphs, title, fused=fused).encode()
    try:
        done = subprocess.run(child, input=given, capture_output=True, timeout=deadline, check=False)
    except subprocess.TimeoutExpired as error:
        raise InferlensError(f"{what} within {deadline:.0f} seconds.", hint=HINT) from error
    drawn = _DRAWING.search(done.stdout.decode(errors="replace"))
    if drawn is None:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        why = last[0][:200] if last else f"it ended with {done.returncode}"
        raise InferlensError(f"{what}: {why}.", hint=HINT)
    return f'<svg width="{drawn[1]}" height="{drawn[2]}" {_NAMES.sub("", drawn[3])}'


def _png(svg: str) -> bytes:
    """The drawing in pixels, twice as many as units where that is not too many."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingLibrary("vl-convert-python", extra="graphs") from error
    wide, tall = (float(size) for size in re.findall(r'(?:width|height)="([\d.]+)"', svg)[:2])
    scale = min(2.0, TALLEST / max(wide, tall))
    if scale < 0.5:
        raise InferlensError(
            f"The drawing is {tall:,.0f} units high, too many for a PNG.",
            hint="a smaller --depth, or --output graph.svg or graph.html",
        )
    image: bytes = vl_convert.svg_to_png(svg, scale=scale)
    return image
