"""Kernels for spreadsheets and programs: every row with its full name, seconds and bytes; what is absent is empty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inferlens.insight.kernels import KernelRow, KernelTable
from inferlens.insight.runs import Times
from inferlens.views.profiled import csv as csv_of
from inferlens.views.profiled import json as json_of
from inferlens.views.profiled.cases import Profiled
from inferlens.views.profiled.kernels_sentences import of_kernels

SCHEMA = "inferlens.kernels/1"
PLAIN = ("shapes", "registers", "shared_memory", "occupancy", "achieved", "tensor_cores")
LISTS = ("layers", "modules", "operators")
OWN = ("place", "name", "kind", "calls", "grid", "block", *PLAIN, "streams", *LISTS)
COLUMNS = (*csv_of.CASE, "row", *OWN, "of_busy", *csv_of.TIMES)

Chosen = Iterable[tuple[Profiled, KernelTable | str, Sequence[KernelRow]]]


def csv(chosen: Chosen) -> str:
    """A line for each row; overlap, idle and whole have lines too, so that those of a case add up to its whole."""
    lines: list[Sequence[object]] = []
    for case, table, rows in chosen:
        if isinstance(table, str):
            continue
        head = csv_of._case(case)
        lines += [[*head, table.by, *_own(row), row.of_busy, *csv_of._times(row.times)] for row in rows]
        shown = {row.place for row in rows}
        rest = [row for row in table.rows if row.place not in shown]
        sums: list[tuple[str, Times]] = [("other kernels", table.sum_of(rest))] if rest else []
        account = table.account
        sums += [("overlap", account.overlap), ("idle", account.idle), ("whole", account.whole)]
        lines += [[*head, name, *[None] * (len(OWN) + 1), *csv_of._times(times)] for name, times in sums]
    return csv_of._written(COLUMNS, lines)


def json(chosen: Chosen) -> str:
    """Every field of every row, and where the GPU's time went, of every case."""
    return json_of._written({"schema": SCHEMA, "cases": [_case(*each) for each in chosen]})


def _own(row: KernelRow) -> list[object]:
    numbers = ["" if (value := getattr(row, name)) is None else value for name in PLAIN]
    numbers[-1] = str(row.tensor_cores).lower() if row.tensor_cores is not None else ""
    return [
        row.place,
        row.name,
        row.kind,
        row.calls,
        "x".join(map(str, row.grid)),
        "x".join(map(str, row.block)),
        *numbers,
        " | ".join(map(str, row.streams)),
        *(" | ".join(getattr(row, name)) for name in LISTS),
    ]


def _case(case: Profiled, table: KernelTable | str, rows: Sequence[KernelRow]) -> dict[str, Any]:
    made = case.profile
    about: dict[str, Any] = {**json_of.case(case), "status": made.status, "warnings": made.warnings}
    if isinstance(table, str):
        return {**about, "reason": table, "rows": []}
    return {
        **about,
        "reason": "",
        "by": table.by,
        "gpu": table.gpu,
        "clock": table.clock,
        "absent": table.absent,
        "rows": rows,
        "account": table.account,
        "sentences": of_kernels(table),
    }
