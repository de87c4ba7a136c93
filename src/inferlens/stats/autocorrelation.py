"""How far consecutive samples resemble each other, and how many independent ones a series is therefore worth.

The integrated autocorrelation time is 1 + 2 (r1 + r2 + ...), with r the autocorrelations: the mean of n samples of a
series with time T is as uncertain as that of n / T independent ones. The sum stops by the initial monotone sequence:
C. J. Geyer, "Practical Markov chain Monte Carlo", Statistical Science 7 (1992), section 3.3: sums of neighbouring pairs
of r are positive and fall; pairs below ``_NOISE / sqrt(n)`` count as not positive.

Autocorrelations about the mean of the same series are too small, by about T / n each (F. H. C. Marriott and J. A. Pope,
"Bias in the estimation of autocorrelations", Biometrika 41 (1954)). That is added back, in a few rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Array = NDArray[np.float64]

_NOISE = 1.0
_ROUNDS = 5
_SIGNIFICANT = 2.0  # standard errors of no autocorrelation at all; see `correlated`


class Autocorrelation(Struct, frozen=True):
    """The autocorrelation of one series."""

    time: float  # integrated, in samples: 1 for independent ones, below 1 if neighbours lie on opposite sides
    window: int  # the largest lag in the sum
    count: int  # samples in the series

    @property
    def independent(self) -> float:
        """The effective number of samples: never more than there are, for a run of luck is no knowledge."""
        return self.count / max(self.time, 1.0)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the estimate of ``time``, for Student's t; infinite where nothing was estimated.

        A sum up to lag M has a relative variance of about 2 (2M + 1) / n (M. B. Priestley, *Spectral Analysis and Time
        Series* (1981), section 6.2), that of a chi-squared variable with n / (2M + 1) degrees. Only the part above 1
        is uncertain, for 1 is certain, so the relative variance is that of the part.
        """
        if self.time <= 1.0:
            return math.inf
        return self.count / (2 * self.window + 1) * (self.time / (self.time - 1.0)) ** 2


def autocorrelations(samples: Sequence[float] | Array) -> Array:
    """Autocorrelations at the lags 0 to n - 1 of n samples, with n in every denominator; 0 of equal ones."""
    values = np.asarray(samples, dtype=np.float64)
    count = values.size
    width = float(values.max() - values.min()) if count else 0.0
    if width == 0:
        return np.asarray([1.0, *[0.0] * (count - 1)][:count], dtype=np.float64)
    # Divided first: squares of nanoseconds are small.
    values = (values - values.mean()) / width
    spectrum = np.fft.rfft(values, 1 << (2 * count - 1).bit_length())
    products = np.fft.irfft(spectrum.real**2 + spectrum.imag**2)[:count]
    return np.asarray(products / products[0], dtype=np.float64)


def autocorrelation(samples: Sequence[float] | Array) -> Autocorrelation:
    """The integrated autocorrelation time, at most n / 2, of a series in order of time; 1 below four samples."""
    return integrated(autocorrelations(samples))


def integrated(raw: Array) -> Autocorrelation:
    """The same, of the :func:`autocorrelations` of the series."""
    count = raw.size
    if count < 4 or not raw[1:].any():
        return Autocorrelation(1.0, 0, count)
    pairs = raw[: count // 2 * 2 : 2] + raw[1::2]
    autocorrelation = Autocorrelation(1.0, 0, count)
    for round_ in range(_ROUNDS):
        before = autocorrelation.time
        autocorrelation = _summed((pairs + 2 * before / count) / (1.0 + before / count) if round_ else pairs, count)
        if abs(autocorrelation.time - before) < 0.01 * before:
            break
    return autocorrelation


def _summed(pairs: Array, count: int) -> Autocorrelation:
    """The initial monotone sequence of autocorrelations, which come in sums of two, summed."""
    ends = pairs <= _NOISE / math.sqrt(count)
    first = int(np.argmax(ends))
    length = first if ends[first] else pairs.size
    if length == 0:
        return Autocorrelation(max(2.0 * float(pairs[0]) - 1.0, 1.0 / count), 1, count)
    total = 2.0 * float(np.minimum.accumulate(pairs[:length]).sum()) - 1.0
    return Autocorrelation(min(max(total, 1.0 / count), count / 2), 2 * length - 1, count)


def below(values: Array, value: float) -> Array:
    """For each sample, 1 if it is below ``value``, 0 if above, and a half if equal."""
    return np.asarray(0.5 * ((values < value).astype(np.float64) + (values <= value)), dtype=np.float64)


def correlated(found: Array) -> bool:
    """Whether neighbours resemble each other more than chance allows; ``found``: the autocorrelations of their ranks.

    Sums of the first 1, 2, 4, 8 and 16 autocorrelations of the ranks (no outlier rules them), each against twice its
    standard error without autocorrelation, the square root of lags over samples. Of series without autocorrelation one
    in twenty is wrongly said to have some.
    """
    sums = np.cumsum(found[1 : 1 + found.size // 4])
    lags = [lag for lag in (1, 2, 4, 8, 16) if lag <= sums.size]
    return any(float(sums[lag - 1]) > _SIGNIFICANT * math.sqrt(lag / found.size) for lag in lags)


def ranks(values: Array) -> Array:
    """Ranks from 1 to n; equal samples share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], dtype=np.float64)
