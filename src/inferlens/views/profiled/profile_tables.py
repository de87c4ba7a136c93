"""What the tables of layers, kernels and floors share: which rows are shown, sums, names and the sentence on cost.

Columns and rows stand in ``layers_and_kernels`` and ``roofline``; :func:`document` makes of them what formats need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from inferlens.analysis.profile.layers import ProfilingCost, RowT, RunTimes
from inferlens.analysis.profile.modules import ancestor, path_of
from inferlens.record.layer_profile import Tensor
from inferlens.units import ABSENT, half_width, listing, milliseconds, plural, ratio
from inferlens.views.plain import cut, plain
from inferlens.views.profiled.cases import ProfiledCase, told_apart
from inferlens.views.table import Column, Document, Line, Table

TOP = 10  # rows that people get of one case if they ask for no other number; programs get all
LINES = 17  # of the rows of several cases together, so that all of it fits on a screen
NOTES, LONGEST_NOTE = 2, 190  # beneath a table
CASE = ("model", "case", "digest", "profile")  # the first fields of every line of CSV
TIMES = ("typical", "share", "mean", "median", "median_low", "median_high", "p95")
LONGEST_NAME = 60
FEW = 5  # rows that a sentence adds up
THE_MODEL = "the model"
MOST_MODULES = 3  # that are named


T = TypeVar("T")


@dataclass(frozen=True)
class ShownCase(Generic[T]):
    """One case, its table or why it has none, and its ``ranked`` rows, of which the ``top`` are shown."""

    case: ProfiledCase
    table: T | str
    ranked: Sequence[Any] = ()
    top: int | None = None
    in_order: bool = False

    @property
    def rows(self) -> Sequence[Any]:
        """The rows that are shown."""
        rows = self.ranked[: self.top]
        return sorted(rows, key=lambda row: row.place) if self.in_order else rows

    @property
    def rest(self) -> Sequence[Any]:
        """The rows that are not, in the order of execution."""
        return [] if self.top is None else sorted(self.ranked[self.top :], key=lambda row: row.place)


def document(
    noun: str,
    cases: Sequence[ShownCase[T]],
    top: int | None,
    *,
    table: Callable[[ShownCase[T], T], Table],
    data: Callable[[ShownCase[T], T], dict[str, Any]],
    names: Sequence[str],
    lines: Callable[[ShownCase[T], T], Iterable[Sequence[object]]],
    in_one: bool = False,
) -> Document:
    """A table of each case.

    Args:
        noun: what the rows are, in the plural, or the table's name.
        cases: with all of their rows.
        top: how many of them are shown; ``None``: :data:`TOP` for people, all for programs.
        table: draws a case; ``data``: what JSON has of it besides its rows.
        names: fields of CSV after those of the case; ``lines``: their values.
        in_one: whether the answer stands first, and several cases share a table unless a number of rows is asked for.
    """

    def blocks() -> Iterator[Table | str]:
        if in_one and len(cases) > 1 and top is None:
            yield from together(noun, cases, table)
            return
        for of in cases:
            head, (name,) = told_apart([of.case])
            title = f"{head} · {name}"
            if isinstance(of.table, str):
                yield Table(title, noun, (), (), sentences=[f"No {noun}: {of.table} {of.case.profile.hint}".strip()])
                continue
            drawn = table(replace(of, top=top or TOP), of.table)
            if not in_one:
                yield replace(drawn, title=title)
                continue
            yield Table(title, "", (), ())
            yield from drawn.sentences
            yield replace(drawn, sentences=(), notes=few(drawn.notes))

    def told(of: ShownCase[T]) -> dict[str, Any]:
        shown, reason = replace(of, top=top), of.table if isinstance(of.table, str) else ""
        about = {**of.case.data, "status": of.case.profile.status, "reason": reason, "rows": shown.rows}
        about |= {} if noun == "roofline" else {"warnings": of.case.profile.warnings}
        return about if isinstance(of.table, str) else {**about, **data(shown, of.table)}

    def fields() -> Iterable[Sequence[object]]:
        for of in cases:
            for line in () if isinstance(of.table, str) else lines(replace(of, top=top), of.table):
                yield [*of.case.fields, *line]

    return Document(
        blocks=lambda: list(blocks()),
        data=lambda: {"schema": f"inferlens.{noun}/1", "cases": [told(each) for each in cases]},
        csv=lambda: ((*CASE, *names), fields()),
    )


def together(
    noun: str, cases: Sequence[ShownCase[T]], table: Callable[[ShownCase[T], T], Table]
) -> Iterator[Table | str]:
    """One table of several cases, with the rows that take most of each: as many as fit on a screen."""
    head, names = told_apart([of.case for of in cases])
    why: dict[str, list[str]] = {}
    for of, name in zip(cases, names, strict=True):
        if isinstance(of.table, str):
            why.setdefault(f"{of.table} {of.case.profile.hint}".strip(), []).append(name)
    missing = [f"No {noun} of {few_names(those)}: {reason}" for reason, those in why.items()]
    if sum(map(len, why.values())) == len(cases):
        yield Table(head, "", (), (), sentences=few(missing))
        return
    room = LINES - 2 * min(len(missing), NOTES + 1)
    each = max(1, min(TOP, room // len(cases) - 1))
    rest, lines, first = sum(len(of.ranked) for of in cases), list[Line](), noun
    columns: Sequence[Column] = ()
    for of, name in list(zip(cases, names, strict=True))[: room // (each + 1)]:
        if isinstance(of.table, str):
            continue
        drawn, count = table(replace(of, top=each), of.table), len(of.ranked[:each])
        columns, first, rest = drawn.columns, drawn.first, rest - count
        lines.append(Line(name, drawn.lines[-1].cells, style="bold", sums=True))
        lines += [replace(line, indent="  ", ends=False) for line in drawn.lines[:count]]
    if rest:
        more = f"{rest:,} more: --top {TOP}, or --format csv"
        lines.append(Line(more, [""] * len(columns), style="dim", sums=True))
    about = f"What takes most in each of {plural(len(cases), 'case')}"
    yield Table(head, first, columns, lines, about=about, notes=few(missing))


def few_names(names: Sequence[str]) -> str:
    """``a, b and 6 others``."""
    return listing(names if len(names) < 4 else [*names[:2], plural(len(names) - 2, "other")])


def few(notes: Sequence[str]) -> list[str]:
    """The first notes, on a line or two each, and how many more there are."""
    more = len(notes) - NOTES
    return [
        *(cut(note, LONGEST_NOTE) for note in notes[:NOTES]),
        *([f"({plural(more, 'more note')}: --format json)"] if more > 0 else []),
    ]


def shown(
    made: Iterable[tuple[ProfiledCase, T | str]], ranked: Callable[[T], Sequence[Any]], sort: str
) -> list[ShownCase[T]]:
    """The rows of each case as they are ``ranked``; sorted by ``order``, they are in that of execution."""
    return [
        ShownCase(case, table, () if isinstance(table, str) else ranked(table), in_order=sort == "order")
        for case, table in made
    ]


def by_time(rows: Iterable[RowT]) -> list[RowT]:
    """The rows that take most first; those without a time last."""
    return sorted(rows, key=lambda row: -1.0 if row.times is None else row.times.typical, reverse=True)


def time_fields(times: RunTimes | None) -> list[object]:
    """The fields of :data:`TIMES`, in seconds."""
    return [getattr(times, name, None) for name in TIMES]


def sum_line(name: str, columns: Sequence[Column], numbers: Sequence[Column], row: Any, *, style: str = "") -> Line:
    """A line of what rows add up to, which has ``numbers`` alone."""
    cells = [column.text(row) if column in numbers else "" for column in columns]
    return Line(name, cells, style=style or ("bold" if name == "whole run" else ""), sums=True)


# Names


def name_of(name: str) -> str:
    """A name in a sentence or a cell: on one line, never empty."""
    return plain(name) or "(no name)"


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name, not longer than what it stands in bears."""
    return cut(name_of(name), longest)


def modules(paths: Sequence[str]) -> str:
    """Where a layer came from, its modules' shared path once: ``layer1.0.conv1 + bn1``; of many how many there are."""
    if not any(paths):
        return THE_MODEL if paths else ABSENT
    above = ancestor([path_of(path)[:-1] for path in paths])
    names = [name_of(".".join(path_of(path)[len(above) :])) if path else THE_MODEL for path in paths]
    if len(names) > MOST_MODULES:
        return f"{len(names):,} in {name_of('.'.join(above))}" if above else plural(len(names), "module")
    return " + ".join([name_of(".".join((*above, names[0]))), *names[1:]])


def shapes(tensors: Sequence[Tensor]) -> str:
    """Dimensions of tensors, ``1x64x56x56``; those that are not known are left out."""
    return ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors if tensor.shape) or ABSENT


def half(times: RunTimes | None) -> str:
    """Half of the median's interval, in percent of the median."""
    return half_width(times.median, times.median_low, times.median_high) if times and times.median > 0 else ABSENT


# Sentences


def cost(account: ProfilingCost) -> str:
    """What profiling cost."""
    if account.cost is None:
        return "What profiling cost is not known: there is no record of unprofiled calls beside the profile."
    whole, before = milliseconds(account.whole.median), milliseconds(account.unprofiled)
    return f"Profiling made a call {ratio(account.cost)} as long ({whole} instead of {before} ms): judge by shares."
