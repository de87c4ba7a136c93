from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.stats.between_process import (
    LEAST_PROCESSES,
    centres,
    estimate,
    over_processes,
    process_autocorrelation,
    spread,
)
from inferlens.stats.compare import compare, conclude
from inferlens.stats.intervals import median_interval
from inferlens.stats.standing import Entry, Layout
from tests.stats.series import autoregressive, normal

SERIES = st.lists(st.floats(min_value=1e-6, max_value=10), min_size=1, max_size=30)


def test_one_process_has_the_interval_within_it_and_says_so():
    found = estimate([normal(1)])
    assert (found.median, found.interval) == (float(np.median(normal(1))), median_interval(normal(1)))
    assert found.between is False


def test_a_number_of_each_process_has_students_interval_over_them():
    found = over_processes([0.010, 0.011, 0.012, 0.010, 0.011])
    logs = np.log([0.010, 0.011, 0.012, 0.010, 0.011])
    margin = 2.776445 * logs.std(ddof=1) / math.sqrt(5)
    assert (found.low, found.high) == pytest.approx((math.exp(logs.mean() - margin), math.exp(logs.mean() + margin)))


@pytest.mark.parametrize("values", [[], [0.01], [0.01, None], [0.01, 0.0, 0.01], [0.01, math.inf]])
def test_nothing_to_estimate(values):
    assert over_processes(values) is None
    assert [estimate(samples) for samples in ([], [[], []], [[0.0, 0.0]])] == [None] * 3


def test_two_processes_give_an_honest_and_wide_interval():
    found = estimate([[1.00] * 20, [1.02] * 20])
    assert found.between
    # Student's quantile for one degree of freedom is 12.706; the standard error is half the difference.
    assert math.log(found.interval.high / found.median) == pytest.approx(12.7062 * math.log(1.02) / 2, rel=1e-4)


def test_processes_that_agree_by_luck_do_not_shrink_it_below_the_samples_own():
    found, alone = estimate([normal(1), normal(1)]).interval, median_interval(normal(1))
    assert found.high - found.low == pytest.approx((alone.high - alone.low) / 2**0.5, rel=0.05)


@settings(max_examples=60, deadline=None)
@given(st.lists(SERIES, min_size=1, max_size=5), st.randoms())
def test_order_and_unit_do_not_matter(series, random):
    found = estimate(series)
    assert estimate(random.sample(series, len(series))) == found
    scaled = estimate([[2 * value for value in samples] for samples in series])
    assert scaled.median == pytest.approx(2 * found.median)
    assert (scaled.interval is None) is (found.interval is None)
    if found.interval and scaled.interval:
        assert found.median in found.interval
        assert scaled.interval.low == pytest.approx(2 * found.interval.low)


# Processes that resemble those before them.

WAVE = [0.05 * math.sin(2 * math.pi * index / 12) for index in range(12)]
MIXED = [WAVE[(5 * index) % 12] for index in range(12)]  # as far apart as the wave's, and in no order


def at(logs: list[float], times: float = 1.0) -> list[list[float]]:
    """Processes of 50 samples with little noise, around ``times`` 10 ms."""
    return [[times * 1e-2 * math.exp(log) * (1 + 1e-4 * (index % 7 - 3)) for index in range(50)] for log in logs]


@pytest.mark.parametrize("number", [LEAST_PROCESSES, 20])
def test_independent_processes_are_seldom_said_to_resemble_each_other(number):
    pairs = autoregressive(4, 1000, 2 * number, 0.0)
    assert sum(process_autocorrelation([list(one[:number])]) > 0 for one in pairs) <= 70
    assert sum(process_autocorrelation([list(one[:number]), list(one[number:])]) > 0 for one in pairs) <= 70


def test_resemblance_is_found_and_not_far_off():
    found = [process_autocorrelation([list(one)]) for one in autoregressive(3, 200, 40, 0.6)]
    assert sum(one > 0 for one in found) >= 190
    assert np.median(found) == pytest.approx(0.6, abs=0.06)


@pytest.mark.parametrize("runs", [[], [[]], [[1.0, 2.0, 3.0, 4.0, 5.0]], [[2.0] * 9]])
def test_nothing_is_said_of_few_or_of_equal_ones(runs):
    assert process_autocorrelation(runs) == 0.0


def test_the_variance_and_the_number_are_those_of_independent_ones():
    series = autoregressive(5, 4000, 20, 0.6)
    found = [spread(list(one), 0.6) for one in series]
    assert np.mean([variance for variance, _ in found]) == pytest.approx(1.0, abs=0.05)
    assert np.mean([variance / worth for variance, worth in found]) == pytest.approx(
        float(series.mean(axis=1).var()), rel=0.15
    )
    assert [spread([1.0, 2.0, 4.0], correlation)[1] for correlation in (0.0, 0.9)] == [3, 2]


def test_waves_widen_the_interval_and_say_so():
    wavy, mixed = (compare(at(logs), at(logs, 1.06)) for logs in (WAVE, MIXED))
    assert wavy.autocorrelation > 0.5 > mixed.autocorrelation == 0.0
    assert wavy.interval.low < mixed.interval.low < mixed.interval.high < wavy.interval.high
    assert (wavy.verdict, mixed.verdict) == ("UNDECIDED", "SLOWER")


def test_runs_of_two_times_are_told_apart_less_often():
    drawn = 0.05 * autoregressive(6, 300, 40, 0.7)
    false = 0
    for one in drawn:
        base, other = ([[float(value)] for value in np.exp(side)] for side in (one[:20], one[20:]))
        false += compare(base, other, threshold=1e-6).verdict != "UNDECIDED"
    assert false <= 30  # of 300; more than 100 if they were taken for independent


@pytest.mark.parametrize(("logs", "verdict"), [(MIXED, "SLOWER"), (WAVE, "UNDECIDED")], ids=["mixed", "waves"])
def test_rounds_whose_ratio_comes_in_waves_do_not_decide_it(logs, verdict):
    base = centres(side for _ in logs for side in at([0.0]))
    sides = {"base": base, "other": centres(at(logs, 1.05))}
    layout = Layout({name: Entry(processes=one, rounds=dict(enumerate(one))) for name, one in sides.items()})
    found = conclude(layout.difference("base", "other"), threshold=0.02, level=0.95)
    assert found.verdict == verdict
    assert (found.autocorrelation > 0.5) == (verdict == "UNDECIDED")
