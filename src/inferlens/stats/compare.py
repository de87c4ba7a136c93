"""Is the candidate faster or slower than the base, the same, or is that not known?

Each process gives one number, the logarithm of its median: see ``between_process``. With two processes or more on each
side the interval of the ratio is that of B. L. Welch, "The generalization of 'Student's' problem when several different
population variances are involved", Biometrika 34 (1947). With processes in pairs, measured in turns, it is Student's
over the pairs' differences: what drifts slowly cancels out. With one process on one side, variation between processes
is taken to be that of the other side. With one on each it is not known at all: the interval is that within the
processes, ``between`` is false, and the verdict asks for more than the interval, see :func:`unseen_on`. Where processes
resemble those measured just before them, the interval is of as many as they are worth.

The verdict follows from the interval. Several comparisons at once share the error: each has the level 1 - (1 - level) /
comparisons, after O. J. Dunn, "Multiple comparisons among means", JASA 56 (1961), so that all their intervals hold
together with probability ``level``; interval and verdict agree. SAME is the two one-sided tests of D. J. Schuirmann,
Journal of Pharmacokinetics and Biopharmaceutics 15 (1987), at half their usual error: it is shown, not assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from inferlens.stats.between_process import (
    Centre,
    Spread,
    around,
    centres,
    mean_variance,
    process_autocorrelation,
    spread,
)
from inferlens.stats.distributions import normal_quantile, student_quantile
from inferlens.stats.intervals import Interval, ratio_interval

Verdict = Literal["FASTER", "SAME", "SLOWER", "UNDECIDED"]

# The relative standard deviation between processes that one process on each side has to overcome before it is believed.
UNSEEN = 0.02
# On CPUs one process in twenty was slower by a third or a half, mostly for as long as it lived, from what went on
# beside it on the same core: `python -m benchmarks false_alarms`. Seen from within, there is nothing amiss with it.
UNSEEN_ON_CPU = 0.15


def unseen_on(device: str) -> float:
    """What single processes on a device, such as ``cpu``, are taken to differ by."""
    return UNSEEN_ON_CPU if device == "cpu" else UNSEEN


def least_apart(*unseen: float, level: float = 0.95) -> float:
    """The ratio that the times of cases have to exceed for what their single processes are taken to differ by.

    ``unseen`` has a relative standard deviation for each case of which there is one process; without any it is 1.
    """
    return math.exp(normal_quantile((1 + level) / 2) * math.hypot(*unseen))


class Comparison(Struct, frozen=True, kw_only=True):
    """A candidate against a base.

    Attributes:
        verdict: FASTER, SAME, SLOWER, or UNDECIDED.
        reason: why, in words; for UNDECIDED what is missing.
        ratio: the candidate's time over the base's: above 1 it is slower. ``None`` without samples, or times of zero.
        interval: of ``ratio``; ``None`` with too few samples.
        between: whether the interval covers variation between processes.
        processes: of base and candidate; of pairs, the same number twice.
        threshold: relative difference that matters.
        level: confidence of ``interval``, after the correction for several comparisons, or looks.
        autocorrelation: correlation of processes, or of pairs' differences, with the one before; 0 where none is shown.
    """

    verdict: Verdict
    reason: str
    ratio: float | None
    interval: Interval | None
    between: bool
    processes: tuple[int, int]
    threshold: float
    level: float
    autocorrelation: float = 0.0

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

    Raises:
        ValueError: if ``paired`` and the sides have different numbers of processes, or an argument is out of range.
    """
    if not (threshold > 0 and 0 < level < 1 and comparisons >= 1):
        raise ValueError("threshold above 0, level between 0 and 1 and at least one comparison were expected")
    if paired and len(base) != len(candidate):
        raise ValueError(f"pairs were expected, not {len(base)} processes of the base and {len(candidate)} others")
    level = 1 - (1 - level) / comparisons
    base, candidate = _with_samples(base, candidate, paired)
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
        found = spread(differences, alike)
        squared, freedom = found.of_mean, found.independent - 1
    else:
        alike = process_autocorrelation(sides)
        squared, freedom = _welch([spread(side, alike) for side in sides if len(side) > 1], sides)
    margin = student_quantile((1 + level) / 2, freedom) * math.sqrt(squared)
    return around(_ratio(below, above), max(margin, _least_margin(below, above, level))), alike


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
    verdict, reason = judge(ratio, interval, threshold=threshold, level=level, between=between, unseen=unseen)
    if alike:
        reason += f" Processes resemble those before them (correlation {alike:.2f}): the interval is wider for that."
    return Comparison(
        verdict=verdict,
        reason=reason,
        ratio=ratio,
        interval=interval,
        between=between,
        processes=(len(below), len(above)),
        threshold=threshold,
        level=level,
        autocorrelation=alike,
    )


def _with_samples(
    base: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]], paired: bool
) -> tuple[list[Sequence[float]], list[Sequence[float]]]:
    """The processes that have samples; of pairs, those in which both have."""
    if paired:
        pairs = [pair for pair in zip(base, candidate, strict=True) if len(pair[0]) and len(pair[1])]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return [one for one in base if len(one)], [one for one in candidate if len(one)]


def judge(
    ratio: float | None,
    interval: Interval | None,
    *,
    threshold: float,
    level: float,
    between: bool,
    unseen: float = UNSEEN,
) -> tuple[Verdict, str]:
    """The verdict that follows from a ratio of times and its interval, and why."""
    if ratio is None:
        return "UNDECIDED", "One side has no samples, or times of zero."
    if interval is None:
        return "UNDECIDED", "Too few independent samples for an interval: more samples, or more processes, are needed."
    most = 1 + threshold
    spare = 1.0 if between else least_apart(unseen, unseen, level=level)
    if interval.low > spare and ratio >= most:
        return "SLOWER", "The whole interval is on the slow side, and the difference is at least the threshold."
    if interval.high < 1 / spare and ratio <= 1 / most:
        return "FASTER", "The whole interval is on the fast side, and the difference is at least the threshold."
    if not between:
        return "UNDECIDED", (
            "One process on each side: how much processes differ is not known. Measure each in several processes."
        )
    if interval.low >= 1 / most and interval.high <= most:
        return "SAME", "The whole interval is within the threshold."
    if 1.0 not in interval:
        side = "slow" if interval.low > 1 else "fast"
        return "UNDECIDED", (
            f"Surely on the {side} side, but not whether by less than the threshold or more: more processes are needed."
        )
    return "UNDECIDED", "The interval holds both no difference and one that matters: more processes are needed."


def _welch(known: Sequence[Spread], sides: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Square of the standard error of the difference of two means, and its degrees of freedom.

    With one process on one side, its variance is taken to be that of the other.
    """
    if len(known) == 1:
        (one,) = known
        return one.of_mean + one.variance / min(map(len, sides)), one.independent - 1
    total = sum(one.of_mean for one in known)
    weights = sum(one.of_mean**2 / (one.independent - 1) for one in known)
    return total, total**2 / weights if weights > 0 else 1.0


def _least_margin(below: Sequence[Centre], above: Sequence[Centre], level: float) -> float:
    """Half the length of the interval that the samples within the processes alone allow."""
    within = [(mean_variance(side) or 0.0) / len(side) for side in (below, above)]
    return normal_quantile((1 + level) / 2) * math.sqrt(sum(within))


def _ratio(below: Sequence[Centre], above: Sequence[Centre]) -> float:
    """The geometric mean of medians of ``above`` over that of ``below``."""
    means = [math.fsum(centre.log for centre in side) / len(side) for side in (below, above)]
    return math.exp(means[1] - means[0])
