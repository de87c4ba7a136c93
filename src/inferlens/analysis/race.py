"""Which of several cases is fastest: the one rule for tables, charts, JSON, comparisons, and the race while it runs.

Cases that do the same work on one machine are a :class:`Race`. Its answer is a winner; or several that are equally
fast; or, where that is not known, the likeliest with its probability; or the fastest of cases that were measured once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from msgspec import Struct

from inferlens.analysis.interference.samples import steady_samples
from inferlens.analysis.objective import value
from inferlens.analysis.runs import CaseRuns
from inferlens.record.record import IN_TURNS, Metric, Record
from inferlens.spec.objective import Objective
from inferlens.stats.between_process import Centre, centres
from inferlens.stats.compare import LogRatio
from inferlens.stats.standing import Entry, Layout, Standing, alone_level, look_level, standing

PROBABLE = 0.75  # from which probability on something is called probable
Kind = Literal["fastest", "equal", "likeliest", "once", "none"]


@dataclass(frozen=True)
class FinalsAim:
    """What finals are about: an objective, and who breaks a limit (by the digests of their cases) and cannot win."""

    objective: Objective
    barred: frozenset[str] = frozenset()


class RaceAnswer(Struct, frozen=True, kw_only=True):
    """Which case is fastest, by the ids of the cases' first records.

    Attributes:
        kind: ``fastest``: ``best`` is, and each other one is shown to be slower. ``equal``: ``best`` and those of
            ``equal`` are equally fast, and all others slower. ``likeliest``: those of ``open`` could not be told apart
            from ``best``. ``once``: cases were measured once, and ``best`` has the shortest time. ``none``: nothing
            ran with right outputs.
        chance: the probability that none is faster than ``best``, but for those of ``equal``; ``None`` where cases were
            measured once.
        threshold: differences of that share and less do not matter.
    """

    kind: Kind
    best: str = ""
    equal: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    chance: float | None = None
    rounds: int = 0
    threshold: float = 0.02

    @property
    def fastest(self) -> tuple[str, ...]:
        """The winner, or all that are equally fast."""
        return (self.best, *self.equal) if self.best else ()


@dataclass(frozen=True)
class Race:
    """Cases that do the same work on one machine, made ready to be compared; by the ids of their first records.

    Attributes:
        entries: the cases that have samples; ``ranked``: those of them that may win.
        level: confidence of each comparison; ``alone``: of one with a case that was in no round.
        rounds: the largest number of rounds that two cases share; ``in_turns``: whether processes took turns in all.
    """

    entries: Mapping[str, Entry]
    ranked: frozenset[str]
    level: float
    threshold: float
    rounds: int
    alone: float
    in_turns: bool = False

    @cached_property
    def layout(self) -> Layout:
        """All cases, made ready to be compared."""
        return Layout(self.entries, in_turns=self.in_turns)

    @cached_property
    def standing(self) -> Standing | None:
        """How those that may win stand; ``None`` without any."""
        names = [name for name in self.entries if name in self.ranked]
        return standing(self.layout, names, threshold=self.threshold, level=self.level, alone=self.alone)

    @cached_property
    def answer(self) -> RaceAnswer:
        """Which one is fastest."""
        found = self.standing
        if found is None:
            return RaceAnswer(kind="none", threshold=self.threshold)
        equal, rest = found.of("SAME"), found.of("UNDECIDED")
        kind: Kind = "likeliest" if rest else "equal" if equal else "fastest"
        return RaceAnswer(
            kind="once" if rest and found.chance is None else kind,
            best=found.leader,
            equal=tuple(equal),
            open=tuple(rest),
            chance=found.chance if found.rivals else None,
            rounds=self.rounds,
            threshold=self.threshold,
        )

    def against(self, base: str, name: str) -> LogRatio | None:
        """A case against another one, as the answer compares them; ``None`` where one has no samples."""
        return self.layout.difference(base, name)

    def confidence(self, base: str, name: str) -> float:
        """That of a verdict on two cases, and of the interval that stands beside it."""
        met = self.entries[base].rounds.keys() & self.entries[name].rounds.keys()
        return self.level if met or not self.rounds else self.alone


def race(
    cases: Mapping[str, CaseRuns],
    *,
    metric: Metric | None = None,
    aim: FinalsAim | None = None,
) -> Race:
    """The race among cases, by the threshold and the level that they were measured with.

    Args:
        cases: by their names.
        metric: what is compared; by default latency, or throughput where nobody measured latency.
        aim: what is compared instead, and who may win.
    """
    metric = metric or ("latency" if any(runs.processes for runs in cases.values()) else "throughput")
    found = [(name, record) for name, runs in cases.items() for record in runs.ran]
    found.sort(key=lambda each: each[1].created)
    processes: dict[str, list[Centre]] = {}
    rounds: dict[str, dict[Hashable, Centre]] = {}
    alone: dict[str, dict[Hashable, Centre]] = {}
    for name, record in found:
        centre = centre_for(aim.objective, record) if aim else centre_of(record, metric)
        if not centre:
            continue
        processes.setdefault(name, []).append(centre)
        if held_in := round_of(record):
            rounds.setdefault(name, {})[held_in] = centre
        elif record.run:
            alone.setdefault(name, {})[record.run] = centre
    entries = {
        name: Entry(
            processes=each,
            rounds=rounds.get(name, {}),
            alone=alone.get(name, {}),
        )
        for name, each in processes.items()
    }
    raced = any(record.repeat and not record.repeats for _, record in found)
    shared = [set(each) & set(other) for one, each in rounds.items() for two, other in rounds.items() if one < two]
    level = max((record.budget.level for _, record in found), default=0.95)
    held = max(map(len, shared), default=0)
    return Race(
        entries=entries,
        ranked=frozenset(
            name
            for name, runs in cases.items()
            if name in entries and runs.ranked and not (aim and runs.first.case.digest in aim.barred)
        ),
        level=look_level(held, level) if raced else level,
        alone=alone_level(level),
        threshold=max((record.budget.threshold for _, record in found), default=0.02),
        rounds=held,
        in_turns=all(IN_TURNS in record.facts for _, record in found if round_of(record)),
    )


def round_of(record: Record) -> tuple[str, int] | None:
    """The round of its run that a record belongs to; ``None`` where each case was measured once."""
    of_a_round = record.repeats > 1 or record.repeat > 0
    return (record.run, record.repeat) if of_a_round else None


def centre_of(record: Record, metric: Metric) -> Centre | None:
    """The centre of a record's samples, as seconds; ``None`` where it has none."""
    samples = steady_samples(record, metric).for_median
    if metric == "throughput":
        samples = [1 / rate for rate in samples if rate > 0]
    return next(iter(centres([samples])), None)


def centre_for(objective: Objective, record: Record) -> Centre | None:
    """The logarithm of what is to be small, of one record."""
    if objective.name == "latency":
        return centre_of(record, "latency")
    known = value(record, objective.name)
    return Centre(math.log(objective.measure.cost(known)), None) if known else None
