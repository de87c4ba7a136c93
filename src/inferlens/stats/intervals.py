"""How sure a median, a mean, a quantile and a ratio of medians are, for samples that resemble their neighbours.

*Quantiles.* Between which two samples the population's quantile lies depends on how many samples fall below it, and on
nothing else about the population: W. R. Thompson, "On confidence ranges for the median", Annals of Mathematical
Statistics 7 (1936). Ranks are fractional, see ``distributions.fractional_rank``. Neighbours that resemble each other
(caches, clocks, other work on the machine) make the number below vary more. So the ranks are those of the effective
number of samples: R. S. Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952), with
the autocorrelation time of the series "below the quantile or not" for his variance of the share. That time is itself an
estimate, which Student's t allows for as in E. L. Korn and B. I. Graubard, "Confidence intervals for proportions with
small expected number of positive counts", Survey Methodology 24 (1998): the effective number is divided by the squared
ratio of Student's quantile to the normal one.

*Ratios.* The intervals of both logarithms, put together by their margins: G. Y. Zou and A. Donner, "Construction of
confidence limits about effect measures: a general approach", Statistics in Medicine 27 (2008).

Nothing is drawn at random: the same samples always give the same interval.

What no interval here covers: variation between processes. Samples of one process share its memory layout, its compiled
code and the state the machine was in; another run may differ by more than the interval says. See ``between_process``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.stats.autocorrelation import Autocorrelation, autocorrelation, below
from inferlens.stats.distributions import fractional_rank, normal_quantile, student_quantile

LEAST_SAMPLES = 10

Array = NDArray[np.float64]


class Interval(Struct, frozen=True):
    """From ``low`` to ``high``, both included."""

    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        """Whether the two have a number in common."""
        return self.low <= other.high and other.low <= self.high

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def ends(interval: Interval | None) -> tuple[float | None, float | None]:
    """From where to where it reaches; ``None`` twice for none."""
    return (interval.low, interval.high) if interval else (None, None)


class Speedup(Struct, frozen=True):
    """A ratio of two medians; above 1 the candidate is faster. ``interval`` is ``None`` with too few samples."""

    ratio: float
    interval: Interval | None


def median_interval(samples: Sequence[float], level: float = 0.95) -> Interval | None:
    """Interval of the median of samples in order of time, at confidence ``level``, in the samples' unit.

    ``None`` where there is none: below :data:`LEAST_SAMPLES` samples, or fewer than about six independent ones. Does
    not cover variation between processes.
    """
    return quantile_interval(samples, 0.5, level)


def quantile_interval(samples: Sequence[float], share: float, level: float = 0.95) -> Interval | None:
    """Interval of the ``share``-quantile (0 to 1, exclusive), as :func:`median_interval`.

    ``None`` too where the interval would end beyond the samples: at 95 % the 99th percentile needs 368 independent
    samples, the 95th needs 72.
    """
    values = np.sort(np.asarray(samples, dtype=np.float64))
    if values.size < LEAST_SAMPLES or not np.isfinite(values).all():
        return None
    point = float(np.quantile(values, share))
    found = autocorrelation(below(np.asarray(samples, dtype=np.float64), point))
    bounds = _ranks(found, share, level)
    if bounds is None:
        return None
    low, high = (float(value) for value in np.interp(np.array(bounds) - 1.0, np.arange(values.size), values))
    return Interval(min(low, point), max(high, point))


def _ranks(found: Autocorrelation, share: float, level: float) -> tuple[float, float] | None:
    """The fractional ranks, from 1, between which the quantile lies; ``None`` if they are not among the samples'."""
    upper = (1 + level) / 2
    count = found.independent * (normal_quantile(upper) / student_quantile(upper, max(found.freedom, 1.0))) ** 2
    if count < 1.0:
        return None
    low, high = fractional_rank(count, share, upper), fractional_rank(count, share, 1 - upper)
    if low < 1.0 or high > count:
        return None
    scale = (found.count + 1) / (count + 1)
    return low * scale, high * scale


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


def speedup_interval(base: Sequence[float], candidate: Sequence[float], level: float = 0.95) -> Speedup | None:
    """How many times as fast ``candidate`` is as ``base``: median of base over median of candidate.

    Both series are in order of time and independent of each other. The interval is ``None`` where either median has
    none; there is no speed-up at all without samples or of a median of zero. Nothing between processes is covered.
    """
    if not len(base) or not len(candidate):
        return None
    above, under = float(np.median(base)), float(np.median(candidate))
    if not (above > 0 and under > 0 and math.isfinite(above / under)):
        return None
    return Speedup(above / under, ratio_interval(base, candidate, level))


def ratio_interval(above: Sequence[float], under: Sequence[float], level: float = 0.95) -> Interval | None:
    """Interval of the median of ``above`` over that of ``under``; ``None`` where either has none, or reaches zero."""
    top, bottom = median_interval(above, level), median_interval(under, level)
    if top is None or bottom is None or min(top.low, bottom.low) <= 0:
        return None
    over, below_it = float(np.median(above)), float(np.median(under))
    down = math.hypot(math.log(over / top.low), math.log(bottom.high / below_it))
    up = math.hypot(math.log(top.high / over), math.log(below_it / bottom.low))
    return Interval(over / below_it * math.exp(-down), over / below_it * math.exp(up))
