"""The one table of this tool, what a command shows of it, and the formats it is written in.

A command makes a :class:`Document`; :func:`render` writes it. Nothing else in the tool knows a format::

    COLUMNS = (
        Column("calls", "calls", write=count, keep=2),                      # key in the row, title
        Column("time.median", "p50", "ms", milliseconds),
        Column("", "layers", write=layers_of_row, numeric=False),           # no key: written from the whole row
    )
    lines = [Line.of(row.name, COLUMNS, row, indent="  " * row.depth) for row in rows]
    table = Table("resnet18", "layer", COLUMNS, ruled(lines, [Line("whole run", ("", "12.3", ""), style="bold")]))
    document = Document(lambda: [table, "A sentence."], data=lambda: {"schema": "inferlens.layers/1", "rows": rows})
    render(document, format, width=console.width, color=color)

Cells are text: a column turns a value into it, numbers through ``units`` alone. ``–`` and empty cells are not there: a
column without any other is left out, and so are, on a narrow screen, those with the highest ``keep``. Names and cells
are shortened in the middle where they do not fit, or run on over several lines with ``fold``.

A new format is a file in ``renderers`` with ``render(document, width, color)`` and a line in :data:`FORMATS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal, NamedTuple

from inferlens.errors import check_choice
from inferlens.units import ABSENT, percent
from inferlens.views.plain import plain

# Names of formats, and the modules that write them.
FORMATS = {
    "table": "inferlens.views.renderers.terminal",
    "markdown": "inferlens.views.renderers.markdown",
    "csv": "inferlens.views.renderers.csv",
    "json": "inferlens.views.renderers.json",
    "html": "inferlens.views.renderers.html",
}
FOR_PROGRAMS = ("csv", "json")  # these get all rows where people get the first


def text(value: Any) -> str:
    """A name or a word; what is not there is a dash."""
    return plain(str(value)) if value not in (None, "") else ABSENT


def count(value: float | None) -> str:
    """A whole number."""
    return ABSENT if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A share; below zero where parts overlap."""
    return ABSENT if value is None else f"{'-' if value < 0 else ''}{percent(value)}"


@dataclass(frozen=True)
class Column:
    """One column after the names.

    Attributes:
        key: the attribute or item of a row that it shows, dots between steps; empty: the whole row.
        write: makes text of that; it has to take ``None`` where a row may lack it.
        keep: orders what stays on a narrow screen, lowest first.
        numeric: whether cells are flush right.
        most: characters of a cell that a terminal shows at most.
        fold: whether long cells run on over several lines rather than being shortened.
        chart: title of its axis where charts draw it.
        bars: whether it is drawn as bars where they are asked for, or stands beside them.
        wide: whether it is shown only where all columns are asked for, or this one by name.
        tells_apart: whether rows may differ by it alone, so that it stays whichever columns are chosen.
    """

    key: str
    title: str
    unit: str = ""
    write: Callable[[Any], str] = text
    keep: int = 0
    numeric: bool = True
    most: int = 28
    fold: bool = False
    chart: str = ""
    bars: Literal["", "drawn", "beside"] = ""
    wide: bool = False
    tells_apart: bool = False

    @property
    def heading(self) -> str:
        """Title and unit on one line."""
        return f"{self.title} ({self.unit})" if self.title and self.unit else self.title or self.unit

    def text(self, row: Any) -> str:
        """The cell of a row."""
        for name in self.key.split(".") if self.key else ():
            if row is not None:
                row = row[name] if isinstance(row, Mapping) else getattr(row, name)
        return self.write(row)


@dataclass(frozen=True)
class Line:
    """One row as text: a name, and a cell for each column.

    Attributes:
        full: the whole name of a row in a tree, for pages.
        style: one of rich's (``bold``, ``dim``, ``red``); bold is bold in Markdown and HTML too.
        ends: whether a line is ruled beneath it.
        sums: whether it is what others add up to, and so no bar among theirs.
    """

    name: str
    cells: Sequence[str]
    indent: str = ""
    full: str = ""
    style: str = ""
    ends: bool = False
    sums: bool = False

    @classmethod
    def of(cls, name: str, columns: Sequence[Column], row: Any, **more: Any) -> Line:
        """A row's line; ``more`` are fields of it."""
        return cls(name, tuple(column.text(row) for column in columns), **more)


@dataclass(frozen=True)
class Table:
    """Lines under a title; notes beneath them, and what they come to in sentences.

    Attributes:
        first: heading of the names.
        fold: whether names run on over several lines rather than being shortened.
        answer: lines above the table that say what it comes to.
        whole: whether columns that do not fit stand in further tables beneath, rather than nowhere.
    """

    title: str
    first: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    about: str = ""
    answer: Sequence[str] = ()
    notes: Sequence[str] = ()
    sentences: Sequence[str] = ()
    fold: bool = False
    whole: bool = False

    def cells(self, place: int) -> list[str]:
        """The cells of a column."""
        return [line.cells[place] for line in self.lines]

    def used(self) -> list[int]:
        """Places of the columns in which at least one line has something to say."""
        return [place for place in range(len(self.columns)) if {*self.cells(place)} - {ABSENT, ""}]


class Screen(NamedTuple):
    """The size of what people look at; by default as much as everybody has."""

    lines: int = 24
    width: int = 100


SCREEN = Screen()


@dataclass(frozen=True)
class Document:
    """What a command shows, for every format; each part is made when a format asks for it.

    Attributes:
        blocks: tables and sentences, in their order.
        data: what JSON has: seconds and bytes, and a schema's name.
        csv: names, and lines of values; ``None`` where there are none.
        title: of a page.
        screen: what a terminal of some size shows instead of all blocks, so that it fits.
    """

    blocks: Callable[[], Sequence[Table | str]]
    data: Callable[[], Any]
    csv: Callable[[], tuple[Sequence[str], Iterable[Sequence[object]]]] | None = None
    title: str = "Inferlens"
    screen: Callable[[Screen], Sequence[Table | str]] | None = None

    def fitted(self, screen: Screen = SCREEN, *, tables: bool = False) -> Sequence[Table | str]:
        """Return what fits on a screen; with ``tables`` all blocks, where a screen has room for sentences alone."""
        blocks = self.screen(screen) if self.screen else self.blocks()
        return self.blocks() if tables and all(isinstance(block, str) for block in blocks) else blocks


def ruled(lines: Sequence[Line], sums: Sequence[Line]) -> tuple[Line, ...]:
    """The lines, and beneath a rule what they add up to."""
    return (*lines[:-1], *(replace(line, ends=True) for line in lines[-1:]), *sums)


def longest(table: Table, numbers: Sequence[float | None]) -> list[float]:
    """For each line the greatest number between the same rules: batch sizes have scales of their own."""
    groups = list(itertools.accumulate((line.ends for line in table.lines[:-1]), initial=0))
    most: dict[int, float] = {}
    for group, item in zip(groups, numbers, strict=True):
        most[group] = max(most.get(group, 0.0), item or 0.0)
    return [most[group] or 1.0 for group in groups]


def render(
    document: Document,
    format: str = "table",
    *,
    width: int = SCREEN.width,
    lines: int = SCREEN.lines,
    color: bool = False,
    wide: bool = False,
    columns: str | None = None,
) -> str:
    """``document`` as text.

    Args:
        document: what is shown.
        format: one of :data:`FORMATS`.
        width: columns of the terminal; ``lines``: what it has of these.
        color: whether to use the terminal's colours.
        wide: whether to show all columns, also those that are ``Column.wide``.
        columns: the columns to show instead, by title or key, with commas; ``help`` lists them. Programs' formats
            have all of them anyway.

    Raises:
        InferlensError: if there is no such format or column, or the document cannot be written in it.
    """
    check_choice("format", format, FORMATS)
    if columns == "help":
        return columns_of(document.blocks()) + "\n"
    if format not in FOR_PROGRAMS:
        screen = Screen(lines, width)
        every = document.fitted(screen, tables=bool(columns)) if format == "table" else document.blocks()
        every_column = wide or format == "html"  # a page hides what is wide until it is asked for
        blocks = every if every_column and not columns else chosen(every, columns)
        if wide or columns:
            blocks = [block if isinstance(block, str) else replace(block, whole=True) for block in blocks]
        document = replace(document, blocks=lambda: blocks)
    written: str = import_module(FORMATS[format]).render(document, width, color)
    return written


def columns_of(blocks: Sequence[Table | str]) -> str:
    """Return the names of all columns in one sentence."""
    columns = [column for block in blocks if isinstance(block, Table) for column in block.columns]
    return f"Columns: {', '.join(dict.fromkeys(filter(None, (column.heading for column in columns))))}."


def chosen(blocks: Sequence[Table | str], columns: str | None) -> list[Table | str]:
    """The blocks, their tables with the columns that are named, or else with those that are not ``wide``.

    Raises:
        InferlensError: if no table has a column of that name.
    """
    names = [_spelled(name) for name in (columns or "").split(",") if name.strip()]
    known = {
        name for block in blocks if isinstance(block, Table) for column in block.columns for name in _names(column)
    }
    for place, name in enumerate(names if known else ()):
        names[place] = min((item for item in known if item.startswith(name)), key=len, default=name)
        check_choice("column", names[place], sorted(known))
    return [block if isinstance(block, str) else _with(block, names) for block in blocks]


def _with(table: Table, names: Sequence[str]) -> Table:
    places = [place for place, column in enumerate(table.columns) if not column.wide]
    if names:
        found = [[place for place, column in enumerate(table.columns) if name in _names(column)] for name in names]
        apart = [place for place in places if table.columns[place].tells_apart]
        places = list(dict.fromkeys([*apart, *(place for item in found for place in item)]))
    lines = [replace(line, cells=[line.cells[place] for place in places]) for line in table.lines]
    return replace(table, columns=[table.columns[place] for place in places], lines=lines)


def _names(column: Column) -> set[str]:
    return {_spelled(name) for name in (column.key, column.title, column.heading) if name}


def _spelled(name: str) -> str:
    return name.strip().lower().replace("-", " ").replace("_", " ")
