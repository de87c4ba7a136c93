"""Named parts that Python's entry points register.

A registry does not depend on its parts. Built-in and third-party parts are registered in the same way. A part whose
import fails is an error with a reason, not a crash.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from inferlens.errors import InferlensError, check_choice

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Generic[T]):
    """The parts of one entry-point ``group``; ``kind`` is the word for one of them in messages."""

    def __init__(self, group: str, kind: str) -> None:
        self.group = group
        self.kind = kind

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        from importlib.metadata import entry_points

        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> tuple[str, ...]:
        """Return every registered name in alphabetical order."""
        return tuple(sorted(self._points))

    def get(self, name: str) -> type[T]:
        """Return the part called ``name``. Raises InferlensError if there is none, or it cannot be imported."""
        check_choice(self.kind, name, self.names())
        point = self._points[name]
        try:
            part: type[T] = point.load()
        except Exception as error:
            message = f"The {self.kind} '{name}' ({point.value}) cannot be imported: {type(error).__name__}: {error}."
            raise InferlensError(message, hint="reinstall the package that provides it") from error
        return part
