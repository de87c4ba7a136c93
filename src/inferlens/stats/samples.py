"""Quantiles, summaries and distances of numbers, and a cache for functions of samples.

A quantile is linearly interpolated, type 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American
Statistician 50 (1996). A percentile needs enough samples for one to lie beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from hashlib import blake2b
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

LEAST_FOR_P95 = 20
LEAST_FOR_P99 = 100
CACHE_SIZE = 16_384  # series of each function

Array = NDArray[np.float64]
P = ParamSpec("P")
T = TypeVar("T")


class Summary(Struct, frozen=True, kw_only=True):
    """Statistics of a series of samples, in the samples' unit."""

    count: int
    mean: float
    deviation: float  # with ``n - 1`` in the denominator; 0 for a single sample
    minimum: float
    p5: float | None  # ``None`` below :data:`LEAST_FOR_P95` samples
    median: float
    p95: float | None
    p99: float | None  # ``None`` below :data:`LEAST_FOR_P99` samples
    maximum: float


def quantile_of_sorted(values: Array, share: float) -> float:
    """Return the ``share``-quantile of sorted values: exactly that of ``np.quantile``, in a tenth of its time."""
    place = share * (values.size - 1)
    first = int(place)
    low, high, part = float(values[first]), float(values[min(first + 1, values.size - 1)]), place - first
    quantile = low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)
    return math.nan if math.isnan(values[-1]) else quantile


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the ``share``-quantile (0 to 1) of samples; raise ``ValueError`` without samples."""
    if not len(samples):
        raise ValueError("no samples, so no quantile")
    return quantile_of_sorted(np.sort(np.asarray(samples, dtype=np.float64)), share)


def median(samples: Sequence[float]) -> float:
    """Return the middle sample, or the mean of the two middle ones; raise ``ValueError`` without samples."""
    return quantile(samples, 0.5)


def summarise(samples: Sequence[float]) -> Summary | None:
    """Return the summary of finite ``samples``; ``None`` without samples."""
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    if not ordered.size:
        return None
    p5, middle, p95, p99 = (quantile_of_sorted(ordered, share) for share in (0.05, 0.5, 0.95, 0.99))
    minimum, maximum = float(ordered[0]), float(ordered[-1])
    enough = ordered.size >= LEAST_FOR_P95
    values = np.asarray(samples, dtype=np.float64)
    return Summary(
        count=int(values.size),
        mean=min(max(float(values.mean()), minimum), maximum),  # rounding may move the mean of equal samples past them
        deviation=float(values.std(ddof=1)) if values.size > 1 else 0.0,
        minimum=minimum,
        p5=p5 if enough else None,
        median=middle,
        p95=p95 if enough else None,
        p99=p99 if values.size >= LEAST_FOR_P99 else None,
        maximum=maximum,
    )


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the mean on a logarithmic scale; 0 if a value is 0, ``None`` without values."""
    if len(values) < 2:
        return values[0] if values else None
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0


def memoize_samples(
    function: Callable[Concatenate[Array, P], T],
) -> Callable[Concatenate[Sequence[float] | Array, P], T]:
    """Cache a function of a series of samples, and of hashable arguments, by a hash of the samples."""
    cache: dict[object, T] = {}

    @wraps(function)
    def cached(samples: Sequence[float] | Array, /, *args: P.args, **kwargs: P.kwargs) -> T:
        values = np.ascontiguousarray(samples, dtype=np.float64)
        key = blake2b(values.data, digest_size=16).digest(), args, *kwargs.items()
        if key in cache:
            return cache[key]
        result = function(values, *args, **kwargs)
        if len(cache) >= CACHE_SIZE:
            cache.clear()
        cache[key] = result
        return result

    return cached


def flatten(*values: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of all arrays in one dimension and double precision."""
    flattened = [value.ravel().astype(complex if np.iscomplexobj(value) else float, copy=False) for value in values]
    return flattened[0] if len(flattened) == 1 else np.concatenate(flattened)


def relative_l2(values: NDArray[Any], reference: NDArray[Any]) -> float:
    """Return ||values - reference|| / ||reference||; for a zero reference, 0 for an equal array and else infinity."""
    values, reference = flatten(values), flatten(reference)
    norm = float(np.linalg.norm(reference))
    difference = float(np.linalg.norm(values - reference))
    return difference / norm if norm else (0.0 if difference == 0 else math.inf)


def cosine(values: NDArray[Any], reference: NDArray[Any]) -> float:
    """Return the cosine of the angle between both; 0 if only one of them is zero."""
    values, reference = flatten(values), flatten(reference)
    if np.array_equal(values, reference):
        return 1.0
    norms = float(np.linalg.norm(values) * np.linalg.norm(reference))
    if not norms:
        return 0.0
    return float(np.clip(np.vdot(reference, values).real / norms, -1.0, 1.0))


# The definition of a host bottleneck for records, profiles and traces.
#
# A GPU that waits for a fifth of the time is bound by the host. Without knowledge of the GPU, a call is bound by the
# host if enqueueing it takes about as long as the call: the GPU is done when the last kernel arrives.

WAITING = 0.2
ENQUEUEING = 0.9


def gpu_waits_for_host(waiting: float, whole: float) -> bool:
    """Return whether a GPU that waits for the host for ``waiting`` of ``whole`` seconds is bound by it."""
    return waiting > WAITING * whole


def enqueueing_is_bottleneck(enqueue: float, latency: float) -> bool:
    """Return whether a call is bound by the host, from the time to enqueue it and its latency."""
    return enqueue >= ENQUEUEING * latency
