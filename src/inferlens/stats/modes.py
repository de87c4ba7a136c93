"""Whether samples lie around two values or more, which a median hides: the dip test.

J. A. Hartigan and P. M. Hartigan, "The dip test of unimodality", Annals of Statistics 13 (1985). The dip is how far the
share of samples below a value is from the nearest share that has one mode, at the worst value. It asks nothing else of
the shape: skewed and long-tailed samples have one mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.stats.autocorrelation import autocorrelation, ranks

Array = NDArray[np.float64]

# Times the square root of the number of samples: 99.9 % of uniform samples have less, and those with a peak far less.
SIGNIFICANT = 0.72
# Modes that are nearer to each other than this share of the smaller do not matter.
LEAST_DISTANCE = 0.01
_POINTS = 512


class Modes(Struct, frozen=True):
    """Two groups of samples.

    Attributes:
        upper_share: the share of samples in the upper group.
        ratio: the median of the upper group over that of the lower.
    """

    upper_share: float
    ratio: float


def two_modes(samples: Sequence[float]) -> Modes | None:
    """The two groups of samples in order of time, positive; ``None`` unless the dip is significant and they are apart.

    The number of samples in the test is the effective one, for a slow series lingers at one value after the other;
    and at most 512, the quantiles that stand for longer series.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size < 4 or values.min() <= 0:
        return None
    ordered = np.sort(values)
    points = _spread(ordered)
    if points.size > _POINTS:
        points = np.quantile(points, (np.arange(_POINTS) + 0.5) / _POINTS)
    count = min(autocorrelation(ranks(values)).independent, points.size)
    if dip(points) * count**0.5 < SIGNIFICANT:
        return None
    cut = _split(ordered)
    ratio = float(np.median(ordered[cut:]) / np.median(ordered[:cut]))
    return Modes(1 - cut / ordered.size, ratio) if ratio > 1 + LEAST_DISTANCE else None


def dip(samples: Sequence[float] | Array) -> float:
    """The dip of samples, from 1 / (2 n) to 1 / 4; equal samples count as one value.

    Greatest convex minorant and least concave majorant of the share below, their greatest distance, and again on what
    lies between, until that no longer is the greatest deviation.
    """
    values, counts = np.unique(np.asarray(samples, dtype=np.float64), return_counts=True)
    above = np.cumsum(counts) / counts.sum()
    under = above - counts / counts.sum()
    found, first, last = 1 / float(counts.sum()), 0, values.size - 1
    while last > first:
        at, low, high = values[first : last + 1], under[first : last + 1], above[first : last + 1]
        convex, concave = _hull(at, low), _hull(at, -high)
        minorant, majorant = np.interp(at, at[convex], low[convex]), np.interp(at, at[concave], high[concave])
        gaps = majorant - minorant
        left, right = int(convex[np.argmax(gaps[convex])]), int(concave[np.argmax(gaps[concave])])
        widest = max(float(gaps[left]), float(gaps[right]))
        if widest <= found:
            break
        if gaps[left] >= gaps[right]:
            right = int(concave[np.searchsorted(concave, left)])
        else:
            left = int(convex[np.searchsorted(convex, right, "right") - 1])
        outside = np.concatenate([(high - minorant)[: left + 1], (majorant - low)[right:]])
        found = max(found, float(outside.max()))
        if (left, right) == (0, last - first):
            break
        first, last = first + left, first + right
    return found / 2


def _hull(x: Array, y: Array) -> NDArray[np.int64]:
    """Indices of the corners of the greatest convex line below the points: Andrew's monotone chain."""
    corners: list[int] = []
    at, height = x.tolist(), y.tolist()
    for index in range(len(at)):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (height[b] - height[a]) * (at[index] - at[a]) < (height[index] - height[a]) * (at[b] - at[a]):
                break
            corners.pop()
        corners.append(index)
    return np.array(corners, dtype=np.int64)


def _spread(ordered: Array) -> Array:
    """Equal samples spread evenly over one step of the clock: each of its ticks would be a mode of its own."""
    distinct, place, counts = np.unique(ordered, return_inverse=True, return_counts=True)
    if distinct.size == ordered.size or distinct.size < 2:
        return ordered
    step = float(np.diff(distinct).min())
    within = np.arange(ordered.size) - (np.cumsum(counts) - counts)[place]
    return np.asarray(ordered + step * ((within + 0.5) / counts[place] - 0.5), dtype=np.float64)


def _split(ordered: Array) -> int:
    """Where to cut sorted samples in two so that the squares within the parts are least: 1 to n - 1."""
    sums = np.cumsum(ordered - ordered.mean())[:-1]
    index = np.arange(1, ordered.size)
    return int(np.argmax(sums**2 / (index * (ordered.size - index)))) + 1
