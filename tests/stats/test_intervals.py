from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.stats.intervals import Interval, block_length, median_interval, speedup_interval

LATENCY = st.floats(min_value=1e-6, max_value=10, allow_nan=False)
SERIES = st.lists(LATENCY, min_size=10, max_size=60)


def draw(seed: int, count: int = 400, centre: float = 1e-2) -> list[float]:
    return list(centre * (1 + 0.05 * np.random.default_rng(seed).standard_normal(count)))


@pytest.mark.parametrize(("count", "length"), [(1, 1), (8, 2), (9, 3), (27, 3), (28, 4), (1000, 10), (1001, 11)])
def test_block_length_is_the_cube_root(count, length):
    assert block_length(count) == length


def test_too_few_samples_give_no_interval():
    assert median_interval([1.0] * 9) is None
    speedup = speedup_interval([2.0] * 9, [1.0] * 100)
    assert speedup is not None
    assert (speedup.ratio, speedup.interval) == (2.0, None)


def test_no_samples_or_a_zero_median_give_no_speedup():
    assert speedup_interval([], [1.0]) is None
    assert speedup_interval([1.0], []) is None
    assert speedup_interval([1.0] * 20, [0.0] * 20) is None


def test_the_same_samples_give_the_same_interval():
    assert median_interval(draw(1)) == median_interval(draw(1))
    assert speedup_interval(draw(1), draw(2)) == speedup_interval(draw(1), draw(2))


def test_constant_samples_leave_no_doubt():
    assert median_interval([0.5] * 30) == Interval(0.5, 0.5)
    speedup = speedup_interval([1.0] * 30, [0.5] * 30)
    assert speedup is not None
    assert speedup.interval == Interval(2.0, 2.0)


def test_coverage_of_independent_samples_is_near_the_level():
    hits = sum(1e-2 in (median_interval(draw(seed, 100)) or Interval(1, 1)) for seed in range(200))
    assert 176 <= hits <= 200  # 95 % of 200 is 190


def test_correlated_samples_give_a_wider_interval():
    noise = np.random.default_rng(3).standard_normal(1000)
    slow = np.convolve(noise, np.ones(15) / 15**0.5, mode="same")
    independent, correlated = median_interval(1 + 0.01 * noise), median_interval(1 + 0.01 * slow)
    assert independent is not None
    assert correlated is not None
    assert correlated.high - correlated.low > 1.5 * (independent.high - independent.low)


def test_a_clear_difference_is_seen_and_none_is_not():
    faster = speedup_interval(draw(1, centre=2e-2), draw(2, centre=1e-2))
    assert faster is not None
    assert faster.interval is not None
    assert faster.interval.low > 1.9
    same = speedup_interval(draw(1), draw(2))
    assert same is not None
    assert same.interval is not None
    assert 1.0 in same.interval


def test_a_thousand_samples_are_quick_and_a_hundred_thousand_bearable():
    base, candidate = draw(1, 1000), draw(2, 1000)
    speedup_interval(base, candidate)
    begin = time.perf_counter()
    speedup_interval(base, candidate)
    assert time.perf_counter() - begin < 1.0  # about 0.05 s on an idle machine
    assert median_interval(draw(1, 100_000)) is not None


@settings(max_examples=60, deadline=None)
@given(SERIES)
def test_interval_is_ordered_and_contains_the_median(samples):
    interval = median_interval(samples)
    assert interval is not None
    assert min(samples) <= interval.low <= interval.high <= max(samples)
    assert float(np.median(samples)) in interval


@settings(max_examples=60, deadline=None)
@given(SERIES, SERIES)
def test_speedup_interval_contains_the_ratio(base, candidate):
    speedup = speedup_interval(base, candidate)
    assert speedup is not None
    assert speedup.interval is not None
    assert speedup.ratio == float(np.median(base)) / float(np.median(candidate))
    assert speedup.ratio in speedup.interval


@settings(max_examples=60, deadline=None)
@given(SERIES, SERIES, st.sampled_from([0.125, 0.5, 2.0, 1024.0]))
def test_intervals_scale_with_their_samples(base, candidate, factor):
    scaled, plain = median_interval([factor * value for value in base]), median_interval(base)
    assert scaled is not None
    assert plain is not None
    assert (scaled.low, scaled.high) == pytest.approx((factor * plain.low, factor * plain.high))
    slower = speedup_interval([factor * value for value in base], candidate)
    same = speedup_interval(base, candidate)
    assert slower is not None
    assert same is not None
    assert slower.ratio == pytest.approx(factor * same.ratio)
    assert slower.interval is not None
    assert same.interval is not None
    assert slower.interval.high == pytest.approx(factor * same.interval.high)


def test_overlap():
    assert Interval(1, 2).overlaps(Interval(2, 3))
    assert not Interval(1, 2).overlaps(Interval(2.1, 3))
