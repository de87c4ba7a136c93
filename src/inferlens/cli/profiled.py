"""``inferlens findings``, ``modules``, ``layers``, ``kernels`` and ``roofline``: what profiles show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from inferlens.cli import options

DEPTH = "How deep modules are unfolded. [dim]Default: to about 40 rows in tables, all in CSV and JSON.[/dim]"
REFERENCE = "The case of the first column, such as 'onnxruntime:cpu fp32'. \
[dim]Default: the plain one that outputs were checked against, or else the first that ran.[/dim]"
LEVEL = "Whose times are shown: layer or kernel. \
[dim]Default: kernel if all that ran have kernels traced to modules, or else layer.[/dim]"
FUSED = "Layers fused from several modules: whole (to the deepest module that contains them) or split (equally)."
LAYERS_SORT = "time (what takes most first) or order (that of execution)."
KERNELS_SORT = "time (what takes most first), order (that of execution) or calls (what is launched most first)."
FLOORS_SORT = "won (where most is to be won first), time (what takes most first) or order (that of execution)."
KERNELS_BY = "name (a row for each kernel, with all its launches) or launch (a row for each)."
FLOORS_BY = "layer (as the backend executes them) or module (of the model)."
FLOORS_DEPTH = "With --by module: modules deeper than this count to those above them. [dim]Default: none do.[/dim]"
ROWS = "Only so many rows, those that come first. [dim]Default: 20 in tables, all in CSV and JSON.[/dim]"
PLOT = "Draw a picture (box plot or roofline) into this file instead; .svg, .png or .html decides its format."
TRACE = "Write every run as a trace for Perfetto (ui.perfetto.dev) into this file instead; .json or .json.gz."

Top = Annotated[int | None, typer.Option(min=1, help=ROWS)]
Plot = Annotated[Path | None, typer.Option(help=PLOT, show_default=False)]


def findings(
    paths: options.Profiles,
    top: Annotated[int | None, typer.Option(min=1, help="Only so many of each case. [dim]Default: all.[/dim]")] = None,
    format: options.Format = "table",
) -> None:
    """Say in plain words what takes time in profiled cases that need not, with the evidence and what to try.

    Findings come from a closed list of rules, and are ranked by the time that could be won at most. What they could not
    look at is said.
    """
    show_findings(paths, format, top)


def show_findings(paths: Sequence[Path], format: str = "table", top: int | None = None, *, brief: bool = False) -> None:
    """Prints the findings of the profiles under ``paths``; ``brief``: without what is not needed at a glance."""
    from inferlens.cli import screen
    from inferlens.errors import check_choice
    from inferlens.views.profiled.findings import FORMATS, document, judged

    check_choice("format", format, FORMATS)
    loaded = screen.profiles(paths)
    screen.document(document(judged(loaded), top=top, brief=brief), format)


def modules(
    paths: options.Profiles,
    level: Annotated[str | None, typer.Option(help=LEVEL)] = None,
    depth: Annotated[int | None, typer.Option(min=1, help=DEPTH)] = None,
    reference: Annotated[str | None, typer.Option(help=REFERENCE)] = None,
    fused: Annotated[str, typer.Option(help=FUSED)] = "whole",
    format: options.Format = "table",
) -> None:
    """Show where the time goes by module of the model: modules as rows, backends as columns.

    Profiles of one model, the same inputs and one machine share a table. What no module can be named for has a row of
    its own, so that every column adds up to its whole: of layers to a profiled run, of kernels to all kernels.
    """
    from inferlens.cli import screen
    from inferlens.views.profiled.cases import groups
    from inferlens.views.profiled.modules import document

    loaded = groups(screen.profiles(paths, format))
    shown = document(loaded, level=level, depth=depth, reference=reference, fused=fused)  # type: ignore[arg-type]
    screen.document(shown, format)


def layers(
    paths: options.Profiles,
    sort: Annotated[str, typer.Option(help=LAYERS_SORT)] = "time",
    top: Top = None,
    format: options.Format = "table",
    plot: Plot = None,
    trace: Annotated[Path | None, typer.Option(help=TRACE, show_default=False)] = None,
) -> None:
    """Show the layers of profiled cases: what each is, mean, median and 95th percentile over the runs, and its share.

    Beneath them is what they add up to, what is in no layer, and what profiling cost.
    """
    from inferlens.cli import screen
    from inferlens.views.profiled import perfetto
    from inferlens.views.profiled.cases import of_level
    from inferlens.views.profiled.parts import document, shown

    if trace:
        perfetto.check_file(trace)
    drawn_as = picture_format(plot, "layers.svg")
    loaded = screen.profiles(paths, format)
    cases = of_level(loaded, "layer")
    if plot:
        from inferlens.views.profiled.plots import boxes

        written(plot, boxes(shown("layer", cases, sort), drawn_as, top), "--plot")
    if trace:
        written(trace, perfetto.render(loaded, compressed=trace.suffix.lower() == ".gz"), "--trace")
    if not (plot or trace):
        screen.document(document("layer", cases, sort=sort, top=top), format)


def picture_format(plot: Path | None, example: str) -> str:
    """The format of a picture by its file's name, if it has one."""
    from inferlens.views import picture

    format = plot.suffix.lower().removeprefix(".") if plot else "svg"
    picture.check(format, f"--plot {example}")
    return format


def written(file: Path, drawing: tuple[str | bytes, Sequence[str]], option: str) -> None:
    """Writes a picture or a trace, and says which cases are not in it."""
    from inferlens.cli import screen
    from inferlens.cli.plot import write

    write(file, drawing[0], option)
    screen.notes([f"Wrote {file}.", *drawing[1]])


def kernels(
    paths: options.Profiles,
    by: Annotated[str, typer.Option(help=KERNELS_BY)] = "name",
    sort: Annotated[str, typer.Option(help=KERNELS_SORT)] = "time",
    top: Top = None,
    format: options.Format = "table",
) -> None:
    """Show the kernels of cases profiled with --level kernel: times, launches, occupancy, tensor cores, modules.

    Beneath them is how long the GPU was busy and idle in a run, and what profiling cost.
    """
    from inferlens.cli import screen
    from inferlens.views.profiled.cases import of_level
    from inferlens.views.profiled.parts import document

    cases = of_level(screen.profiles(paths, format), "kernel")
    screen.document(document("kernel", cases, sort=sort, top=top, by=by), format)  # type: ignore[arg-type] # which it checks


def roofline(
    paths: options.Profiles,
    by: Annotated[str, typer.Option(help=FLOORS_BY)] = "layer",
    depth: Annotated[int | None, typer.Option(min=1, help=FLOORS_DEPTH)] = None,
    sort: Annotated[str, typer.Option(help=FLOORS_SORT)] = "won",
    top: Top = None,
    format: options.Format = "table",
    plot: Plot = None,
) -> None:
    """Show how far layers are from the least time that their work takes on this device, and what there is to be won.

    That floor is the longer of two times: FLOPs at the rate of large matrix products, and bytes at the bandwidth of
    large copies, both measured on the same device.
    """
    from inferlens.cli import screen
    from inferlens.errors import InferlensError
    from inferlens.views.profiled.roofline import document, roofed

    if depth is not None and by != "module":
        raise InferlensError("Layers have no depth.", hint="--by module")
    drawn_as = picture_format(plot, "roofline.svg")
    cases = roofed(screen.profiles(paths, format), by, depth, sort)  # type: ignore[arg-type] # which it checks
    if plot:
        from inferlens.views.profiled.plots import rooflines

        written(plot, rooflines(cases, drawn_as), "--plot")
    else:
        screen.document(document(cases, top=top), format)
