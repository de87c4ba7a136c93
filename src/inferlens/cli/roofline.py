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
    from inferlens.views import picture
    from inferlens.views.profiled import roofline_plot
    from inferlens.views.profiled.roofline import document, roofed

    if depth is not None and by != "module":
        raise InferlensError("Layers have no depth.", hint="--by module")
    drawn_as = plot.suffix.lower().removeprefix(".") if plot else "svg"
    picture.check(drawn_as, "--plot roofline.svg")
    cases = roofed(screen.profiles(paths, format), by, depth)  # type: ignore[arg-type] # which it checks
    if plot:
        write(plot, roofline_plot.render(cases, drawn_as), "--plot")
        screen.notes([f"Wrote {plot}.", *roofline_plot.not_drawn(cases)])
    else:
        screen.document(document(cases, sort=sort, top=top), format)
