"""Which records are one case's, which run of it counts, and where it ran."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from inferlens.analysis.interference.samples import Series, latencies, steady_samples
from inferlens.record.record import CUT_SHORT, Record, machine_name
from inferlens.stats.quantiles import Summary, geometric_mean, summarise


@dataclass(frozen=True)
class CaseRuns:
    """The records of one case in one run, in the order they were made: one for each of its processes.

    ``later`` has those of a later run that was cut short, and does not count for it; ``of_runs`` is how many runs of
    the case there are that tell as much.
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
    def ranked(self) -> bool:
        """Whether it may win: every process ran, with right outputs."""
        return all(record.ranked for record in self.records)

    @property
    def first(self) -> Record:
        """The one that says what all have in common: the first that ran, or the first."""
        return (self.ran or self.records)[0]

    @property
    def timed(self) -> tuple[Record, ...]:
        """Those whose latencies count: all that ran; of a race those of its rounds, if the case was in any."""
        rounds = tuple(record for record in self.ran if record.repeat and not record.repeats)
        return rounds or self.ran

    @property
    def series(self) -> tuple[Series, ...]:
        """The latency samples of those that count."""
        return tuple(latencies(record) for record in self.timed)

    @property
    def processes(self) -> list[Sequence[float]]:
        """What the median of each process is of, as ``stats.comparison`` takes them."""
        return [series.for_median for series in self.series if series.samples]

    @cached_property
    def summaries(self) -> tuple[Summary, ...]:
        """The latency of each process that has samples."""
        return tuple(summary for series in self.series if (summary := summarise(series.samples)))

    def latency(self, name: str) -> float | None:
        """A number of the summaries, such as ``p99``: the geometric mean over the processes, if all tell it."""
        told = [getattr(summary, name) for summary in self.summaries if summary.count > 1 or name != "deviation"]
        return None if None in told else geometric_mean(told)

    @property
    def windows(self) -> list[Sequence[float]]:
        """Calls per second of each window of throughput, process by process."""
        return [steady_samples(record, "throughput").for_median for record in self._rated]

    @property
    def separate_rate(self) -> bool:
        """Whether throughput is of other processes than latency."""
        timed = [record.id for record in self.timed if record.measurement("latency")]
        return bool(timed and self._rated) and self._rated[0].id not in timed

    @cached_property
    def _rated(self) -> tuple[Record, ...]:
        """The processes whose throughput counts: those whose latency counts, or all if none of them has any."""
        rated = tuple(record for record in self.ran if steady_samples(record, "throughput").for_median)
        timed = {record.id for record in self.timed}
        return tuple(record for record in rated if record.id in timed) or rated


def device_name(record: Record) -> str:
    """Name of the GPU, or of the CPU for cases on the CPU."""
    environment = record.environment
    if record.case.device == "cpu":
        return re.sub(r"\((R|TM)\)| (CPU|Processor)\b| @ .*", "", environment.cpu or "").strip() or "CPU"
    return environment.gpus[0].name if environment.gpus else "GPU"


def case_and_machine(record: Record) -> tuple[str, str]:
    """Return what the records of one case on one machine share; the model's own batch is its size."""
    case, inputs = record.case, record.model.inputs
    if case.batch is None and inputs and inputs[0].shape:
        case = msgspec.structs.replace(case, batch=inputs[0].shape[0])
    return case.digest, machine_name(record.environment)


def latest(records: Sequence[Record]) -> list[CaseRuns]:
    """The last run of each case on each machine, at the place of the case's first record.

    One that was cut short does not hide an earlier one that was not, unless more of its processes ran, nor one of
    throughput alone one that has latencies. Of the records, in any order, those of one run that share a case are its
    repeats.
    """
    runs: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        case = case_and_machine(record)
        runs.setdefault(case, {}).setdefault(record.run or record.id, []).append(record)
    found = []
    for run in runs.values():
        inside = [CaseRuns(tuple(sorted(item, key=lambda record: record.created))) for item in run.values()]
        inside.sort(
            key=lambda case_runs: case_runs.records[-1].created, reverse=True
        )  # the first of those that end together
        told = [case_runs for case_runs in inside if case_runs.first.budget.mode != "throughput"]
        told = told if any(case_runs.ran for case_runs in told) else inside
        last = told[0]
        whole = [
            case_runs
            for case_runs in told
            if last.cut_short and not case_runs.cut_short and len(case_runs.ran) >= len(last.ran)
        ]
        chosen = replace(whole[0], later=last.records) if whole else last
        found.append(replace(chosen, of_runs=len(told)))
    return found


def each_run(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each run, the oldest run first; what belongs to no run is one of its own."""
    runs: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.created):
        runs.setdefault(record.run or record.id, []).append(record)
    return list(runs.values())
