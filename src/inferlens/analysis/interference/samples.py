"""Which samples statistics are of: those of the steady state that nothing disturbed.

Records keep every sample. What is left out, and why, is decided here and nowhere else, each time anew, so that old
records profit from better statistics:

* samples that are no finite numbers, or negative;
* samples that something on the machine disturbed, if the record's marks say to leave them out (``mark``);
* the beginning of a series that was not steady yet (``stats.steady``);
* of two cases that took turns, what was taken before the other one was steady, too (:func:`common_span`);
* the end of a series that is slower than what was before while something disturbed the machine. The steady-state rule
  alone would believe the last level, whatever made it, and leave out the calm beginning. The beginning counts if it is
  a third of the series at least, steady by itself, and a series that the rule of ``mark`` would keep; what
  was disturbed in it is left out as well. Both parts are told apart by when their samples were taken.

A case that was measured in several processes has several records, its :class:`CaseRuns`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from inferlens.record.machine import DISCARD_AT_MOST, LEAST_KEPT, Marks
from inferlens.record.record import Metric, Record, machine_name
from inferlens.stats.steady import LEAST_SHARE, Steady, slower_from, steady


@dataclass(frozen=True)
class Series:
    """The samples of one metric of one record that statistics are of, in their unit and in order of time.

    Attributes:
        samples: the samples.
        not_finite, disturbed, unsteady, late: how many were left out, for which reason; ``not_finite`` were negative or
            not finite, ``late`` were a slower level at the end, while something disturbed the machine.
        state: where the steady state begins, among the samples that are finite and undisturbed, and not ``late``.
        places: which of the record's samples they are.
    """

    samples: tuple[float, ...]
    not_finite: int
    disturbed: int
    unsteady: int
    state: Steady
    late: int = 0
    places: tuple[int, ...] = ()


def steady_samples(record: Record, metric: Metric) -> Series:
    """The samples of a metric that statistics are of; none if the case did not run to its end.

    ``marks`` are of the calls whose latency was taken; other metrics of these calls, such as GPU time, have as many
    samples.
    """
    taken = record.samples(metric) if record.status == "ok" else ()
    marks = record.window_marks if metric == "throughput" else record.marks
    known = marks if marks and marks.count == len(taken) else Marks(count=0)
    out = frozenset(known.discarded)
    kept = [place for place in range(len(taken)) if place not in out]
    places = [place for place in kept if _countable(taken[place])]
    state = steady([taken[place] for place in places])
    not_finite, disturbed, late = len(kept) - len(places), len(taken) - len(kept), 0
    if calm := _before_a_disturbed_end(taken, places, state.start, frozenset(known.disturbed)):
        disturbed, late = disturbed + state.start - len(calm), len(places) - state.start
        places, state = calm, steady([taken[place] for place in calm])
    used = tuple(places[state.start :])
    return Series(tuple(taken[place] for place in used), not_finite, disturbed, state.start, state, late, used)


def _before_a_disturbed_end(
    taken: Sequence[float], places: Sequence[int], start: int, disturbed: frozenset[int]
) -> list[int]:
    """The calm places before ``places[start:]``, if that is a slower and disturbed level; see the top of the module.

    None at all where the end is not such a level, or where there is too little before it to go by.
    """
    begin, end = places[:start], places[start:]
    values = [taken[place] for place in places]
    if 2 * len(disturbed.intersection(end)) <= len(end) or not slower_from(values, start):
        return []
    calm = [place for place in begin if place not in disturbed]
    if len(begin) < LEAST_SHARE * len(places) or len(begin) - len(calm) > DISCARD_AT_MOST * len(begin):
        return []
    return calm if len(calm) >= LEAST_KEPT and steady([taken[place] for place in calm]).steady else []


def common_span(pair: Sequence[Record], metric: Metric) -> list[Sequence[float]]:
    """The samples of two processes that took turns, both from the same time on, and to the same time.

    What one was not steady in, for the machine changed or for itself, is left out of both: else one would be told of
    the machine as it was later, the other of all of it. Where too little would be left, or where it is not known when
    the samples were taken, each has its own.
    """
    series = [steady_samples(record, metric) for record in pair]
    begins = [_begins(record, metric) for record in pair]
    known = [(one, times) for one, times in zip(series, begins, strict=True) if one.places and times]
    low = max((times[one.places[0]] for one, times in known if one.unsteady), default=-math.inf)
    high = min((times[one.places[-1]] for one, times in known if one.late), default=math.inf)
    inside: list[Sequence[float]] = [
        [value for value, place in zip(one.samples, one.places, strict=True) if low <= times[place] <= high]
        for one, times in known
    ]
    if len(known) < len(pair) or min(map(len, inside)) < LEAST_KEPT:
        return [one.samples for one in series]
    return inside


def _begins(record: Record, metric: Metric) -> Sequence[float]:
    """When each sample of a metric was taken; nothing, where that is not known."""
    latency = record.measurement("latency")
    begins = latency.begins if latency and metric != "throughput" else ()
    return begins if len(begins) == len(record.samples(metric)) else ()


def latencies(record: Record) -> Series:
    """The latency samples of a record, in seconds; none if its case did not run to its end."""
    return steady_samples(record, "latency")


def finite(record: Record, metric: Metric) -> tuple[float, ...]:
    """Samples of a metric that are finite and not negative; none if the case did not run to its end."""
    if record.status != "ok":
        return ()
    return tuple(value for value in record.samples(metric) if _countable(value))


def _countable(value: float) -> bool:
    return 0 <= value < math.inf


@dataclass(frozen=True)
class CaseRuns:
    """The records of one case in one run, in the order they were made: one for each of its processes.

    ``later`` has those of a later run that was cut short, and does not count for it.
    """

    records: tuple[Record, ...]
    later: tuple[Record, ...] = ()

    @property
    def cut_short(self) -> bool:
        """Whether the run has fewer processes of the case than it was to have."""
        return len(self.records) < max(record.repeats for record in self.records)

    @cached_property
    def ran(self) -> tuple[Record, ...]:
        """Those that ran to their end."""
        return tuple(record for record in self.records if record.status == "ok")

    @property
    def first(self) -> Record:
        """The one that says what all have in common: the first that ran, or the first."""
        return (self.ran or self.records)[0]

    @cached_property
    def series(self) -> tuple[Series, ...]:
        """The latency samples of those that ran."""
        return tuple(latencies(record) for record in self.ran)

    @property
    def processes(self) -> list[Sequence[float]]:
        """The samples of each process, as ``stats.between_process`` and ``stats.compare`` take them."""
        return [series.samples for series in self.series if series.samples]

    @property
    def windows(self) -> list[Sequence[float]]:
        """Calls per second of each window of throughput, process by process."""
        return [samples for record in self.ran if (samples := steady_samples(record, "throughput").samples)]


def in_rounds(one: CaseRuns, other: CaseRuns) -> bool:
    """Whether two cases were measured in turns, in rounds that both got through: what drifts slowly hits both alike."""
    rounds = [[record.repeat for record in repeats.ran if latencies(record).samples] for repeats in (one, other)]
    return bool(one.first.run) and one.first.run == other.first.run and rounds[0] == rounds[1] and len(rounds[0]) > 1


def card(record: Record) -> str:
    """The UUID of the GPU that was watched, or of the first; empty where there is none."""
    watched = record.machine.gpu_uuid if record.machine else ""
    gpus = record.environment.gpus
    return watched or (gpus[0].uuid if gpus else "")


def latest(records: Sequence[Record]) -> list[CaseRuns]:
    """The last run of each case on each machine, at the place of the case's first record.

    One that was cut short does not hide an earlier one that was not, if fewer of its processes ran.

    Args:
        records: in any order. Those of one run that share a case are its repeats; records without a run, which are of
            an early version, are runs of their own.
    """
    runs: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        case = record.case.digest, machine_name(record.environment)
        runs.setdefault(case, {}).setdefault(record.run or record.id, []).append(record)
    found = []
    for mine in runs.values():
        inside = [CaseRuns(tuple(sorted(each, key=lambda record: record.created))) for each in mine.values()]
        last = max(inside, key=_ended)
        whole = [each for each in inside if last.cut_short and not each.cut_short and len(each.ran) > len(last.ran)]
        found.append(replace(max(whole, key=_ended), later=last.records) if whole else last)
    return found


def _ended(runs: CaseRuns) -> str:
    return runs.records[-1].created
