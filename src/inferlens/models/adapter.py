"""A module that wants its arguments by name, called by position."""

from __future__ import annotations

from collections.abc import Sequence
from types import new_class
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def by_position(module: torch.nn.Module, names: Sequence[str]) -> torch.nn.Module:
    """``module`` called with positional arguments, in the order of ``names``.

    It has the same parameters and submodules under the same paths, so that profiles and weights know them as the
    model's author does; ``module`` itself stays as it is. Where that cannot be, it is the submodule ``inner`` of
    what this gives. Outputs with named fields (Transformers) come as a tuple of their tensors, so that tracers and
    exporters take them.
    """
    if not _is_all_in_its_class(module):
        return _calling(module, tuple(names))
    kind = type(module)

    def forward(self: torch.nn.Module, *values: torch.Tensor) -> Any:
        """One call."""
        return _plain(kind.forward(self, **dict(zip(names, values, strict=True))))

    known_by = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}  # by libraries
    body = {**known_by, "forward": forward, "takes_names": True}
    made: torch.nn.Module = object.__new__(new_class(kind.__name__, (kind,), exec_body=lambda own: own.update(body)))
    made.__dict__.update(module.__dict__)
    return made


def _calling(inner: torch.nn.Module, names: tuple[str, ...]) -> torch.nn.Module:
    """A module that calls ``inner`` with arguments of these ``names``."""
    from torch import fx

    graph = fx.Graph()
    outputs = graph.call_module("inner", kwargs={name: graph.placeholder(name) for name in names})
    graph.output(graph.call_function(_plain, (outputs,)))
    made = fx.GraphModule({"inner": inner}, graph)
    made.training = inner.training
    return made


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


def _plain(outputs: Any) -> Any:
    """Outputs with named fields as a tuple of their tensors; others as they are."""
    import torch

    if hasattr(outputs, "to_tuple"):
        return tuple(each for each in outputs.to_tuple() if isinstance(each, torch.Tensor))
    return outputs
