"""The rounds in which a tuning's finalists meet, each built anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from inferlens.analysis.race import FinalsAim, Race, race
from inferlens.execution.rounds import Entrant
from inferlens.execution.tuning.trial_log import LoggedRounds
from inferlens.spec.case import Case

BUILDS = 3  # of each finalist, from scratch: builds differ


@dataclass
class Finals(LoggedRounds):
    """The finalists' rounds: everyone's in the first few, each built anew."""

    least: ClassVar[int] = BUILDS
    final: ClassVar[bool] = True
    aim: FinalsAim
    anew: bool  # not where memory of the host is asked for: who exports takes more than who runs

    @property
    def race(self) -> Race:
        """How it stands, by what is to be best."""
        runs = {name: each.runs for name, each in self._able.items()}
        return race(runs, aim=self.aim)

    def _next_meeting(self, number: int) -> list[Entrant]:
        if number < BUILDS:
            return list(self._able.values())
        return super()._next_meeting(number)

    def _tell(self, number: int, contenders: Sequence[Case]) -> None:
        self.scheduler.observer.round(number, contenders, self._standing() or contenders[0].way, BUILDS)

    def _hold(self, meeting: Sequence[Entrant], numbers: Sequence[int]) -> None:
        self.scheduler.builds_anew = numbers[0] <= BUILDS and self.anew
        super()._hold(meeting, numbers)
