from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.stats.intervals import autocorrelation, autocorrelations, has_correlation, indicator_below, ranks
from tests.stats.series import autoregressive


def test_autocorrelations_are_those_of_the_definition():
    values = np.array([1.0, 3.0, 2.0, 5.0, 4.0])
    centred = values - values.mean()
    expected = [float((centred[: 5 - lag] * centred[lag:]).sum() / (centred**2).sum()) for lag in range(5)]
    assert autocorrelations(values) == pytest.approx(expected)


@pytest.mark.parametrize(("correlation", "time"), [(0.0, 1.0), (0.5, 3.0), (0.9, 19.0)])
def test_time_of_a_known_process(correlation, time):
    series = autoregressive(1, 60, 2000, correlation)
    assert np.median([autocorrelation(one).time for one in series]) == pytest.approx(time, rel=0.1)


def test_alternating_samples_are_worth_no_more_than_their_number():
    found = autocorrelation([1.0, 2.0] * 50)
    assert 0 < found.time < 1
    assert (found.independent, found.freedom) == (100, np.inf)


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, 2.0, 1.0], [3.0] * 50])
def test_nothing_to_see(samples):
    found = autocorrelation(samples)
    assert (found.time, found.independent) == (1, len(samples))


def test_neighbours_are_said_to_resemble_each_other_when_they_do():
    alike, unlike = (
        [has_correlation(autocorrelations(ranks(one))) for one in autoregressive(seed, count, 100, correlation)]
        for seed, count, correlation in ((2, 100, 0.9), (3, 400, 0.0))
    )
    assert all(alike)
    assert sum(unlike) <= 32  # one in twenty are 20


@given(st.lists(st.floats(-1e6, 1e6), max_size=80), st.sampled_from([0.25, 2.0, 1024.0]))
def test_time_is_in_range_and_does_not_depend_on_the_unit(samples, factor):
    found = autocorrelation(samples)
    assert 0 < found.time <= max(1.0, len(samples) / 2)
    assert autocorrelation([factor * value for value in samples]).time == pytest.approx(found.time, rel=1e-6)


def test_ties():
    assert list(indicator_below(np.array([1.0, 2.0, 2.0, 3.0]), 2.0)) == [1, 0.5, 0.5, 0]
    assert list(ranks(np.array([5.0, 1.0, 5.0]))) == [2.5, 1, 2.5]
