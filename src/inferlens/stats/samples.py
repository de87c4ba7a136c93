"""Quantiles and summaries of samples.

A quantile is the linearly interpolated one, type 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", The
American Statistician 50 (1996). A percentile is given only if there are enough samples for one to lie beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from hashlib import blake2b
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

LEAST_FOR_P95 = 20
LEAST_FOR_P99 = 100


class Summary(Struct, frozen=True, kw_only=True):
    """What a series of samples comes to, in the samples' unit."""

    count: int
    mean: float
    deviation: float  # with ``n - 1`` in the denominator; 0 for a single sample
    minimum: float
    p5: float | None  # ``None`` below :data:`LEAST_FOR_P95` samples
    median: float
    p95: float | None
    p99: float | None  # ``None`` below :data:`LEAST_FOR_P99` samples
    maximum: float


def quantile_of_sorted(values: NDArray[np.float64], share: float) -> float:
    """The ``share``-quantile of sorted values, as ``np.quantile`` has it to the last digit, in a tenth of its time."""
    place = share * (values.size - 1)
    first = int(place)
    low, high, part = float(values[first]), float(values[min(first + 1, values.size - 1)]), place - first
    found = low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)
    return math.nan if math.isnan(values[-1]) else found


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the ``share``-quantile (0 to 1) of samples by linear interpolation; ``ValueError`` without samples."""
    if not len(samples):
        raise ValueError("no samples, so no quantile")
    return quantile_of_sorted(np.sort(np.asarray(samples, dtype=np.float64)), share)


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two middle ones; ``ValueError`` if there are none."""
    return quantile(samples, 0.5)


def summarise(samples: Sequence[float]) -> Summary | None:
    """The summary of finite ``samples``; ``None`` if there are none."""
    values = np.asarray(samples, dtype=np.float64)
    if not values.size:
        return None
    ordered = np.sort(values)
    p5, middle, p95, p99 = (quantile_of_sorted(ordered, share) for share in (0.05, 0.5, 0.95, 0.99))
    least, most = float(values.min()), float(values.max())
    enough = values.size >= LEAST_FOR_P95
    return Summary(
        count=int(values.size),
        # Summing may round the mean of equal samples past them.
        mean=min(max(float(values.mean()), least), most),
        deviation=float(values.std(ddof=1)) if values.size > 1 else 0.0,
        minimum=least,
        p5=p5 if enough else None,
        median=middle,
        p95=p95 if enough else None,
        p99=p99 if values.size >= LEAST_FOR_P99 else None,
        maximum=most,
    )


def geometric_mean(values: Sequence[float]) -> float | None:
    """The mean on a logarithmic scale; 0 if one of them is 0, ``None`` if there are none."""
    if len(values) < 2:
        return values[0] if values else None
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0


# Functions of samples that remember what they came to, by a hash of the samples, which themselves are let go.

Array = NDArray[np.float64]
P = ParamSpec("P")
T = TypeVar("T")

MOST = 16_384  # series that each function remembers


def memoize_samples(
    function: Callable[Concatenate[Array, P], T],
) -> Callable[Concatenate[Sequence[float] | Array, P], T]:
    """A function of a series of samples, and of words that can be hashed, that is worked out once for the same ones."""
    known: dict[object, T] = {}

    @wraps(function)
    def asked(samples: Sequence[float] | Array, /, *words: P.args, **named: P.kwargs) -> T:
        values = np.ascontiguousarray(samples, dtype=np.float64)
        key = blake2b(values.data, digest_size=16).digest(), words, *named.items()
        with suppress(KeyError):
            return known[key]
        found = function(values, *words, **named)
        if len(known) >= MOST:
            known.clear()
        return known.setdefault(key, found)

    return asked


# How close one array of numbers is to another: relative L2 error, and cosine.


def flatten(*values: NDArray[Any]) -> NDArray[Any]:
    """The numbers of all these arrays, in one dimension and double precision."""
    flattened = [value.ravel().astype(complex if np.iscomplexobj(value) else float, copy=False) for value in values]
    return flattened[0] if len(flattened) == 1 else np.concatenate(flattened)


def relative_l2(values: NDArray[Any], reference: NDArray[Any]) -> float:
    """||ours - theirs|| / ||theirs||; if the reference is zero, 0 for an equal array and infinity otherwise."""
    values, reference = flatten(values), flatten(reference)
    norm = float(np.linalg.norm(reference))
    difference = float(np.linalg.norm(values - reference))
    return difference / norm if norm else (0.0 if difference == 0 else math.inf)


def cosine(values: NDArray[Any], reference: NDArray[Any]) -> float:
    """Of the angle between both; 0 if one of them is zero and the other is not."""
    values, reference = flatten(values), flatten(reference)
    if np.array_equal(values, reference):
        return 1.0
    norms = float(np.linalg.norm(values) * np.linalg.norm(reference))
    if not norms:
        return 0.0
    return float(np.clip(np.vdot(reference, values).real / norms, -1.0, 1.0))
