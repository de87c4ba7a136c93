from __future__ import annotations

import numpy as np
import pytest

from inferlens.stats.compare import Sequential, level_of_looks
from tests.stats.series import processes


def ended(generator: np.random.Generator, times: float, rounds_max: int = 10) -> Sequential:
    """A sequence of rounds, followed until it is decided or over."""
    race = Sequential(rounds_max=rounds_max)
    while not race.finished:
        race.add(processes(generator, 1, 30)[0], processes(generator, 1, 30, times=times)[0])
    return race


def test_levels_of_looks():
    assert level_of_looks(5, 5, 0.95) == 0.95
    # Pocock's own constant for five looks with a known variance is 0.0158 for each; an unknown one needs about as much.
    assert 1 - level_of_looks(96, 100, 0.95) > 0.0158
    assert 0.05 / 18 < 1 - level_of_looks(3, 20, 0.95) < 0.0158
    assert level_of_looks(3, 20, 0.95) == level_of_looks(3, 20, 0.95)


def test_no_verdict_before_the_least_rounds_and_no_round_after_the_last():
    race = Sequential(rounds_min=3, rounds_max=3)
    assert race.add([1.0] * 20, [1.0] * 20) is None
    assert race.add([1.0] * 20, [1.1] * 20) is None
    assert not race.finished
    assert race.add([1.0] * 20, [0.9] * 20) is race.comparison
    assert race.finished
    assert (race.comparison.verdict, race.rounds) == ("UNDECIDED", 3)
    with pytest.raises(ValueError, match="finished"):
        race.add([1.0], [1.0])
    with pytest.raises(ValueError, match="both sides"):
        Sequential().add([], [1.0])


def test_a_clear_difference_ends_it_early():
    races = [ended(np.random.default_rng(seed), 1.1) for seed in range(20)]
    assert all(race.comparison.verdict == "SLOWER" for race in races)
    assert float(np.mean([race.rounds for race in races])) < 6
