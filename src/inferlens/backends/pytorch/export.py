"""What tracers and exporters of PyTorch need: inputs whose sizes have a range, and flat outputs."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import msgspec

from inferlens.backends.base import ordered
from inferlens.backends.pytorch.cast import tensor_of
from inferlens.models.inputs import flatten, make_inputs
from inferlens.models.model import Model
from inferlens.spec.case import Case, TensorSpec

WRAPPED = "module"  # the path of the model in what flat_outputs returns


def free_sizes(spec: TensorSpec) -> dict[int, str]:
    """The dimensions that have a range, each with the name of its size.

    Sizes of one place and range share a name, also in other inputs: a batch, or a length, is the same for all.
    """
    least, _, most = spec.profile
    return {
        index: f"size{index}_{low}_{high}"
        for index, (low, high) in enumerate(zip(least, most, strict=True))
        if low < high
    }


def export_dimensions(module: Any, specs: tuple[TensorSpec, ...]) -> Any:
    """``dynamic_shapes`` for ``torch.export`` of ``module``, for each input; ``None`` if no size has a range."""
    if not any(spec.dynamic for spec in specs):
        return None
    from torch.export import Dim

    known: dict[str, Any] = {}
    for spec in specs:
        least, _, most = spec.profile
        for index, name in free_sizes(spec).items():
            known.setdefault(name, Dim(name, min=least[index], max=most[index]))
    dimensions = tuple({index: known[name] for index, name in free_sizes(spec).items()} for spec in specs)
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    return (dimensions,) if inspect.Parameter.VAR_POSITIONAL in kinds else dimensions


def example_feed(model: Model, case: Case, precision: str = "") -> tuple[Any, ...]:
    """Tensors on the CPU to trace with, in the case's precision or in ``precision``.

    Inputs with a range are at their largest shape: tracers take a size of 1 for a constant.
    """
    if any(spec.dynamic for spec in model.inputs):
        specs = tuple(msgspec.structs.replace(spec, shape=spec.profile[2]) for spec in model.inputs)
        model = replace(model, inputs=specs)
    arrays = zip(ordered(make_inputs(model, case.seed), model.inputs), model.inputs, strict=True)
    return tuple(tensor_of(array, spec, precision or case.precision) for array, spec in arrays)


def flat_outputs(module: Any) -> Any:
    """A module that returns the tensors of ``module``'s outputs as a flat tuple, in the order of ``flatten``."""
    import torch

    class FlatOutputs(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *feed: Any) -> Any:
            return tuple(flatten(self.module(*feed)))

    flat = FlatOutputs()
    flat.training = False  # not eval(): an exported program inside is in its mode for good, and refuses
    return flat
