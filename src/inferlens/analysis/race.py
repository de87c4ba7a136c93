"""The fastest of several cases, by one rule for tables, charts, JSON, comparisons and the running race.

Cases that do the same work on one machine are a :class:`Race`. Its answer is a winner with the cases that may be as
fast, or the likeliest winner with its probability while others may still be faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import Struct

from inferlens.analysis.measures import measure_value
from inferlens.analysis.samples import CaseRuns, steady_samples
from inferlens.record.record import Metric, Record
from inferlens.spec.objective import Objective
from inferlens.stats.comparison import CPU_NOISE, GPU_NOISE, Comparison, allowed_error, conclude, log_median
from inferlens.stats.race_rule import Entry, RaceData, RaceState

# The part of the error of one look at a race for a verdict on two cases, which has two sides and up to 100 looks.
VERDICT_SHARE = 0.25
UNSTEADY = 2.0  # ratio between calls of one process from which on its median is uncertain
Kind = Literal["fastest", "likeliest", "none"]


@dataclass(frozen=True)
class FinalsAim:
    """The objective of finals, and the digests of cases that violate a constraint and cannot win."""

    objective: Objective
    excluded: frozenset[str] = frozenset()


class RaceAnswer(Struct, frozen=True, kw_only=True):
    """The fastest case, by the ids of the cases' first records."""

    # ``fastest``: no other case is faster than ``best`` by more than the threshold. ``likeliest``: those in
    # ``open`` may be. ``none``: nothing ran with right outputs.
    kind: Kind
    best: str = ""
    # The other cases that may be as fast, within the threshold; empty unless the race is decided.
    equal: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    # The probability that no other case is faster by more than the threshold; ``None`` without others.
    chance: float | None = None
    rounds: int = 0
    threshold: float = 0.02

    @property
    def fastest(self) -> tuple[str, ...]:
        return (self.best, *self.equal) if self.best else ()


@dataclass(frozen=True)
class Race:
    """Cases that do the same work on one machine, ready to be compared; by the ids of their first records."""

    entries: Mapping[str, Entry]  # the cases that have samples; ``ranked``: the names of those that may win
    ranked: frozenset[str]
    level: float = 0.95  # required confidence
    threshold: float = 0.02
    rounds: int = 0  # the largest number of rounds that two cases share

    @cached_property
    def data(self) -> RaceData:
        return RaceData(self.entries)

    @cached_property
    def state(self) -> RaceState | None:
        names = [name for name in self.entries if name in self.ranked]
        return self.data.state(names, threshold=self.threshold, level=self.level)

    @cached_property
    def answer(self) -> RaceAnswer:
        state = self.state
        if state is None:
            return RaceAnswer(kind="none", threshold=self.threshold)
        sure = state.is_fastest(self.level, self.rounds)
        return RaceAnswer(
            kind="fastest" if sure else "likeliest", best=state.leader, equal=state.as_fast if sure else (),
            open=() if sure else state.open, chance=state.chance if state.rivals else None,
            rounds=self.rounds, threshold=self.threshold,
        )  # fmt: skip

    def comparison(self, base: str, name: str) -> Comparison:
        """Return the verdict on a case against another one, after as many looks as there were rounds."""
        difference = self.data.difference(base, name)
        level = 1 - VERDICT_SHARE * allowed_error(difference, self.level) if difference else self.level
        return conclude(difference, threshold=self.threshold, level=level)


def race(cases: Mapping[str, CaseRuns], *, metric: Metric | None = None, aim: FinalsAim | None = None) -> Race:
    """Return the race among cases, by the threshold and the level that they were measured with.

    It compares latency, or throughput without any latency, unless ``metric`` or ``aim`` say otherwise.
    """
    metric = metric or ("latency" if any(runs.processes for runs in cases.values()) else "throughput")
    rounds: dict[str, dict[Hashable, float]] = {name: {} for name in cases}
    separate: dict[str, list[float]] = {name: [] for name in cases}
    unsteady = dict.fromkeys(cases, 0.0)
    records = [(name, record) for name, runs in cases.items() for record in runs.ran]
    for name, record in sorted(records, key=lambda pair: pair[1].created):
        log = log_cost(aim.objective, record) if aim else log_time(record, metric)
        if log is None:
            continue
        if record.repeats > 1 or record.repeat > 0:
            rounds[name][record.run, record.repeat] = log
        else:  # each case was measured once
            separate[name].append(log)
            unsteady[name] = max(unsteady[name], 0.0 if aim else unsteadiness(record, metric))
    entries: dict[str, Entry] = {}
    ranked: set[str] = set()
    for name, runs in cases.items():
        case = runs.first.case
        if rounds[name] or separate[name]:
            usual = CPU_NOISE if case.device == "cpu" else GPU_NOISE
            entries[name] = Entry(rounds=rounds[name], separate=separate[name], usual=usual, unsteady=unsteady[name])
            if runs.ranked and not (aim and case.digest in aim.excluded):
                ranked.add(name)
    shared = [rounds[a].keys() & rounds[b].keys() for a, b in itertools.combinations(entries, 2)]
    level = max((record.budget.level for _, record in records), default=0.95)
    threshold = max((record.budget.threshold for _, record in records), default=0.02)
    return Race(entries, frozenset(ranked), level, threshold, rounds=max(map(len, shared), default=0))


def log_time(record: Record, metric: Metric) -> float | None:
    """Return the logarithm of a record's median, in seconds; ``None`` if it has none."""
    samples = steady_samples(record, metric).for_median
    if metric == "throughput":
        samples = [1 / rate for rate in samples if rate > 0]
    return log_median(samples)


def unsteadiness(record: Record, metric: Metric) -> float:
    """Return the logarithm of the factor between the median and the 5 % or 95 % quantile, if it is above 2."""
    samples = np.asarray(steady_samples(record, metric).samples, dtype=np.float64)
    low, middle, high = np.quantile(samples, (0.05, 0.5, 0.95)) if samples.size else (1.0, 1.0, 1.0)
    factor = math.log(max(high / middle, middle / low)) if low > 0 else 0.0
    return factor if factor > math.log(UNSTEADY) else 0.0


def log_cost(objective: Objective, record: Record) -> float | None:
    """Return the logarithm of the cost of one record by an objective; ``None`` if it is unknown."""
    if objective.name == "latency":
        return log_time(record, "latency")
    value = measure_value(record, objective.name)
    return math.log(objective.measure.cost(value)) if value else None
