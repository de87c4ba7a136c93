from __future__ import annotations

import math

import numpy as np
import pytest

from inferlens.stats.between_process import LEAST_PROCESSES, process_autocorrelation, spread
from inferlens.stats.compare import compare
from inferlens.stats.sequential import Sequential
from tests.stats.series import autoregressive

WAVE = [0.05 * math.sin(2 * math.pi * index / 12) for index in range(12)]
# As far apart as the wave's, and in no order.
MIXED = [WAVE[(5 * index) % 12] for index in range(12)]


def processes(logs: list[float], times: float = 1.0) -> list[list[float]]:
    """Processes of 50 samples with little noise, around ``times`` 10 ms."""
    return [[times * 1e-2 * math.exp(log) * (1 + 1e-4 * (index % 7 - 3)) for index in range(50)] for log in logs]


@pytest.mark.parametrize("number", [LEAST_PROCESSES, 10, 20])
def test_independent_processes_are_seldom_said_to_resemble_each_other(number):
    found = [process_autocorrelation([list(one)]) for one in autoregressive(3, 1000, number, 0.0)]
    assert sum(one > 0 for one in found) <= 70
    pairs = autoregressive(4, 1000, 2 * number, 0.0)
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
    assert np.mean([one.variance for one in found]) == pytest.approx(1.0, abs=0.05)
    assert np.mean([one.of_mean for one in found]) == pytest.approx(float(series.mean(axis=1).var()), rel=0.15)
    assert spread([1.0, 2.0, 4.0], 0.0).independent == 3
    assert spread([1.0, 2.0, 4.0], 0.9).independent == 2


def test_waves_widen_the_interval_and_say_so():
    wavy, mixed = (compare(processes(logs), processes(logs, 1.06)) for logs in (WAVE, MIXED))
    assert wavy.interval is not None
    assert mixed.interval is not None
    assert mixed.autocorrelation == 0.0
    assert wavy.autocorrelation > 0.5
    assert "resemble those before them" in wavy.reason
    assert wavy.interval.low < mixed.interval.low < mixed.interval.high < wavy.interval.high
    assert (wavy.verdict, mixed.verdict) == ("UNDECIDED", "SLOWER")


def test_waves_that_hit_both_of_a_pair_alike_do_not_matter():
    found = compare(processes(WAVE), processes(WAVE, 1.03), paired=True)
    assert (found.autocorrelation, found.verdict) == (0.0, "SLOWER")


def test_runs_of_two_times_are_told_apart_less_often():
    drawn = 0.05 * autoregressive(6, 300, 40, 0.7)
    false = 0
    for one in drawn:
        base, other = ([[float(value)] for value in np.exp(side)] for side in (one[:20], one[20:]))
        false += compare(base, other, threshold=1e-6).verdict != "UNDECIDED"
    assert false <= 30  # of 300; more than 100 if they were taken for independent


def test_rounds_whose_ratio_comes_in_waves_do_not_decide_it():
    mixed, wavy = Sequential(rounds_max=12, rounds_min=12), Sequential(rounds_max=12, rounds_min=12)
    for race, logs in ((mixed, MIXED), (wavy, WAVE)):
        for log in logs:
            race.add(*processes([0.0]), *processes([log], 1.05))
    assert mixed.comparison is not None
    assert wavy.comparison is not None
    assert (mixed.comparison.verdict, mixed.comparison.autocorrelation) == ("SLOWER", 0.0)
    assert wavy.comparison.verdict == "UNDECIDED"
    assert wavy.comparison.autocorrelation > 0.5
