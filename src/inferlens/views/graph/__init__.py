"""Graphs as pictures: nodes coloured by time, marked by precision, in regions of modules; SVG, PNG, HTML or JSON.

Graphviz says where everything goes; the drawing is our own, so that text from a file is only ever text, and so that a
picture is the same wherever it is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inferlens.analysis.profile.graph import SCHEMA, Graph
from inferlens.errors import InferlensError, MissingLibrary
from inferlens.views.graph.page import page
from inferlens.views.graph.sheet import Sheet, sheet
from inferlens.views.graph.words import clean

FORMATS = ("svg", "png", "html", "json")
MOST_GRAPHS = 6
TALLEST = 30_000  # pixels of a PNG: what most programs open


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
        fused: whether layers show what they were fused from as a region inside of them.

    Raises:
        InferlensError: for another format, for too many graphs, or if a library is missing.
    """
    check_format(format)
    if format == "json":
        data = {"schema": SCHEMA, "title": clean(title), "graphs": list(graphs)}
        return msgspec.json.format(msgspec.json.encode(data), indent=1).decode() + "\n"
    if len(graphs) > MOST_GRAPHS:
        raise InferlensError(
            f"These are {len(graphs)} graphs, and {MOST_GRAPHS} at most fit side by side.",
            expected="a folder with fewer cases",
            hint="the folder of one case, such as results/resnet18/onnxruntime-cpu-fp32-b1-cpu",
        )
    made = sheet(graphs, title, fused=fused)
    if format == "html":
        return page(made.svg, clean(title))
    return _png(made) if format == "png" else made.svg


def _png(made: Sheet) -> bytes:
    """The drawing in pixels, twice as many as units where that is not too many."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingLibrary("vl-convert-python", extra="graphs") from error
    scale = min(2.0, TALLEST / max(made.width, made.height))
    if scale < 0.5:
        raise InferlensError(
            f"The drawing is {made.height:,.0f} units high, too many for a PNG.",
            hint="a smaller --depth, or --output graph.svg or graph.html",
        )
    image: bytes = vl_convert.svg_to_png(made.svg, scale=scale)
    return image
