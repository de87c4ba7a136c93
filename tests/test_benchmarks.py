"""The pure parts of the benchmarks that figures in the documents come from."""

import math
import random
import time

import pytest

from benchmarks import early_stops, race
from benchmarks.planted import slowed
from inferlens.stats.comparison import CPU_NOISE


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


# The race: what is drawn of a pool, and how answers are judged


def quiet_pool(own: float = 0.001, wave: float = 0.2) -> race.Source:
    """Processes that differ little by themselves, on a machine that is slow for minutes at a time."""
    levels = [0.01 * (1 + wave * (number % 20 < 10)) for number in range(40)]
    alone = [race.Alone(number, 5.0, race.Measured(level)) for number, level in enumerate(levels)]
    pairs = [
        race.Pair(number, 8.0, (race.Measured(level * (1 + own)), race.Measured(level)))
        for number, level in enumerate(levels)
    ]
    return race.Source.of(race.Case(alone, pairs))


def test_a_round_shares_what_the_machine_does_and_processes_alone_do_not():
    field = race.Field([quiet_pool()], [1.0, 1.0, 2.0], random.Random(1))
    rounds = [field.together(field.names) for _ in range(40)]
    assert all(abs(one["way 0"] - one["way 1"]) < 0.005 for one in rounds)
    assert all(one["way 2"] - one["way 0"] == pytest.approx(math.log(2), abs=0.005) for one in rounds)
    assert max(one["way 0"] for one in rounds) - min(one["way 0"] for one in rounds) > 0.15
    alone = [field.alone(field.names) for _ in range(40)]
    assert max(abs(one["way 0"] - one["way 1"]) for one in alone) > 0.15


@pytest.mark.parametrize("gap", [0.0, 0.03, 0.1])
def test_quiet_races_are_decided_rightly_and_the_same_again(gap):
    outcomes = [race.simulate_race([quiet_pool()], CPU_NOISE, gap, 5, 1.0, seed) for seed in range(5)]
    assert all(outcome.decided and not outcome.wrong for outcome in outcomes)
    assert outcomes == [race.simulate_race([quiet_pool()], CPU_NOISE, gap, 5, 1.0, seed) for seed in range(5)]


def test_answers_are_judged_by_the_reference():
    assert race.compared(["a"], ["a"]) == "as the reference"
    assert race.compared(["a"], ["a", "b"]) == "one of the reference's"
    assert race.compared(["a", "b"], ["a"]) == "undecided"
    assert race.compared(["c"], ["a", "b"]) == "WRONG"
