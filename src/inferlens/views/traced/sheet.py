"""A table of a trace before it is drawn: its columns, how each is written, and what stands around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inferlens.trace.columns import Columns
from inferlens.units import ABSENT, byte_count, milliseconds, percent, plural, significant
from inferlens.views.plain import plain
from inferlens.views.profiled.grid import Grid, Heading, Line

BAR = 24
SPANNED = "tensor cores, from ... to: of the rest the kernels' names do not tell whether they use any."
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def text(value: Any) -> str:
    """A name or a word; what is not there is a dash."""
    return plain(str(value)) if value not in (None, "") else ABSENT


def shapes(value: Any) -> str:
    """Dimensions of tensors from JSON, ``8x4, 4x4``; what is no tensor is a dash."""
    try:
        told = msgspec.json.decode(value) if value else None
    except msgspec.DecodeError:
        return text(value)
    if not isinstance(told, list):
        return text(value)
    words = [_dimensions(each) for each in told]
    while words and words[-1] == ABSENT:
        words.pop()
    return plain(", ".join(words)) or ABSENT


def _dimensions(shape: Any) -> str:
    """Of a tensor, or of a list of them."""
    if not isinstance(shape, list) or not shape:
        return ABSENT
    if any(isinstance(each, list) for each in shape):
        return f"({', '.join(map(_dimensions, shape))})"
    return "x".join(map(str, shape))


def count(value: Any) -> str:
    """A whole number."""
    return ABSENT if value is None else f"{value:,.0f}"


def number(value: Any) -> str:
    """A number with a fraction."""
    return ABSENT if value is None else significant(float(value))


def share(value: Any) -> str:
    """A share."""
    return ABSENT if value is None else f"{'-' if value < 0 else ''}{percent(value)}"


def span(value: Any) -> str:
    """A share, and how much of the rest may belong to it too: ``12 %`` or ``12 % to 90 %``."""
    known, open_ = value or (None, None)
    if known is None or not open_ or open_ < 0.005:
        return share(known)
    return f"{share(known)} to {share(known + open_)}"


def span_notes(values: Iterable[Any]) -> tuple[str, ...]:
    """What a span means, if there is one among the values."""
    return (SPANNED,) if any(" to " in span(value) for value in values) else ()


def time(value: Any) -> str:
    """Milliseconds."""
    return milliseconds(value)


def microseconds(value: Any) -> str:
    """Microseconds."""
    return ABSENT if value is None else significant(value * 1e6)


def size(value: Any) -> str:
    """Bytes in the unit that reads best."""
    return byte_count(value)


def yes(value: Any) -> str:
    """A truth."""
    return "yes" if value else ABSENT


def whether(value: Any) -> str:
    """A truth that may not be known."""
    return "?" if value is None else yes(value)


def bar(value: Any) -> str:
    """A share as a bar, as wide as the column at 1."""
    eighths = round(max(0.0, min(float(value or 0.0), 1.0)) * BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


@dataclass(frozen=True)
class Column:
    """One column: the key of the table's, how it is called and written; ``keep`` orders what stays, lowest first."""

    key: str
    title: str
    unit: str = ""
    written: Callable[[Any], str] = text
    keep: int = 0
    most: int = 28

    @property
    def numeric(self) -> bool:
        """Whether it stands flush right."""
        return self.written not in (text, shapes, bar, yes, whether)


@dataclass(frozen=True)
class Sheet:
    """A table, its columns for people, and what is said around it.

    Attributes:
        name: for programs.
        first: key and title of the column with the names.
        indent: what stands before each row's name, where rows are a tree.
        shown: a row's name as people see it; by default as it is.
        full: key of the name that a row has where that is not shown, in Markdown.
        sentences: what it comes to.
    """

    name: str
    title: str
    first: tuple[str, str]
    columns: Sequence[Column]
    table: Columns
    about: str = ""
    notes: Sequence[str] = ()
    sentences: Sequence[str] = ()
    indent: Callable[[Mapping[str, Any]], str] = lambda _: ""
    shown: Callable[[Mapping[str, Any]], Any] | None = None
    full: str = ""
    top: int | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Those to show."""
        return list(self.table.rows(self.top))

    def grid(self) -> Grid:
        """The sheet as text, for a terminal or Markdown."""
        rows = self.rows()
        left = len(self.table) - len(rows)
        lines = [
            Line(
                text(self.shown(row) if self.shown else row[self.first[0]]),
                tuple((column.written(row[column.key]), "") for column in self.columns),
                indent=self.indent(row),
                full=text(row[self.full]) if self.full else "",
            )
            for row in rows
        ]
        more = [f"{plural(left, 'more row')}: --top {len(self.table)} shows all."] if left else []
        return Grid(
            headline=self.title,
            about=self.about,
            first=self.first[1],
            headings=tuple(
                Heading(column.title, column.unit, column.keep, column.numeric, column.most) for column in self.columns
            ),
            lines=tuple(lines),
            notes=(*self.notes, *more),
            sentences=tuple(self.sentences),
        )
