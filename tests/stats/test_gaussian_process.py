"""What measured candidates tell about others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inferlens.stats.search_model import Observation, Point, predict

A, B = Point("a"), Point("b")


def of(family: str, *settings: str) -> Point:
    return Point(family, frozenset(settings))


def test_rounds_are_no_difference_between_candidates() -> None:
    seen = [Observation(A, 0.0, 1), Observation(B, 0.2, 1), Observation(A, 0.5, 2), Observation(B, 0.7, 2)]
    belief = predict(seen, [A, B])
    assert belief.mean[1] - belief.mean[0] == pytest.approx(0.2, abs=0.01)
    assert math.sqrt(belief.difference_variance(0, 1)) < 0.04


def test_what_a_setting_did_is_expected_elsewhere_too_but_less_surely() -> None:
    seen = [Observation(A, 0.0, 1), Observation(of("a", "x"), -0.1, 1), Observation(B, 0.3, 1)]
    belief = predict(seen, [A, of("a", "x"), B, of("b", "x"), of("b", "y")])
    mine, other, unknown = (belief.mean[place] - belief.mean[base] for place, base in ((1, 0), (3, 2), (4, 2)))
    assert mine < other < unknown
    assert unknown == pytest.approx(0, abs=1e-3)
    assert belief.difference_variance(2, 3) > belief.difference_variance(0, 1)


def test_most_is_gained_by_what_is_faster_or_not_known() -> None:
    logs = ((A, 0.0, 1), (B, 0.5, 1), (of("a", "x"), 0.1, 1), (A, 0.01, 2), (B, 0.51, 2))
    seen = [Observation(*log) for log in logs]
    belief = predict(seen, [A, B, of("a", "x"), of("a", "y"), of("a", "x", "y")])
    gain = belief.gain(0)
    assert gain[0] == pytest.approx(0, abs=1e-6)
    assert gain[3] == max(gain) > gain[4] > gain[1] >= 0
    chance = belief.chance(0)
    assert chance[3] == pytest.approx(0.5, abs=0.1)
    assert chance[1] < 0.01


def test_what_will_be_measured_is_known_better_afterwards() -> None:
    seen = [Observation(A, 0.0, 1), Observation(B, 0.5, 1)]
    belief = predict(seen, [A, of("a", "x"), of("a", "x", "y")])
    after = belief.after_measuring(1)
    assert np.all(np.diag(after.covariance) <= np.diag(belief.covariance) + 1e-12)
    assert after.gain(0)[1] < belief.gain(0)[1]
