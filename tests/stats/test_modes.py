from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.stats.modes import SIGNIFICANT, dip, two_modes
from tests.stats.series import autoregressive, lognormal, normal


@pytest.mark.parametrize(
    ("samples", "expected"),  # by hand
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.05),
        ([1, 1.01, 1.02, 9, 9.01, 9.02], None),
        ([0.0] * 5, 0.1),
    ],
)
def test_known_dips(samples, expected):
    assert dip(samples) == pytest.approx(expected) if expected else dip(samples) > 0.15


def test_dip_of_uniform_samples_is_seldom_significant():
    generator = np.random.default_rng(1)
    dips = [dip(generator.random(200)) * 200**0.5 for _ in range(300)]
    assert np.quantile(dips, 0.5) == pytest.approx(0.357, abs=0.02)
    assert sum(one > SIGNIFICANT for one in dips) <= 2


@pytest.mark.parametrize("upper", [0.4, 0.5, 0.25])
def test_two_modes_are_found(upper):
    generator = np.random.default_rng(2)
    for _ in range(20):
        found = two_modes(list(generator.normal(1.0 + 0.1 * (generator.random(200) < upper), 0.01)))
        assert found is not None
        assert found.ratio == pytest.approx(1.1, abs=0.01)
        assert found.upper_share == pytest.approx(upper, abs=0.12)


def test_one_mode_is_one_however_skewed_or_slow():
    generator = np.random.default_rng(3)
    for seed in range(40):
        assert two_modes(normal(seed, 300)) is None
        assert two_modes(lognormal(seed, 300, spread=0.5)) is None
        assert two_modes(list(1 + generator.exponential(1.0, 300))) is None
        assert two_modes(list(np.round(np.array(normal(seed, 1000, 50.0, 0.04))))) is None
    assert sum(two_modes(list(1 + 0.05 * one)) is not None for one in autoregressive(4, 100, 200, 0.9)) <= 2


def test_modes_that_are_near_do_not_matter():
    generator = np.random.default_rng(5)
    assert two_modes(list(generator.normal(1.0 + 0.005 * (generator.random(400) < 0.5), 0.0002))) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.sampled_from([0.5, 4.0]))
def test_dip_is_in_its_range_and_does_not_depend_on_the_unit(samples, factor):
    found = dip(samples)
    assert 0.5 / len(samples) <= found <= 0.5
    assert dip([factor * value for value in samples]) == pytest.approx(found)
    assert dip([-value for value in samples]) == pytest.approx(found)
