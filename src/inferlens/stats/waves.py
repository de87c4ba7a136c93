"""Whether processes of one case resemble those measured just before them, and how many independent ones they are worth.

A machine that is slow for some minutes is slow for several processes in a row: neighbours on a shared host come and
go, chips become warm. Intervals over processes take these for independent, and are then too short. The correlation of
each process with the one before tells, where there are enough of them. It is believed if it is larger than that of
independent ones by chance: at most one in twenty is, by its mean and variance after P. A. P. Moran, "Some theorems on
time series II", Biometrika 35 (1948). Correlations of short series are too small; what is missing is added as in
F. H. C. Marriott and J. A. Pope, "Bias in the estimation of autocorrelations", Biometrika 41 (1954).

As many as ``count`` processes of which each resembles the one before by r are worth count (1 - r) / (1 + r) independent
ones, and their variance is too small by a factor that follows from it: A. Zięba, "Effective number of observations and
unbiased estimators of variance for autocorrelated data", Metrology and Measurement Systems 17 (2010).

What it cannot tell: waves longer than the whole run. Two runs of different times may differ by those, and no interval
from within the runs covers it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from inferlens.stats.distributions import normal_quantile

LEAST_PROCESSES = 6
_SIGNIFICANT = 0.95
# Beyond it the number of independent ones is below two for any number of processes that is ever measured.
_MOST = 0.9
_FEWEST = 2.0


class Spread(Struct, frozen=True):
    """How far the mean of processes is known.

    Attributes:
        variance: of one process, an estimate without bias.
        independent: how many independent processes theirs are worth, two or more.
    """

    variance: float
    independent: float

    @property
    def of_mean(self) -> float:
        """Square of the standard error of the mean."""
        return self.variance / self.independent


def resemblance(runs: Sequence[Sequence[float]]) -> float:
    """The correlation of each process's number with the one before, of all runs together, each in order of time.

    0 where it is not significantly above 0, or no run has :data:`LEAST_PROCESSES`.
    """
    long = [np.asarray(run, dtype=np.float64) for run in runs if len(run) >= LEAST_PROCESSES]
    centred = [run - run.mean() for run in long]
    total = sum(float(run @ run) for run in centred)
    if total <= sum(run.size for run in long) * 1e-24:  # rounding, on a logarithmic scale
        return 0.0
    found = sum(float(run[1:] @ run[:-1]) for run in centred) / total
    count = sum(run.size for run in long)
    by_chance = -len(long) / count
    deviation = math.sqrt(sum((run.size - 2) ** 2 / (run.size - 1) for run in long)) / count
    if found <= by_chance + normal_quantile(_SIGNIFICANT) * deviation:
        return 0.0
    return min(found + (1 + 3 * found) * len(long) / count, _MOST)


def spread(values: Sequence[float], correlation: float) -> Spread:
    """How far the mean of two values or more is known, of which each resembles the one before by ``correlation``."""
    count = len(values)
    variance = float(np.sort(np.asarray(values, dtype=np.float64)).var(ddof=1))
    if correlation <= 0:
        return Spread(variance, float(count))
    independent = min(max(count * (1 - correlation) / (1 + correlation), _FEWEST), float(count))
    return Spread(variance * (count - 1) / (count - count / independent), independent)
