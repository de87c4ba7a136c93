"""How sure a median, and a ratio of two medians, is: intervals by the moving-block bootstrap.

Consecutive latencies resemble each other (caches, clocks, other work on the machine), so resampling them one by one
would give intervals that are too narrow. Blocks of consecutive samples are resampled instead: H. R. Künsch, "The
jackknife and the bootstrap for general stationary observations", Annals of Statistics 17 (1989); a block length growing
with the cube root of the number of samples: Hall, Horowitz and Jing, Biometrika 82 (1995). The generator is seeded: the
same samples always give the same interval.

What no interval here covers: variation between processes. Samples of one process share its memory layout, its compiled
code and the state the machine was in; another run may differ by more than the interval says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

LEAST_SAMPLES = 10
RESAMPLES = 1000
SEED = 20260
# Numbers drawn at a time (memory), and altogether before resamples become fewer (time).
_CHUNK = 2_000_000
_MOST = 20_000_000
_FEWEST_RESAMPLES = 200

Array = NDArray[np.float64]


class Interval(Struct, frozen=True):
    """From ``low`` to ``high``, both included."""

    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        """Whether the two have a number in common."""
        return self.low <= other.high and other.low <= self.high

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


class Speedup(Struct, frozen=True):
    """A ratio of two medians; above 1 the candidate is faster. ``interval`` is ``None`` with too few samples."""

    ratio: float
    interval: Interval | None


def median_interval(samples: Sequence[float], level: float = 0.95) -> Interval | None:
    """Interval of the median at confidence ``level``; ``None`` below :data:`LEAST_SAMPLES` samples.

    The percentile interval of the bootstrapped medians, widened where needed to contain the samples' own median. Does
    not cover variation between processes.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size < LEAST_SAMPLES:
        return None
    return _percentile_interval(_bootstrapped_medians(values, stream=0), float(np.median(values)), level)


def speedup_interval(base: Sequence[float], candidate: Sequence[float], level: float = 0.95) -> Speedup | None:
    """How many times as fast ``candidate`` is as ``base``: median of base over median of candidate.

    Both series are resampled independently of each other. The interval is ``None`` if either has fewer than
    :data:`LEAST_SAMPLES` samples; there is no speed-up at all without samples or of a median of zero. Does not cover
    variation between processes.
    """
    ours, theirs = np.asarray(candidate, dtype=np.float64), np.asarray(base, dtype=np.float64)
    if not ours.size or not theirs.size:
        return None
    middle, base_middle = float(np.median(ours)), float(np.median(theirs))
    if middle <= 0 or base_middle <= 0 or not math.isfinite(base_middle / middle):
        return None
    ratio = base_middle / middle
    if min(ours.size, theirs.size) < LEAST_SAMPLES:
        return Speedup(ratio, None)
    above, below = _bootstrapped_medians(theirs, stream=1), _bootstrapped_medians(ours, stream=0)
    common = min(len(above), len(below))
    if not (below > 0).all():
        return Speedup(ratio, None)
    return Speedup(ratio, _percentile_interval(above[:common] / below[:common], ratio, level))


def block_length(count: int) -> int:
    """Samples in one block: the cube root of their number, rounded up."""
    length = max(1, round(float(count ** (1 / 3))))
    return length if length**3 >= count else length + 1


def _bootstrapped_medians(values: Array, stream: int) -> Array:
    """Medians of series as long as ``values``, put together from random blocks of it.

    ``stream`` picks the random numbers: two series in one ratio need different ones, or their errors would cancel.
    """
    return _medians_of_blocks(values.tobytes(), stream)


# One series is needed for its own median and for every ratio it is part of.
@lru_cache(maxsize=64)
def _medians_of_blocks(data: bytes, stream: int) -> Array:
    values = np.frombuffer(data, dtype=np.float64)
    count, length = values.size, block_length(values.size)
    blocks = np.lib.stride_tricks.sliding_window_view(values, length)
    generator = np.random.default_rng([SEED, stream])
    per_series = -(-count // length)
    resamples = max(_FEWEST_RESAMPLES, min(RESAMPLES, _MOST // count))
    chunk = max(1, _CHUNK // (per_series * length))
    medians = []
    for start in range(0, resamples, chunk):
        some = min(chunk, resamples - start)
        chosen = generator.integers(0, len(blocks), size=(some, per_series))
        series = blocks[chosen].reshape(some, -1)[:, :count]
        medians.append(np.median(series, axis=1))
    return np.concatenate(medians)


def _percentile_interval(estimates: Array, point: float, level: float) -> Interval:
    tail = (1 - level) / 2
    low, high = (float(value) for value in np.quantile(estimates, [tail, 1 - tail]))
    return Interval(min(low, point), max(high, point))
