"""A table of two axes as a document: for people columns for each value of the axis, for programs a cell a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from inferlens.record.record import Record
from inferlens.spec.case import bare
from inferlens.units import ABSENT, drop, error_size, listing, milliseconds, plural, ratio
from inferlens.views.answer import answers
from inferlens.views.plain import plain
from inferlens.views.raced.crossed import Crossed, CrossedCell, CrossedLine, crossed
from inferlens.views.records import WIDTH, fitting, headline, measured_again, notes_beneath
from inferlens.views.renderers import terminal
from inferlens.views.rows import by
from inferlens.views.table import Column, Document, Line, Table

SCHEMA = "inferlens.crossed/1"
LEAST_ROWS = 5  # of each table, though it be more than a screen: they were asked for
_LONGEST = 12  # letters of a value in a heading
_OF_OUTPUTS = ("precision", "calibration", "backend")  # axes that outputs differ by


def document(
    records: Sequence[Record], axis: str, reference: str | None = None, *, where: str = "", top: int | None = None
) -> Document:
    """What there is to show of records by an axis, as of :func:`crossed`; ``where`` is the folder that they lie in.

    ``top`` is how many lines of each table a screen shows; ``None``: as many as fit.
    """
    found = crossed(records, axis, reference)

    def blocks(most: int | None = None, width: int | None = None, *, said: bool = True) -> list[Table | str]:
        every = [row for each in found for row in each.rows]
        again = measured_again([(row.model, row.runs) for row in every])
        costs = axis in _OF_OUTPUTS and where and any(row.error is not None for row in every)
        cost = "accuracy" if any(row.accuracy is not None for row in every) else "error"
        picture = [f"A picture of what it costs: inferlens plot {where} --against {cost}"] * bool(costs)
        return [*(_table(each, where, most, width, said=said) for each in found), *again, *picture]

    def screen() -> list[Table | str]:
        if top is not None:
            return blocks(top, WIDTH)
        longest = max(len(table.lines) for table in blocks() if isinstance(table, Table))
        fewer = [(longest, True), *((most, False) for most in range(longest, LEAST_ROWS, -1))]
        shown = fitting(blocks(most, WIDTH, said=said) for most, said in fewer)
        return shown or blocks(LEAST_ROWS, WIDTH, said=False)

    return Document(blocks, lambda: _data(found, axis), lambda: _csv(found, axis), f"By {axis} – Inferlens", screen)


def _table(of: Crossed, where: str, most: int | None, width: int | None, *, said: bool = True) -> Table:
    if of.axis == "machine":
        return _fleet(of, where, most, width)
    columns = [column for value in of.values for column in _columns(of, value)]
    alone = len(by(of.rows, "comparison")) == 1
    lines = [
        Line.of(line.name, columns, line, style="bold green" * (alone and _fastest(line))) for line in of.lines[:most]
    ]
    left = len(of.lines) - len(lines)
    notes = [f"{plural(left, 'more row')}: --top {len(of.lines)}, or --format csv"] if left else []
    notes += [*_caveats(of, answered=alone), *notes_beneath(of.rows, where)]
    words = [cell.word for line in of.lines for cell in line.cells.values() if cell.word]
    if words and not any("inferlens notes" in note for note in notes):
        notes.append(f"Why {listing(list(dict.fromkeys(words)))}: inferlens notes {where or 'RESULTS'}")
    return Table(
        _title(of), "model" if of.of_models else "way", columns, lines, notes=notes, fold=True,
        answer=answers(of.rows)[0].folded(WIDTH) if alone else (), sentences=of.sentences * said,
    )  # fmt: skip


def _fleet(of: Crossed, where: str, most: int | None, width: int | None) -> Table:
    """Models and machines, in each cell the fastest way with its speed-up there; what there are more of goes down.

    Those with most cells come first, for they are seen where there is no room for all.
    """
    cells = {(line.name, plain(of.names[value])): cell for line in of.lines for value, cell in line.cells.items()}
    models, machines = [line.name for line in of.lines], [plain(of.names[value]) for value in of.values]
    turned = len(machines) > len(models)
    down, across = (machines, models) if turned else (models, machines)
    met = Counter(name for pair in cells for name in pair)
    across = sorted(across, key=lambda name: -met[name])
    rows = {each: {other: cells.get((other, each) if turned else (each, other)) for other in across} for each in down}
    way = partial(_way, brief=bool(width))
    ways = [Column(other, other, "", way, numeric=False, most=32) for other in across]
    fits = len(across)
    if width:  # of a table that is too wide the first columns
        room = width - terminal.widest(down)
        widths = [terminal.widest([column.text(rows[each]) for each in down]) for column in ways]
        sizes = [terminal.GAP + min(each, column.most) for each, column in zip(widths, ways, strict=True)]
        fits = max(1, sum(sum(sizes[: place + 1]) <= room for place in range(fits)))
    shown = sorted(down, key=lambda each: not any(rows[each][other] for other in across[:fits]))[:most]
    columns = [*ways[:fits], *(Column(other, other, "ms", _time, wide=True) for other in across)]
    nouns = ("machine", "model") if turned else ("model", "machine")
    left = dict(zip(nouns, (len(down) - len(shown), len(across) - fits), strict=True))
    more = listing([plural(count, f"more {noun}") for noun, count in left.items() if count])
    notes = [f"{more}: --format csv, or --output FILE.html"] if more else []
    return Table(
        _title(of), next(iter(left)), columns, [Line.of(each, columns, rows[each]) for each in shown],
        notes=[*notes, *_caveats(of), *notes_beneath(of.noted, where)], fold=True,
    )  # fmt: skip


def _way(cell: CrossedCell | None, *, brief: bool) -> str:
    """The fastest way and how many times as fast as its machine's reference it is; ``brief``: without the interval."""
    if cell is None:
        return ABSENT
    times = "" if cell.speedup is None else ratio(cell.speedup) if brief else cell.times
    return cell.word or f"{cell.row.name} {'reference' if cell.row.is_reference else times}".strip()


def _time(cell: CrossedCell | None) -> str:
    return ABSENT if cell is None or cell.word else milliseconds(cell.row.seconds_per_call)


def _fastest(line: CrossedLine) -> bool:
    return any(cell.row.fastest for cell in line.cells.values())


def _caveats(of: Crossed, *, answered: bool = False) -> list[str]:
    """What has to be known of all cells; ``answered``: beside the answer, which says what is known of the fastest."""
    told = [cell for line in of.lines for cell in line.cells.values() if cell.speedup is not None]
    once = "Cases were measured once: how far speed-ups may be off is not known."
    said = [once] if told and all(cell.low is None for cell in told) else []
    noise = [row for row in of.noted if any(note.code == "random-calibration" for note in row.notes)]
    if noise and not (answered and any(row.place == 1 for row in noise)):
        precisions = sorted({row.precision for row in noise})
        said.append(f"Calibrated with noise, accuracy meaningless: {listing(precisions)}.")
    own = "The outputs of each model are compared with its own reference; inferlens ab A B compares two models'."
    return [*said, *([own] if of.axis == "model" and of.of_one else [])]


def _title(of: Crossed) -> str:
    """What all lines share."""
    models, machines = ({getattr(row, name) for row in of.rows} for name in ("model", "machine"))
    if len(models) == len(machines) == 1:
        return headline(of.rows)
    inputs = {row.inputs_any_batch for row in of.rows}
    words = [bare(min(models)) if len(models) == 1 else plural(len(models), "model")]
    words += [min(inputs).replace(":float32", "")] if len(inputs) == 1 else []
    words.append(listing(list(dict.fromkeys(row.device_name for row in of.rows))) if len(machines) == 1 else "")
    return " · ".join(plain(word) for word in words if word)


def _columns(of: Crossed, value: Any) -> list[Column]:
    """The columns of one value: the time, how many times as fast that is, and what it costs in the outputs."""
    name, first = of.names[value], value == of.values[0]

    def column(unit: str, write: Callable[[CrossedCell], str], **how: Any) -> Column:
        return Column("", name, unit, lambda line: write(line.cells[value]) if value in line.cells else ABSENT, **how)

    against = of.names[of.values[0]]
    against = f"vs {against if len(against) <= _LONGEST else 'first'}"
    shown = [column("ms", lambda cell: cell.word or milliseconds(cell.row.seconds_per_call))]
    if of.of_one and not first:
        shown.append(column("per item" if of.axis == "batch" else against, lambda cell: cell.times, keep=1))
    if of.of_models:
        way = "way" if of.axis == "precision" else "name"
        shown.append(column("way", lambda cell: "" if cell.word else getattr(cell.row, way), keep=2, numeric=False))
    cost = of.axis in _OF_OUTPUTS and not first
    rated = cost and any(row.drop is not None for row in of.rows)
    if rated:
        shown.append(column("drop", lambda cell: drop(cell.row.drop, cell.row.drop_low, cell.row.drop_high), keep=2))
    error = column("error", lambda cell: error_size(cell.row.error) if cell.row.ok else ABSENT, keep=3)
    shown.append(replace(error, wide=not cost or rated))
    return shown


def _fields(cell: CrossedCell) -> dict[str, Any]:
    """A cell for programs: seconds, and factors."""
    row = cell.row
    return {
        "id": row.id, "case": row.name, "status": row.status, "agrees": row.agrees,
        "seconds": row.seconds_per_call, "items_per_second": row.items_per_second, "error": row.error,
        "speedup": cell.speedup, "speedup_low": cell.low, "speedup_high": cell.high, "fastest": row.fastest,
        "reason": row.reason or row.agreement_reason,
    }  # fmt: skip


def _data(found: Sequence[Crossed], axis: str) -> dict[str, Any]:
    tables = [
        {
            "machine": "" if axis == "machine" else of.rows[0].machine,
            "lines": [
                {"name": line.name, "cells": [{axis: value, **_fields(cell)} for value, cell in line.cells.items()]}
                for line in of.lines
            ],
            "sentences": of.sentences,
        }
        for of in found
    ]
    return {"schema": SCHEMA, "axis": axis, "tables": tables}


def _csv(found: Sequence[Crossed], axis: str) -> tuple[list[str], list[list[object]]]:
    """A line for each cell."""
    every = [(of, line, *each) for of in found for line in of.lines for each in line.cells.items()]
    lines = [
        [cell.row.machine, cell.row.model, line.name, axis, value, *_fields(cell).values()]
        for _, line, value, cell in every
    ]
    return ["machine", "model", "line", "axis", "value", *_fields(every[0][-1])], lines
