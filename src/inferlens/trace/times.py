"""Times of a trace: decimal microseconds in the file, whole nanoseconds here, none lost on the way."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Microseconds that still fit, as nanoseconds and added to each other, into 64 bits.
MOST = 2**62 // 1000


def usable(microseconds: NDArray[Any], least: int = -MOST + 1) -> NDArray[np.bool_]:
    """Which of some times, of which any may be missing, are told and can be reckoned with."""
    if microseconds.dtype == object:
        return np.array([each is not None and least <= each < MOST for each in microseconds.tolist()], dtype=bool)
    fits: NDArray[np.bool_] = (microseconds >= least) & (microseconds < MOST)
    return fits


def nanoseconds(microseconds: NDArray[Any]) -> NDArray[np.int64]:
    """Microseconds, as int, float or Decimal, in whole nanoseconds.

    A float holds thousandths exactly enough up to 2^43 microseconds, 101 days; times a thousand it would not.
    """
    if microseconds.dtype == object:
        microseconds = np.array(microseconds.tolist())  # without those that were missing it may be of floats
    if microseconds.dtype == object:
        return np.array([round(Decimal(value) * 1000) for value in microseconds.tolist()], dtype=np.int64)
    floor = np.floor(microseconds)
    found: NDArray[np.int64] = floor.astype(np.int64) * 1000
    found += np.rint((microseconds - floor) * 1000).astype(np.int64)
    return found
