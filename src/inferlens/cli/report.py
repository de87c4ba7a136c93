"""``inferlens report``: everything that is known of one or many models on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PATHS = "Folders with records, profiles, tunings or traces, at any height."
OUTPUT = "The file to write; .html, or .md with its pictures beside it."
ENDINGS = (".html", ".md")
OPEN = "Open it in the browser."


def report(
    paths: Annotated[list[Path], typer.Argument(help=PATHS, show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help=OUTPUT)] = Path("report.html"),
    open: Annotated[bool, typer.Option("--open", help=OPEN)] = False,
) -> None:
    """Write everything that is known of one or many models on one page: answer, comparison, profiles, tunings, traces.

    It measures nothing and needs no framework. The page loads nothing: it can be sent, and read without a network.
    """
    from inferlens.cli import screen
    from inferlens.errors import check_choice
    from inferlens.views import picture
    from inferlens.views.renderers import html, markdown
    from inferlens.views.report.found import found_in
    from inferlens.views.report.page import report as made

    check_choice("ending of a report", output.suffix.lower(), ENDINGS)
    screen.format_of("html", output)
    picture.converter()
    with screen.busy("Drawing"):
        found = found_in(paths)
        whole = made(found)
        pictures = output.with_suffix("").name + "-pictures"
        drawn, files = (
            markdown.render_report(whole, pictures) if output.suffix == ".md" else (html.render_report(whole), {})
        )
    for name, data in files.items():
        (output.parent / pictures).mkdir(exist_ok=True)
        screen.write(output.parent / pictures / name, data)
    screen.write(output, drawn)
    screen.notes([*found.problems, f"Wrote {output}."])
    if open:
        typer.launch(str(output.resolve()))
