"""Where everything goes: Graphviz lays a graph out, in a process of its own.

Graphviz is given numbers alone, no names, so that no name can break out of its language. It is C code that may crash or
take for ever on a graph that nobody has seen yet; a process has a deadline and leaves this one alive.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inferlens.analysis.profile.graph import Edge, Graph, Region
from inferlens.errors import InferlensError, MissingLibrary
from inferlens.units import duration, plural
from inferlens.views.graph.boxes import Box
from inferlens.views.graph.words import clean, fitted, part, width

DEADLINE = 240.0  # seconds
MANY = 400  # nodes, from which on less time is spent on each
LABEL = 12.0  # size of the type of a region's label
HINT = "a smaller --depth, or --regions none"
# The current folder goes from the path: what lies there is no library.
_CHILD = """
import sys
del sys.path[0]
import pygraphviz
with pygraphviz.AGraph(string=sys.stdin.read()) as graph:
    sys.stdout.buffer.write(graph.draw(format="json", prog="dot"))
"""

Point = tuple[float, float]


@dataclass
class Placed:
    """Where a drawing's parts are, from its upper left corner.

    Attributes:
        nodes: centre of each node.
        edges: for each edge its line, cubic Bézier curves, and the corners of its arrowhead.
        regions: left, top, right, bottom of each region by its number, in the order of :func:`numbered`.
    """

    width: float
    height: float
    nodes: dict[int, Point] = field(default_factory=dict)
    edges: dict[int, tuple[list[Point], list[Point]]] = field(default_factory=dict)
    regions: dict[int, tuple[float, float, float, float]] = field(default_factory=dict)


def placed(graph: Graph, boxes: Sequence[Box]) -> Placed:
    """Lays a graph out, from top to bottom, the longest chain of layers as straight as can be.

    Raises:
        MissingLibrary: if Graphviz is not there.
        InferlensError: if it crashed, or took too long.
    """
    if importlib.util.find_spec("pygraphviz") is None:
        raise MissingLibrary("pygraphviz, which lays graphs out,", extra="graphs")
    what = f"Graphviz cannot lay out {plural(len(graph.nodes), 'node')} and {plural(len(graph.edges), 'edge')}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD],
            input="\n".join(_dot(graph, boxes)).encode(),
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
        told = msgspec.json.decode(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise InferlensError(f"{what} within {DEADLINE:.0f} seconds.", hint=HINT) from error
    except msgspec.DecodeError as error:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        why = last[0][:200] if last else f"it ended with {done.returncode}"
        raise InferlensError(f"{what}: {why}.", hint=HINT) from error
    return _read(told)


def numbered(regions: Sequence[Region]) -> Iterator[Region]:
    """All regions, those inside of others right behind these; a region's number is its place here."""
    for region in regions:
        yield region
        yield from numbered(region.inner)


def spine(edges: Sequence[Edge], count: int) -> set[tuple[int, int]]:
    """The edges of the longest chain of nodes, along edges that lead on in the order of execution."""
    before: dict[int, int] = {}
    length = [0] * count
    # The model's inputs stand behind the layers, and their edges lead back: these are none of the chain.
    for edge in sorted(edges, key=lambda each: each.head):
        if edge.tail < edge.head and length[edge.tail] + 1 > length[edge.head]:
            length[edge.head], before[edge.head] = length[edge.tail] + 1, edge.tail
    chain: set[tuple[int, int]] = set()
    at = max(range(count), key=lambda index: length[index], default=0)
    while at in before:
        chain.add((before[at], at))
        at = before[at]
    return chain


def label_of(region: Region) -> str:
    """What a region is called where it is drawn, and how long it takes."""
    time = "" if region.seconds is None else f" · {duration(region.seconds)}"
    share = "" if region.share is None else f" · {part(region.share)}"
    return fitted(clean(region.label), 340.0, LABEL, bold=True) + time + share


def _dot(graph: Graph, boxes: Sequence[Box]) -> Iterator[str]:
    """The graph in Graphviz's language; sizes of nodes are inches of 72 units."""
    yield "digraph {"
    yield 'rankdir=TB nodesep=0.3 ranksep=0.47 splines=spline outputorder=edgesfirst fontname=""'
    if len(boxes) > MANY:
        yield "nslimit=1 nslimit1=1 mclimit=0.3"
    yield 'node [shape=box fixedsize=true label=""] edge [arrowsize=0.6]'
    chain = spine(graph.edges, len(boxes))
    straight = {index for pair in chain for index in pair}
    for index, box in enumerate(boxes):
        group = " group=1" if index in straight else ""
        yield f"n{index} [width={box.width / 72:.4f} height={box.height / 72:.4f}{group}]"
    yield from _clusters(graph.regions, iter(range(10**9)))
    for number, edge in enumerate(graph.edges):
        weight = 100 if (edge.tail, edge.head) in chain else 1
        yield f'n{edge.tail}->n{edge.head} [weight={weight} id="{number}"]'
    yield "}"


def _clusters(regions: Sequence[Region], numbers: Iterator[int]) -> Iterator[str]:
    for region in regions:
        wide = min(width(label_of(region), LABEL, bold=True) + 8, 480.0)
        yield f"subgraph cluster_{next(numbers)} {{"
        yield f'margin=10 labeljust=l label=<<TABLE BORDER="0" FIXEDSIZE="TRUE" WIDTH="{wide:.0f}" HEIGHT="18">'
        yield "<TR><TD></TD></TR></TABLE>>"
        yield " ".join(f"n{index}" for index in region.nodes)
        yield from _clusters(region.inner, numbers)
        yield "}"


def _read(told: dict[str, Any]) -> Placed:
    """Graphviz's JSON; it counts upwards from the lower left corner."""
    page = _points(told.get("_draw_", ()), "P")
    wide, tall = max(x for x, _ in page), max(y for _, y in page)

    def turned(points: list[list[float]]) -> list[Point]:
        return [(x, tall - y) for x, y in points]

    found = Placed(wide, tall)
    for each in told.get("objects", ()):
        corners = turned(_points(each.get("_draw_", ()), "p", "P"))
        name = each["name"]
        xs, ys = [x for x, _ in corners], [y for _, y in corners]
        if name.startswith("cluster_"):
            found.regions[int(name.removeprefix("cluster_"))] = (min(xs), min(ys), max(xs), max(ys))
        else:
            found.nodes[int(name.removeprefix("n"))] = ((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2)
    for each in told.get("edges", ()):
        line, head = _points(each.get("_draw_", ()), "b", "B"), _points(each.get("_hdraw_", ()), "P", "p")
        found.edges[int(each["id"])] = (turned(line), turned(head))
    return found


def _points(drawn: Sequence[dict[str, Any]], *kinds: str) -> list[list[float]]:
    return next((each["points"] for each in drawn if each["op"] in kinds), [])
