"""Paths of modules from the texts in which TorchScript names them.

There are two: the scope of a traced node, ``__module.block/__module.block.0``; and the instances that a node was
inlined from, ``block(Block).0(Conv2d)``, which name no modules that only hold others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SELF = ("TOP", "SELF", "UNKNOWN_INSTANCE", "INSTANCE_NAME_UNKNOWN")  # the module that called, or a function of it


class Modules:
    """The modules of a model: their paths, and their types by name."""

    def __init__(self, types: Mapping[str, str], wrapped: str = "", firsts: Mapping[str, str] | None = None) -> None:
        """
        Args:
            types: the name of each module's type, by its path.
            wrapped: the path of the model in what was traced, where that is a module around it.
            firsts: the path that a module goes by, for each of its other paths: TorchScript goes by any of them.
        """
        self.types = types
        self._wrapped = wrapped
        self._firsts = firsts or {}

    @classmethod
    def of(cls, module: Any, wrapped: str = "") -> Modules:
        """Those of a module; a script module tells the types that it was made from."""
        named = list(module.named_modules(remove_duplicate=False))
        first: dict[int, str] = {}
        for path, part in named:
            first.setdefault(id(part), path)
        return cls(
            {path: getattr(part, "original_name", type(part).__name__) for path, part in named},
            wrapped,
            {path: first[id(part)] for path, part in named if first[id(part)] != path},
        )

    def of_scope(self, scope: str) -> str | None:
        """The path in a traced node's scope; ``None`` if it names no module."""
        path = scope.rpartition("/__module.")[2].removeprefix("__module.")
        if self._wrapped:
            path = path.removeprefix(self._wrapped).removeprefix(".")
        return self._firsts.get(path, path) if path in self.types else None

    def of_instances(self, text: str) -> str | None:
        """The innermost module in the other text; where it is not told which of several, what they all are in."""
        path = ""
        for part in text.split("."):
            name, _, kind = part.rpartition("(")
            if name in SELF or (name == self._wrapped and not path and name not in self.types):
                continue
            inner = self._below(path, name, kind.rstrip(")"))
            if inner is None:
                break
            path = inner
        return self._firsts.get(path, path) if text else None

    def _below(self, path: str, name: str, kind: str) -> str | None:
        """The module of a name that is called from one, which may lie in a list of modules or the like."""
        direct = f"{path}.{name}" if path else name
        if direct in self.types:
            return direct
        named = (each for each in self.types if each.rpartition(".")[2] == name)
        below = [each for each in named if not path or each.startswith(f"{path}.")]
        alike = {self._firsts.get(each, each) for each in below if self.types[each] == kind}
        return alike.pop() if len(alike) == 1 else None
