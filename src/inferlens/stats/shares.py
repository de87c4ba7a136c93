"""How sure a share of hits is, and what one way loses against another on the same samples, which are independent.

*A share.* The score interval of E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
JASA 22 (1927): it holds for few samples and for shares near 0 and 1, where the usual one does not.

*Two shares of the same samples.* The adjusted interval of A. Agresti and Y. Min, "Simple improved confidence intervals
for comparing matched proportions", Statistics in Medicine 24 (2005): the usual one, with half a sample more in each of
the four cells (both hit, one alone, the other alone, none).

*Two means of the same samples.* Student's t of the differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from inferlens.stats.intervals import Interval, normal_quantile, student_quantile


def share_interval(hits: float, count: int, level: float = 0.95) -> Interval:
    """Interval of the share of hits among ``count`` > 0 samples."""
    z, share = normal_quantile((1 + level) / 2), hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return Interval(max(middle - half, 0.0), min(middle + half, 1.0))


def difference_of_shares(above: Sequence[float], under: Sequence[float], level: float = 0.95) -> Interval:
    """Interval of the share of hits in ``above`` less that in ``under``: 1 or 0 for each of the same samples."""
    pairs = np.asarray(above, np.float64) - np.asarray(under, np.float64)
    alone, other = float((pairs > 0).sum()) + 0.5, float((pairs < 0).sum()) + 0.5
    count = pairs.size + 2
    error = math.sqrt(alone + other - (alone - other) ** 2 / count) / count
    middle, half = (alone - other) / count, normal_quantile((1 + level) / 2) * error
    return Interval(max(middle - half, -1.0), min(middle + half, 1.0))


def difference_of_means(above: Sequence[float], under: Sequence[float], level: float = 0.95) -> Interval | None:
    """Interval of the mean of ``above`` less that of ``under``, of the same samples; ``None`` of fewer than two."""
    pairs = np.asarray(above, np.float64) - np.asarray(under, np.float64)
    if pairs.size < 2:
        return None
    half = student_quantile((1 + level) / 2, pairs.size - 1.0) * float(pairs.std(ddof=1)) / math.sqrt(pairs.size)
    return Interval(float(pairs.mean()) - half, float(pairs.mean()) + half)
