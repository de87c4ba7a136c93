"""Objectives and constraints of a tuning: measures of a case, and the words that select them.

An objective is a measure: ``latency.p99``. A constraint is a measure and its limit: ``p99=5ms``, ``error=1e-2``. What a
record has of a measure is computed in ``analysis.measures``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import Struct

from inferlens import units
from inferlens.errors import InferlensError, check_choice


class Measure(NamedTuple):
    """A number of a measured case that can be an objective or be limited.

    Attributes:
        unit: of its values: seconds, bytes, joules for one item, items per second; empty for a share.
        show, read: functions that format a value, and that read a limit from a text.
        form: a limit as a person writes it.
        aim: whether it can be an objective; all can be limited.
        needs: the option of a plan that it needs; empty for most.
    """

    name: str
    title: str
    unit: str
    show: Callable[[float | None], str]
    read: Callable[[str], float]
    form: str
    less: bool = True
    aim: bool = True
    needs: str = ""

    def cost(self, value: float) -> float:
        """Return a number that is smaller for better values: the value, or one over it where more is better."""
        if self.less:
            return value
        return 1 / value if value > 0 else math.inf


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("latency", "median latency", "s", units.duration, units.parse_duration, "latency=4ms"),
        Measure("latency.p95", "p95 latency", "s", units.duration, units.parse_duration, "p95=5ms"),
        Measure("latency.p99", "p99 latency", "s", units.duration, units.parse_duration, "p99=5ms"),
        Measure(
            "throughput", "throughput", "items/s", units.items_per_second, units.parse_rate, "throughput=1000",
            less=False,
        ),
        Measure("energy", "energy for one item", "J", units.joules, units.parse_joules, "energy=50mJ"),
        Measure("memory", "peak memory", "B", units.byte_count, units.parse_bytes, "memory=2GiB"),
        Measure("build", "build time", "s", units.duration, units.parse_duration, "build=10m", aim=False),
        Measure("error", "error of the outputs", "", units.error_size, units.parse_error, "error=1e-2", aim=False),
        Measure(
            "accuracy-drop", "drop in accuracy", "", units.drop, units.parse_share, "accuracy-drop=1%", aim=False,
            needs="accuracy",
        ),
    )
}  # fmt: skip
SHORT = {"latency.p50": "latency", "p50": "latency", "p95": "latency.p95", "p99": "latency.p99"}  # other words for some


class Objective(Struct, frozen=True):
    """The objective of a tuning, by the name of its measure."""

    name: str = "latency"

    @staticmethod
    def parse(text: str) -> Objective:
        """Return the objective of a word such as ``latency.p99``. Raises InferlensError for an unknown word."""
        word = text.strip()
        check_choice("objective", word, [*(name for name, measure in MEASURES.items() if measure.aim), *SHORT])
        return Objective(SHORT.get(word, word))

    @property
    def measure(self) -> Measure:
        return MEASURES[self.name]


class Constraint(Struct, frozen=True):
    """A limit on a measure, in its unit: at most, or at least where more is better."""

    name: str
    limit: float

    @staticmethod
    def parse(text: str) -> Constraint:
        """Return the constraint of ``NAME=LIMIT``, such as ``p99=5ms`` or ``memory=2GiB``. Refuse other texts."""
        word, equals, limit = (part.strip() for part in text.partition("="))
        check_choice("constraint", word, [*MEASURES, *SHORT])
        measure = MEASURES[SHORT.get(word, word)]
        if not equals:
            raise InferlensError(f"The constraint '{word}' has no limit.", expected=f"such as {measure.form}")
        value = measure.read(limit)
        if not value:
            raise InferlensError(f"Nothing keeps a limit of 0 for {word}.", expected=f"such as {measure.form}")
        return Constraint(measure.name, value)

    @staticmethod
    def parse_all(texts: Iterable[str]) -> tuple[Constraint, ...]:
        """Return the constraint of every text. Raises InferlensError for two limits on one measure."""
        constraints: dict[str, Constraint] = {}
        for constraint in map(Constraint.parse, texts):
            if constraint.name in constraints:
                message = f"The limit of {constraint.name} is given twice."
                raise InferlensError(message, expected="one limit for each measure")
            constraints[constraint.name] = constraint
        return tuple(constraints.values())

    @property
    def measure(self) -> Measure:
        return MEASURES[self.name]

    def factor(self, value: float | None) -> float:
        """Return value over limit; at most 1 keeps the limit. An unknown value is infinitely far off."""
        return math.inf if value is None else self.measure.cost(value) / self.measure.cost(self.limit)

    def __str__(self) -> str:
        side = "at most" if self.measure.less else "at least"
        return f"{self.measure.title} {side} {self.measure.show(self.limit)}"
