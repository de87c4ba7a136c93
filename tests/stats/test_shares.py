"""Intervals of shares and of differences on the same samples: published examples, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from inferlens.stats.intervals import difference_of_means, difference_of_shares, share_interval


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_a_share_as_published(hits: int, count: int, low: float, high: float) -> None:
    """R. Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17 (1998)."""
    interval = share_interval(hits, count)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


def pairs(both: int, first: int, second: int, none: int) -> tuple[list[float], list[float]]:
    return [1.0] * (both + first) + [0.0] * (second + none), [1.0] * both + [0.0] * first + [1.0] * second + [
        0.0
    ] * none


def test_a_difference_of_shares_as_published() -> None:
    """Approval of a prime minister in two surveys, Agresti, "Categorical Data Analysis", 10.1.1: 0.04, 0.02 to 0.06."""
    interval = difference_of_shares(*pairs(794, 150, 86, 570))
    assert (round(interval.low, 2), round(interval.high, 2)) == (0.02, 0.06)
    same = difference_of_shares(*pairs(90, 0, 0, 10))
    assert same.high == -same.low == pytest.approx(1.96 / 102, rel=1e-4)  # (1.96 / (n + 2)) sqrt(0.5 + 0.5)


@pytest.mark.parametrize(
    ("count", "only_first", "only_second"), [(100, 0.06, 0.01), (400, 0.03, 0.02), (1000, 0.01, 0.0)]
)
def test_the_interval_of_a_difference_holds_it_19_times_of_20(
    count: int, only_first: float, only_second: float
) -> None:
    random, held = np.random.default_rng(0), 0
    for _ in range(1500):
        first, second, _ = random.multinomial(count, [only_first, only_second, 1 - only_first - only_second])
        interval = difference_of_shares(*pairs(count - first - second, first, second, 0))
        held += only_first - only_second in interval
    assert 0.925 <= held / 1500 <= 0.995


def test_a_difference_of_means_is_students() -> None:
    """Student's own, "The probable error of a mean" (1908): the sleep of ten patients with two drugs."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    interval = difference_of_means(first, second)
    assert interval
    assert (round(interval.low, 2), round(interval.high, 2)) == (-2.46, -0.70)
    assert difference_of_means([1.0], [2.0]) is None
