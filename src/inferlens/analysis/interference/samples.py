"""Which samples statistics are of: those of the steady state that nothing disturbed; and which records are one case's.

Records keep every sample. What is left out is decided here and nowhere else, each time anew, so that old records profit
from better statistics: samples that are negative or no finite numbers, those that the record's marks say to leave out
(``mark``), and the beginning of a series that was not steady yet (``stats.steady``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, lru_cache

from inferlens.record.record import CUT_SHORT, Metric, Record, machine_name
from inferlens.stats.steady import steady


@dataclass(frozen=True)
class Series:
    """The samples of one metric of one record that statistics are of, in their unit and in order of time.

    Attributes:
        samples: the samples.
        not_finite, disturbed, unsteady: how many were left out, for which reason.
        begins: when each of them began, by the host's clock; empty where that is not known.
    """

    samples: tuple[float, ...]
    not_finite: int
    disturbed: int
    unsteady: int
    begins: tuple[float, ...] = ()


def steady_samples(record: Record, metric: Metric) -> Series:
    """The samples of a metric that statistics are of; none if the case did not run to its end.

    ``marks`` are of the calls whose latency was taken; other metrics of these calls, such as GPU time, have as many
    samples. Where a number of samples or a time was asked for, all of them count.
    """
    taken = record.samples(metric) if record.status == "ok" else ()
    if record.budget.explicit:
        values = finite(record, metric)
        return Series(values, len(taken) - len(values), 0, 0)
    marks = record.window_marks if metric == "throughput" else record.marks
    out = frozenset(marks.discarded if marks and marks.count == len(taken) else ())
    kept = [place for place in range(len(taken)) if place not in out]
    places = [place for place in kept if 0 <= taken[place] < math.inf]
    values = tuple(taken[place] for place in places)
    start = _beginning(values)
    latency = record.measurement("latency")
    times = latency.begins if latency and metric != "throughput" and len(latency.begins) == len(taken) else ()
    begins = tuple(times[place] for place in places[start:]) if times else ()
    return Series(values[start:], len(kept) - len(places), len(taken) - len(kept), start, begins)


@lru_cache(maxsize=4096)  # every view of a record asks again
def _beginning(values: tuple[float, ...]) -> int:
    """How many samples come before the steady state."""
    return steady(values).start


def latencies(record: Record) -> Series:
    """The latency samples of a record, in seconds; none if its case did not run to its end."""
    return steady_samples(record, "latency")


def finite(record: Record, metric: Metric) -> tuple[float, ...]:
    """Samples of a metric that are finite and not negative; none if the case did not run to its end."""
    taken = record.samples(metric) if record.status == "ok" else ()
    return tuple(value for value in taken if 0 <= value < math.inf)


@dataclass(frozen=True)
class CaseRuns:
    """The records of one case in one run, in the order they were made: one for each of its processes.

    ``later`` has those of a later run that was cut short, and does not count for it; ``of_runs`` is how many runs of
    the case there are.
    """

    records: tuple[Record, ...]
    later: tuple[Record, ...] = ()
    of_runs: int = 1

    @property
    def cut_short(self) -> bool:
        """Whether the run has fewer processes of the case than it was to have, or its cases never met."""
        planned = max(record.repeats for record in self.records)
        return len(self.records) < planned or any(CUT_SHORT in record.facts for record in self.records)

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


def card(record: Record) -> str:
    """The UUID of the GPU that was watched, or of the first; empty where there is none."""
    gpus = record.environment.gpus
    return (record.machine.gpu_uuid if record.machine else "") or (gpus[0].uuid if gpus else "")


def device_name(record: Record) -> str:
    """Name of the GPU, or of the CPU for cases on the CPU."""
    environment = record.environment
    if record.case.device == "cpu":
        return environment.cpu or "CPU"
    return environment.gpus[0].name if environment.gpus else "GPU"


def latest(records: Sequence[Record]) -> list[CaseRuns]:
    """The last run of each case on each machine, at the place of the case's first record.

    One that was cut short does not hide an earlier one that was not, unless more of its processes ran. Of the records,
    in any order, those of one run that share a case are its repeats.
    """
    runs: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        case = record.case.digest, machine_name(record.environment)
        runs.setdefault(case, {}).setdefault(record.run or record.id, []).append(record)
    found = []
    for mine in runs.values():
        inside = [CaseRuns(tuple(sorted(each, key=lambda record: record.created))) for each in mine.values()]
        inside.sort(key=lambda each: each.records[-1].created, reverse=True)  # the first of those that end together
        last = inside[0]
        whole = [each for each in inside if last.cut_short and not each.cut_short and len(each.ran) >= len(last.ran)]
        chosen = replace(whole[0], later=last.records) if whole else last
        found.append(replace(chosen, of_runs=len(inside)))
    return found


def each_run(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each run, the oldest run first; what belongs to no run is one of its own."""
    runs: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.created):
        runs.setdefault(record.run or record.id, []).append(record)
    return list(runs.values())


def run_seconds(records: Sequence[Record]) -> dict[str, float]:
    """From the begin of each run's first case to the end of its last, by the run's id; of those that took long."""
    spans: dict[str, tuple[float, float]] = {}
    for record in records:
        with suppress(ValueError):  # a record may come from anywhere
            begin = datetime.fromisoformat(record.created.replace("Z", "+00:00")).timestamp()
            low, high = spans.get(record.run, (begin, begin))
            end = begin + sum(phase.seconds for phase in record.phases)
            spans[record.run] = (min(low, begin), max(high, end))
    return {run: high - low for run, (low, high) in spans.items() if run}
