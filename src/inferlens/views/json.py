"""Rows and verdict for other programs: JSON with a schema name, seconds and bytes, null for what is absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from inferlens.record.record import Record
from inferlens.views.base import View
from inferlens.views.rows import rows
from inferlens.views.verdict import verdict

SCHEMA = "inferlens.table/1"


class Json(View):
    """Every field of every row, and the verdict."""

    name: ClassVar[str] = "json"
    summary: ClassVar[str] = "rows and verdict as JSON"

    def render(self, records: Sequence[Record]) -> str:
        """See :class:`View`. Numbers that are not finite become null."""
        shown = rows(records, self.reference)
        document = {"schema": SCHEMA, "rows": shown, "verdict": verdict(shown)}
        return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
