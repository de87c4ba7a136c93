"""Layers or modules against the least time that their work takes: those first in which there is most to be won."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from inferlens.analysis.profile.kernels import short_name
from inferlens.analysis.profile.layers import profiling_cost, runs_of
from inferlens.analysis.profile.roofline import BYS, Floor, Roofline, RowsBy, roofline
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Profile
from inferlens.record.profile_store import LoadedProfiles
from inferlens.units import (
    ABSENT,
    bandwidth,
    flop_rate,
    listing,
    mebibytes,
    megaflops,
    milliseconds,
    percent,
    plural,
    ratio,
    significant,
)
from inferlens.views.profiled.cases import CASE, TOP, Chosen, chosen, of_level
from inferlens.views.profiled.sentences import FEW, THE_MODEL, cost, modules, name_of, short
from inferlens.views.table import Column, Document, Line, Table, ruled, share

SCHEMA = "inferlens.roofline/1"
SORTS = ("won", "time", "order")
# A layer that computes so much faster than large matrix products is not explained by how good these are at it.
ABOVE_RATE = 1.25
FASTER = (
    "Most of the time is in such that compute much faster than the rate, which may have been measured while something "
    "else used the machine. inferlens profile --rebuild measures it again."
)
NUMBERS = (
    Column("time", "time", "ms", milliseconds, keep=1),
    Column("share", "share", write=share, keep=8),
    Column("flops", "work", "MFLOP", megaflops, keep=6),
    Column("bytes", "bytes", "MiB", mebibytes, keep=7),
    Column("intensity", "intensity", "FLOP/B", lambda each: ABSENT if each is None else significant(each), keep=9),
    Column("floor", "floor", "ms", milliseconds, keep=2),
    Column("bound", "bound", keep=5, numeric=False),
    Column("distance", "distance", write=ratio, keep=3),
    Column("won", "to win", "ms", milliseconds, keep=0),
)
COLUMNS = (
    Column("place", "#", keep=11),
    Column("kind", "kind", keep=10, numeric=False, most=20),
    Column("", "modules", write=lambda row: ABSENT if row.modules == (row.name,) else modules(row.modules), keep=4,
           numeric=False),
    *NUMBERS,
)  # fmt: skip
OF_LAYERS = ("#", "modules")  # columns that say nothing of modules
CSV = (*CASE, "precision", "row", "place", "name", "kind", "modules", *(column.key for column in NUMBERS))
TOTALS = [name for name in Roofline.__struct_fields__ if name != "rows"]


def roofed(loaded: LoadedProfiles, by: RowsBy = "layer", depth: int | None = None) -> list[Chosen[Roofline]]:
    """The floors of the latest profile of each case, at each level, or why it has none.

    Raises:
        InferlensError: if there are no such rows.
    """
    check_choice("kind of row", by, BYS)
    cases = of_level(loaded, None)
    return [Chosen(case, roofline(case.profile, case.record, by=by, depth=depth)) for case in cases]


def document(cases: Sequence[Chosen[Roofline]], *, sort: str = "won", top: int | None = None) -> Document:
    """The floors of each case.

    Args:
        cases: as :func:`roofed` makes them.
        sort: ``won``, those first in which there is most to be won; ``time``, what takes most; ``order``.
        top: how many rows, those in which there is most to be won, or that take most; ``None``: :data:`.cases.TOP` for
            people, all for programs.

    Raises:
        InferlensError: for another order.
    """
    check_choice("order of floors", sort, SORTS)

    def ranked(found: Roofline) -> Sequence[Floor]:
        return sorted(found.rows, key=lambda row: -row.time) if sort == "time" else found.ranked

    def rows(most: int | None) -> list[Chosen[Roofline]]:
        return [chosen(each.case, each.table, ranked, sort, most) for each in cases]

    return Document(
        blocks=lambda: [_table(each) for each in rows(top or TOP)],
        data=lambda: {"schema": SCHEMA, "cases": [_data(each) for each in rows(top)]},
        csv=lambda: (CSV, _lines(rows(top))),
    )


def _table(of: Chosen[Roofline]) -> Table:
    found = of.table
    if isinstance(found, str):
        return Table(of.case.title, "layer", COLUMNS, (), sentences=[f"It has no floors: {found}"])
    columns = [column for column in COLUMNS if found.by != "module" or column.title not in OF_LAYERS]

    def total(name: str, row: Floor, style: str = "") -> Line:
        return Line(name, [column.text(row) if column in NUMBERS else "" for column in columns], style=style)

    lines = [Line.of(row_name(found, row), columns, row) for row in of.rows]
    lines += [total(plural(len(of.rest), f"other {found.by}"), found.sum_of(of.rest))] if of.rest else []
    outside = Floor(time=found.outside, share=found.outside / found.time if found.time else None)
    # The whole's distance is from what all floors add up to, and not known where some work is in none.
    distance = found.time / found.floor if found.floor and not found.unplaced else None
    whole = replace(found.sum_of(found.rows), time=found.time, share=1.0, distance=distance)
    rate = f"matrix products in {found.precision} {flop_rate(found.rate)}" if found.rate else "no rate"
    about = f"{plural(len(found.rows), found.by)} · copies {bandwidth(found.ceilings.bandwidth)} · {rate}"
    runs = runs_of(of.case.profile)
    account = None if isinstance(runs, str) else profiling_cost(runs, of.case.unprofiled)
    return Table(
        of.case.title,
        found.by,
        columns,
        ruled(lines, [total(f"in no {found.timed}", outside), total("whole run", whole, "bold")]),
        about=f"{about} (measured: {found.ceilings.basis or found.ceilings.device})",
        notes=notes(of.case.profile, found),
        sentences=[*sentences(found), *([cost(account)] if account and account.cost is not None else [])],
    )


def row_name(found: Roofline, row: Floor) -> str:
    """What a row is called where there is little room: of a kernel without its namespaces and arguments."""
    if row.name:
        return name_of(short_name(row.name) if found.by == "kernel" else row.name)
    if row.modules == ("",):
        return THE_MODEL
    return "of no known module" if found.by == "module" else name_of("")


def sentences(found: Roofline) -> list[str]:
    """Where there is most to be won, and how much at all."""
    if not any(row.floor is not None for row in found.rows):
        said = [f"No {found.by} has a floor: of none is a module known that was counted."]
        if found.least:
            said.append(
                f"The whole model cannot take less than {milliseconds(found.least)} ms here, and takes "
                f"{milliseconds(found.time)} ms, {ratio(found.time / found.least)} that."
            )
        return said
    said = [
        _most(found),
        f"The floors add up to {milliseconds(found.floor)} ms of {milliseconds(found.time)} ms. At most "
        f"{milliseconds(found.won)} ms ({_share(found.won, found.time)}) are to be won in the {found.by}s, and "
        f"{milliseconds(max(found.outside, 0.0))} ms are in no {found.timed}.",
    ]
    unknown = sum(row.time for row in found.rows if row.floor is None)
    if unknown > 0:
        said.append(f"Of {milliseconds(unknown)} ms ({_share(unknown, found.time)}) it is not known what was done.")
    below = [row for row in found.rows if row.distance is not None and row.distance < 1]
    if below:
        said.append(f"{plural(len(below), found.by)} took less than the floor: data may come from a cache.")
    faster = [row for row in below if row.bound == "compute" and 1 / (row.distance or 1) > ABOVE_RATE]
    if sum(row.time for row in faster) > found.time / 2 and not found.ceilings.disturbed:
        said.append(FASTER)
    return said


def _most(found: Roofline) -> str:
    """The row in which there is most to be won, and the first few together."""
    rows = [row for row in found.ranked if row.won]
    if not rows:
        return f"No {found.by} takes longer than its floor."
    first = rows[0]
    said = f"Most is to be won in {short(row_name(found, first))}: {milliseconds(first.won)} of "
    said += f"{milliseconds(first.time)} ms" + (f", {ratio(first.distance)} its floor" if first.distance else "")
    if len(rows) <= FEW or not found.won:
        return f"{said}."
    several = sum(row.won or 0.0 for row in rows[:FEW])
    return f"{said}; the first {FEW} {found.by}s have {percent(several / found.won)} of all that is."


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else "0 %"


def notes(profile: Profile, found: Roofline) -> list[str]:
    """What the work and the ceilings rest on, and what is missing of them."""
    said = [
        "Floor: the longer of FLOPs at the rate and bytes at the bandwidth. Bytes: weights, and what crosses a "
        f"{found.by}'s border, each once. FLOPs: matrix products, convolutions, attention."
    ]
    if found.by == "module":
        said.append("What was fused from several modules is divided among them by their FLOPs, which is a convention.")
    if profile.work and profile.work.uncovered:
        names = [f"{name} ({plural(count, 'call')})" for name, count in profile.work.uncovered.items()]
        said.append(f"FLOPs not counted: {_first(names)}.")
    if found.unplaced:
        names = [short(path) if path else "the model itself" for path in found.unplaced]
        said.append(f"In no {found.timed}: the work of {_first(names)}.")
    if found.rate is None:
        why = found.ceilings.absent.get(found.precision, "it was not measured")
        said.append(f"There is no rate of {found.precision} ({why}), so floors are those of bytes alone.")
    if found.ceilings.disturbed:
        said.append(f"{found.ceilings.disturbed} inferlens profile measures them again.")
    return said


def _first(names: Sequence[str]) -> str:
    more = len(names) - FEW
    return listing([*names[:FEW], *([f"{more} more"] if more > 0 else [])])


def _data(of: Chosen[Roofline]) -> dict[str, Any]:
    """Every field of every row, the ceilings, and what was not counted."""
    found, profile, work = of.table, of.case.profile, of.case.profile.work
    if isinstance(found, str):
        return of.data
    return {
        **of.data,
        **{name: getattr(found, name) for name in TOTALS},
        "counted": work.note if work else "",
        "uncovered": work.uncovered if work else {},
        "sentences": sentences(found),
        "notes": notes(profile, found),
    }


def _lines(cases: Sequence[Chosen[Roofline]]) -> Iterator[list[object]]:
    """A line for each row of every case that has floors, and for what is in no layer, so that times add up."""
    for of in cases:
        found, rest = of.table, of.rest
        if isinstance(found, str):
            continue
        head = [*of.case.fields, found.precision]
        for row in of.rows:
            yield [*head, found.by, row.place, row.name, row.kind, row.modules, *_numbers(row)]
        sums = {f"other {found.by}s": Floor(time=sum(row.time for row in rest))} if rest else {}
        sums[f"in no {found.timed}"] = Floor(time=found.outside)
        sums["whole"] = Floor(time=found.time, floor=found.floor, won=found.won)
        for name, row in sums.items():
            yield [*head, name, None, None, None, None, *_numbers(row)]


def _numbers(row: Floor) -> list[object]:
    return [getattr(row, column.key) for column in NUMBERS]
