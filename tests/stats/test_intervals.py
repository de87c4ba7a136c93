from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.stats.intervals import (
    Interval,
    mean_interval,
    median_interval,
    quantile_interval,
    speedup_interval,
)
from tests.stats.series import autoregressive, normal

LATENCY = st.floats(min_value=1e-6, max_value=10, allow_nan=False)
SERIES = st.lists(LATENCY, min_size=10, max_size=60)


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
    assert median_interval(normal(1)) == median_interval(normal(1))
    assert speedup_interval(normal(1), normal(2)) == speedup_interval(normal(1), normal(2))


def test_constant_samples_leave_no_doubt():
    assert median_interval([0.5] * 30) == Interval(0.5, 0.5)
    speedup = speedup_interval([1.0] * 30, [0.5] * 30)
    assert speedup is not None
    assert speedup.interval == Interval(2.0, 2.0)


@pytest.mark.parametrize(("count", "correlation"), [(50, 0.0), (200, 0.0), (200, 0.5), (1000, 0.9)])
def test_coverage_of_the_median_is_near_the_level(count, correlation):
    found = [median_interval(list(1 + 0.05 * one)) for one in autoregressive(7, 500, count, correlation)]
    known = [interval for interval in found if interval is not None]
    assert len(known) > 490
    assert 0.92 <= sum(1.0 in interval for interval in known) / len(known) <= 0.98


@pytest.mark.parametrize(("share", "truth"), [(0.05, -1.6449), (0.95, 1.6449), (0.99, 2.3263)])
def test_coverage_of_quantiles_is_near_the_level(share, truth):
    found = [quantile_interval(list(one), share) for one in autoregressive(8, 500, 1000, 0.0)]
    known = [interval for interval in found if interval is not None]
    assert len(known) > 490
    assert 0.92 <= sum(truth in interval for interval in known) / len(known) <= 0.98


def test_coverage_of_the_mean_is_near_the_level():
    found = [mean_interval(list(one)) for one in autoregressive(9, 500, 200, 0.5)]
    assert 0.92 <= sum(interval is not None and 0.0 in interval for interval in found) / 500 <= 0.98


@pytest.mark.parametrize(
    ("share", "count", "known"),
    [(0.99, 50, False), (0.99, 360, False), (0.99, 400, True), (0.95, 70, False), (0.95, 80, True), (0.05, 80, True)],
)
def test_far_quantiles_need_many_samples(share, count, known):
    samples = list(np.random.default_rng(1).permutation(np.arange(count)) + 1.0)
    assert (quantile_interval(samples, share) is not None) is known


def test_a_slow_series_has_no_interval():
    assert median_interval(list(np.linspace(1, 2, 40))) is None
    assert median_interval([1.0] * 20 + [math.nan]) is None


def test_ties_do_not_break_it():
    samples = list(np.round(normal(3, 300), 4))
    interval = median_interval(samples)
    assert interval is not None
    assert interval.low in samples
    assert 1e-2 in interval


def test_correlated_samples_give_a_wider_interval():
    noise = np.random.default_rng(3).standard_normal(1000)
    slow = np.convolve(noise, np.ones(15) / 15**0.5, mode="same")
    independent, correlated = median_interval(1 + 0.01 * noise), median_interval(1 + 0.01 * slow)
    assert independent is not None
    assert correlated is not None
    assert correlated.high - correlated.low > 1.5 * (independent.high - independent.low)


def test_a_clear_difference_is_seen_and_none_is_not():
    faster = speedup_interval(normal(1, centre=2e-2), normal(2, centre=1e-2))
    assert faster is not None
    assert faster.interval is not None
    assert faster.interval.low > 1.9
    same = speedup_interval(normal(1), normal(2))
    assert same is not None
    assert same.interval is not None
    assert 1.0 in same.interval


def test_a_thousand_samples_are_quick_and_a_hundred_thousand_bearable():
    base, candidate = normal(1, 1000), normal(2, 1000)
    speedup_interval(base, candidate)
    begin = time.perf_counter()
    speedup_interval(base, candidate)
    assert time.perf_counter() - begin < 1.0  # about 2 ms on an idle machine
    assert median_interval(normal(1, 100_000)) is not None


@settings(max_examples=60, deadline=None)
@given(SERIES)
def test_interval_is_ordered_and_contains_the_median(samples):
    interval = median_interval(samples)
    if interval is None:
        return
    assert min(samples) <= interval.low <= interval.high <= max(samples)
    assert float(np.median(samples)) in interval


@settings(max_examples=60, deadline=None)
@given(SERIES, SERIES)
def test_speedup_interval_contains_the_ratio(base, candidate):
    speedup = speedup_interval(base, candidate)
    assert speedup is not None
    assert speedup.ratio == float(np.median(base)) / float(np.median(candidate))
    assert speedup.interval is None or speedup.ratio in speedup.interval


@settings(max_examples=60, deadline=None)
@given(SERIES, SERIES, st.sampled_from([0.125, 0.5, 2.0, 1024.0]))
def test_intervals_scale_with_their_samples(base, candidate, factor):
    slow = [factor * value for value in base]
    for interval_of in (median_interval, mean_interval):
        scaled, plain = interval_of(slow), interval_of(base)
        assert (scaled is None) is (plain is None)
        if scaled and plain:
            assert (scaled.low, scaled.high) == pytest.approx((factor * plain.low, factor * plain.high))
    slower, same = speedup_interval(slow, candidate), speedup_interval(base, candidate)
    assert slower is not None
    assert same is not None
    assert slower.ratio == pytest.approx(factor * same.ratio)
    assert (slower.interval is None) is (same.interval is None)
    if slower.interval and same.interval:
        assert slower.interval.high == pytest.approx(factor * same.interval.high)


@settings(max_examples=60, deadline=None)
@given(SERIES, SERIES)
def test_swapping_the_sides_inverts_the_ratio(base, candidate):
    there, back = speedup_interval(base, candidate), speedup_interval(candidate, base)
    assert there is not None
    assert back is not None
    assert (there.interval is None) is (back.interval is None)
    if there.interval and back.interval:
        assert there.interval.low == pytest.approx(1 / back.interval.high)


def test_overlap():
    assert Interval(1, 2).overlaps(Interval(2, 3))
    assert not Interval(1, 2).overlaps(Interval(2.1, 3))
