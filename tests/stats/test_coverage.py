"""The benchmark of coverage with few runs and wide bounds: that nothing got much worse."""

from __future__ import annotations

import pytest

from benchmarks.coverage import covered, kinds, raced, verdicts

RUNS = 120


@pytest.mark.parametrize("count", [50, 200])
def test_the_interval_of_the_median_holds_or_is_doubted(count):
    for kind, (series, truth) in kinds(count, RUNS).items():
        held, _, doubted = covered(series, truth)
        wrong = int((~held & ~doubted).sum())
        allowed = 24 if "as much noise" in kind else 13  # 5 % of 120 is 6; slow noise hidden in fast is missed
        assert wrong <= allowed, kind
        if "drift" not in kind and "autocorrelation" not in kind and kind != "clock steps of a deviation":
            assert int(doubted.sum()) <= 16, kind


@pytest.mark.parametrize(("number", "found"), [(2, 2), (5, 75), (10, 105)])
def test_verdicts_on_two_levels(number, found):
    same, held = verdicts(number, 50, 0.01, False, 1.0, RUNS)
    assert same["FASTER"] + same["SLOWER"] <= 7
    assert held >= 0.9
    slow, _ = verdicts(number, 50, 0.01, False, 1.03, RUNS)
    assert slow["SLOWER"] >= found
    assert slow["FASTER"] == 0


def test_looking_after_every_round_is_allowed_for():
    same, _ = raced(20, 1.0, RUNS, threshold=0.001)
    naive, _ = raced(20, 1.0, RUNS, threshold=0.001, corrected=False)
    assert same["FASTER"] + same["SLOWER"] <= 12
    assert naive["FASTER"] + naive["SLOWER"] > 12
