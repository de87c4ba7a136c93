"""Numbered notes beneath the tables of a comparison; equal notes share a number."""

from __future__ import annotations

from collections.abc import Iterable

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Notes:
    """The notes of all lines, in the order in which they came up."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def marks(self, texts: Iterable[str]) -> str:
        """The numbers of these notes, such as ``¹˙³``; adds those that are new."""
        return "˙".join(dict.fromkeys(self._texts.setdefault(text, _number(len(self._texts) + 1)) for text in texts))

    def numbered(self) -> list[tuple[str, str]]:
        """Number and text of each note."""
        return [(number, text) for text, number in self._texts.items()]


def _number(value: int) -> str:
    return str(value).translate(_SUPERSCRIPTS)
