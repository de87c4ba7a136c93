from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc

from inferlens.stats.intervals import (
    Interval,
    fractional_rank,
    mean_interval,
    median_interval,
    quantile_interval,
    ratio_interval,
    student_quantile,
)
from tests.stats.series import autoregressive, normal

SERIES = st.lists(st.floats(min_value=1e-6, max_value=10, allow_nan=False), min_size=10, max_size=60)


@pytest.mark.parametrize(
    "samples", [[1.0] * 9, [1.0] * 20 + [math.nan], list(np.linspace(1, 2, 40))], ids=["few", "not finite", "a slope"]
)
def test_no_interval(samples):
    assert median_interval(samples) is None
    assert ratio_interval(samples, [1.0] * 100) is None


def test_constant_samples_leave_no_doubt():
    assert median_interval([0.5] * 30) == Interval(0.5, 0.5)
    assert ratio_interval([1.0] * 30, [0.5] * 30) == Interval(2.0, 2.0)


@pytest.mark.parametrize(("share", "truth"), [(0.05, -1.6449), (0.95, 1.6449), (0.99, 2.3263), (None, 0.0)])
def test_coverage_of_quantiles_and_the_mean_is_near_the_level(share, truth):
    series = autoregressive(8, 500, 1000, 0.0)
    found = [quantile_interval(list(one), share) if share else mean_interval(list(one)) for one in series]
    known = [interval for interval in found if interval is not None]
    assert len(known) > 490
    assert 0.92 <= sum(truth in interval for interval in known) / len(known) <= 0.98


@pytest.mark.parametrize(
    ("share", "count", "known"),
    [(0.99, 50, False), (0.99, 360, False), (0.99, 400, True), (0.95, 70, False), (0.95, 80, True), (0.05, 80, True)],
)
def test_far_quantiles_need_many_samples(share, count, known):
    samples = list(np.random.default_rng(1).permutation(np.arange(count)) + 1.0)
    assert (quantile_interval(samples, share) is not None) is known


def test_ties_do_not_break_it():
    samples = list(np.round(normal(3, 300), 4))
    interval = median_interval(samples)
    assert interval.low in samples
    assert 1e-2 in interval


def test_correlated_samples_give_a_wider_interval():
    noise = np.random.default_rng(3).standard_normal(1000)
    slow = np.convolve(noise, np.ones(15) / 15**0.5, mode="same")
    independent, correlated = median_interval(1 + 0.01 * noise), median_interval(1 + 0.01 * slow)
    assert correlated.high - correlated.low > 1.5 * (independent.high - independent.low)


@settings(max_examples=60, deadline=None)
@given(SERIES, SERIES, st.sampled_from([0.125, 0.5, 2.0, 1024.0]))
def test_intervals_hold_their_numbers_scale_with_their_samples_and_invert(base, candidate, factor):
    interval = median_interval(base)
    if interval is not None:
        assert min(base) <= interval.low <= float(np.median(base)) <= interval.high <= max(base)
    slow = [factor * value for value in base]
    for interval_of in (median_interval, mean_interval, lambda samples: ratio_interval(samples, candidate)):
        scaled, plain = interval_of(slow), interval_of(base)
        assert (scaled is None) is (plain is None)
        if scaled and plain:
            assert (scaled.low, scaled.high) == pytest.approx((factor * plain.low, factor * plain.high))
    there, back = ratio_interval(base, candidate), ratio_interval(candidate, base)
    assert (there is None) is (back is None)
    if there and back:
        assert there.low == pytest.approx(1 / back.high)
        assert float(np.median(base)) / float(np.median(candidate)) in there


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),  # from printed tables of Student's t
    [(0.975, 1, 12.7062), (0.975, 5, 2.5706), (0.995, 5, 4.0321), (0.95, 10, 1.8125), (0.9995, 10, 4.5869),
     (0.975, 1000, 1.9623), (0.975, 1e7, 1.9600)],
)  # fmt: skip
def test_student_quantiles_of_the_tables(probability, freedom, value):
    assert student_quantile(probability, freedom) == pytest.approx(value, abs=6e-5)
    assert student_quantile(1 - probability, freedom) == pytest.approx(-value, abs=6e-5)


def test_rank_of_whole_numbers_is_the_binomial_one():
    probability = sum(math.comb(10, k) for k in range(2, 11)) / 2**10  # two or more of ten below the median
    assert fractional_rank(10, 0.5, probability) == pytest.approx(2.0)


@given(st.floats(2, 1e5), st.floats(0.01, 0.99), st.floats(0.001, 0.999))
def test_rank_is_what_it_says(count, share, probability):
    rank = fractional_rank(count, share, probability)
    first, last = betainc(1, count, share), betainc(count, 1, share)
    if 1 <= rank <= count:
        assert betainc(rank, count + 1 - rank, share) == pytest.approx(probability, abs=1e-6)
    else:  # there is no such sample
        assert (first <= probability + 1e-9) if rank == 0 else (rank == count + 1 and last >= probability - 1e-9)
