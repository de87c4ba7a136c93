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


def processes(
    generator: np.random.Generator,
    number: int,
    count: int,
    between: float = 0.01,
    within: float = 0.05,
    times: float = 1.0,
) -> list[list[float]]:
    """``number`` processes of ``count`` samples around ``times`` 10 ms, with a standard deviation on each level."""
    shifts = between * generator.standard_normal(number)
    return [list(times * 1e-2 * np.exp(shift + within * generator.standard_normal(count))) for shift in shifts]


def shaped(name: str, count: int) -> Array:
    """A course of latencies around 1, without noise."""
    at = np.arange(count) / count
    courses = {
        "flat": np.ones(count), "step down": 1 + 0.2 * (at < 0.2), "step up": 1 + 0.1 * (at >= 0.3),
        "late step up": 1 + 0.1 * (at >= 0.8), "short decay": 1 + 0.5 * np.exp(-at / 0.1),
        "long decay": 1 + 0.3 * np.exp(-at / 0.3), "drift up": 1 + 0.2 * at, "drift down": 1.2 - 0.2 * at,
        "cycles": 1 + 0.05 * np.sin(2 * np.pi * 2.5 * at), "slow first calls": 1 + 2 * (np.arange(count) < 5),
    }  # fmt: skip
    return np.asarray(courses[name])
