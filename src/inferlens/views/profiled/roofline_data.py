"""Floors for spreadsheets and programs: every row, in seconds, bytes and FLOPs; what is absent is empty or null."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inferlens.analysis.profile.roofline import Floor, Roofline
from inferlens.views.profiled import csv as csv_of
from inferlens.views.profiled import json as json_of
from inferlens.views.profiled.roofline_sentences import notes, sentences
from inferlens.views.profiled.tables import Chosen
from inferlens.views.renderers.csv import csv_text

SCHEMA = "inferlens.roofline/1"
NUMBERS = ("time", "share", "flops", "bytes", "intensity", "floor", "bound", "distance", "won")
COLUMNS = (*csv_of.CASE, "precision", "row", "place", "name", "kind", "modules", *NUMBERS)

Floored = Chosen[Roofline, Floor]


def csv(chosen: Iterable[Floored]) -> str:
    """A line for each row of every case that has floors, and for what is in no layer, so that times add up."""
    lines: list[Sequence[object]] = []
    for of in chosen:
        found, rest = of.table, of.rest
        if isinstance(found, str):
            continue
        head = [*csv_of.case_fields(of.case), found.precision]
        lines += [[*head, found.by, *_cells(row)] for row in of.rows]
        sums = [(f"other {found.by}s", sum(row.time for row in rest))] if rest else []
        for name, time in (*sums, (f"in no {found.timed}", found.outside)):
            lines.append([*head, name, *_cells(Floor(place=0, name="", time=time), summed=True)])
        whole = Floor(place=0, name="", time=found.time, floor=found.floor, won=found.won)
        lines.append([*head, "whole", *_cells(whole, summed=True)])
    return csv_text(COLUMNS, lines)


def json(chosen: Iterable[Floored]) -> str:
    """Every field of every row, the ceilings, and what was not counted."""
    return json_of._written({"schema": SCHEMA, "cases": [_case(each) for each in chosen]})


def _cells(row: Floor, summed: bool = False) -> list[object]:
    own = [None] * 4 if summed else [row.place, row.name, row.kind, " | ".join(row.modules)]
    return [*own, *(getattr(row, name) for name in NUMBERS)]


def _case(of: Floored) -> dict[str, Any]:
    case, found = of.case, of.table
    about: dict[str, Any] = {**json_of.case(case), "status": case.profile.status}
    if isinstance(found, str):
        return {**about, "reason": found, "rows": []}
    totals = (
        "by",
        "timed",
        "precision",
        "ceilings",
        "rate",
        "time",
        "outside",
        "known",
        "floor",
        "won",
        "least",
        "unplaced",
    )
    work = case.profile.work
    return {
        **about,
        "reason": "",
        **{name: getattr(found, name) for name in totals},
        "counted": work.note if work else "",
        "uncovered": work.uncovered if work else {},
        "rows": of.rows,
        "sentences": sentences(found),
        "notes": notes(case.profile, found),
    }
