"""A table as text, before anything is drawn: names with an indentation, cells with a number and a mark.

Both tables of profiles are one of these, and so are drawn alike, on the terminal and in Markdown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

ELLIPSIS = "…"


@dataclass(frozen=True)
class Heading:
    """One column after the names; ``keep`` orders what stays on a narrow screen, lowest first.

    Attributes:
        most: characters of a text that the terminal shows at most; longer ones are shortened in the middle.
    """

    title: str
    unit: str = ""
    keep: int = 0
    numeric: bool = True
    most: int = 28


@dataclass(frozen=True)
class Line:
    """One row: ``name`` after ``indent`` on the terminal, ``full`` in Markdown; a cell is a text and a mark."""

    name: str
    cells: tuple[tuple[str, str], ...]
    indent: str = ""
    full: str = ""
    style: str = ""
    ends: bool = False

    @classmethod
    def of(cls, name: str, texts: Iterable[str], style: str = "") -> Line:
        """A row of cells without marks."""
        return cls(name, tuple((text, "") for text in texts), style=style)


@dataclass(frozen=True)
class Grid:
    """A table under its headline, notes beneath it, and what it comes to in sentences."""

    headline: str
    about: str
    first: str
    headings: tuple[Heading, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()


def ruled(lines: Sequence[Line], sums: Sequence[Line]) -> tuple[Line, ...]:
    """The lines, and beneath a rule what they add up to."""
    return (*lines[:-1], *(replace(line, ends=True) for line in lines[-1:]), *sums)


def used(grid: Grid, absent: str) -> list[int]:
    """Columns in which at least one line has something to say."""
    return [
        index
        for index in range(len(grid.headings))
        if any(text not in (absent, "") or mark for text, mark in (line.cells[index] for line in grid.lines))
    ]


def shorten(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns of a terminal, its middle left out: ends of names differ the most."""
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    tail = max((width - 1) * 3 // 5, 0)
    return _start(text, width - 1 - tail) + ELLIPSIS + _start(text[::-1], tail)[::-1]


def _start(text: str, width: int) -> str:
    """As much of the beginning as fits."""
    from rich.cells import get_character_cell_size

    room = width
    for index, character in enumerate(text):
        room -= get_character_cell_size(character)
        if room < 0:
            return text[:index]
    return text


def widest(texts: Sequence[str]) -> int:
    """Columns that the widest of some texts takes."""
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)
