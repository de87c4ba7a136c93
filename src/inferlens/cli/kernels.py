"""``inferlens kernels``: what the GPU ran for a case, and for how long."""

from __future__ import annotations

from typing import Annotated

import typer

from inferlens.cli import options

BY = "name (a row for each kernel, with all its launches) or launch (a row for each)."
SORT = "time (what takes most first), order (that of execution) or calls (what is launched most first)."
TOP = "Only so many rows. [dim]Default: 20 in tables, all in CSV and JSON.[/dim]"


def kernels(
    paths: options.Profiles,
    by: Annotated[str, typer.Option(help=BY)] = "name",
    sort: Annotated[str, typer.Option(help=SORT)] = "time",
    top: Annotated[int | None, typer.Option(min=1, help=TOP)] = None,
    format: options.Format = "table",
) -> None:
    """Show the kernels of cases profiled with --level kernel: times, launches, occupancy, tensor cores, modules.

    Beneath them is how long the GPU was busy and idle in a run, and what profiling cost.
    """
    from inferlens.cli import screen
    from inferlens.views.profiled.cases import of_level
    from inferlens.views.profiled.kernels import document

    cases = of_level(screen.profiles(paths, format), "kernel")
    screen.document(document(cases, by=by, sort=sort, top=top), format)  # type: ignore[arg-type] # which it checks
