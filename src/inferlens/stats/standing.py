"""Which of several cases is fastest, after the processes of them that there are.

A case is an :class:`Entry`: the centres of its processes, and which of them took turns with other cases', in rounds.
Those that were in rounds are compared by all of these together (:class:`Layout`), others by their processes. The leader
is the one that no other beats. Every other one is SLOWER than it, the SAME within the threshold, or still open: the
verdict is that of ``stats.compare.judge``, so a race says what a comparison of the two would say.

A race is looked at after each of its rounds, and ends when none is open. A look has its level of
``levels_of_looks``, so that looking often does not find differences that are not there. That the leader is fastest is
claimed only where each of the others is shown to be slower: several rivals need no stricter level then, after R. L.
Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24 (1982).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from inferlens.stats.between_process import Centre, process_autocorrelation, spread
from inferlens.stats.compare import (
    Comparison,
    LogRatio,
    Spread,
    between,
    conclude,
    levels_of_looks,
    seen_spread,
)
from inferlens.stats.intervals import variance_quantile

LEAST_ROUNDS, USUAL_ROUNDS, MOST_ROUNDS = 3, 10, 20  # of a race: at least, at most, and at most with --thorough
MOST_ASKED_FOR = 100  # of ``inferlens ab``
# Degrees of freedom that others' rounds count for at most, as cases differ in how far their processes do: beside one's
# own rounds; and for processes that were measured alone.
BESIDE_ROUNDS, BESIDE_ALONE = 6, 2
ALIKE = 0.999  # the level of a test: rounds of others that vary more than two do themselves tell nothing of these two
NEAR = 1.5  # times the fastest: of near cases only near ones tell how far they vary; slower ones may vary far more


class Entry(Struct, frozen=True, kw_only=True):
    """One case of a race.

    Attributes:
        processes: the centres of all its processes, in order of time.
        rounds: those of the processes that took turns with other cases', by the round; a subset.
        alone: those that were measured alone, by the run in which every case was once; a subset.
    """

    processes: Sequence[Centre]
    rounds: Mapping[Hashable, Centre] = {}
    alone: Mapping[Hashable, Centre] = {}


class Standing(Struct, frozen=True, kw_only=True):
    """How a race stands.

    Attributes:
        rivals: all others against the leader, the fastest first.
        chance: the probability that no other is faster than the leader, but for those that are the same; ``None``
            where it is not known how far processes differ.
    """

    leader: str
    rivals: Mapping[str, Comparison]
    chance: float | None

    def of(self, verdict: str) -> list[str]:
        """The rivals with that verdict; ``UNDECIDED`` has all that are still open, also those that seem faster."""
        closed = ("SLOWER", "SAME")
        verdicts = {name: rival.verdict for name, rival in self.rivals.items()}
        return [name for name, found in verdicts.items() if (found if found in closed else "UNDECIDED") == verdict]


@dataclass(frozen=True)
class Fit:
    """A two-way layout of cases and rounds: each number is what its case and its round have in common with others.

    By least squares, with as many rounds of each case as it was in: H. Scheffé, "The analysis of variance" (1959).

    Attributes:
        effects: of the cases, by their names; of two that are ``connected`` the difference counts.
        inverse: of the normal equations: variances and covariances of effects, over ``variance``.
        connected: a number that cases share which met, each other or a third one.
        variance: of what is left; ``freedom`` its degrees, 0 where it is not known.
    """

    effects: Mapping[str, float]
    inverse: NDArray[np.floating[Any]]
    connected: Mapping[str, int]
    variance: float
    freedom: int

    def __contains__(self, pair: tuple[str, str]) -> bool:
        one, other = pair
        return self.freedom > 0 and self.connected.get(one, -1) == self.connected.get(other, -2)

    def share(self, one: str, other: str) -> float:
        """The variance of the difference of two effects, over that of a process."""
        names = list(self.effects)
        contrast = np.zeros(len(self.inverse))
        contrast[names.index(one)], contrast[names.index(other)] = -1.0, 1.0
        return max(float(contrast @ self.inverse @ contrast), 0.0)


def fit(cells: Mapping[str, Mapping[Hashable, Centre]]) -> Fit:
    """The layout of cases, each with its number in every round that it was in."""
    names = [name for name, rounds in cells.items() if rounds]
    keys = list(dict.fromkeys(key for name in names for key in cells[name]))
    rows = [(names.index(name), len(names) + keys.index(key)) for name in names for key in cells[name]]
    design = np.zeros((len(rows), len(names) + len(keys)))
    for line, row in enumerate(rows):
        design[line, list(row)] = 1.0
    logs = np.array([centre.log for name in names for centre in cells[name].values()])
    inverse: NDArray[np.floating[Any]] = np.linalg.pinv(design.T @ design, hermitian=True)
    found = inverse @ design.T @ logs
    freedom = len(rows) - round(float(np.trace(inverse @ design.T @ design)))
    rest = logs - design @ found
    group = list(range(len(names) + len(keys)))
    for case, round_ in rows:  # a case and a round of it are in one group
        group = [group[case] if each == group[round_] else each for each in group]
    return Fit(
        effects=dict(zip(names, found.tolist(), strict=False)),
        inverse=inverse,
        connected=dict(zip(names, group, strict=False)),
        variance=float(rest @ rest) / freedom if freedom else 0.0,
        freedom=freedom,
    )


class Layout:
    """Cases, made ready to be compared with each other by what is in common of their processes.

    In rounds ``in_turns`` moments in which the machine is slow are in all of a round, so that two that hardly differ
    there did not do so by luck.
    """

    def __init__(self, entries: Mapping[str, Entry], *, in_turns: bool = False) -> None:
        self._in_turns = in_turns
        self.entries = {name: entry for name, entry in entries.items() if entry.processes}
        self._rounds = fit({name: entry.rounds for name, entry in self.entries.items()})
        effects, group = self._rounds.effects, self._rounds.connected
        best = {each: min(effects[name] for name in effects if group[name] == each) for each in {*group.values()}}
        near = [name for name in effects if effects[name] <= best[group[name]] + math.log(NEAR)]
        self._near = fit({name: self.entries[name].rounds for name in near})
        self.spread = self._spread()

    def _spread(self) -> Spread | None:
        """How far processes differ that were measured alone, one after the other; ``None`` where that is not known.

        By those of cases that were in rounds, too: a machine that is slow for a minute is so for all of a round, but
        not for all that are measured alone. What remains of everything counts a little, too.
        """
        every = fit({name: {**entry.alone, **entry.rounds} for name, entry in self.entries.items()})
        if not every.freedom:
            return seen_spread(entry.processes for entry in self.entries.values())
        freedom = min(BESIDE_ALONE, every.freedom)
        variance = freedom * every.variance
        effects, group = self._rounds.effects, self._rounds.connected
        for run, number in {(run, group[name]) for name in effects for run in self.entries[name].alone}:
            found = [
                entry.alone[run].log - effects[name]
                for name, entry in self.entries.items()
                if run in entry.alone and group.get(name) == number
            ]
            variance += float(np.var(found)) * len(found)
            freedom += len(found) - 1
        return Spread(variance=variance / freedom, freedom=freedom)

    def difference(self, base: str, candidate: str) -> LogRatio | None:
        """The candidate against the base; ``None`` where one has nothing that can be compared."""
        if base not in self.entries or candidate not in self.entries:
            return None
        one, other = self.entries[base], self.entries[candidate]
        if (base, candidate) in self._rounds:
            return self._in_rounds(base, candidate)
        for run in one.alone:  # what was measured at about the same time, rather than before and after the rounds
            if run in other.alone and self.spread:
                found = between([one.alone[run]], [other.alone[run]], self.spread)
                return replace(found, log=self._level(candidate, run) - self._level(base, run))
        return between(one.processes, other.processes, self.spread)

    def _level(self, name: str, run: Hashable) -> float:
        """The logarithm of a case among all of a run: by its rounds, or by what it took alone beside those in rounds.

        So ratios agree with each other.
        """
        effects = self._rounds.effects
        if name in effects:
            return effects[name]
        both = [
            each.alone[run].log - effects[of]
            for of, each in self.entries.items()
            if of in effects and run in each.alone
        ]
        return self.entries[name].alone[run].log - (math.fsum(both) / len(both) if both else 0.0)

    def _in_rounds(self, base: str, candidate: str) -> LogRatio:
        """By least squares over all rounds.

        The variance is that of the two's own rounds, and that of all rounds counts as a few more: G. K. Smyth, "Linear
        models and empirical Bayes methods", Statistical Applications in Genetics and Molecular Biology 3 (2004). Of two
        that are near the fastest only near cases are pooled, if there is a third; and nothing is, where the rest varies
        so much more than the two do in four rounds in turns or more that this is no chance. What varies within a
        process does so between rounds, too.
        """
        others = len(self._near.effects) > 2
        found = self._near if others and (base, candidate) in self._near else self._rounds
        one, other = self.entries[base].rounds, self.entries[candidate].rounds
        pairs = [other[key].log - one[key].log for key in one if key in other]
        alike = process_autocorrelation([pairs])
        own, worth = spread(pairs, alike) if len(pairs) > 1 else (0.0, 1.0)
        rest = min(BESIDE_ROUNDS, found.freedom - max(len(pairs) - 1, 0))
        if self._in_turns and worth > LEAST_ROUNDS and rest:
            rest *= found.variance <= variance_quantile(ALIKE, rest, worth - 1) * own / 2
        variance = (rest * found.variance + (worth - 1) * own / 2) / (rest + worth - 1)
        return LogRatio(
            log=self._rounds.effects[candidate] - self._rounds.effects[base],
            error=math.sqrt(variance * found.share(base, candidate) * max(len(pairs), 1) / worth),
            freedom=rest + worth - 1,
            autocorrelation=alike,
        )


def look_level(held: int, level: float = 0.95) -> float:
    """The level of the look at a race after so many rounds."""
    last = MOST_ROUNDS if held <= MOST_ROUNDS else MOST_ASKED_FOR
    early, late = levels_of_looks(LEAST_ROUNDS, USUAL_ROUNDS, last, level)
    return early if held <= USUAL_ROUNDS else late


def alone_level(level: float = 0.95) -> float:
    """The level of what is said of a case that was in no round: half of the errors are left to what was in some."""
    return (1 + level) / 2


def standing(
    layout: Layout, names: Iterable[str], *, threshold: float, level: float, alone: float | None = None
) -> Standing | None:
    """How a race among ``names`` stands, each verdict at confidence ``level``; ``None`` where none has a process.

    What met the leader in no round was measured once, however often one looks: its verdict has confidence ``alone``.
    """
    able = {name: layout.entries[name] for name in names if name in layout.entries}
    if not able:
        return None
    means = {
        name: math.fsum(each.log for each in entry.processes) / len(entry.processes) for name, entry in able.items()
    }

    least, *more = sorted(means.values())[:2]
    once = all(len(entry.processes) == 1 for entry in able.values())

    def behind(name: str) -> float:
        """How far the case is behind the one that beats it most; negative for the leader."""
        if once:  # of one process each the difference is that of two numbers, and hundreds of cases are many pairs
            others = more if means[name] == least else [least]
            return means[name] - others[0] if others else 0.0
        found = (layout.difference(other, name) for other in able if other != name)
        return max((each.log for each in found if each), default=0.0)

    leader = min(able, key=lambda name: (behind(name), means[name]))
    rivals, chance, known = {}, 1.0, True
    held = len(able[leader].rounds)
    for name in able:
        if name == leader:
            continue
        found = layout.difference(leader, name)
        assert found
        met = held and able[name].rounds
        comparison = conclude(found, threshold=threshold, level=level if met or alone is None else alone)
        if met and held < LEAST_ROUNDS:
            reason = f"There is no verdict before {LEAST_ROUNDS} rounds."
            comparison = replace(comparison, verdict="UNDECIDED", reason=reason)
        rivals[name] = comparison
        known = known and found.between
        chance *= 1.0 if comparison.verdict == "SAME" else found.chance_slower
    ordered = dict(sorted(rivals.items(), key=lambda item: (item[1].ratio or math.inf, means[item[0]])))
    return Standing(leader=leader, rivals=ordered, chance=chance if known else None)
