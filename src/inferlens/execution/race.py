"""The rounds of a race: cases meet in fresh processes until one is the fastest.

A round is a fresh process of every case that takes part, all alive at once and in turns if memory allows it, else one
after the other. With enough CPUs some rounds are held at once: that takes the time of one to load and build. ``bench``,
``ab``, the finals of ``tune`` and an option sweep use the same :class:`RaceEngine`; they differ in their
:class:`RacePolicy`, which decides who meets next, when the race ends, and what is logged.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import datetime

from msgspec.structs import replace

from inferlens.analysis.race import FinalsAim, Race, race
from inferlens.analysis.samples import CaseRuns
from inferlens.analysis.tuning import Trial
from inferlens.execution.cases import preparation_seconds
from inferlens.execution.protocol import PlannedCase
from inferlens.execution.resume import TrialLog, grouped
from inferlens.execution.scheduler import SPARE, TYPICAL_MEMORY, USUAL, MeasureOptions, Process, Scheduler
from inferlens.limits import memory_left
from inferlens.measure.monitor import gpu_before, usable_cpus
from inferlens.record.record import IN_TURNS, Metric, Record
from inferlens.spec.case import Budget, Case
from inferlens.spec.plan import references
from inferlens.stats.race_rule import CLOSE, LEAST_ROUNDS, MOST_ROUNDS, USUAL_ROUNDS, RaceState
from inferlens.units import ratio, ratio_range

REFERENCE_ROUNDS = 2  # rounds of the reference, however slow it is, so that there are speedups
ROOM = 2.0  # memory that a process of the first round may need, as a multiple of the reference's
SCREENING_WARMUP, SCREENING_SERIES = 0.5, 1.0  # seconds of a case by itself, before the rounds
ROUND_WARMUP, ROUND_SERIES = 0.1, 2.0  # seconds of a process in a round by itself
AT_ONCE = 4  # the largest number of rounds that are held at once, if every process has a CPU
CPU_AT_ONCE = 2  # the same number on the CPU, for cases that take long to load and build
AT_ONCE_SECONDS = 8.0  # seconds of series of all these processes together: loading and building takes longer
BUILDS = 3  # per finalist of a tuning, from scratch: builds differ


@dataclass
class Entrant:
    """A case of a race with its records so far; the first record may be older than the race."""

    planned: PlannedCase
    records: list[Record] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The name of the case in the race."""
        return self.records[0].id if self.records else self.planned.case.digest

    @property
    def runs(self) -> CaseRuns:
        return CaseRuns(tuple(self.records))


class RacePolicy:
    """A policy that decides which cases are in the next round, when a race is over, and what is logged.

    :class:`RaceEngine` asks it before and after every round. Subclasses override what they need.

    Attributes:
        least: the least number of rounds, whatever the time.
        most: the largest number of rounds.
        aim: the aim of a tuning, if it is not latency or throughput.
        metric: the metric to compare; ``None``: see ``analysis.race``.
        strict: whether a process that fails ends the race.
        log: the log into which rounds are written one by one.
        final: whether the log has them as rounds of a tuning's finals.
        earlier: rounds of an earlier run in the log, which are not repeated.
        options: how processes of rounds are measured.
        in_turns: whether processes of a round may take turns. Then energy is unknown, and so is memory of a GPU in a
            container.
    """

    least = LEAST_ROUNDS
    most = USUAL_ROUNDS
    aim: FinalsAim | None = None
    metric: Metric | None = None
    strict = False
    log: TrialLog | None = None
    final = False
    earlier: list[Trial] = []
    options: MeasureOptions = MeasureOptions(only_right=True)
    in_turns = True

    def next_round(self, engine: RaceEngine, number: int) -> Sequence[str]:
        """Return the ids of the entrants of the round after ``number`` rounds. The race ends if there is none."""
        raise NotImplementedError

    def options_of(self, number: int) -> MeasureOptions:  # noqa: ARG002
        """Return how processes of round ``number`` are measured."""
        return self.options

    def measure(
        self, scheduler: Scheduler, processes: Sequence[Process], options: MeasureOptions, *, together: bool
    ) -> Iterator[Record]:
        """Yield the records of the processes of some rounds as they end, in the order of the processes."""
        return measure_rounds(scheduler, processes, options, together=together)

    def report(self, engine: RaceEngine, number: int, cases: Sequence[Case]) -> None:
        """Report a round that is over."""
        standing = self.summary(engine.race, engine.ranked) or cases[0].way
        engine.scheduler.observer.round(number, cases, standing, self.least if self.aim else 0)

    def summary(self, race: Race, entrants: Mapping[str, Entrant]) -> str:
        """Return the leader against the next case, in a few words."""
        state = race.state
        if state is None or not state.rivals:
            return ""
        name, difference = next(iter(state.rivals.items()))
        leader, rival = entrants[state.leader].planned.case, entrants[name].planned.case
        labels = leader.backend_label, rival.backend_label
        if labels[0] == labels[1]:
            labels = leader.way, rival.way
        text = f"{labels[0]} {ratio(difference.ratio)} {labels[1]}"
        if race.rounds < self.least:
            return text
        interval = difference.interval(race.level)
        return f"{text} ({ratio_range(interval.low, interval.high)})"


class FastestPolicy(RacePolicy):
    """A policy for the fastest case: the leader meets its rivals until no rival can be faster than the leader.

    - The first round has the next fastest case, all cases that are within the noise of separate processes
      (``Noise.reach``), and the references, so that there are speedups.
    - The second round has the rivals that are close to the leader. If there is none, it has the next fastest case and
      the references, because two rounds are needed to estimate the noise.
    - Every later round has the *open* rivals (see ``stats.race_rule``). Without one the race is over.

    Args:
        rounds: the least number of rounds, whether the race is decided or not; 0 ends it once it is decided.
    """

    def __init__(self, rounds: int = 0) -> None:
        self.rounds = rounds
        self.most = MOST_ROUNDS if rounds else USUAL_ROUNDS

    def next_round(self, engine: RaceEngine, number: int) -> Sequence[str]:
        state = engine.race.state
        if state is None:
            return []
        rivals = self._rivals(engine, state, number)
        return [state.leader, *rivals] if rivals else []

    def _rivals(self, engine: RaceEngine, state: RaceState, number: int) -> Sequence[str]:
        """Return the ids of the rivals that meet the leader in the round after ``number`` rounds."""
        if not state.rivals:
            return []
        entries, fastest_rival = engine.race.entries, next(iter(state.rivals))
        leader = entries[state.leader]
        if number == 0:
            limit = leader.level + math.log(leader.usual.reach)
            within_noise = [name for name, entry in entries.items() if entry.level <= limit]
            return [fastest_rival, *within_noise, *engine.references()]
        if number < LEAST_ROUNDS:
            reach = leader.usual.reach
            close = [name for name, rival in state.rivals.items() if rival.ratio <= (CLOSE if rival.rounds else reach)]
            return close or [fastest_rival, *engine.references()]
        return state.open or ([fastest_rival] if number < self.rounds else [])


class FinalsPolicy(FastestPolicy):
    """A policy for the finalist of a tuning that is best by an aim. All finalists meet in the first rounds.

    With ``rebuild`` the processes of the first rounds build from scratch.
    """

    final = True

    def __init__(
        self,
        aim: FinalsAim,
        log: TrialLog,
        earlier: list[Trial],
        options: MeasureOptions,
        rebuild: bool,
        in_turns: bool,
    ) -> None:
        super().__init__()
        self.aim, self.log, self.earlier = aim, log, earlier
        self.options, self.rebuild, self.in_turns = options, rebuild, in_turns

    def next_round(self, engine: RaceEngine, number: int) -> Sequence[str]:
        return list(engine.ranked) if number < REFERENCE_ROUNDS else super().next_round(engine, number)

    def options_of(self, number: int) -> MeasureOptions:
        return with_fields(self.options, rebuild=self.rebuild and number <= BUILDS)


class BasePolicy(RacePolicy):
    """A policy that compares all cases with a base, until all have a verdict."""

    def __init__(self, base: Entrant, least: int = LEAST_ROUNDS, most: int = USUAL_ROUNDS) -> None:
        self.base, self.least, self.most = base, least, most

    def next_round(self, engine: RaceEngine, number: int) -> Sequence[str]:
        base = self.base.id
        candidates = [name for name in engine.ranked if name != base]
        if base not in engine.ranked:
            return []
        if number >= self.least:
            race = engine.race
            candidates = [name for name in candidates if race.comparison(base, name).verdict == "UNDECIDED"]
        return [base, *candidates] if candidates else []


@dataclass
class RaceEngine:
    """An engine that holds the rounds of one race.

    Attributes:
        end: when no further round begins, by the clock of ``time.monotonic``; there are ``policy.least`` all the same.
        held: the number of rounds of an earlier run, whose records the entrants have.
    """

    scheduler: Scheduler
    entrants: Sequence[Entrant]
    end: float
    policy: RacePolicy
    held: int = 0

    def run(self) -> Race:
        """Hold rounds until the race is decided or the time is over."""
        policy, number = self.policy, self.held
        process_seconds = 0.0  # of a process of the last rounds
        while number < policy.most and (entrants := self._entrants_after(number)):
            begin = time.monotonic()
            rounds = {number + 1: entrants}
            for ended in range(number + 1, min(number + self.at_once(entrants, number), policy.most)):
                if others := self._entrants_after(ended):
                    rounds[ended + 1] = others
            processes = sum(map(len, rounds.values()))
            if number >= policy.least and begin + process_seconds * processes > self.end:
                break
            if policy.earlier:
                self._take_records(policy.earlier.pop(0))
            else:
                self.hold(rounds)
            number += len(rounds)
            process_seconds = (time.monotonic() - begin) / processes
            policy.report(self, number, [entrant.planned.case for entrant in entrants])
            if policy.strict and len(self.race.entries) < len(self.entrants):
                break
        return self.race

    @property
    def race(self) -> Race:
        """The race by the records so far."""
        runs = {name: entrant.runs for name, entrant in self.ranked.items() if entrant.records}
        return race(runs, metric=self.policy.metric, aim=self.policy.aim)

    @property
    def ranked(self) -> dict[str, Entrant]:
        """The entrants without a failed process, by id."""
        return {entrant.id: entrant for entrant in self.entrants if entrant.runs.ranked}

    def references(self) -> list[str]:
        """Return the ids of the references by device."""
        ranked = self.ranked
        cases = references_of([entrant.planned for entrant in ranked.values()], self.scheduler.plan.reference)
        return [name for name, entrant in ranked.items() if entrant.planned.case in cases]

    def _entrants_after(self, number: int) -> list[Entrant]:
        """Return the entrants of the round after ``number`` rounds."""
        return [self.ranked[name] for name in dict.fromkeys(self.policy.next_round(self, number))]

    def at_once(self, entrants: Sequence[Entrant], number: int) -> int:
        """Return how many rounds are held at once after ``number`` rounds; one if processes take no turns."""
        if self.policy.earlier or len(entrants) == 1 or not self.policy.in_turns:
            return 1
        if not all(entrant.records for entrant in entrants):
            return 1
        in_turns = number == 0 or all(IN_TURNS in entrant.records[-1].facts for entrant in entrants)
        return rounds_at_once([entrant.records[0] for entrant in entrants]) if in_turns else 1

    def _take_records(self, trial: Trial) -> None:
        """Take the records of a round from the log."""
        records = {record.case.digest: record for record in trial.records}
        for entrant in self.entrants:
            if record := records.get(entrant.planned.case.digest):
                entrant.records.append(record)

    def hold(self, rounds: Mapping[int, Sequence[Entrant]]) -> None:
        """Measure a process of every case of some rounds, and write the rounds into the log."""
        begin, policy = time.monotonic(), self.policy
        records = self._measure(rounds, policy.options_of(min(rounds)))
        seconds = (time.monotonic() - begin) / len(rounds)
        for number in rounds:
            records_of_round = tuple(record for record in records if record.repeat == number)
            if policy.log and records_of_round:
                policy.log.add(Trial(records=records_of_round, final=policy.final, seconds=seconds))

    def _measure(self, rounds: Mapping[int, Sequence[Entrant]], options: MeasureOptions) -> list[Record]:
        """Measure a process of every case. The order changes from round to round."""
        processes = []
        for number, entrants in rounds.items():
            first = (number - 1) % len(entrants)
            order = [*entrants[first:], *entrants[:first]]
            order.sort(key=lambda entrant: entrant.planned.refusal is None)  # a case that cannot run takes no turn
            processes += [(entrant, number) for entrant in order]
        together = self.policy.in_turns and have_room([entrant for entrant, _ in processes])
        planned = [(entrant.planned, number) for entrant, number in processes]
        results = self.policy.measure(self.scheduler, planned, options, together=together)
        records: list[Record] = []
        for (entrant, _), record in zip(processes, results, strict=False):
            entrant.records.append(record)
            records.append(record)
            if self.policy.strict and not record.ranked and len(records) < len(processes):
                break  # the race is over, so the other processes are not measured
        return records


def have_room(entrants: Sequence[Entrant]) -> bool:
    """Return whether processes of a round can be alive at once.

    On a GPU the first process of a case shows how much memory it takes, so it runs by itself.
    """
    if len(entrants) < 2 or any(entrant.planned.refusal for entrant in entrants):
        return False
    if all(entrant.records for entrant in entrants):
        return fit_together([entrant.records[0] for entrant in entrants])
    return all(entrant.planned.case.device == "cpu" for entrant in entrants)


def measure_rounds(
    scheduler: Scheduler, processes: Sequence[Process], options: MeasureOptions = USUAL, *, together: bool
) -> Iterator[Record]:
    """Yield the records of the processes of rounds. The processes take turns if ``together``, or run one by one.

    If memory is too short for all at once, they are measured again, one by one. The budget is the usual one of a round
    unless ``options`` have one.
    """
    budget = scheduler.plan.budget
    if together:
        cases_in_round = Counter(number for _, number in processes)
        on_cpu = all(planned.case.device == "cpu" for planned, _ in processes)
        at_once = 1 if on_cpu else len(cases_in_round)
        shared_budget = options.budget or budget_of_rounds(budget, max(cases_in_round.values()), at_once)
        records = scheduler.measure_together(processes, with_fields(options, budget=shared_budget))
        if len(records) == 1 or all(record.status != "out of memory" for record in records):
            yield from records
            return
        scheduler.discard(records)
    single_budget = options.budget or budget_of_rounds(budget)
    if not options.budget and single_budget.mode == "both":
        single_budget = replace(single_budget, mode="latency")
    for planned, number in processes:
        yield scheduler.measure(planned, number, with_fields(options, budget=single_budget))[0]


def may_meet(cases: Iterable[PlannedCase]) -> bool:
    """Return whether any of the cases that can run do the same work: without two there are no rounds."""
    return max(Counter(planned.case.work for planned in cases if not planned.refusal).values(), default=0) > 1


def races(cases: Iterable[PlannedCase]) -> list[list[PlannedCase]]:
    """Return the races: groups of cases that do the same work."""
    return grouped(cases, lambda planned: planned.case.work)


def first_rounds(scheduler: Scheduler, cases: Iterable[PlannedCase]) -> list[list[PlannedCase]]:
    """Return the groups of cases that begin with a round: races on the CPU whose cases fit into memory together.

    They load side by side, so the first round takes less time than single measurements. On a GPU the first process of
    a case runs by itself: it shows how much memory the case needs, and may time kernels.
    """
    groups = []
    for group in races(planned for planned in cases if not planned.refusal and planned.case.device == "cpu"):
        if len(group) > 1:
            memory = max(scheduler.references.of(planned).memory or TYPICAL_MEMORY for planned in group)
            if ROOM * memory * len(group) <= memory_left():
                groups.append(group)
    return groups


def hold_rounds(
    scheduler: Scheduler, screened: Iterable[tuple[PlannedCase, Record]], earlier: Sequence[Record] = ()
) -> None:
    """Hold the rounds of cases that were measured once. Cases that do the same work are a race.

    A race goes on after the ``earlier`` rounds of another run, and the time of these rounds counts.
    """
    entrants_of: dict[Hashable, list[Entrant]] = {}
    for planned, first in screened:
        if first.ranked:
            later = [record for record in earlier if record.case == planned.case and record.repeat > first.repeat]
            records = [first, *sorted(later, key=lambda record: record.repeat)]
            entrants_of.setdefault(planned.case.work, []).append(Entrant(planned, records))
    end = time.monotonic() + scheduler.plan.within - spent_seconds([record for record in earlier if record.repeat])
    groups = [entrants for entrants in entrants_of.values() if len(entrants) > 1]
    for place, entrants in enumerate(groups):
        now = time.monotonic()
        share = (end - now) / (len(groups) - place)
        held = max(record.repeat for entrant in entrants for record in entrant.records)
        RaceEngine(scheduler, entrants, now + share, FastestPolicy(scheduler.plan.rounds), held).run()


def references_of(cases: Sequence[PlannedCase], named: str = "") -> list[Case]:
    """Return the references by device: the named case, or the plain case of the reference's backend."""
    usual = {planned.reference.backend_label for planned in cases if planned.reference}
    return list(references([planned.case for planned in cases], usual, named).values())


def spent_seconds(records: Sequence[Record]) -> float:
    """Return the seconds in which any process of the records was measured."""
    total, latest = 0.0, -math.inf
    times = [(datetime.fromisoformat(record.created), datetime.fromisoformat(record.ended)) for record in records]
    for begin, end in sorted((begin.timestamp(), end.timestamp()) for begin, end in times):
        total += max(end - max(begin, latest), 0.0)
        latest = max(latest, end)
    return total


def screening_budget(budget: Budget) -> Budget:
    """Return the budget of a case before the rounds: the user's, or else a short series."""
    if budget.explicit or budget.max_time is not None:
        return budget
    return replace(budget, warmup_seconds=SCREENING_WARMUP, max_time=SCREENING_SERIES)


def budget_of_rounds(budget: Budget, cases: int = 1, at_once: int = 1) -> Budget:
    """Return the budget of a process in rounds that are held at once: the user's, or else a short series."""
    if budget.explicit:
        return budget
    series = ROUND_SERIES if budget.max_time is None else min(budget.max_time, max(ROUND_SERIES, budget.max_time / 4))
    if at_once > 1:
        series = min(series, AT_ONCE_SECONDS / (cases * at_once))
    return replace(budget, warmup_seconds=ROUND_WARMUP / at_once, max_time=series)


def rounds_at_once(firsts: Sequence[Record]) -> int:
    """Return how many rounds of cases are held at once, by their records.

    Every process has a CPU. On the CPU there are two rounds if loading and building take longer than measuring.
    """
    count = min(AT_ONCE, len(usable_cpus()) // len(firsts))
    if all(record.case.device == "cpu" for record in firsts):
        longest = max(preparation_seconds(record, ("load", "build")) for record in firsts)
        count = CPU_AT_ONCE if longest > ROUND_SERIES * len(firsts) else count
    return count if count > 1 and fit_together([*firsts] * count) else 1


def fit_together(records: Sequence[Record]) -> bool:
    """Return whether processes such as these have room at the same time, by the memory that they took.

    A process of unknown GPU memory, because it took turns, counts as much as the largest one.
    """
    if SPARE * sum(record.memory.host_peak or 0 for record in records) > memory_left():
        return False
    on_gpu = [record for record in records if record.case.device != "cpu"]
    gpus = records[0].environment.gpus
    if not on_gpu or not gpus or gpus[0].memory is None:
        return True
    peaks = [record.memory.device_peak for record in on_gpu if record.memory.device_peak is not None]
    if not peaks and not any(IN_TURNS in record.facts for record in on_gpu):
        return False
    needed = sum(peaks) + max(peaks, default=0) * (len(on_gpu) - len(peaks))
    return SPARE * needed <= gpus[0].memory - (gpu_before().memory_used or 0)
