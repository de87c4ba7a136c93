"""A table for the terminal: as many columns as fit, notes beneath, the verdict last.

The same rows give the same text on every terminal of the same width; nothing is read from the surroundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from inferlens.record.record import Record
from inferlens.units import listing
from inferlens.views.base import View
from inferlens.views.columns import COLUMNS, Column, Notes, backend, headline, used
from inferlens.views.drawing import GAP, drawn, lined
from inferlens.views.plain import plain
from inferlens.views.row import Row
from inferlens.views.rows import rows
from inferlens.views.verdict import verdict

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


class Table(View):
    """Rows side by side on a terminal."""

    name: ClassVar[str] = "table"
    summary: ClassVar[str] = "a table for the terminal, with notes and a verdict"
    fits_width: ClassVar[bool] = True

    def __init__(self, *, reference: str | None = None, width: int = 120, color: bool = False) -> None:
        """
        Args:
            reference: words that name the row others are compared with; ``None`` is plain PyTorch.
            width: columns of the terminal.
            color: whether to use the terminal's colours.
        """
        super().__init__(reference=reference)
        self.width = max(width, 60)
        self.color = color

    def render(self, records: Sequence[Record]) -> str:
        """See :class:`View`."""
        return drawn(self.parts(records), self.width, self.color)

    def parts(self, records: Sequence[Record]) -> list[RenderableType]:
        """What :meth:`render` prints, for a rich console of one's own."""
        from rich.text import Text

        shown = rows(records, self.reference)
        if not shown:
            return [Text("There are no records to show.")]
        tables: dict[tuple[str, str, str], list[Row]] = {}
        for row in shown:
            tables.setdefault(row.table, []).append(row)
        parts = [part for table in tables.values() for part in _table(table, self.width)]
        return [*parts, *(Text(plain(sentence)) for sentence in verdict(shown))]


def _table(table_rows: Sequence[Row], width: int) -> list[RenderableType]:
    """Title, table and notes of one model on one machine."""
    from rich.text import Text

    notes = Notes()
    names = [backend(row, notes.marks(row)) for row in table_rows]
    batches = [row.batch for row in table_rows]
    columns = used(table_rows, COLUMNS if len(set(batches)) > 1 else [c for c in COLUMNS if c.title != "batch"])
    first = first_width(names, width)
    shown = fitting(columns, table_rows, width - first)
    table = lined()
    table.add_column("backend", overflow="fold", width=first)
    for column in shown:
        header = f"{column.title}\n{column.unit}" if column.unit else column.title
        table.add_column(header, justify="right" if column.numeric else "left", no_wrap=True)
    for index, (row, name) in enumerate(zip(table_rows, names, strict=True)):
        last = index + 1 < len(table_rows) and table_rows[index + 1].comparison != row.comparison
        table.add_row(Text(name), *(Text(column.text(row)) for column in shown), style=_style(row), end_section=last)
    parts: list[RenderableType] = [Text(headline(table_rows), style="bold"), Text(""), table, Text("")]
    parts += [_note(mark, text) for mark, text in notes.numbered()]
    left_out = [column.title for column in columns if column not in shown]
    if left_out:
        text = f"Left out at this width: {listing(list(dict.fromkeys(left_out)))}."
        parts.append(Text(text, style="dim"))
    return [*parts, Text("")] if left_out or notes.texts else parts


def first_width(names: Sequence[str], width: int) -> int:
    """Width of the first column: a third of the screen if it needs that, more only for a single long word."""
    longest_word = max(len(word) for name in ["backend", *names] for word in name.split())
    return min(max(longest_word, min(max(map(len, names)), width // 3)), width // 2)


def fitting(columns: Sequence[Column], table_rows: Sequence[Row], width: int) -> list[Column]:
    """The most important of ``columns`` that fit into ``width`` beside each other, in their own order."""
    room, chosen = width, []
    for column in sorted(columns, key=lambda column: column.keep):
        cells = [column.title, column.unit, *(column.text(row) for row in table_rows)]
        room -= max(map(len, cells)) + GAP
        if room < 0:
            break
        chosen.append(column)
    return [column for column in columns if column in chosen]


def _style(row: Row) -> str:
    if not row.ok:
        return "dim"
    if row.agrees is False:
        return "red"
    return "bold green" if row.fastest else ""


def _note(mark: str, text: str) -> Text:
    from rich.text import Text

    return Text(f"{mark} {text}", style="dim")
