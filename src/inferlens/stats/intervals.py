"""Confidence intervals of medians, means, quantiles, ratios and shares, for samples with autocorrelation.

*Autocorrelation.* The integrated autocorrelation time is 1 + 2 (r1 + r2 + ...), with r the autocorrelations: the mean
of n samples of a series with time T is as uncertain as that of n / T independent ones. The sum stops by the initial
monotone sequence: C. J. Geyer, "Practical Markov chain Monte Carlo", Statistical Science 7 (1992), section 3.3: sums of
neighboring pairs of r are positive and fall; pairs below ``_NOISE / sqrt(n)`` count as not positive. Autocorrelations
about the mean of the same series are too small, by about T / n each (F. H. C. Marriott and J. A. Pope, "Bias in the
estimation of autocorrelations", Biometrika 41 (1954)). That is added back, in a few rounds.

*Quantiles.* The samples between which the population's quantile lies depend on how many samples fall below it, and on
nothing else: W. R. Thompson, "On confidence ranges for the median", Annals of Mathematical Statistics 7 (1936). Ranks
are fractional, see :func:`fractional_rank`, and those of the effective number of samples: R. S. Woodruff, "Confidence
intervals for medians and other position measures", JASA 47 (1952), with the autocorrelation time of the series "below
the quantile or not" for his variance of the share. That time is an estimate, which Student's t allows for as in E. L.
Korn and B. I. Graubard, "Confidence intervals for proportions with small expected number of positive counts", Survey
Methodology 24 (1998): the effective number is divided by the squared ratio of Student's quantile to the normal one.

*Ratios.* The intervals of both logarithms, combined by their margins: G. Y. Zou and A. Donner, "Construction of
confidence limits about effect measures: a general approach", Statistics in Medicine 27 (2008).

*Shares* of independent samples. One share has the score interval of E. B. Wilson, "Probable inference, the law of
succession, and statistical inference", JASA 22 (1927), which holds for few samples and for shares near 0 and 1. Two
shares of the same samples have the adjusted interval of A. Agresti and Y. Min, "Simple improved confidence intervals
for comparing matched proportions", Statistics in Medicine 24 (2005): the usual one, with half a sample more in each of
the four cells (both hit, only the first, only the second, none).

No interval here covers variation between processes: see ``comparison``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from inferlens.stats.samples import Array, median, memoize_samples, quantile_of_sorted

LEAST_SAMPLES = 10
_NOISE = 1.0
_ROUNDS = 5
_SIGNIFICANT = 2.0  # standard errors without autocorrelation; see `has_correlation`


# Autocorrelation


class Autocorrelation(Struct, frozen=True):
    """The autocorrelation of one series."""

    time: float  # integrated, in samples: 1 for independent ones, below 1 if neighbors lie on opposite sides
    window: int  # the largest lag in the sum
    count: int  # samples in the series

    @property
    def independent(self) -> float:
        """The effective number of samples, never more than there are."""
        return self.count / max(self.time, 1.0)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the estimate of ``time``, for Student's t; infinite if nothing was estimated.

        A sum up to lag M has a relative variance of about 2 (2M + 1) / n (M. B. Priestley, *Spectral Analysis and Time
        Series* (1981), section 6.2), that of a chi-squared variable with n / (2M + 1) degrees. Only the part above 1
        is uncertain, so the relative variance is that of this part.
        """
        if self.time <= 1.0:
            return math.inf
        return self.count / (2 * self.window + 1) * (self.time / (self.time - 1.0)) ** 2


def autocorrelations(samples: Sequence[float] | Array) -> Array:
    """Return the autocorrelations at the lags 0 to n - 1, with n in every denominator; 0 for equal samples."""
    values = np.asarray(samples, dtype=np.float64)
    count = values.size
    width = float(values.max() - values.min()) if count else 0.0
    if width == 0:
        return np.asarray([1.0, *[0.0] * (count - 1)][:count], dtype=np.float64)
    values = (values - values.mean()) / width  # squares of nanoseconds would be small
    spectrum = np.fft.rfft(values, 1 << (2 * count - 1).bit_length())
    products = np.fft.irfft(spectrum.real**2 + spectrum.imag**2)[:count]
    return np.asarray(products / products[0], dtype=np.float64)


def autocorrelation(samples: Sequence[float] | Array) -> Autocorrelation:
    """Return the autocorrelation of a series in order of time: its time is at most n / 2, and 1 below four samples."""
    return integrate_autocorrelations(autocorrelations(samples))


def integrate_autocorrelations(raw: Array) -> Autocorrelation:
    """Return the autocorrelation of a series from its :func:`autocorrelations`."""
    count = raw.size
    if count < 4 or not raw[1:].any():
        return Autocorrelation(1.0, 0, count)
    pairs = raw[: count // 2 * 2 : 2] + raw[1::2]
    result = Autocorrelation(1.0, 0, count)
    for iteration in range(_ROUNDS):
        before = result.time
        corrected = (pairs + 2 * before / count) / (1.0 + before / count) if iteration else pairs
        result = _sum_monotone(corrected, count)
        if abs(result.time - before) < 0.01 * before:
            break
    return result


def _sum_monotone(pairs: Array, count: int) -> Autocorrelation:
    """Sum the initial monotone sequence of autocorrelations, given as sums of two."""
    ends = pairs <= _NOISE / math.sqrt(count)
    first = int(np.argmax(ends))
    length = first if ends[first] else pairs.size
    if length == 0:
        return Autocorrelation(max(2.0 * float(pairs[0]) - 1.0, 1.0 / count), 1, count)
    total = 2.0 * float(np.minimum.accumulate(pairs[:length]).sum()) - 1.0
    return Autocorrelation(min(max(total, 1.0 / count), count / 2), 2 * length - 1, count)


def indicator_below(values: Array, value: float) -> Array:
    """Return 1 for each sample below ``value``, 0 above, and a half if equal."""
    return np.asarray(0.5 * ((values < value).astype(np.float64) + (values <= value)), dtype=np.float64)


def has_correlation(rank_autocorrelations: Array) -> bool:
    """Return whether neighbors resemble each other more than chance allows, by autocorrelations of the ranks.

    The sums of the first 1, 2, 4, 8 and 16 autocorrelations of the ranks, which no outlier dominates, are compared with
    twice their standard error without autocorrelation, the square root of lags over samples. One in twenty series
    without autocorrelation is wrongly found to have some.
    """
    size = rank_autocorrelations.size
    sums = np.cumsum(rank_autocorrelations[1 : 1 + size // 4])
    lags = [lag for lag in (1, 2, 4, 8, 16) if lag <= sums.size]
    return any(float(sums[lag - 1]) > _SIGNIFICANT * math.sqrt(lag / size) for lag in lags)


def ranks(values: Array) -> Array:
    """Return ranks from 1 to n; equal samples share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], dtype=np.float64)


# Quantiles and means


class Interval(Struct, frozen=True):
    """From ``low`` to ``high``, both included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (interval.low, interval.high) if interval else (None, None)


def median_interval(samples: Sequence[float] | Array, level: float = 0.95) -> Interval | None:
    """Return the interval of the median of samples in order of time, at confidence ``level``, in the samples' unit.

    ``None`` below :data:`LEAST_SAMPLES` samples, or fewer than about six independent ones.
    """
    return quantile_interval(samples, 0.5, level)


def half_width(samples: Sequence[float], level: float = 0.95) -> float:
    """Return the distance from the median to the farther end of its interval, as a share; infinite without one."""
    interval, middle = median_interval(samples, level), median(samples)
    return max(interval.high - middle, middle - interval.low) / middle if interval and middle > 0 else math.inf


@memoize_samples  # rules, tables and charts need the same ones
def quantile_interval(samples: Array, share: float, level: float = 0.95) -> Interval | None:
    """Return the interval of the ``share``-quantile (0 to 1, exclusive), as :func:`median_interval`.

    ``None`` as well if the interval would end beyond the samples: at 95 % the 99th percentile needs 368 independent
    samples, the 95th needs 72.
    """
    if samples.size < LEAST_SAMPLES or not np.isfinite(samples).all():
        return None
    values = np.sort(samples)
    point = quantile_of_sorted(values, share)
    correlation = autocorrelation(indicator_below(samples, point))
    upper = (1 + level) / 2
    student = student_quantile(upper, max(correlation.freedom, 1.0))
    count = correlation.independent * (normal_quantile(upper) / student) ** 2
    if count < 1.0:
        return None
    low_rank, high_rank = fractional_rank(count, share, upper), fractional_rank(count, share, 1 - upper)
    if low_rank < 1.0 or high_rank > count:  # beyond the samples
        return None
    scale = (correlation.count + 1) / (count + 1)
    places = np.array((low_rank, high_rank)) * scale - 1.0
    low, high = (float(value) for value in np.interp(places, np.arange(values.size), values))
    return Interval(min(low, point), max(high, point))


def mean_interval(samples: Sequence[float], level: float = 0.95) -> Interval | None:
    """Return the interval of the mean of samples in order of time, at confidence ``level``, in the samples' unit.

    It is Student's, with the effective number of samples. ``None`` below :data:`LEAST_SAMPLES` samples, or fewer than
    two independent ones. It lacks rare and long outliers that the samples lack, and is too short for heavy tails.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size < LEAST_SAMPLES or not np.isfinite(values).all():
        return None
    correlation = autocorrelation(values)
    if correlation.independent < 2.0:
        return None
    mean = min(max(float(values.mean()), float(values.min())), float(values.max()))
    freedom = max(min(correlation.freedom, values.size - 1.0), 1.0)
    error = float(values.std(ddof=1)) / math.sqrt(correlation.independent)
    margin = student_quantile((1 + level) / 2, freedom) * error
    return Interval(mean - margin, mean + margin)


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float], level: float = 0.95) -> Interval | None:
    """Return the interval of a ratio of medians; ``None`` if a median has none, or reaches zero."""
    top, bottom = median_interval(numerator, level), median_interval(denominator, level)
    if top is None or bottom is None or min(top.low, bottom.low) <= 0:
        return None
    over, under = median(numerator), median(denominator)
    down = math.hypot(math.log(over / top.low), math.log(bottom.high / under))
    up = math.hypot(math.log(top.high / over), math.log(under / bottom.low))
    return Interval(over / under * math.exp(-down), over / under * math.exp(up))


@lru_cache(maxsize=256)
def normal_quantile(probability: float) -> float:
    """Return the value below which a standard normal variable lies with ``probability`` (between 0 and 1)."""
    from scipy.special import ndtri

    return float(ndtri(probability))


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: float) -> float:
    """Return the value below which Student's t with ``freedom`` > 0 degrees, or infinite, lies with ``probability``."""
    from scipy.special import stdtrit

    return normal_quantile(probability) if math.isinf(freedom) else float(stdtrit(freedom, probability))


def student_probability(value: float, freedom: float) -> float:
    """Return the probability that Student's t with ``freedom`` > 0 degrees, or infinite, lies below ``value``."""
    from scipy.special import ndtr, stdtr

    return float(ndtr(value) if math.isinf(freedom) else stdtr(freedom, value))


@lru_cache(maxsize=4096)
def fractional_rank(count: float, share: float, probability: float) -> float:
    """Return the real rank r of ``count`` samples whose r-th smallest is below the ``share``-quantile with probability.

    The share of the population below the r-th smallest of n is Beta(r, n + 1 - r) distributed, whatever the population;
    r is where that variable is below ``share`` with ``probability``. Fractional ranks: A. D. Hutson, "Calculating
    nonparametric confidence intervals for quantiles using fractional order statistics", Journal of Applied Statistics
    26 (1999). From 1 to ``count``; 0 or ``count + 1`` if there is no such sample.
    """
    from scipy.special import bdtrik

    if 1 - (1 - share) ** count <= probability:
        return 0.0
    if share**count >= probability:
        return count + 1
    # The probability that fewer than r of n samples lie below the quantile is the binomial one of r - 1.
    return float(bdtrik(1 - probability, count, share)) + 1


# Shares and paired differences


def share_interval(hits: float, count: int, level: float = 0.95) -> Interval:
    """Return the interval of the share of hits among ``count`` > 0 samples."""
    z, share = normal_quantile((1 + level) / 2), hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return Interval(max(middle - half, 0.0), min(middle + half, 1.0))


def difference_of_shares(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Interval:
    """Return the interval of the share of hits in ``first`` less that in ``second``: 1 or 0 for the same samples."""
    pairs = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    only_first, only_second = float((pairs > 0).sum()) + 0.5, float((pairs < 0).sum()) + 0.5
    count = pairs.size + 2
    error = math.sqrt(only_first + only_second - (only_first - only_second) ** 2 / count) / count
    middle, half = (only_first - only_second) / count, normal_quantile((1 + level) / 2) * error
    return Interval(max(middle - half, -1.0), min(middle + half, 1.0))


def difference_of_means(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Interval | None:
    """Return Student's interval of the mean of ``first`` less that of ``second``, of the same samples, at least two."""
    pairs = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    if pairs.size < 2:
        return None
    half = student_quantile((1 + level) / 2, pairs.size - 1.0) * float(pairs.std(ddof=1)) / math.sqrt(pairs.size)
    return Interval(float(pairs.mean()) - half, float(pairs.mean()) + half)
