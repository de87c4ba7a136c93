from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.stats.between_process import Centre
from inferlens.stats.compare import Spread, compare, judge, levels_of_looks, seen_spread
from inferlens.stats.intervals import Interval, student_quantile
from tests.stats.series import normal, processes

SERIES = st.lists(st.floats(min_value=1e-6, max_value=10), min_size=1, max_size=25)
SIDE = st.lists(SERIES, min_size=1, max_size=4)
MIRROR = {"FASTER": "SLOWER", "SLOWER": "FASTER", "SAME": "SAME", "UNDECIDED": "UNDECIDED"}


@pytest.mark.parametrize(
    ("ratio", "low", "high", "verdict"),
    [
        (1.05, 1.01, 1.09, "SLOWER"),
        (0.95, 0.91, 0.99, "FASTER"),
        (1.00, 0.985, 1.015, "SAME"),
        (1.01, 1.005, 1.015, "SAME"),  # sure, but smaller than the threshold
        (1.015, 1.005, 1.025, "UNDECIDED"),
        (1.05, 0.99, 1.11, "UNDECIDED"),
        (1.00, 0.97, 1.03, "UNDECIDED"),
        (1.02, 1.01, 1.03, "SLOWER"),
    ],
)
def test_the_rule(ratio, low, high, verdict):
    assert judge(ratio, Interval(low, high), 0.02)[0] == verdict


@pytest.mark.parametrize(
    ("spread", "verdict", "between"),
    [
        (None, "UNDECIDED", False),
        (Spread(variance=0.01**2, freedom=10), "SLOWER", True),
        (Spread(variance=0.15**2, freedom=10), "UNDECIDED", True),
    ],
)
def test_one_process_on_each_side_is_as_sure_as_processes_were_seen_to_be(spread, verdict, between):
    found = compare([normal(1)], [normal(2, centre=1.2e-2)], spread=spread)
    assert (found.verdict, found.between) == (verdict, between)


def test_the_spread_is_that_of_all_cases_with_several_processes():
    logs = [[0.0, 0.02], [1.0, 1.04, 1.02], [5.0]]
    found = seen_spread([[Centre(log, None) for log in case] for case in logs])
    assert (found.variance, found.freedom) == (pytest.approx((0.0002 + 0.0008) / 3), 3)
    assert seen_spread([[Centre(1.0, None)]]) is None


def test_a_single_process_borrows_the_variation_of_the_other_side():
    generator = np.random.default_rng(1)
    found = compare(processes(generator, 1, 100), processes(generator, 8, 100))
    full = compare(processes(generator, 8, 100), processes(generator, 8, 100))
    assert found.between
    assert found.interval.high / found.interval.low > full.interval.high / full.interval.low


@pytest.mark.parametrize("side", [[], [[]], [[0.0] * 20]])
def test_nothing_to_compare(side):
    found = compare([normal(1)], side)
    assert (found.verdict, found.ratio, found.speedup, found.interval) == ("UNDECIDED", None, None, None)


def test_too_few_samples_are_undecided():
    found = compare([[1.0] * 5], [[2.0] * 5])
    assert (found.verdict, found.ratio, found.interval) == ("UNDECIDED", 2.0, None)


def test_many_comparisons_widen_the_interval():
    generator = np.random.default_rng(3)
    base, candidate = processes(generator, 5, 50), processes(generator, 5, 50)
    one, ten = (compare(base, candidate, comparisons=number).interval for number in (1, 10))
    assert ten.low < one.low < one.high < ten.high
    assert compare(base, candidate, level=0.995).interval.low == pytest.approx(ten.low)


@settings(max_examples=60, deadline=None)
@given(SIDE, SIDE, st.randoms())
def test_neither_order_nor_unit_matter_and_swapping_the_sides_inverts_the_ratio(base, candidate, random):
    found = compare(base, candidate)
    assert found.interval is None or found.ratio in found.interval
    shuffled = compare(random.sample(base, len(base)), candidate)
    assert (shuffled.verdict, shuffled.ratio) == (found.verdict, pytest.approx(found.ratio))
    assert compare([[4 * value for value in one] for one in base], candidate).ratio == pytest.approx(found.ratio / 4)
    back = compare(candidate, base)
    assert (back.verdict, back.ratio) == (MIRROR[found.verdict], pytest.approx(found.speedup))
    if found.speedup_interval and back.interval:
        assert found.speedup_interval.low == pytest.approx(back.interval.low)


def test_levels_of_looks():
    early, late = levels_of_looks(3, 10, 20, 0.95)
    assert 0.05 / 18 < 1 - late < 1 - early < 0.05


def test_a_race_that_is_looked_at_often_errs_as_seldom_as_is_allowed():
    """Of two that are equal, over twenty rounds."""
    early, late = levels_of_looks(3, 10, 20, 0.95)
    levels, rounds = [early] * 8 + [late] * 10, np.arange(3, 21)
    logs = np.random.default_rng(7).standard_normal((20_000, 20))
    means = np.stack([logs[:, :count].mean(axis=1) for count in rounds], axis=1)
    errors = np.stack([logs[:, :count].std(axis=1, ddof=1) / np.sqrt(count) for count in rounds], axis=1)
    bounds = [student_quantile((1 + level) / 2, count - 1) for level, count in zip(levels, rounds, strict=True)]
    strayed = np.abs(means) > np.array(bounds) * errors
    assert strayed.any(axis=1).mean() == pytest.approx(0.05, abs=0.005)
    assert strayed[:, :8].any(axis=1).mean() == pytest.approx(0.04, abs=0.005)
