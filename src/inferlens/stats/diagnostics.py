"""Why an interval, or the median itself, is not to be trusted: a closed list of reasons.

Each has a code that stays, a message in plain words and the number that it is about; what to do about it is said by the
findings of records. A series without doubts against its interval has one that holds about as often as its level says:
`python -m benchmarks coverage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.stats.autocorrelation import autocorrelation, below, correlated, ranks
from inferlens.stats.intervals import median_interval
from inferlens.stats.modes import two_modes
from inferlens.stats.steady import steady

Array = NDArray[np.float64]

Code = Literal[
    "few-samples",
    "few-independent-samples",
    "warm-up",
    "drifting",
    "cycling",
    "never-steady",
    "two-modes",
    "outliers",
    "quantised",
]
CODES: tuple[Code, ...] = get_args(Code)

LEAST_SAMPLES = 20
# Autocorrelation times that a series has to last for its autocorrelation time to be known: the rule of emcee's manual,
# D. Foreman-Mackey and others, https://emcee.readthedocs.io/en/stable/tutorials/autocorr/.
LEAST_TIMES = 50
LEAST_OUTLIERS = 0.01
LEAST_STEPS = 4.0


class Doubt(Struct, frozen=True):
    """One reason.

    Attributes:
        code: one of :data:`CODES`.
        message: in words, with counts, shares and ratios, no units.
        value: the number that it is about, see ``message``.
        against: ``interval`` if it may not hold as often as it says, ``median`` if one number says too little.
    """

    code: Code
    message: str
    value: float
    against: Literal["interval", "median"]


def doubts(samples: Sequence[float]) -> tuple[Doubt, ...]:
    """All that speaks against the interval of the median of samples in order of time, in the order of :data:`CODES`.

    Samples that are no finite numbers are left out.
    """
    values = np.asarray(samples, dtype=np.float64)
    values = values[np.isfinite(values)]
    found = [_few(values)] if values.size < LEAST_SAMPLES else [_few_independent(values), *_unsteady(values)]
    if values.size >= 2:
        found += [_modes(values), _outliers(values), _quantised(values)]
    return tuple(doubt for doubt in found if doubt is not None)


def _few(values: Array) -> Doubt:
    message = f"{values.size} samples are few: {LEAST_SAMPLES} were expected at least."
    if values.size == 1:
        message = f"There is 1 sample: {LEAST_SAMPLES} were expected at least."
    return Doubt("few-samples", message, float(values.size), "interval")


def _few_independent(values: Array) -> Doubt | None:
    """The series is short against its autocorrelation time; so its time is not known, and the interval neither.

    The time that counts is that of "below the median or not". It is estimated in two ways, for in short series both may
    miss it by chance: directly, and from that of the ranks, of which for a normal process it is at least the share 2 /
    pi, by the arcsine law: J. H. Van Vleck and D. Middleton, "The spectrum of clipped noise", Proceedings of the IEEE
    54 (1966).
    """
    found = autocorrelation(below(values, float(np.median(values))))
    least = 1 + 2 / np.pi * (autocorrelation(ranks(values)).time - 1)
    short = values.size < LEAST_TIMES * max(found.time, least) and correlated(values)
    if not short and median_interval(list(values)) is not None:
        return None
    worth = f"{values.size:,} are worth only about {found.independent:,.0f} independent ones"
    message = f"Samples resemble their neighbours: {worth}."
    return Doubt("few-independent-samples", message, found.independent, "interval")


def _unsteady(values: Array) -> list[Doubt | None]:
    found = steady(list(values))
    if found.reason in ("steady", "few-samples"):
        return []
    messages: dict[str, tuple[Code, str]] = {
        "warm-up": ("warm-up", f"The first {found.start:,} of {values.size:,} samples differ from the rest."),
        "drifting": ("drifting", "Latencies drift to the end of the series."),
        "cycling": ("cycling", "Latencies go up and down slowly."),
        "never-steady": ("never-steady", "The level of latencies changes late in the series."),
    }
    code, message = messages[found.reason]
    return [Doubt(code, message, found.start / values.size, "interval")]


def _modes(values: Array) -> Doubt | None:
    found = two_modes(list(values))
    if found is None:
        return None
    message = f"Two modes: {found.upper_share:.0%} of the samples lie around {found.ratio:.2f} times the others."
    return Doubt("two-modes", message, found.ratio, "median")


def _outliers(values: Array) -> Doubt | None:
    """Beyond Tukey's outer fences: three quartile ranges above the upper quartile, or below the lower."""
    low, high = np.quantile(values, [0.25, 0.75])
    reach = 3 * max(float(high - low), _step(values))
    slow, fast = int((values > high + reach).sum()), int((values < low - reach).sum())
    share = (slow + fast) / values.size
    if slow + fast < 2 or share < LEAST_OUTLIERS:
        return None
    message = f"{share:.1%} of the samples are outliers: {slow} slow, {fast} fast."
    return Doubt("outliers", message, share, "median")


def _quantised(values: Array) -> Doubt | None:
    """Many equal samples, and quartiles a few steps of the clock apart."""
    low, high = np.quantile(values, [0.25, 0.75])
    step = _step(values)
    if step == 0.0:
        return Doubt("quantised", "All samples are equal: the clock is too coarse for them.", 0.0, "interval")
    steps = float(high - low) / step
    if np.unique(values).size > values.size / 2 or steps >= LEAST_STEPS:
        return None
    message = f"The clock is coarse: the middle half of the samples spans {steps:.1f} of its steps."
    return Doubt("quantised", message, steps, "interval")


def _step(values: Array) -> float:
    """The least difference of two unequal samples; 0 if all are equal. Rounding errors are no difference."""
    gaps = np.diff(np.sort(values))
    real = gaps[gaps > 1e-9 * float(np.abs(values).max())]
    return float(real.min()) if real.size else 0.0
