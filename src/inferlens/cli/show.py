"""``inferlens show``: look at records again, without measuring and without any framework."""

from __future__ import annotations

from inferlens.cli import options


def show(
    paths: options.Records,
    format: options.Format = "table",
    reference: options.Reference = None,
    json: options.Json = False,
) -> None:
    """Show what was measured as a table, Markdown, CSV or JSON.

    Of each case the latest record counts. Records of different machines may be shown together; they are never compared
    with each other.
    """
    from inferlens.cli import screen
    from inferlens.record.store import load_records

    loaded = load_records(paths)
    screen.notes(loaded.problems)
    screen.show(loaded.records, "json" if json else format, reference)
