"""``inferlens graph``: what a backend executes, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PATHS = "Folders with profiles, at any height, profile files, .onnx files, or trt_engine_info.json of an engine."
OUTPUT = "The file to write; .svg, .png, .html or .json decides its format."
REGIONS = "module (regions around modules), fused (what each layer was fused from, inside of it) or none."
DEPTH = "How deep modules are unfolded; deeper layers become one node. [dim]Default: to about 90 nodes.[/dim]"


def graph(
    paths: Annotated[list[Path], typer.Argument(help=PATHS)],
    output: Annotated[Path, typer.Option("--output", "-o", help=OUTPUT)] = Path("graph.svg"),
    regions: Annotated[str, typer.Option(help=REGIONS)] = "module",
    depth: Annotated[int | None, typer.Option(min=1, help=DEPTH)] = None,
) -> None:
    """Draw the layers that a backend executes, and the tensors between them: times as colours, precisions as marks.

    Several cases are drawn side by side. An .onnx file has nodes and no times. The HTML file can be moved and enlarged,
    and needs no network.
    """
    from inferlens.analysis.profile.graph_fold import check_regions, graph_of
    from inferlens.cli import screen
    from inferlens.cli.graph_sources import sources_of
    from inferlens.cli.plot import write
    from inferlens.views.graph import check_format, render

    format = output.suffix.lower().removeprefix(".")
    check_format(format)
    check_regions(regions)
    title, sources, problems = sources_of(paths)
    for problem in problems:
        screen.note(problem)
    graphs = [graph_of(source, regions=regions, depth=depth) for source in sources]
    with screen.busy("Drawing"):
        drawn = render(graphs, format, title=title, fused=regions == "fused")
    write(output, drawn)
    for note in dict.fromkeys(note for one in graphs for note in one.notes):
        screen.note(note)
    screen.note(f"Wrote {output}.")
