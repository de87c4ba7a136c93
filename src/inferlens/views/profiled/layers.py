"""The layers of each case as a table: what each is, how long it takes and how that spreads, and how they add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from inferlens.analysis.profile.layers import LayerTable, RunTimes, layer_table
from inferlens.errors import check_choice
from inferlens.units import milliseconds, percent, plural
from inferlens.views.profiled.cases import CASE, TIMES, TOP, Chosen, ProfiledCase, by_time, chosen, time_fields
from inferlens.views.profiled.sentences import (
    FEW,
    cost,
    half,
    layer_name,
    modules,
    name_of,
    remarks,
    shapes,
    takes_most,
)
from inferlens.views.table import Column, Document, Line, Table, ruled, share

SCHEMA = "inferlens.layers/1"
SORTS = ("time", "order")
NUMBERS = (
    Column("times.mean", "mean", "ms", milliseconds, keep=2),
    Column("times.median", "p50", "ms", milliseconds, keep=0),
    Column("times", "±", "95 %", half, keep=6),
    Column("times.p95", "p95", "ms", milliseconds, keep=7),
    Column("times.share", "share", write=share, keep=1),
)
COLUMNS = (
    Column("place", "#", keep=10),
    Column("kind", "kind", keep=5, numeric=False, most=20),
    Column("modules", "modules", write=modules, keep=8, numeric=False),
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
        top: how many layers, those that take most; ``None``: :data:`.cases.TOP` for people, all for programs.

    Raises:
        InferlensError: for another order.
    """
    check_choice("order of layers", sort, SORTS)

    def rows(most: int | None) -> list[Chosen[LayerTable]]:
        return [chosen(case, layer_table(case.profile, case.unprofiled), by_time, sort, most) for case in cases]

    return Document(
        blocks=lambda: [_table(each) for each in rows(top or TOP)],
        data=lambda: {"schema": SCHEMA, "cases": [_data(each) for each in rows(top)]},
        csv=lambda: ((*CASE, "row", *OWN, *TIMES), _lines(rows(top))),
    )


def _table(of: Chosen[LayerTable]) -> Table:
    table, profile = of.table, of.case.profile
    if isinstance(table, str):
        return Table(of.case.title, "layer", COLUMNS, (), sentences=[f"It has no layers: {table} {profile.hint}"])
    lines = [Line.of(name_of(layer_name(row)), COLUMNS, row) for row in of.rows]
    lines += [_sum(plural(len(of.rest), "other layer"), table.sum_of(of.rest))] if of.rest else []
    account, layers = table.reconciliation, plural(len(table.rows), "layer")
    sums = [_sum("in no layer", account.outside), _sum("whole run", account.whole, style="bold")]
    return Table(
        of.case.title,
        "layer",
        COLUMNS,
        ruled(lines, sums),
        about=f"{layers} · {plural(account.runs, 'run')} · {table.timed} times by {table.clock}",
        notes=remarks(profile, profile.layers.absent if profile.layers else {}),
        sentences=sentences(table),
    )


def _sum(name: str, times: RunTimes, **more: Any) -> Line:
    own = [""] * (len(COLUMNS) - len(NUMBERS))
    return Line(name, (*own, *(column.text({"times": times}) for column in NUMBERS)), **more)


def sentences(table: LayerTable) -> list[str]:
    """Which layers take most, how they add up, and what profiling cost."""
    account, first = table.reconciliation, by_time(table)[:FEW]
    layers, whole = milliseconds(account.layers.median), milliseconds(account.whole.median)
    most = "No layer has a time."
    if first and first[0].times and first[0].times.share:
        several = table.sum_of(first).share if len(table.rows) > FEW else None
        of = plural(len(table.rows), "layer")
        most = takes_most(layer_name(first[0]), first[0].times.share, "a run", several, of)
    outside = account.outside
    left = f"{milliseconds(max(outside.median, 0.0))} ms"
    left += "" if outside.share is None else f" ({percent(max(outside.share, 0.0))})"
    added = f"Layers add up to {layers} ms of {whole} ms (medians); {left} were in no layer."
    if account.overlaps:
        added = f"Layers add up to {layers} ms, more than the {whole} ms of the whole run: some ran at the same time."
    return [most, added, cost(account)]


def _data(of: Chosen[LayerTable]) -> dict[str, Any]:
    """Every field of every row, and the reconciliation."""
    table, profile = of.table, of.case.profile
    about = {**of.data, "warnings": profile.warnings}
    if isinstance(table, str):
        return about
    return {
        **about,
        "timed": table.timed,
        "clock": table.clock,
        "absent": profile.layers.absent if profile.layers else {},
        "reconciliation": table.reconciliation,
        "sentences": sentences(table),
    }


def _lines(cases: Sequence[Chosen[LayerTable]]) -> Iterator[list[object]]:
    """Layers, and what is in none, of every case that has layers; those of a case add up to its whole."""
    for of in cases:
        if isinstance(of.table, str):
            continue
        for row in of.rows:
            tensors = [["x".join(map(str, each.shape)) for each in some] for some in (row.inputs, row.outputs)]
            own = [row.place, row.name, row.kind, row.modules, row.operators, *tensors, row.calls]
            yield [*of.case.fields, "layer", *own, *time_fields(row.times)]
        sums = [("other layers", of.table.sum_of(of.rest))] if of.rest else []
        account = of.table.reconciliation
        for name, times in (*sums, ("in no layer", account.outside), ("whole", account.whole)):
            yield [*of.case.fields, name, *[None] * len(OWN), *time_fields(times)]
