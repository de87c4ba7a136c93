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
    from inferlens.analysis.profile.kernels import WAYS
    from inferlens.cli import screen
    from inferlens.errors import check_choice
    from inferlens.record.profile_store import load_profiles
    from inferlens.views.profiled import check
    from inferlens.views.profiled.cases import groups
    from inferlens.views.profiled.kernels import check_sort, render

    check(format)
    check_sort(sort)
    check_choice("way to group kernels", by, WAYS)
    loaded = load_profiles(paths)
    for problem in loaded.problems:
        screen.note(problem)
    cases = [case for group in groups(loaded, "kernel") for case in group]
    console = screen.output()
    color = console.is_terminal and not console.no_color
    drawn = render(cases, format, sort=sort, by=by, top=top, width=console.width, color=color)  # type: ignore[arg-type] # which it checks
    screen.text(drawn)
