"""Comma-separated values as RFC 4180 has them: quoted where they need to be, and nothing else is done to them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence


def csv_text(names: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A line of names, then the lines; ``None`` is an empty field.

    A zero byte, which no reader of such files takes and Python 3.10 does not write, becomes U+FFFD.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(names)
    writer.writerows(map(_field, line) for line in lines)
    return out.getvalue()


def _field(value: object) -> object:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
