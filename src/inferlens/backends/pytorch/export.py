"""Modules and tensors of PyTorch in a precision; and what tracers need: inputs with free sizes, and flat outputs."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from inferlens.backends.base import ordered
from inferlens.errors import Unsupported
from inferlens.models.inputs import flatten, make_inputs
from inferlens.models.model import Array, Model
from inferlens.spec.case import Case, TensorSpec

FLOATS = ("float32", "float16", "bfloat16", "float64")
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
WRAPPED = "module"  # the path of the model in what flat_outputs returns


def dtype_of(precision: str) -> Any:
    """PyTorch's type for a precision; refuses those for which modules would have to be quantized."""
    import torch

    if precision not in DTYPES:
        hint = f"--precision fp16, or an ONNX file quantized to {precision}"
        raise Unsupported(f"Modules of PyTorch cannot be cast to {precision}.", expected=", ".join(DTYPES), hint=hint)
    return getattr(torch, DTYPES[precision])


def cast(module: Any, precision: str) -> None:
    """Gives every floating-point parameter and buffer of a module the precision, in place.

    ``module.to(dtype)`` would do the same to complex tensors and drop their imaginary parts; ``module.bfloat16()`` is
    not there for TorchScript.
    """
    import torch

    dtype, script = dtype_of(precision), isinstance(module, torch.jit.ScriptModule)
    for tensor in chain(module.parameters(), module.buffers()):
        if not tensor.is_floating_point() or tensor.dtype == dtype:
            continue
        if tensor._is_view() and not script:  # what it is a view of would keep its type, which exporters refuse
            torch.utils.swap_tensors(tensor, tensor.detach().to(dtype))
        else:
            tensor.data = tensor.data.to(dtype)


def type_of(spec: TensorSpec, precision: str) -> Any:
    """PyTorch's type of an input: floats are in ``precision``, other types as the model names them."""
    import torch

    return dtype_of(precision) if spec.dtype in FLOATS else getattr(torch, spec.dtype)


def tensor_of(array: Array, spec: TensorSpec, precision: str) -> Any:
    """A tensor on the CPU with a copy of ``array``, in the type of :func:`type_of`."""
    import torch

    return torch.tensor(np.asarray(array, np.float32 if spec.dtype in FLOATS else None)).to(type_of(spec, precision))


def ready(value: Any, dtype: Any, device: Any, order: Any) -> Any:
    """A tensor itself, where it is of that type, device and memory order; else, as of an array, a copy that is."""
    import torch

    if value.dtype is dtype and value.device == device and value.is_contiguous(memory_format=order):
        return value
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(np.ascontiguousarray(value))
    return tensor.to(device, dtype).contiguous(memory_format=order)


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
    """A module that returns the tensors of ``module``'s outputs, ordered as by ``flatten``: a tuple or the only one."""
    import torch

    class FlatOutputs(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *feed: Any) -> Any:
            flat = tuple(flatten(self.module(*feed)))
            return flat[0] if len(flat) == 1 else flat

    flat = FlatOutputs()
    flat.training = False  # not eval(): an exported program inside is in its mode for good, and refuses
    return flat
