"""How sure a median, a mean, a quantile and a ratio of medians are, for samples that resemble their neighbours.

*Quantiles.* Between which two samples the population's quantile lies depends on how many samples fall below it, and on
nothing else about the population: W. R. Thompson, "On confidence ranges for the median", Annals of Mathematical
Statistics 7 (1936). Ranks are fractional, see :func:`fractional_rank`, and those of the effective number of samples: R.
S. Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952), with the autocorrelation
time of the series "below the quantile or not" for his variance of the share. That time is itself an estimate, which
Student's t allows for as in E. L. Korn and B. I. Graubard, "Confidence intervals for proportions with small expected
number of positive counts", Survey Methodology 24 (1998): the effective number is divided by the squared ratio of
Student's quantile to the normal one.

*Ratios.* The intervals of both logarithms, put together by their margins: G. Y. Zou and A. Donner, "Construction of
confidence limits about effect measures: a general approach", Statistics in Medicine 27 (2008).

What no interval here covers is variation between processes: see ``comparison``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from inferlens.stats.autocorrelation import Array, autocorrelation, below
from inferlens.stats.quantiles import median, quantile_of_sorted
from inferlens.stats.remembered import remembered

LEAST_SAMPLES = 10


class Interval(Struct, frozen=True):
    """From ``low`` to ``high``, both included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def ends(interval: Interval | None) -> tuple[float | None, float | None]:
    """From where to where it reaches; ``None`` twice for none."""
    return (interval.low, interval.high) if interval else (None, None)


def median_interval(samples: Sequence[float] | Array, level: float = 0.95) -> Interval | None:
    """Interval of the median of samples in order of time, at confidence ``level``, in the samples' unit.

    ``None`` where there is none: below :data:`LEAST_SAMPLES` samples, or fewer than about six independent ones. Does
    not cover variation between processes.
    """
    return quantile_interval(samples, 0.5, level)


def half_width(samples: Sequence[float], level: float = 0.95) -> float:
    """How far the interval of the median reaches to its farther side, as a share of it; infinite without one."""
    interval, middle = median_interval(samples, level), median(samples)
    return max(interval.high - middle, middle - interval.low) / middle if interval and middle > 0 else math.inf


@remembered  # rules, tables and charts ask for the same ones
def quantile_interval(samples: Array, share: float, level: float = 0.95) -> Interval | None:
    """Interval of the ``share``-quantile (0 to 1, exclusive), as :func:`median_interval`.

    ``None`` too where the interval would end beyond the samples: at 95 % the 99th percentile needs 368 independent
    samples, the 95th needs 72.
    """
    if samples.size < LEAST_SAMPLES or not np.isfinite(samples).all():
        return None
    values = np.sort(samples)
    point = quantile_of_sorted(values, share)
    found = autocorrelation(below(samples, point))
    upper = (1 + level) / 2
    count = found.independent * (normal_quantile(upper) / student_quantile(upper, max(found.freedom, 1.0))) ** 2
    if count < 1.0:
        return None
    ranks = fractional_rank(count, share, upper), fractional_rank(count, share, 1 - upper)
    if ranks[0] < 1.0 or ranks[1] > count:  # not among the samples'
        return None
    scale = (found.count + 1) / (count + 1)
    low, high = (float(value) for value in np.interp(np.array(ranks) * scale - 1.0, np.arange(values.size), values))
    return Interval(min(low, point), max(high, point))


def mean_interval(samples: Sequence[float], level: float = 0.95) -> Interval | None:
    """Interval of the mean of samples in order of time, at confidence ``level``, in the samples' unit.

    The mean and its standard error, with the effective number of samples for their number, times Student's quantile.
    ``None`` below :data:`LEAST_SAMPLES` samples, or fewer than two independent ones. Rare and long outliers that the
    samples lack are not in it, and those of a heavy tail make it too short. Not between processes either.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size < LEAST_SAMPLES or not np.isfinite(values).all():
        return None
    found = autocorrelation(values)
    if found.independent < 2.0:
        return None
    mean = min(max(float(values.mean()), float(values.min())), float(values.max()))
    freedom = max(min(found.freedom, values.size - 1.0), 1.0)
    error = float(values.std(ddof=1)) / math.sqrt(found.independent)
    margin = student_quantile((1 + level) / 2, freedom) * error
    return Interval(mean - margin, mean + margin)


def ratio_interval(above: Sequence[float], under: Sequence[float], level: float = 0.95) -> Interval | None:
    """Interval of the median of ``above`` over that of ``under``; ``None`` where either has none, or reaches zero."""
    top, bottom = median_interval(above, level), median_interval(under, level)
    if top is None or bottom is None or min(top.low, bottom.low) <= 0:
        return None
    over, below_it = median(above), median(under)
    down = math.hypot(math.log(over / top.low), math.log(bottom.high / below_it))
    up = math.hypot(math.log(top.high / over), math.log(below_it / bottom.low))
    return Interval(over / below_it * math.exp(-down), over / below_it * math.exp(up))


@lru_cache(maxsize=256)
def normal_quantile(probability: float) -> float:
    """The value below which a standard normal variable lies with ``probability`` (between 0 and 1)."""
    from scipy.special import ndtri

    return float(ndtri(probability))


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: float) -> float:
    """The value below which Student's t with ``freedom`` > 0 degrees, infinite too, lies with ``probability``."""
    from scipy.special import stdtrit

    return normal_quantile(probability) if math.isinf(freedom) else float(stdtrit(freedom, probability))


def student_probability(value: float, freedom: float) -> float:
    """The probability that Student's t with ``freedom`` > 0 degrees of freedom, infinite too, lies below ``value``."""
    from scipy.special import ndtr, stdtr

    return float(ndtr(value) if math.isinf(freedom) else stdtr(freedom, value))


@lru_cache(maxsize=4096)
def fractional_rank(count: float, share: float, probability: float) -> float:
    """The real rank r of ``count`` samples whose r-th smallest lies below the ``share``-quantile with ``probability``.

    The share of the population below the r-th smallest of n is Beta(r, n + 1 - r) distributed, whatever the population;
    r is where that variable is below ``share`` with ``probability``. Fractional ranks: A. D. Hutson, "Calculating
    nonparametric confidence intervals for quantiles using fractional order statistics", Journal of Applied Statistics
    26 (1999). From 1 to ``count``; 0 or ``count + 1`` where there is no such sample.
    """
    from scipy.special import bdtrik

    if 1 - (1 - share) ** count <= probability:
        return 0.0
    if share**count >= probability:
        return count + 1
    # The probability that fewer than r of n samples lie below the quantile is the binomial one of r - 1.
    return float(bdtrik(1 - probability, count, share)) + 1
