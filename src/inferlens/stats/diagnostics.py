"""Why an interval, or the median itself, is not to be trusted: a closed list of reasons.

A series without doubts against its interval has one that holds about as often as its level says: `python -m benchmarks
coverage`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast, get_args

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.stats.autocorrelation import autocorrelation, autocorrelations, below, correlated, integrated, ranks
from inferlens.stats.intervals import median_interval
from inferlens.stats.quantiles import quantile_of_sorted
from inferlens.stats.steady import steady

Array = NDArray[np.float64]

Code = Literal[
    "few-samples", "few-independent-samples", "warm-up", "drifting", "cycling", "never-steady", "two-modes",
    "quantised",
]  # fmt: skip
CODES: tuple[Code, ...] = get_args(Code)

LEAST_SAMPLES = 20
# Autocorrelation times that a series has to last for its autocorrelation time to be known: the rule of emcee's manual,
# D. Foreman-Mackey and others, https://emcee.readthedocs.io/en/stable/tutorials/autocorr/.
LEAST_TIMES = 50
LEAST_STEPS = 4.0
SIGNIFICANT_DIP = 0.72  # times the root of the number of samples: 99.9 % of uniform samples have less
LEAST_DISTANCE = 0.01  # of two modes, as a share of the smaller, to matter
_POINTS = 512


class Diagnostic(Struct, frozen=True):
    """One reason."""

    code: Code
    value: float  # the number that it is about
    against: Literal["interval", "median"]  # which may not hold as often as it says; or one number says too little


def diagnostics(samples: Sequence[float]) -> tuple[Diagnostic, ...]:
    """Return what speaks against the interval of the median of samples in order of time; only finite ones count."""
    values = np.asarray(samples, dtype=np.float64)
    values = values[np.isfinite(values)]
    ordered, alike = np.sort(values), autocorrelations(ranks(values))
    if values.size < LEAST_SAMPLES:
        found = [Diagnostic("few-samples", float(values.size), "interval")]
    else:
        found = [*_few_independent(values, alike), *_unsteady(values)]
    if apart := _two_modes(ordered, integrated(alike).independent):
        found.append(Diagnostic("two-modes", apart, "median"))
    if values.size >= 2:
        found += _quantised(ordered)
    return tuple(found)


def _few_independent(values: Array, alike: Array) -> list[Diagnostic]:
    """The series is short against its autocorrelation time; so its time is not known, and the interval neither.

    The time that counts is that of "below the median or not". It is estimated in two ways, for in short series both may
    miss it by chance: directly, and from that of the ranks, of which for a normal process it is at least the share 2 /
    pi, by the arcsine law: J. H. Van Vleck and D. Middleton, "The spectrum of clipped noise", Proceedings of the IEEE
    54 (1966). ``alike``: the autocorrelations of the ranks.
    """
    known = median_interval(values) is not None
    if known and not correlated(alike):
        return []
    found = autocorrelation(below(values, float(np.median(values))))
    least = 1 + 2 / np.pi * (integrated(alike).time - 1)
    if known and values.size >= LEAST_TIMES * max(found.time, least):
        return []
    return [Diagnostic("few-independent-samples", found.independent, "interval")]


def _unsteady(values: Array) -> list[Diagnostic]:
    found = steady(values)
    if found.reason in ("steady", "few-samples"):
        return []
    return [Diagnostic(cast("Code", found.reason), found.start / values.size, "interval")]


def _quantised(ordered: Array) -> list[Diagnostic]:
    """Many equal samples, and quartiles a few steps of the clock apart: the least difference of two unequal ones."""
    gaps = np.diff(ordered)
    real = gaps[gaps > 1e-9 * float(np.abs(ordered[[0, -1]]).max())]  # rounding errors are no difference
    if not real.size:
        return [Diagnostic("quantised", 0.0, "interval")]
    steps = (quantile_of_sorted(ordered, 0.75) - quantile_of_sorted(ordered, 0.25)) / float(real.min())
    if np.count_nonzero(gaps) + 1 > ordered.size / 2 or steps >= LEAST_STEPS:
        return []
    return [Diagnostic("quantised", steps, "interval")]


def _two_modes(ordered: Array, independent: float) -> float | None:
    """The ratio of two values that a median hides, of sorted positive samples; ``None`` if there is one alone.

    By the dip test: J. A. Hartigan and P. M. Hartigan, "The dip test of unimodality", Annals of Statistics 13 (1985).
    It asks nothing else of the shape: skewed and long-tailed samples have one mode. The number of samples in the test
    is the ``independent`` one, for a slow series lingers at one value after the other; and at most 512, the quantiles
    that stand for longer series.
    """
    if ordered.size < 4 or ordered[0] <= 0:
        return None
    points = _spread(ordered)
    if points.size > _POINTS:
        places = (np.arange(_POINTS) + 0.5) / _POINTS * (points.size - 1)
        points = np.interp(places, np.arange(points.size), points)
    count = min(independent, points.size)
    significant = SIGNIFICANT_DIP / count**0.5
    if dip(points, least=significant) < significant:
        return None
    # Cut in two so that the squares within the parts are least.
    sums, index = np.cumsum(ordered - ordered.mean())[:-1], np.arange(1, ordered.size)
    cut = int(np.argmax(sums**2 / (index * (ordered.size - index)))) + 1
    ratio = float(np.median(ordered[cut:]) / np.median(ordered[:cut]))
    return ratio if ratio > 1 + LEAST_DISTANCE else None


def dip(samples: Sequence[float] | Array, least: float = 0.0) -> float:
    """How far the share of samples below a value is from the nearest share that has one mode, at the worst value.

    From 1 / (2 n) to 1 / 4; equal samples count as one value. Greatest convex minorant and least concave majorant of
    the share below, their greatest distance, and again on what lies between, until that no longer is the greatest
    deviation. It never is more than that distance: where it is surely below ``least``, it is not worked out to its end.
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
        if widest <= max(found, 2 * least * (1 - 1e-9)):
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
    kept = np.arange(x.size)
    for _ in range(3):  # most points lie above the line between their neighbours
        rises = np.diff(y[kept]) / np.diff(x[kept])
        kept = kept[np.concatenate([[True], rises[1:] > rises[:-1], [True]])]
    at, height = x[kept].tolist(), y[kept].tolist()
    corners, slopes = [0], [-math.inf]  # of the lines that end there
    for index in range(1, len(at)):
        last = corners[-1]
        slope = (height[index] - height[last]) / (at[index] - at[last])
        while slope <= slopes[-1]:
            corners.pop()
            slopes.pop()
            last = corners[-1]
            slope = (height[index] - height[last]) / (at[index] - at[last])
        corners.append(index)
        slopes.append(slope)
    return kept[corners]


def _spread(ordered: Array) -> Array:
    """Equal samples spread evenly over one step of the clock: each of its ticks would be a mode of its own."""
    distinct, place, counts = np.unique(ordered, return_inverse=True, return_counts=True)
    if distinct.size == ordered.size or distinct.size < 2:
        return ordered
    step = float(np.diff(distinct).min())
    within = np.arange(ordered.size) - (np.cumsum(counts) - counts)[place]
    return np.asarray(ordered + step * ((within + 0.5) / counts[place] - 0.5), dtype=np.float64)
