"""Which samples statistics are of: those of the steady state that nothing disturbed.

Records keep every sample. What is left out is decided here and nowhere else, each time anew, so that old records profit
from better statistics: samples that are negative or no finite numbers, those that the record's marks say to leave out
(``mark``), and the beginning of a series that was not steady yet (``stats.steady``).

Of processes that took turns on the machine the beginning counts too, for turns differ without a change of the process;
and a median is of the fastest turns, which have a third of the samples. What else runs there only ever slows a process,
and it slows whole turns, which are shorter than what the machine's log can tell apart.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from inferlens.record.record import IN_TURNS, Metric, Record
from inferlens.stats.steady import steady

Array = NDArray[np.float64]
PAUSE = 0.03  # seconds more than usual between calls of different turns: a turn begins with calls that are no samples
LEAST_TURNS, FAST = 3, 1 / 3  # turns of a process, and the share of its samples that a median is of


@dataclass(frozen=True)
class Series:
    """The samples of one metric of one record that statistics are of, in their unit and in order of time."""

    samples: Sequence[float]  # the samples, from which NumPy need not copy
    for_median: Sequence[float]  # those of them that a median is of
    not_finite: int  # how many were left out for this reason; so say the next two
    disturbed: int
    unsteady: int


def steady_samples(record: Record, metric: Metric) -> Series:
    """The samples of a metric that statistics are of; none if the case did not run to its end.

    ``marks`` are of the calls whose latency was taken; other metrics of these calls, such as GPU time, have as many
    samples. Where a number of samples or a time was asked for, all of them count.
    """
    return _steady_samples(_Same(record), metric)


class _Same:
    """A record that equals itself alone: to compare all the numbers of two takes longer than to work them out."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def __hash__(self) -> int:
        return id(self.record)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.record is other.record


@lru_cache(maxsize=256)  # numbers, the race and a dozen rules ask for the same, one comparison after the other
def _steady_samples(same: _Same, metric: Metric) -> Series:
    record = same.record
    taken, explicit = _taken(record, metric), record.budget.explicit
    if not taken.size:
        return Series((), (), 0, 0, 0)
    marks = record.window_marks if metric == "throughput" else record.marks
    kept = np.ones(taken.size, dtype=bool)
    if marks and marks.count == taken.size and not explicit:
        kept = ~np.isin(np.arange(taken.size), marks.discarded)
    known = kept & _finite(taken)
    values = taken[known]
    fast = None if explicit else _in_fast_turns(record, metric, known)
    start = 0 if explicit or fast is not None else steady(values).start
    count, samples = int(kept.sum()), _sequence(values[start:])
    for_median = samples if fast is None else _sequence(values[fast])
    return Series(samples, for_median, count - values.size, taken.size - count, start)


def _in_fast_turns(record: Record, metric: Metric, known: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Which of the known samples are in the fastest turns; ``None`` where there are no turns. A window is one."""
    timed = record.measurement("latency")
    if IN_TURNS not in record.facts:
        return None
    if metric == "throughput":
        turns, times = np.arange(known.size), -_taken(record, metric)
    elif timed and len(timed.begins) == len(timed.samples) == known.size > 1:
        begins, times = np.array(timed.begins), _taken(record, "latency")
        times = np.where(_finite(times), times, math.inf)
        pauses = begins[1:] - begins[:-1] - times[:-1]
        turns = np.concatenate([[0], np.cumsum(pauses >= PAUSE + np.median(pauses))])
    else:
        return None
    names, turns = np.unique(turns[known], return_inverse=True)
    if len(names) < LEAST_TURNS:
        return None
    times, every, even = times[known], np.ones(turns.size, dtype=bool), np.arange(turns.size) % 2 == 0

    def fastest(judging: NDArray[np.bool_], among: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of some samples are in the turns that are fastest by others of their samples."""
        judged = [times[judging & (turns == turn)] for turn in range(len(names))]
        order = np.argsort([float(np.median(item)) if item.size else math.inf for item in judged], kind="stable")
        enough = np.searchsorted(np.cumsum(np.bincount(turns[among], minlength=len(names))[order]), FAST * among.sum())
        return among & np.isin(turns, order[: enough + 1])

    # A turn is never chosen for the samples that count: those would be fast by luck, the more the more they vary.
    return fastest(every, every) if metric == "throughput" else fastest(even, ~even) | fastest(~even, even)


def latencies(record: Record) -> Series:
    """The latency samples of a record, in seconds; none if its case did not run to its end."""
    return steady_samples(record, "latency")


def _taken(record: Record, metric: Metric) -> Array:
    measurement = record.measurement(metric) if record.status == "ok" else None
    return np.array(measurement.samples if measurement else (), dtype=np.float64)


def _finite(values: Array) -> NDArray[np.bool_]:
    return (values >= 0) & (values < math.inf)


def _sequence(values: Array) -> Sequence[float]:
    return array("d", values.tobytes())
