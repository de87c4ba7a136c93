"""The layers or the kernels of each case as a table: what each is, how long it takes, and how they add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from inferlens.analysis.profile.kernels import By, GpuAccount, KernelRow, KernelTable, kernel_table, short_name
from inferlens.analysis.profile.layers import LayerRow, LayerTable, ProfileRow, Reconciliation, RunTimes, layer_table
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Level, Tensor
from inferlens.units import ABSENT, duration, kibibytes, microseconds, milliseconds, percent, plural
from inferlens.views.profiled import profile_tables
from inferlens.views.profiled.cases import ProfiledCase
from inferlens.views.profiled.profile_tables import (
    FEW,
    THE_MODEL,
    TIMES,
    ShownCase,
    by_time,
    shapes,
    sum_line,
    time_fields,
)
from inferlens.views.table import Column, Document, Line, Table, count, ruled, share

SORTS = {"layer": ("time", "order"), "kernel": ("time", "order", "calls")}
_MOST_LISTED = 2
_OVERLAP = 0.005  # of the busy time: less comes from the clock's rounding

PartTable = LayerTable | KernelTable


def _sizes(sizes: Sequence[int]) -> str:
    """``56x2x1``; sizes of one at the end are left out: ``56x2``, ``128``."""
    told = "x".join(map(str, sizes))
    while told.endswith("x1"):
        told = told[:-2]
    return told or ABSENT


def _few(noun: str) -> Callable[[Sequence[str]], str]:
    """The names, or of many how many there are."""
    return lambda names: profile_tables.modules(names) if len(names) <= _MOST_LISTED else plural(len(names), noun)


def _layers(row: KernelRow) -> str:
    """Nothing where modules are the layers, which have a column."""
    return "" if row.layers == row.modules else _few("layer")(row.layers)


NUMBERS = {
    "layer": (
        Column("times.mean", "mean", "ms", milliseconds, keep=2),
        Column("times.median", "p50", "ms", milliseconds, keep=0, bars="drawn"),
        Column("times", "±", "95 %", profile_tables.half, keep=6),
        Column("times.p95", "p95", "ms", milliseconds, keep=7),
        Column("times.share", "share", write=share, keep=1, bars="beside"),
    ),
    "kernel": (
        Column("times.typical", "time", "µs", microseconds, keep=0, bars="drawn"),
        Column("times.median", "p50", "µs", microseconds, keep=10),
        Column("times", "±", "95 %", profile_tables.half, keep=11),
        Column("times.p95", "p95", "µs", microseconds, keep=12),
        Column("of_busy", "share", "of GPU", share, keep=1, bars="beside"),
        Column("times.share", "share", "of run", share, keep=9),
    ),
}
COLUMNS = {
    "layer": (
        Column("place", "#", keep=10),
        Column("kind", "kind", keep=5, numeric=False, most=20),
        Column("modules", "modules", write=profile_tables.modules, keep=8, numeric=False),
        Column("inputs", "input", write=shapes, keep=3, numeric=False, most=24),
        Column("outputs", "output", write=shapes, keep=4, numeric=False, most=24),
        Column("calls", "calls", write=lambda calls: "" if calls == 1 else str(calls), keep=9),
        *NUMBERS["layer"],
    ),
    "kernel": (
        Column("place", "#", keep=17),
        Column("calls", "calls", write=count, keep=4),
        *NUMBERS["kernel"],
        Column("grid", "grid", write=_sizes, keep=7, most=18),
        Column("block", "block", write=_sizes, keep=8, most=14),
        Column("registers", "registers", keep=15),
        Column("shared_memory", "shared", "KiB", kibibytes, keep=16),
        Column("occupancy", "occupancy", write=share, keep=6),
        Column("achieved", "achieved", "estimate", share, keep=5),
        Column("tensor_cores", "tensor cores", "", {True: "yes", False: "no", None: "?"}.__getitem__, 2, numeric=False),
        Column("", "layer", write=lambda row: _layers(row), keep=14, numeric=False, most=24),
        Column("modules", "modules", write=_few("module"), keep=3, numeric=False),
        Column("operators", "operator", write=_few("operator"), keep=13, numeric=False, most=24),
    ),
}
OWN = {
    "layer": ("place", "name", "kind", "modules", "operators", "inputs", "outputs", "calls"),
    "kernel": (
        *("place", "name", "kind", "calls", "grid", "block", "shapes", "registers", "shared_memory"),
        *("occupancy", "achieved", "tensor_cores", "streams", "layers", "modules", "operators", "of_busy"),
    ),
}


def document(
    level: Level, cases: Sequence[ProfiledCase], *, sort: str = "time", top: int | None = None, by: By = "name"
) -> Document:
    """The layers or the kernels of each case.

    Args:
        level: which of them.
        cases: profiles, named.
        sort: ``time``, what takes most first; ``order``, that of execution; of kernels ``calls``, what is launched most
            first.
        top: how many rows, those that come first in that order, in that of execution those that take most; ``None``:
            :data:`.profile_tables.TOP` for people, all for programs.
        by: a row for each ``name`` of a kernel, or for each ``launch``.

    Raises:
        InferlensError: for another order, or another way to group kernels.
    """
    kind = by if level == "kernel" else "layer"
    return profile_tables.document(
        f"{level}s",
        shown(level, cases, sort, by),
        top,
        table=lambda of, table: _table(of, table, level, kind),
        data=lambda of, table: _data(of, table, kind),
        names=("row", *OWN[level], *TIMES),
        lines=lambda of, table: _lines(of, table, level, kind),
    )


def shown(level: Level, cases: Sequence[ProfiledCase], sort: str, by: By = "name") -> list[ShownCase[PartTable]]:
    """The rows of each case, those to show first; ``sort`` and ``by`` as of a :func:`document`."""
    check_choice(f"order of {level}s", sort, SORTS[level])

    def made(case: ProfiledCase) -> PartTable | str:
        if level == "layer":
            return layer_table(case.profile, case.unprofiled)
        return kernel_table(case.profile, case.unprofiled, by)

    def ranked(table: PartTable) -> Sequence[ProfileRow]:
        return sorted(by_time(table.rows), key=lambda row: -row.calls if sort == "calls" else 0)

    return profile_tables.shown(((case, made(case)) for case in cases), ranked, sort)


def row_name(row: ProfileRow) -> str:
    """What a row is called; the model itself, which eager PyTorch executes too, has the empty path."""
    if not row.name and row.modules == ("",):
        return THE_MODEL
    return profile_tables.name_of(row.name if isinstance(row, LayerRow) else short_name(row.name))


def _table(of: ShownCase[PartTable], table: PartTable, level: Level, kind: str) -> Table:
    profile, account = of.case.profile, table.reconciliation

    def line(name: str, times: RunTimes) -> Line:
        busy = None if name in ("GPU idle", "whole run") else _of_busy(table, times)
        return sum_line(name, COLUMNS[level], NUMBERS[level], {"times": times, "of_busy": busy})

    lines = [Line.of(row_name(row), COLUMNS[level], row) for row in of.rows]
    if of.rest:
        lines.append(line(plural(len(of.rest), f"other {level}"), table.sum_of(of.rest)))
    if isinstance(account, GpuAccount):
        sums = {"all kernels": account.kernels, "GPU busy": account.busy, "GPU idle": account.idle}
    else:
        sums = {"in no layer": account.outside}
    sums["whole run"] = account.whole
    rows = f"{plural(len(table.rows), 'row')}, one for each {kind}"
    absent = [f"{what}: {why}" for what, why in profile.found.absent.items()] if profile.found else []
    return Table(
        "",
        level,
        COLUMNS[level],
        ruled(lines, [line(name, times) for name, times in sums.items()]),
        about=f"{rows} · {plural(account.runs, 'run')} · {profile.timed} times by {profile.clock}",
        notes=[*absent, *(f"{warning.message} {warning.advice}" for warning in profile.warnings)],
        sentences=sentences(table),
    )


def _of_busy(table: PartTable, times: RunTimes) -> float | None:
    """A typical time over that in which the GPU was busy."""
    account = table.reconciliation
    busy = account.busy.typical if isinstance(account, GpuAccount) else 0.0
    return times.typical / busy if busy > 0 else None


def sentences(table: PartTable) -> list[str]:
    """Which rows take most, how they add up, and what profiling cost."""
    account, first = table.reconciliation, by_time(table.rows)[:FEW]
    added = _kernels_add_up(account) if isinstance(account, GpuAccount) else [_layers_add_up(account)]
    most = "Nothing has a time."
    if first and first[0].times and first[0].times.typical > 0:
        whole = "of the GPU's busy time" if isinstance(account, GpuAccount) else "of a run"
        one, few = (percent(_of_busy(table, times) or times.share or 0.0)
                    for times in (first[0].times, table.sum_of(first)))  # fmt: skip
        most = f"{profile_tables.short(row_name(first[0]))} takes most: {one} {whole}; the first {FEW} take {few}."
    return [most, *added, profile_tables.cost(account)]


def _layers_add_up(account: Reconciliation) -> str:
    layers, whole = milliseconds(account.layers.median), milliseconds(account.whole.median)
    if account.overlaps:
        return f"Layers add up to {layers} ms, more than the {whole} ms of the whole run: some ran at the same time."
    left = f"{milliseconds(max(account.outside.median, 0.0))} ms"
    left += "" if account.outside.share is None else f" ({percent(max(account.outside.share, 0.0))})"
    return f"Layers add up to {layers} ms of {whole} ms (medians); {left} were in no layer."


def _kernels_add_up(account: GpuAccount) -> list[str]:
    """How busy the GPU was, who used tensor cores, and what is traced."""
    whole, busy, idle = account.whole, account.busy, account.idle
    part = f" ({percent(idle.typical / whole.typical)})" if whole.typical > 0 else ""
    each = f", one each {duration(whole.median / account.launches)}" if account.launches else ""
    side = -account.overlap.typical > _OVERLAP * busy.typical > 0
    used, unused = account.with_tensor_cores, account.without_tensor_cores
    return [
        f"The GPU was busy for {milliseconds(busy.median)} ms of {milliseconds(whole.median)} ms (medians) and idle "
        f"for {milliseconds(max(idle.median, 0.0))} ms{part}; {plural(account.launches, 'launch')} a run{each}."
        + (" Some kernels ran side by side." if side else ""),
        f"Kernels that use tensor cores have {percent(used)} of all kernels' time, those that do not {percent(unused)}"
        f"; of {percent(max(1.0 - used - unused, 0.0))} the names do not say.",
        f"Traced to modules: {percent(account.attributed)} of all kernels' time.",
    ]


def _data(of: ShownCase[PartTable], table: PartTable, kind: str) -> dict[str, Any]:
    profile, account = of.case.profile, table.reconciliation
    found = {"clock": profile.clock, "absent": profile.found and profile.found.absent, "sentences": sentences(table)}
    if profile.kernels and isinstance(account, GpuAccount):
        return {**found, "by": kind, "gpu": profile.kernels.gpu, "account": account}
    return {**found, "timed": profile.timed, "reconciliation": account}


def _lines(of: ShownCase[PartTable], table: PartTable, level: Level, kind: str) -> Iterator[list[object]]:
    """A line for each row, and what is in none, so that those of a case add up to its whole."""
    for row in of.rows:
        own = [_field(name, getattr(row, name)) for name in OWN[level]]
        yield [kind, *own, *time_fields(row.times)]
    account = table.reconciliation
    sums = {f"other {level}s": table.sum_of(of.rest)} if of.rest else {}
    if isinstance(account, GpuAccount):
        sums |= {"overlap": account.overlap, "idle": account.idle, "whole": account.whole}
    else:
        sums |= {"in no layer": account.outside, "whole": account.whole}
    for name, times in sums.items():
        yield [name, *[None] * len(OWN[level]), *time_fields(times)]


def _field(name: str, value: Any) -> Any:
    """Sizes in one field."""
    if name in ("grid", "block"):
        return "x".join(map(str, value))
    if name in ("inputs", "outputs"):
        tensors: Sequence[Tensor] = value
        return ["x".join(map(str, each.shape)) for each in tensors]
    return value
