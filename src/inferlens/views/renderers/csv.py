"""Comma-separated values as RFC 4180 has them: seconds and bytes, an empty field for what is absent.

Fields are quoted where they need to be, and nothing else is done to them: one that begins with ``=`` is data here, to
be imported as text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from inferlens.errors import InferlensError
from inferlens.views.table import Document


def render(document: Document, width: int = 0, color: bool = False) -> str:  # noqa: ARG001 - as every format
    """A line of names, then the lines; ``None`` is an empty field, booleans are as in JSON, several texts are in one.

    A zero byte, which no reader of such files takes and Python 3.10 does not write, becomes U+FFFD.

    Raises:
        InferlensError: if the document has none.
    """
    if document.csv is None:
        raise InferlensError("This cannot be written as CSV.", hint="--format json")
    return written(*document.csv())


def written(names: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Names and lines as text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(names)
    writer.writerows(map(_field, line) for line in lines)
    return out.getvalue()


def _field(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        value = " | ".join(map(str, value))
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
