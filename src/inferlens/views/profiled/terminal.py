"""Grids on a terminal: as many columns as fit, names shortened in the middle, sentences last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferlens.units import ABSENT, listing
from inferlens.views.drawing import drawn, lined
from inferlens.views.profiled.grid import Grid, Line, shorten, used, widest

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

_LEAST_WIDTH = 60
_GAP = 2


def render(grids: Sequence[Grid], width: int, color: bool) -> str:
    """The grids, one beneath the other, ``width`` columns wide."""
    from rich.text import Text

    width = max(width, _LEAST_WIDTH)
    parts: list[RenderableType] = []
    for grid in grids:
        parts += [Text("")] if parts else []
        parts += _parts(grid, width)
    return drawn(parts or [Text("There are no profiles to show.")], width, color)


def _parts(grid: Grid, width: int) -> list[RenderableType]:
    from rich.text import Text

    parts: list[RenderableType] = [Text(grid.headline, style="bold")]
    parts += [Text(grid.about, style="dim")] if grid.about else []
    left_out: list[str] = []
    if grid.lines:
        shown, first = _fitting(grid, width)
        parts += [Text(""), _table(grid, shown, first), Text("")]
        others = (grid.headings[index] for index in used(grid, ABSENT) if index not in shown)
        left_out = list(dict.fromkeys(heading.title or heading.unit for heading in others))
    notes = [*grid.notes, *([f"Left out at this width: {listing(left_out)}."] if left_out else [])]
    parts += [Text(note, style="dim") for note in notes]
    return [*parts, *([Text("")] if notes and grid.sentences else []), *(Text(each) for each in grid.sentences)]


def _fitting(grid: Grid, width: int) -> tuple[list[int], int]:
    """The most important columns that fit beside the names, in their own order, and the names' width."""
    natural = widest([grid.first, *(line.indent + line.name for line in grid.lines)])
    room = width - min(natural, max(width * 2 // 5, 24))
    chosen: list[int] = []
    for index in sorted(used(grid, ABSENT), key=lambda index: grid.headings[index].keep):
        needed = _width(grid, index) + _GAP
        if needed > room:
            break
        room -= needed
        chosen.append(index)
    shown = sorted(chosen)
    return shown, min(natural, width - sum(_width(grid, index) + _GAP for index in shown))


def _width(grid: Grid, index: int) -> int:
    """How wide a column becomes: its widest cell, or the widest line of its heading."""
    heading = grid.headings[index]
    cells = [text + mark for text, mark in _padded(grid, index)]
    return max(min(widest(cells), heading.most), widest([*_title(grid, index).split("\n")]))


def _title(grid: Grid, index: int) -> str:
    """A heading on as many lines as it has words, the unit in the last."""
    heading = grid.headings[index]
    words = [shorten(word, heading.most) for word in heading.title.split()]
    return "\n".join([*words, *([heading.unit] if heading.unit else [])])


def _padded(grid: Grid, index: int) -> list[tuple[str, str]]:
    """The cells of a column; behind numbers there is room for the longest mark, so that they stand in line."""
    cells = [line.cells[index] for line in grid.lines]
    longest = max(len(mark) for _, mark in cells)
    return [(text, mark.ljust(longest)) for text, mark in cells] if grid.headings[index].numeric else cells


def _table(grid: Grid, shown: Sequence[int], first: int) -> RichTable:
    from rich.text import Text

    table = lined()
    table.add_column(grid.first, width=first, no_wrap=True, vertical="bottom")
    columns = {index: _aligned(grid, index) for index in shown}
    for index in shown:
        title, _ = columns[index]
        table.add_column(Text(title), no_wrap=True, width=_width(grid, index), vertical="bottom")
    for number, line in enumerate(grid.lines):
        cells = (Text(columns[index][1][number]) for index in shown)
        table.add_row(_name(line, first), *cells, style=line.style, end_section=line.ends)
    return table


def _aligned(grid: Grid, index: int) -> tuple[str, list[str]]:
    """Title and cells of a column; numbers flush right by spaces, for rich would drop those that stand for marks."""
    width, numeric = _width(grid, index), grid.headings[index].numeric
    cells = [shorten(text + mark, width) for text, mark in _padded(grid, index)]
    title = _title(grid, index)
    if not numeric:
        return title, cells
    room = max(len(mark) for _, mark in _padded(grid, index))
    aligned = "\n".join((line + " " * room).rjust(width) if room + len(line) <= width else line.rjust(width)
                        for line in title.split("\n"))  # fmt: skip
    return aligned, [cell.rjust(width) for cell in cells]


def _name(line: Line, width: int) -> Text:
    from rich.text import Text

    room = width - widest([line.indent])
    if room < 4:  # an indentation that leaves no room for the name
        return Text(shorten(line.indent.strip() + " " + line.name, width))
    return Text.assemble((line.indent, "dim"), shorten(line.name, room))
