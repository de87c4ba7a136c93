"""A model by name or file, and a file that nobody should open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferlens.models.model import Model
from inferlens.models.resolve import find, load
from inferlens.spec.case import Case


def loaded(name: str | Path, *, trust: bool = False, **fields: Any) -> Model:
    """The model of that name, at its own batch if no other is asked for."""
    model_info = find(str(name))
    return load(Case(model=model_info.spec, backend="pytorch", **{"batch": model_info.batch, **fields}), trust=trust)


class Bomb:
    """A pickle that leaves a mark when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))
