"""How close one array of numbers is to another: relative L2 error, and cosine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def flat(*values: NDArray[Any]) -> NDArray[Any]:
    """The numbers of all these arrays, in one dimension and double precision."""
    flattened = [value.ravel().astype(complex if np.iscomplexobj(value) else float, copy=False) for value in values]
    return flattened[0] if len(flattened) == 1 else np.concatenate(flattened)


def relative_l2(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """||ours - theirs|| / ||theirs||; if the reference is zero, 0 for an equal array and infinity otherwise."""
    ours, theirs = flat(ours), flat(theirs)
    norm = float(np.linalg.norm(theirs))
    difference = float(np.linalg.norm(ours - theirs))
    return difference / norm if norm else (0.0 if difference == 0 else math.inf)


def cosine(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Of the angle between both; 0 if one of them is zero and the other is not."""
    ours, theirs = flat(ours), flat(theirs)
    if np.array_equal(ours, theirs):
        return 1.0
    norms = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
    if not norms:
        return 0.0
    return float(np.clip(np.vdot(theirs, ours).real / norms, -1.0, 1.0))
