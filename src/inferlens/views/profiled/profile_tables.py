"""What the tables of layers, kernels and floors share: which rows are shown, sums, names, and what their times are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from inferlens.analysis.findings import COST, FASTER
from inferlens.analysis.modules import ancestor, module_path
from inferlens.analysis.profile_table import RowT, RunTimes, kernels_alone, profile_runs, profiling_cost
from inferlens.record.layer_profile import Profile, Tensor
from inferlens.units import ABSENT, half_width, listing, microseconds, milliseconds, plural, ratio
from inferlens.views.plain import plain, without_middle
from inferlens.views.profiled.cases import ProfiledCase
from inferlens.views.table import Column, Document, Table

NOTES, LONGEST_NOTE = 2, 190  # beneath a table
CASE = ("model", "case", "digest", "profile")  # the first fields of every line of CSV
TIMES = ("typical", "share", "mean", "median", "median_low", "median_high", "p95")
LONGEST_NAME = 60
FEW = 5  # rows that a sentence adds up
THE_MODEL = "the model"
CALL, PROFILED_CALL = "call", "profiled call"  # the row of a whole call; of what is known while it is profiled alone
MOST_MODULES = 3  # that are named
LONG = 0.1  # seconds of a call, for times of the GPU to be in milliseconds


def three_digits(seconds: float | None) -> str:
    """Microseconds without digits that mean nothing: ``14,700`` rather than ``14,683``."""
    return microseconds(seconds and float(f"{seconds:.3g}"))


WRITE: dict[str, Callable[[float | None], str]] = {"ms": milliseconds, "µs": three_digits}
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
    blocks: Callable[[], Sequence[Table | str]],
    data: Callable[[ShownCase[T], T], dict[str, Any]],
    names: Sequence[str],
    lines: Callable[[ShownCase[T], T], Iterable[Sequence[object]]],
) -> Document:
    """What programs get of each case (the ``top`` of its rows, which are ``noun``), beside the ``blocks`` of people.

    ``data`` is what JSON has of a case besides; ``names`` and ``lines`` are fields of CSV after those of the case.
    """

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
        blocks=blocks,
        data=lambda: {"schema": f"inferlens.{noun}/1", "cases": [told(case) for case in cases]},
        csv=lambda: ((*CASE, *names), fields()),
    )


def few_names(names: Sequence[str]) -> str:
    """``a, b and 6 others``."""
    return listing(names if len(names) < 4 else [*names[:2], plural(len(names) - 2, "other")])


def few(notes: Sequence[str]) -> list[str]:
    """The first notes, on a line or two each, and how many more there are."""
    more = len(notes) - NOTES
    return [
        *(without_middle(note, LONGEST_NOTE) for note in notes[:NOTES]),
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


def varying(columns: Sequence[Column], rows: Sequence[Any], key: str) -> list[Column]:
    """The columns, that of ``key`` without cells where all rows that have any word have the same."""
    same = len({getattr(row, key, "") for row in rows} - {""}) < 2
    return [replace(column, write=lambda _: "") if same and column.key == key else column for column in columns]


# Names


def name_of(name: str) -> str:
    """A name in a sentence or a cell: on one line, never empty."""
    return plain(name) or "(no name)"


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name, not longer than what it stands in bears."""
    return without_middle(name_of(name), longest)


def modules(paths: Sequence[str]) -> str:
    """Where a layer came from, its modules' shared path once: ``layer1.0.conv1 + bn1``; of many how many there are."""
    if not any(paths):
        return THE_MODEL if paths else ABSENT
    above = ancestor([module_path(path)[:-1] for path in paths])
    names = [name_of(".".join(module_path(path)[len(above) :])) if path else THE_MODEL for path in paths]
    if len(names) > MOST_MODULES:
        return f"{len(names):,} in {name_of('.'.join(above))}" if above else plural(len(names), "module")
    return " + ".join([name_of(".".join((*above, names[0]))), *names[1:]])


def shapes(tensors: Sequence[Tensor]) -> str:
    """Dimensions of tensors, ``1x64x56x56``; those that are not known are left out."""
    return ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors if tensor.shape) or ABSENT


def half(times: RunTimes | None) -> str:
    """Half of the median's interval, in percent of the median."""
    return half_width(times.median, times.median_low, times.median_high) if times and times.median > 0 else ABSENT


# Units and sentences


def unit_of(profiles: Iterable[Profile]) -> str:
    """The unit of all times on a screen: that of kernels where all are the GPU's, of calls that are not long."""
    short = [
        profile.timed == "GPU" and min(profile.found.whole, default=0.0) < LONG for profile in profiles if profile.found
    ]
    return "µs" if short and all(short) else "ms"


def in_unit(columns: Sequence[Column], unit: str) -> list[Column]:
    """The columns, those of milliseconds in ``unit``."""
    return [replace(column, unit=unit, write=WRITE[unit]) if column.unit == "ms" else column for column in columns]


def waits(profile: Profile) -> bool:
    """Whether the time of a layer is all between two events on the GPU, in which it may wait for the host."""
    return profile.level == "layer" and profile.timed == "GPU" and not kernels_alone(profile)


def stretched(profile: Profile, unprofiled: Sequence[float]) -> list[str]:
    """That times come from calls that were much longer for being profiled, if they do; else nothing."""
    runs = profile_runs(profile)
    cost = None if isinstance(runs, str) or kernels_alone(profile) else profiling_cost(runs, unprofiled).cost
    if cost is None or FASTER < cost < COST:
        return []
    return [f"Times are scaled from profiled calls that took {ratio(cost)} as long: small differences mean nothing."]


def timed(cases: Sequence[ProfiledCase], what: str) -> str:
    """Whose time of ``what`` is shown, the host's or the GPU's, and of which call."""
    clock = " or ".join(dict.fromkeys(str(case.profile.timed) for case in cases))
    said = f"{clock[:1].upper()}{clock[1:]} time of {what}"
    said += ", gaps included" * any(waits(case.profile) for case in cases)
    if not all(case.unprofiled for case in cases):
        return f"{said} in a profiled call"
    alone = all(kernels_alone(case.profile) for case in cases)
    return said if alone else f"{said}, scaled to a call without profiling"
