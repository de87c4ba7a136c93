"""Which of several cases is fastest: exact standings, and how often drawn races are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inferlens.stats.between_process import Centre
from inferlens.stats.compare import conclude
from inferlens.stats.standing import LEAST_ROUNDS, MOST_ROUNDS, Entry, Layout, Standing, look_level, standing


def entry(*logs: float, alone: tuple[float, ...] = ()) -> Entry:
    """A case whose processes took turns in the rounds 1, 2, ..., and before them were ``alone``."""
    rounds = {number: Centre(log, None) for number, log in enumerate(logs, 1)}
    first = dict(zip(["run"], (Centre(log, None) for log in alone), strict=False))
    return Entry(processes=[*first.values(), *rounds.values()], rounds=rounds, alone=first)


def stand(**entries: Entry) -> Standing:
    held = max(len(each.rounds) for each in entries.values())
    found = standing(Layout(entries, in_turns=True), entries, threshold=0.02, level=look_level(held))
    assert found
    return found


def once(entries: dict[str, Entry]) -> Standing | None:
    return standing(Layout(entries), entries, threshold=0.02, level=0.95)


def test_rounds_cancel_what_the_machine_does_to_all() -> None:
    waves = (0.0, 0.3, -0.2, 0.1)
    found = stand(fast=entry(*waves), slow=entry(*(wave + 0.05 + 1e-4 * place for place, wave in enumerate(waves))))
    assert (found.leader, found.of("SLOWER"), found.chance > 0.99) == ("fast", ["slow"], True)
    assert found.rivals["slow"].ratio == pytest.approx(math.exp(0.05015))


def test_ratios_agree_with_each_other_also_where_one_left_after_three_rounds() -> None:
    logs = {"a": (0.0, 0.01, -0.02, 0.03, 0.0), "b": (0.02, 0.06, 0.01, 0.04, 0.07), "left": (0.7, 0.75, 0.68)}
    layout = Layout({name: entry(*each) for name, each in logs.items()})
    found = {pair: layout.difference(*pair) for pair in (("a", "b"), ("b", "left"), ("a", "left"))}
    first, second, both = (each.log for each in found.values() if each)
    assert first + second == pytest.approx(both)
    assert first == pytest.approx(np.mean(np.subtract(logs["b"], logs["a"])), abs=0.003)
    assert layout.difference("a", "unknown") is None


def test_what_varies_far_more_and_is_far_behind_makes_others_no_less_sure() -> None:
    near = {
        "a": entry(0.0, 0.004, -0.003, 0.002),
        "b": entry(0.05, 0.052, 0.049, 0.051),
        "c": entry(0.2, 0.2, 0.2, 0.2),
    }
    intervals = [
        stand(**near, slow=entry(*slow)).rivals["b"].interval for slow in ((1, 1.001, 1, 0.999), (1.6, 0.7, 1.2, 0.9))
    ]
    assert [each and each.low for each in intervals] == [pytest.approx(intervals[0].low)] * 2


def test_who_varies_far_more_close_by_leaves_it_to_the_others_whether_they_are_the_same() -> None:
    near, wild = {"a": entry(0.001, -0.001, 0, 0), "b": entry(0, 0.001, 0.002, 0)}, entry(0.52, 0.24, 0.11, 0.07)
    found = stand(**near, wild=wild)
    assert (found.of("SAME"), found.of("UNDECIDED"), found.of("SLOWER")) == (["b"], ["wild"], [])
    assert found.chance > 0.9  # that it is not faster, however the two stand that are the same
    alone = Layout({**near, "wild": wild})
    assert conclude(alone.difference("a", "b"), threshold=0.02, level=0.95).verdict == "UNDECIDED"  # may be luck


def test_equals_are_the_same_and_those_of_few_rounds_are_open() -> None:
    near = [1e-4, -1e-4, 2e-4, -2e-4]
    assert stand(a=entry(0, 0, 0, 0), b=entry(*near)).of("SAME")
    few = stand(a=entry(0, 0), b=entry(0.5, 0.5))
    assert few.of("UNDECIDED") == ["b"]
    assert str(LEAST_ROUNDS) in few.rivals["b"].reason


def test_a_case_that_was_measured_once_is_judged_by_how_far_others_differ() -> None:
    steady = {"a": entry(0.001, -0.001, 0, alone=(0.0005,)), "b": entry(0.031, 0.029, 0.03, alone=(0.0305,))}
    assert stand(**steady, once=entry(alone=(0.7,))).of("SLOWER") == ["b", "once"]
    wild = {"a": entry(0.1, -0.3, 0.2, alone=(0.3,)), "b": entry(0.13, -0.27, 0.23, alone=(-0.2,))}
    assert "once" in stand(**wild, once=entry(alone=(0.7,))).of("UNDECIDED")


def test_it_is_judged_by_those_that_were_measured_at_its_time() -> None:
    """The machine has become slower by a third after each case was measured once."""
    slower = {"a": entry(0.3, 0.301, 0.299, alone=(0.0,)), "b": entry(0.33, 0.332, 0.33, alone=(0.031,))}
    found = stand(**slower, once=entry(alone=(0.2,)))
    assert (found.leader, found.of("SLOWER")) == ("a", ["b", "once"])
    assert found.rivals["once"].ratio == pytest.approx(math.exp(0.2), rel=1e-3)


def test_where_each_was_measured_once_nothing_is_claimed() -> None:
    found = once({"a": entry(alone=(0.0,)), "b": entry(alone=(1.0,))})
    assert found
    assert (found.leader, found.of("UNDECIDED"), found.chance) == ("a", ["b"], None)
    assert once({}) is None
    assert once({"a": Entry(processes=())}) is None


@pytest.mark.parametrize(("ahead", "named"), [(0.05, 0.95), (0.03, 0.75), (0.0, 0.0)])
def test_drawn_races_name_the_best_and_seldom_a_wrong_one(ahead: float, named: float) -> None:
    """Five candidates whose processes differ by 1 %, on a machine whose rounds differ by 5 %."""
    generator, races = np.random.default_rng(1), 60
    truth = {"best": 0.0, "next": ahead, "third": 0.1, "fourth": 0.35, "last": 0.6}
    right = wrong = 0
    for _ in range(races):
        logs: dict[str, list[float]] = {name: [] for name in truth}
        for number in range(1, MOST_ROUNDS + 1):
            wave = generator.normal(0, 0.05)
            for name, log in truth.items():
                logs[name].append(log + wave + generator.normal(0, 0.01))
            if number >= LEAST_ROUNDS:
                found = stand(**{name: entry(*each) for name, each in logs.items()})
                if not found.of("UNDECIDED"):
                    right += found.leader == "best" and not found.of("SAME")
                    wrong += not found.of("SAME") and (found.leader != "best" or not ahead)
                    break
    assert wrong <= 0.05 * races
    assert right >= named * races
