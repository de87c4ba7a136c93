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
from inferlens.errors import InferlensError, MissingLibrary
from inferlens.units import plural
from inferlens.views.graph.dot import clean, dot, head
from inferlens.views.graph.page import page
from inferlens.views.plain import plain

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
for text in sys.stdin.read().split("\\0"):
    with pygraphviz.AGraph(string=text) as graph:
        sys.stdout.buffer.write(graph.draw(format="svg", prog="dot"))
"""
_DRAWING = re.compile(
    r'<svg width="[^"]+"\s+height="[^"]+"\s+viewBox="0.00 0.00 ([\d.]+) ([\d.]+)"[^>]*>(.*?)</svg>', re.S
)
_NAMES = re.compile(r"<title>.*?</title>")  # of nodes: Graphviz's own, in place of which tooltips are to be seen
GAP = 36  # between drawings


def check_format(format: str) -> None:
    """Refuses a format that there is not.

    Raises:
        InferlensError: if there is no such format.
    """
    if format not in FORMATS:
        raise InferlensError(
            f"A graph cannot be written as '{format}'.", expected=", ".join(FORMATS), hint="--output graph.svg"
        )


def render(graphs: Sequence[Graph], format: str, *, title: str, fused: bool = False) -> str | bytes:
    """Graphs side by side: text for SVG, HTML and JSON, bytes for PNG.

    Args:
        graphs: at least one.
        format: one of :data:`FORMATS`.
        title: what all of them are of.
        fused: whether layers show what they were fused from as a frame inside of them.

    Raises:
        InferlensError: for another format, for too many graphs, or if a library is missing.
    """
    check_format(format)
    if format == "json":
        data = {"schema": SCHEMA, "title": plain(title), "graphs": list(graphs)}
        return msgspec.json.format(msgspec.json.encode(data), indent=1).decode() + "\n"
    if len(graphs) > MOST_GRAPHS:
        raise InferlensError(
            f"These are {len(graphs)} graphs, and {MOST_GRAPHS} at most fit side by side.",
            expected="a folder with fewer cases",
            hint="the folder of one case, such as RESULTS/MODEL/CASE",
        )
    drawn = _svg(graphs, title, fused)
    if format == "html":
        return page(drawn, clean(title))
    return _png(drawn) if format == "png" else drawn


def _svg(graphs: Sequence[Graph], title: str, fused: bool) -> str:
    """What Graphviz draws, from top to bottom.

    Raises:
        MissingLibrary: if Graphviz is not there.
        InferlensError: if it crashed, or took too long.
    """
    if importlib.util.find_spec("pygraphviz") is None:
        raise MissingLibrary("pygraphviz, which lays graphs out,", extra="graphs")
    nodes, edges = sum(len(graph.nodes) for graph in graphs), sum(len(graph.edges) for graph in graphs)
    what = f"Graphviz cannot lay out {plural(nodes, 'node')} and {plural(edges, 'edge')}"
    most = max((node.share or 0.0 for graph in graphs for node in graph.nodes), default=0.0)
    texts = [head(graphs, title, most), *(dot(each, most, fused=fused, heading=len(graphs) > 1) for each in graphs)]
    child, told = [sys.executable, "-c", _CHILD], "\0".join(texts).encode()
    try:
        done = subprocess.run(child, input=told, capture_output=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired as error:
        raise InferlensError(f"{what} within {DEADLINE:.0f} seconds.", hint=HINT) from error
    drawn = _DRAWING.findall(done.stdout.decode(errors="replace"))
    if len(drawn) != len(texts):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        why = last[0][:200] if last else f"it ended with {done.returncode}"
        raise InferlensError(f"{what}: {why}.", hint=HINT)
    return _beside(drawn)


def _beside(drawn: Sequence[tuple[str, str, str]]) -> str:
    """The first drawing above, the others beneath it side by side; each is its width, its height and its content."""
    sizes = [(float(wide), float(tall)) for wide, tall, _ in drawn]
    below = sum(wide + GAP for wide, _ in sizes[1:]) - GAP
    whole = max(sizes[0][0], below) + GAP, sizes[0][1] + GAP + max(tall for _, tall in sizes[1:])
    size = f'width="{whole[0]:.0f}" height="{whole[1]:.0f}"'
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    parts = [f'<svg {spaces} {size} viewBox="0 0 {whole[0]:.0f} {whole[1]:.0f}">']
    parts.append('<rect width="100%" height="100%" fill="#FFFFFF"/>')
    x, y = GAP / 2, 0.0
    for number, ((wide, tall), (_, _, content)) in enumerate(zip(sizes, drawn, strict=True)):
        box = f'x="{x:.1f}" y="{y:.1f}" width="{wide:g}" height="{tall:g}" viewBox="0 0 {wide:g} {tall:g}"'
        parts.append(f"<svg {box}>{_NAMES.sub('', content)}</svg>")
        x, y = (x + wide + GAP, y) if number else ((whole[0] - below) / 2, sizes[0][1] + GAP / 2)
    return "\n".join([*parts, "</svg>", ""])


def _png(svg: str) -> bytes:
    """The drawing in pixels, twice as many as units where that is not too many."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingLibrary("vl-convert-python", extra="graphs") from error
    wide, tall = map(float, re.findall(r'(?:width|height)="(\d+)"', svg)[:2])
    scale = min(2.0, TALLEST / max(wide, tall))
    if scale < 0.5:
        raise InferlensError(
            f"The drawing is {tall:,.0f} units high, too many for a PNG.",
            hint="a smaller --depth, or --output graph.svg or graph.html",
        )
    image: bytes = vl_convert.svg_to_png(svg, scale=scale)
    return image
