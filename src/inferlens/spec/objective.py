"""What a tuning aims at and within which limits: measures of a case, and the words that ask for them.

An objective is a measure: ``latency.p99``. A constraint is a measure and its limit: ``p99=5ms``, ``error=1e-2``. What a
record has of a measure is computed in ``analysis.measures``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import Struct

from inferlens.errors import InferlensError, check_choice
from inferlens.units import (
    byte_count,
    drop,
    duration,
    error_size,
    items_per_second,
    joules,
    parse_bytes,
    parse_duration,
    parse_error,
    parse_joules,
    parse_rate,
    parse_share,
)


class Measure(NamedTuple):
    """Something that is known of a measured case and may be aimed at or limited.

    Attributes:
        unit: of its values: seconds, bytes, joules for one item, items per second; empty for a share.
        show, read: a value as text, and the limit that a text says.
        form: a limit as a person writes it.
        aim: whether it can be an objective; all can be limited.
        needs: what of a plan it needs; empty for most.
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
        """What is the less the better: the value, or one over it where more is better."""
        if self.less:
            return value
        return 1 / value if value > 0 else math.inf


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("latency", "median latency", "s", duration, parse_duration, "latency=4ms"),
        Measure("latency.p95", "p95 latency", "s", duration, parse_duration, "p95=5ms"),
        Measure("latency.p99", "p99 latency", "s", duration, parse_duration, "p99=5ms"),
        Measure("throughput", "throughput", "items/s", items_per_second, parse_rate, "throughput=1000", less=False),
        Measure("energy", "energy for one item", "J", joules, parse_joules, "energy=50mJ"),
        Measure("memory", "peak memory", "B", byte_count, parse_bytes, "memory=2GiB"),
        Measure("build", "build time", "s", duration, parse_duration, "build=10m", aim=False),
        Measure("error", "error of the outputs", "", error_size, parse_error, "error=1e-2", aim=False),
        Measure(
            "accuracy-drop", "drop in accuracy", "", drop, parse_share, "accuracy-drop=1%", aim=False, needs="accuracy",
        ),
    )
}  # fmt: skip
SHORT = {"latency.p50": "latency", "p50": "latency", "p95": "latency.p95", "p99": "latency.p99"}  # other words for some


class Objective(Struct, frozen=True):
    """What is to be best, by the name of its measure."""

    name: str = "latency"

    @staticmethod
    def parse(text: str) -> Objective:
        """An objective from its word, such as ``latency.p99``. Raises InferlensError for one that there is not."""
        word = text.strip()
        aims = [name for name, measure in MEASURES.items() if measure.aim]
        known = [*aims, *(item for item in SHORT if item not in aims)]
        check_choice("objective", word, known)
        return Objective(SHORT.get(word, word))

    @property
    def measure(self) -> Measure:
        """What it is of."""
        return MEASURES[self.name]


class Constraint(Struct, frozen=True):
    """A limit on a measure, in its unit: at most, or at least where more is better."""

    name: str
    limit: float

    @staticmethod
    def parse(text: str) -> Constraint:
        """A constraint from ``NAME=LIMIT``, such as ``p99=5ms`` or ``memory=2GiB``.

        Raises InferlensError for a word that there is not, one that no record has, or a limit that its measure cannot
        be.
        """
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
        """A constraint of each text, as :meth:`parse` reads it; no two on the same measure."""
        found: dict[str, Constraint] = {}
        for constraint in map(Constraint.parse, texts):
            if constraint.name in found:
                raise InferlensError(
                    f"The limit of {constraint.name} is given twice.", expected="one limit for each measure"
                )
            found[constraint.name] = constraint
        return tuple(found.values())

    @property
    def measure(self) -> Measure:
        """What it is of."""
        return MEASURES[self.name]

    def factor(self, value: float | None) -> float:
        """How far a value is beyond the limit; 1 and less keeps it, and one that is not known is infinitely far off."""
        return math.inf if value is None else self.measure.cost(value) / self.measure.cost(self.limit)

    def __str__(self) -> str:
        side = "at most" if self.measure.less else "at least"
        return f"{self.measure.title} {side} {self.measure.show(self.limit)}"
