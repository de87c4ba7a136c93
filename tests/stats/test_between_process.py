from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.stats.between_process import around, estimate, over_processes
from inferlens.stats.intervals import median_interval
from tests.stats.series import normal, processes

SERIES = st.lists(st.floats(min_value=1e-6, max_value=10), min_size=1, max_size=30)


def test_one_process_has_the_interval_within_it_and_says_so():
    found = estimate([normal(1)])
    assert found is not None
    assert (found.median, found.interval) == (float(np.median(normal(1))), median_interval(normal(1)))
    assert (found.between, found.processes, found.deviation_between, found.between_share) == (False, 1, None, None)


def test_nothing_to_estimate():
    assert estimate([]) is None
    assert estimate([[], []]) is None
    assert estimate([[0.0, 0.0]]) is None


def test_a_number_of_each_process_has_students_interval_over_them():
    found = over_processes([0.010, 0.011, 0.012, 0.010, 0.011])
    logs = np.log([0.010, 0.011, 0.012, 0.010, 0.011])
    margin = 2.776445 * logs.std(ddof=1) / math.sqrt(5)
    assert (found.low, found.high) == pytest.approx((math.exp(logs.mean() - margin), math.exp(logs.mean() + margin)))
    draws = np.random.default_rng(3).lognormal(0, 0.05, (2000, 5))
    held = [found.low <= 1 <= found.high for found in map(over_processes, draws)]
    assert 0.93 <= np.mean(held) <= 0.97


@pytest.mark.parametrize("values", [[], [0.01], [0.01, None], [0.01, 0.0, 0.01], [0.01, math.inf]])
def test_numbers_of_processes_without_an_interval(values):
    assert over_processes(values) is None


def test_two_processes_give_an_honest_and_wide_interval():
    found = estimate([[1.00] * 20, [1.02] * 20])
    assert found is not None
    assert found.interval is not None
    assert found.between
    # Student's quantile for one degree of freedom is 12.706; the standard error is half the difference.
    assert math.log(found.interval.high / found.median) == pytest.approx(12.7062 * math.log(1.02) / 2, rel=1e-4)


def test_processes_that_agree_by_luck_do_not_shrink_it_below_the_samples_own():
    found = estimate([normal(1), normal(1)])
    assert found is not None
    assert found.interval is not None
    assert found.deviation_between == 0
    alone = median_interval(normal(1))
    assert alone is not None
    assert found.interval.high - found.interval.low == pytest.approx((alone.high - alone.low) / 2**0.5, rel=0.05)


def test_shares_tell_the_levels_apart():
    generator = np.random.default_rng(4)
    apart, alike = (estimate(processes(generator, 30, 100, between)) for between in (0.05, 0.0))
    assert apart is not None
    assert alike is not None
    assert apart.deviation_between == pytest.approx(0.05, rel=0.4)
    assert apart.deviation_within == pytest.approx(1.2533 * 0.05 / 10, rel=0.3)
    assert apart.between_share is not None
    assert apart.between_share > 0.9
    assert alike.between_share is not None
    assert alike.between_share < 0.5


@pytest.mark.parametrize("number", [2, 5])
def test_coverage_of_two_levels_is_near_the_level(number):
    generator = np.random.default_rng(5)
    found = [estimate(processes(generator, number, 50)) for _ in range(300)]
    hits = sum(one is not None and one.interval is not None and 1e-2 in one.interval for one in found)
    assert 0.91 <= hits / 300 <= 0.99


@settings(max_examples=60, deadline=None)
@given(st.lists(SERIES, min_size=1, max_size=5), st.randoms())
def test_order_and_unit_do_not_matter(series, random):
    found = estimate(series)
    shuffled = random.sample(series, len(series))
    assert estimate(shuffled) == found
    assert found is not None
    scaled = estimate([[2 * value for value in samples] for samples in series])
    assert scaled is not None
    assert scaled.median == pytest.approx(2 * found.median)
    assert (scaled.interval is None) is (found.interval is None)
    if found.interval and scaled.interval:
        assert found.median in found.interval
        assert scaled.interval.low == pytest.approx(2 * found.interval.low)


def test_a_margin_stays_a_number():
    assert math.isfinite(around(1.0, 1e9).high)
    assert around(1.0, 1e9).low > 0
