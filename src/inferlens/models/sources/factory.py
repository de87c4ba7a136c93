"""``package.module:factory``: the user's own code, importable from the working directory too.

The factory returns an ``nn.Module``, or a module and its example inputs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from inferlens.errors import InferlensError, suggestion
from inferlens.models.examples import with_example
from inferlens.models.model import ModelInfo
from inferlens.models.sources.base import LoadRequest, Opened, Source

MOST_NAMED = 10  # of what is in a module, where it lacks what was asked for


class Factory(Source):
    """Functions and classes that make a module."""

    prefix = "factory"
    runs_code = True

    def find(self, name: str) -> ModelInfo:
        """See :class:`Source`."""
        module, _, factory = name.partition(":")
        _here()
        try:
            known = find_spec(module) is not None
        except (ImportError, ValueError):
            known = False
        if not known or not factory:
            raise InferlensError(
                f"'{name}' is neither a model of a known source nor an importable factory.",
                expected="torchvision:, timm:, transformers:, hub: or inferlens:NAME, or package.module:factory",
                hint="torchvision:resnet18",
            )
        return ModelInfo(spec=f"factory:{name}", name=factory, format="module", batch=None)

    def open(self, name: str, request: LoadRequest) -> Opened:  # noqa: ARG002 - the factory makes its own weights
        """See :class:`Source`."""
        import torch

        module, _, attribute = name.partition(":")
        _here()
        try:
            factory = getattr(import_module(module), attribute)
        except AttributeError as error:
            raise InferlensError(
                f"{module} has no '{attribute}'.",
                expected="a function or class in it that makes an nn.Module",
                hint=_instead(module, attribute),
            ) from error
        made: Any = factory()
        built, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(built, torch.nn.Module):
            raise InferlensError(
                f"{name} gives a {type(built).__name__}.", expected="an nn.Module, or (nn.Module, example inputs)"
            )
        return with_example(built, example, weights=f"made by {name}, seeded", source=f"{name}")


def _instead(module: str, missing: str) -> str:
    """What to try where ``module`` has no ``missing``: near misses, or what is defined in it."""
    names = [each for each in dir(import_module(module)) if not each.startswith("_")]
    own = [
        name
        for name in names
        if callable(made := getattr(import_module(module), name)) and getattr(made, "__module__", "") == module
    ]
    listed = f"one of {', '.join(own[:MOST_NAMED])}" if own else f"another module than {module}"
    return suggestion(missing, names) or listed


def _here() -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
