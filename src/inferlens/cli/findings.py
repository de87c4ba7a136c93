"""``inferlens findings``: what is worth knowing of profiled cases, in plain words, most important first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from inferlens.cli import options

TOP = "Only so many findings of each case. [dim]Default: all.[/dim]"


def findings(
    paths: options.Profiles,
    top: Annotated[int | None, typer.Option(min=1, help=TOP)] = None,
    format: options.Format = "table",
) -> None:
    """Say in plain words what takes time in profiled cases that need not, with the evidence and what to try.

    Findings come from a closed list of rules, and are ranked by the time that could be won at most. What they could not
    look at is said.
    """
    show(paths, format, top)


def show(paths: Sequence[Path], format: str = "table", top: int | None = None, *, brief: bool = False) -> None:
    """Prints the findings of the profiles under ``paths``; ``brief`` as ``views.profiled.findings.document`` takes it.

    Raises:
        InferlensError: if there is no profile, or no such format.
    """
    from inferlens.cli import screen
    from inferlens.errors import check_choice
    from inferlens.views.profiled.findings import FORMATS, document, judged
    from inferlens.views.table import render

    check_choice("format", format, FORMATS)
    loaded = screen.profiles(paths)
    console = screen.output()
    color = console.is_terminal and not console.no_color
    screen.text(render(document(judged(loaded), top=top, brief=brief), format, width=console.width, color=color))
