"""``inferlens trace``: what a profiler's trace shows: where the time goes, on the host and on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferlens.cli import options

PATH = (
    "A trace file (.json, .json.gz, .json.zst), a pipe or - for the standard input, a folder of the traces of a job's "
    "ranks, or one of log folders."
)
VIEW = "overview, operators, kernels, modules, memory, steps or timeline; or several, with commas."
AGAINST = "The base: show what FILE gains and loses against it."
STEP = "Look at one step alone, by its number. [dim]Default: all of them.[/dim]"
BY = "Rows by more than their names: shapes or stack (of operators), operator (of kernels)."
DEPTH = "How deep modules are unfolded. [dim]Default: those that take most in tables, all in CSV and JSON.[/dim]"
TOP = "So many rows. [dim]Default: 10 in tables and pages, all in CSV and JSON.[/dim]"
PLOT = (
    "Draw what each step went to, or of several traces the mean step, into this file instead; .svg, .png, .pdf or "
    ".html decides its format."
)


def trace(
    path: Annotated[Path, typer.Argument(help=PATH, metavar="FILE|DIR", show_default=False, allow_dash=True)],
    view: Annotated[str, typer.Option(help=VIEW)] = "overview",
    against: Annotated[Path | None, typer.Option(help=AGAINST, show_default=False)] = None,
    step: Annotated[str | None, typer.Option(help=STEP, show_default=False)] = None,
    by: Annotated[str, typer.Option(help=BY)] = "name",
    top: Annotated[int | None, typer.Option(min=1, help=TOP)] = None,
    depth: Annotated[int | None, typer.Option(min=1, help=DEPTH)] = None,
    wide: options.Wide = False,
    columns: options.Columns = None,
    plot: Annotated[Path | None, typer.Option(help=PLOT, show_default=False)] = None,
    format: options.Format = "table",
    output: options.Output = None,
) -> None:
    """Show what a trace of torch.profiler says: ours, or anybody's.

    It measures nothing and needs no framework. Damaged traces are read as far as possible, with a remark.
    """
    from inferlens.cli import show_trace
    from inferlens.cli.profile import picture_format, written

    drawn_as = picture_format(plot, "steps.svg")
    if plot:
        from inferlens.views.traced.step_chart import render

        written(plot, (render(path, drawn_as, step=step), []), "--plot")
        return
    show_trace(
        path, view=view, against=against, step=step, by=by, top=top, depth=depth,
        wide=wide, columns=columns, format=format, output=output,
    )  # fmt: skip
