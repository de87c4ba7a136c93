"""A module that wants its arguments by name, called by position."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import new_class
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NAMES = "_names_by_position"


def by_position(module: torch.nn.Module, names: Sequence[str]) -> torch.nn.Module:
    """``module`` called with positional arguments, in the order of ``names``.

    It has the same parameters and submodules under the same paths, so that profiles and weights know them as the
    model's author does; ``module`` itself stays as it is. Where that cannot be, it is the submodule ``inner`` of
    what this gives. Outputs with named fields (Transformers) come as a tuple of their tensors, so that tracers and
    exporters take them.
    """
    if not _is_all_in_its_class(module):
        return _calling(module, tuple(names), plain=True)
    kind = type(module)

    def forward(self: torch.nn.Module, *values: torch.Tensor) -> Any:
        """One call."""
        return _plain(kind.forward(self, **dict(zip(names, values, strict=True))))

    known_by = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}  # by libraries
    body = {**known_by, "forward": forward, NAMES: tuple(names)}
    return _as(new_class(kind.__name__, (kind,), exec_body=lambda own: own.update(body)), module)


def in_source(module: torch.nn.Module) -> tuple[torch.nn.Module, str]:
    """What gives the calls of ``module`` by code that TorchScript can read, and the path of ``module`` in that.

    TorchScript takes no call whose arguments are counted as it runs, as those of :func:`by_position` are. Any other
    module is given as it is.
    """
    names = getattr(type(module), NAMES, None)
    if names is not None:
        own = _as(type(module).__bases__[0], module)
        return (own, "") if _in_order(own, names) == names else (_calling(own, names), "inner")
    meta = getattr(module, "meta", {})
    return (_calling(module.inner, meta[NAMES]) if NAMES in meta else module), ""


def _as(kind: type, module: torch.nn.Module) -> torch.nn.Module:
    """``module`` as another class, with the same weights and submodules."""
    made: torch.nn.Module = object.__new__(kind)
    made.__dict__.update(module.__dict__)
    return made


def _in_order(module: torch.nn.Module, names: tuple[str, ...]) -> tuple[str, ...]:
    """``names`` in the order in which ``module`` takes them by position; none if they are not what it takes first."""
    parameters = inspect.signature(module.forward).parameters.values()
    taken = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    first = tuple(taken[: len(names)])
    return first if set(first) == set(names) else ()


def _calling(inner: torch.nn.Module, names: tuple[str, ...], *, plain: bool = False) -> torch.nn.Module:
    """A module with source of its own that calls ``inner`` with arguments of these ``names``.

    By position where that can be: hooks of TorchScript see nothing else. ``plain`` as :func:`_plain`, which TorchScript
    cannot read.
    """
    from torch import fx

    graph = fx.Graph()
    values = {name: graph.placeholder(name) for name in names}
    ordered = () if plain else _in_order(inner, names)
    arguments = tuple(values[name] for name in ordered)
    outputs = graph.call_module("inner", arguments, {} if ordered else values)
    graph.output(graph.call_function(_plain, (outputs,)) if plain else outputs)
    made = fx.GraphModule({"inner": inner}, graph)
    made.meta[NAMES] = names
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
