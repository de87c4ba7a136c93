"""Quantiles of the normal, Student's and the binomial distribution, without SciPy.

All three come from one function, the regularised incomplete beta function, by its continued fraction: DLMF 8.17.22,
https://dlmf.nist.gov/8.17#v, evaluated with the method of W. J. Lentz, "Generating Bessel functions in Mie scattering
calculations using continued fractions", Applied Optics 15 (1976). Inverses are found by a bracketed secant (Illinois).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

_TINY = 1e-300
_NORMAL = NormalDist()
# Beyond it Student's and the normal quantiles agree to six digits.
_MANY_DEGREES = 1e6


def normal_quantile(probability: float) -> float:
    """The value below which a standard normal variable lies with ``probability`` (between 0 and 1)."""
    return _NORMAL.inv_cdf(probability)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for positive ``a`` and ``b``: good to about 1e-11.

    It is the probability that a Beta(a, b) variable is at most ``x``, and, for whole numbers, that at least ``a`` of
    ``a + b - 1`` trials succeed, each with probability ``x``.
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - incomplete_beta(b, a, 1 - x)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(logarithm) / a * _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    numerator, inverse = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1) or _TINY)
    value = inverse
    # About the square root of the larger argument is needed.
    for m in range(1, 100_000):
        term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        inverse = 1.0 / (1.0 + term * inverse or _TINY)
        numerator = 1.0 + term / numerator or _TINY
        value *= inverse * numerator
        term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        inverse = 1.0 / (1.0 + term * inverse or _TINY)
        numerator = 1.0 + term / numerator or _TINY
        step = inverse * numerator
        value *= step
        if abs(step - 1.0) < 1e-14:
            break
    return value


def student_cdf(value: float, freedom: float) -> float:
    """The probability that Student's t with ``freedom`` degrees of freedom is at most ``value``."""
    tail = 0.5 * incomplete_beta(freedom / 2, 0.5, freedom / (freedom + value * value))
    return 1.0 - tail if value > 0 else tail


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: float) -> float:
    """The value below which Student's t with ``freedom`` > 0 degrees of freedom lies with ``probability``.

    Good to about 1e-9 of its size, also for fractions of a degree; infinite where the tails are beyond 1e300.
    """
    if probability < 0.5:
        return -student_quantile(1.0 - probability, freedom)
    if probability == 0.5:
        return 0.0
    if freedom >= _MANY_DEGREES:
        return normal_quantile(probability)

    def excess(logarithm: float) -> float:
        share = incomplete_beta(freedom / 2, 0.5, 1.0 / (1.0 + math.exp(2 * logarithm) / freedom))
        return math.log(max(share, _TINY)) - math.log(2 * (1.0 - probability))

    low, high = -40.0, math.log(normal_quantile(probability)) + 1.0
    while excess(high) > 0:
        low, high = high, high + 2.0
        if high > 340.0:
            return math.inf
    return math.exp(_root(excess, low, high))


@lru_cache(maxsize=4096)
def fractional_rank(count: float, share: float, probability: float) -> float:
    """The real rank r of ``count`` samples whose r-th smallest lies below the ``share``-quantile with ``probability``.

    The share of the population below the r-th smallest of n is Beta(r, n + 1 - r) distributed, whatever the population;
    r is where that variable is below ``share`` with ``probability``. Fractional ranks: A. D. Hutson, "Calculating
    nonparametric confidence intervals for quantiles using fractional order statistics", Journal of Applied Statistics
    26 (1999). Between 0 and ``count + 1``; below 1 or above ``count`` there is no such sample.
    """

    def excess(rank: float) -> float:
        return incomplete_beta(rank, count + 1 - rank, share) - probability

    spread = math.sqrt(share * (1 - share) * (count + 1))
    middle = share * (count + 1) - normal_quantile(probability) * spread
    low = min(max(middle - 0.2 * spread - 0.1, 1e-9), count + 1 - 1e-8)
    high = max(min(middle + 0.2 * spread + 0.1, count + 1 - 1e-9), low + 1e-9)
    if excess(low) < 0:
        low, high = 1e-9, low
    elif excess(high) > 0:
        low, high = high, count + 1 - 1e-9
    return _root(excess, low, high)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a decreasing ``function`` crosses zero between the two: Illinois, a secant that stays inside."""
    at_low, at_high = function(low), function(high)
    if at_low <= 0:
        return low
    if at_high >= 0:
        return high
    side = 0
    for _ in range(200):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        value = function(middle)
        if value == 0 or high - low < 1e-12 * max(1.0, abs(middle)):
            return middle
        if value > 0:
            if abs(value) < 1e-13:
                return middle
            low, at_low = middle, value
            at_high = at_high / 2 if side == 1 else at_high
            side = 1
        else:
            if abs(value) < 1e-13:
                return middle
            high, at_high = middle, value
            at_low = at_low / 2 if side == -1 else at_low
            side = -1
    return (low + high) / 2
