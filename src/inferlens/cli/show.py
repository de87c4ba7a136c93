"""``inferlens show``: look at records again, without measuring and without any framework."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PATHS = "Folders with records, at any height, or record files."
REFERENCE = "The row that speed-ups are against, such as 'onnxruntime:cpu fp32'. \
[dim]Default: pytorch fp32, or else the first that ran.[/dim]"


def show(
    paths: Annotated[list[Path], typer.Argument(help=PATHS)],
    format: Annotated[str, typer.Option("--format", "-f", help="table, markdown, csv or json.")] = "table",
    reference: Annotated[str | None, typer.Option(help=REFERENCE)] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Show what was measured as a table, Markdown, CSV or JSON.

    Of each case the latest record counts. Records of different machines may be shown together; they are never compared
    with each other.
    """
    from inferlens.cli import screen
    from inferlens.store import load_records

    loaded = load_records(paths)
    for problem in loaded.problems:
        screen.note(problem)
    screen.show(loaded.records, "json" if json else format, reference)
