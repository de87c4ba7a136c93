"""Example inputs from a user: a tensor, a tuple of tensors, or a dict of tensors by argument name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from inferlens.errors import InferlensError
from inferlens.models.adapter import ByKeyword
from inferlens.models.model import Array, Format
from inferlens.models.sources.base import Opened
from inferlens.spec.case import TensorSpec

if TYPE_CHECKING:
    import torch

FORM = "a tensor, a tuple of tensors, or a dict of tensors by argument name"


def with_example(module: torch.nn.Module, example: Any, *, weights: str, source: str) -> Opened:
    """``module`` as it is, with its inputs described by ``example``; inputs unknown if that is ``None``.

    Raises:
        InferlensError: if the example is of another form.
    """
    by_name = named_tensors(module, example)
    if isinstance(example, dict):
        module = ByKeyword.of(module, list(by_name))
    return Opened(
        format=format_of(module),
        module=module,
        inputs=tuple(spec_of(name, tensor) for name, tensor in by_name.items()),
        example={name: array_of(tensor) for name, tensor in by_name.items()},
        weights=weights,
        source=source,
    )


def named_tensors(module: torch.nn.Module, example: Any) -> dict[str, torch.Tensor]:
    """The tensors of ``example`` by input name, in the order of the arguments; empty for ``None``.

    Raises:
        InferlensError: if the example is of another form.
    """
    import torch

    if example is None:
        return {}
    if isinstance(example, dict):
        named = {str(name): value for name, value in example.items()}
    else:
        values = [example] if isinstance(example, torch.Tensor) else example
        if not isinstance(values, (list, tuple)) or not values:
            raise InferlensError(f"Example inputs are a {type(example).__name__}.", expected=FORM)
        named = dict(zip(argument_names(module, len(values)), values, strict=True))
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            raise InferlensError(f"The example input '{name}' is a {type(value).__name__}.", expected=FORM)
    return named


def argument_names(module: torch.nn.Module, count: int) -> list[str]:
    """Names of the first ``count`` arguments of ``forward``, made up where it has no names for them."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return names[:count] if len(names) >= count else [f"input{index}" for index in range(count)]


def format_of(module: torch.nn.Module) -> Format:
    """``torchscript`` for a compiled module, else ``module``."""
    import torch

    return "torchscript" if isinstance(module, torch.jit.ScriptModule) else "module"


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Shape and type of a tensor; integers keep the range their values had."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or dtype == "bool" or not tensor.numel():
        return TensorSpec(name, tuple(tensor.shape), dtype)
    return TensorSpec(name, tuple(tensor.shape), dtype, int(tensor.min()), int(tensor.max()) + 1)


def array_of(tensor: torch.Tensor) -> Array:
    """A tensor's values on the host; types that numpy lacks as float32."""
    import torch

    tensor = tensor.detach().cpu()
    array: Array = (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()
    return array
