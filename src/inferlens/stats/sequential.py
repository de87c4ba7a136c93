"""Two cases measured against each other in turns, looked at after each round, until it is decided or time is over.

Looking often and stopping at the first difference finds one where there is none: each look is a chance more. So every
look has the same stricter level, chosen so that the intervals of all looks hold together with the level asked for:
repeated confidence intervals, C. Jennison and B. W. Turnbull, "Interim analyses: the repeated confidence interval
approach", Journal of the Royal Statistical Society B 51 (1989), with equal levels as in S. J. Pocock, "Group sequential
methods in the design and analysis of clinical trials", Biometrika 64 (1977). Since they hold together, whatever makes
one stop, and whatever the verdict is, the error stays below 1 - level.

The stricter level is found by drawing: how often Student's t, over growing numbers of independent normal rounds,
strays beyond its quantile at any look. That depends on the looks alone, so the drawing is seeded and done once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from inferlens.stats.between_process import Centre, centres
from inferlens.stats.compare import Comparison, conclude, interval_between
from inferlens.stats.distributions import student_quantile

SEED = 20260
_CHUNKS = 10
_PATHS = 10_000


class Sequential:
    """Rounds of one process of each case, in turns; :attr:`comparison` is the verdict so far.

    A round is a fresh process of the base and one of the candidate, one soon after the other. Its parameters are those
    of ``compare``; ``rounds_max`` is the number of rounds after which it ends undecided, and with ``comparisons`` the
    number of such sequences side by side. No verdict before ``rounds_min`` rounds: Student's t says little.
    """

    def __init__(
        self,
        threshold: float = 0.02,
        level: float = 0.95,
        rounds_max: int = 20,
        *,
        rounds_min: int = 3,
        comparisons: int = 1,
    ) -> None:
        if not (threshold > 0 and 0 < level < 1 and comparisons >= 1):
            raise ValueError("threshold above 0, level between 0 and 1 and at least one comparison were expected")
        if not 2 <= rounds_min <= rounds_max:
            raise ValueError(f"2 <= rounds_min <= rounds_max was expected, not {rounds_min} and {rounds_max}")
        self.threshold = threshold
        self.rounds_max = rounds_max
        self.rounds_min = rounds_min
        self.look_level = level_of_looks(rounds_min, rounds_max, 1 - (1 - level) / comparisons)
        self.comparison: Comparison | None = None
        self._base: list[Centre] = []
        self._candidate: list[Centre] = []

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return len(self._base)

    @property
    def finished(self) -> bool:
        """Whether there is a verdict, or no round left."""
        decided = self.comparison is not None and self.comparison.verdict != "UNDECIDED"
        return decided or self.rounds >= self.rounds_max

    def add(self, base: Sequence[float], candidate: Sequence[float]) -> Comparison | None:
        """Adds a round: samples of each side, in order of time. The verdict so far, ``None`` before ``rounds_min``.

        Raises:
            ValueError: if it was finished already: another look would add to the error; or if a side has no samples, or
                times of zero.
        """
        if self.finished:
            raise ValueError("finished: a further round would be a look that the level does not allow for")
        below, above = centres([base]), centres([candidate])
        if not below or not above:
            raise ValueError("positive samples of both sides were expected; leave out a round that failed")
        self._base += below
        self._candidate += above
        if self.rounds >= self.rounds_min:
            interval, alike = interval_between(self._base, self._candidate, self.look_level, paired=True)
            self.comparison = conclude(
                self._base, self._candidate, interval, threshold=self.threshold, level=self.look_level, alike=alike
            )
        return self.comparison


@lru_cache(maxsize=64)
def level_of_looks(first: int, last: int, level: float) -> float:
    """The level of each look after ``first``, ``first`` + 1 ... ``last`` rounds, for all together to have ``level``.

    From 100,000 drawn sequences, on the safe side of their error. Never below the Bonferroni level, which needs none.
    """
    looks = range(first, last + 1)
    if len(looks) == 1:
        return level
    statistics = _statistics(first, last)
    allowed = (1 - level) - 2 * math.sqrt((1 - level) * level / (_CHUNKS * _PATHS))
    low, high = (1 - level) / len(looks), 1 - level
    for _ in range(20):
        middle = math.sqrt(low * high)
        bounds = np.array([student_quantile(1 - middle / 2, rounds - 1) for rounds in looks], dtype=np.float32)
        strayed = float((statistics > bounds).any(axis=1).mean())
        low, high = (middle, high) if strayed <= allowed else (low, middle)
    return 1 - low


def _statistics(first: int, last: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The absolute value of Student's t after each look, one row for each sequence of normal rounds of mean 0."""
    rounds = np.arange(1, last + 1)
    rows = []
    generator = np.random.default_rng(SEED)
    for _ in range(_CHUNKS):
        drawn = generator.standard_normal((_PATHS, last))
        means = drawn.cumsum(axis=1) / rounds
        squares = (drawn**2).cumsum(axis=1) - rounds * means**2
        chosen = slice(first - 1, last)
        error = np.sqrt(squares[:, chosen] / (rounds[chosen] - 1) / rounds[chosen])
        rows.append((np.abs(means[:, chosen]) / error).astype(np.float32))
    return np.concatenate(rows)
