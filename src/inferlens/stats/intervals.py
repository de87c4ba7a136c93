"""How far consecutive samples resemble each other, and how many independent ones a series is therefore worth.

The integrated autocorrelation time is 1 + 2 (r1 + r2 + ...), with r the autocorrelations: the mean of n samples of a
series with time T is as uncertain as that of n / T independent ones. The sum stops by the initial monotone sequence:
C. J. Geyer, "Practical Markov chain Monte Carlo", Statistical Science 7 (1992), section 3.3: sums of neighbouring pairs
of r are positive and fall; pairs below ``_NOISE / sqrt(n)`` count as not positive.

Autocorrelations about the mean of the same series are too small, by about T / n each (F. H. C. Marriott and J. A. Pope,
"Bias in the estimation of autocorrelations", Biometrika 41 (1954)). That is added back, in a few rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from inferlens.stats.samples import Array, median, quantile_of_sorted, memoize_samples

_NOISE = 1.0
_ROUNDS = 5
_SIGNIFICANT = 2.0  # standard errors of no autocorrelation at all; see `correlated`


class Autocorrelation(Struct, frozen=True):
    """The autocorrelation of one series."""

    time: float  # integrated, in samples: 1 for independent ones, below 1 if neighbours lie on opposite sides
    window: int  # the largest lag in the sum
    count: int  # samples in the series

    @property
    def independent(self) -> float:
        """The effective number of samples: never more than there are, for a run of luck is no knowledge."""
        return self.count / max(self.time, 1.0)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the estimate of ``time``, for Student's t; infinite where nothing was estimated.

        A sum up to lag M has a relative variance of about 2 (2M + 1) / n (M. B. Priestley, *Spectral Analysis and Time
        Series* (1981), section 6.2), that of a chi-squared variable with n / (2M + 1) degrees. Only the part above 1
        is uncertain, for 1 is certain, so the relative variance is that of the part.
        """
        if self.time <= 1.0:
            return math.inf
        return self.count / (2 * self.window + 1) * (self.time / (self.time - 1.0)) ** 2


def autocorrelations(samples: Sequence[float] | Array) -> Array:
    """Autocorrelations at the lags 0 to n - 1 of n samples, with n in every denominator; 0 of equal ones."""
    values = np.asarray(samples, dtype=np.float64)
    count = values.size
    width = float(values.max() - values.min()) if count else 0.0
    if width == 0:
        return np.asarray([1.0, *[0.0] * (count - 1)][:count], dtype=np.float64)
    # Divided first: squares of nanoseconds are small.
    values = (values - values.mean()) / width
    spectrum = np.fft.rfft(values, 1 << (2 * count - 1).bit_length())
    products = np.fft.irfft(spectrum.real**2 + spectrum.imag**2)[:count]
    return np.asarray(products / products[0], dtype=np.float64)


def autocorrelation(samples: Sequence[float] | Array) -> Autocorrelation:
    """The integrated autocorrelation time, at most n / 2, of a series in order of time; 1 below four samples."""
    return integrate_autocorrelations(autocorrelations(samples))


def integrate_autocorrelations(raw: Array) -> Autocorrelation:
    """The same, of the :func:`autocorrelations` of the series."""
    count = raw.size
    if count < 4 or not raw[1:].any():
        return Autocorrelation(1.0, 0, count)
    pairs = raw[: count // 2 * 2 : 2] + raw[1::2]
    autocorrelation = Autocorrelation(1.0, 0, count)
    for round_ in range(_ROUNDS):
        before = autocorrelation.time
        autocorrelation = _sum_monotone(
            (pairs + 2 * before / count) / (1.0 + before / count) if round_ else pairs, count
        )
        if abs(autocorrelation.time - before) < 0.01 * before:
            break
    return autocorrelation


def _sum_monotone(pairs: Array, count: int) -> Autocorrelation:
    """The initial monotone sequence of autocorrelations, which come in sums of two, summed."""
    ends = pairs <= _NOISE / math.sqrt(count)
    first = int(np.argmax(ends))
    length = first if ends[first] else pairs.size
    if length == 0:
        return Autocorrelation(max(2.0 * float(pairs[0]) - 1.0, 1.0 / count), 1, count)
    total = 2.0 * float(np.minimum.accumulate(pairs[:length]).sum()) - 1.0
    return Autocorrelation(min(max(total, 1.0 / count), count / 2), 2 * length - 1, count)


def indicator_below(values: Array, value: float) -> Array:
    """For each sample, 1 if it is below ``value``, 0 if above, and a half if equal."""
    return np.asarray(0.5 * ((values < value).astype(np.float64) + (values <= value)), dtype=np.float64)


def has_correlation(rank_autocorrelations: Array) -> bool:
    """Whether neighbours resemble each other more than chance allows; ``found``: the autocorrelations of their ranks.

    Sums of the first 1, 2, 4, 8 and 16 autocorrelations of the ranks (no outlier rules them), each against twice its
    standard error without autocorrelation, the square root of lags over samples. Of series without autocorrelation one
    in twenty is wrongly said to have some.
    """
    sums = np.cumsum(rank_autocorrelations[1 : 1 + rank_autocorrelations.size // 4])
    lags = [lag for lag in (1, 2, 4, 8, 16) if lag <= sums.size]
    return any(float(sums[lag - 1]) > _SIGNIFICANT * math.sqrt(lag / rank_autocorrelations.size) for lag in lags)


def ranks(values: Array) -> Array:
    """Ranks from 1 to n; equal samples share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], dtype=np.float64)


# How sure a median, a mean, a quantile and a ratio of medians are, for samples that resemble their neighbours.
#
# *Quantiles.* Between which two samples the population's quantile lies depends on how many samples fall below it, and on
# nothing else about the population: W. R. Thompson, "On confidence ranges for the median", Annals of Mathematical
# Statistics 7 (1936). Ranks are fractional, see :func:`fractional_rank`, and those of the effective number of samples: R.
# S. Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952), with the autocorrelation
# time of the series "below the quantile or not" for his variance of the share. That time is itself an estimate, which
# Student's t allows for as in E. L. Korn and B. I. Graubard, "Confidence intervals for proportions with small expected
# number of positive counts", Survey Methodology 24 (1998): the effective number is divided by the squared ratio of
# Student's quantile to the normal one.
#
# *Ratios.* The intervals of both logarithms, put together by their margins: G. Y. Zou and A. Donner, "Construction of
# confidence limits about effect measures: a general approach", Statistics in Medicine 27 (2008).
#
# What no interval here covers is variation between processes: see ``comparison``.

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


@memoize_samples  # rules, tables and charts ask for the same ones
def quantile_interval(samples: Array, share: float, level: float = 0.95) -> Interval | None:
    """Interval of the ``share``-quantile (0 to 1, exclusive), as :func:`median_interval`.

    ``None`` too where the interval would end beyond the samples: at 95 % the 99th percentile needs 368 independent
    samples, the 95th needs 72.
    """
    if samples.size < LEAST_SAMPLES or not np.isfinite(samples).all():
        return None
    values = np.sort(samples)
    point = quantile_of_sorted(values, share)
    found = autocorrelation(indicator_below(samples, point))
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


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float], level: float = 0.95) -> Interval | None:
    """Interval of the median of ``above`` over that of ``under``; ``None`` where either has none, or reaches zero."""
    top, bottom = median_interval(numerator, level), median_interval(denominator, level)
    if top is None or bottom is None or min(top.low, bottom.low) <= 0:
        return None
    over, below_it = median(numerator), median(denominator)
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


# How sure a share of hits is, and what one way loses against another on the same samples, which are independent.
#
# *A share.* The score interval of E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
# JASA 22 (1927): it holds for few samples and for shares near 0 and 1, where the usual one does not.
#
# *Two shares of the same samples.* The adjusted interval of A. Agresti and Y. Min, "Simple improved confidence intervals
# for comparing matched proportions", Statistics in Medicine 24 (2005): the usual one, with half a sample more in each of
# the four cells (both hit, one alone, the other alone, none).
#
# *Two means of the same samples.* Student's t of the differences.


def share_interval(hits: float, count: int, level: float = 0.95) -> Interval:
    """Interval of the share of hits among ``count`` > 0 samples."""
    z, share = normal_quantile((1 + level) / 2), hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return Interval(max(middle - half, 0.0), min(middle + half, 1.0))


def difference_of_shares(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Interval:
    """Interval of the share of hits in ``above`` less that in ``under``: 1 or 0 for each of the same samples."""
    pairs = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    alone, other = float((pairs > 0).sum()) + 0.5, float((pairs < 0).sum()) + 0.5
    count = pairs.size + 2
    error = math.sqrt(alone + other - (alone - other) ** 2 / count) / count
    middle, half = (alone - other) / count, normal_quantile((1 + level) / 2) * error
    return Interval(max(middle - half, -1.0), min(middle + half, 1.0))


def difference_of_means(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Interval | None:
    """Interval of the mean of ``above`` less that of ``under``, of the same samples; ``None`` of fewer than two."""
    pairs = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    if pairs.size < 2:
        return None
    half = student_quantile((1 + level) / 2, pairs.size - 1.0) * float(pairs.std(ddof=1)) / math.sqrt(pairs.size)
    return Interval(float(pairs.mean()) - half, float(pairs.mean()) + half)
