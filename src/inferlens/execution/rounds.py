"""The rounds of a race: cases meet in fresh processes until it is known which one is fastest.

A round is a fresh process of each case that takes part, all alive at once and in turns where memory allows it, else
one after the other. Where there are CPUs enough, some rounds are held at once: that takes the time of one to load and
build. A :class:`RaceRule` says who takes part in the next round, and when a race is over. ``bench``, ``ab``, the finals
of ``tune`` and an option sweep differ in their rules alone.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from inferlens.analysis.race import FinalsAim, Race, race
from inferlens.analysis.runs import CaseRuns
from inferlens.execution.expand import Planned
from inferlens.execution.scheduler import SPARE, Scheduler
from inferlens.limits import memory_left
from inferlens.measure.monitor.cpu import usable_cpus
from inferlens.measure.monitor.gpu import gpu_before
from inferlens.record.record import IN_TURNS, Metric, Record
from inferlens.spec.case import Budget, Case
from inferlens.spec.plan import references
from inferlens.stats.race_rule import CLOSE, LEAST_ROUNDS, MOST_ROUNDS, USUAL_ROUNDS
from inferlens.units import ratio, ratio_range

REFERENCE_ROUNDS = 2  # that the reference is in, however slow it is, so that speedups are known
SCREENING_WARMUP, SCREENING_SERIES = 0.5, 1.0  # seconds of a case by itself, before the rounds
ROUND_WARMUP, ROUND_SERIES = 0.3, 2.0  # seconds of a process in a round by itself
AT_ONCE = 4  # rounds at most that are held at once, if each process has a CPU
AT_ONCE_SECONDS = 8.0  # seconds of all their processes together: less than it takes them to load and build


@dataclass
class Entrant:
    """A case of a race with its records so far: of one that was measured before the race, that record is the first."""

    planned: Planned
    records: list[Record] = field(default_factory=list)

    @property
    def id(self) -> str:
        """What the race calls it."""
        return self.records[0].id if self.records else self.planned.case.digest

    @property
    def runs(self) -> CaseRuns:
        """Its processes."""
        return CaseRuns(tuple(self.records))


class RoundLog(Protocol):
    """Keeps rounds as soon as each is over, and knows those of an earlier run that was stopped."""

    def replay(self) -> Sequence[Record] | None:
        """Return the records of the next round that was kept before; ``None`` if there is none left."""

    @property
    def replays(self) -> bool:
        """Whether such rounds are left."""

    def keep(self, records: Sequence[Record], seconds: float) -> None:
        """Keep a round that took so many seconds."""


class RaceRule:
    """Decides who takes part in the next round, and so when a race is over.

    Attributes:
        least, most: rounds that are held at least, whatever the time, and at most.
        aim: what the race is about, if not latency or rate.
        metric: what is compared; ``None``: see ``analysis.race``.
        strict: whether a process that fails ends the race.
    """

    least = LEAST_ROUNDS
    most = USUAL_ROUNDS
    aim: FinalsAim | None = None
    metric: Metric | None = None
    strict = False

    def meeting(self, rounds: Rounds, number: int) -> Sequence[str]:
        """Return the ids of those that take part in the round after ``number`` rounds; none ends the race."""
        raise NotImplementedError

    def builds_anew(self, number: int) -> bool:  # noqa: ARG002
        """Return whether processes of a round build from scratch."""
        return False

    def summary(self, race: Race, entrants: Mapping[str, Entrant]) -> str:
        """Return the leader against the next case, in a few words."""
        state = race.state
        if state is None or not state.rivals:
            return ""
        name, rival = next(iter(state.rivals.items()))
        cases = [entrants[each].planned.case for each in (state.leader, name)]
        first, second = (case.backend_label for case in cases)
        if first == second:
            first, second = (case.way for case in cases)
        interval = rival.interval(race.level)
        sure = f" ({ratio_range(interval.low, interval.high)})" if race.rounds >= self.least else ""
        return f"{first} {ratio(rival.ratio)} {second}{sure}"


class FastestRule(RaceRule):
    """Finds the fastest case: those that may be it meet until none of them can be faster than the leader.

    The reference takes part in the first rounds, so that speedups are known. With ``thorough`` there are up to as many
    rounds as were asked for, and not fewer.
    """

    def __init__(self, rounds: int = 0) -> None:
        self.rounds = rounds
        self.most = MOST_ROUNDS if rounds else USUAL_ROUNDS

    def meeting(self, rounds: Rounds, number: int) -> Sequence[str]:
        """See :class:`RaceRule`."""
        race = rounds.race
        state = race.state
        if state is None or not state.rivals:
            return []
        best, following = state.leader, next(iter(state.rivals))
        if number == 0:
            once = {name: entry.level for name, entry in race.entries.items()}
            limit = once[best] + math.log(race.entries[best].usual.reach)
            return [best, following, *(name for name in once if once[name] <= limit), *rounds.references()]
        if number < LEAST_ROUNDS:
            near = [name for name, rival in state.rivals.items() if rival.rounds and rival.ratio <= CLOSE]
            return [best, *(near or [following]), *(rounds.references() if number < REFERENCE_ROUNDS else [])]
        if state.open or number < self.rounds:
            return [best, *(state.open or [following])]
        return []


class BaseRule(RaceRule):
    """Compares each case with a base, until each has a verdict."""

    def __init__(self, base: Entrant, least: int = LEAST_ROUNDS, most: int = USUAL_ROUNDS) -> None:
        self.base, self.least, self.most = base, least, most

    def meeting(self, rounds: Rounds, number: int) -> Sequence[str]:
        """See :class:`RaceRule`."""
        race, base = rounds.race, self.base.id
        others = [name for name in rounds.able if name != base]
        if base not in rounds.able:
            return []
        if number >= self.least:
            others = [name for name in others if race.comparison(base, name).verdict == "UNDECIDED"]
        return [base, *others] if others else []


def may_meet(cases: Iterable[Planned]) -> bool:
    """Return whether any of the cases that can run do the same work: without two there are no rounds."""
    return max(Counter(planned.case.work for planned in cases if not planned.refusal).values(), default=0) > 1


def hold_rounds(scheduler: Scheduler, screened: Iterable[tuple[Planned, Record]], known: Iterable[Record] = ()) -> None:
    """Hold the rounds of cases that were measured once; those that do the same work race each other.

    Records that are ``known`` of rounds that were held before are not made again.
    """
    before: dict[int, dict[str, Record]] = {}
    for record in known:
        before.setdefault(record.repeat, {})[record.case.digest] = record
    races: dict[Hashable, list[Entrant]] = {}
    for planned, record in screened:
        if record.ranked:
            races.setdefault(planned.case.work, []).append(Entrant(planned, [record]))
    end = time.monotonic() + scheduler.plan.within
    left = [entrants for entrants in races.values() if len(entrants) > 1]
    while left:
        entrants, *left = left
        now = time.monotonic()
        share = now + (end - now) / (len(left) + 1)
        Rounds(scheduler, entrants, share, FastestRule(scheduler.plan.rounds), known=before).run()


@dataclass
class Rounds:
    """The rounds of one race.

    Attributes:
        end: when no further round is begun, by the clock of ``time.monotonic``; there are ``rule.least`` all the same.
        log: keeps rounds one by one.
        known: records of rounds that were held before, by round and case; of a round that was cut short they are void.
        on_round: called after each round with its number and the cases that took part; by default the observer is told.
    """

    scheduler: Scheduler
    entrants: Sequence[Entrant]
    end: float
    rule: RaceRule
    log: RoundLog | None = None
    known: Mapping[int, Mapping[str, Record]] = field(default_factory=dict, kw_only=True)
    on_round: Callable[[int, Sequence[Case]], None] | None = field(default=None, kw_only=True)

    def run(self) -> Race:
        """Hold rounds until the race is decided or the time is over."""
        number, seconds = 0, 0.0  # rounds so far, and seconds that a process of the last ones took
        while number < self.rule.most:
            meeting = [self.able[name] for name in dict.fromkeys(self.rule.meeting(self, number))]
            if not meeting:
                break
            begin = time.monotonic()
            count = min(self._at_once(meeting, number + 1), self.rule.most - number)
            processes = count * len(meeting)
            if number >= self.rule.least and begin + seconds * processes > self.end:
                break
            self._hold(meeting, range(number + 1, number + 1 + count))
            number += count
            seconds = (time.monotonic() - begin) / processes
            cases = [entrant.planned.case for entrant in meeting]
            if self.on_round:
                self.on_round(number, cases)
            else:
                summary = self.rule.summary(self.race, self.able) or cases[0].way
                self.scheduler.observer.round(number, cases, summary, self.rule.least if self.rule.aim else 0)
            if self.rule.strict and len(self.race.entries) < len(self.entrants):
                break
        return self.race

    @property
    def race(self) -> Race:
        """How it stands."""
        runs = {name: entrant.runs for name, entrant in self.able.items() if entrant.records}
        return race(runs, metric=self.rule.metric, aim=self.rule.aim)

    @property
    def able(self) -> dict[str, Entrant]:
        """Those of which no process has failed."""
        return {entrant.id: entrant for entrant in self.entrants if entrant.runs.ranked}

    def references(self) -> list[str]:
        """Return the ids of what others are compared with, on each device."""
        chosen = references_of([entrant.planned for entrant in self.able.values()], self.scheduler.plan.reference)
        return [name for name, entrant in self.able.items() if entrant.planned.case in chosen]

    def _at_once(self, meeting: Sequence[Entrant], number: int) -> int:
        """Return how many rounds are held at once, from ``number`` on; one if processes take no turns."""
        if (self.log and self.log.replays) or len(meeting) == 1 or number in self.known or self.scheduler.one_at_a_time:
            return 1
        if not all(entrant.records for entrant in meeting):
            return 1
        taking_turns = number == 1 or all(IN_TURNS in entrant.records[-1].facts for entrant in meeting)
        return rounds_at_once([entrant.records[0] for entrant in meeting]) if taking_turns else 1

    def _hold(self, meeting: Sequence[Entrant], numbers: Sequence[int]) -> None:
        """Measure a process of each case once a round, or take the records of rounds that were held before."""
        if self.log and (records := self.log.replay()) is not None:
            self._take({record.case.digest: record for record in records})
            return
        before = self.known.get(numbers[0], {})
        if before and all(entrant.planned.case.digest in before for entrant in meeting):
            self._take(before)
            return
        if before:
            digests = {entrant.planned.case.digest for entrant in self.entrants}
            self.scheduler.observer.discarded([record for digest, record in before.items() if digest in digests])
        tick = time.monotonic()
        self.scheduler.builds_anew = self.rule.builds_anew(numbers[0])
        records = self._measured(meeting, numbers)
        seconds, size = (time.monotonic() - tick) / len(numbers), len(meeting)
        if self.log:
            for begin in range(0, len(records), size):
                self.log.keep(records[begin : begin + size], seconds)

    def _take(self, records: Mapping[str, Record]) -> None:
        """Add records of a round that was held before."""
        for entrant in self.entrants:
            if record := records.get(entrant.planned.case.digest):
                entrant.records.append(record)

    def _measured(self, meeting: Sequence[Entrant], numbers: Sequence[int]) -> list[Record]:
        """Measure a process of each case; who goes first changes from round to round."""
        place = (numbers[0] - 1) % len(meeting)
        order = [*meeting[place:], *meeting[:place]]
        order.sort(key=lambda entrant: entrant.planned.refusal is None)  # nothing is measured beside what cannot run
        records = []
        found = records_of_rounds(self.scheduler, [each.planned for each in order], numbers, self._together(order))
        for entrant, record in zip(order * len(numbers), found, strict=False):
            entrant.records.append(record)
            records.append(record)
            if self.rule.strict and not record.ranked and len(records) < len(order):
                break  # the others are not measured for nothing
        return records

    def _together(self, order: Sequence[Entrant]) -> bool:
        """Return whether the processes of a round are alive at once.

        On a GPU the first process of a case tells what it holds, so none is beside it.
        """
        if len(order) < 2 or any(entrant.planned.refusal for entrant in order):
            return False
        if all(entrant.records for entrant in order):
            return fit_together([entrant.records[0] for entrant in order])
        return all(entrant.planned.case.device == "cpu" for entrant in order)


def references_of(cases: Sequence[Planned], named: str = "") -> list[Case]:
    """What cases are compared with, of each device: what is named, or the plain case of the reference's backend."""
    usual = {each.reference.backend_label for each in cases if each.reference}
    return list(references([each.case for each in cases], usual, named).values())


def records_of_rounds(
    scheduler: Scheduler, cases: Sequence[Planned], numbers: Sequence[int], together: bool
) -> Iterator[Record]:
    """The records of rounds: of processes that are there at once, in turns; or of one after the other, as they end.

    Where the memory was too short for all at once, they are measured again, one after the other.
    """
    budget = scheduler.round_budget or budget_of_rounds(scheduler.plan.budget, len(cases), len(numbers))
    processes = [(planned, number) for number in numbers for planned in cases]
    if together and not scheduler.one_at_a_time:
        found = scheduler.measure_interleaved(processes, budget)
        if len(found) == 1 or all(record.status != "out of memory" for record in found):
            yield from found
            return
        scheduler.discard(found)
        budget = scheduler.round_budget or budget_of_rounds(scheduler.plan.budget)
    for planned, number in processes:
        yield scheduler.measure(planned, number, budget)[0]


def screening_budget(budget: Budget) -> Budget:
    """Return what is measured of a case before the rounds: what was asked for, or else a short series."""
    if budget.explicit or budget.max_time is not None:
        return budget
    return replace(budget, warmup_seconds=SCREENING_WARMUP, max_time=SCREENING_SERIES)


def budget_of_rounds(budget: Budget, cases: int = 1, at_once: int = 1) -> Budget:
    """What each process of rounds that are held at once measures: what was asked for, or else a short series."""
    mode = "throughput" if budget.mode == "throughput" else "latency"
    if budget.explicit:
        return replace(budget, mode=mode)
    series = ROUND_SERIES if budget.max_time is None else min(budget.max_time, max(ROUND_SERIES, budget.max_time / 4))
    if at_once > 1:
        series = min(series, AT_ONCE_SECONDS / (cases * at_once))
    return replace(budget, mode=mode, warmup_seconds=ROUND_WARMUP / at_once, max_time=series)


def rounds_at_once(firsts: Sequence[Record]) -> int:
    """How many rounds of cases are held at once, by a record of each: one, or more where each process has a CPU."""
    count = min(AT_ONCE, len(usable_cpus()) // len(firsts))
    return count if count > 1 and fit_together([*firsts] * count) else 1


def fit_together(records: Sequence[Record]) -> bool:
    """Whether processes such as these have room at the same time, by the memory that each took.

    What took turns on a GPU where its memory was not known counts as much as the largest that is.
    """
    if SPARE * sum(record.memory.host_peak or 0 for record in records) > memory_left():
        return False
    on_gpu = [record for record in records if record.case.device != "cpu"]
    gpus = records[0].environment.gpus
    if not on_gpu or not gpus or gpus[0].memory is None:
        return True
    known = [record.memory.device_peak for record in on_gpu if record.memory.device_peak is not None]
    if not known and not any(IN_TURNS in record.facts for record in on_gpu):
        return False
    needed = sum(known) + max(known, default=0) * (len(on_gpu) - len(known))
    return SPARE * needed <= gpus[0].memory - (gpu_before().memory_used or 0)
