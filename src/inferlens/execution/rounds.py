"""The rounds of a race: cases that may be the fastest meet, in fresh processes, until it is known which one is.

Each case was measured once before, by itself. Those within reach of the fastest meet in rounds: a fresh process of
each, all alive at once and in turns where memory allows it, else one after the other. Where there are CPUs enough, some
rounds are held at once: it takes the time of one to load and build. After that those that are shown to be slower, or
equally fast, take no further part (``analysis.race``). It is over when none is left, or the time is. The reference
takes part in the first rounds, so that speed-ups are known, too.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec.structs import replace

from inferlens.analysis.race import Race, race
from inferlens.analysis.runs import CaseRuns
from inferlens.execution.expand import Planned
from inferlens.execution.scheduler import SPARE, Scheduler
from inferlens.limits import memory_left
from inferlens.measure.monitor.cpu import usable_cpus
from inferlens.measure.monitor.gpu import gpu_before
from inferlens.record.record import IN_TURNS, Record
from inferlens.spec.case import Budget, Case
from inferlens.spec.reference import references
from inferlens.stats.intervals import ends
from inferlens.stats.standing import LEAST_ROUNDS, MOST_ROUNDS, USUAL_ROUNDS
from inferlens.units import ratio, ratio_range

# Times the fastest: what took longer by itself meets it in no round, and what took longer in the first of them in none
# after that, unless it is the next or in doubt later. A single process in fifty is off by a factor of two or more.
REACH_ALONE, REACH = 4.0, 1.25
REFERENCE_ROUNDS = 2  # that the reference is in, however slow it is, so that speed-ups are known
ROUND_WARMUP, ROUND_SERIES = 0.3, 2.0  # seconds of a process in a round by itself
AT_ONCE = 4  # rounds at most that are held at once, where each process has a CPU
AT_ONCE_SECONDS = 12.0  # seconds of all their processes together: less than it takes them to load and build


@dataclass
class Entrant:
    """A case of a race, a ``first`` record of it, which ran, and its records in the race so far."""

    planned: Planned
    first: Record
    records: list[Record] = field(default_factory=list)

    @property
    def id(self) -> str:
        """What the race calls it."""
        return self.first.id

    @property
    def runs(self) -> CaseRuns:
        """Its processes."""
        return CaseRuns(tuple(self.records))


def may_meet(cases: Iterable[Planned]) -> bool:
    """Whether any of the cases that can run do the same work: without two there are no rounds."""
    return max(Counter(each.case.work for each in cases if not each.refusal).values(), default=0) > 1


def hold_rounds(scheduler: Scheduler, screened: Iterable[tuple[Planned, Record]], known: Iterable[Record] = ()) -> None:
    """Holds the rounds of cases that were measured once; those that do the same work race each other.

    Records that are ``known`` of rounds that were held before are not made again.
    """
    before: dict[int, dict[str, Record]] = {}
    for record in known:
        before.setdefault(record.repeat, {})[record.case.digest] = record
    races: dict[Hashable, list[Entrant]] = {}
    for planned, record in screened:
        if record.ranked:
            races.setdefault(planned.case.work, []).append(Entrant(planned, record, [record]))
    end = time.monotonic() + scheduler.plan.within
    left = [entrants for entrants in races.values() if len(entrants) > 1]
    while left:
        entrants, *left = left
        now = time.monotonic()
        Rounds(scheduler, entrants, now + (end - now) / (len(left) + 1), known=before).run()


@dataclass
class Rounds:
    """The rounds of one race.

    Attributes:
        end: when no further round is begun, by the clock of ``time.monotonic``; there are ``least`` all the same.
        known: records of rounds that were held before, by round and case; of a round that was cut short they are void.
    """

    least: ClassVar[int] = LEAST_ROUNDS  # before there is no verdict

    scheduler: Scheduler
    entrants: Sequence[Entrant]
    end: float
    known: Mapping[int, Mapping[str, Record]] = field(default_factory=dict, kw_only=True)

    def run(self) -> Race:
        """Rounds until it is decided or the time is over."""
        number, each = 0, 0.0  # rounds so far, and seconds that a process of the last ones took
        most = MOST_ROUNDS if self.scheduler.plan.rounds else USUAL_ROUNDS
        while number < most:
            meeting = self._next_meeting(number)
            if not meeting:
                break
            begin = time.monotonic()
            count = min(self._at_once(meeting, number + 1), most - number)
            processes = count * len(meeting)
            if number >= self.least and begin + each * processes > self.end:
                break
            self._hold(meeting, range(number + 1, number + 1 + count))
            number += count
            each = (time.monotonic() - begin) / processes
            self._tell(number, [entrant.planned.case for entrant in meeting])
        return self.race

    def _tell(self, number: int, contenders: Sequence[Case]) -> None:
        """That a round is over."""
        self.scheduler.observer.round(number, contenders, self._standing())

    @property
    def race(self) -> Race:
        """How it stands."""
        return race({name: each.runs for name, each in self._able.items()})

    @property
    def _able(self) -> dict[str, Entrant]:
        """Those of which no process has failed."""
        return {each.id: each for each in self.entrants if each.runs.ranked}

    def _next_meeting(self, number: int) -> list[Entrant]:
        """Who takes part in the next round; none where it is decided."""
        able, race = self._able, self.race
        if race.standing is None or not race.standing.rivals:
            return []
        best, following = race.answer.best, next(iter(race.standing.rivals))
        if number == 0:
            once = {name: entry.processes[0].log for name, entry in race.entries.items()}
            limit = once[best] + math.log(REACH_ALONE)
            names = [best, following, *(name for name in once if once[name] <= limit), *self._reference()]
        elif number < LEAST_ROUNDS:
            reference = self._reference() if number < REFERENCE_ROUNDS else []
            near = list(filter(self._near, race.answer.open))
            names = [best, *(near or [following]), *reference]
        else:  # what has met the others in no round yet may do so now that it is known how far processes differ
            names = [best, *race.answer.open]
            if len(names) == 1:
                names = [best, following] if number < self.scheduler.plan.rounds else []
        return [able[name] for name in dict.fromkeys(names)]

    def _near(self, name: str) -> bool:
        """Whether what was in rounds is within reach there."""
        standing = self.race.standing
        found = standing.rivals[name].ratio if standing else None
        return len(self._able[name].records) > 1 and found is not None and found <= REACH

    def _reference(self) -> list[str]:
        """What others are compared with, of each device."""
        able = self._able
        chosen = references_of([each.planned for each in able.values()], self.scheduler.plan.reference)
        return [name for name, each in able.items() if each.planned.case in chosen]

    def _at_once(self, meeting: Sequence[Entrant], number: int) -> int:
        """How many rounds are held at once, from one on; one, where processes take no turns."""
        taking_turns = number == 1 or all(IN_TURNS in each.records[-1].facts for each in meeting)
        if len(meeting) == 1 or number in self.known or self.scheduler.one_at_a_time or not taking_turns:
            return 1
        return rounds_at_once([each.first for each in meeting])

    def _hold(self, meeting: Sequence[Entrant], numbers: Sequence[int]) -> None:
        """Measures a process of each once a round; who goes first changes from round to round."""
        before = self.known.get(numbers[0], {})
        known = [each for each in self.entrants if each.planned.case.digest in before]
        if {each.id for each in meeting} <= {each.id for each in known}:
            for each in known:
                each.records.append(before[each.planned.case.digest])
            return
        if known:
            self.scheduler.observer.discarded([before[each.planned.case.digest] for each in known])
        place = numbers[0] % len(meeting)
        order = [*meeting[place:], *meeting[:place]]
        together = len(order) > 1 and fit_together([each.first for each in order])
        found = records_of_rounds(self.scheduler, [each.planned for each in order], numbers, together)
        for each, record in zip(order * len(numbers), found, strict=True):
            each.records.append(record)

    def _standing(self) -> str:
        """The leader against the next one, in a few words."""
        standing, able = self.race.standing, self._able
        if standing is None or not standing.rivals:
            return ""
        name, rival = next(iter(standing.rivals.items()))
        both = [able[each].planned.case for each in (standing.leader, name)]
        first, second = (case.backend_label for case in both)
        if first == second:
            first, second = (case.way for case in both)
        sure = f" ({ratio_range(*ends(rival.interval))})" if self.race.rounds >= LEAST_ROUNDS else ""
        return f"{first} {ratio(rival.ratio)} {second}{sure}"


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
