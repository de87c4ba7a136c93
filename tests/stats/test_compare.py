from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.stats.compare import compare, judge
from inferlens.stats.intervals import Interval
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
    found, reason = judge(ratio, Interval(low, high), threshold=0.02, level=0.95, between=True)
    assert found == verdict
    assert reason


def test_one_process_on_each_side_has_to_overcome_what_is_not_known():
    near = compare([normal(1)], [normal(2, centre=1.04e-2)])
    assert (near.verdict, near.between) == ("UNDECIDED", False)
    assert near.interval is not None
    assert near.interval.low > 1.02
    assert "several processes" in near.reason
    assert compare([normal(1)], [normal(1)]).verdict == "UNDECIDED"  # never SAME either
    assert compare([normal(1)], [normal(2, centre=1.2e-2)]).verdict == "SLOWER"
    assert compare([normal(1)], [normal(2, centre=0.8e-2)]).verdict == "FASTER"


def test_a_single_process_borrows_the_variation_of_the_other_side():
    generator = np.random.default_rng(1)
    found = compare(processes(generator, 1, 100), processes(generator, 8, 100))
    full = compare(processes(generator, 8, 100), processes(generator, 8, 100))
    assert found.between
    assert found.processes == (1, 8)
    assert found.interval is not None
    assert full.interval is not None
    assert found.interval.high / found.interval.low > full.interval.high / full.interval.low


@pytest.mark.parametrize("side", [[], [[]], [[0.0] * 20]])
def test_nothing_to_compare(side):
    found = compare([normal(1)], side)
    assert (found.verdict, found.ratio, found.speedup, found.interval) == ("UNDECIDED", None, None, None)


def test_too_few_samples_are_undecided():
    found = compare([[1.0] * 5], [[2.0] * 5])
    assert (found.verdict, found.ratio, found.interval) == ("UNDECIDED", 2.0, None)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="pairs"):
        compare([[1.0]], [], paired=True)
    with pytest.raises(ValueError, match="threshold"):
        compare([[1.0]], [[1.0]], threshold=0.0)


def test_pairs_cancel_what_drifts():
    generator = np.random.default_rng(2)
    base = processes(generator, 6, 100, between=0.0)
    candidate = processes(generator, 6, 100, between=0.0, times=1.05)
    slower = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    base, candidate = (
        [[times * value for value in one] for times, one in zip(slower, side, strict=True)]
        for side in (base, candidate)
    )
    assert compare(base, candidate, paired=True).verdict == "SLOWER"
    assert compare(base, candidate).verdict == "UNDECIDED"


def test_many_comparisons_widen_the_interval():
    generator = np.random.default_rng(3)
    base, candidate = processes(generator, 5, 50), processes(generator, 5, 50)
    one, ten = compare(base, candidate), compare(base, candidate, comparisons=10)
    assert ten.level == pytest.approx(0.995)
    assert one.interval is not None
    assert ten.interval is not None
    assert ten.interval.low < one.interval.low < one.interval.high < ten.interval.high


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_two_of_the_same_are_seldom_told_apart(number, paired):
    generator = np.random.default_rng(4)
    verdicts = Counter(
        compare(processes(generator, number, 50), processes(generator, number, 50), paired=paired).verdict
        for _ in range(200)
    )
    assert verdicts["FASTER"] + verdicts["SLOWER"] <= 12  # 5 % of 200 is 10


def test_a_slowdown_is_found_and_the_same_is_said_to_be():
    generator = np.random.default_rng(5)
    slow = [compare(processes(generator, 8, 50), processes(generator, 8, 50, times=1.05)).verdict for _ in range(50)]
    assert slow.count("SLOWER") >= 45
    alike = [
        compare(processes(generator, 8, 100, 0.003), processes(generator, 8, 100, 0.003)).verdict for _ in range(50)
    ]
    assert alike.count("SAME") >= 45


@settings(max_examples=60, deadline=None)
@given(SIDE, SIDE, st.randoms())
def test_ratio_is_in_its_interval_and_neither_order_nor_unit_matter(base, candidate, random):
    found = compare(base, candidate)
    assert found.ratio is not None
    assert found.interval is None or found.ratio in found.interval
    shuffled = compare(random.sample(base, len(base)), candidate)
    assert shuffled.verdict == found.verdict
    assert shuffled.ratio == pytest.approx(found.ratio)
    scaled = compare([[4 * value for value in one] for one in base], candidate)
    assert scaled.ratio == pytest.approx(found.ratio / 4)


@settings(max_examples=60, deadline=None)
@given(SIDE, SIDE)
def test_swapping_the_sides_inverts_the_ratio(base, candidate):
    there, back = compare(base, candidate), compare(candidate, base)
    assert back.verdict == MIRROR[there.verdict]
    assert there.ratio is not None
    assert there.speedup == pytest.approx(back.ratio)
    if there.speedup_interval and back.interval:
        assert there.speedup_interval.low == pytest.approx(back.interval.low)
