"""Layers and modules for a spreadsheet or a data frame: RFC 4180, seconds, an empty field for what is absent.

One line for each layer, and one for each module on each backend; what is in no layer, and the whole, have lines too, so
that the lines of a case add up; of kernels the whole is all of them. Texts are quoted where they need to be and nothing
else is done to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferlens.analysis.profile.layers import LayerRow, LayerTable, Times
from inferlens.analysis.profile.modules import ModuleTable
from inferlens.record.layer_profile import Tensor
from inferlens.views.profiled.cases import Profiled
from inferlens.views.profiled.module_columns import Column
from inferlens.views.profiled.tables import Chosen
from inferlens.views.renderers.csv import csv_text

CASE = ("model", "case", "digest", "profile")
TIMES = ("typical", "share", "mean", "median", "median_low", "median_high", "p95")
LAYER = (*CASE, "row", "place", "name", "kind", "modules", "operators", "inputs", "outputs", "calls", *TIMES)
MARKS = ("shared", "untimed", "fastest", "slower")
MODULE = (*CASE, "row", "module", "depth", "rule", *TIMES, *MARKS, "level", "share_of")


def layers(chosen: Iterable[Chosen[LayerTable, LayerRow]]) -> str:
    """Layers, and what is in none, of every case that has layers."""
    lines: list[Sequence[object]] = []
    for of in chosen:
        if isinstance(of.table, str):
            continue
        account = of.table.reconciliation
        lines += [[*case_fields(of.case), "layer", *_layer(row)] for row in of.rows]
        sums = [("other layers", of.table.sum_of(of.rest))] if of.rest else []
        for name, times in (*sums, ("in no layer", account.outside), ("whole", account.whole)):
            lines.append([*case_fields(of.case), name, *[None] * 8, *time_fields(times)])
    return csv_text(LAYER, lines)


def modules(tables: Iterable[tuple[Sequence[Column], ModuleTable]]) -> str:
    """Every cell of every tree that is not empty."""
    lines = (
        [
            *(*case_fields(column.case), row.kind, ".".join(row.path), row.depth, table.rule, *time_fields(cell.times)),
            *(str(getattr(cell, mark)).lower() for mark in MARKS),
            *(column.case.profile.level, column.runs.share_of),
        ]
        for columns, table in tables
        for row in table.rows
        for column, cell in zip(columns, row.cells, strict=True)
        if cell
    )
    return csv_text(MODULE, lines)


def case_fields(of: Profiled) -> list[object]:
    """The fields of :data:`CASE`."""
    return [of.profile.case.model, of.profile.case.label, of.profile.case.digest, of.profile.id]


def _layer(row: LayerRow) -> list[object]:
    lists = (row.modules, row.operators, map(_tensor, row.inputs), map(_tensor, row.outputs))
    return [row.place, row.name, row.kind, *(" | ".join(each) for each in lists), row.calls, *time_fields(row.times)]


def _tensor(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))


def time_fields(times: Times | None) -> list[object]:
    """The fields of :data:`TIMES`, in seconds."""
    return [getattr(times, name, None) for name in TIMES]
