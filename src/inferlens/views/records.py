"""Records as a document: a table for each model and machine, notes beneath, the verdict last.

Which rows there are is said in ``rows``, what columns they have in ``columns``, for every format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from inferlens.record.record import Record
from inferlens.views.columns import COLUMNS, backend, headline, notes_of
from inferlens.views.notes import Notes
from inferlens.views.row import Row
from inferlens.views.rows import rows
from inferlens.views.table import Document, Line, Table
from inferlens.views.verdict import by, verdict

SCHEMA = "inferlens.table/1"


def document(records: Sequence[Record], reference: str | None = None) -> Document:
    """What there is to show of records.

    Args:
        records: in any order; of each case the latest run counts.
        reference: words that name the row others are compared with; ``None`` is the usual one.

    Raises:
        InferlensError: if ``reference`` names no row, or more than one.
    """
    shown = rows(records, reference)
    return Document(
        blocks=lambda: [*_tables(shown), *verdict(shown)] if shown else ["There are no records to show."],
        data=lambda: {"schema": SCHEMA, "rows": shown, "verdict": verdict(shown)},
        csv=lambda: _csv(shown),
        title=f"{shown[0].model} – Inferlens" if shown else "Inferlens",
    )


def _tables(shown: Sequence[Row]) -> Iterator[Table]:
    for table in by(shown, "table"):
        notes = Notes()
        lines = []
        for row, after in zip(table, [*table[1:], table[-1]], strict=True):
            name, ends = backend(row, notes.marks(notes_of(row))), row.comparison != after.comparison
            lines.append(Line.of(name, COLUMNS, row, style=_style(row), ends=ends))
        yield Table(headline(table), "backend", COLUMNS, lines, notes=notes.numbered(), fold=True)


def _style(row: Row) -> str:
    if not row.ok:
        return "dim"
    if row.agrees is False:
        return "red"
    return "bold green" if row.fastest else ""


def _csv(shown: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """Every field of every row, in their order."""
    fields = msgspec.structs.fields(Row)
    return [field.encode_name for field in fields], [[getattr(row, field.name) for field in fields] for row in shown]
