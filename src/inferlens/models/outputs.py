"""The tensors in what a model returns, whatever their nesting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def flatten(outputs: Any) -> list[torch.Tensor]:
    """Every tensor in ``outputs``, depth first; numbers as tensors, ``None`` and texts skipped."""
    import torch

    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if isinstance(outputs, (bool, int, float, complex)):
        return [torch.tensor(outputs)]
    if isinstance(outputs, Mapping):
        parts = list(outputs.values())
    elif isinstance(outputs, (list, tuple)):
        parts = list(outputs)
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        parts = [getattr(outputs, field.name) for field in fields(outputs)]
    else:
        return []
    return [tensor for part in parts for tensor in flatten(part)]
