"""Made-up series of latencies, of which the truth is known."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def autoregressive(seed: int, runs: int, count: int, correlation: float) -> Array:
    """``runs`` series of ``count`` samples, standard normal; each sample is ``correlation`` times the one before."""
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((count, runs)) * math.sqrt(1 - correlation**2)
    noise[0] = generator.standard_normal(runs)
    for index in range(1, count):
        noise[index] += correlation * noise[index - 1]
    return noise.T.copy()


def normal(seed: int, count: int = 400, centre: float = 1e-2, spread: float = 0.05) -> list[float]:
    """Independent and normal, with a relative standard deviation of ``spread``."""
    return list(centre * (1 + spread * np.random.default_rng(seed).standard_normal(count)))


def lognormal(seed: int, count: int = 400, centre: float = 1e-2, spread: float = 0.05) -> list[float]:
    """Independent and log-normal, ``spread`` being the standard deviation of the logarithm."""
    return list(centre * np.exp(spread * np.random.default_rng(seed).standard_normal(count)))
