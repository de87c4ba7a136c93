"""Is the candidate faster or slower than the base, the same, or is that not known?

Each process gives one number, the logarithm of its median: see ``between_process``. With two processes or more on each
side the interval of the ratio is that of B. L. Welch, "The generalization of 'Student's' problem when several different
population variances are involved", Biometrika 34 (1947). With processes in pairs, measured in turns, it is Student's
over the pairs' differences: what drifts slowly cancels out. With one process on one side, variation between processes
is taken to be that of the other side. With one on each it is not known: the interval is that within the processes, and
the verdict asks for more than the interval, see :func:`unseen_on`. Where processes resemble those measured just before
them, the interval is of as many as they are worth.

Several comparisons at once share the error: each has the level 1 - (1 - level) / comparisons, after O. J. Dunn,
"Multiple comparisons among means", JASA 56 (1961), so that all their intervals hold together with probability
``level``. SAME is the two one-sided tests of D. J. Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15
(1987), at half their usual error: it is shown, not assumed.

Each look at a :class:`Sequential` comparison is one more chance to find a difference where there is none. So every look
has the same stricter level, chosen so that the intervals of all looks hold together with the level asked for: repeated
confidence intervals, C. Jennison and B. W. Turnbull, "Interim analyses: the repeated confidence interval approach",
Journal of the Royal Statistical Society B 51 (1989), with equal levels as in S. J. Pocock, "Group sequential methods in
the design and analysis of clinical trials", Biometrika 64 (1977). The level is found by drawing: how often Student's t,
over growing numbers of independent normal rounds, strays beyond its quantile at any look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from msgspec import Struct

from inferlens.stats.between_process import Centre, around, centres, mean_variance, process_autocorrelation, spread
from inferlens.stats.intervals import Interval, normal_quantile, ratio_interval, student_quantile, student_share

Verdict = Literal["FASTER", "SAME", "SLOWER", "UNDECIDED"]

# The relative standard deviation between processes that one process on each side has to overcome before it is believed.
UNSEEN = 0.02
# On CPUs one process in twenty was slower by a third or a half, mostly for as long as it lived, from what went on
# beside it on the same core: `python -m benchmarks false_alarms`. Seen from within, there is nothing amiss with it.
UNSEEN_ON_CPU = 0.15
SEED = 20260
_CHUNKS = 10
_PATHS = 10_000


def unseen_on(device: str) -> float:
    """What single processes on a device, such as ``cpu``, are taken to differ by."""
    return UNSEEN_ON_CPU if device == "cpu" else UNSEEN


def least_apart(*unseen: float, level: float = 0.95) -> float:
    """The ratio that the times of cases have to exceed for what their single processes are taken to differ by.

    ``unseen`` has a relative standard deviation for each case of which there is one process; without any it is 1.
    """
    return math.exp(normal_quantile((1 + level) / 2) * math.hypot(*unseen))


class Comparison(Struct, frozen=True, kw_only=True):
    """A candidate against a base."""

    verdict: Verdict
    reason: str  # in words; for UNDECIDED what is missing
    ratio: float | None  # the candidate's time over the base's; ``None`` without samples, or times of zero
    interval: Interval | None  # of ``ratio``; ``None`` with too few samples
    between: bool  # whether the interval covers variation between processes
    autocorrelation: float = 0.0  # of processes, or pairs' differences, with the one before; 0 where none is shown

    @property
    def speedup(self) -> float | None:
        """The base's time over the candidate's: above 1 the candidate is faster."""
        return None if self.ratio is None else 1 / self.ratio

    @property
    def speedup_interval(self) -> Interval | None:
        """Interval of :attr:`speedup`."""
        return None if self.interval is None else Interval(1 / self.interval.high, 1 / self.interval.low)


def compare(
    base: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    *,
    threshold: float = 0.02,
    level: float = 0.95,
    comparisons: int = 1,
    paired: bool = False,
    unseen: float = UNSEEN,
) -> Comparison:
    """The verdict on ``candidate`` against ``base``, each a series of samples for each of its processes.

    SLOWER: the whole interval of the ratio is above 1 and the ratio at least 1 + ``threshold``. FASTER: the mirror
    image. SAME: the whole interval lies from 1 / (1 + ``threshold``) to 1 + ``threshold``. Else UNDECIDED.

    Args:
        base: samples in order of time, process by process.
        candidate: as ``base``.
        threshold: the smallest relative difference that matters, above 0.
        level: confidence that all ``comparisons`` together are right.
        comparisons: how many such comparisons are made side by side.
        paired: whether the i-th process of both sides were measured one after the other, in turns.
        unseen: what processes are taken to differ by, where there is one on each side.
    """
    level = 1 - (1 - level) / comparisons
    if paired:
        pairs = [pair for pair in zip(base, candidate, strict=True) if len(pair[0]) and len(pair[1])]
        base, candidate = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    base, candidate = ([one for one in side if len(one)] for side in (base, candidate))
    below, above = centres(base), centres(candidate)
    interval, alike = None, 0.0
    if len(below) == len(above) == 1:
        interval = ratio_interval(candidate[0], base[0], level)
    elif below and above:
        interval, alike = interval_between(below, above, level, paired)
    return conclude(below, above, interval, threshold=threshold, level=level, alike=alike, unseen=unseen)


def interval_between(
    below: Sequence[Centre], above: Sequence[Centre], level: float, paired: bool
) -> tuple[Interval, float]:
    """Interval of the ratio of times from the centres of processes, and how far these resemble the ones before.

    Centres are in order of time, two or more on one side at least.
    """
    sides = [[centre.log for centre in side] for side in (below, above)]
    if paired:
        differences = [mine - theirs for theirs, mine in zip(*sides, strict=True)]
        alike = process_autocorrelation([differences])
        variance, worth = spread(differences, alike)
        squared, freedom = variance / worth, worth - 1
    else:
        alike = process_autocorrelation(sides)
        known = [spread(side, alike) for side in sides if len(side) > 1]
        squared = sum(variance / worth for variance, worth in known)
        weights = sum((variance / worth) ** 2 / (worth - 1) for variance, worth in known)
        freedom = squared**2 / weights if weights > 0 else 1.0
        if len(known) == 1:  # the variance of one process alone is taken to be that of the other side
            ((variance, worth),) = known
            squared, freedom = squared + variance / min(map(len, sides)), worth - 1
    upper = (1 + level) / 2
    # No shorter than what the samples within the processes alone allow.
    within = sum((mean_variance(side) or 0.0) / len(side) for side in (below, above))
    margin = max(student_quantile(upper, freedom) * math.sqrt(squared), normal_quantile(upper) * math.sqrt(within))
    return around(_ratio(below, above), margin), alike


def conclude(
    below: Sequence[Centre],
    above: Sequence[Centre],
    interval: Interval | None,
    *,
    threshold: float,
    level: float,
    alike: float = 0.0,
    unseen: float = UNSEEN,
) -> Comparison:
    """The comparison of two sides of which the centres, the interval of the ratio and the autocorrelation are known."""
    ratio = _ratio(below, above) if below and above else None
    if ratio is not None and interval is not None:
        # Two ways to the same ratio round differently.
        interval = Interval(min(interval.low, ratio), max(interval.high, ratio))
    between = max(len(below), len(above)) > 1
    verdict, reason = judge(ratio, interval, threshold, 1.0 if between else least_apart(unseen, unseen, level=level))
    if alike:
        reason += f" Processes resemble those before them (correlation {alike:.2f}): the interval is wider for that."
    return Comparison(
        verdict=verdict, reason=reason, ratio=ratio, interval=interval, between=between, autocorrelation=alike
    )


def judge(ratio: float | None, interval: Interval | None, threshold: float, spare: float) -> tuple[Verdict, str]:
    """The verdict that follows from a ratio of times and its interval, and why.

    ``spare`` is what the ratio has to exceed for what processes may differ by: 1 if the interval covers that.
    """
    if ratio is None:
        return "UNDECIDED", "One side has no samples, or times of zero."
    if interval is None:
        return "UNDECIDED", "Too few independent samples for an interval: more samples, or more processes, are needed."
    most = 1 + threshold
    if interval.low > spare and ratio >= most:
        return "SLOWER", "The whole interval is on the slow side, and the difference is at least the threshold."
    if interval.high < 1 / spare and ratio <= 1 / most:
        return "FASTER", "The whole interval is on the fast side, and the difference is at least the threshold."
    if spare > 1:
        return "UNDECIDED", "How much processes differ is not known of one on each side. Measure several of each."
    if interval.low >= 1 / most and interval.high <= most:
        return "SAME", "The whole interval is within the threshold."
    if 1.0 not in interval:
        return (
            "UNDECIDED",
            "Whether they differ by the threshold or less is not known: more processes are needed.",
        )
    return "UNDECIDED", "The interval holds both no difference and one that matters: more processes are needed."


def _ratio(below: Sequence[Centre], above: Sequence[Centre]) -> float:
    """The geometric mean of medians of ``above`` over that of ``below``."""
    means = [math.fsum(centre.log for centre in side) / len(side) for side in (below, above)]
    return math.exp(means[1] - means[0])


class Sequential:
    """Rounds of one process of each case, in turns; :attr:`comparison` is the verdict so far.

    ``threshold`` and ``level`` are those of ``compare``; ``rounds_max`` is the number of rounds after which it ends
    undecided. There is no verdict before ``rounds_min`` rounds, of which Student's t says little.
    """

    def __init__(
        self, threshold: float = 0.02, level: float = 0.95, rounds_max: int = 20, *, rounds_min: int = 3
    ) -> None:
        self.threshold = threshold
        self.rounds_max = rounds_max
        self.rounds_min = rounds_min
        self.look_level = level_of_looks(rounds_min, rounds_max, level)
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

    def odds(self) -> dict[str, float]:
        """Probabilities by Student's t of the rounds so far that the candidate is faster or slower by the threshold.

        ``SAME`` has the rest. Empty before there are two rounds.
        """
        if self.rounds < 2:
            return {}
        logs = [mine.log - theirs.log for theirs, mine in zip(self._base, self._candidate, strict=True)]
        within = sum((mean_variance(side) or 0.0) / len(side) for side in (self._base, self._candidate))
        error = max(math.sqrt(max(float(np.var(logs, ddof=1)) / self.rounds, within)), 1e-9)
        bound, mean = math.log1p(self.threshold), float(np.mean(logs))
        faster = student_share((-bound - mean) / error, self.rounds - 1)
        slower = student_share((mean - bound) / error, self.rounds - 1)
        return {"FASTER": faster, "SAME": max(1 - faster - slower, 0.0), "SLOWER": slower}

    def add(self, base: Sequence[float], candidate: Sequence[float]) -> Comparison | None:
        """Adds a round: samples of each side, in order of time. The verdict so far, ``None`` before ``rounds_min``.

        Raises:
            ValueError: if it was finished already, as another look would add to the error; or if a side has no samples.
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

    From Student's t of 100,000 drawn sequences of normal rounds, on the safe side of their error.
    """
    looks = range(first, last + 1)
    if len(looks) == 1:
        return level
    rounds, chosen, generator = np.arange(1, last + 1), slice(first - 1, last), np.random.default_rng(SEED)
    rows = []
    for _ in range(_CHUNKS):
        drawn = generator.standard_normal((_PATHS, last))
        means = drawn.cumsum(axis=1) / rounds
        squares = (drawn**2).cumsum(axis=1) - rounds * means**2
        error = np.sqrt(squares[:, chosen] / (rounds[chosen] - 1) / rounds[chosen])
        rows.append((np.abs(means[:, chosen]) / error).astype(np.float32))
    statistics = np.concatenate(rows)
    allowed = (1 - level) - 2 * math.sqrt((1 - level) * level / (_CHUNKS * _PATHS))
    low, high = (1 - level) / len(looks), 1 - level
    for _ in range(20):
        middle = math.sqrt(low * high)
        bounds = np.array([student_quantile(1 - middle / 2, rounds - 1) for rounds in looks], dtype=np.float32)
        strayed = float((statistics > bounds).any(axis=1).mean())
        low, high = (middle, high) if strayed <= allowed else (low, middle)
    return 1 - low
