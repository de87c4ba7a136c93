"""The samples that statistics use: of one record, and of all processes of a case.

Records keep every sample. This module alone decides which of them count, each time anew, so that old records profit
from better statistics. It leaves out samples that are negative or not finite, samples that the record's marks discard
(see :mod:`inferlens.analysis.interference`), and the beginning of a series that was not steady yet.

Interleaved processes keep their beginning, because turns differ without a change of the process. Their median is of the
fastest turns, which have a third of the samples: other programs only ever slow a process, and they slow whole turns,
which are too short for the machine's log.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferlens.record.record import CUT_SHORT, IN_TURNS, Agreement, Metric, Record, machine_name
from inferlens.stats.samples import Array, Summary, geometric_mean, summarise
from inferlens.stats.steady import steady

T = TypeVar("T")
K = TypeVar("K")
PAUSE = 0.03  # seconds more than usual between calls of different turns: a turn begins with calls that are no samples
LEAST_TURNS, FAST = 3, 1 / 3  # turns of a process, and the share of its samples that its median is of


@dataclass(frozen=True)
class Series:
    """The samples of one metric of one record that count, in their unit and in order of time."""

    samples: Sequence[float]  # a buffer that NumPy need not copy
    for_median: Sequence[float]  # those of them that a median is of
    not_finite: int  # number of samples left out for this reason; so are the next two
    disturbed: int
    unsteady: int


def steady_samples(record: Record, metric: Metric) -> Series:
    """Return the samples of a metric that count; none if the case did not run to its end.

    ``marks`` refer to the calls whose latency was taken; other metrics of these calls, such as GPU time, have as many
    samples. If the user asked for a number of samples or a time, all of them count.
    """
    return _steady_samples(_ById(record), metric)


def latencies(record: Record) -> Series:
    """Return the latency samples that count, in seconds."""
    return steady_samples(record, "latency")


class _ById:
    """A record that only equals itself: comparing all numbers of two takes longer than recomputing."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def __hash__(self) -> int:
        return id(self.record)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.record is other.record


@lru_cache(maxsize=256)
def _steady_samples(key: _ById, metric: Metric) -> Series:
    record = key.record
    recorded, explicit = _recorded(record, metric), record.budget.explicit
    if not recorded.size:
        return Series((), (), not_finite=0, disturbed=0, unsteady=0)
    marks = record.window_marks if metric == "throughput" else record.marks
    undisturbed = np.ones(recorded.size, dtype=bool)
    if marks and marks.count == recorded.size and not explicit:
        undisturbed = ~np.isin(np.arange(recorded.size), marks.discarded)
    mask = undisturbed & _finite(recorded)
    values = recorded[mask]
    fast = None if explicit else _in_fast_turns(record, metric, mask)
    start = 0 if explicit or fast is not None else steady(values).start
    samples = _sequence(values[start:])
    for_median = samples if fast is None else _sequence(values[fast])
    kept = int(undisturbed.sum())
    return Series(samples, for_median, kept - values.size, recorded.size - kept, start)


def _in_fast_turns(record: Record, metric: Metric, mask: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Return which of the masked samples are in the fastest turns; ``None`` without turns. A window is one turn."""
    latency = record.measurement("latency")
    if IN_TURNS not in record.facts:
        return None
    if metric == "throughput":
        turns, times = np.arange(mask.size), -_recorded(record, metric)
    elif latency and len(latency.begins) == len(latency.samples) == mask.size > 1:
        begins, times = np.array(latency.begins), _recorded(record, "latency")
        times = np.where(_finite(times), times, math.inf)
        pauses = begins[1:] - begins[:-1] - times[:-1]
        turns = np.concatenate([[0], np.cumsum(pauses >= PAUSE + np.median(pauses))])
    else:
        return None
    numbers, turns = np.unique(turns[mask], return_inverse=True)
    if len(numbers) < LEAST_TURNS:
        return None
    times = times[mask]

    def fastest(criterion: NDArray[np.bool_], selection: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the samples of ``selection`` in the turns that are fastest by the samples of ``criterion``."""
        groups = [times[criterion & (turns == turn)] for turn in range(len(numbers))]
        order = np.argsort([float(np.median(group)) if group.size else math.inf for group in groups], kind="stable")
        sizes = np.cumsum(np.bincount(turns[selection], minlength=len(numbers))[order])
        enough = np.searchsorted(sizes, FAST * selection.sum())
        return selection & np.isin(turns, order[: enough + 1])

    if metric == "throughput":
        every_sample = np.ones(turns.size, dtype=bool)
        return fastest(every_sample, every_sample)
    # Choosing a turn by the samples that count would favor turns that are fast by luck.
    even = np.arange(turns.size) % 2 == 0
    return fastest(even, ~even) | fastest(~even, even)


def _recorded(record: Record, metric: Metric) -> Array:
    measurement = record.measurement(metric) if record.status == "ok" else None
    return np.array(measurement.samples if measurement else (), dtype=np.float64)


def _finite(values: Array) -> NDArray[np.bool_]:
    return (values >= 0) & (values < math.inf)


def _sequence(values: Array) -> Sequence[float]:
    return array("d", values.tobytes())


@dataclass(frozen=True)
class CaseRuns:
    """The records of one case in one run, one for each of its processes, in order of time."""

    records: tuple[Record, ...]
    later: tuple[Record, ...] = ()  # those of a later run that was cut short, and does not count
    of_runs: int = 1  # number of comparable runs of the case

    @property
    def cut_short(self) -> bool:
        """Return whether the run has fewer processes of the case than planned, or its cases never met."""
        planned = max(record.repeats for record in self.records)
        return len(self.records) < planned or any(CUT_SHORT in record.facts for record in self.records)

    @cached_property
    def ran(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record.status == "ok")

    @property
    def ranked(self) -> bool:
        return all(record.ranked for record in self.records)

    @property
    def first(self) -> Record:
        """The record for facts that all share: the first that ran, or the first."""
        return (self.ran or self.records)[0]

    @property
    def timed(self) -> tuple[Record, ...]:
        """The records whose latencies count: all that ran; in a race those of its rounds, if the case was in any."""
        rounds = tuple(record for record in self.ran if record.repeat and not record.repeats)
        return rounds or self.ran

    @property
    def series(self) -> tuple[Series, ...]:
        return tuple(latencies(record) for record in self.timed)

    @property
    def processes(self) -> list[Sequence[float]]:
        """The samples for the median of each process, as :mod:`inferlens.stats.comparison` takes them."""
        return [series.for_median for series in self.series if series.samples]

    @cached_property
    def summaries(self) -> tuple[Summary, ...]:
        return tuple(summary for series in self.series if (summary := summarise(series.samples)))

    def latency(self, name: str) -> float | None:
        """Return a number of the summaries, such as ``p99``: the geometric mean, if all processes have it."""
        values = [getattr(summary, name) for summary in self.summaries if summary.count > 1 or name != "deviation"]
        return None if None in values else geometric_mean(values)

    @property
    def worst_agreement(self) -> Agreement | None:
        """The agreement of the process whose outputs are the furthest off; wrong outputs come first."""
        agreements = [record.agreement for record in self.ran or self.records[:1] if record.agreement]
        return max(
            agreements,
            key=lambda agreement: (agreement.agrees is False, agreement.agrees is None, agreement.rel_l2 or 0.0),
            default=None,
        )

    @property
    def windows(self) -> list[Sequence[float]]:
        """Calls per second of each window of throughput, process by process."""
        return [steady_samples(record, "throughput").for_median for record in self._rated]

    @property
    def separate_rate(self) -> bool:
        """Return whether throughput is of other processes than latency."""
        timed = [record.id for record in self.timed if record.measurement("latency")]
        return bool(timed and self._rated) and self._rated[0].id not in timed

    @cached_property
    def _rated(self) -> tuple[Record, ...]:
        """The records whose throughput counts: the timed ones, or all if none of those has any."""
        rated = tuple(record for record in self.ran if steady_samples(record, "throughput").for_median)
        timed = {record.id for record in self.timed}
        return tuple(record for record in rated if record.id in timed) or rated


def device_name(record: Record) -> str:
    """Return the name of the GPU, or of the CPU for cases on the CPU."""
    environment = record.environment
    if record.case.device == "cpu":
        return re.sub(r"\((R|TM)\)| (CPU|Processor)\b| @ .*", "", environment.cpu or "").strip() or "CPU"
    return environment.gpus[0].name if environment.gpus else "GPU"


def case_and_machine(record: Record) -> tuple[str, str]:
    """Return the key of a record's case and machine. The model's own batch counts as its size."""
    case, inputs = record.case, record.model.inputs
    if case.batch is None and inputs and inputs[0].shape:
        case = msgspec.structs.replace(case, batch=inputs[0].shape[0])
    return case.digest, machine_name(record.environment)


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items of each key, in their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def latest(records: Sequence[Record]) -> list[CaseRuns]:
    """Return the last run of each case on each machine, in the order of the cases' first records.

    A run that was cut short does not hide an earlier complete one, unless more of its processes ran. A run of
    throughput alone does not hide one with latencies. Records of one run that share a case are its processes.
    """
    results = []
    for case_records in group_by(records, case_and_machine).values():
        runs = [CaseRuns(tuple(run)) for run in split_runs(case_records)]
        runs.sort(key=lambda run: run.records[-1].created, reverse=True)
        with_latency = [run for run in runs if run.first.budget.mode != "throughput"]
        runs = with_latency if any(run.ran for run in with_latency) else runs
        last = runs[0]
        complete = [run for run in runs if last.cut_short and not run.cut_short and len(run.ran) >= len(last.ran)]
        run = replace(complete[0], later=last.records) if complete else last
        results.append(replace(run, of_runs=len(runs)))
    return results


def split_runs(records: Sequence[Record]) -> list[list[Record]]:
    """Return the records of each run in order of time, the oldest run first; a record without a run is its own."""
    in_order = sorted(records, key=lambda record: record.created)
    return list(group_by(in_order, lambda record: record.run or record.id).values())
