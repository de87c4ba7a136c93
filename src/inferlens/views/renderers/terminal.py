"""Tables on a terminal: as many columns as fit, names shortened in the middle or folded, sentences last.

The same document gives the same text on every terminal of the same width; nothing is read from the surroundings.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferlens.units import listing
from inferlens.views.plain import plain
from inferlens.views.table import Document, Line, Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable

LEAST_WIDTH = 60
GAP = 2
ELLIPSIS = "…"
# A line under the header and between sections, none around.
_LINES = "    \n    \n ── \n    \n ── \n ── \n    \n    \n"
_NARROWEST = 24  # of names, and of cells that fold


def render(document: Document, width: int = 120, color: bool = False) -> str:
    """The document's tables and sentences, ``width`` columns wide."""
    console = _console(max(width, LEAST_WIDTH), color)
    for part in parts(document, console.width):
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def parts(document: Document, width: int) -> list[RenderableType]:
    """What :func:`render` prints, for a rich console of one's own."""
    from rich.text import Text

    paragraphs: list[list[RenderableType]] = []
    sentences: list[RenderableType] = []
    for block in document.blocks():
        if isinstance(block, str):
            sentences.append(Text(plain(block)))
        else:
            paragraphs += [sentences, *_paragraphs(block, width)]
            sentences = []
    told = [paragraph for paragraph in (*paragraphs, sentences) if paragraph]
    return [part for place, each in enumerate(told) for part in ([Text("")] if place else []) + each]


def _paragraphs(table: Table, width: int) -> list[list[RenderableType]]:
    from rich.text import Text

    title = [Text(plain(table.title), style="bold")] if table.title else []
    about = [Text(plain(table.about), style="dim")] if table.about else []
    lines: list[RenderableType] = []
    left_out: list[str] = []
    if table.lines:
        shown, first = _fitting(table, width)
        lines = [_grid(table, shown, first)]
        others = (table.columns[place] for place in table.used() if place not in shown)
        left_out = list(dict.fromkeys(column.title or column.unit for column in others))
    notes = [*table.notes, *([f"Left out at this width: {listing(left_out)}."] if left_out else [])]
    return [
        [*title, *about],
        lines,
        [Text(plain(note), style="dim") for note in notes],
        [Text(plain(each)) for each in table.sentences],
    ]


def _fitting(table: Table, width: int) -> tuple[list[int], int]:
    """The most important columns that fit beside the names, in their own order, and the names' width."""
    names = [table.first, *(line.indent + line.name for line in table.lines)]
    natural = widest(names)
    least = max(width * 2 // 5, _NARROWEST)
    if table.fold:
        least = min(max(width // 3, widest([word for name in names for word in name.split()])), width // 2)
    room = width - min(natural, least)
    chosen: list[int] = []
    for place in sorted(table.used(), key=lambda place: table.columns[place].keep):
        needed = _least_width(table, place) + GAP
        if needed > room:
            break
        room -= needed
        chosen.append(place)
    return sorted(chosen), min(natural, width - sum(_least_width(table, place) + GAP for place in chosen))


def _least_width(table: Table, place: int) -> int:
    return min(_width(table, place), _NARROWEST) if table.columns[place].fold else _width(table, place)


def _width(table: Table, place: int) -> int:
    """How wide a column becomes: its widest cell, or the widest line of its heading."""
    column = table.columns[place]
    return max(_cells_width(table, place), widest([*_title(table, place), column.unit]))


def _cells_width(table: Table, place: int) -> int:
    column, cells = table.columns[place], widest([text + mark for text, mark in _padded(table, place)])
    return cells if column.fold else min(cells, column.most)


def _title(table: Table, place: int) -> list[str]:
    """A title on as many lines as keep the column narrow."""
    words = [shorten(word, table.columns[place].most) for word in table.columns[place].title.split()]
    return textwrap.wrap(" ".join(words), max(_cells_width(table, place), widest(words), 1), break_long_words=False)


def _padded(table: Table, place: int) -> list[tuple[str, str]]:
    """The cells of a column; behind numbers there is room for the longest mark, so that they stand in line."""
    cells = [(line.cells[place], line.mark(place)) for line in table.lines]
    longest = max(len(mark) for _, mark in cells)
    return [(text, mark.ljust(longest)) for text, mark in cells] if table.columns[place].numeric else cells


def _grid(table: Table, shown: Sequence[int], first: int) -> RichTable:
    from rich.box import Box
    from rich.table import Table as RichTable
    from rich.text import Text

    headed = any([table.first, *(table.columns[place].heading for place in shown)])
    grid = RichTable(box=Box(_LINES), show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), show_header=headed)
    columns = [_aligned(table, place) for place in shown]
    height = max((len(heads) for heads, _ in columns), default=1)
    grid.add_column("\n" * (height - 1) + table.first, width=first, no_wrap=not table.fold, overflow="fold")
    for place, (heads, _) in zip(shown, columns, strict=True):
        fold, head = table.columns[place].fold, Text("\n".join([""] * (height - len(heads)) + heads))
        grid.add_column(head, no_wrap=not fold, overflow="fold", width=None if fold else _width(table, place))
    for number, line in enumerate(table.lines):
        cells = (Text(column[number]) for _, column in columns)
        grid.add_row(_name(line, first, table.fold), *cells, style=line.style, end_section=line.ends)
    return grid


def _aligned(table: Table, place: int) -> tuple[list[str], list[str]]:
    """Heading and cells of a column; numbers flush right by spaces, for rich would drop those that stand for marks."""
    column, width = table.columns[place], _width(table, place)
    heads = [*_title(table, place), *([column.unit] if column.unit else [])]
    padded = _padded(table, place)
    cells = [text + mark if column.fold else shorten(text + mark, width) for text, mark in padded]
    if not column.numeric:
        return heads, cells
    room = max(len(mark) for _, mark in padded)
    heads = [(head + " " * room if len(head) + room <= width else head).rjust(width) for head in heads]
    return heads, [cell.rjust(width) for cell in cells]


def _name(line: Line, width: int, fold: bool) -> RenderableType:
    from rich.text import Text

    name, room = plain(line.name), width - widest([line.indent])
    if room < 4 and not fold:  # an indentation that leaves no room for the name
        return Text(shorten(f"{line.indent.strip()} {name}", width))
    return Text.assemble((line.indent, "dim"), name if fold else shorten(name, room))


def shorten(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns of a terminal, its middle left out: ends of names differ the most."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    tail = max((width - 1) * 3 // 5, 0)
    start = set_cell_size(text, width - 1 - tail).rstrip()
    return start + ELLIPSIS + set_cell_size(text[::-1], tail).rstrip()[::-1]


def widest(texts: Sequence[str]) -> int:
    """Columns that the widest of some texts takes."""
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)


def _console(width: int, color: bool) -> Console:
    from rich.console import Console

    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
