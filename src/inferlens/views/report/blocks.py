"""What a report is made of beside tables and sentences: sections, pictures, and files to take along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inferlens.views.renderers.csv import written
from inferlens.views.table import Table


@dataclass(frozen=True)
class Picture:
    """A chart.

    Attributes:
        name: of its file, and unlike those of the other pictures.
        how: how to read it, in one line.
        svg: draws it for light paper, or for a phone if it is told to.
        values: what is drawn, row by row; none where the picture has no rows.
        white: whether its colours are for white paper alone; it then stands on that on a dark page too.
    """

    name: str
    how: str
    svg: Callable[[bool], str]
    values: Sequence[dict[str, Any]] = ()
    white: bool = False

    def numbers(self) -> Download | None:
        """The values as CSV, of six digits; none where there are none."""
        names = list(dict.fromkeys(name for value in self.values for name in value))
        lines = written(names, ([_short(value.get(name)) for name in names] for value in self.values))
        return Download(f"{self.name}.csv", self.how, "text/csv", lines.encode()) if names else None


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


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
