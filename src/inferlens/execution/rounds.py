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
from inferlens.analysis.samples import CaseRuns
from inferlens.execution.expand import Planned
from inferlens.execution.scheduler import SPARE, TYPICAL_MEMORY, Scheduler
from inferlens.limits import memory_left
from inferlens.measure.monitor.cpu import usable_cpus
from inferlens.measure.monitor.gpu import gpu_before
from inferlens.record.record import IN_TURNS, Metric, Record
from inferlens.spec.case import Budget, Case
from inferlens.spec.plan import references
from inferlens.stats.race_rule import CLOSE, LEAST_ROUNDS, MOST_ROUNDS, USUAL_ROUNDS, RaceState
from inferlens.units import ratio, ratio_range

REFERENCE_ROUNDS = 2  # that the reference is in, however slow it is, so that speedups are known
ROOM = 2.0  # times the memory of the reference: what a process of the first round may need
SCREENING_WARMUP, SCREENING_SERIES = 0.5, 1.0  # seconds of a case by itself, before the rounds
ROUND_WARMUP, ROUND_SERIES = 0.1, 2.0  # seconds of a process in a round by itself
AT_ONCE = 4  # rounds at most that are held at once, if each process has a CPU
CPU_AT_ONCE = 2  # and on the CPU, where cases take long to load and build
AT_ONCE_SECONDS = 8.0  # seconds of all their processes together: less than it takes them to load and build


@dataclass
class Entrant:
    """A case of a race with its records so far: of one that was measured before the race, that record is the first.

    ``stands_for`` is the record of the case in whose place this one is measured, if it is.
    """

    planned: Planned
    records: list[Record] = field(default_factory=list)
    stands_for: Record | None = None

    @property
    def id(self) -> str:
        """What the race calls it."""
        return self.records[0].id if self.records else self.planned.case.digest

    @property
    def runs(self) -> CaseRuns:
        """Its processes."""
        return CaseRuns(tuple(self.records))

    @property
    def sizing(self) -> Record | None:
        """The record that tells how much memory a process of it needs; ``None`` before there is one."""
        return self.records[0] if self.records else self.stands_for


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

    The reference takes part in the first round, so that speedups are known; and in the second one, if the others of
    that tell no noise. A case without a record takes part in the next round. With ``thorough`` there are up to as many
    rounds as were asked for, and not fewer.
    """

    def __init__(self, rounds: int = 0) -> None:
        self.rounds = rounds
        self.most = MOST_ROUNDS if rounds else USUAL_ROUNDS

    def meeting(self, rounds: Rounds, number: int) -> Sequence[str]:
        """See :class:`RaceRule`."""
        state = rounds.race.state
        if state is None:
            return []
        begins = number == rounds.held
        unmeasured = [name for name, entrant in rounds.able.items() if begins and not entrant.records]
        names = [*self._rivals(rounds, state, number), *unmeasured]
        return names and [state.leader, *names]

    def _rivals(self, rounds: Rounds, state: RaceState, number: int) -> Sequence[str]:
        """Return those that meet the leader in the round after ``number`` rounds."""
        if not state.rivals:
            return []
        race = rounds.race
        best, following = state.leader, next(iter(state.rivals))
        if number == 0:
            once = {name: entry.level for name, entry in race.entries.items()}
            limit = once[best] + math.log(race.entries[best].usual.reach)
            return [following, *(name for name in once if once[name] <= limit), *rounds.references()]
        if number < LEAST_ROUNDS:
            reach = race.entries[best].usual.reach
            near = [name for name, rival in state.rivals.items() if rival.ratio <= (CLOSE if rival.rounds else reach)]
            return near or [following, *rounds.references()]
        if state.open or number < self.rounds:
            return state.open or [following]
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


def first_rounds(scheduler: Scheduler, cases: Iterable[Planned]) -> list[list[Planned]]:
    """Return the cases that begin with a round: of each race on the CPU, where all have room at the same time.

    They load side by side, so the first round takes less time than to measure each by itself. On a GPU the first
    process of a case is the only one there: it tells how much memory the case needs, and may time kernels.
    """
    if scheduler.one_at_a_time:
        return []
    races: dict[Hashable, list[Planned]] = {}
    for planned in cases:
        if not planned.refusal and planned.case.device == "cpu":
            races.setdefault(planned.case.work, []).append(planned)
    return [few for few in races.values() if len(few) > 1 and _have_room(scheduler, few)]


def _have_room(scheduler: Scheduler, cases: Sequence[Planned]) -> bool:
    """Return whether processes of cases that have not run yet have room at the same time."""
    each = max(scheduler.references.of(planned).memory or TYPICAL_MEMORY for planned in cases)
    return ROOM * each * len(cases) <= memory_left()


def hold_first_round(scheduler: Scheduler, cases: Sequence[Planned]) -> list[Record]:
    """Measure a process of each case, in turns; return their records, in the order of the cases."""
    return list(records_of_rounds(scheduler, [(planned, 1) for planned in cases], together=True, only_right=False))


def hold_rounds(
    scheduler: Scheduler,
    screened: Iterable[tuple[Planned, Record]],
    stand_ins: Iterable[tuple[Planned, Record]] = (),
    known: Iterable[Record] = (),
) -> None:
    """Hold the rounds of cases that were measured once; those that do the same work race each other.

    A stand-in begins in the next round: it has the record of the case in whose place it is measured. Records that are
    ``known`` of rounds that were held before are not made again.
    """
    before: dict[int, dict[str, Record]] = {}
    for record in known:
        before.setdefault(record.repeat, {})[record.case.digest] = record
    races: dict[Hashable, list[Entrant]] = {}
    for planned, record in screened:
        if record.ranked:
            races.setdefault(planned.case.work, []).append(Entrant(planned, [record]))
    for planned, record in stand_ins:
        races[planned.case.work].append(Entrant(planned, stands_for=record))
    end = time.monotonic() + scheduler.plan.within
    left = [entrants for entrants in races.values() if len(entrants) > 1]
    while left:
        entrants, *left = left
        now = time.monotonic()
        share = now + (end - now) / (len(left) + 1)
        held = max(record.repeat for entrant in entrants for record in entrant.records)
        Rounds(scheduler, entrants, share, FastestRule(scheduler.plan.rounds), known=before, held=held).run()


@dataclass
class Rounds:
    """The rounds of one race.

    Attributes:
        end: when no further round is begun, by the clock of ``time.monotonic``; there are ``rule.least`` all the same.
        log: keeps rounds one by one.
        known: records of rounds that were held before, by round and case; of a round that was cut short they are void.
        held: how many rounds were held before; their records are those of the entrants.
        on_round: called after each round with its number and the cases that took part; by default the observer is told.
    """

    scheduler: Scheduler
    entrants: Sequence[Entrant]
    end: float
    rule: RaceRule
    log: RoundLog | None = None
    known: Mapping[int, Mapping[str, Record]] = field(default_factory=dict, kw_only=True)
    on_round: Callable[[int, Sequence[Case]], None] | None = field(default=None, kw_only=True)
    held: int = field(default=0, kw_only=True)

    def run(self) -> Race:
        """Hold rounds until the race is decided or the time is over."""
        number, seconds = self.held, 0.0  # rounds so far, and seconds that a process of the last ones took
        while number < self.rule.most:
            meeting = self._meeting(number)
            if not meeting:
                break
            begin = time.monotonic()
            count = min(self._at_once(meeting, number + 1), self.rule.most - number)
            rounds = {number + 1: meeting}
            for following in range(number + 1, number + count):
                if those := self._meeting(following):
                    rounds[following + 1] = those
            processes = sum(map(len, rounds.values()))
            if number >= self.rule.least and begin + seconds * processes > self.end:
                break
            self._hold(rounds)
            number += len(rounds)
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

    def _meeting(self, number: int) -> list[Entrant]:
        """Return those that take part in the round after ``number`` rounds."""
        return [self.able[name] for name in dict.fromkeys(self.rule.meeting(self, number))]

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
        sizing = [entrant.sizing for entrant in meeting if entrant.sizing]
        if len(sizing) < len(meeting):
            return 1
        taking_turns = number == 1 or all(IN_TURNS in one.records[-1].facts for one in meeting if one.records)
        return rounds_at_once(sizing) if taking_turns else 1

    def _hold(self, rounds: Mapping[int, Sequence[Entrant]]) -> None:
        """Measure a process of each case of some rounds, or take the records of a round that was held before."""
        if self.log and (records := self.log.replay()) is not None:
            self._take({record.case.digest: record for record in records})
            return
        number, meeting = next(iter(rounds.items()))
        before = self.known.get(number, {})
        if before and all(entrant.planned.case.digest in before for entrant in meeting):
            self._take(before)
            return
        if before:
            digests = {entrant.planned.case.digest for entrant in self.entrants}
            self.scheduler.observer.discarded([record for digest, record in before.items() if digest in digests])
        tick = time.monotonic()
        self.scheduler.builds_anew = self.rule.builds_anew(number)
        records = self._measured(rounds)
        seconds = (time.monotonic() - tick) / len(rounds)
        if self.log:
            for number in rounds:
                if of_round := [record for record in records if record.repeat == number]:
                    self.log.keep(of_round, seconds)

    def _take(self, records: Mapping[str, Record]) -> None:
        """Add records of a round that was held before."""
        for entrant in self.entrants:
            if record := records.get(entrant.planned.case.digest):
                entrant.records.append(record)

    def _measured(self, rounds: Mapping[int, Sequence[Entrant]]) -> list[Record]:
        """Measure a process of each case; who goes first changes from round to round."""
        processes = []
        for number, meeting in rounds.items():
            place = (number - 1) % len(meeting)
            order = [*meeting[place:], *meeting[:place]]
            order.sort(key=lambda entrant: entrant.planned.refusal is None)  # nothing runs beside what cannot run
            processes += [(entrant, number) for entrant in order]
        together = self._together([entrant for entrant, _ in processes])
        records: list[Record] = []
        measured = records_of_rounds(self.scheduler, [(one.planned, number) for one, number in processes], together)
        for (entrant, _), record in zip(processes, measured, strict=False):
            entrant.records.append(record)
            records.append(record)
            if self.rule.strict and not record.ranked and len(records) < len(processes):
                break  # the others are not measured for nothing
        return records

    def _together(self, order: Sequence[Entrant]) -> bool:
        """Return whether the processes of a round are alive at once.

        On a GPU the first process of a case tells what it holds, so none is beside it.
        """
        if len(order) < 2 or any(entrant.planned.refusal for entrant in order):
            return False
        sizing = [entrant.sizing for entrant in order if entrant.sizing]
        if len(sizing) == len(order):
            return fit_together(sizing)
        return all(entrant.planned.case.device == "cpu" for entrant in order)


def references_of(cases: Sequence[Planned], named: str = "") -> list[Case]:
    """What cases are compared with, of each device: what is named, or the plain case of the reference's backend."""
    usual = {each.reference.backend_label for each in cases if each.reference}
    return list(references([each.case for each in cases], usual, named).values())


def records_of_rounds(
    scheduler: Scheduler, processes: Sequence[tuple[Planned, int]], together: bool, *, only_right: bool = True
) -> Iterator[Record]:
    """Yield the records of rounds: of processes in turns, or of one after the other, as they end.

    Where the memory was too short for all at once, they are measured again, one after the other. With ``only_right`` a
    process in turns whose first outputs are wrong ends before it is timed.
    """
    budget, at_once = scheduler.plan.budget, Counter(number for _, number in processes)
    if together and not scheduler.one_at_a_time:
        on_cpu = all(planned.case.device == "cpu" for planned, _ in processes)
        series = budget_of_rounds(budget, max(at_once.values()), 1 if on_cpu else len(at_once))
        records = scheduler.measure_interleaved(processes, scheduler.round_budget or series, only_right=only_right)
        if len(records) == 1 or all(record.status != "out of memory" for record in records):
            yield from records
            return
        scheduler.discard(records)
    alone = budget_of_rounds(budget)
    alone = replace(alone, mode="latency") if alone.mode == "both" else alone
    for planned, number in processes:
        yield scheduler.measure(planned, number, scheduler.round_budget or alone)[0]


def screening_budget(budget: Budget) -> Budget:
    """Return what is measured of a case before the rounds: what was asked for, or else a short series."""
    if budget.explicit or budget.max_time is not None:
        return budget
    return replace(budget, warmup_seconds=SCREENING_WARMUP, max_time=SCREENING_SERIES)


def budget_of_rounds(budget: Budget, cases: int = 1, at_once: int = 1) -> Budget:
    """Return what each process of rounds that are held at once measures: what was asked for, or else a short series."""
    if budget.explicit:
        return budget
    series = ROUND_SERIES if budget.max_time is None else min(budget.max_time, max(ROUND_SERIES, budget.max_time / 4))
    if at_once > 1:
        series = min(series, AT_ONCE_SECONDS / (cases * at_once))
    return replace(budget, warmup_seconds=ROUND_WARMUP / at_once, max_time=series)


def rounds_at_once(firsts: Sequence[Record]) -> int:
    """Return how many rounds of cases are held at once, by a record of each.

    As many as have a CPU for each process; on the CPU two where to load and build takes longer than to measure.
    """
    count = min(AT_ONCE, len(usable_cpus()) // len(firsts))
    if all(record.case.device == "cpu" for record in firsts):
        slow = max(_preparing(record) for record in firsts) > ROUND_SERIES * len(firsts)
        count = CPU_AT_ONCE if slow else count
    return count if count > 1 and fit_together([*firsts] * count) else 1


def _preparing(record: Record) -> float:
    """Return the seconds that a process took to load and build."""
    return sum(phase.seconds for phase in record.phases if phase.name in ("load", "build"))


def fit_together(records: Sequence[Record]) -> bool:
    """Return whether processes such as these have room at the same time, by the memory that each took.

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
