"""A comparison for the terminal: a table for each model, notes beneath, the verdict, what else differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferlens.analysis.compare.cases import Compared
from inferlens.analysis.compare.environment_diff import about
from inferlens.units import percent
from inferlens.views.compared.lines import Group, unit
from inferlens.views.compared.lines import groups as groups_of
from inferlens.views.compared.notes import Notes
from inferlens.views.compared.sentences import sentences
from inferlens.views.drawing import drawn, lined
from inferlens.views.plain import plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable

_LEAST_WIDTH = 60
_LEAST_NAME = 12
_GAP = 2
_NARROW = 85  # below it intervals are left out
_STYLES = {"FASTER": "green", "SLOWER": "bold red", "UNDECIDED": "yellow", "DID NOT RUN": "bold magenta", "SAME": ""}


def render(compared: Compared, width: int, color: bool) -> str:
    """``compared`` as a table that is ``width`` columns wide."""
    from rich.text import Text

    width = max(width, _LEAST_WIDTH)
    notes = Notes()
    parts: list[RenderableType] = []
    for group in groups_of(compared):
        parts += [Text(group.headline, style="bold"), Text(""), _table(group, compared, notes, width), Text("")]
    numbered = notes.numbered()
    parts += [Text(f"{mark} {text}", style="dim") for mark, text in numbered]
    parts += [Text("")] if numbered else []
    parts += [Text(sentence) for sentence in sentences(compared)]
    if compared.differences:
        parts += [Text(""), _differences(compared)]
    return drawn(parts, width, color)


def _table(group: Group, compared: Compared, notes: Notes, width: int) -> RichTable:
    from rich.text import Text

    names = [f"{line.name}{notes.marks(line.notes)}" for line in group.lines]
    shown, level = unit(compared.metric), percent(compared.level)
    columns = [
        ("base", shown, [line.base for line in group.lines]),
        ("candidate", shown, [line.candidate for line in group.lines]),
        ("change", "", [line.change for line in group.lines]),
        ("interval", level, [line.interval for line in group.lines]),
        ("verdict", "", [line.verdict for line in group.lines]),
    ]
    if width < _NARROW:
        del columns[3]
    room = width - sum(max(map(len, [title, under, *cells])) + _GAP for title, under, cells in columns)
    table = lined()
    table.add_column("case", overflow="fold", width=min(max(map(len, ["case", *names])), max(room, _LEAST_NAME)))
    for title, under, _ in columns:
        side = "left" if title == "verdict" else "right"
        table.add_column(f"{title}\n{under}" if under else title, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for index, (line, name) in enumerate(zip(group.lines, names, strict=True)):
        cells = (Text(cells[index]) for _, _, cells in columns)
        table.add_row(Text(name), *cells, style=_STYLES[line.verdict])
    return table


def _differences(compared: Compared) -> RichTable:
    from rich.text import Text

    table = lined()
    for title in ("what else differs", "base", "candidate"):
        table.add_column(title, overflow="fold")
    for one in compared.differences:
        field = plain(one.field) + about(one, compared.on_both)
        table.add_row(
            *(Text(plain(cell)) for cell in (field, one.base, one.candidate)), style="red" if one.unlike else ""
        )
    return table
