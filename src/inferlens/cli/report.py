"""``inferlens report``: everything that is known of one or many models on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferlens.cli import screen
from inferlens.errors import check_choice

PATHS = "Folders with records, profiles, tunings or traces, at any height."
OUTPUT = "The file to write; .html, .pdf, or .md with its pictures beside it."
ENDINGS = (".html", ".pdf", ".md")
OPEN = "Open it in the browser."


def report(
    paths: Annotated[list[Path], typer.Argument(help=PATHS, show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help=OUTPUT)] = Path("report.html"),
    open: Annotated[bool, typer.Option("--open", help=OPEN)] = False,
) -> None:
    """Write everything that is known of one or many models on one page: answer, comparison, profiles, tunings, traces.

    It measures nothing and needs no framework. The page loads nothing: it can be sent, and read without a network.
    """
    from inferlens.views import picture
    from inferlens.views.report.found import found_in
    from inferlens.views.report.page import report as made

    check_choice("ending of a report", output.suffix.lower(), ENDINGS)
    format = screen.format_of("table", output)
    picture.converter()
    with screen.busy("Drawing"):
        found = found_in(paths)
        screen.notes(found.problems)
        screen.report(made(found), output, format)
    if open:
        typer.launch(str(output.resolve()))
