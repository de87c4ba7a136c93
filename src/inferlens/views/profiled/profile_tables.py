"""What the tables of layers, kernels and floors share: which rows are shown, sums, names and the sentence on cost.

Columns and rows stand in ``layers_and_kernels`` and ``roofline``; :func:`document` makes of them what formats need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from inferlens.analysis.profile.layers import ProfilingCost, RowT, RunTimes
from inferlens.record.layer_profile import Tensor
from inferlens.units import ABSENT, half_width, milliseconds, ratio, ratio_range
from inferlens.views.plain import cut, plain
from inferlens.views.profiled.cases import ProfiledCase
from inferlens.views.table import Column, Document, Line, Table

TOP = 20  # rows that people get if they ask for no other number; programs get all
CASE = ("model", "case", "digest", "profile")  # the first fields of every line of CSV
TIMES = ("typical", "share", "mean", "median", "median_low", "median_high", "p95")
LONGEST_NAME = 60
FEW = 5  # rows that a sentence adds up
THE_MODEL = "the model"


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
) -> Document:
    """A table of each case.

    Args:
        noun: what the rows are, in the plural, or the table's name.
        cases: with all of their rows.
        top: how many of them are shown; ``None``: :data:`TOP` for people, all for programs.
        table: draws a case; ``data``: what JSON has of it besides its rows.
        names: fields of CSV after those of the case; ``lines``: their values.
    """

    def drawn(of: ShownCase[T]) -> Table:
        title = f"{of.case.headline} · {of.case.name}"
        if isinstance(of.table, str):
            return Table(title, noun, (), (), sentences=[f"No {noun}: {of.table} {of.case.profile.hint}"])
        return replace(table(replace(of, top=top or TOP), of.table), title=title)

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
        blocks=lambda: [drawn(each) for each in cases],
        data=lambda: {"schema": f"inferlens.{noun}/1", "cases": [told(each) for each in cases]},
        csv=lambda: ((*CASE, *names), fields()),
    )


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


def sum_line(name: str, columns: Sequence[Column], numbers: Sequence[Column], row: Any) -> Line:
    """A line of what rows add up to, which has ``numbers`` alone."""
    cells = [column.text(row) if column in numbers else "" for column in columns]
    return Line(name, cells, style="bold" if name == "whole run" else "", sums=True)


# Names


def name_of(name: str) -> str:
    """A name in a sentence or a cell: on one line, never empty."""
    return plain(name) or "(no name)"


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name, not longer than what it stands in bears."""
    return cut(name_of(name), longest)


def modules(paths: Sequence[str]) -> str:
    """Where a layer came from: the path, or all of them."""
    return ", ".join(name_of(path) if path else THE_MODEL for path in paths) or ABSENT


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
    interval = f" ({ratio_range(account.cost_low, account.cost_high)})" if account.cost_low is not None else ""
    whole, before = milliseconds(account.whole.median), milliseconds(account.unprofiled)
    return f"Profiling made a call {ratio(account.cost)}{interval} as long: {whole} ms instead of {before} ms."
