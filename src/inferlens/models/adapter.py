"""A module that wants its arguments by name, called by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import new_class
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ByKeyword:
    """Makes modules that pass their positional arguments on by name."""

    @staticmethod
    def of(module: torch.nn.Module, names: Sequence[str]) -> torch.nn.Module:
        """``module`` called with positional arguments, in the order of ``names``.

        It has the same parameters and submodules under the same paths, so that profiles and weights know them as the
        model's author does; ``module`` itself stays as it is. Where that cannot be, it is the submodule ``inner`` of
        what this gives. Outputs with named fields (Transformers) come as a tuple of their tensors, so that tracers and
        exporters take them.
        """
        if not _is_all_in_its_class(module):
            adapter: torch.nn.Module = _adapter_class()(module, tuple(names))
            return adapter
        kind = type(module)
        told = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}  # by which libraries know it
        body = {**told, "forward": _by_position(kind.forward, tuple(names))}
        twin: torch.nn.Module = object.__new__(
            new_class(kind.__name__, (kind,), exec_body=lambda own: own.update(body))
        )
        twin.__dict__.update(module.__dict__)
        return twin


def _is_all_in_its_class(module: torch.nn.Module) -> bool:
    """Whether calls and copies of ``module`` are what its class and its attributes make them, and nothing else is."""
    import torch

    kind = type(module)
    return (
        kind.__call__ is torch.nn.Module.__call__
        and not any(hasattr(kind, name) for name in ("__copy__", "__deepcopy__"))
        and "forward" not in vars(module)
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )


def _by_position(own: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """A method that calls ``own`` with its arguments by name."""

    def forward(self: torch.nn.Module, *values: torch.Tensor) -> Any:
        """One call."""
        return _plain(own(self, **dict(zip(names, values, strict=True))))

    return forward


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
            return _plain(self.inner(**dict(zip(self.names, values, strict=True))))

    return Adapter


def _plain(outputs: Any) -> Any:
    """Outputs with named fields as a tuple of their tensors; others as they are."""
    import torch

    if hasattr(outputs, "to_tuple"):
        return tuple(each for each in outputs.to_tuple() if isinstance(each, torch.Tensor))
    return outputs
