"""The pure parts of the benchmarks that figures in the documents come from."""

from __future__ import annotations

import time

import pytest

from benchmarks import early_stops
from benchmarks.false_alarms import clopper_pearson, pairs
from benchmarks.planted import slowed
from benchmarks.pool import KINDS, SLOWER, TWIN, Process


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(0, 10, 0.0, 0.30850), (5, 10, 0.18709, 0.81291), (10, 10, 0.69150, 1.0), (10, 200, 0.02424, 0.09002)],
)
def test_the_interval_of_a_share_is_the_exact_one(hits, count, low, high):
    # Of the beta distribution's quantiles.
    assert clopper_pearson(hits, count) == pytest.approx((low, high), abs=2e-5)


def process(number, kind):
    """A process that is known again by its one sample."""
    sample = number * 10 + KINDS.index(kind) + 1.0
    return Process(round=number, kind=kind, begin=0, seconds=1, status="ok", samples=[sample])


ROUNDS = [{kind: process(number, kind) for kind in KINDS} for number in range(12)]


@pytest.mark.parametrize("kind", [TWIN, SLOWER])
@pytest.mark.parametrize("later", [0, 5])
def test_no_process_is_in_a_pair_twice(kind, later):
    for base, candidate in pairs([ROUNDS], kind, 40, 5, later):
        assert len(base) == len(candidate) == 5
        assert len({samples[0] for samples in base + candidate}) == 10
        gaps = {int(b[0] // 10) - int(a[0] // 10) for a, b in zip(base, candidate, strict=True)}
        assert gaps == {later}


def test_the_same_takes_both_places_and_the_slower_one_is_always_the_candidate():
    bases = [base[0][0] % 10 for base, _ in pairs([ROUNDS], TWIN, 40, 5, 0)]
    assert set(bases) == {1.0, 2.0}
    assert {side[0] % 10 for _, candidate in pairs([ROUNDS], SLOWER, 40, 5, 0) for side in candidate} == {3.0}


def test_the_slower_one_is_slower_by_the_share():
    def infer(feed):
        deadline = time.perf_counter_ns() + 1_000_000
        while time.perf_counter_ns() < deadline:
            pass
        return feed

    slow = slowed(infer, 0.5)
    taken = []
    for _ in range(20):
        begin = time.perf_counter_ns()
        assert slow("x") == "x"
        taken.append(time.perf_counter_ns() - begin)
    assert min(taken) == pytest.approx(1_500_000, rel=0.02)


@pytest.mark.parametrize("name", ["normal", "2 % outliers", "autocorrelation 0.5"])
def test_series_that_the_rule_ended_hold_as_often_as_they_say(name):
    place = [kind.name for kind in early_stops.KINDS].index(name)
    ended = early_stops.stopped(place, 0.01, 0, 40)
    assert sum(one.held or one.doubted for one in ended) >= 34
    assert all(one.reached and 50 <= one.count < 1000 for one in ended if name == "normal")
    again = early_stops.fixed_length(place, 0.01, 0, 40, ended[0].count)
    assert again[0].held == ended[0].held
