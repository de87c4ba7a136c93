"""A median from several processes of one case, and how sure it is.

Samples of one process share its memory layout, its compiled code and the machine's state, so a longer run does not tell
what another run would give. As in T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013, the
process is the unit that is repeated: each gives one number, the logarithm of its median, and the interval is Student's
over these. It covers both levels, and is never shorter than what the samples within the processes alone allow: few
processes may agree by luck, or by a coarse clock.

*Neighbours.* A machine that is slow for some minutes is slow for several processes in a row. The correlation of each
process with the one before tells, if it is larger than that of independent ones by chance: at most one in twenty is, by
its mean and variance after P. A. P. Moran, "Some theorems on time series II", Biometrika 35 (1948). What short series
miss is added as in F. H. C. Marriott and J. A. Pope, "Bias in the estimation of autocorrelations", Biometrika 41
(1954). As many as ``count`` processes of which each resembles the one before by r are worth count (1 - r) / (1 + r)
independent ones, and their variance is too small by a factor that follows from it: A. Zięba, "Effective number of
observations and unbiased estimators of variance for autocorrelated data", Metrology and Measurement Systems 17 (2010).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from inferlens.stats.intervals import Interval, median_interval, normal_quantile, student_quantile
from inferlens.stats.quantiles import median

LEAST_PROCESSES = 6
_LEVEL = 0.95
_WIDEST = 300.0  # wider than any finding, and still a finite number
_SIGNIFICANT = 0.95
_MOST = 0.9  # beyond it the number of independent ones is below two for any number of processes
_FEWEST = 2.0


class Centre(Struct, frozen=True):
    """The median of one process: its natural logarithm, and the square of that one's standard error, if it is known."""

    log: float
    variance: float | None


class Estimate(Struct, frozen=True, kw_only=True):
    """The median of a case over its processes."""

    median: float  # the geometric mean of the processes' medians, in the samples' unit
    interval: Interval | None  # of ``median``; ``None`` with too few samples
    between: bool  # whether the interval covers variation between processes: not with a single one


def estimate(processes: Sequence[Sequence[float]], level: float = 0.95) -> Estimate | None:
    """The median over processes, each with its samples in order of time, with an interval at confidence ``level``.

    Processes without samples do not count; ``None`` if none is left, or a median is not positive.
    """
    full = [samples for samples in processes if len(samples)]
    if len(full) == 1:
        middle = median(full[0])
        known = 0 < middle < math.inf
        return Estimate(median=middle, interval=median_interval(full[0], level), between=False) if known else None
    found = centres(full)
    if not found:
        return None
    logs = np.sort([centre.log for centre in found])
    middle = math.exp(float(logs.mean()))
    margin = _margin(float(logs.var(ddof=1)), mean_variance(found), len(found), level)
    return Estimate(median=middle, interval=around(middle, margin), between=True)


def over_processes(values: Sequence[float | None], level: float = 0.95) -> Interval | None:
    """The interval of the geometric mean of one number per process, such as its p95: Student's over the logarithms.

    ``None`` with fewer than two processes, or where one has no positive number.
    """
    known = [value for value in values if value is not None and 0 < value < math.inf]
    if len(known) < max(2, len(values)):
        return None
    logs = np.sort(np.log(known))
    return around(math.exp(float(logs.mean())), _margin(float(logs.var(ddof=1)), None, len(known), level))


def centres(processes: Sequence[Sequence[float]]) -> list[Centre]:
    """The centre of each process that has samples; none at all if a median is not positive and finite."""
    found = []
    for samples in processes:
        if not len(samples):
            continue
        middle = median(samples)
        if not (middle > 0 and math.isfinite(middle)):
            return []
        interval, variance = median_interval(samples, _LEVEL), None
        if interval is not None and interval.low > 0:  # an interval's length is twice z standard errors
            variance = (math.log(interval.high / interval.low) / (2 * normal_quantile((1 + _LEVEL) / 2))) ** 2
        found.append(Centre(math.log(middle), variance))
    return found


def mean_variance(found: Sequence[Centre]) -> float | None:
    """The mean of the variances within; ``None`` where one is not known."""
    known = [centre.variance for centre in found if centre.variance is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(found) else None


def _margin(variance: float, within: float | None, count: int, level: float) -> float:
    """Half the length of Student's interval of a mean of ``count`` logarithms, at least that from ``within`` alone."""
    upper = (1 + level) / 2
    margin = student_quantile(upper, count - 1) * math.sqrt(variance / count)
    return max(margin, normal_quantile(upper) * math.sqrt((within or 0.0) / count))


def around(middle: float, margin: float) -> Interval:
    """The interval from ``middle`` over e to the ``margin`` to ``middle`` times that."""
    factor = math.exp(min(margin, _WIDEST))
    return Interval(middle / factor, middle * factor)


def process_autocorrelation(runs: Sequence[Sequence[float]]) -> float:
    """The correlation of each process's number with the one before, of all runs together, each in order of time.

    0 where it is not significantly above 0, or no run has :data:`LEAST_PROCESSES`.
    """
    centred = [np.asarray(run, dtype=np.float64) - float(np.mean(run)) for run in runs if len(run) >= LEAST_PROCESSES]
    count = sum(run.size for run in centred)
    total = sum(float(run @ run) for run in centred)
    if total <= count * 1e-24:  # rounding, on a logarithmic scale
        return 0.0
    found = sum(float(run[1:] @ run[:-1]) for run in centred) / total
    by_chance = -len(centred) / count
    deviation = math.sqrt(sum((run.size - 2) ** 2 / (run.size - 1) for run in centred)) / count
    if found <= by_chance + normal_quantile(_SIGNIFICANT) * deviation:
        return 0.0
    return min(found + (1 + 3 * found) * len(centred) / count, _MOST)


def spread(values: Sequence[float], correlation: float) -> tuple[float, float]:
    """The variance of two values or more that resemble those before, and how many independent ones they are worth."""
    count = len(values)
    variance = float(np.sort(np.asarray(values, dtype=np.float64)).var(ddof=1))
    if correlation <= 0:
        return variance, float(count)
    independent = min(max(count * (1 - correlation) / (1 + correlation), _FEWEST), float(count))
    return variance * (count - 1) / (count - count / independent), independent
