import math

import numpy as np
import pytest

from inferlens.stats.comparison import GPU_NOISE
from inferlens.stats.race_rule import Entry, RaceData

NAMES = "abcdefghijklmnopqrst"


def entry(*times, first=0, alone=()):
    """Return a case with one time per round, from the first that it was in, and those of processes alone."""
    logs = {number: math.log(value) for number, value in enumerate(times, first)}
    return Entry(rounds=logs, separate=[math.log(value) for value in alone], usual=GPU_NOISE)


def raced(*times, **more):
    """Return cases with one time per round."""
    return RaceData({**{name: entry(*values) for name, values in zip(NAMES, times, strict=False)}, **more})


def state(data, threshold=0.02):
    return data.state(list(data.entries), threshold=threshold)


def test_a_clear_winner_is_decided_after_two_rounds():
    found = state(raced([1.0, 1.01], [1.3, 1.29], [2.0, 2.1]))
    assert (found.leader, found.decided, found.as_fast, list(found.rivals)) == ("a", True, (), ["b", "c"])
    assert found.chance > 0.95


def test_one_round_decides_nothing_between_close_ones():
    assert not state(raced([1.0], [1.2])).decided
    assert state(raced([1.0], [1.9])).decided, "what is far away is out at once"


def test_equals_end_the_race_and_are_named():
    times = np.array([1.0, 1.01, 0.99, 1.0, 1.005, 0.995])
    found = state(raced(times, 1.003 * times, 1.4 * times))
    assert (found.decided, found.as_fast) == (True, ("b",))


def test_while_a_rival_may_be_faster_the_race_is_open():
    found = state(raced([1.0, 1.1, 0.9], [1.08, 0.95, 1.0]))
    assert (found.leader, found.open) == ("a", ("b",))
    assert 0.5 < found.chance < 0.95


def test_the_noise_of_the_machine_cancels_within_rounds():
    waves = np.array([1.0, 2.0, 1.5, 3.0])
    found = state(raced(waves, 1.1 * waves))
    assert (found.decided, found.rivals["b"].ratio) == (True, pytest.approx(1.1))


def test_a_case_that_was_in_no_round_is_compared_by_what_it_took_alone():
    found = state(RaceData({"a": entry(1, 1, 1, alone=[1]), "b": entry(1.2, 1.2, 1.2), "slow": entry(alone=[5])}))
    assert (found.decided, found.rivals["slow"].rounds) == (True, 0)


def test_cases_that_never_met_are_compared_through_the_one_that_both_met():
    """Alone, the machine was twice as slow for the second one; beside the third one it was not."""
    data = RaceData({
        "slow": entry(8.0, 8.1, alone=[8.0]), "late": entry(1.0, 1.01, first=2, alone=[2.0]),
        "once": entry(alone=[4.0]), "fast": entry(1, 1, 1, 1, alone=[1]),
    })  # fmt: skip
    met, unmet = data.difference("slow", "late"), data.difference("slow", "once")
    assert (met.ratio, met.rounds) == (pytest.approx(1 / 8, rel=0.02), 2)
    assert (unmet.ratio, unmet.replicated) == (pytest.approx(4 / 8.05, rel=0.01), False)


def test_without_a_process_there_is_no_state_and_a_single_case_wins():
    assert RaceData({}).state([], threshold=0.02) is None
    found = state(RaceData({"a": entry(alone=[1.0])}))
    assert (found.leader, found.decided, found.chance) == ("a", True, 1.0)


def test_a_process_by_itself_makes_no_leader_once_there_are_rounds():
    """The best case was slow when it was measured alone, where another one was fast."""
    found = state(raced([1.05] * 4, best=entry(1, 1, 1, 1, alone=[1.4]), other=entry(alone=[1.2])))
    assert (found.leader, "a" in found.open) == ("best", False)


def test_the_leader_is_the_one_that_no_other_beats():
    a, b = Entry(rounds={1: 0.0, 2: 0.5}), Entry(rounds={1: 0.1, 2: 0.6, 3: 0.0})
    assert state(RaceData({"a": a, "b": b})).leader == "a", "the other's mean is smaller, for it was in a fast round"


@pytest.mark.parametrize(("gap", "noise"), [(0.0, 1), (0.03, 1), (0.03, 4), (0.1, 1)])
def test_the_named_case_is_seldom_slower_by_more_than_the_threshold(gap, noise):
    """Two cases with normal noise, looked at after each round from the second on."""
    generator, races, decided, wrong = np.random.default_rng(1), 300, 0, 0
    for _ in range(races):
        levels = np.array([[1.0], [1 + gap]])
        times = levels * np.exp(generator.normal(0, noise * GPU_NOISE.paired / math.sqrt(2), (2, 10)))
        looks = (state(raced(*times[:, :count])) for count in range(2, 11))
        if found := next((look for look in looks if look.decided), None):
            decided += 1
            wrong += found.leader == "b" and gap > 0.02
    assert wrong / races <= 0.05
    assert decided / races >= 0.93 or noise > 1


def test_a_process_whose_calls_differ_by_a_hundred_times_decides_nothing():
    steady, slow = Entry(separate=[0.0]), {"separate": [math.log(300.0)]}
    found = state(RaceData({"a": steady, "b": Entry(**slow, unsteady=math.log(100.0))}))
    assert (found.leader, found.open) == ("a", ("b",))
    assert state(RaceData({"a": steady, "b": Entry(**slow)})).decided
