"""Where the time goes as a picture: the modules of each case as boxes, the model on top and what is in it beneath.

It is drawn from the table of modules: a box is as wide as the module's share of the call, and boxes without any beneath
them are what the call adds up to. A colour is a part of the model, the same for every case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from inferlens.analysis.profile.modules import ModuleRow
from inferlens.units import percent
from inferlens.views.picture import GREY, PALETTE, colours_of
from inferlens.views.plain import plain
from inferlens.views.profiled.cases import ProfiledCase, told_apart
from inferlens.views.profiled.modules import MAIN, ModuleTree, chosen, columns, tree_of
from inferlens.views.profiled.profile_tables import WRITE, unit_of
from inferlens.views.report.blocks import Picture
from inferlens.views.report.boxes import Box, svg
from inferlens.views.table import share

HOW = "Each box is as wide as its share of the time, with the modules in it beneath; a colour is a part of the model."
DEEPEST = 100


@dataclass
class _Placed:
    """One row of the table in one column: ``left`` and ``wide`` are shares of the whole."""

    row: ModuleRow
    name: str
    part: str
    depth: int
    wide: float = 0.0
    left: float = 0.0


def icicles(groups: Sequence[Sequence[ProfiledCase]]) -> Iterator[Picture]:
    """The picture of each model with its inputs and machine, a panel for each case."""
    for number, group in enumerate(groups, 1):
        of = tree_of(columns(group, None, None), "work", DEEPEST)
        if of.table:
            panels, values = _panels(of)
            yield Picture(f"modules-{number}", HOW, partial(svg, "where the time goes, by modules", panels), values)


def _panels(of: ModuleTree) -> tuple[list[tuple[str, list[Box]]], list[dict[str, Any]]]:
    """Of each case its name and its boxes; all of them as rows."""
    assert of.table
    rows, (_, names) = chosen(of.table.rows[1:], None)[0], told_apart([one.case for one in of.shown])
    unit = unit_of(one.case.profile for one in of.shown)
    parts = _parts([(row, len(indent) // 2) for row, indent, _ in rows])
    colours = colours_of(dict.fromkeys(filter(None, parts)), [each for each in PALETTE if each != GREY])
    panels, values = [], []
    for place, case in enumerate(names):
        boxes = _boxes([(row, len(indent) // 2, name) for row, indent, name in rows], parts, place)
        drawn = []
        for box in boxes:
            times = box.row.cells[place]
            took = WRITE[unit](times.times.typical) if times and times.times else ""
            path = plain(".".join(box.row.path)) if box.row.kind == "module" else box.name.removeprefix("· ")
            said = share(times.times.share) if times and times.times else ""
            named = plain(box.name)
            fits = (f"{named} {percent(box.wide)}", named, named.rpartition(".")[2])
            about = f"{path}; {took} {unit}; {said} of the time"
            drawn.append(Box(box.left, box.wide, box.depth, fits, about, colours.get(box.part, GREY)))
            values.append({"case": case, "module": path, "depth": box.depth, f"time ({unit})": took,
                           "left": round(box.left, 6), "share": round(box.wide, 6)})  # fmt: skip
        whole = of.table.rows[0].cells[place]
        took = f" · {WRITE[unit](whole.times.typical)} {unit}" if whole and whole.times else ""
        what = "all kernels" if of.shown[place].of_kernels else "the call"
        panels.append((f"{case}{took}, {what}", drawn))
    return panels, values


def _parts(rows: Sequence[tuple[ModuleRow, int]]) -> list[str]:
    """The part of the model that each row is of: its outermost module that has not most of the time with all cases."""
    found: list[str] = []
    above: dict[int, str] = {}
    for row, depth in rows:
        shares = [cell.times.share or 0.0 for cell in row.cells if cell and cell.times]
        part = above.get(depth - 1, "") if depth else ""
        frame = bool(shares) and min(shares) > MAIN
        if not part and row.kind == "module" and not frame:
            part = ".".join(row.path)
        above[depth] = part
        found.append(part)
    return found


def _boxes(rows: Sequence[tuple[ModuleRow, int, str]], parts: Sequence[str], place: int) -> list[_Placed]:
    """The boxes of a column: those with others beneath are as wide as these, and all together as wide as the whole."""
    boxes = []
    for (row, depth, name), part in zip(rows, parts, strict=True):
        cell = row.cells[place]
        wide = max((cell.times.share or 0.0) if cell and cell.times else 0.0, 0.0)
        boxes.append(_Placed(row, name, part, depth, wide))
    below: dict[int, float] = {}
    for box in reversed(boxes):
        inner = below.pop(box.depth + 1, 0.0)
        box.wide = inner or box.wide
        below[box.depth] = below.get(box.depth, 0.0) + box.wide
    whole = below.get(0) or 1.0
    left: dict[int, float] = {}
    for box in boxes:
        box.wide /= whole
        box.left = left.get(box.depth, 0.0)
        left[box.depth] = box.left + box.wide
        left[box.depth + 1] = box.left
    return boxes
