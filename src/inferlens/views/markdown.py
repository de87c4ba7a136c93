"""A table in GitHub's Markdown, for a README or an issue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from inferlens.record.record import Record
from inferlens.views.base import View
from inferlens.views.columns import COLUMNS, Notes, backend, headline, used
from inferlens.views.plain import plain
from inferlens.views.row import Row
from inferlens.views.rows import rows
from inferlens.views.verdict import verdict

# What GitHub would take for a table's edge, a tag, an entity, emphasis, code, a link, a formula or a mention.
_SPECIAL = re.compile(r"([\\|<>&*_`\[\]~$#])")


class Markdown(View):
    """Rows as a Markdown table, notes and verdict beneath."""

    name: ClassVar[str] = "markdown"
    summary: ClassVar[str] = "a table in GitHub's Markdown"

    def render(self, records: Sequence[Record]) -> str:
        """See :class:`View`."""
        shown = rows(records, self.reference)
        if not shown:
            return "There are no records to show.\n"
        tables: dict[tuple[str, str, str], list[Row]] = {}
        for row in shown:
            tables.setdefault(row.table, []).append(row)
        blocks = [block for table in tables.values() for block in _table(table)]
        return "\n\n".join([*blocks, *(escape(sentence) for sentence in verdict(shown))]) + "\n"


def escape(text: str) -> str:
    """``text`` on one line, every character that means something to Markdown or HTML made harmless."""
    return _SPECIAL.sub(r"\\\1", plain(text)).replace("@", "&#64;").replace("://", "&#58;//")


def _table(table_rows: Sequence[Row]) -> list[str]:
    """Title, table and notes of one model on one machine."""
    columns = used(table_rows, COLUMNS)
    notes = Notes()
    header = ["backend", *(f"{column.title} ({column.unit})" if column.unit else column.title for column in columns)]
    lines = [_line(header), _line(["---", *("---:" if column.numeric else "---" for column in columns)])]
    for row in table_rows:
        cells = [escape(backend(row, notes.marks(row))), *(escape(column.text(row)) for column in columns)]
        lines.append(_line([f"**{cell}**" if row.fastest and cell else cell for cell in cells]))
    title = f"**{escape(headline(table_rows))}**"
    numbered = "  \n".join(f"{mark} {escape(text)}" for mark, text in notes.numbered())
    return [block for block in (title, "\n".join(lines), numbered) if block]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
