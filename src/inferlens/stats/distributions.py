"""Quantiles of the normal, Student's and the binomial distribution, from SciPy; imported when first asked for."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=256)
def normal_quantile(probability: float) -> float:
    """The value below which a standard normal variable lies with ``probability`` (between 0 and 1)."""
    from scipy.special import ndtri

    return float(ndtri(probability))


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: float) -> float:
    """The value below which Student's t with ``freedom`` > 0 degrees of freedom lies with ``probability``."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


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
