"""The rule that declares a case of a race FASTEST. ``analysis/race.py`` applies it to records.

FASTEST means that no other case is faster by more than a threshold (2 %), and that this is 95 % sure:

1. Each process of a case gives one number, the logarithm of its median latency. The *leader* is the case that no other
   one beats (:meth:`RaceData.state`). All other cases are its *rivals*.
2. A rival is *open* while it may be faster than the leader by more than the threshold. It is out as soon as its
   interval excludes that (:func:`_is_out`), or if it is far slower (:func:`_is_far`). The interval needs two common
   rounds, or none if the two were only measured without each other. Its error is shared out over the rounds
   (:func:`~inferlens.stats.comparison.allowed_error`), because the race looks at it after every round.
3. A race is *decided*, and ends, when no rival is open. The leader is FASTEST.
4. A race that ends undecided, because its rounds or its time are used up, still has a FASTEST case if the probability
   that no rival is faster by more than the threshold is 97.5 % or more (:meth:`RaceState.is_fastest`). With less, the
   leader is LIKELY FASTEST.

This is the indifference-zone formulation of ranking and selection: R. E. Bechhofer, Annals of Mathematical Statistics
25 (1954); S.-H. Kim and B. L. Nelson, "A fully sequential procedure for indifference-zone selection", ACM TOMACS 11
(2001). Two cases that are equally fast end a race soon, because either may be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from inferlens.stats.comparison import (
    CPU_NOISE,
    LogRatio,
    Noise,
    allowed_error,
    chained_difference,
    paired_difference,
    unpaired_difference,
)
from inferlens.stats.intervals import student_quantile

LEAST_ROUNDS, USUAL_ROUNDS, MOST_ROUNDS = 2, 10, 20  # of a race; MOST_ROUNDS with --thorough
LEAST_VERDICT_ROUNDS, MOST_VERDICT_ROUNDS = 3, 100  # of ``inferlens ab``, whose verdict has two sides
CLOSE = 1.25  # times the leader: cases within it share their estimate of noise
FAR_ERRORS = 4.0  # standard errors: a rival that is not close and this far away is out after any number of rounds


class Entry(Struct, frozen=True, kw_only=True):
    """One case of a race, with the logarithm of each process's median."""

    rounds: Mapping[Hashable, float] = {}  # processes that were measured in rounds with other cases
    separate: Sequence[float] = ()  # processes that were measured without others, in order of time
    usual: Noise = CPU_NOISE  # the noise to assume before it is measured
    unsteady: float = 0.0  # the logarithm of the factor by which calls of a separate process differ, if it is large

    @property
    def level(self) -> float:
        """The mean logarithm of the rounds, or else of the separate processes."""
        logs = list(self.rounds.values()) or list(self.separate)
        return math.fsum(logs) / len(logs)


class RaceState(Struct, frozen=True, kw_only=True):
    """The state of a race."""

    leader: str
    rivals: Mapping[str, LogRatio]  # all others against the leader, the fastest first
    open: tuple[str, ...]  # rivals that may be faster than the leader by more than the threshold
    as_fast: tuple[str, ...]  # rivals that are not shown to be slower by more than the threshold
    chance: float  # the probability that no rival is faster by more than the threshold

    @property
    def decided(self) -> bool:
        """Return whether a running race may end: no rival is open."""
        return not self.open

    def is_fastest(self, level: float, rounds: int) -> bool:
        """Return whether the leader of a race that ended after ``rounds`` is FASTEST; otherwise it is LIKELY FASTEST.

        It is if the race is decided. In an undecided race it is if its chance is at least the two-sided level, such as
        97.5 % for a ``level`` of 95 %, unless exactly one round was held. (With 0 rounds, all processes were measured
        without others.) A running race does not stop by this chance: tested after every round, it would name winners
        by luck.
        """
        return self.decided or (self.chance >= (1 + level) / 2 and rounds != 1)


class RaceData:
    """The processes of several cases, ready to be compared."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = {name: entry for name, entry in entries.items() if entry.rounds or entry.separate}

    def difference(self, base: str, candidate: str) -> LogRatio | None:
        """Return the candidate against the base; ``None`` if one of them has no process.

        Two cases that were never in one round are compared through the case that was in most rounds.
        """
        if base not in self.entries or candidate not in self.entries:
            return None
        before, after = self.entries[base], self.entries[candidate]
        usual = max(before.usual, after.usual, key=lambda noise: noise.paired)
        paired = paired_difference(before.rounds, after.rounds, usual, self._borrowed(base, candidate))
        if paired:
            return paired
        if self._common not in ("", base, candidate):
            steps = self.difference(base, self._common), self.difference(self._common, candidate)
            if steps[0] and steps[1] and (steps[0].rounds or steps[1].rounds):
                return chained_difference(steps[0], steps[1])
        first, second = (list(entry.separate) or list(entry.rounds.values()) for entry in (before, after))
        return unpaired_difference(first, second, usual, max(before.unsteady, after.unsteady))

    @cached_property
    def _common(self) -> str:
        """The fastest of the cases that were in most rounds; empty without rounds."""
        entries = {name: entry for name, entry in self.entries.items() if entry.rounds}
        return min(entries, key=lambda name: (-len(entries[name].rounds), entries[name].level), default="")

    @cached_property
    def _squares(self) -> dict[frozenset[str], tuple[float, int]]:
        """Sum of squares and degrees of freedom of the differences of close cases from the fastest one, by pair."""
        rounds = {name: entry.rounds for name, entry in self.entries.items() if entry.rounds}
        if len(rounds) < 3:
            return {}
        squares, fastest, fastest_logs = {}, self._common, rounds[self._common]
        for name, logs in rounds.items():
            differences = [log - fastest_logs[key] for key, log in logs.items() if key in fastest_logs]
            count = len(differences)
            if name != fastest and count > 1 and abs(float(np.mean(differences))) < math.log(CLOSE):
                squares[frozenset((fastest, name))] = float(np.var(differences)) * count, count - 1
        return squares

    def _borrowed(self, base: str, candidate: str) -> tuple[float, int]:
        """Return the sum of squares and degrees of freedom of all other close pairs."""
        others = [squares for pair, squares in self._squares.items() if pair != {base, candidate}]
        return sum(squares for squares, _ in others), sum(freedom for _, freedom in others)

    def state(self, names: Iterable[str], *, threshold: float, level: float = 0.95) -> RaceState | None:
        """Return the state of the race among ``names``; ``None`` if none of them has a process."""
        entrants = [name for name in names if name in self.entries]
        if not entrants:
            return None
        leader, rivals = self._leader(entrants)
        limit = math.log1p(threshold)
        near = {name: rival for name, rival in rivals.items() if not _is_far(rival, limit)}
        return RaceState(
            leader=leader,
            rivals=rivals,
            open=tuple(name for name, rival in near.items() if not _is_out(rival, limit, level)),
            as_fast=tuple(name for name, rival in near.items() if rival.chance_above(limit) < level),
            chance=math.prod((rival.chance_above(-limit) for rival in near.values()), start=1.0),
        )

    def _leader(self, names: Sequence[str]) -> tuple[str, dict[str, LogRatio]]:
        """Return the case that no other one beats, and the others against it, beginning with the smallest mean.

        Once there are rounds, a separate process makes no leader: it may have been much slower or faster by chance.
        """
        in_rounds = [name for name in names if self.entries[name].rounds]
        leader = min(in_rounds or names, key=lambda name: self.entries[name].level)
        rivals = self._rivals(leader, names)
        for _ in names:  # differences within rounds need not agree with means over different rounds
            beats = (name for name, rival in rivals.items() if rival.log < 0.0 and (rival.rounds or not in_rounds))
            fastest = next(beats, leader)
            if fastest == leader:
                break
            leader, rivals = fastest, self._rivals(fastest, names)
        return leader, rivals

    def _rivals(self, leader: str, names: Sequence[str]) -> dict[str, LogRatio]:
        differences = {name: self.difference(leader, name) for name in names if name != leader}
        rivals = [(name, difference) for name, difference in differences.items() if difference]
        return dict(sorted(rivals, key=lambda rival: rival[1].log))


def _is_far(rival: LogRatio, limit: float) -> bool:
    """Return whether a rival is so much slower that the number of rounds does not matter."""
    return rival.log > math.log(CLOSE) and rival.log + limit >= FAR_ERRORS * rival.error


def _is_out(rival: LogRatio, limit: float, level: float) -> bool:
    """Return whether a rival that is not far surely is not faster than the leader by more than ``limit``."""
    margin = student_quantile(1 - allowed_error(rival, level), rival.freedom) * rival.error
    enough = rival.rounds >= LEAST_ROUNDS or not rival.rounds
    return enough and rival.log + limit >= margin
