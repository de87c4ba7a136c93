"""Graphs as pictures: nodes coloured by time, marked by precision, in frames of modules; SVG, PNG, HTML or JSON.

Graphviz places and draws, in a process of its own: it is C code that may crash or take for ever on a graph that nobody
has seen yet, and a process has a deadline and leaves this one alive.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from inferlens.analysis.profile.graph import SCHEMA, Graph
from inferlens.errors import InferlensError, MissingLibrary, check_choice
from inferlens.units import plural
from inferlens.views.graph.dot import clean, dot
from inferlens.views.plain import plain
from inferlens.views.renderers.html import pictured
from inferlens.views.report.blocks import Picture

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
with pygraphviz.AGraph(string=sys.stdin.read()) as graph:
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
        picture = Picture("graph", "", lambda: drawn, white=True)
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
