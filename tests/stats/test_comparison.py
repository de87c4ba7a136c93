import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.stats.comparison import (
    CPU_NOISE,
    LogRatio,
    compare,
    conclude,
    estimate,
    paired_difference,
    unpaired_difference,
)
from tests.stats.series import normal, processes

SERIES = st.lists(st.floats(min_value=1e-6, max_value=10), min_size=1, max_size=25)
SIDE = st.lists(SERIES, min_size=1, max_size=4)
MIRROR = {"FASTER": "SLOWER", "SLOWER": "FASTER", "SAME": "SAME", "UNDECIDED": "UNDECIDED"}


def difference(ratio, half):
    """Return a difference whose 95 % interval reaches ``half`` to either side, as a logarithm."""
    return LogRatio(log=math.log(ratio), error=half / 1.96, freedom=math.inf, rounds=10)


def rounds(*ratios):
    """Return two cases whose ratio in each round is given, on a machine whose speed changes from round to round."""
    base = {number: 0.3 * (-1) ** number for number in range(len(ratios))}
    return base, {number: base[number] + math.log(ratio) for number, ratio in enumerate(ratios)}


@pytest.mark.parametrize(("ratio", "half", "verdict"), [
    (1.05, 0.04, "SLOWER"), (0.95, 0.04, "FASTER"), (1.00, 0.015, "SAME"), (1.0205, 0.01, "SLOWER"),
    (1.01, 0.005, "SAME"),  # sure, but smaller than the threshold
    (1.015, 0.01, "UNDECIDED"), (1.05, 0.06, "UNDECIDED"), (1.00, 0.03, "UNDECIDED"),
])  # fmt: skip
def test_the_verdict_follows_from_the_interval(ratio, half, verdict):
    assert conclude(difference(ratio, half), threshold=0.02, level=0.95).verdict == verdict


@pytest.mark.parametrize("ratios", [(1.33, 1.35, 1.28), (2.20, 1.91, 2.01), (20.1, 19.7, 20.4), (1.04, 1.04, 1.04)])
def test_the_interval_of_three_rounds_that_agree_is_narrow(ratios):
    log_ratio = paired_difference(*rounds(*ratios), CPU_NOISE)
    interval = log_ratio.interval(0.95)
    assert max(ratios) / min(ratios) < interval.high / interval.low < 1.4
    assert all(interval.low <= ratio <= interval.high for ratio in ratios)


def test_a_noisy_pair_elsewhere_does_not_hide_that_three_rounds_agree():
    interval = paired_difference(*rounds(1.33, 1.35, 1.30), CPU_NOISE, borrowed=(12.0, 12)).interval(0.95)
    assert interval.high / interval.low < 1.5


def test_only_rounds_that_both_were_in_count():
    base, candidate = rounds(1.5, 1.5, 1.5)
    del base[0], candidate[2]
    assert paired_difference(base, candidate, CPU_NOISE).rounds == 1
    assert paired_difference({1: 0.0}, {2: 0.0}, CPU_NOISE) is None


def test_other_close_pairs_make_a_pair_surer():
    pair = rounds(1.02, 1.06)
    assert [paired_difference(*pair, CPU_NOISE, **more).freedom for more in ({"borrowed": (0.01, 10)}, {})] == [5, 2]


def test_single_processes_at_different_times_have_the_usual_noise_and_no_verdict():
    log_ratio = unpaired_difference([0.0], [math.log(3)])
    assert (log_ratio.replicated, log_ratio.error) == (False, pytest.approx(CPU_NOISE.separate))
    assert compare([normal(1)], [normal(2, centre=3e-2)]).verdict == "UNDECIDED"


@pytest.mark.parametrize("side", [[], [[]], [[0.0] * 20]])
def test_nothing_to_compare(side):
    comparison = compare([normal(1)], side)
    assert comparison.verdict == "UNDECIDED"
    assert comparison.ratio is comparison.speedup is comparison.interval is None


def test_many_comparisons_widen_the_interval():
    generator = np.random.default_rng(3)
    base, candidate = processes(generator, 5, 50), processes(generator, 5, 50)
    one, ten = (compare(base, candidate, comparisons=number).interval for number in (1, 10))
    assert ten.low < one.low < one.high < ten.high
    assert compare(base, candidate, level=0.995).interval.low == pytest.approx(ten.low)


@settings(max_examples=60, deadline=None)
@given(SIDE, SIDE, st.randoms())
def test_neither_order_nor_unit_matter_and_swapping_the_sides_inverts_the_ratio(base, candidate, random):
    comparison = compare(base, candidate)
    assert comparison.interval is None or comparison.interval.low <= comparison.ratio <= comparison.interval.high
    shuffled = compare(random.sample(base, len(base)), candidate)
    assert (shuffled.verdict, shuffled.ratio) == (comparison.verdict, pytest.approx(comparison.ratio))
    assert compare([[4 * value for value in one] for one in base], candidate).ratio == pytest.approx(
        comparison.ratio / 4
    )
    back = compare(candidate, base)
    assert (back.verdict, back.ratio) == (MIRROR[comparison.verdict], pytest.approx(comparison.speedup))
    if comparison.speedup_interval and back.interval:
        assert comparison.speedup_interval.low == pytest.approx(back.interval.low)


def test_the_median_over_processes_is_their_geometric_mean():
    found, single = estimate([[1.0, 1.0, 1.0], [4.0, 4.0, 4.0], []]), estimate([normal(1)])
    assert (found.median, found.replicated, single.replicated) == (pytest.approx(2.0), True, False)
    assert found.interval.low < 1 < 4 < found.interval.high
    assert single.interval.low < single.median < single.interval.high
    assert estimate([[0.0]]) is estimate([]) is None
