"""The rule of a tuning's final rounds: all finalists meet in the first two, and the first builds are made anew."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.race import FinalsAim
from inferlens.execution.rounds import REFERENCE_ROUNDS, FastestRule, Rounds

BUILDS = 3  # of each finalist, from scratch: builds differ


class FinalsRule(FastestRule):
    """Finds the finalist that is best by an aim; ``anew`` tells whether the first processes build from scratch."""

    def __init__(self, aim: FinalsAim, *, anew: bool) -> None:
        super().__init__()
        self.aim, self.anew = aim, anew

    def meeting(self, rounds: Rounds, number: int) -> Sequence[str]:
        """See :class:`RaceRule`."""
        return list(rounds.able) if number < REFERENCE_ROUNDS else super().meeting(rounds, number)

    def builds_anew(self, number: int) -> bool:
        """See :class:`RaceRule`."""
        return number <= BUILDS and self.anew
