"""When to stop taking samples.

A :class:`StoppingRule` is told every sample and says when there are enough. Rules are small objects; a new one needs no
change anywhere else.
"""

from __future__ import annotations

from typing import Protocol

from inferlens.case import Budget

LEAST_WARMUP = 10
LEAST_SAMPLES = 20
MOST_SAMPLES = 1000


class StoppingRule(Protocol):
    """Decides when a series of samples is long enough."""

    def add(self, seconds: float) -> None:
        """Takes one more sample."""
        ...

    @property
    def finished(self) -> bool:
        """Whether there are enough samples."""
        ...

    @property
    def most(self) -> int:
        """How many more samples may be taken before asking again."""
        ...

    @property
    def progress(self) -> float:
        """How far along the series is, 0 to 1."""
        ...


class FixedCount:
    """Exactly ``count`` samples."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0

    def add(self, seconds: float) -> None:  # noqa: ARG002 - only the number of samples counts
        """See :class:`StoppingRule`."""
        self._taken += 1

    @property
    def finished(self) -> bool:
        """See :class:`StoppingRule`."""
        return self._taken >= self._count

    @property
    def most(self) -> int:
        """See :class:`StoppingRule`."""
        return max(0, self._count - self._taken)

    @property
    def progress(self) -> float:
        """See :class:`StoppingRule`."""
        return min(1.0, self._taken / self._count) if self._count else 1.0


class FixedTime:
    """Samples that add up to ``seconds``, but ``least`` of them at least and ``most`` at most."""

    def __init__(self, seconds: float, least: int, most: int) -> None:
        self._seconds = seconds
        self._least = least
        self._limit = most
        self._taken = 0
        self._spent = 0.0

    def add(self, seconds: float) -> None:
        """See :class:`StoppingRule`."""
        self._taken += 1
        self._spent += seconds

    @property
    def finished(self) -> bool:
        """See :class:`StoppingRule`."""
        return self._taken >= self._limit or (self._taken >= self._least and self._spent >= self._seconds)

    @property
    def most(self) -> int:
        """See :class:`StoppingRule`."""
        return max(0, self._limit - self._taken)

    @property
    def progress(self) -> float:
        """See :class:`StoppingRule`."""
        by_time = min(self._spent / self._seconds if self._seconds else 1.0, self._taken / self._least)
        return min(1.0, max(by_time, self._taken / self._limit))


def warmup_rule(budget: Budget) -> StoppingRule:
    """The rule for the calls before the first sample."""
    if budget.warmup is not None:
        return FixedCount(budget.warmup)
    return FixedTime(budget.warmup_seconds, LEAST_WARMUP, MOST_SAMPLES)


def sampling_rule(budget: Budget) -> StoppingRule:
    """The rule for the latency samples."""
    if budget.iterations is not None:
        return FixedCount(budget.iterations)
    return FixedTime(budget.seconds, LEAST_SAMPLES, MOST_SAMPLES)
