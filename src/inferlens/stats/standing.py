"""Which of several cases is fastest, after the processes of them that there are.

A case is an :class:`Entry`: the centres of its processes, and which of them took turns with other cases', in rounds.
Two entries are compared by the rounds that both were in, or else by all their processes (``stats.compare``). The leader
is the one that no other beats. Every other one is SLOWER than it, the SAME within the threshold, or still open: the
verdict is that of ``stats.compare.judge``, so a race says what a comparison of the two would say.

A race is looked at after each of its rounds, and ends when none is open. Every look has the level of
``level_of_looks``, so that looking often does not find differences that are not there. That the leader is fastest is
claimed only where each of the others is shown to be slower: several rivals need no stricter level then, after R. L.
Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24 (1982).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from inferlens.stats.between_process import Centre
from inferlens.stats.compare import (
    Comparison,
    LogRatio,
    Spread,
    between,
    conclude,
    in_pairs,
    level_of_looks,
    seen_spread,
)

LEAST_ROUNDS, MOST_ROUNDS = 3, 20


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


class Rival(Struct, frozen=True, kw_only=True):
    """A case against the leader: its time over the leader's, and the probability that it is slower."""

    comparison: Comparison
    chance_slower: float


class Standing(Struct, frozen=True, kw_only=True):
    """How a race stands.

    Attributes:
        leader: the case that no other beats.
        rivals: all others, the fastest first.
        chance: the probability that no other is faster than the leader; ``None`` where it is not known how far
            processes differ.
    """

    leader: str
    rivals: Mapping[str, Rival]
    chance: float | None

    def of(self, verdict: str) -> list[str]:
        """The rivals with that verdict; ``UNDECIDED`` has all that are still open, also those that seem faster."""
        closed = ("SLOWER", "SAME")
        verdicts = {name: rival.comparison.verdict for name, rival in self.rivals.items()}
        return [name for name, found in verdicts.items() if (found if found in closed else "UNDECIDED") == verdict]


def difference(base: Entry, candidate: Entry, spread: Spread | None = None) -> LogRatio | None:
    """The candidate against the base; ``None`` where one has nothing that can be compared."""
    both = [round for round in base.rounds if round in candidate.rounds]
    if len(both) > 1:
        return in_pairs([base.rounds[each] for each in both], [candidate.rounds[each] for each in both])
    if not base.processes or not candidate.processes:
        return None
    for run in base.alone:  # what was measured at about the same time, rather than before and after the rounds
        if run in candidate.alone and spread:
            return between([base.alone[run]], [candidate.alone[run]], spread)
    return between(base.processes, candidate.processes, spread)


def spread_of(entries: Iterable[Entry]) -> Spread | None:
    """How far processes differ, but for what the machine did to all of a round alike; ``None`` where that is not known.

    The residual variance of cases and rounds, the processes that were measured alone being a round: H. Scheffé, "The
    analysis of variance" (1959), two-way layout. Of cases without rounds it is that of their processes.
    """
    every = list(entries)
    cells = [
        (place, key, centre.log)
        for place, each in enumerate(every)
        for key, centre in (*each.alone.items(), *each.rounds.items())
    ]
    keys = list(dict.fromkeys(key for _, key, _ in cells))
    if len(keys) < 2:
        return seen_spread(each.processes for each in every)
    design = np.zeros((len(cells), len(every) + len(keys)))
    for line, (place, key, _) in enumerate(cells):
        design[line, [place, len(every) + keys.index(key)]] = 1.0
    logs = np.array([log for _, _, log in cells])
    found, _, rank, _ = np.linalg.lstsq(design, logs, rcond=None)
    freedom = len(cells) - int(rank)
    if freedom < 1:
        return seen_spread(each.processes for each in every)
    rest = logs - design @ found
    return Spread(variance=float(rest @ rest) / freedom, freedom=freedom)


def look_level(rounds: int, level: float = 0.95) -> float:
    """The level of one look at a race of so many rounds at most; ``level`` itself where it is looked at once."""
    return level_of_looks(LEAST_ROUNDS, rounds, level) if rounds else level


def standing(
    entries: Mapping[str, Entry],
    *,
    threshold: float,
    level: float,
    alone: float | None = None,
    spread: Spread | None = None,
) -> Standing | None:
    """How a race stands, each verdict at confidence ``level``; ``None`` where no entry has a process.

    What met the leader in no round was measured once, however often one looks: its verdict has confidence ``alone``.
    """
    able = {name: entry for name, entry in entries.items() if entry.processes}
    if not able:
        return None
    means = {
        name: math.fsum(each.log for each in entry.processes) / len(entry.processes) for name, entry in able.items()
    }

    def behind(name: str) -> float:
        """How far the case is behind the one that beats it most; negative for the leader."""
        found = (difference(able[other], able[name], spread) for other in able if other != name)
        return max((each.log for each in found if each), default=0.0)

    leader = min(able, key=lambda name: (behind(name), means[name]))
    rivals, chance, known = {}, 1.0, True
    for name in sorted(able, key=means.__getitem__):
        if name == leader:
            continue
        found = difference(able[leader], able[name], spread)
        assert found
        rounds = len([round for round in able[leader].rounds if round in able[name].rounds])
        comparison = conclude(found, threshold=threshold, level=level if rounds or alone is None else alone)
        if 0 < rounds < LEAST_ROUNDS:
            comparison = Comparison(
                verdict="UNDECIDED",
                reason=f"There is no verdict before {LEAST_ROUNDS} rounds.",
                ratio=comparison.ratio,
                interval=comparison.interval,
                between=True,
            )
        rivals[name] = Rival(comparison=comparison, chance_slower=found.chance_slower)
        known = known and found.between
        chance *= found.chance_slower
    ordered = dict(sorted(rivals.items(), key=lambda item: item[1].comparison.ratio or math.inf))
    return Standing(leader=leader, rivals=ordered, chance=chance if known else None)
