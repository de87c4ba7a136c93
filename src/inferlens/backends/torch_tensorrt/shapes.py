"""Ranges of input sizes in the forms that the front ends want: example tensors, export dimensions, ``Input``.

``torch.export`` and Dynamo take a size of 1 for a constant, and Torch-TensorRT takes the example's sizes for those to
be fastest at. So examples have the optimum's sizes, and the largest ones where the optimum is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from inferlens.backends.pytorch.cast import FLOATS, dtype_of
from inferlens.backends.pytorch.export import free_sizes
from inferlens.spec.case import TensorSpec

Specs = tuple[TensorSpec, ...]


def example_specs(specs: Specs) -> Specs:
    """The inputs with the sizes of an example that shows which of them vary."""
    return tuple(structs.replace(spec, shape=_example(spec)) for spec in specs)


def _example(spec: TensorSpec) -> tuple[int, ...]:
    least, best, most = spec.profile
    return tuple(2 if low < high and size < 2 else size for low, size, high in zip(least, best, most, strict=True))


def moved_optimum(specs: Specs) -> dict[str, tuple[int, ...]]:
    """The shapes to be fastest at, by input name, where they cannot be those that were asked for."""
    return {spec.name: _example(spec) for spec in specs if spec.dynamic and _example(spec) != spec.profile[1]}


def vary_from_one(specs: Specs) -> bool:
    """Whether any range of sizes begins at 1."""
    return any(spec.profile[0][index] == 1 for spec in specs for index in free_sizes(spec))


def mark_dimensions(feed: Sequence[Any], specs: Specs) -> None:
    """Tells Dynamo which sizes of the tensors vary, and in which range."""
    import torch

    for tensor, spec in zip(feed, specs, strict=True):
        for index in free_sizes(spec):
            torch._dynamo.mark_dynamic(tensor, index, min=spec.profile[0][index], max=spec.profile[2][index])


def library_inputs(module: Any, specs: Specs, precision: str) -> list[Any]:
    """``torch_tensorrt.Input`` of each input.

    Args:
        module: ``torch_tensorrt``.
        specs: the model's inputs.
        precision: of those that are floats.
    """
    import torch

    inputs = []
    for spec in specs:
        dtype = dtype_of(precision) if spec.dtype in FLOATS else getattr(torch, spec.dtype)
        least, best, most = spec.profile
        shapes = {"min_shape": least, "opt_shape": best, "max_shape": most} if spec.dynamic else {"shape": spec.shape}
        inputs.append(module.Input(**shapes, dtype=dtype, name=spec.name))
    return inputs
