"""Comparison of the times of two cases: a ratio, its interval, and a verdict.

Each process gives one number, the natural logarithm of its median. Two cases that were measured in the same rounds are
compared by the differences within the rounds. Cases that were measured at different times are compared by the means of
their processes.

A few processes say little about the noise. So a paired difference starts from the usual noise of its kind of device,
with the weight of one observation, as in G. K. Smyth, "Linear models and empirical Bayes methods", Statistical
Applications in Genetics and Molecular Biology 3 (2004). The interval is Student's with the degrees of freedom that
follow.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from inferlens.stats.intervals import Interval, median_interval, student_probability, student_quantile
from inferlens.stats.samples import median

Verdict = Literal["FASTER", "SAME", "SLOWER", "UNDECIDED"]

PRIOR_FREEDOM = 1.0  # degrees of freedom that the usual noise counts for
BORROWED_FREEDOM = 3.0  # largest number of degrees of freedom that the other close pairs of a race count for
MOST_BORROWED = 4.0  # times the usual noise: the largest noise that other pairs count with
ROUNDS = 10  # after which a race has used up its error
LARGEST_LOG = 300.0  # keeps the ends of an interval finite numbers
_ON_ONE_SIDE = "The whole interval is on the {} side, and the difference is at least the threshold."


class Noise(Struct, frozen=True):
    """The usual standard deviation of the difference of two processes' logarithms.

    ``paired`` is that of two processes that take turns, ``separate`` that of two that are measured at different times.
    A case that takes more than ``reach`` times as long as the fastest, at different times, is not the fastest. The
    values come from the pools in ``benchmarks/pools``.
    """

    paired: float
    separate: float
    reach: float


CPU_NOISE = Noise(paired=0.034, separate=0.2, reach=4.0)
GPU_NOISE = Noise(paired=0.025, separate=0.1, reach=1.3)


class LogRatio(Struct, frozen=True, kw_only=True):
    """The logarithm of a candidate's time over a base's."""

    log: float
    error: float  # its standard error, which has ``freedom`` degrees of freedom
    freedom: float
    rounds: int = 0  # number of common rounds; 0 if both were measured at different times
    noise: float = 1.0  # the estimated standard deviation of one round's difference, over the usual one
    replicated: bool = True  # whether a side was measured in more than one process

    @property
    def ratio(self) -> float:
        """The candidate's time over the base's."""
        return math.exp(self.log)

    def interval(self, level: float) -> Interval:
        """Return the interval of the ratio at a confidence ``level``."""
        margin = min(student_quantile((1 + level) / 2, self.freedom) * self.error, LARGEST_LOG)
        return Interval(math.exp(self.log - margin), math.exp(self.log + margin))

    def chance_above(self, log: float) -> float:
        """Return the probability that the true difference is larger than ``log``."""
        return student_probability((self.log - log) / self.error, self.freedom)

    def odds(self, threshold: float) -> dict[str, float]:
        """Return the probabilities that the candidate is faster or slower by the threshold, or neither (``SAME``)."""
        bound = math.log1p(threshold)
        slower, faster = self.chance_above(bound), 1 - self.chance_above(-bound)
        return {"FASTER": faster, "SAME": max(1 - faster - slower, 0.0), "SLOWER": slower}


class Comparison(Struct, frozen=True, kw_only=True):
    """The verdict on a candidate against a base."""

    verdict: Verdict
    reason: str
    ratio: float | None = None  # the candidate's time over the base's; ``None`` without positive medians
    interval: Interval | None = None  # of ``ratio``

    @property
    def speedup(self) -> float | None:
        """The base's time over the candidate's: above 1 the candidate is faster."""
        return None if self.ratio is None else 1 / self.ratio

    @property
    def speedup_interval(self) -> Interval | None:
        return None if self.interval is None else Interval(1 / self.interval.high, 1 / self.interval.low)


class Estimate(Struct, frozen=True, kw_only=True):
    """The median of a case over its processes, in the samples' unit.

    ``replicated``: whether the interval covers the variation between processes; for a single process it does not.
    """

    median: float
    interval: Interval | None
    replicated: bool


def log_median(samples: Sequence[float]) -> float | None:
    """Return the logarithm of the samples' median; ``None`` without samples, or unless it is positive and finite."""
    middle = median(samples) if len(samples) else 0.0
    return math.log(middle) if 0 < middle < math.inf else None


def log_medians(processes: Sequence[Sequence[float]]) -> list[float]:
    """Return the logarithm of each process's median; an empty list if a process with samples has none."""
    logs = [log_median(samples) for samples in processes if len(samples)]
    return [log for log in logs if log is not None] if None not in logs else []


def paired_difference(
    base: Mapping[Hashable, float],
    candidate: Mapping[Hashable, float],
    usual: Noise,
    borrowed: tuple[float, int] = (0.0, 0),
) -> LogRatio | None:
    """Return the difference of two cases over the rounds that both were in; ``None`` if there is no such round.

    Args:
        base, candidate: the logarithm of each round's median.
        usual: the noise that the estimate starts from.
        borrowed: the sum of squares and the degrees of freedom of the other close pairs of the race.
    """
    differences = np.array([candidate[key] - log for key, log in base.items() if key in candidate])
    if not differences.size:
        return None
    mean = float(differences.mean())
    squares, freedom = float(((differences - mean) ** 2).sum()), float(differences.size - 1)
    squares += PRIOR_FREEDOM * usual.paired**2
    other_squares, count = borrowed
    if count:
        weight = min(float(count), BORROWED_FREEDOM)
        squares += weight * min(other_squares / count, (MOST_BORROWED * usual.paired) ** 2)
        freedom += weight
    freedom += PRIOR_FREEDOM
    deviation = math.sqrt(squares / freedom)
    return LogRatio(
        log=mean,
        error=deviation / math.sqrt(differences.size),
        freedom=freedom,
        rounds=differences.size,
        noise=deviation / usual.paired,
    )


def unpaired_difference(
    base: Sequence[float], candidate: Sequence[float], usual: Noise = CPU_NOISE, unsteady: float = 0.0
) -> LogRatio:
    """Return the difference of processes that were measured at different times, from their logarithms.

    The noise is estimated from both sides. With one process on each side it is the usual one, and at least
    ``unsteady``, the logarithm of the factor by which calls within a process differ.
    """
    sides = np.asarray(base, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    freedom = float(sum(side.size - 1 for side in sides))
    variance = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    variance = variance / freedom if freedom else usual.separate**2 / 2
    return LogRatio(
        log=float(sides[1].mean() - sides[0].mean()),
        error=max(math.hypot(math.sqrt(variance * sum(1 / side.size for side in sides)), unsteady), 1e-12),
        freedom=freedom or PRIOR_FREEDOM,
        noise=math.sqrt(2 * variance) / usual.separate,
        replicated=freedom > 0,
    )


def chained_difference(first: LogRatio, second: LogRatio) -> LogRatio:
    """Return the difference of two cases from their differences with a third one.

    The degrees of freedom are those of B. L. Welch, "The generalization of 'Student's' problem", Biometrika 34 (1947).
    """
    error = math.hypot(first.error, second.error)
    return LogRatio(
        log=first.log + second.log,
        error=error,
        freedom=error**4 / (first.error**4 / first.freedom + second.error**4 / second.freedom),
        rounds=min(first.rounds, second.rounds),
        noise=max(first.noise, second.noise),
        replicated=first.replicated and second.replicated,
    )


def allowed_error(difference: LogRatio, level: float) -> float:
    """Return the allowed probability of error of one decision in a race, at an overall confidence ``level``.

    Early rounds may use less, and so may pairs that are noisier than usual, for which the usual noise is no guide.
    Calibrated by ``python -m benchmarks.race simulate``, so that complete races are as sure as ``level``. Cases without
    rounds are decided once.
    """
    if not difference.rounds:
        return 1 - level
    share = min(difference.rounds, ROUNDS) / ROUNDS
    return float(2.1 * (1 - level) * share**1.5 * min(1.0, 1 / max(difference.noise, 1e-9) ** 4))


def compare(
    base: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    *,
    threshold: float = 0.02,
    level: float = 0.95,
    comparisons: int = 1,
    usual: Noise = CPU_NOISE,
) -> Comparison:
    """Return the verdict on ``candidate`` against ``base``, each a series of samples for each of its processes.

    ``comparisons`` is the number of comparisons that share the error 1 - ``level`` (O. J. Dunn, "Multiple comparisons
    among means", JASA 56, 1961).
    """
    before, after = log_medians(base), log_medians(candidate)
    difference = unpaired_difference(before, after, usual) if before and after else None
    return conclude(difference, threshold=threshold, level=1 - (1 - level) / comparisons)


def conclude(difference: LogRatio | None, *, threshold: float, level: float) -> Comparison:
    """Return the verdict that follows from a difference.

    SLOWER: the whole interval of the ratio is above 1 and the ratio at least 1 + ``threshold``. FASTER: the mirror
    image. SAME: the whole interval lies from 1 / (1 + ``threshold``) to 1 + ``threshold``. Else UNDECIDED.
    """
    if difference is None:
        return Comparison(verdict="UNDECIDED", reason="One side has no samples, or times of zero.")
    ratio, interval, limit = difference.ratio, difference.interval(level), 1 + threshold
    verdict: Verdict = "UNDECIDED"
    if not difference.replicated:
        reason = "Each side was measured once: how far processes differ is not known."
    elif interval.low > 1 and ratio >= limit:
        verdict, reason = "SLOWER", _ON_ONE_SIDE.format("slow")
    elif interval.high < 1 and ratio <= 1 / limit:
        verdict, reason = "FASTER", _ON_ONE_SIDE.format("fast")
    elif interval.low >= 1 / limit and interval.high <= limit:
        verdict, reason = "SAME", "The whole interval is within the threshold."
    else:
        reason = "The interval holds both a difference that matters and one that does not: more processes are needed."
    return Comparison(verdict=verdict, reason=reason, ratio=ratio, interval=interval)


def estimate(processes: Sequence[Sequence[float]], level: float = 0.95) -> Estimate | None:
    """Return the median over processes, each with its samples in order of time; ``None`` if unknown.

    For several processes it is the geometric mean of their medians, with Student's interval of the logarithms. For a
    single process the interval is that of its samples.
    """
    nonempty = [samples for samples in processes if len(samples)]
    logs = log_medians(nonempty)
    if not logs:
        return None
    if len(logs) == 1:
        return Estimate(median=median(nonempty[0]), interval=median_interval(nonempty[0], level), replicated=False)
    return Estimate(median=math.exp(math.fsum(logs) / len(logs)), interval=_mean_interval(logs, level), replicated=True)


def interval_over_processes(values: Sequence[float | None], level: float = 0.95) -> Interval | None:
    """Return the interval of the geometric mean of one positive number per process; ``None`` with fewer than two."""
    numbers = [value for value in values if value is not None and 0 < value < math.inf]
    return _mean_interval([math.log(value) for value in numbers], level) if len(numbers) == len(values) > 1 else None


def _mean_interval(logs: Sequence[float], level: float) -> Interval:
    """Return Student's interval of the geometric mean, from logarithms; the usual noise counts as one observation."""
    values = np.sort(np.asarray(logs, dtype=np.float64))
    mean, freedom = float(values.mean()), values.size - 1 + PRIOR_FREEDOM
    squares = float(((values - mean) ** 2).sum()) + PRIOR_FREEDOM * CPU_NOISE.paired**2 / 2
    margin = student_quantile((1 + level) / 2, freedom) * math.sqrt(squares / freedom / values.size)
    margin = min(margin, LARGEST_LOG)
    return Interval(math.exp(mean - margin), math.exp(mean + margin))
