"""Tables, documents and the blocks of a report, before any format.

A command makes a :class:`Document`, and :func:`inferlens.views.renderers.render` writes it::

    COLUMNS = (
        Column("calls", "calls", write=count, keep=2),                      # key in the row, title
        Column("time.median", "p50", "ms", write=milliseconds),
        Column("layers", "layers", write_row=layers_of_row, numeric=False),  # written from the whole row
    )
    lines = [Line.from_row(row.name, COLUMNS, row, indent="  " * row.depth) for row in rows]
    table = Table("resnet18", "layer", COLUMNS, lines_and_sums(lines, [Line("whole run", ("", "12.3", ""))]))
    document = Document(lambda: [table, "A sentence."], data=lambda: {"schema": "inferlens.layers/1", "rows": rows})
    render(document, format, width=console.width, color=color)

A column says how people see a value, and code selects it by its key; JSON and CSV have the values of the row itself.
Numbers become text through ``units`` alone. Columns with only ``–`` or empty cells are left out. A narrow screen drops
the columns with the highest ``keep``, and cuts the middle of long cells unless they ``fold``.
"""

from __future__ import annotations

import csv
import io
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple

from msgspec import structs

from inferlens.errors import InferlensError, check_choice
from inferlens.spec.case import CALL_MODE, Case
from inferlens.spec.plan import bench_words, command
from inferlens.units import ABSENT, number, percent, plural

FORMATS = ("table", "markdown", "csv", "json", "html")
DATA_FORMATS = ("csv", "json")  # these have all rows; people get the first


def plain(text: str) -> str:
    """Return ``text`` on one line without control and direction characters."""
    if not text.isprintable():
        text = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    return " ".join(text.split())


def cut_middle(text: str, length: int) -> str:
    """Cut the middle of a text that is longer than ``length``."""
    half = length // 2
    return text if len(text) <= length else f"{text[: half - 1]}…{text[-half:]}"


def cut_end(text: str, length: int) -> str:
    """Cut the end of a text that is longer than ``length``."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def profile_command(case: Case, *, gpu: bool) -> str:
    """Return the command that profiles a case; ``gpu`` is the default device there."""
    called = {axis.name: axis.default for axis in CALL_MODE}
    words = bench_words(structs.replace(case, **called), "cuda" if gpu else "cpu")
    return plain(command("profile", words, case.checkout))


def text(value: Any) -> str:
    """Return a text; a missing one is a dash."""
    return plain(str(value)) if value not in (None, "") else ABSENT


def count(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Return a share; it is negative where parts overlap."""
    return ABSENT if value is None else f"{'-' if value < 0 else ''}{percent(value)}"


@dataclass(frozen=True)
class Column:
    """One column after the names.

    Attributes:
        key: name of the column, and of the attribute or item of a row that it shows, such as ``run.quantiles.0``.
        write: makes text of the value; it must take ``None`` if a row may lack it.
        write_row: makes text of the whole row instead.
        keep: order in which a narrow screen keeps columns, lowest first.
        numeric: whether cells are flush right.
        max_width: characters of a cell on a terminal.
        fold: whether long cells wrap instead of losing their middle.
        chart: axis title, if charts draw it.
        bars: whether it is drawn as bars.
        wide: whether it appears only on request.
        identifies: whether rows may differ in it alone, so that it always stays.
    """

    key: str
    title: str
    unit: str = ""
    _: KW_ONLY
    write: Callable[[Any], str] = text
    write_row: Callable[[Any], str] | None = None
    keep: int = 0
    numeric: bool = True
    max_width: int = 28
    fold: bool = False
    chart: str = ""
    bars: bool = False
    wide: bool = False
    identifies: bool = False

    @property
    def heading(self) -> str:
        return f"{self.title} ({self.unit})" if self.title and self.unit else self.title or self.unit

    def text(self, row: Any) -> str:
        """Return the cell of a row."""
        if self.write_row:
            return self.write_row(row)
        for name in self.key.split("."):
            if row is not None:
                is_item = isinstance(row, Mapping) or name.isdecimal()
                row = row[int(name) if name.isdecimal() else name] if is_item else getattr(row, name)
        return self.write(row)


class ColumnSet(tuple[Column, ...]):
    """The columns of a table, of which others pick some by key."""

    def pick(self, *keys: str, **changes: Any) -> list[Column]:
        """Return the columns of these keys in this order, with changed attributes."""
        by_key = {column.key: column for column in self}
        return [replace(by_key[key], **changes) for key in keys]


@dataclass(frozen=True)
class Line:
    """One row as text: a name and a cell per column.

    Attributes:
        full: the whole name in a tree, for pages.
        style: a style such as ``bold``, ``dim`` or ``red``; Markdown and HTML have bold, too.
        ends: whether a rule follows.
        sums: whether it is a sum of other lines, and so has no bar.
    """

    name: str
    cells: Sequence[str]
    indent: str = ""
    full: str = ""
    style: str = ""
    ends: bool = False
    sums: bool = False

    @classmethod
    def from_row(cls, name: str, columns: Sequence[Column], row: Any, **fields: Any) -> Line:
        """Return the line of a row; ``fields`` are those of the line."""
        return cls(name, tuple(column.text(row) for column in columns), **fields)


@dataclass(frozen=True)
class Table:
    """Lines under a title, with notes and sentences.

    Attributes:
        first: heading of the names.
        fold: whether names wrap instead of losing their middle.
        answer: lines above the table.
        all_columns: whether columns that do not fit form further tables.
    """

    title: str = ""
    first: str = ""
    columns: Sequence[Column] = ()
    lines: Sequence[Line] = ()
    about: str = ""
    answer: Sequence[str] = ()
    notes: Sequence[str] = ()
    sentences: Sequence[str] = ()
    fold: bool = False
    all_columns: bool = False

    def cells(self, place: int) -> list[str]:
        return [line.cells[place] for line in self.lines]

    def numbers(self, place: int) -> list[float | None]:
        """Return the numbers of a column; sums have none."""
        return [None if line.sums else number(line.cells[place]) for line in self.lines]

    def used(self) -> list[int]:
        """Return the indices of columns with content."""
        return [place for place in range(len(self.columns)) if {*self.cells(place)} - {ABSENT, ""}]


class Screen(NamedTuple):
    """The size of a screen; the default fits most terminals."""

    lines: int = 24
    width: int = 100


SCREEN = Screen()


@dataclass(frozen=True)
class Document:
    """The output of a command in every format; each part is computed on demand.

    Attributes:
        blocks: tables and sentences in order.
        data: the JSON, in seconds and bytes, with the name of its schema.
        rows: the values of CSV by their names, in the same units, if any.
        fields: the names in CSV; empty: those of the rows.
        title: title of a page.
        tries: blocks for a terminal of some size, the most first; the first that fit are shown, or the last.
    """

    blocks: Callable[[], Sequence[Table | str]]
    data: Callable[[], Any]
    rows: Callable[[], Iterable[Mapping[str, object]]] | None = None
    fields: Sequence[str] = ()
    title: str = "Inferlens"
    tries: Callable[[Screen], Iterable[Sequence[Table | str]]] | None = None

    def csv(self) -> str:
        """Return CSV by RFC 4180; ``None`` is an empty field, and several texts are joined.

        Raises:
            InferlensError: if the document has no CSV.
        """
        if self.rows is None:
            raise InferlensError("This cannot be written as CSV.", hint="--format json")
        return csv_text(self.rows(), self.fields)


def lines_and_sums(lines: Sequence[Line], sums: Sequence[Line]) -> tuple[Line, ...]:
    """Return the lines, a rule, and their sums."""
    return (*lines[:-1], *(replace(line, ends=True) for line in lines[-1:]), *sums)


def group_maxima(table: Table, numbers: Sequence[float | None]) -> list[float]:
    """Return the greatest number between two rules for each line, because batch sizes have their own scales."""
    groups = list(itertools.accumulate((line.ends for line in table.lines[:-1]), initial=0))
    maxima: dict[int, float] = {}
    for group, value in zip(groups, numbers, strict=True):
        maxima[group] = max(maxima.get(group, 0.0), value or 0.0)
    return [maxima[group] or 1.0 for group in groups]


def more_rows_note(count: int, total: int) -> list[str]:
    """Return a note on ``count`` rows of ``total`` that a table leaves out, if any."""
    return [f"{plural(count, 'more row')}: --top {total}, or --format csv"] if count > 0 else []


def column_names(blocks: Sequence[Table | str]) -> str:
    """Return the names of all columns in one sentence."""
    columns = [column for block in blocks if isinstance(block, Table) for column in block.columns]
    return f"Columns: {', '.join(dict.fromkeys(filter(None, (column.heading for column in columns))))}."


def select_columns(blocks: Sequence[Table | str], columns: str | None) -> list[Table | str]:
    """Return the blocks with the named columns, or without ``wide`` ones.

    Raises:
        InferlensError: if no table has a column of that name.
    """
    names = [_normalize(name) for name in (columns or "").split(",") if name.strip()]
    tables = [block for block in blocks if isinstance(block, Table)]
    available = {name for table in tables for column in table.columns for name in _column_names(column)}
    for place, name in enumerate(names if available else ()):
        matches = [candidate for candidate in available if candidate.startswith(name)]
        names[place] = min(matches, key=len, default=name)
        check_choice("column", names[place], sorted(available))
    return [block if isinstance(block, str) else _select(block, names) for block in blocks]


def _select(table: Table, names: Sequence[str]) -> Table:
    columns = list(enumerate(table.columns))
    places = [place for place, column in columns if not column.wide]
    if names:
        places = [place for place in places if table.columns[place].identifies]
        places += [place for name in names for place, column in columns if name in _column_names(column)]
        places = list(dict.fromkeys(places))
    lines = [replace(line, cells=[line.cells[place] for place in places]) for line in table.lines]
    return replace(table, columns=[table.columns[place] for place in places], lines=lines)


def _column_names(column: Column) -> set[str]:
    return {_normalize(name) for name in (column.key, column.title, column.heading) if name}


def _normalize(name: str) -> str:
    return name.strip().lower().replace("-", " ").replace("_", " ")


@dataclass(frozen=True)
class Picture:
    """A chart.

    Attributes:
        name: distinct file name.
        caption: how to read it, in one line.
        svg: draws it for light paper; its argument selects the form for phones.
        values: the drawn rows, if any.
        light_only: whether dark pages keep a white background.
    """

    name: str
    caption: str
    svg: Callable[[bool], str]
    values: Sequence[dict[str, Any]] = ()
    light_only: bool = False

    def numbers(self) -> Download | None:
        """Return the values as CSV with six digits, if any."""
        rows = [
            {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in row.items()}
            for row in self.values
        ]
        return Download(f"{self.name}.csv", self.caption, "text/csv", csv_text(rows).encode()) if any(rows) else None


@dataclass(frozen=True)
class Download:
    """A file inside the page; ``kind`` is its media type."""

    name: str
    about: str
    kind: str
    data: bytes


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; the reader opens ``folded`` ones."""

    name: str
    title: str
    blocks: Sequence[Block]
    folded: bool = False


Block = Table | str | Picture | Download | Section


@dataclass(frozen=True)
class Report:
    """A page with sections."""

    title: str
    sections: Sequence[Section]


def csv_text(rows: Iterable[Mapping[str, object]], fields: Sequence[str] = ()) -> str:
    """Return the values of rows under the names ``fields``, by default those of the rows.

    A zero byte, which readers reject and Python 3.10 does not write, becomes U+FFFD.
    """
    rows = list(rows)
    fields = fields or list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(fields)
    writer.writerows([_csv_field(row.get(name)) for name in fields] for row in rows)
    return out.getvalue()


def _csv_field(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        value = " | ".join(map(str, value))
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
