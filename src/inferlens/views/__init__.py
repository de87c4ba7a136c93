"""Views draw records and nothing else: no view ever sees a runner, and none needs a framework.

A :class:`View` takes options in its constructor, and records; it gives text or bytes, prints nothing, and gives the
same bytes for the same records and options.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from inferlens.registry import Registry

if TYPE_CHECKING:
    from inferlens.record.record import Record


class View(ABC):
    """A view draws records. Entry points of the group ``inferlens.views`` add subclasses."""

    name: ClassVar[str]
    summary: ClassVar[str]
    printable: ClassVar[bool] = True  # text that a terminal or a pipe can take

    def __init__(self, *, reference: str | None = None) -> None:
        """Args:
        reference: words that name the row that speed-ups refer to; ``None`` is the usual one.
        """
        self.reference = reference

    @abstractmethod
    def render(self, records: Sequence[Record]) -> str | bytes:
        """Draw ``records``.

        Raises:
            InferlensError: if they cannot be drawn, or the reference names no row.
        """


VIEWS: Registry[View] = Registry("inferlens.views", "view")
