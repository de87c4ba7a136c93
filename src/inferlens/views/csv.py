"""Raw numbers for a spreadsheet or a data frame: RFC 4180, seconds and bytes, an empty field for what is absent.

The columns are the fields of a row, in their order. Nothing is done to texts but to quote them where they need it: a
field that begins with ``=`` is data here, to be imported as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from inferlens.record.record import Record
from inferlens.views.base import View
from inferlens.views.csv_text import csv_text
from inferlens.views.row import Row
from inferlens.views.rows import rows


class Csv(View):
    """Every field of every row."""

    name: ClassVar[str] = "csv"
    summary: ClassVar[str] = "raw numbers in seconds and bytes, one line for each case"

    def render(self, records: Sequence[Record]) -> str:
        """See :class:`View`."""
        fields = msgspec.structs.fields(Row)
        names = [field.encode_name for field in fields]
        lines = ([_field(getattr(row, field.name)) for field in fields] for row in rows(records, self.reference))
        return csv_text(names, lines)


def _field(value: object) -> object:
    """Booleans in lower case as in JSON, several warnings in one field."""
    if isinstance(value, bool):
        return str(value).lower()
    return " | ".join(value) if isinstance(value, tuple) else value
