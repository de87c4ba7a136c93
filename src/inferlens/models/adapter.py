"""A module called by position in front of one that wants its arguments by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ByKeyword:
    """Makes modules that pass their positional arguments on by name."""

    @staticmethod
    def of(module: torch.nn.Module, names: Sequence[str]) -> torch.nn.Module:
        """``module`` called with positional arguments, in the order of ``names``.

        Outputs with named fields (Transformers) come as a tuple of their tensors, so that tracers and exporters take
        them.
        """
        adapter: torch.nn.Module = _adapter_class()(module, tuple(names))
        return adapter


@cache
def _adapter_class() -> Any:
    """The module class, made when first needed, because its base comes from PyTorch."""
    import torch

    class Adapter(torch.nn.Module):  # type: ignore[misc]
        """Calls ``inner`` with its arguments by name."""

        def __init__(self, inner: torch.nn.Module, names: tuple[str, ...]) -> None:
            super().__init__()
            self.inner = inner
            self.names = names

        def forward(self, *values: torch.Tensor) -> Any:
            """One call."""
            outputs = self.inner(**dict(zip(self.names, values, strict=True)))
            if hasattr(outputs, "to_tuple"):
                return tuple(each for each in outputs.to_tuple() if isinstance(each, torch.Tensor))
            return outputs

    return Adapter
