"""The inputs a model is fed: the same arrays for every backend, from a seed or from the user's example."""

from __future__ import annotations

import numpy as np

from inferlens.models.model import Array, Model
from inferlens.spec.case import TensorSpec

RANGES = {"uint8": (0, 256), "int8": (-128, 128)}  # whole; of other integers 0 and 1 alone fit every use


def make_inputs(model: Model, seed: int) -> dict[str, Array]:
    """One array per input, in the order of the arguments.

    The user's example is taken as it is, repeated or cut along the batch where another batch is asked for; all else is
    drawn as :func:`draw` says.
    """
    drawn = draw(model.inputs, seed)
    for spec in model.inputs:
        if spec.name in model.example:
            drawn[spec.name] = _batched(model.example[spec.name], spec.shape)
    return drawn


def draw(specs: tuple[TensorSpec, ...], seed: int) -> dict[str, Array]:
    """Arrays by input name: floats standard normal (never zeros), integers uniform in their range.

    ``float16`` and ``bfloat16`` come as ``float32``: the backend casts them. Integers without a range are 0 or 1, those
    of one byte any value.
    """
    random = np.random.default_rng(seed)
    return {spec.name: _array(spec, random) for spec in specs}


def _array(spec: TensorSpec, random: np.random.Generator) -> Array:
    if spec.dtype == "bool":
        return random.random(spec.shape) < 0.5
    if "float" in spec.dtype:
        kind = np.float64 if spec.dtype == "float64" else np.float32
        return np.asarray(random.standard_normal(spec.shape), dtype=kind)
    low, high = RANGES.get(spec.dtype, (0, 2))
    low = spec.low if spec.low is not None else low
    high = spec.high if spec.high is not None else max(high, low + 1)
    return np.asarray(random.integers(low, high, spec.shape), dtype=spec.dtype)


def _batched(example: Array, shape: tuple[int, ...]) -> Array:
    """``example`` repeated and cut along its first dimension to fit ``shape``."""
    if example.shape == shape:
        return example
    repeats = -(-shape[0] // example.shape[0])
    return np.ascontiguousarray(np.concatenate([example] * repeats)[: shape[0]])
