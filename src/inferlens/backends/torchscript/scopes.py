"""Paths of modules from the texts in which TorchScript names them.

There are three: the scope of a traced node, ``__module.block/__module.block.0``; the instances that a node was inlined
from, ``block(Block).0(Conv2d)``; and the stack that an operator was called in,
``TOP(Net)::forward.block(Block)::forward.0(Conv2d)::forward.``. The last two name no modules that only hold others, and
a name may have any character but a dot; so they are read against the modules that there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
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

    @cached_property
    def can_be_told(self) -> bool:
        """Whether the profiler can write the stacks of calls: it puts names into JSON as they are."""
        return all(name.isprintable() and not set(name) & set('"\\') for name in self._named)

    @cached_property
    def _named(self) -> dict[str, list[str]]:
        """The paths that end in a name."""
        found: dict[str, list[str]] = {}
        for path in self.types:
            found.setdefault(path.rpartition(".")[2], []).append(path)
        return found

    @cached_property
    def _names(self) -> list[str]:
        return sorted((*SELF, self._wrapped, *self._named), key=len, reverse=True)

    def of_scope(self, scope: str) -> str | None:
        """The path in a traced node's scope; ``None`` if it names no module."""
        path = scope.rpartition("/__module.")[2].removeprefix("__module.")
        if self._wrapped:
            path = path.removeprefix(self._wrapped).removeprefix(".")
        return self._firsts.get(path, path) if path in self.types else None

    def of_stack(self, text: str) -> str | None:
        """The innermost module in the other two texts; where it is not told which of several, what they all are in."""
        path, rest, found = "", text, False
        while rest:
            if rest.startswith("::"):  # a function that the module called
                rest = rest[2:].partition(".")[2]
                continue
            name = next((each for each in self._names if each and rest.startswith(f"{each}(")), None)
            if name is None:
                break
            kind, _, rest = rest[len(name) + 1 :].partition(")")
            rest = rest.partition(".")[2]
            found = True
            if name in SELF or (name == self._wrapped and not path and name not in self.types):
                continue
            inner = self._below(path, name, kind)
            if inner is None:
                break
            path = inner
        return self._firsts.get(path, path) if found else None

    def _below(self, path: str, name: str, kind: str) -> str | None:
        """The module of a name that is called from one, which may lie in a list of modules or the like."""
        direct = f"{path}.{name}" if path else name
        if direct in self.types:
            return direct
        below = [each for each in self._named.get(name, ()) if not path or each.startswith(f"{path}.")]
        alike = {self._firsts.get(each, each) for each in below if self.types[each] == kind}
        return alike.pop() if len(alike) == 1 else None
