"""Layers or modules against the least time that their work takes: what could be won of a call, and where most of it is.

For people rows that do the same in repeated blocks of a model are one, and of several cases each is a row; programs get
all rows of all cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as copied
from typing import Any

from msgspec.structs import replace

from inferlens.analysis import profile_table as families
from inferlens.analysis.profile_table import short_name
from inferlens.analysis.roofline import Floor, Roofline, RowKind, roofline
from inferlens.errors import check_choice
from inferlens.record.display import fields_by_key
from inferlens.record.store import LoadedProfiles
from inferlens.units import (
    ABSENT,
    bandwidth,
    flop_rate,
    listing,
    mebibytes,
    megaflops,
    milliseconds,
    plural,
    ratio,
    significant,
)
from inferlens.views.plain import plain
from inferlens.views.profiled import profile_tables
from inferlens.views.profiled.cases import of_level, told_apart
from inferlens.views.profiled.profile_tables import FEW, THE_MODEL, WRITE, ShownCase, in_unit, unit_of
from inferlens.views.table import Column, Document, Line, Table, ruled, share

SORTS = ("won", "time", "order")
ROWS, CASES, NOTES = 8, 12, 2  # that a screen has room for, unless more are asked for
# What bounds a call in which nothing is to be won by faster layers.
BOUND = {"host": "waits for the host", "other": "far from all floors"}
ATTENTION = re.compile(r"(?<!dot_product_)(?:flash|sdpa|_mha)", re.IGNORECASE)
SHORTER = {"matrix product": "product", "normalisation": "norm", "elementwise": "pointwise"}
NUMBERS = (
    Column("time", "time", "ms", milliseconds, keep=2),
    Column("share", "share", write=share, keep=8, wide=True),
    Column("flops", "work", "MFLOP", megaflops, keep=6, wide=True),
    Column("bytes", "bytes", "MiB", mebibytes, keep=7, wide=True),
    Column("intensity", "intensity", "FLOP/B", lambda item: ABSENT if item is None else significant(item), keep=9,
           wide=True),
    Column("floor", "floor", "ms", milliseconds, keep=3),
    Column("bound", "bound by", keep=5, numeric=False),
    Column("distance", "times floor", write=ratio, keep=4),
    Column("won", "to win", "ms", milliseconds, keep=0),
    Column("of_call", "of call", write=share, keep=1),
)  # fmt: skip
SHOWN = ("won", "of_call", "time", "floor", "distance", "bound", "share", "flops", "bytes", "intensity")
BY_KEY = {column.key: column for column in NUMBERS}


@dataclass(frozen=True)
class Alike:
    """Rows that do the same in repeated blocks of the model, and what they add up to."""

    rows: Sequence[Floor]
    total: Floor


def _kind(alike: Alike) -> str:
    """What a layer is in its backend's words, and what a kernel computes, as far as its name tells."""
    kind, name = alike.total.kind, alike.total.name[:1000]
    if kind != "kernel":
        return plain(kind) or ABSENT
    return (
        "attention" if ATTENTION.search(name) else SHORTER.get(found := families.kernel_family(name), found) or ABSENT
    )


def _name(alike: Alike) -> str:
    """As the backend calls it, of a kernel without namespaces and arguments."""
    return short_name(alike.total.name) if alike.total.kind == "kernel" else alike.total.name


COLUMNS = (
    *(copied(BY_KEY[key], key=f"total.{key}") for key in SHOWN[:6]),
    Column("", "kind", write=_kind, keep=6, numeric=False, most=11),
    *(copied(BY_KEY[key], key=f"total.{key}") for key in SHOWN[6:]),
    Column("", "layer", write=lambda item: plain(_name(item)), keep=10, numeric=False, most=60, wide=True),
    Column("total.place", "#", keep=11, wide=True),
)
OF_CASES = (BY_KEY["of_call"], BY_KEY["won"], copied(BY_KEY["time"], title="call"))


def roofed(
    loaded: LoadedProfiles, by: RowKind = "layer", depth: int | None = None, sort: str = "won"
) -> list[ShownCase[Roofline]]:
    """The floors of the latest profile of each case, at each level, or why it has none.

    ``by`` and ``depth`` as :func:`.roofline` takes them, ``sort`` one of :data:`SORTS`; InferlensError for others.
    """
    check_choice("order of floors", sort, SORTS)

    def ranked(roofline: Roofline) -> Sequence[Floor]:
        return sorted(roofline.rows, key=lambda row: -row.time) if sort == "time" else roofline.ranked

    made = ((case, roofline(case.profile, case.record, by=by, depth=depth)) for case in of_level(loaded, None))
    return profile_tables.shown(made, ranked, sort)


def document(cases: Sequence[ShownCase[Roofline]], *, top: int | None = None, results: str = "RESULTS") -> Document:
    """The floors of each case: the ``top`` rows; ``None``: what fits on a screen for people, all for programs.

    ``results`` is where the profiles are, for the command that says more.
    """
    names = ("precision", "row", "place", "name", "kind", "modules", *(column.key for column in NUMBERS))
    return profile_tables.document(
        "roofline", cases, top, blocks=lambda: list(_blocks(cases, top, results)), data=_data, names=names, lines=_lines
    )


def _blocks(cases: Sequence[ShownCase[Roofline]], top: int | None, results: str) -> Iterator[Table | str]:
    """The rows of the only case, or of each if a number is asked for; else a row for each case."""
    if len(cases) > 1 and top is None:
        yield from _together(cases, results)
        return
    for of in cases:
        head, (name,) = told_apart([of.case])
        title = f"{head} · {name}"
        if isinstance(of.table, str):
            yield Table(title, "", (), ())
            yield f"No floors: {of.table} {of.case.profile.hint}".strip()
            continue
        yield Table(title, "", (), (), about=ceilings(of.table))
        yield answer(of.table, unit_of([of.case.profile]))
        yield _table(of, of.table, top or ROWS + 1 - max(len(notes(of, of.table)[:NOTES]), 1))
    if any(not isinstance(of.table, str) for of in cases):
        yield f"What to try: inferlens show {results} --view findings"


def _table(of: ShownCase[Roofline], roofline: Roofline, top: int) -> Table:
    groups = [Alike([row], row) for row in of.ranked] if of.in_order else alike(roofline, of.ranked)
    rows, more = groups[:top], [group for group in groups[top:] if group.total.floor is not None]
    unknown = [group for group in groups[top:] if group.total.floor is None]
    known = [group for group in groups if group.total.floor is not None]
    modules = roofline.by == "module" or any(row.modules for row in roofline.rows)
    own = roofline.by == "kernel" or any(row.modules and row.modules != (row.name,) for row in roofline.rows)
    dropped = {"layer", "#"} if roofline.by == "module" or not (modules and own) else set()
    columns = [
        copied(column, title=roofline.timed) if column.title == "layer" else column
        for column in in_unit(COLUMNS, unit_of([of.case.profile]))
        if column.title not in dropped
    ]
    lines = [Line.of(where(row), columns, row) for row in rows]

    def summed(name: str, alikes: Sequence[Alike], style: str) -> Line:
        total = roofline.sum_of(row for alike in alikes for row in alike.rows)
        cells = [column.text(Alike((), total)) for column in columns]
        return Line(name, [ABSENT if column.title in ("layer", "kernel", "#") else cell
                           for column, cell in zip(columns, cells, strict=True)], style=style)  # fmt: skip

    if more:
        lines.append(summed(f"{len(more):,} more: --top {len(groups)}, or --format csv", more, "dim"))
    if unknown:
        lines.append(summed(f"{len(unknown):,} of unknown work", unknown, "dim"))
    sums = [summed(f"all {roofline.timed}s{'' if len(known) == len(groups) else ' with a floor'}", known, "bold")]
    first = "module" if modules else roofline.by
    return Table("", first, columns, ruled(lines, sums), notes=notes(of, roofline)[:NOTES])


def _together(cases: Sequence[ShownCase[Roofline]], results: str) -> Iterator[Table | str]:
    """A row for each case, those first in which most of a call could be won, and where that is."""
    head, names = told_apart([of.case for of in cases])
    found, why = [], dict[str, int]()
    for of, name in zip(cases, names, strict=True):
        if isinstance(of.table, str):
            reason = f"{of.table} {of.case.profile.hint}".strip()
            why[reason] = why.get(reason, 0) + 1
            continue
        found.append((of.table, whole(of.table), profile_tables.short(name)))
    found.sort(key=lambda item: -1.0 if item[1].of_call is None else item[1].of_call, reverse=True)
    unit = unit_of(of.case.profile for of in cases if not isinstance(of.table, str))
    columns = (*in_unit(OF_CASES, unit), Column("name", "most in", keep=4, numeric=False, most=26))
    notes = [f"{plural(count, 'case')} without floors: {reason}" for reason, count in why.items()]
    lines, room = [], CASES - 2 * min(len(notes), NOTES)
    for table, every, name in found[:room]:
        best = next(iter(alike(table, table.ranked)), None)
        most = where(best) if best and best.total.won else ""
        lines.append(Line.of(name, columns, replace(every, name=BOUND.get(table.bound, most))))
    if len(found) > room:
        lines.append(Line(f"{len(found) - room:,} more: --format csv", [ABSENT] * len(columns), style="dim"))
    about = "to win: time above the floor, which is the least that this device needs for what a layer does"
    yield Table(head, "", (), (), about=about)
    if found and found[0][1].won:
        _, every, name = found[0]
        part = f"{WRITE[unit](every.won)} of {WRITE[unit](every.time)} {unit} ({share(every.of_call)})"
        yield f"Most to win with {name}: at most {part}."
    elif found:
        yield f"Nothing can be won by faster layers alone. What to try: inferlens show {results} --view findings"
    yield Table("", "case", columns, lines, notes=notes[:NOTES])
    yield f"Where in each: inferlens roofline {results} --top 5"


def whole(roofline: Roofline) -> Floor:
    """The whole call, and what can be won of it."""
    part = None if roofline.won is None or not roofline.time else roofline.won / roofline.time
    return Floor(time=roofline.time, won=roofline.won, of_call=part)


def alike(roofline: Roofline, ranked: Sequence[Floor]) -> list[Alike]:
    """Rows of the same kernel and work, in modules that differ in numbers alone, as one; in the order of ``ranked``."""
    groups: dict[object, list[Floor]] = {}
    for row in ranked:
        modules = tuple(re.sub(r"\d+", "*", path) for path in row.modules)
        same = short_name(row.name) if roofline.by == "kernel" else row.kind
        key = (modules, same, row.flops, row.bytes, row.bound) if row.modules else row.place
        groups.setdefault(key, []).append(row)
    made = []
    for rows in groups.values():
        bound = rows[0].bound
        total = replace(
            roofline.sum_of(rows), name=rows[0].name, kind=rows[0].kind, place=rows[0].place, bound=bound,
            modules=rows[0].modules,
        )  # fmt: skip
        made.append(Alike(rows, total if len(rows) > 1 else rows[0]))
    by_time = bool(ranked) and ranked == sorted(ranked, key=lambda row: -row.time)
    return sorted(made, key=lambda alike: alike.total.time if by_time else alike.total.above, reverse=True)


def where(alike: Alike) -> str:
    """The modules that rows are of, with ``*`` where they differ: ``encoder.layers.*.mlp.0 +1``."""
    paths = [row.modules[0] if row.modules else None for row in alike.rows]
    if paths[0] is None:
        return profile_tables.short(_name(alike)) if alike.total.name else "of no known module"
    split = [re.split(r"(\d+)", path or "") for path in paths]
    name = "".join(words[0] if len(set(words)) == 1 else "*" for words in zip(*split, strict=True))
    more, count = len(alike.total.modules) - 1, len(alike.rows)
    return (
        profile_tables.short(name or THE_MODEL)
        + (f" +{more}" if more > 0 else "")
        + (f" ({count}x)" if count > 1 else "")
    )


def ceilings(roofline: Roofline) -> str:
    """What a floor is: the work at the best that was measured on the device."""
    rate = f"{flop_rate(roofline.rate)} ({roofline.precision}) and " if roofline.rate else ""
    return f"floor: the fastest possible on this device, at {rate}{bandwidth(roofline.ceilings.bandwidth)}"


def answer(roofline: Roofline, unit: str = "ms") -> str:
    """How much of a call could be gained at most, and where most of it is; or what bounds it instead."""
    write, call = WRITE[unit], f"{WRITE[unit](roofline.time)} {unit}"
    if not any(row.floor is not None for row in roofline.rows):
        return (
            f"Which {roofline.timed} does what is not known. The whole model cannot take less than "
            f"{write(roofline.least)} {unit} here, and takes {call}."
        )
    if roofline.bound == "host":
        works = "" if roofline.gpu_time is None else f" (the GPU works {write(roofline.gpu_time)} {unit} of it)"
        return f"Faster {roofline.timed}s win nothing: the call of {call} waits for the host{works}."
    if roofline.bound:
        far = ratio(roofline.floored_time / roofline.floor)
        return (
            f"Neither arithmetic nor memory bounds the call of {call}: its {roofline.timed}s take {far} their floors."
        )
    first = next(iter(alike(roofline, roofline.ranked)))
    if not first.total.won:
        return f"Nothing can be won: no {roofline.by} takes longer than its floor."
    most = f"most in {profile_tables.short(where(first), 36)}: {write(first.total.won)} {unit}"
    part = share(whole(roofline).of_call)
    return f"At most {write(roofline.won)} of a call of {call} ({part}) could be won, {most}."


def notes(of: ShownCase[Roofline], roofline: Roofline) -> list[str]:
    """What weakens the answer, the weightiest first."""
    profile = of.case.profile
    said = [roofline.ceilings.disturbed] if roofline.ceilings.disturbed else []
    if roofline.rate is None:
        why = roofline.ceilings.absent.get(roofline.precision, "it was not measured")
        said.append(f"No rate of {roofline.precision} is known ({why}), so floors count bytes alone.")
    if roofline.unplaced:
        names = [profile_tables.short(path) if path else THE_MODEL for path in roofline.unplaced]
        said.append(f"In no {roofline.timed}: the work of {plural(len(names), 'module')}, such as {names[0]}.")
    if profile.work and profile.work.uncovered:
        said.append(f"FLOPs not counted: {listing(list(profile.work.uncovered)[:FEW])}.")
    return [*said, *profile_tables.stretched(profile, of.case.unprofiled)]


def _data(of: ShownCase[Roofline], roofline: Roofline) -> dict[str, Any]:
    work = of.case.profile.work
    return {
        **{key: value for key, value in fields_by_key(roofline).items() if key != "rows"},
        "counted": work.note if work else "", "uncovered": work.uncovered if work else {},
        "sentences": [answer(roofline)], "notes": notes(of, roofline),
    }  # fmt: skip


def _lines(of: ShownCase[Roofline], roofline: Roofline) -> Iterator[list[object]]:
    """A line for each row, and for what is in no layer, so that times add up."""

    def line(kind: str, row: Floor, *own: object) -> list[object]:
        return [roofline.precision, kind, *(own or [None] * 4), *(getattr(row, column.key) for column in NUMBERS)]

    for row in of.rows:
        yield line(roofline.by, row, row.place, row.name, row.kind, row.modules)
    if of.rest:
        yield line(f"other {roofline.by}s", Floor(time=sum(row.time for row in of.rest)))
    yield line(f"in no {roofline.timed}", Floor(time=roofline.outside))
    yield line("whole", Floor(time=roofline.time, floor=roofline.floor, won=roofline.won))
