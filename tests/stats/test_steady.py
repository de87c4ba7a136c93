from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlens.stats.steady import CODES, LEAST_SAMPLES, Steady, diagnostics, steady
from tests.stats.series import autoregressive, lognormal, normal, shaped

RUNS = 40


def found(name, count, correlation, outliers=0.0):
    noise = 0.02 * autoregressive(11, RUNS, count, correlation)
    generator = np.random.default_rng(12)
    noise += (generator.random(noise.shape) < outliers) * generator.exponential(1.0, noise.shape)
    return [steady(list(1e-2 * shaped(name, count) * np.exp(one))) for one in noise]


@pytest.mark.parametrize("count", [50, 1000])
@pytest.mark.parametrize(("correlation", "outliers"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.02)])
@pytest.mark.parametrize(("name", "reason", "start"), [
    ("flat", "steady", 0.0), ("step down", "warm-up", 0.2), ("step up", "warm-up", 0.3),
    ("short decay", "warm-up", 0.55), ("late step up", "never-steady", 0.0), ("long decay", "drifting", 0.0),
    ("cycles", "cycling", 0.0),
])  # fmt: skip
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


@pytest.mark.parametrize("count", [50, 1000])
def test_a_few_slow_first_calls_are_left_out(count):
    starts = [one.start for one in found("slow first calls", count, 0.0) if one.steady]
    assert (len(starts) >= 0.95 * RUNS, min(starts) >= 5) == (True, True)
    assert np.median(starts) <= max(5, count * 0.13)


@pytest.mark.parametrize("samples", [[], normal(1, LEAST_SAMPLES - 1), [0.0] * 100, [float("nan")] * 100])
def test_nothing_is_said_of_too_few_or_impossible_latencies(samples):
    assert steady(samples) == Steady(0, "few-samples")


@pytest.mark.parametrize("draw", [
    lambda _: [1e-3] * 200, lambda generator: np.round(generator.normal(50, 1.0, 300)),
    lambda generator: generator.normal(1.0 + 0.3 * (generator.random(300) < 0.4), 0.01),
], ids=["constant", "quantised", "two modes"])  # fmt: skip
def test_constant_quantised_and_two_mode_samples_are_steady(draw):
    generator = np.random.default_rng(2)
    assert sum(steady(list(draw(generator))).reason == "steady" for _ in range(RUNS)) >= 0.95 * RUNS


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-6, 10), max_size=200), st.sampled_from([0.125, 8.0]))
def test_start_is_within_the_series_and_does_not_depend_on_the_unit(samples, factor):
    one = steady(samples)
    assert 0 <= one.start <= len(samples) * 0.8
    assert one.steady or one.start == 0
    assert steady([factor * value for value in samples]).reason == one.reason


AT = np.arange(300) / 300


def noise(seed, count=300):
    return 0.02 * np.random.default_rng(seed).standard_normal(count)


def codes(samples):
    return {diagnostic.code for diagnostic in diagnostics(list(samples))}


@pytest.mark.parametrize("count", [50, 200])
def test_series_too_slow_to_be_known_are_doubted(count):
    found = [codes(1 + 0.05 * one) for one in autoregressive(2, 50, count, 0.9)]
    assert sum("few-independent-samples" in one for one in found) >= 48


@pytest.mark.parametrize(("code", "samples", "doubted"), [
    ("few-independent-samples", 1 + 0.05 * autoregressive(1, 1, 200, 0.9)[0], True),
    ("warm-up", (1 + 0.3 * (AT < 0.2)) + noise(1), True), ("drifting", 1 + 0.2 * AT + noise(2), True),
    ("cycling", 1 + 0.1 * np.sin(15 * AT) + noise(3), True), ("never-steady", 1 + 0.2 * (AT > 0.8) + noise(4), True),
    ("quantised", np.round(100 * (1 + noise(7))) / 100, True), ("quantised", [1.0] * 100, True),
    ("few-samples", normal(1, 20), False),
    ("few-independent-samples", 1 + 0.05 * autoregressive(1, 1, 1000, 0.5)[0], False),
    ("warm-up", (1 + 0.001 * (AT < 0.2)) + noise(1) / 100, False),  # too little to matter
    ("drifting", 1 + 0.05 * autoregressive(3, 1, 1000, 0.9)[0], False),
    ("cycling", 1 + 0.1 * np.sin(300 * AT) + noise(3), False),  # 48 of them
    ("never-steady", (1 + 0.2 * (AT > 0.4)) + noise(4), False),
    ("two-modes", 1 + np.random.default_rng(5).exponential(1, 1000), False),
    ("quantised", np.round(1000 * (1 + noise(7))), False), ("quantised", [*normal(1, 100), *normal(1, 20)], False),
])  # fmt: skip
def test_a_doubt_is_raised_or_stays_away(code, samples, doubted):
    assert (code in codes(samples)) is doubted


def test_numbers_that_are_none_are_left_out():
    assert diagnostics([*normal(1, 100), float("nan"), float("inf")]) == diagnostics(normal(1, 100))
    assert codes([]) == {"few-samples"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-6, 10), max_size=120), st.sampled_from([0.125, 8.0]))
def test_the_unit_does_not_matter_and_codes_come_in_order(samples, factor):
    found = [diagnostic.code for diagnostic in diagnostics(samples)]
    assert found == sorted(found, key=CODES.index)
    assert [diagnostic.code for diagnostic in diagnostics([factor * value for value in samples])] == found


def two_modes(samples):
    return next((diagnostic.value for diagnostic in diagnostics(samples) if diagnostic.code == "two-modes"), None)


@pytest.mark.parametrize("upper", [0.4, 0.5, 0.25])
def test_two_modes_are_found(upper):
    generator = np.random.default_rng(2)
    values = [two_modes(generator.normal(1.0 + 0.1 * (generator.random(200) < upper), 0.01)) for _ in range(20)]
    assert values == pytest.approx([1.1] * 20, abs=0.01)


def test_one_mode_is_one_however_skewed_or_slow():
    generator = np.random.default_rng(3)
    for seed in range(15):
        assert two_modes(lognormal(seed, 300, spread=0.5)) is None
        assert two_modes(np.round(np.array(normal(seed, 1000, 50.0, 0.04)))) is None
    assert two_modes(generator.normal(1.0 + 0.005 * (generator.random(400) < 0.5), 0.0002)) is None, "near ones"
    assert sum(two_modes(1 + 0.05 * one) is not None for one in autoregressive(4, 100, 200, 0.9)) <= 2
