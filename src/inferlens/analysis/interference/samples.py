"""Which samples statistics are of: those of the steady state that nothing disturbed.

Records keep every sample. What is left out is decided here and nowhere else, each time anew, so that old records profit
from better statistics: samples that are negative or no finite numbers, those that the record's marks say to leave out
(``mark``), and the beginning of a series that was not steady yet (``stats.steady``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from inferlens.record.record import Metric, Record
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


NONE = Series((), 0, 0, 0)


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
    taken = record.samples(metric) if record.status == "ok" else ()
    if not taken:
        return NONE
    if record.budget.explicit:
        values = finite(record, metric)
        return Series(values, len(taken) - len(values), 0, 0)
    marks = record.window_marks if metric == "throughput" else record.marks
    out = frozenset(marks.discarded if marks and marks.count == len(taken) else ())
    kept: Sequence[int] = [place for place in range(len(taken)) if place not in out] if out else range(len(taken))
    whole = not out and min(taken) >= 0 and math.isfinite(sum(taken))  # as nearly all are, of which there are many
    places = kept if whole else [place for place in kept if 0 <= taken[place] < math.inf]
    values = taken if whole else tuple(taken[place] for place in places)
    start = steady(values).start
    latency = record.measurement("latency")
    times = latency.begins if latency and metric != "throughput" and len(latency.begins) == len(taken) else ()
    begins = times[start:] if whole else tuple(times[place] for place in places[start:]) if times else ()
    return Series(values[start:], len(kept) - len(places), len(taken) - len(kept), start, begins)


def latencies(record: Record) -> Series:
    """The latency samples of a record, in seconds; none if its case did not run to its end."""
    return steady_samples(record, "latency")


def finite(record: Record, metric: Metric) -> tuple[float, ...]:
    """Samples of a metric that are finite and not negative; none if the case did not run to its end."""
    taken = record.samples(metric) if record.status == "ok" else ()
    return tuple(value for value in taken if 0 <= value < math.inf)
