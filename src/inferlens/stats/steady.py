"""The steady state of a series of latencies, and doubts about the interval of its median.

The method is that of E. Barrett, C. F. Bolz-Tereick, R. Killick, S. Mount and L. Tratt, "Virtual machine warmup blows
hot and cold", OOPSLA 2017: cut the series where its level changes, join levels that differ too little to matter, and
call the series steady from where its last level begins, if that lasts. This module differs as follows:

- It cuts medians of batches, at most :data:`BATCHES` of them, on a logarithmic scale, and moves those far off toward
  their neighbors: single outliers cannot make a level.
- The cuts are the best ones for each number of cuts, by dynamic programming: I. E. Auger and C. E. Lawrence,
  "Algorithms for the optimal identification of segment neighborhoods", Bulletin of Mathematical Biology 51 (1989).
- Neighbors may resemble each other, which looks like changes of level. The number of cuts is therefore chosen by the
  likelihood with errors of an autoregression of order 1, as in S. Chakar, E. Lebarbier, C. Lévy-Leduc and S. Robin, "A
  robust approach for estimating change-points in the mean of an AR(1) process", Bernoulli 23 (2017).
- A last level that is slower than the samples before it counts only if it is steady by itself.
- Three more shapes compete with the levels: a straight line, which drifts to its end; an exponential decay, steady when
  less than the tolerance is left of it; and a slow wave, never steady. The best fit at its price wins.

Diagnostics are a closed list of doubts. A series without doubts has an interval that holds about as often as its level
says: ``python -m benchmarks coverage``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Literal, cast, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from inferlens.stats.intervals import (
    autocorrelation,
    autocorrelations,
    has_correlation,
    indicator_below,
    integrate_autocorrelations,
    median_interval,
    ranks,
)
from inferlens.stats.samples import Array, memoize_samples, quantile_of_sorted

BATCHES = 64
LEAST_SAMPLES = 30
TOLERANCE = 0.005  # largest relative difference of two levels that does not matter
LEAST_SHARE = 1 / 3  # of the series, for its last level
_MOST_CUTS = 6
_LEAST_BATCHES = 4
# Prices of shapes, in twice the logarithm of the likelihood over log(batches). With these, one to four in a hundred
# series with an autocorrelation of 0.9 get a shape: `python -m benchmarks coverage`.
_PRICE_OF_CUT = 4.0
_PRICE_OF_LINE = 2.5
_PRICE_OF_DECAY = 4.0
_PRICE_OF_WAVE = 5.0
# Times in which a decay falls to 1 / e, as shares of the series' length, and periods of a wave in the series.
_DECAYS = np.geomspace(0.02, 0.6, 12)
_WAVES = np.arange(0.75, 8.1, 0.25)


class Steady(Struct, frozen=True):
    """The steady state of a series.

    ``reason`` is ``steady``, ``warm-up`` (steady from ``start``), ``drifting`` to the end, ``cycling`` up and down
    slowly, ``never-steady`` (its last level begins too late, or is slower and does not settle) or ``few-samples``.
    """

    start: int  # index of the first sample of the steady state; 0 without one
    reason: str

    @property
    def steady(self) -> bool:
        return self.reason in ("steady", "warm-up")


class _Fit(Struct, frozen=True):
    shape: str  # levels, line, decay or wave
    cost: float  # -2 log likelihood and the price
    extent: float = 0.0  # the range of the shape on the logarithmic scale
    first: int = 0  # the first steady batch
    cuts: tuple[int, ...] = ()  # of levels


@memoize_samples  # every view of a record needs it
def steady(values: Array) -> Steady:
    """Return the steady state of latencies, positive and in order of time: ``values[result.start:]`` is steady."""
    if values.size < LEAST_SAMPLES or not (np.isfinite(values).all() and values.min() > 0):
        return Steady(0, "few-samples")
    size = -(-values.size // BATCHES)
    count = values.size // size
    spare = values.size - count * size
    ordered = np.sort(values[spare:].reshape(count, size), axis=1)
    below, above = ordered[:, (size - 1) // 2], ordered[:, size // 2]
    batches = _without_outliers(np.log(below + (above - below) / 2))  # of their medians
    first, reason = _verdict(batches)
    if reason:
        return Steady(0, reason)
    cut = spare + first * size if first else 0
    slower = cut > 0 and np.median(values[cut:]) > (1 + TOLERANCE) * np.median(values[:cut])
    if slower and not steady(values[cut:]).steady:
        return Steady(0, "never-steady")
    start = _without_first_calls(values, cut)
    return Steady(start, "warm-up" if start else "steady")


def _verdict(batches: Array) -> tuple[int, str]:
    """Return the first batch of the steady state, or the reason that there is none."""
    shapes = [_line(batches), _decay(batches), _wave(batches)]
    best = min([_levels(batches), *(shape for shape in shapes if shape.extent > TOLERANCE)], key=attrgetter("cost"))
    if best.shape == "wave":
        return 0, "cycling"
    if best.first > (1 - LEAST_SHARE) * batches.size:
        return 0, "never-steady" if best.shape == "levels" else "drifting"
    rest = batches[best.first :]
    if best.shape == "levels" and best.first:
        line = _line(rest)
        if line.extent > TOLERANCE and line.cost < _misfit(rest - rest.mean(), 1):
            return 0, "drifting"
    return best.first, ""


def _without_first_calls(values: Array, start: int) -> int:
    """Return ``start``, or the sample after it where a few slow first calls end, which a batch's median hides.

    They are slow beyond Tukey's outer fence, and longer in a row than chance explains.
    """
    rest = values[start:]
    ordered = np.sort(rest)
    low, high = (quantile_of_sorted(ordered, share) for share in (0.25, 0.75))
    slow = rest > high + 3 * (high - low)
    first = int(np.argmin(slow)) if slow[0] else 0
    share = float(slow[first:].mean())
    return start + first if first <= rest.size // 10 and share**first < 0.01 else start


def _without_outliers(batches: Array) -> Array:
    """Move batches to at most three deviations from the median of their five neighbors.

    If one in ten is far off, these are no outliers: the samples have two modes, or a coarse clock.
    """
    padded = np.pad(batches, 2, mode="edge")
    usual = np.sort(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)[:, 2]  # their median
    off = batches - usual
    ordered = np.sort(np.abs(off))
    limit = max(3 * 1.4826 * quantile_of_sorted(ordered, 0.5), 1.5 * quantile_of_sorted(ordered, 0.9))
    return np.asarray(usual + np.clip(off, -limit, limit), dtype=np.float64)


def _levels(batches: Array) -> _Fit:
    """Return the best cuts; the last level includes those before it that hardly differ."""
    fits = []
    for cuts in _best_cuts(batches):
        price = _PRICE_OF_CUT * len(cuts) * math.log(batches.size)
        fits.append(_Fit("levels", _misfit(batches - _means(batches, cuts), 1 + len(cuts)) + price, cuts=cuts))
    best = min(fits, key=attrgetter("cost"))
    means = _means(batches, best.cuts)
    other = np.flatnonzero(np.abs(means - means[-1]) > TOLERANCE)
    return replace(best, first=int(other[-1]) + 1 if other.size else 0)


def _line(batches: Array) -> _Fit:
    """Return a straight line through all batches, which is never steady."""
    time = np.arange(batches.size) - (batches.size - 1) / 2
    slope = float(time @ batches) / float(time @ time)
    cost = _misfit(batches - batches.mean() - slope * time, 2) + _PRICE_OF_LINE * math.log(batches.size)
    return _Fit("line", cost, abs(slope) * (batches.size - 1), first=batches.size)


def _decay(batches: Array) -> _Fit:
    """Return the best exponential decay to a level, from above or below."""
    time = (np.arange(batches.size) + 0.5) / batches.size
    curves = np.exp(-time / _DECAYS[:, None])
    curves -= curves.mean(axis=1, keepdims=True)
    centred = batches - batches.mean()
    heights = curves @ centred / (curves**2).sum(axis=1)
    best = int(np.argmax(heights * (curves @ centred)))
    height = abs(float(heights[best]))
    cost = _misfit(centred - heights[best] * curves[best], 3) + _PRICE_OF_DECAY * math.log(batches.size)
    unsteady = height * np.exp(-time / _DECAYS[best]) > TOLERANCE
    return _Fit("decay", cost, height, first=int(unsteady.sum()))


def _wave(batches: Array) -> _Fit:
    """Return the best slow wave, which is never steady."""
    basis, inverse = _waves(batches.size)
    parts = inverse @ batches
    rest = batches - (basis @ parts[:, :, None])[:, :, 0]
    best = int(np.argmin((rest**2).sum(axis=1)))
    cost = _misfit(rest[best], 4) + _PRICE_OF_WAVE * math.log(batches.size)
    return _Fit("wave", cost, 2 * float(np.hypot(*parts[best, 1:])))


@lru_cache(maxsize=BATCHES)
def _waves(count: int) -> tuple[Array, Array]:
    """Return the constant, the sine and the cosine of each wave, and the inverse that fits them."""
    angle = 2 * np.pi * _WAVES[:, None] * (np.arange(count) + 0.5) / count
    basis = np.stack([np.ones_like(angle), np.sin(angle), np.cos(angle)], axis=2)
    return basis, np.linalg.pinv(basis)


def _misfit(rest: Array, parameters: int) -> float:
    """Return -2 log likelihood, up to a constant, of the rest of a fit, with errors of an autoregression of order 1.

    Its coefficient is corrected for the number of fitted ``parameters``: each lowers it by about (1 + 3 r) / n.
    """
    total = float(rest @ rest)
    count = rest.size
    if total <= count * 1e-24:  # rounding, on a logarithmic scale
        return count * math.log(1e-24)
    correlation = float(rest[1:] @ rest[:-1]) / total
    correlation += parameters * (1 + 3 * max(correlation, 0.0)) / count
    correlation = min(max(correlation, 0.0), 0.98)
    innovations = rest[1:] - correlation * rest[:-1]
    variance = (float(innovations @ innovations) + (1 - correlation**2) * float(rest[0]) ** 2) / count
    return count * math.log(max(variance, 1e-24))


def _means(batches: Array, cuts: tuple[int, ...]) -> Array:
    edges = [0, *cuts, batches.size]
    lengths = np.diff(edges)
    return np.repeat(np.add.reduceat(batches, edges[:-1]) / lengths, lengths)


def _best_cuts(batches: Array) -> list[tuple[int, ...]]:
    """Return the least-squares cuts for each number of cuts, from none on, as the indices after them."""
    count = batches.size
    centred = batches - batches.mean()
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    index = np.arange(count + 1)
    lengths = index[None, :] - index[:, None]
    costs = squares[None, :] - squares[:, None] - (sums[None, :] - sums[:, None]) ** 2 / np.maximum(lengths, 1)
    costs[lengths < _LEAST_BATCHES] = np.inf  # of a level from one batch to another
    best, before = costs[0], []
    results: list[tuple[int, ...]] = [()]
    for number in range(1, min(_MOST_CUTS, count // _LEAST_BATCHES - 1) + 1):
        totals = best[:, None] + costs
        before.append(totals.argmin(axis=0))
        best = totals.min(axis=0)
        cuts, end = [], count
        for previous in reversed(before[:number]):
            end = int(previous[end])
            cuts.append(end)
        results.append(tuple(reversed(cuts)))
    return results


# Diagnostics

Code = Literal[
    "few-samples", "few-independent-samples", "warm-up", "drifting", "cycling", "never-steady", "two-modes",
    "quantised",
]  # fmt: skip
CODES: tuple[Code, ...] = get_args(Code)

LEAST_FOR_DIAGNOSTICS = 20
# Length of a series in autocorrelation times from which on its autocorrelation time is reliable: the rule of emcee's
# manual, D. Foreman-Mackey and others, https://emcee.readthedocs.io/en/stable/tutorials/autocorr/.
LEAST_TIMES = 50
LEAST_STEPS = 4.0
SIGNIFICANT_DIP = 0.72  # times the root of the number of samples: 99.9 % of uniform samples have less
LEAST_DISTANCE = 0.01  # of two modes, as a share of the smaller, to matter
_POINTS = 512


class Diagnostic(Struct, frozen=True):
    """A doubt about the interval of the median, or about the median as a summary."""

    code: Code
    value: float  # the number that supports it
    target: Literal["interval", "median"]


def diagnostics(samples: Sequence[float]) -> tuple[Diagnostic, ...]:
    """Return the doubts about the median of samples in order of time; only finite ones count."""
    values = np.asarray(samples, dtype=np.float64)
    values = values[np.isfinite(values)]
    ordered, correlations = np.sort(values), autocorrelations(ranks(values))
    if values.size < LEAST_FOR_DIAGNOSTICS:
        results = [Diagnostic("few-samples", float(values.size), "interval")]
    else:
        results = [*_few_independent(values, correlations), *_unsteady(values)]
    if distance := _two_modes(ordered, integrate_autocorrelations(correlations).independent):
        results.append(Diagnostic("two-modes", distance, "median"))
    return (*results, *(_quantised(ordered) if values.size >= 2 else ()))


def _few_independent(values: Array, rank_autocorrelations: Array) -> list[Diagnostic]:
    """Return a doubt if the series is short against its autocorrelation time, so that the interval is uncertain.

    The relevant time is that of "below the median or not". It is estimated in two ways, as in short series both may
    miss it by chance: directly, and from that of the ranks, of which for a normal process it is at least the share 2 /
    pi, by the arcsine law: J. H. Van Vleck and D. Middleton, "The spectrum of clipped noise", Proceedings of the IEEE
    54 (1966).
    """
    has_interval = median_interval(values) is not None
    if has_interval and not has_correlation(rank_autocorrelations):
        return []
    correlation = autocorrelation(indicator_below(values, float(np.median(values))))
    least = 1 + 2 / np.pi * (integrate_autocorrelations(rank_autocorrelations).time - 1)
    if has_interval and values.size >= LEAST_TIMES * max(correlation.time, least):
        return []
    return [Diagnostic("few-independent-samples", correlation.independent, "interval")]


def _unsteady(values: Array) -> list[Diagnostic]:
    result = steady(values)
    if result.reason in ("steady", "few-samples"):
        return []
    return [Diagnostic(cast("Code", result.reason), result.start / values.size, "interval")]


def _quantised(ordered: Array) -> list[Diagnostic]:
    """Return a doubt if many samples are equal, and quartiles a few steps of the clock apart.

    A step is the least difference of two unequal samples.
    """
    gaps = np.diff(ordered)
    real = gaps[gaps > 1e-9 * float(np.abs(ordered[[0, -1]]).max())]  # rounding errors are no difference
    if not real.size:
        return [Diagnostic("quantised", 0.0, "interval")]
    steps = (quantile_of_sorted(ordered, 0.75) - quantile_of_sorted(ordered, 0.25)) / float(real.min())
    if np.count_nonzero(gaps) + 1 > ordered.size / 2 or steps >= LEAST_STEPS:
        return []
    return [Diagnostic("quantised", steps, "interval")]


def _two_modes(ordered: Array, independent: float) -> float | None:
    """Return the ratio of two modes of sorted positive samples that a median hides; ``None`` for a single mode.

    By the dip test: J. A. Hartigan and P. M. Hartigan, "The dip test of unimodality", Annals of Statistics 13 (1985).
    It makes no other assumption about the shape: skewed and long-tailed samples have one mode. The test uses the number
    of ``independent`` samples, as a slow series lingers at one value after the other; and at most 512, the quantiles
    that represent longer series.
    """
    if ordered.size < 4 or ordered[0] <= 0:
        return None
    points = _spread_ties(ordered)
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
    """Return the largest distance of the distribution of samples to the nearest one with a single mode.

    From 1 / (2 n) to 1 / 4; equal samples count as one value. It is the greatest distance between the greatest convex
    minorant and the least concave majorant, and again on the range between, until that no longer is the greatest
    deviation. It never is more than that distance: if it is surely below ``least``, the search stops early.
    """
    values, counts = np.unique(np.asarray(samples, dtype=np.float64), return_counts=True)
    above = np.cumsum(counts) / counts.sum()
    under = above - counts / counts.sum()
    deviation, first, last = 1 / float(counts.sum()), 0, values.size - 1
    while last > first:
        at, low, high = values[first : last + 1], under[first : last + 1], above[first : last + 1]
        convex, concave = _hull(at, low), _hull(at, -high)
        minorant, majorant = np.interp(at, at[convex], low[convex]), np.interp(at, at[concave], high[concave])
        gaps = majorant - minorant
        left, right = int(convex[np.argmax(gaps[convex])]), int(concave[np.argmax(gaps[concave])])
        widest = max(float(gaps[left]), float(gaps[right]))
        if widest <= max(deviation, 2 * least * (1 - 1e-9)):
            break
        if gaps[left] >= gaps[right]:
            right = int(concave[np.searchsorted(concave, left)])
        else:
            left = int(convex[np.searchsorted(convex, right, "right") - 1])
        outside = np.concatenate([(high - minorant)[: left + 1], (majorant - low)[right:]])
        deviation = max(deviation, float(outside.max()))
        if (left, right) == (0, last - first):
            break
        first, last = first + left, first + right
    return deviation / 2


def _hull(x: Array, y: Array) -> NDArray[np.int64]:
    """Return indices of the corners of the greatest convex line below the points: Andrew's monotone chain."""
    candidates = np.arange(x.size)
    for _ in range(3):  # most points lie above the line between their neighbors
        rises = np.diff(y[candidates]) / np.diff(x[candidates])
        candidates = candidates[np.concatenate([[True], rises[1:] > rises[:-1], [True]])]
    at, height = x[candidates].tolist(), y[candidates].tolist()
    corners, slopes = [0], [-math.inf]  # of the lines that end there
    for index in range(1, len(at)):
        while True:
            last = corners[-1]
            slope = (height[index] - height[last]) / (at[index] - at[last])
            if slope > slopes[-1]:
                break
            corners.pop()
            slopes.pop()
        corners.append(index)
        slopes.append(slope)
    return candidates[corners]


def _spread_ties(ordered: Array) -> Array:
    """Spread equal samples evenly over one step of the clock, as every tick would be a mode of its own."""
    distinct, place, counts = np.unique(ordered, return_inverse=True, return_counts=True)
    if distinct.size == ordered.size or distinct.size < 2:
        return ordered
    step = float(np.diff(distinct).min())
    within = np.arange(ordered.size) - (np.cumsum(counts) - counts)[place]
    return np.asarray(ordered + step * ((within + 0.5) / counts[place] - 0.5), dtype=np.float64)
