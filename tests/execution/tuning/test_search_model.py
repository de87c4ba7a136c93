"""What measured candidates tell about others."""

import math
import random

import pytest

from inferlens.analysis.tuning import Observation, Point, setting_effects
from inferlens.execution.tuning.search import TimeModel

A, B = Point("a"), Point("b")


def of(family, *settings):
    return Point(family, frozenset(settings))


def seen(*logs):
    return [Observation(*log) for log in logs]


def predict(logs, points):
    return TimeModel.fit(logs).predict(points)


def spread(belief, base, point):
    """The standard deviation of a difference."""
    return belief.advantages(base)[1][belief.points.index(point)]


def test_rounds_are_no_difference_between_candidates():
    belief = predict(seen((A, 0.0, 1), (B, 0.2, 1), (A, 0.5, 2), (B, 0.7, 2)), [A, B])
    assert belief.means[B] - belief.means[A] == pytest.approx(0.2, abs=0.01)
    assert spread(belief, A, B) < 0.04


def test_what_a_setting_did_is_expected_elsewhere_too_but_less_surely():
    pairs = [(A, of("a", "x")), (B, of("b", "x")), (B, of("b", "y"))]
    belief = predict(seen((A, 0.0, 1), (of("a", "x"), -0.1, 1), (B, 0.3, 1)), [A, B, *(point for _, point in pairs)])
    same, other, unknown = (belief.means[point] - belief.means[base] for base, point in pairs)
    assert same < other < unknown == pytest.approx(0, abs=1e-3)
    assert spread(belief, *pairs[1]) > spread(belief, *pairs[0])


def test_most_is_gained_by_what_is_faster_or_not_known():
    logs = seen((A, 0.0, 1), (B, 0.5, 1), (of("a", "x"), 0.1, 1), (A, 0.01, 2), (B, 0.51, 2))
    unknown, both = of("a", "y"), of("a", "x", "y")
    belief = predict(logs, [A, B, of("a", "x"), unknown, both])
    gains, chances = belief.gains(A), belief.chances(A)
    assert gains[A] == pytest.approx(0, abs=1e-6)
    assert gains[unknown] == max(gains.values()) > gains[both] > gains[B] >= 0
    assert chances[unknown] == pytest.approx(0.5, abs=0.1)
    assert chances[B] < 0.01
    assert belief.after_measuring(unknown).gains(A)[unknown] < gains[unknown]


def test_settings_of_which_nothing_is_known_promise_exactly_the_same():
    """So that the value that a backend names first is tried first."""
    settings = [of("a", name) for name in "xyz"]
    for logs in (seen(), seen((A, 0.0, 1), (B, 0.3, 1), (of("b", "w"), 0.2, 1))):
        gains = predict(logs, [A, B, *settings]).gains(A)
        assert len({gains[point] for point in settings}) == 1


# What settings are said to do, of planted ones: no more than is known, and nothing of what does nothing.

EFFECTS = {"a": -0.3, "b": 0.0, "c": 0.0, "d": 0.0}


def rounds(draw, count, noise=0.05):
    """The default and three candidates in each round; another family beside them."""
    logs = []
    for number in range(count):
        wave = draw.gauss(0, 0.1)
        some = [of("f", *(name for name in EFFECTS if draw.random() < 0.5)) for _ in range(3)]
        for point in (of("f"), of("other"), *some):
            log = wave + sum(EFFECTS[name] for name in point.settings) + draw.gauss(0, noise)
            logs.append(Observation(point, log, number))
    return logs


@pytest.mark.parametrize("count", [2, 4, 12])
def test_a_setting_that_does_nothing_is_rarely_called_an_effect_also_where_it_looked_best(count):
    draw, lows_and_highs = random.Random(count), []
    for _ in range(400):
        found = setting_effects(rounds(draw, count), of("f", *EFFECTS))
        told = [item for name, item in found.items() if item and not EFFECTS[name]]
        lows_and_highs += [max(told)[1:]] if told else []  # of the one that a search would keep
    assert len(lows_and_highs) > 100
    assert sum(low > 1 or high < 1 for low, high in lows_and_highs) <= 0.05 * len(lows_and_highs)


def test_what_rounds_do_not_tell_is_not_said():
    both, point = of("f", "a", "b"), of("f", "c")
    few = seen((of("f"), 0.0, 1), (both, -0.2, 1))
    assert setting_effects(few, both) == {"a": None, "b": None}, "there is nothing left to say how far processes differ"
    more = seen(*((one.point, one.log + 0.01 * number, number) for number in (1, 2, 3) for one in few))
    assert setting_effects(more, both) == {"a": None, "b": None}, "never one without the other"
    assert setting_effects(more, point) == {"a": None, "b": None, "c": None}, "never measured"
    more += seen(*((of("f", "a"), -0.1 + 0.01 * number, number) for number in (1, 2, 3)))
    told = setting_effects(more, both)
    assert [round(item[0], 3) for item in told.values() if item] == [round(math.exp(0.1), 3)] * 2
    assert setting_effects(more, of("f")) == told, "nor does the winner have to have them"
