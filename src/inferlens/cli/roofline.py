"""``inferlens roofline``: how far each layer is from the least time that its work takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferlens.cli import options

BY = "layer (as the backend executes them) or module (of the model)."
DEPTH = "With --by module: modules deeper than this count to those above them. [dim]Default: none do.[/dim]"
SORT = "won (where most is to be won first), time (what takes most first) or order (that of execution)."
TOP = "Only so many, those with most to be won. [dim]Default: 20 in tables, all in CSV and JSON.[/dim]"
PLOT = "Draw the rooflines, log-log, into this file instead; .svg, .png or .html decides its format."


def roofline(
    paths: options.Profiles,
    by: Annotated[str, typer.Option(help=BY)] = "layer",
    depth: Annotated[int | None, typer.Option(min=1, help=DEPTH)] = None,
    sort: Annotated[str, typer.Option(help=SORT)] = "won",
    top: Annotated[int | None, typer.Option(min=1, help=TOP)] = None,
    format: options.Format = "table",
    plot: Annotated[Path | None, typer.Option("--plot", help=PLOT, show_default=False)] = None,
) -> None:
    """Show how far layers are from the least time that their work takes on this device, and what there is to be won.

    That floor is the longer of two times: FLOPs at the rate of large matrix products, and bytes at the bandwidth of
    large copies, both measured on the same device.
    """
    from inferlens.cli import screen
    from inferlens.cli.plot import write
    from inferlens.errors import InferlensError
    from inferlens.record.profile_store import load_profiles
    from inferlens.views import picture
    from inferlens.views.profiled import check
    from inferlens.views.profiled.roofline import check_sort, render, roofed
    from inferlens.views.profiled.roofline_plot import not_drawn
    from inferlens.views.profiled.roofline_plot import render as drawing

    check(format)
    check_sort(sort)
    if depth is not None and by != "module":
        raise InferlensError("Layers have no depth.", hint="--by module")
    drawn_as = plot.suffix.lower().removeprefix(".") if plot else ""
    if plot:
        picture.check(drawn_as, "--plot layers.svg")
    loaded = load_profiles(paths)
    for problem in loaded.problems:
        screen.note(problem)
    cases = roofed(loaded, by, depth)  # type: ignore[arg-type] # which it checks
    if plot:
        write(plot, drawing(cases, drawn_as), "--plot")
        for sentence in [f"Wrote {plot}.", *not_drawn(cases)]:
            screen.note(sentence)
        return
    console = screen.output()
    color = console.is_terminal and not console.no_color
    screen.text(render(cases, format, sort=sort, top=top, width=console.width, color=color))
