"""Two things against each other, as a document: the answer, a line for each of the two, and all of it as data."""

from __future__ import annotations

from typing import Any

import msgspec

from inferlens.analysis.compare.ab_result import ABResult
from inferlens.stats.intervals import ends
from inferlens.views.table import Column, Document, Line, Table

SCHEMA = "inferlens.ab/1"


def document(found: ABResult, next_step: str = "") -> Document:
    """The answer, for every format."""

    def table() -> list[Table | str]:
        common, names, figures = found.sides
        lines = [Line(f"{side}  {name}", (figure,)) for side, name, figure in zip("AB", names, figures, strict=True)]
        sentences = [*filter(None, [found.of_accuracy, *found.remarks, next_step])]
        return [Table(found.sentence, common, (Column("", found.rule.metric),), lines, sentences=sentences)]

    return Document(table, data=lambda: data(found), csv=lambda: _csv(found), title=found.sentence)


def data(found: ABResult) -> dict[str, Any]:
    """All that is known, in seconds and calls per second."""
    fields = msgspec.structs.asdict(found)
    return {"schema": SCHEMA, "exit_code": found.exit_code, "sentence": found.sentence, **fields}


def _csv(found: ABResult) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """A line for each side; verdict and ratio of B against A stand in that of B."""
    names = ("side", "model", "case", "state", found.rule.metric, "low", "high", "verdict", "ratio")
    lines = []
    for letter, case, side in (("A", found.a, found.base), ("B", found.b, found.candidate)):
        of_b = (found.verdict, found.ratio) if letter == "B" else ("", None)
        lines.append((letter, case.model, case.label, side.state, side.median, *ends(side.interval), *of_b))
    return names, lines
