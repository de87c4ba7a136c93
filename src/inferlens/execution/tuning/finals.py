"""The rule of the rounds in which a tuning's finalists meet: all of them in the first few, each built anew."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.race import FinalsAim
from inferlens.execution.rounds import FastestRule, Rounds

BUILDS = 3  # of each finalist, from scratch: builds differ


class FinalsRule(FastestRule):
    """Finds the finalist that is best by an aim; ``anew`` tells whether the first processes build from scratch."""

    least = BUILDS

    def __init__(self, aim: FinalsAim, *, anew: bool) -> None:
        super().__init__()
        self.aim, self.anew = aim, anew

    def meeting(self, rounds: Rounds, number: int) -> Sequence[str]:
        """See :class:`RaceRule`."""
        return list(rounds.able) if number < BUILDS else super().meeting(rounds, number)

    def builds_anew(self, number: int) -> bool:
        """See :class:`RaceRule`."""
        return number <= BUILDS and self.anew
