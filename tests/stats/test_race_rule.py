import math

import numpy as np
import pytest

from inferlens.stats.comparison import GPU_NOISE
from inferlens.stats.race_rule import Entry, RaceData

NAMES = "abcdefghijklmnopqrst"


def raced(*times, **more):
    """Return cases with one time per round."""
    entries = {
        name: Entry(rounds={number: math.log(value) for number, value in enumerate(values)}, usual=GPU_NOISE)
        for name, values in zip(NAMES, times, strict=False)
    }
    return RaceData({**entries, **more})


def state(data, threshold=0.02):
    return data.state(list(data.entries), threshold=threshold)


def alone(*times):
    return Entry(separate=[math.log(value) for value in times])


def test_a_clear_winner_is_decided_after_two_rounds():
    found = state(raced([1.0, 1.01], [1.3, 1.29], [2.0, 2.1]))
    assert (found.leader, found.decided, found.as_fast) == ("a", True, ())
    assert list(found.rivals) == ["b", "c"]
    assert found.chance > 0.95


def test_one_round_decides_nothing_between_close_ones():
    assert not state(raced([1.0], [1.2])).decided
    assert state(raced([1.0], [1.9])).decided, "what is far away is out at once"


def test_equals_end_the_race_and_are_named():
    times = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995]
    found = state(raced(times, [1.003 * value for value in times], [1.4 * value for value in times]))
    assert (found.decided, found.as_fast) == (True, ("b",))


def test_while_a_rival_may_be_faster_the_race_is_open():
    found = state(raced([1.0, 1.1, 0.9], [1.08, 0.95, 1.0]))
    assert (found.leader, found.open) == ("a", ("b",))
    assert 0.5 < found.chance < 0.95


def test_the_noise_of_the_machine_cancels_within_rounds():
    waves = [1.0, 2.0, 1.5, 3.0]
    found = state(raced(waves, [1.1 * value for value in waves]))
    assert (found.decided, found.rivals["b"].ratio) == (True, pytest.approx(1.1))


def test_a_case_that_was_in_no_round_is_compared_by_what_it_took_alone():
    data = raced([1.0, 1.0, 1.0], [1.2, 1.2, 1.2], slow=alone(5.0))
    data.entries["a"] = Entry(rounds=data.entries["a"].rounds, separate=[0.0], usual=GPU_NOISE)
    found = state(data)
    assert (found.decided, found.rivals["slow"].rounds) == (True, 0)


def test_cases_that_never_met_are_compared_through_the_one_that_both_met():
    """Alone, the machine was twice as slow for the second one; beside the third one it was not."""
    slow = Entry(rounds={0: math.log(8.0), 1: math.log(8.1)}, separate=[math.log(8.0)], usual=GPU_NOISE)
    late = Entry(rounds={2: math.log(1.0), 3: math.log(1.01)}, separate=[math.log(2.0)], usual=GPU_NOISE)
    once = Entry(separate=[math.log(4.0)], usual=GPU_NOISE)
    fast = Entry(rounds=dict.fromkeys(range(4), 0.0), separate=[0.0], usual=GPU_NOISE)
    data = RaceData({"slow": slow, "late": late, "once": once, "fast": fast})
    met, unmet = data.difference("slow", "late"), data.difference("slow", "once")
    assert (met.ratio, met.rounds) == (pytest.approx(1 / 8, rel=0.02), 2)
    assert (unmet.ratio, unmet.replicated) == (pytest.approx(4 / 8.05, rel=0.01), False)


def test_without_a_process_there_is_no_state_and_a_single_case_wins():
    assert RaceData({}).state([], threshold=0.02) is None
    found = state(RaceData({"a": alone(1.0)}))
    assert (found.leader, found.decided, found.chance) == ("a", True, 1.0)


def test_a_process_by_itself_makes_no_leader_once_there_are_rounds():
    """The best case was slow when it was measured alone, where another one was fast."""
    best = Entry(rounds=dict.fromkeys(range(4), 0.0), separate=[0.33], usual=GPU_NOISE)
    found = state(raced([1.05] * 4, best=best, other=alone(1.2)))
    assert found.leader == "best"
    assert "a" not in found.open


def test_the_leader_is_the_one_that_no_other_beats():
    data = RaceData(
        {
            "a": Entry(rounds={1: 0.0, 2: 0.5}),
            "b": Entry(rounds={1: 0.1, 2: 0.6, 3: 0.0}),  # its mean is smaller, for it was in a fast round
        }
    )
    assert state(data).leader == "a"


@pytest.mark.parametrize(("gap", "noise"), [(0.0, 1), (0.03, 1), (0.03, 4), (0.1, 1)])
def test_the_named_case_is_seldom_slower_by_more_than_the_threshold(gap, noise):
    """Two cases with normal noise, looked at after each round from the second on."""
    generator, races, decided, wrong = np.random.default_rng(1), 300, 0, 0
    for _ in range(races):
        levels = np.array([[0.0], [math.log1p(gap)]])
        logs = levels + generator.normal(0, noise * GPU_NOISE.paired / math.sqrt(2), (2, 10))
        for count in range(2, 11):
            data = RaceData(
                {
                    name: Entry(rounds=dict(enumerate(row[:count])), usual=GPU_NOISE)
                    for name, row in zip("ab", logs, strict=True)
                }
            )
            found = state(data)
            if found.decided:
                decided += 1
                wrong += found.leader == "b" and gap > 0.02
                break
    assert wrong / races <= 0.05
    assert decided / races >= 0.93 or noise > 1


def test_a_process_whose_calls_differ_by_a_hundred_times_decides_nothing():
    steady, unsteady = Entry(separate=[0.0]), Entry(separate=[math.log(300.0)], unsteady=math.log(100.0))
    found = state(RaceData({"a": steady, "b": unsteady}))
    assert (found.leader, found.open) == ("a", ("b",))
    assert state(RaceData({"a": steady, "b": Entry(separate=[math.log(300.0)])})).decided
