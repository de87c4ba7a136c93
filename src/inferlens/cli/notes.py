"""``inferlens notes``: what has to be known of records before one relies on them."""

from __future__ import annotations

from typing import Annotated

import typer

from inferlens.cli import options, screen

ALL = "All of it, case by case, however long it is."


def notes(
    paths: options.Records,
    all: Annotated[bool, typer.Option("--all", help=ALL)] = False,
    format: options.Format = "table",
    json: options.Json = False,
    output: options.Output = None,
) -> None:
    """Say what changes the answer of records, what weakens it, and what is good to know; each with what to do.

    Notes are worked out anew from the latest run of each case; nothing is measured.
    """
    import shlex

    from inferlens.record.store import load_records
    from inferlens.views.notes import document

    format = "json" if json else format
    loaded = load_records(paths)
    screen.notes(loaded.problems)
    given = " ".join(shlex.quote(str(path)) for path in paths)
    screen.document(document(loaded.records, every=all, paths=given), format, output=output)
