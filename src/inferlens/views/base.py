"""The seam of everything that draws records: options in the constructor, records in, text or bytes out.

A view sees records and nothing else, prints nothing, and gives the same bytes for the same records and options.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from inferlens.record.record import Record


class View(ABC):
    """A way of looking at records. Subclasses are found through the entry-point group ``inferlens.views``."""

    name: ClassVar[str]
    summary: ClassVar[str]
    printable: ClassVar[bool] = True  # text that a terminal or a pipe can take
    fits_width: ClassVar[bool] = False  # the constructor takes ``width`` and ``color`` of the terminal

    def __init__(self, *, reference: str | None = None) -> None:
        """
        Args:
            reference: words that name the row others are compared with; ``None`` is the usual one.
        """
        self.reference = reference

    @abstractmethod
    def render(self, records: Sequence[Record]) -> str | bytes:
        """Draws ``records``.

        Raises:
            InferlensError: if they cannot be drawn, or the reference names no row, or more than one.
        """
