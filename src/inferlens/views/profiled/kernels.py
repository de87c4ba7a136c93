"""The kernels of each case as a table: how long each takes, how it fills the GPU, and where it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from inferlens.analysis.profile.kernels import By, KernelRow, KernelTable, kernel_table, short_name
from inferlens.analysis.profile.layers import RunTimes
from inferlens.errors import check_choice
from inferlens.units import ABSENT, duration, kibibytes, microseconds, milliseconds, percent, plural
from inferlens.views.profiled import tables
from inferlens.views.profiled.cases import ProfiledCase
from inferlens.views.profiled.tables import FEW, TIMES, Shown, by_time, sum_line, time_fields
from inferlens.views.table import Column, Document, Line, Table, count, ruled, share

SORTS = ("time", "order", "calls")
_MOST_LISTED = 2
_OVERLAP = 0.005  # of the busy time: less comes from the clock's rounding


def _sizes(sizes: Sequence[int]) -> str:
    """``56x2x1``; sizes of one at the end are left out: ``56x2``, ``128``."""
    told = "x".join(map(str, sizes))
    while told.endswith("x1"):
        told = told[:-2]
    return told or ABSENT


def _few(noun: str) -> Callable[[Sequence[str]], str]:
    """The names, or of many how many there are."""
    return lambda names: tables.modules(names) if len(names) <= _MOST_LISTED else plural(len(names), noun)


NUMBERS = (
    Column("times.typical", "time", "µs", microseconds, keep=0),
    Column("times.median", "p50", "µs", microseconds, keep=10),
    Column("times", "±", "95 %", tables.half, keep=11),
    Column("times.p95", "p95", "µs", microseconds, keep=12),
    Column("of_busy", "share", "of GPU", share, keep=1),
    Column("times.share", "share", "of run", share, keep=9),
)
COLUMNS = (
    Column("place", "#", keep=17),
    Column("calls", "calls", write=count, keep=4),
    *NUMBERS,
    Column("grid", "grid", write=_sizes, keep=7, most=18),
    Column("block", "block", write=_sizes, keep=8, most=14),
    Column("registers", "registers", keep=15),
    Column("shared_memory", "shared", "KiB", kibibytes, keep=16),
    Column("occupancy", "occupancy", write=share, keep=6),
    Column("achieved", "achieved", "estimate", share, keep=5),
    Column("tensor_cores", "tensor cores", write={True: "yes", False: "no", None: "?"}.__getitem__, keep=2,
           numeric=False),
    Column("layers", "layer", write=_few("layer"), keep=14, numeric=False, most=24),
    Column("modules", "modules", write=_few("module"), keep=3, numeric=False),
    Column("operators", "operator", write=_few("operator"), keep=13, numeric=False, most=24),
)  # fmt: skip
OWN = (
    *("place", "name", "kind", "calls", "grid", "block", "shapes", "registers", "shared_memory"),
    *("occupancy", "achieved", "tensor_cores", "streams", "layers", "modules", "operators", "of_busy"),
)


def document(cases: Sequence[ProfiledCase], *, by: By = "name", sort: str = "time", top: int | None = None) -> Document:
    """The kernels of each case.

    Args:
        cases: profiles, named.
        by: a row for each ``name``, or for each ``launch``.
        sort: ``time``, what takes most first; ``order``, that of execution; ``calls``, what is launched most first.
        top: how many rows, those that come first in that order, in that of execution those that take most; ``None``:
            :data:`.tables.TOP` for people, all for programs.

    Raises:
        InferlensError: for another order, or another way to group them.
    """
    check_choice("order of kernels", sort, SORTS)

    def ranked(table: KernelTable) -> list[KernelRow]:
        return sorted(by_time(table.rows), key=lambda row: -row.calls if sort == "calls" else 0)

    made = ((case, kernel_table(case.profile, case.unprofiled, by)) for case in cases)
    return tables.document(
        "kernels",
        [Shown.of(case, table, ranked, sort) for case, table in made],
        top,
        table=lambda of, table: _table(of, table, by),
        data=lambda of, table: _data(of, table, by),
        names=("row", *OWN, *TIMES),
        lines=lambda of, table: _lines(of, table, by),
        always=lambda profile: {"warnings": profile.warnings},
    )


def _table(of: Shown[KernelTable], table: KernelTable, by: By) -> Table:
    account, found = table.reconciliation, of.case.profile.found

    def line(name: str, times: RunTimes, *, busy: bool = False) -> Line:
        part = _of_busy(table, times) if busy else None
        return sum_line(name, COLUMNS, NUMBERS, {"times": times, "of_busy": part})

    lines = [Line.of(tables.name_of(short_name(row.name)), COLUMNS, row) for row in of.rows]
    if of.rest:
        lines.append(line(plural(len(of.rest), "other kernel"), table.sum_of(of.rest), busy=True))
    sums = [line("all kernels", account.kernels, busy=True), line("GPU busy", account.busy, busy=True)]
    sums += [line("GPU idle", account.idle), line("whole run", account.whole)]
    return Table(
        "",
        "kernel",
        COLUMNS,
        ruled(lines, sums),
        about=f"{account.calls:,} kernels, copies and fills a run · a row for each {by} · "
        f"{plural(account.runs, 'run')} · times by {found.clock if found else ''}",
        notes=tables.remarks(of.case.profile),
        sentences=sentences(table),
    )


def _of_busy(table: KernelTable, times: RunTimes) -> float | None:
    """A typical time over that in which the GPU was busy."""
    busy = table.reconciliation.busy.typical
    return times.typical / busy if busy > 0 else None


def sentences(table: KernelTable) -> list[str]:
    """Which kernels take most, how busy the GPU was, who used tensor cores, what is traced, what profiling cost."""
    account, first = table.reconciliation, by_time(table.rows)[:FEW]
    most = "No kernel has a time."
    if first and first[0].of_busy:
        several = _of_busy(table, table.sum_of(first)) if len(table.rows) > FEW else None
        of = f"the GPU's busy time in {plural(first[0].calls, 'call')}"
        most = tables.takes_most(short_name(first[0].name), first[0].of_busy, of, several, "row")
    whole, busy, idle = account.whole, account.busy, account.idle
    part = f" ({percent(idle.typical / whole.typical)})" if whole.typical > 0 else ""
    each = f", one each {duration(whole.median / account.launches)}" if account.launches else ""
    side = -account.overlap.typical > _OVERLAP * busy.typical > 0
    used, unused = account.with_tensor_cores, account.without_tensor_cores
    return [
        most,
        f"The GPU was busy for {milliseconds(busy.median)} ms of {milliseconds(whole.median)} ms (medians) and idle "
        f"for {milliseconds(max(idle.median, 0.0))} ms{part}; {plural(account.launches, 'launch')} a run{each}."
        + (" Some kernels ran side by side." if side else ""),
        f"Kernels that use tensor cores have {percent(used)} of all kernels' time, those that do not {percent(unused)}"
        f"; of {percent(max(1.0 - used - unused, 0.0))} the names do not say.",
        f"Traced to modules: {percent(account.attributed)} of all kernels' time.",
        tables.cost(account),
    ]


def _data(of: Shown[KernelTable], table: KernelTable, by: By) -> dict[str, Any]:
    kernels = of.case.profile.kernels
    assert kernels is not None
    return {
        "by": by, "gpu": kernels.gpu, "clock": kernels.clock, "absent": kernels.absent,
        "account": table.reconciliation, "sentences": sentences(table),
    }  # fmt: skip


def _lines(of: Shown[KernelTable], table: KernelTable, by: By) -> Iterator[list[object]]:
    """A line for each row; overlap, idle and whole have lines too, so that those of a case add up to its whole."""
    for row in of.rows:
        own = {name: getattr(row, name) for name in OWN}
        own |= {"grid": "x".join(map(str, row.grid)), "block": "x".join(map(str, row.block))}
        yield [by, *own.values(), *time_fields(row.times)]
    account = table.reconciliation
    sums = {"other kernels": table.sum_of(of.rest)} if of.rest else {}
    sums |= {"overlap": account.overlap, "idle": account.idle, "whole": account.whole}
    for name, times in sums.items():
        yield [name, *[None] * len(OWN), *time_fields(times)]
