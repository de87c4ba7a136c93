"""What a report is made of beside tables and sentences: sections, pictures, and files to take along."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inferlens.views.table import Table


@dataclass(frozen=True)
class Picture:
    """A chart.

    Attributes:
        name: of its file, and unlike those of the other pictures.
        how: how to read it, in one line.
        svg: draws it, for light paper.
        values: what is drawn, row by row; none where the picture has no rows.
    """

    name: str
    how: str
    svg: Callable[[], str]
    values: Sequence[dict[str, Any]] = ()

    def data(self) -> bytes:
        """The values as CSV; empty where there are none."""
        if not self.values:
            return b""
        out = io.StringIO()
        names = list(dict.fromkeys(name for each in self.values for name in each))
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.values)
        return out.getvalue().encode()


@dataclass(frozen=True)
class Download:
    """A file inside the page; ``kind`` is its media type."""

    name: str
    about: str
    kind: str
    data: bytes


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; ``folded`` ones are opened by the reader."""

    name: str
    title: str
    blocks: Sequence[Block]
    folded: bool = False


Block = Table | str | Picture | Download | Section


@dataclass(frozen=True)
class Report:
    """A page: what it is of, and its sections."""

    title: str
    sections: Sequence[Section]
