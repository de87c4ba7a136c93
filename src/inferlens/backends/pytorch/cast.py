"""Precision of modules and tensors in PyTorch."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from inferlens.errors import Unsupported
from inferlens.models.model import Array
from inferlens.spec.case import TensorSpec

FLOATS = ("float32", "float16", "bfloat16", "float64")
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def dtype_of(precision: str) -> Any:
    """PyTorch's type for a precision; refuses those for which modules would have to be quantized."""
    import torch

    if precision not in DTYPES:
        raise Unsupported(
            f"Modules of PyTorch cannot be cast to {precision}.",
            expected=f"one of {', '.join(DTYPES)}",
            hint=f"--precision fp16, or an ONNX file quantized to {precision}",
        )
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


def tensor_of(array: Array, spec: TensorSpec, precision: str) -> Any:
    """A tensor on the CPU with a copy of ``array``: floats in ``precision``, other types as the model names them."""
    import torch

    if spec.dtype in FLOATS:
        return torch.tensor(np.asarray(array, np.float32)).to(dtype_of(precision))
    return torch.tensor(np.asarray(array)).to(getattr(torch, spec.dtype))
