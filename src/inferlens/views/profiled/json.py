"""Layers and modules for other programs: JSON with a schema name, seconds, null for what is absent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from inferlens.analysis.profile.layers import LayerRow, LayerTable, clock_of, timed_of
from inferlens.analysis.profile.modules import ModuleTable
from inferlens.views.profiled.cases import Profiled
from inferlens.views.profiled.module_columns import Column, Columns
from inferlens.views.profiled.sentences import of_layers
from inferlens.views.profiled.tables import Chosen

LAYERS = "inferlens.layers/1"
MODULES = "inferlens.modules/1"


def layers(chosen: Iterable[Chosen[LayerTable, LayerRow]]) -> str:
    """Every field of every row, and the reconciliation, of every case."""
    return _written({"schema": LAYERS, "cases": [_layered(of) for of in chosen]})


def modules(models: Iterable[dict[str, Any]]) -> str:
    """Trees, as :func:`model` makes them."""
    return _written({"schema": MODULES, "models": list(models)})


def model(of: Columns, table: ModuleTable | None, sentences: Sequence[str]) -> dict[str, Any]:
    """One tree, its columns and what could not be one."""
    rows = table.rows if table else ()
    columns = [_column(*each) for each in zip(of.shown, table.marked if table else (), strict=True)]
    return {
        "level": of.level,
        "rule": table.rule if table else None,
        "depth": table.depth if table else None,
        "deepest": table.deepest if table else None,
        "columns": columns,
        "rows": [{**msgspec.structs.asdict(row), "path": ".".join(row.path)} for row in rows],
        "failed": [{**case(one.case), "level": one.level, "reason": one.why} for one in of.missing],
        "sentences": sentences,
    }


def case(of: Profiled) -> dict[str, Any]:
    """What tells a case from others."""
    made = of.profile
    return {"name": of.name, "case": made.case, "digest": made.case.digest, "profile": made.id, "record": made.record}


def _column(of: Column, marked: bool) -> dict[str, Any]:
    """What its times are, of which its shares are, and how they fit into a run."""
    made = of.case.profile
    times = {"level": made.level, "share_of": of.runs.share_of, "timed": timed_of(made), "clock": clock_of(made)}
    return {**case(of.case), **times, "marked": marked, "busy": of.busy, "reconciliation": of.account}


def _layered(of: Chosen[LayerTable, LayerRow]) -> dict[str, Any]:
    made, table = of.case.profile, of.table
    about: dict[str, Any] = {**case(of.case), "status": made.status, "warnings": made.warnings}
    if isinstance(table, str):
        return {**about, "reason": table, "rows": []}
    return {
        **about,
        "reason": "",
        "timed": table.timed,
        "clock": table.clock,
        "absent": made.layers.absent if made.layers else {},
        "rows": of.rows,
        "reconciliation": table.reconciliation,
        "sentences": of_layers(table),
    }


def _written(document: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
