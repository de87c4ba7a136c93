"""Layers or modules against the least time that their work takes: the largest possible gain first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from inferlens.analysis.profile.kernels import short_name
from inferlens.analysis.profile.layers import profiling_cost, runs_of
from inferlens.analysis.profile.roofline import Floor, Roofline, RowsBy, roofline
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
from inferlens.views.profiled import profile_tables
from inferlens.views.profiled.cases import of_level
from inferlens.views.profiled.profile_tables import FEW, THE_MODEL, ShownCase, name_of, sum_line
from inferlens.views.table import Column, Document, Line, Table, ruled, share

SORTS = ("won", "time", "order")
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
    Column("", "modules", keep=4, numeric=False,
           write=lambda row: ABSENT if row.modules == (row.name,) else profile_tables.modules(row.modules)),
    *NUMBERS,
)  # fmt: skip
TOTALS = [name for name in Roofline.__struct_fields__ if name != "rows"]


def roofed(
    loaded: LoadedProfiles, by: RowsBy = "layer", depth: int | None = None, sort: str = "won"
) -> list[ShownCase[Roofline]]:
    """The floors of the latest profile of each case, at each level, or why it has none.

    Args:
        loaded: what could be read.
        by: what rows are; ``depth`` as :func:`.roofline` takes it.
        sort: ``won``, the largest possible gain first; ``time``, what takes most; ``order``.

    Raises:
        InferlensError: if there are no such rows, or for another order.
    """
    check_choice("order of floors", sort, SORTS)

    def ranked(found: Roofline) -> Sequence[Floor]:
        return sorted(found.rows, key=lambda row: -row.time) if sort == "time" else found.ranked

    made = ((case, roofline(case.profile, case.record, by=by, depth=depth)) for case in of_level(loaded, None))
    return profile_tables.shown(made, ranked, sort)


def document(cases: Sequence[ShownCase[Roofline]], *, top: int | None = None) -> Document:
    """The floors of each case: the ``top`` rows; ``None``: :data:`.profile_tables.TOP` for people, all for programs."""
    names = ("precision", "row", "place", "name", "kind", "modules", *(column.key for column in NUMBERS))
    return profile_tables.document("roofline", cases, top, table=_table, data=_data, names=names, lines=_lines)


def _table(of: ShownCase[Roofline], found: Roofline) -> Table:
    # A module has no place in the order of execution, and its name says which it is.
    columns = [column for column in COLUMNS if found.by != "module" or column.title not in ("#", "modules")]
    lines = [Line.of(row_name(found, row), columns, row) for row in of.rows]
    outside = Floor(time=found.outside, share=found.outside / found.time if found.time else None)
    # The whole's distance is from what all floors add up to, and not known where some work is in none.
    distance = found.time / found.floor if found.floor and not found.unplaced else None
    whole = replace(found.sum_of(found.rows), time=found.time, share=1.0, distance=distance)
    sums = {f"in no {found.timed}": outside, "whole run": whole}
    if of.rest:
        lines.append(sum_line(plural(len(of.rest), f"other {found.by}"), columns, NUMBERS, found.sum_of(of.rest)))
    rate = f"matrix products in {found.precision} {flop_rate(found.rate)}" if found.rate else "no rate"
    about = f"{plural(len(found.rows), found.by)} · copies {bandwidth(found.ceilings.bandwidth)} · {rate}"
    runs = runs_of(of.case.profile)
    account = None if isinstance(runs, str) else profiling_cost(runs, of.case.unprofiled)
    return Table(
        "",
        found.by,
        columns,
        ruled(lines, [sum_line(name, columns, NUMBERS, row) for name, row in sums.items()]),
        about=f"{about} (measured: {found.ceilings.basis or found.ceilings.device})",
        notes=notes(of.case.profile, found),
        sentences=sentences(found) + ([profile_tables.cost(account)] if account and account.cost is not None else []),
    )


def row_name(found: Roofline, row: Floor) -> str:
    """What a row is called where there is little room: of a kernel without its namespaces and arguments."""
    if row.name:
        return name_of(short_name(row.name) if found.by == "kernel" else row.name)
    if row.modules == ("",):
        return THE_MODEL
    return "of no known module" if found.by == "module" else name_of("")


def sentences(found: Roofline) -> list[str]:
    """Where the largest possible gain is, and how much could be gained in all."""
    if not any(row.floor is not None for row in found.rows):
        return [
            f"No {found.by} has a floor: none has a known module that was counted. The whole model cannot take less "
            f"than {milliseconds(found.least)} ms here, and takes {milliseconds(found.time)} ms."
        ]

    def part(seconds: float) -> str:
        return f"{milliseconds(seconds)} ms ({percent(seconds / found.time)})" if found.time else "0 ms"

    first = found.ranked[0]
    most = (
        f"The largest possible gain is in {profile_tables.short(row_name(found, first))}: {milliseconds(first.won)} of "
    )
    most += f"{milliseconds(first.time)} ms" + (f", {ratio(first.distance)} its floor." if first.distance else ".")
    said = [
        most if first.won else f"No {found.by} takes longer than its floor.",
        f"The floors add up to {milliseconds(found.floor)} ms of {milliseconds(found.time)} ms. At most "
        f"{part(found.won)} could be gained in the {found.by}s, and {milliseconds(max(found.outside, 0.0))} ms are in "
        f"no {found.timed}.",
    ]
    unknown = sum(row.time for row in found.rows if row.floor is None)
    if unknown > 0:
        said.append(f"What was done in {part(unknown)} is not known.")
    return said


def notes(profile: Profile, found: Roofline) -> list[str]:
    """What the work and the ceilings rest on, and what is missing of them."""
    said = [
        "Floor: the longer of FLOPs at the rate and bytes at the bandwidth. Bytes: weights, and what crosses a "
        f"{found.by}'s border, each once. FLOPs: matrix products, convolutions, attention."
    ]
    if profile.work and profile.work.uncovered:
        said.append(f"FLOPs not counted: {listing(list(profile.work.uncovered)[:FEW])}.")
    if found.unplaced:
        names = [profile_tables.short(path) if path else THE_MODEL for path in found.unplaced]
        said.append(f"In no {found.timed}: the work of {plural(len(names), 'module')}, such as {names[0]}.")
    if found.rate is None:
        why = found.ceilings.absent.get(found.precision, "it was not measured")
        said.append(f"No rate of {found.precision} is known ({why}), so floors count bytes alone.")
    if found.ceilings.disturbed:
        said.append(found.ceilings.disturbed)
    return said


def _data(of: ShownCase[Roofline], found: Roofline) -> dict[str, Any]:
    profile, work = of.case.profile, of.case.profile.work
    return {
        **{name: getattr(found, name) for name in TOTALS},
        "counted": work.note if work else "", "uncovered": work.uncovered if work else {},
        "sentences": sentences(found), "notes": notes(profile, found),
    }  # fmt: skip


def _lines(of: ShownCase[Roofline], found: Roofline) -> Iterator[list[object]]:
    """A line for each row, and for what is in no layer, so that times add up."""

    def line(kind: str, row: Floor, *own: object) -> list[object]:
        return [found.precision, kind, *(own or [None] * 4), *(getattr(row, column.key) for column in NUMBERS)]

    for row in of.rows:
        yield line(found.by, row, row.place, row.name, row.kind, row.modules)
    if of.rest:
        yield line(f"other {found.by}s", Floor(time=sum(row.time for row in of.rest)))
    yield line(f"in no {found.timed}", Floor(time=found.outside))
    yield line("whole", Floor(time=found.time, floor=found.floor, won=found.won))
