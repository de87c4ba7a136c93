"""Grids in GitHub's Markdown: the sentences, the table with full names, the notes."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.units import ABSENT
from inferlens.views.profiled.grid import Grid, Heading, used
from inferlens.views.renderers.markdown import escape

# A name of thousands of characters would hide the numbers beside it; JSON and CSV have all of it.
_LONGEST = 200


def render(grids: Sequence[Grid]) -> str:
    """The grids, one beneath the other."""
    return "\n\n".join(block for grid in grids for block in _blocks(grid)) + "\n"


def _blocks(grid: Grid) -> list[str]:
    about = [f"**{escape(grid.headline)}**", escape(grid.about), *map(escape, grid.sentences)]
    table = [_table(grid)] if grid.lines else []
    return [block for block in (*about, *table, "  \n".join(map(escape, grid.notes))) if block]


def _table(grid: Grid) -> str:
    shown = used(grid, ABSENT)
    headings = [grid.headings[index] for index in shown]
    titles = [_title(heading) for heading in headings]
    rule = ["---", *("---:" if heading.numeric else "---" for heading in headings)]
    lines = [_line([grid.first, *map(escape, titles)]), _line(rule)]
    for line in grid.lines:
        cells = [_short("".join(line.cells[index])) for index in shown]
        lines.append(_line([escape(_short(line.full or line.name)), *map(escape, cells)]))
    return "\n".join(lines)


def _title(heading: Heading) -> str:
    if not heading.title or not heading.unit:
        return heading.title or heading.unit
    return f"{heading.title} ({heading.unit})"


def _short(text: str) -> str:
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
