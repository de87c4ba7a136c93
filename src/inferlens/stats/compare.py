"""Is the candidate faster or slower than the base, the same, or is that not known?

Each process gives one number, the logarithm of its median: see ``between_process``. With two processes or more on each
side the interval of the ratio is that of B. L. Welch, "The generalization of 'Student's' problem when several different
population variances are involved", Biometrika 34 (1947). A single process is taken to vary as processes of other
cases were seen to (:class:`Spread`), or else as those of the other side. Where nothing is known of that, the interval
is that within the processes, and there is no verdict. Where processes resemble those measured just before them, the
interval is of as many as they are worth. Processes that took turns are compared by ``stats.standing``.

Several comparisons at once share the error: each has the level 1 - (1 - level) / comparisons, after O. J. Dunn,
"Multiple comparisons among means", JASA 56 (1961), so that all their intervals hold together with probability
``level``. SAME is the two one-sided tests of D. J. Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15
(1987), at half their usual error: it is shown, not assumed.

Each look at a race (``stats.standing``) is one more chance to find a difference where there is none. So every look
has a stricter level, chosen so that the intervals of all looks hold together with the level asked for: repeated
confidence intervals, C. Jennison and B. W. Turnbull, "Interim analyses: the repeated confidence interval approach",
Journal of the Royal Statistical Society B 51 (1989), with equal levels as in S. J. Pocock, "Group sequential methods in
the design and analysis of clinical trials", Biometrika 64 (1977). Looks up to the usual number of rounds share four
fifths of the error, later ones the rest. The levels are found by drawing: how often Student's t, over growing
numbers of independent normal rounds, strays beyond its quantile at any look.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.stats.between_process import Centre, around, centres, mean_variance, process_autocorrelation, spread
from inferlens.stats.intervals import Interval, normal_quantile, student_probability, student_quantile

Verdict = Literal["FASTER", "SAME", "SLOWER", "UNDECIDED"]

SEED = 20260
_CHUNKS = 10
_PATHS = 10_000
_USUAL_SHARE = 0.8


class Spread(Struct, frozen=True, kw_only=True):
    """How far processes of one case were seen to differ: the variance of the logarithms of their medians."""

    variance: float
    freedom: float  # of the variance


class LogRatio(Struct, frozen=True, kw_only=True):
    """The logarithm of a candidate's time over a base's, and how sure it is.

    Attributes:
        error: its standard error, with ``freedom`` degrees; ``None`` where it is not known.
        least: the standard error that the samples within the processes alone have.
        between: whether ``error`` covers variation between processes.
        autocorrelation: of processes, or pairs' differences, with the one before; 0 where none is shown.
    """

    log: float
    error: float | None
    freedom: float = math.inf
    least: float = 0.0
    between: bool = True
    autocorrelation: float = 0.0

    @property
    def ratio(self) -> float:
        """The candidate's time over the base's."""
        return math.exp(self.log)

    def interval(self, level: float) -> Interval | None:
        """Interval of the ratio; ``None`` where the error is not known."""
        if self.error is None:
            return None
        upper = (1 + level) / 2
        margins = student_quantile(upper, self.freedom) * self.error, normal_quantile(upper) * self.least
        return around(self.ratio, max(margins))

    @property
    def chance_slower(self) -> float:
        """The probability that the candidate is slower, by the distribution that the interval is of."""
        error = max(self.error or 0.0, self.least)
        if error == 0.0:
            return 0.5 if self.error is None or self.log == 0 else float(self.log > 0)
        return student_probability(self.log / error, self.freedom)

    def odds(self, threshold: float) -> dict[str, float]:
        """Probabilities that the candidate is faster or slower by the threshold, or neither (``SAME``)."""
        error, bound = max(self.error or 0.0, self.least, 1e-9), math.log1p(threshold)
        faster = student_probability((-bound - self.log) / error, self.freedom)
        slower = student_probability((self.log - bound) / error, self.freedom)
        return {"FASTER": faster, "SAME": max(1 - faster - slower, 0.0), "SLOWER": slower}


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
    spread: Spread | None = None,
) -> Comparison:
    """The verdict on ``candidate`` against ``base``, each a series of samples for each of its processes.

    SLOWER: the whole interval of the ratio is above 1 and the ratio at least 1 + ``threshold``. FASTER: the mirror
    image. SAME: the whole interval lies from 1 / (1 + ``threshold``) to 1 + ``threshold``. Else UNDECIDED.

    Args:
        base, candidate: samples in order of time, process by process.
        threshold: the smallest relative difference that matters, above 0.
        level: confidence that all ``comparisons`` together are right.
        comparisons: how many such comparisons are made side by side.
        spread: how far processes were seen to differ, for a side of which there is one.
    """
    below, above = centres(base), centres(candidate)
    found = between(below, above, spread) if below and above else None
    return conclude(found, threshold=threshold, level=1 - (1 - level) / comparisons)


def between(base: Sequence[Centre], candidate: Sequence[Centre], seen: Spread | None = None) -> LogRatio:
    """The difference of processes of different times, one or more on each side, in order of time."""
    sides = [[centre.log for centre in side] for side in (base, candidate)]
    log = math.fsum(sides[1]) / len(sides[1]) - math.fsum(sides[0]) / len(sides[0])
    alike = process_autocorrelation(sides)
    # What the samples within the processes alone have, as far as it is known.
    least = math.sqrt(sum((mean_variance(side) or 0.0) / len(side) for side in (base, candidate)))
    known = [(variance / worth, worth - 1) for variance, worth in (spread(s, alike) for s in sides if len(s) > 1)]
    for _ in range(2 - len(known)):  # a single process varies as others do
        if seen:
            known.append((seen.variance, seen.freedom))
        elif known:
            ((squared, freedom),) = known[:1]
            known.append((squared * max(map(len, sides)), freedom))
    if not known:
        complete = all(centre.variance is not None for centre in (*base, *candidate))
        return LogRatio(log=log, error=least if complete else None, least=least, between=False)
    squared = sum(each for each, _ in known)
    weights = sum(each**2 / freedom for each, freedom in known)
    freedom = max(squared**2 / weights, 1.0) if weights > 0 else 1.0
    if len({freedom for _, freedom in known}) == 1 and 1 in map(len, sides):
        freedom = known[0][1]  # both are of one estimate
    return LogRatio(log=log, error=math.sqrt(squared), freedom=freedom, least=least, autocorrelation=alike)


def seen_spread(cases: Iterable[Sequence[Centre]]) -> Spread | None:
    """How far processes differ, from all cases that have several; ``None`` where none has."""
    logs = [np.array([centre.log for centre in case]) for case in cases if len(case) > 1]
    freedom = sum(each.size - 1 for each in logs)
    if not freedom:
        return None
    return Spread(variance=sum(float(each.var() * each.size) for each in logs) / freedom, freedom=freedom)


def conclude(found: LogRatio | None, *, threshold: float, level: float) -> Comparison:
    """The comparison that a difference is, at confidence ``level``."""
    interval = found.interval(level) if found else None
    verdict, reason = judge(found.ratio if found else None, interval, threshold, found is None or found.between)
    alike = found.autocorrelation if found else 0.0
    if alike:
        reason += f" Processes resemble those before them (correlation {alike:.2f}): the interval is wider for that."
    return Comparison(
        verdict=verdict,
        reason=reason,
        ratio=found.ratio if found else None,
        interval=interval,
        between=bool(found and found.between),
        autocorrelation=alike,
    )


def judge(
    ratio: float | None, interval: Interval | None, threshold: float, between: bool = True
) -> tuple[Verdict, str]:
    """The verdict that follows from a ratio of times and its interval, and why.

    ``between`` says whether the interval covers how far processes differ.
    """
    if ratio is None:
        return "UNDECIDED", "One side has no samples, or times of zero."
    if interval is None:
        return "UNDECIDED", "Too few independent samples for an interval: more samples, or more processes, are needed."
    if not between:
        return "UNDECIDED", "Each side was measured once: how far processes differ is not known."
    most = 1 + threshold
    if interval.low > 1 and ratio >= most:
        return "SLOWER", "The whole interval is on the slow side, and the difference is at least the threshold."
    if interval.high < 1 and ratio <= 1 / most:
        return "FASTER", "The whole interval is on the fast side, and the difference is at least the threshold."
    if interval.low >= 1 / most and interval.high <= most:
        return "SAME", "The whole interval is within the threshold."
    if 1.0 not in interval:
        return (
            "UNDECIDED",
            "Whether they differ by the threshold or less is not known: more processes are needed.",
        )
    return "UNDECIDED", "The interval holds both no difference and one that matters: more processes are needed."


@lru_cache(maxsize=64)
def levels_of_looks(first: int, usual: int, last: int, level: float) -> tuple[float, float]:
    """Two levels, of each look from round ``first`` to ``usual`` and of each later one up to ``last``.

    All looks together have ``level``. From Student's t of 100,000 drawn sequences of normal rounds, on the safe side
    of their error.
    """
    rounds, generator, rows = np.arange(1, last + 1), np.random.default_rng(SEED), []
    looks = rounds[first - 1 :]
    for _ in range(_CHUNKS):
        drawn = generator.standard_normal((_PATHS, last))
        means = drawn.cumsum(axis=1) / rounds
        squares = (drawn**2).cumsum(axis=1) - rounds * means**2
        error = np.sqrt(squares[:, first - 1 :] / (looks - 1) / looks)
        rows.append((np.abs(means[:, first - 1 :]) / error).astype(np.float32))
    statistics = np.concatenate(rows)
    drawing = 2 * math.sqrt((1 - level) * level / (_CHUNKS * _PATHS))

    def error_of(strayed: NDArray[np.bool_], looks: Sequence[int], allowed: float) -> tuple[float, NDArray[np.bool_]]:
        """The largest error of a look with which no more than the ``allowed`` share has ``strayed``; and which have."""
        low, high = (1 - level) / len(statistics), 1 - level
        for _ in range(20):
            middle = math.sqrt(low * high)
            bounds = np.array([student_quantile(1 - middle / 2, count - 1) for count in looks], dtype=np.float32)
            columns = slice(looks[0] - first, looks[-1] - first + 1)
            found = strayed | (statistics[:, columns] > bounds).any(axis=1)
            low, high = (middle, high) if found.mean() <= allowed - drawing else (low, middle)
        return low, found

    none = np.zeros(len(statistics), dtype=bool)
    early, strayed = error_of(none, range(first, usual + 1), _USUAL_SHARE * (1 - level))
    late, _ = error_of(strayed, range(usual + 1, last + 1), 1 - level)
    return 1 - early, 1 - late
