"""Things against each other, as a document: the answer, a line for each, and all of it as data."""

from __future__ import annotations

from typing import Any

import msgspec

from inferlens.analysis.ab_result import ABResult, ABSteps
from inferlens.analysis.comparison import differences_sentence
from inferlens.stats.intervals import ends
from inferlens.views.table import Column, Document, Line, Table

SCHEMA, STEPS = "inferlens.ab/1", "inferlens.ab-steps/1"


def document(found: ABResult | ABSteps, next_step: str = "") -> Document:
    """The answer, for every format."""
    if isinstance(found, ABSteps):
        return _of_steps(found, next_step)

    def table() -> list[Table | str]:
        common, names, figures = found.sides
        lines = [Line(f"{side}  {name}", (figure,)) for side, name, figure in zip("AB", names, figures, strict=True)]
        sentences = [*filter(None, [found.machine_load.sentence, found.accuracy_sentence, *found.remarks, next_step])]
        return [Table(found.sentence, "", (Column("", "", most=60),), lines, about=common, sentences=sentences)]

    return Document(table, data=lambda: data(found), csv=lambda: _csv(found), title=found.sentence)


def data(ab_result: ABResult) -> dict[str, Any]:
    """All that is known, in seconds and calls per second."""
    fields = {**msgspec.structs.asdict(ab_result), "machine_load": ab_result.machine_load}
    return {"schema": SCHEMA, "exit_code": ab_result.exit_code, "sentence": ab_result.sentence, **fields}


def _of_steps(ab_steps: ABSteps, next_step: str) -> Document:
    """Several environments, each against the one before, for every format."""
    answer, *more = ab_steps.sentences

    def table() -> list[Table | str]:
        words = [Column("", title, numeric=False, fold=True) for title in ("verdict", "what differs")]
        first, *_ = ab_steps.named_steps
        lines = [Line(first.before, (first.ab_result.sides[2][0], "", ""))]
        for step in ab_steps.named_steps:
            lines.append(
                Line(
                    step.after, (step.figure, step.ab_result.verdict, differences_sentence(step.ab_result.differences))
                )
            )
        columns = (Column("", first.ab_result.rule.metric, most=60), *words)
        said = filter(None, [ab_steps.machine_load.sentence, next_step])
        return [Table(answer, "environment", columns, lines, sentences=[*more, *said])]

    def csv() -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        sides = [_csv(step) for step in ab_steps.steps]
        return ("step", *sides[0][0]), [(step, *line) for step, (_, its) in enumerate(sides, 1) for line in its]

    def all_of_it() -> dict[str, Any]:
        steps = [data(step) for step in ab_steps.steps]
        return {"schema": STEPS, "exit_code": ab_steps.exit_code, "sentences": ab_steps.sentences, "steps": steps}

    return Document(table, data=all_of_it, csv=csv, title=answer)


def _csv(ab_result: ABResult) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """A line for each side; verdict and ratio of B against A stand in that of B."""
    names = ("side", "model", "case", "state", ab_result.rule.metric, "low", "high", "verdict", "ratio")
    lines = []
    for letter, case, side in (("A", ab_result.a, ab_result.base), ("B", ab_result.b, ab_result.candidate)):
        of_b = (ab_result.verdict, ab_result.ratio) if letter == "B" else ("", None)
        lines.append((letter, case.model, case.label, side.state, side.median, *ends(side.interval), *of_b))
    return names, lines
