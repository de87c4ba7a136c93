"""When to stop taking samples.

A :class:`StoppingRule` is told the samples as they come and says when there are enough. Each ends at its ``max_time``
at the latest, and tells what was not reached then, but for a median's interval, which the record's samples tell.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from inferlens.spec.case import MAX_TIME, Budget
from inferlens.stats.intervals import half_width
from inferlens.stats.steady import LEAST_SAMPLES as LEAST_TO_JUDGE
from inferlens.stats.steady import steady
from inferlens.units import duration, plural

LEAST_WARMUP = 10
LEAST_SAMPLES = 30
MOST_SAMPLES = 20_000  # memory, and the record's size; by then the interval is narrower than what matters
MOST_WARMUP = 2_000_000  # memory alone: very short calls need many to fill a second
LEAST_SECONDS = 0.5  # whatever disturbs a machine for a moment lasts longer than a few short calls
GROWTH = 1.1  # looking at all samples takes time: they are looked at again when there are so many times as many
LEVEL = 0.95


class StoppingRule(ABC):
    """Decides when a series of ``least`` to ``most`` samples is long enough.

    ``max_time`` is in seconds, what happens between samples included; ``expected`` when it will probably end.
    """

    growth = GROWTH
    wanted = ""  # what is said where it is missed

    def __init__(self, least: int, most: int, max_time: float, expected: float = math.inf) -> None:
        self.samples: list[float] = []
        self._expected = max(min(expected, max_time), 1e-9)
        self._least, self._limit, self._max_time = least, most, max_time
        self._first = self._last = 0.0
        self._judged = 0
        self.reached = False

    def add(self, begins: Sequence[float], samples: Sequence[float]) -> None:
        """Takes more samples, each with the time when it began, in seconds."""
        if not samples:
            return
        if not self.samples:
            self._first = begins[0]
        self.samples += samples
        self._last = begins[-1] + samples[-1]
        if not self.reached and (len(self.samples) >= max(self._least, self.growth * self._judged) or not self.most):
            self._judged = len(self.samples)
            self.reached = self._enough()

    @abstractmethod
    def _enough(self) -> bool:
        """Whether what the rule wants is reached; asked from time to time, not before ``least`` samples."""

    @property
    def spent(self) -> float:
        """Seconds from the begin of the first sample to the end of the last."""
        return self._last - self._first

    @property
    def finished(self) -> bool:
        """Whether to take no more samples."""
        return self.reached or self.most == 0 or self.spent >= self._max_time

    @property
    def missed(self) -> str:
        """What was wanted and not reached; empty if it was, or if the samples themselves tell."""
        taken = f"{plural(len(self.samples), 'sample')} were taken in {duration(self.spent)}"
        return f"{taken}; {self.wanted}." if self.wanted and not self.reached else ""

    @property
    def most(self) -> int:
        """How many more samples may be taken before asking again."""
        return max(0, self._limit - len(self.samples))

    @property
    def progress(self) -> float:
        """How far along the series is, 0 to 1; it may end sooner than it seems."""
        return 1.0 if self.finished else min(1.0, max(self.spent / self._expected, len(self.samples) / self._limit))


class FixedCount(StoppingRule):
    """Exactly ``count`` samples, or fewer if the time is up."""

    def __init__(self, count: int, max_time: float = math.inf) -> None:
        super().__init__(count, count, max_time)
        self.wanted = f"{count:,} were wanted"

    def _enough(self) -> bool:
        return True


class FixedTime(StoppingRule):
    """Samples for ``seconds``, but ``least`` of them at least and ``most`` at most."""

    growth = 0.0  # looks each time, for that costs nothing here

    def __init__(self, seconds: float, least: int, most: int, max_time: float = math.inf) -> None:
        super().__init__(least, most, max_time, seconds)
        self._seconds = seconds
        self.wanted = f"{duration(seconds)} and at least {plural(least, 'sample')} were wanted"

    def _enough(self) -> bool:
        return self.spent >= self._seconds


class HalfWidth(StoppingRule):
    """Until the interval of the median is at most ``width`` to either side of it, as a share of it.

    The interval is that of ``stats.intervals``, at 95 %, and of the steady part alone. Stopping at a narrow interval
    picks those that are narrow by luck. So it is looked at seldom, when there are a fifth more samples, and has to be
    narrow at two looks in succession. What is left of the price: ``python -m benchmarks.early_stops``.
    """

    growth = 1.2
    LOOKS = 2

    def __init__(self, width: float, max_time: float) -> None:
        super().__init__(LEAST_SAMPLES, MOST_SAMPLES, max_time)
        self._width = width
        self._narrow = 0  # looks in succession

    def _enough(self) -> bool:
        samples = self.samples[steady(self.samples).start :]
        self._narrow = self._narrow + 1 if half_width(samples, LEVEL) <= self._width else 0
        return self._narrow >= self.LOOKS and self.spent >= LEAST_SECONDS


class SteadyState(StoppingRule):
    """Warm-up until ``stats.steady`` finds a level that lasts; at least ``seconds`` and :data:`LEAST_WARMUP` calls.

    Judging takes 30 calls; slow ones are waited for no longer than :data:`PATIENCE` times ``seconds``.
    """

    PATIENCE = 3

    def __init__(self, seconds: float, max_time: float) -> None:
        super().__init__(LEAST_WARMUP, MOST_WARMUP, max_time)
        self._seconds = seconds

    def _enough(self) -> bool:
        if self.spent < self._seconds:
            self._judged = 0  # looking again costs nothing until there is something to look at
            return False
        if len(self.samples) < LEAST_TO_JUDGE:
            self._judged = 0
            return self.spent >= self.PATIENCE * self._seconds
        return steady(self.samples).steady


def warmup_rule(budget: Budget) -> StoppingRule:
    """The rule for the calls before the first sample."""
    if budget.warmup is not None:
        return FixedCount(budget.warmup)
    return SteadyState(budget.warmup_seconds, max(budget.max_time or MAX_TIME, budget.warmup_seconds))


def sampling_rule(budget: Budget) -> StoppingRule:
    """The rule for the latency samples."""
    asked, most = budget.max_time or math.inf, budget.max_time or MAX_TIME
    if budget.iterations is not None:
        return FixedCount(budget.iterations, asked)
    if budget.seconds is not None:
        return FixedTime(budget.seconds, LEAST_SAMPLES, MOST_SAMPLES, asked)
    return HalfWidth(budget.half_width, most)
