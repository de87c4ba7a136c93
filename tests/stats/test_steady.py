from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.stats.steady import LEAST_SAMPLES, Steady, steady
from tests.stats.series import autoregressive, normal, shaped

RUNS = 40


def found(name: str, count: int, correlation: float, outliers: float = 0.0) -> list[Steady]:
    noise = 0.02 * autoregressive(11, RUNS, count, correlation)
    generator = np.random.default_rng(12)
    noise += (generator.random(noise.shape) < outliers) * generator.exponential(1.0, noise.shape)
    return [steady(list(1e-2 * shaped(name, count) * np.exp(one))) for one in noise]


@pytest.mark.parametrize("count", [50, 1000])
@pytest.mark.parametrize(("correlation", "outliers"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.02)])
@pytest.mark.parametrize(
    ("name", "reason", "start"),
    [
        ("flat", "steady", 0.0),
        ("step down", "warm-up", 0.2),
        ("step up", "warm-up", 0.3),
        ("short decay", "warm-up", 0.55),
        ("late step up", "never-steady", 0.0),
        ("long decay", "drifting", 0.0),
        ("cycles", "cycling", 0.0),
    ],
)
def test_shapes_are_told_apart(name, reason, start, count, correlation, outliers):
    series = found(name, count, correlation, outliers)
    reasons = Counter(one.reason for one in series)
    assert reasons[reason] >= 0.85 * RUNS, reasons
    assert np.median([one.start / count for one in series if one.reason == reason]) == pytest.approx(start, abs=0.06)
    assert all(one.steady == (one.reason in ("steady", "warm-up")) for one in series)


@pytest.mark.parametrize("name", ["drift up", "drift down"])
@pytest.mark.parametrize("count", [50, 200, 1000])
def test_a_drift_to_the_end_is_never_steady(name, count):
    assert sum(one.reason == "drifting" for one in found(name, count, 0.0)) >= 0.95 * RUNS


@pytest.mark.parametrize("count", [50, 200, 1000, 5000])
def test_a_few_slow_first_calls_are_left_out(count):
    starts = [one.start for one in found("slow first calls", count, 0.0) if one.steady]
    assert len(starts) >= 0.95 * RUNS
    assert min(starts) >= 5
    assert np.median(starts) <= max(5, count * 0.13)


def test_differences_that_do_not_matter_are_none():
    samples, wider = (
        shaped("step down", 500) ** power * np.array(normal(1, 500, 1.0, 0.0005)) for power in (0.01, 0.1)
    )
    assert steady(list(samples)) == Steady(0, "steady")
    assert steady(list(wider)).start == pytest.approx(100, abs=10)


@pytest.mark.parametrize("samples", [[], normal(1, LEAST_SAMPLES - 1), [0.0] * 100, [float("nan")] * 100])
def test_nothing_is_said_of_too_few_or_impossible_latencies(samples):
    assert steady(samples) == Steady(0, "few-samples")


def test_constant_quantised_and_two_mode_samples_are_steady():
    generator = np.random.default_rng(2)
    assert steady([1e-3] * 200).reason == "steady"
    coarse = [steady(list(np.round(generator.normal(50, 1.0, 300)))).reason for _ in range(RUNS)]
    modes = [
        steady(list(generator.normal(1.0 + 0.3 * (generator.random(300) < 0.4), 0.01))).reason for _ in range(RUNS)
    ]
    assert min(coarse.count("steady"), modes.count("steady")) >= 0.95 * RUNS


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-6, 10), max_size=200), st.sampled_from([0.125, 8.0]))
def test_start_is_within_the_series_and_does_not_depend_on_the_unit(samples, factor):
    one = steady(samples)
    assert 0 <= one.start <= len(samples) * 0.8
    assert one.steady or one.start == 0
    assert steady([factor * value for value in samples]).reason == one.reason
