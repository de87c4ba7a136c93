"""Sheets as text: tables for a terminal, Markdown, CSV and JSON for programs, a page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from inferlens.views.profiled.grid import Grid
from inferlens.views.renderers.csv import csv_text
from inferlens.views.traced.sheet import Sheet

SCHEMA = "inferlens.trace/1"
# Columns that are made for people of others.
_DRAWN = ("drawn", "of_peak", "at", "tensor_span")


@dataclass(frozen=True)
class Part:
    """What is shown of one trace, or of two compared: a heading and sheets; ``more`` is what only programs get."""

    name: str
    sheets: Sequence[Sheet]
    notes: Sequence[str] = ()
    more: dict[str, Any] | None = None


def render(parts: Sequence[Part], view: str, format: str, *, width: int = 120, color: bool = False) -> str:
    """The sheets as text.

    Args:
        parts: one for each trace.
        view: what they show, for programs and for the page's title.
        format: one of ``FORMATS``.
        width, color: of the terminal.
    """
    if format == "json":
        return _json(parts, view)
    if format == "csv":
        return _csv(parts)
    # What the other formats need is not imported: it would take a tenth of the time of a small trace.
    if format == "html":
        from inferlens.views.traced.html import page

        return page([(part.name, part.sheets, part.notes) for part in parts], view)
    grids = [grid for part in parts for grid in _grids(part, len(parts) > 1)]
    if format == "markdown":
        from inferlens.views.profiled import markdown

        return markdown.render(grids)
    from inferlens.views.profiled import terminal

    return terminal.render(grids, width, color)


def _grids(part: Part, several: bool) -> list[Grid]:
    grids = [sheet.grid() for sheet in part.sheets]
    return [replace(grid, headline=f"{grid.headline} · {part.name}") for grid in grids] if several else grids


def _json(parts: Sequence[Part], view: str) -> str:
    traces = [
        {
            "trace": part.name,
            "notes": list(part.notes),
            **(part.more or {}),
            "tables": {sheet.name: _rows(sheet) for sheet in part.sheets},
        }
        for part in parts
    ]
    document = {"schema": SCHEMA, "view": view, "traces": traces}
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def _rows(sheet: Sheet) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in _DRAWN} for row in sheet.rows()]


def _csv(parts: Sequence[Part]) -> str:
    """All rows under the columns of all sheets; which trace and table a row is of stands in front, where it matters."""
    several_tables = any(len(part.sheets) > 1 for part in parts)
    lines: list[dict[str, Any]] = []
    names: dict[str, None] = {}
    for part in parts:
        for sheet in part.sheets:
            front = {"trace": part.name} if len(parts) > 1 else {}
            front |= {"table": sheet.name} if several_tables else {}
            names.update(dict.fromkeys([*front, *(name for name in sheet.table.columns if name not in _DRAWN)]))
            lines += [{**front, **row} for row in _rows(sheet)]
    return csv_text([*names], ([line.get(name) for name in names] for line in lines))
