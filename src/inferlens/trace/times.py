"""Times of a trace: decimal microseconds in the file, whole nanoseconds here, none lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Microseconds that still fit, as nanoseconds and added to each other, into 64 bits.
MOST = 2**62 // 1000


def nanoseconds(values: Sequence[Any]) -> NDArray[np.int64]:
    """Microseconds, as int, float or Decimal, in whole nanoseconds.

    A float holds thousandths exactly enough up to 2^43 microseconds, 101 days; times a thousand it would not.
    """
    if Decimal in set(map(type, values)):
        return np.array([round(Decimal(value) * 1000) for value in values], dtype=np.int64)
    array = np.array(values, dtype=np.float64)
    whole = np.floor(array)
    return whole.astype(np.int64) * 1000 + np.rint((array - whole) * 1000).astype(np.int64)
