"""``inferlens graph``: pictures of what backends execute, from profiles, ONNX files and information on engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferlens.cli import screen
from inferlens.errors import InferlensError, check_choice
from inferlens.units import plural
from inferlens.views.table import plain

if TYPE_CHECKING:
    from inferlens.analysis.graph import GraphSource

PATHS = "Folders with profiles, at any depth, profile files, .onnx files, or trt_engine_info.json of an engine."
OUTPUT = "The file to write; .svg, .png, .html or .json decides the format."
REGIONS = "module (a frame around each module), fused (each layer lists what it was fused from) or none."
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
    from inferlens.analysis import graph as graph_fold
    from inferlens.views.graph import FORMATS, render_graphs

    format = output.suffix.lower().removeprefix(".")
    check_choice("format of graphs", format, FORMATS)
    check_choice("kind of regions", regions, graph_fold.REGIONS)
    title, sources, problems = sources_of(paths)
    screen.notes(problems)
    graphs = [graph_fold.build_graph(source, regions=regions, depth=depth) for source in sources]
    with screen.busy("Drawing"):
        drawing = render_graphs(graphs, format, title=title, fused=regions == "fused")
    screen.notes(dict.fromkeys(note for graph in graphs for note in graph.notes))
    screen.save(output, drawing)


def sources_of(paths: Sequence[Path]) -> tuple[str, list[GraphSource], list[str]]:
    """Return the title, all graphs that can be drawn under ``paths``, and the problems of reading them.

    Raises InferlensError if a path does not exist, or there is nothing to draw.
    """
    from inferlens.analysis.graph import profile_source
    from inferlens.record.store import LoadedProfiles, load_profiles
    from inferlens.views.profiles.cases import group_profiles

    files = {path: source for path in paths if (source := _file(path))}
    profiles = [path for path in paths if path not in files]
    loaded = load_profiles(profiles) if profiles else LoadedProfiles()
    sources, problems, titles = list(files.values()), list(loaded.problems), [path.name for path in files]
    left_out: dict[str, list[str]] = {}
    for case in (case for group in group_profiles(loaded, "layer") for case in group):
        graph = profile_source(case.profile, case.name, case.headline, case.unprofiled)
        if isinstance(graph, str) or not graph.layers:
            reason = graph if isinstance(graph, str) else "It has no layers."
            left_out.setdefault(reason, []).append(case.name)
        else:
            sources.append(graph)
            titles.append(case.profile.case.model)
    for reason, names in left_out.items():
        others = f" and {plural(len(names) - 1, 'other case')}" if len(names) > 1 else ""
        problems.append(plain(f"Not drawn: {names[0]}{others}. {reason}"))
    if not sources:
        raise InferlensError(f"There is nothing to draw: {' '.join(problems)}", hint="inferlens profile MODEL")
    return plain(" and ".join(dict.fromkeys(titles))), sources, problems


def _file(path: Path) -> GraphSource | None:
    """Return the graph of an ONNX file or of the information on an engine; ``None`` for other files."""
    from inferlens.analysis.graph import GraphSource
    from inferlens.backends.onnx.graph import onnx_layers
    from inferlens.backends.tensorrt.layers import engine_source, is_engine_information
    from inferlens.record.file_kind import FileType, file_kind

    if not path.is_file():
        return None
    if file_kind(path).kind is FileType.ONNX or path.suffix.lower() == ".onnx":
        read = onnx_layers(path)
        about = f"ONNX file · {plural(len(read.layers), 'node')} · no times"
        return GraphSource(
            title=plain(path.name), about=about, layers=read.layers,
            inputs=read.inputs, outputs=read.outputs, notes=read.notes,
        )  # fmt: skip
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InferlensError(f"{path} cannot be read: {error.strerror}.") from error
    return engine_source(data, plain(path.name)) if is_engine_information(data) else None
