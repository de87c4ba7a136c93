"""Functions of samples that remember what they came to, by a hash of the samples, which themselves are let go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from hashlib import blake2b
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
P = ParamSpec("P")
T = TypeVar("T")

MOST = 16_384  # series that each function remembers


def remembered(function: Callable[Concatenate[Array, P], T]) -> Callable[Concatenate[Sequence[float] | Array, P], T]:
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
