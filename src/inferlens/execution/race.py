"""The rounds of a race: cases meet in fresh processes until one is the fastest.

A round is a fresh process of every case that takes part. The processes are measured in turns if memory allows it, or
else one by one (see ``turns``). With enough CPUs some rounds are concurrent: loading and building take the time of one.
``bench``, ``ab`` and the finals of ``tune`` use the same :class:`RaceEngine`; they differ in their
:class:`RacePolicy`, which decides who meets next, when the race ends, and what is logged.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

from msgspec.structs import replace

from inferlens.analysis.race import FinalsAim, Race, race
from inferlens.analysis.samples import CaseRuns
from inferlens.analysis.tuning import Trial
from inferlens.execution.cases import preparation_seconds
from inferlens.execution.protocol import PlannedCase
from inferlens.execution.resume import TrialLog, grouped
from inferlens.execution.scheduler import DEFAULTS, SPARE, TYPICAL_MEMORY, MeasureOptions, Process, Scheduler
from inferlens.limits import memory_left
from inferlens.measure.monitor import gpu_before, usable_cpus
from inferlens.record.record import IN_TURNS, Metric, Record
from inferlens.spec.case import Budget, Case
from inferlens.spec.plan import references
from inferlens.stats.race_rule import CLOSE, LEAST_ROUNDS, MOST_ROUNDS, USUAL_ROUNDS, RaceState
from inferlens.units import ratio, ratio_range

REFERENCE_ROUNDS = 2  # rounds of the reference, however slow it is, so that there are speedups
REFERENCE_MEMORY = 2.0  # memory that a process of the first round may need, as a multiple of the reference's
SCREENING_WARMUP, SCREENING_SERIES = 0.5, 1.0  # seconds of a case by itself, before the rounds
ROUND_WARMUP, ROUND_SERIES = 0.1, 2.0  # seconds of a process in a round by itself
MOST_CONCURRENT = 4  # the largest number of concurrent rounds, if every process has a CPU
CPU_CONCURRENT = 2  # the same number on the CPU, for cases that take long to load and build
CONCURRENT_SECONDS = 8.0  # seconds of the series of all concurrent processes: loading and building takes longer
BUILDS = 3  # per finalist of a tuning, from scratch: builds differ
ROUND_OPTIONS = MeasureOptions(only_right=True)


@dataclass
class Entrant:
    """A case of a race with its records so far; the first record may be older than the race.

    ``id`` names the case in the race: the id of a record that is older than the race, or else the digest of the case.
    """

    planned: PlannedCase
    records: list[Record] = field(default_factory=list)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.records[0].id if self.records else self.planned.case.digest

    @property
    def runs(self) -> CaseRuns:
        return CaseRuns(tuple(self.records))


@dataclass(kw_only=True)
class RacePolicy:
    """A policy that decides which cases are in the next round, when a race is over, and what is logged.

    :class:`RaceEngine` asks it before and after every round. Subclasses override what they need.

    Attributes:
        least: the least number of rounds, whatever the time.
        most: the largest number of rounds.
        aim: the aim of the finals of a tuning; ``None`` in other races.
        metric: the metric to compare; ``None``: see ``analysis.race``.
        strict: whether a process that fails ends the race.
        log: the log into which rounds are written one by one.
        earlier: rounds of an earlier run in the log, with which the race begins.
        options: how processes of rounds are measured.
        in_turns: whether processes of a round may be measured in turns. Then energy is unknown, and so is memory of a
            GPU in a container.
    """

    least: int = LEAST_ROUNDS
    most: int = USUAL_ROUNDS
    aim: FinalsAim | None = None
    metric: Metric | None = None
    strict: bool = False
    log: TrialLog | None = None
    earlier: Sequence[Trial] = ()
    options: MeasureOptions = ROUND_OPTIONS
    in_turns: bool = True

    def next_round(self, engine: RaceEngine, number: int) -> Sequence[str]:
        """Return the ids of the entrants of the round after ``number`` rounds. The race ends if there is none."""
        raise NotImplementedError

    def options_of(self, number: int) -> MeasureOptions:  # noqa: ARG002
        """Return how processes of round ``number`` are measured."""
        return self.options

    def measure(
        self, scheduler: Scheduler, processes: Sequence[Process], options: MeasureOptions, *, in_turns: bool
    ) -> Iterator[Record]:
        """Yield the records of the processes of some rounds as they end, in the order of the processes."""
        return measure_rounds(scheduler, processes, options, in_turns=in_turns)

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


@dataclass(kw_only=True)
class FastestPolicy(RacePolicy):
    """A policy for the fastest case: the leader meets its rivals until no rival can be faster than the leader.

    - The first round has the next fastest case, all cases that are within the noise of separate processes
      (``Noise.reach``), and the references, so that there are speedups.
    - The second round has the rivals that are close to the leader. If there is none, it has the next fastest case and
      the references, because two rounds are needed to estimate the noise.
    - Every later round has the *open* rivals (see ``stats.race_rule``). Without one the race is over.

    Attributes:
        rounds: the least number of rounds, whether the race is decided or not; 0 ends it once it is decided.
    """

    rounds: int = 0

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


@dataclass(kw_only=True)
class FinalsPolicy(FastestPolicy):
    """A policy for the finalist of a tuning that is best by an aim. All finalists meet in the first rounds.

    With ``rebuild`` the processes of the first rounds build from scratch.
    """

    rebuild: bool

    def next_round(self, engine: RaceEngine, number: int) -> Sequence[str]:
        return list(engine.ranked) if number < REFERENCE_ROUNDS else super().next_round(engine, number)

    def options_of(self, number: int) -> MeasureOptions:
        return with_fields(self.options, rebuild=self.rebuild and number <= BUILDS)


@dataclass
class RaceEngine:
    """An engine that holds the rounds of one race.

    Attributes:
        end: when no further round begins, by the clock of ``time.monotonic``; there are ``policy.least`` all the same.
        rounds: the number of rounds so far. A race that is resumed begins with the rounds of its entrants' records.
    """

    scheduler: Scheduler
    entrants: Sequence[Entrant]
    end: float
    policy: RacePolicy
    rounds: int = 0

    def run(self) -> Race:
        """Hold rounds until the race is decided or the time is over."""
        policy = self.policy
        for trial in policy.earlier:
            self._add_earlier(trial)
        process_seconds = 0.0  # of a process of the last rounds
        while rounds := self._next_rounds():
            begin, processes = time.monotonic(), sum(map(len, rounds.values()))
            if self.rounds >= policy.least and begin + process_seconds * processes > self.end:
                break
            self.hold(rounds)
            process_seconds = (time.monotonic() - begin) / processes
            policy.report(self, self.rounds, [entrant.planned.case for entrant in rounds[min(rounds)]])
            if policy.strict and len(self.race.entries) < len(self.entrants):
                break
        return self.race

    def _add_earlier(self, trial: Trial) -> None:
        """Add a round of an earlier run to the race."""
        self.rounds += 1
        entrants = {entrant.planned.case.digest: entrant for entrant in self.entrants}
        for record in trial.records:
            entrants[record.case.digest].records.append(record)
        self.policy.report(self, self.rounds, [record.case for record in trial.records])

    def _next_rounds(self) -> dict[int, list[Entrant]]:
        """Return the entrants of the next round, or of some concurrent rounds, by number; none if the race is over.

        The records so far decide who takes part in them.
        """
        first, most = self.rounds + 1, self.policy.most
        entrants = self._entrants(first)
        if first > most or not entrants:
            return {}
        rounds = {first: entrants}
        for number in range(first + 1, min(self.rounds + self.concurrency(entrants), most) + 1):
            rounds[number] = self._entrants(number)
        return {number: entrants for number, entrants in rounds.items() if entrants}

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

    def _entrants(self, number: int) -> list[Entrant]:
        """Return the entrants of round ``number``."""
        return [self.ranked[name] for name in dict.fromkeys(self.policy.next_round(self, number - 1))]

    def concurrency(self, entrants: Sequence[Entrant]) -> int:
        """Return how many rounds of the entrants are concurrent; one if they cannot be measured in turns."""
        if len(entrants) == 1 or not self.policy.in_turns or not all(entrant.records for entrant in entrants):
            return 1
        if self.rounds and not all(IN_TURNS in entrant.records[-1].facts for entrant in entrants):
            return 1
        return concurrent_rounds([entrant.records[0] for entrant in entrants])

    def hold(self, rounds: Mapping[int, Sequence[Entrant]]) -> None:
        """Measure a process of every case of some rounds, and write the rounds into the log."""
        begin, policy = time.monotonic(), self.policy
        records = self._measure(rounds, policy.options_of(min(rounds)))
        seconds = (time.monotonic() - begin) / len(rounds)
        for number in rounds:
            records_of_round = tuple(record for record in records if record.repeat == number)
            if policy.log and records_of_round:
                policy.log.add(Trial(records=records_of_round, final=policy.aim is not None, seconds=seconds))
        self.rounds = max(rounds)

    def _measure(self, rounds: Mapping[int, Sequence[Entrant]], options: MeasureOptions) -> list[Record]:
        """Measure a process of every case. The order changes from round to round."""
        processes = []
        for number, entrants in rounds.items():
            start = (number - 1) % len(entrants)
            order = [*entrants[start:], *entrants[:start]]
            order.sort(key=lambda entrant: entrant.planned.refusal is None)  # a case that cannot run takes no turn
            processes += [(entrant, number) for entrant in order]
        in_turns = self.policy.in_turns and can_take_turns([entrant for entrant, _ in processes])
        planned = [(entrant.planned, number) for entrant, number in processes]
        results = self.policy.measure(self.scheduler, planned, options, in_turns=in_turns)
        records: list[Record] = []
        for (entrant, _), record in zip(processes, results, strict=False):
            entrant.records.append(record)
            records.append(record)
            if self.policy.strict and not record.ranked and len(records) < len(processes):
                break  # the race is over, so the other processes are not measured
        return records


def can_take_turns(entrants: Sequence[Entrant]) -> bool:
    """Return whether processes of some rounds can be measured in turns.

    On a GPU the first process of a case shows how much memory it takes, so it runs by itself.
    """
    if len(entrants) < 2 or any(entrant.planned.refusal for entrant in entrants):
        return False
    if all(entrant.records for entrant in entrants):
        return fit_in_memory([entrant.records[0] for entrant in entrants])
    return all(entrant.planned.case.device == "cpu" for entrant in entrants)


def measure_rounds(
    scheduler: Scheduler, processes: Sequence[Process], options: MeasureOptions = DEFAULTS, *, in_turns: bool
) -> Iterator[Record]:
    """Yield the records of the processes of rounds, measured in turns or one by one.

    If memory is too short for all of them in turns, they are measured again, one by one. The budget is the usual one of
    a round unless ``options`` have one.
    """
    budget = scheduler.plan.budget
    if in_turns:
        cases_by_round = Counter(number for _, number in processes)
        on_cpu = all(planned.case.device == "cpu" for planned, _ in processes)
        rounds = 1 if on_cpu else len(cases_by_round)
        short_budget = options.budget or budget_of_rounds(budget, max(cases_by_round.values()), rounds)
        records = scheduler.measure_in_turns(processes, with_fields(options, budget=short_budget))
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


def first_round_groups(scheduler: Scheduler, cases: Iterable[PlannedCase]) -> list[list[PlannedCase]]:
    """Return the groups of cases that begin with a round: races on the CPU whose cases fit into memory.

    They load concurrently, so the first round takes less time than single measurements. On a GPU the first process of
    a case runs by itself: it shows how much memory the case needs, and may time kernels.
    """
    groups = []
    for group in races(planned for planned in cases if not planned.refusal and planned.case.device == "cpu"):
        if len(group) > 1:
            memory = max(scheduler.references.of(planned).memory or TYPICAL_MEMORY for planned in group)
            if REFERENCE_MEMORY * memory * len(group) <= memory_left():
                groups.append(group)
    return groups


def hold_rounds(scheduler: Scheduler, first_records: Iterable[tuple[PlannedCase, Record]]) -> None:
    """Hold the rounds of cases that were measured once. Cases that do the same work are a race.

    A race of an earlier run goes on after its last round, and the time of its rounds counts.
    """
    state = scheduler.state
    ranked = [(planned, first) for planned, first in first_records if first.ranked]
    entrants = [Entrant(planned, [first, *state.later_rounds(planned.case, first)]) for planned, first in ranked]
    groups = [group for group in grouped(entrants, lambda entrant: entrant.planned.case.work) if len(group) > 1]
    end = time.monotonic() + scheduler.plan.within - state.round_seconds
    least = scheduler.plan.rounds
    policy = FastestPolicy(rounds=least, most=MOST_ROUNDS if least else USUAL_ROUNDS)
    for place, group in enumerate(groups):
        now = time.monotonic()
        share = (end - now) / (len(groups) - place)
        rounds = max(record.repeat for entrant in group for record in entrant.records)
        RaceEngine(scheduler, group, now + share, policy, rounds).run()


def references_of(cases: Sequence[PlannedCase], named: str = "") -> list[Case]:
    """Return the references by device: the named case, or the plain case of the reference's backend."""
    labels = {planned.reference.backend_label for planned in cases if planned.reference}
    return list(references([planned.case for planned in cases], labels, named).values())


def screening_budget(budget: Budget) -> Budget:
    """Return the budget of a case before the rounds: the user's, or else a short series."""
    if budget.explicit or budget.max_time is not None:
        return budget
    return replace(budget, warmup_seconds=SCREENING_WARMUP, max_time=SCREENING_SERIES)


def budget_of_rounds(budget: Budget, cases: int = 1, rounds: int = 1) -> Budget:
    """Return the budget of a process in concurrent rounds: the user's, or else a short series."""
    if budget.explicit:
        return budget
    series = ROUND_SERIES if budget.max_time is None else min(budget.max_time, max(ROUND_SERIES, budget.max_time / 4))
    if rounds > 1:
        series = min(series, CONCURRENT_SECONDS / (cases * rounds))
    return replace(budget, warmup_seconds=ROUND_WARMUP / rounds, max_time=series)


def concurrent_rounds(records: Sequence[Record]) -> int:
    """Return how many rounds are concurrent, by a record of each of their cases.

    Every process has a CPU. On the CPU there are two rounds if loading and building take longer than measuring.
    """
    count = min(MOST_CONCURRENT, len(usable_cpus()) // len(records))
    if all(record.case.device == "cpu" for record in records):
        longest = max(preparation_seconds(record, ("load", "build")) for record in records)
        count = CPU_CONCURRENT if longest > ROUND_SERIES * len(records) else count
    return count if count > 1 and fit_in_memory([*records] * count) else 1


def fit_in_memory(records: Sequence[Record]) -> bool:
    """Return whether concurrent processes such as these fit into memory, by the memory that they took.

    A process of unknown GPU memory, because it was measured in turns, counts as much as the largest one.
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
