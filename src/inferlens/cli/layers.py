"""``inferlens layers``: where the time of a case goes, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferlens.cli import options

SORT = "time (what takes most first) or order (that of execution)."
TOP = "Only so many layers, those that take most. [dim]Default: 20 in tables, all in CSV and JSON.[/dim]"

PLOT = "Draw the layers' times as a box plot into this file instead; .svg, .png or .html decides its format."
TRACE = "Write every run as a trace for Perfetto (ui.perfetto.dev) into this file instead; .json or .json.gz."


def layers(
    paths: options.Profiles,
    sort: Annotated[str, typer.Option(help=SORT)] = "time",
    top: Annotated[int | None, typer.Option(min=1, help=TOP)] = None,
    format: options.Format = "table",
    plot: Annotated[Path | None, typer.Option("--plot", help=PLOT, show_default=False)] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help=TRACE, show_default=False)] = None,
) -> None:
    """Show the layers of profiled cases: what each is, mean, median and 95th percentile over the runs, and its share.

    Beneath them is what they add up to, what is in no layer, and what profiling cost.
    """
    from inferlens.cli import screen
    from inferlens.cli.plot import write
    from inferlens.views import picture
    from inferlens.views.profiled import boxes, perfetto
    from inferlens.views.profiled.cases import of_level
    from inferlens.views.profiled.layers import document

    drawn_as = plot.suffix.lower().removeprefix(".") if plot else "svg"
    picture.check(drawn_as, "--plot layers.svg")
    if trace:
        perfetto.check_file(trace)
    loaded = screen.profiles(paths, format)
    cases = of_level(loaded, "layer")
    if plot:
        write(plot, boxes.render(cases, drawn_as, sort=sort, top=top), "--plot")
        screen.notes([f"Wrote {plot}.", *boxes.not_drawn(cases)])
    if trace:
        traced = perfetto.every_level(loaded)
        write(trace, perfetto.render(traced, compressed=trace.suffix.lower() == ".gz"), "--trace")
        screen.notes([f"Wrote {trace}.", *perfetto.not_drawn(traced)])
    if not (plot or trace):
        screen.document(document(cases, sort=sort, top=top), format)
