"""Kernels for spreadsheets and programs: every row with its full name, seconds and bytes; what is absent is empty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inferlens.analysis.profile.kernels import KernelRow, KernelTable
from inferlens.analysis.profile.layers import Times
from inferlens.views.profiled import csv as csv_of
from inferlens.views.profiled import json as json_of
from inferlens.views.profiled.kernels_sentences import of_kernels
from inferlens.views.profiled.tables import Chosen
from inferlens.views.renderers.csv import csv_text

SCHEMA = "inferlens.kernels/1"
PLAIN = ("shapes", "registers", "shared_memory", "occupancy", "achieved", "tensor_cores")
LISTS = ("layers", "modules", "operators")
OWN = ("place", "name", "kind", "calls", "grid", "block", *PLAIN, "streams", *LISTS)
COLUMNS = (*csv_of.CASE, "row", *OWN, "of_busy", *csv_of.TIMES)

Kerneled = Chosen[KernelTable, KernelRow]


def csv(chosen: Iterable[Kerneled]) -> str:
    """A line for each row; overlap, idle and whole have lines too, so that those of a case add up to its whole."""
    lines: list[Sequence[object]] = []
    for of in chosen:
        table = of.table
        if isinstance(table, str):
            continue
        head = csv_of.case_fields(of.case)
        lines += [[*head, table.by, *_own(row), row.of_busy, *csv_of.time_fields(row.times)] for row in of.rows]
        sums: list[tuple[str, Times]] = [("other kernels", table.sum_of(of.rest))] if of.rest else []
        account = table.account
        sums += [("overlap", account.overlap), ("idle", account.idle), ("whole", account.whole)]
        lines += [[*head, name, *[None] * (len(OWN) + 1), *csv_of.time_fields(times)] for name, times in sums]
    return csv_text(COLUMNS, lines)


def json(chosen: Iterable[Kerneled]) -> str:
    """Every field of every row, and where the GPU's time went, of every case."""
    return json_of._written({"schema": SCHEMA, "cases": [_case(each) for each in chosen]})


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


def _case(of: Kerneled) -> dict[str, Any]:
    made, table = of.case.profile, of.table
    about: dict[str, Any] = {**json_of.case(of.case), "status": made.status, "warnings": made.warnings}
    if isinstance(table, str) or made.kernels is None:
        return {**about, "reason": table, "rows": []}
    return {
        **about,
        "reason": "",
        "by": table.by,
        "gpu": made.kernels.gpu,
        "clock": made.kernels.clock,
        "absent": made.kernels.absent,
        "rows": of.rows,
        "account": table.account,
        "sentences": of_kernels(table),
    }
