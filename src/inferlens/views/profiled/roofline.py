"""Layers or modules against the least time that their work takes: those first in which there is most to be won."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferlens.analysis.profile.layers import reconciliation, runs_of
from inferlens.analysis.profile.roofline import BYS, Floor, Roofline, RowsBy, roofline
from inferlens.errors import check_choice
from inferlens.record.profile_store import LoadedProfiles
from inferlens.units import ABSENT, mebibytes, megaflops, milliseconds, plural, ratio, significant
from inferlens.views.plain import plain
from inferlens.views.profiled import check, check_order, roofline_data
from inferlens.views.profiled.cases import Profiled, groups
from inferlens.views.profiled.grid import Grid, Heading, Line, ruled
from inferlens.views.profiled.layers import modules, signed_percent
from inferlens.views.profiled.roofline_data import Floored
from inferlens.views.profiled.roofline_sentences import about, name_in, notes, sentences
from inferlens.views.profiled.sentences import cost
from inferlens.views.profiled.tables import Chosen, drawn, limit

SORTS = ("won", "time", "order")
UNKNOWN = "of no known module"
HEADINGS = (
    Heading("#", keep=11),
    Heading("kind", keep=10, numeric=False, most=20),
    Heading("modules", keep=4, numeric=False),
    Heading("time", "ms", keep=1),
    Heading("share", keep=8),
    Heading("work", "MFLOP", keep=6),
    Heading("bytes", "MiB", keep=7),
    Heading("intensity", "FLOP/B", keep=9),
    Heading("floor", "ms", keep=2),
    Heading("bound", keep=5, numeric=False),
    Heading("distance", keep=3),
    Heading("to win", "ms", keep=0),
)


@dataclass(frozen=True)
class Roofed:
    """One case and its floors, or the sentence that says why it has none."""

    case: Profiled
    found: Roofline | str


def roofed(loaded: LoadedProfiles, by: RowsBy = "layer", depth: int | None = None) -> list[Roofed]:
    """The floors of the latest profile of each case, at each level.

    Raises:
        InferlensError: if there are no such rows.
    """
    check_choice("kind of row", by, BYS)
    cases = [case for group in groups(loaded) for case in group]
    return [Roofed(case, roofline(case.profile, case.record, by=by, depth=depth)) for case in cases]


def render(
    cases: Sequence[Roofed],
    format: str = "table",
    *,
    sort: str = "won",
    top: int | None = None,
    width: int = 120,
    color: bool = False,
) -> str:
    """The floors of each case as text.

    Args:
        cases: as :func:`roofed` makes them.
        format: one of ``FORMATS``.
        sort: ``won``, those first in which there is most to be won; ``time``, what takes most; ``order``.
        top: how many rows, those in which there is most to be won, or that take most; ``None``: :data:`.tables.TOP` in
            tables for people, all otherwise.
        width, color: of the terminal.

    Raises:
        InferlensError: for another format or order.
    """
    check(format)
    check_sort(sort)
    chosen = [_chosen(each, sort, limit(top, format)) for each in cases]
    if format == "csv":
        return roofline_data.csv(chosen)
    if format == "json":
        return roofline_data.json(chosen)
    return drawn(map(grid, chosen), format, width, color)


def check_sort(sort: str) -> None:
    """Refuses an order that there is not.

    Raises:
        InferlensError: if there is no such order.
    """
    check_order("Floors", sort, SORTS)


def grid(of: Floored) -> Grid:
    """One case as a table."""
    found, rest = of.table, of.rest
    if isinstance(found, str):
        return Grid(of.headline, "", "layer", HEADINGS, (), sentences=(plain(f"It has no floors: {found}"),))
    lines = [_line(row, found) for row in of.rows]
    lines += [_sum(plural(len(rest), f"other {found.by}"), rest, found.time)] if rest else []
    sums = [_time(f"in no {found.timed}", found.outside, found.time), _whole(found)]
    return Grid(
        of.headline,
        about(found),
        found.by,
        HEADINGS,
        ruled(lines, sums),
        tuple(map(plain, notes(of.case.profile, found))),
        tuple(map(plain, [*sentences(found), *_cost(of.case)])),
    )


def _cost(of: Profiled) -> list[str]:
    """What profiling cost, where that is known: times, and so what there is to be won, are of the profiled run."""
    runs = runs_of(of.profile)
    account = None if isinstance(runs, str) else reconciliation(runs, of.unprofiled)
    return [cost(account)] if account and account.cost is not None else []


def _chosen(of: Roofed, sort: str, top: int | None) -> Floored:
    """The rows to show, in the order asked for."""
    found = of.found
    if isinstance(found, str):
        return Chosen(of.case, found)
    if sort == "time":
        return Chosen(of.case, found, sorted(found.rows, key=lambda row: -row.time)[:top])
    rows = found.ranked[:top]
    return Chosen(of.case, found, rows if sort == "won" else sorted(rows, key=lambda row: row.place))


def _line(row: Floor, found: Roofline) -> Line:
    of_layer = found.by != "module"
    of_model = not row.name and row.modules == ("",)
    name = UNKNOWN if found.by == "module" and not row.modules else "the model" if of_model else name_in(found, row)
    texts = (
        str(row.place) if of_layer else ABSENT,
        plain(row.kind) or ABSENT,
        modules(row.modules) if of_layer and row.modules != (row.name,) else ABSENT,
        *_numbers(row),
    )
    return Line.of(name, texts)


def _numbers(row: Floor) -> list[str]:
    return [
        milliseconds(row.time),
        ABSENT if row.share is None else signed_percent(row.share),
        megaflops(row.flops),
        mebibytes(row.bytes),
        ABSENT if row.intensity is None else significant(row.intensity),
        milliseconds(row.floor),
        row.bound or ABSENT,
        ratio(row.distance),
        milliseconds(row.won),
    ]


def _sum(name: str, rows: Sequence[Floor], whole: float) -> Line:
    """What several rows add up to."""
    known = [row for row in rows if row.floor is not None]
    time, floor = sum(row.time for row in rows), sum(row.floor or 0.0 for row in known)
    flops, size = sum(row.flops or 0.0 for row in known), sum(row.bytes or 0.0 for row in known)
    row = Floor(place=0, name="", time=time, share=time / whole if whole else None)
    if known:
        row = Floor(
            place=0,
            name="",
            time=time,
            share=row.share,
            flops=flops,
            bytes=size,
            intensity=flops / size if size else None,
            floor=floor,
            distance=sum(row.time for row in known) / floor if floor else None,
            won=sum(row.won or 0.0 for row in known),
        )
    return Line.of(name, ["", "", "", *_numbers(row)])


def _whole(found: Roofline) -> Line:
    """The whole run; its distance is from what all floors add up to, and not known where some work is in none."""
    line = _sum("", found.rows, found.time)
    cells = list(line.cells)
    cells[3:5] = (milliseconds(found.time), ""), ("100 %", "")
    cells[10] = (ratio(found.time / found.floor if found.floor and not found.unplaced else None), "")
    return Line("whole run", tuple(cells), style="bold")


def _time(name: str, seconds: float, whole: float) -> Line:
    """A time of which no work is known."""
    return _sum(name, [Floor(place=0, name="", time=seconds)], whole)
