"""The layers of each case as a table: what each is, how long it takes and how that spreads, and how they add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from inferlens.analysis.profile.layers import LayerRow, LayerTable, layer_table
from inferlens.errors import check_choice
from inferlens.units import milliseconds, percent, plural
from inferlens.views.profiled import tables
from inferlens.views.profiled.cases import ProfiledCase
from inferlens.views.profiled.tables import FEW, THE_MODEL, TIMES, Shown, by_time, shapes, sum_line, time_fields
from inferlens.views.table import Column, Document, Line, Table, ruled, share

SORTS = ("time", "order")
NUMBERS = (
    Column("times.mean", "mean", "ms", milliseconds, keep=2),
    Column("times.median", "p50", "ms", milliseconds, keep=0),
    Column("times", "±", "95 %", tables.half, keep=6),
    Column("times.p95", "p95", "ms", milliseconds, keep=7),
    Column("times.share", "share", write=share, keep=1),
)
COLUMNS = (
    Column("place", "#", keep=10),
    Column("kind", "kind", keep=5, numeric=False, most=20),
    Column("modules", "modules", write=tables.modules, keep=8, numeric=False),
    Column("inputs", "input", write=shapes, keep=3, numeric=False, most=24),
    Column("outputs", "output", write=shapes, keep=4, numeric=False, most=24),
    Column("calls", "calls", write=lambda calls: "" if calls == 1 else str(calls), keep=9),
    *NUMBERS,
)
OWN = ("place", "name", "kind", "modules", "operators", "inputs", "outputs", "calls")


def document(cases: Sequence[ProfiledCase], *, sort: str = "time", top: int | None = None) -> Document:
    """The layers of each case.

    Args:
        cases: profiles, named.
        sort: ``time``, what takes most first, or ``order``, that of execution.
        top: how many layers, those that take most; ``None``: :data:`.tables.TOP` for people, all for programs.

    Raises:
        InferlensError: for another order.
    """
    return tables.document(
        "layers",
        shown(cases, sort),
        top,
        table=_table,
        data=_data,
        names=("row", *OWN, *TIMES),
        lines=_lines,
        always=lambda profile: {"warnings": profile.warnings},
    )


def shown(cases: Sequence[ProfiledCase], sort: str) -> list[Shown[LayerTable]]:
    """The layers of each case, those to show first.

    Raises:
        InferlensError: for another order than those of :data:`SORTS`.
    """
    check_choice("order of layers", sort, SORTS)
    made = ((case, layer_table(case.profile, case.unprofiled)) for case in cases)
    return [Shown.of(case, table, lambda table: by_time(table.rows), sort) for case, table in made]


def layer_name(row: LayerRow) -> str:
    """What a layer is called; the model itself, which eager PyTorch executes too, has the empty path."""
    return tables.name_of(THE_MODEL if not row.name and row.modules == ("",) else row.name)


def _table(of: Shown[LayerTable], table: LayerTable) -> Table:
    profile, account = of.case.profile, table.reconciliation
    lines = [Line.of(layer_name(row), COLUMNS, row) for row in of.rows]
    sums = {"in no layer": account.outside, "whole run": account.whole}
    if of.rest:
        lines.append(sum_line(plural(len(of.rest), "other layer"), COLUMNS, NUMBERS, {"times": table.sum_of(of.rest)}))
    layers = f"{plural(len(table.rows), 'layer')} · {plural(account.runs, 'run')}"
    return Table(
        "",
        "layer",
        COLUMNS,
        ruled(lines, [sum_line(name, COLUMNS, NUMBERS, {"times": times}) for name, times in sums.items()]),
        about=f"{layers} · {profile.timed} times by {profile.found.clock if profile.found else ''}",
        notes=tables.remarks(profile),
        sentences=sentences(table),
    )


def sentences(table: LayerTable) -> list[str]:
    """Which layers take most, how they add up, and what profiling cost."""
    account, first = table.reconciliation, by_time(table.rows)[:FEW]
    most = "No layer has a time."
    if first and first[0].times and first[0].times.share:
        several = table.sum_of(first).share if len(table.rows) > FEW else None
        most = tables.takes_most(layer_name(first[0]), first[0].times.share, "a run", several, "layer")
    layers, whole = milliseconds(account.layers.median), milliseconds(account.whole.median)
    outside = account.outside
    left = f"{milliseconds(max(outside.median, 0.0))} ms"
    left += "" if outside.share is None else f" ({percent(max(outside.share, 0.0))})"
    added = f"Layers add up to {layers} ms of {whole} ms (medians); {left} were in no layer."
    if account.overlaps:
        added = f"Layers add up to {layers} ms, more than the {whole} ms of the whole run: some ran at the same time."
    return [most, added, tables.cost(account)]


def _data(of: Shown[LayerTable], table: LayerTable) -> dict[str, Any]:
    layers = of.case.profile.layers
    return {
        "timed": layers and layers.timed, "clock": layers and layers.clock, "absent": layers and layers.absent,
        "reconciliation": table.reconciliation, "sentences": sentences(table),
    }  # fmt: skip


def _lines(of: Shown[LayerTable], table: LayerTable) -> Iterator[list[object]]:
    """Layers, and what is in none; they add up to the whole."""
    for row in of.rows:
        tensors = [["x".join(map(str, each.shape)) for each in some] for some in (row.inputs, row.outputs)]
        own = [row.place, row.name, row.kind, row.modules, row.operators, *tensors, row.calls]
        yield ["layer", *own, *time_fields(row.times)]
    sums = {"other layers": table.sum_of(of.rest)} if of.rest else {}
    sums |= {"in no layer": table.reconciliation.outside, "whole": table.reconciliation.whole}
    for name, times in sums.items():
        yield [name, *[None] * len(OWN), *time_fields(times)]
