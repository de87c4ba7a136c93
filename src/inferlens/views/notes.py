"""Numbered notes beneath a table: equal ones share a number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
FIGURE = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-\d+)?(?!\w|[.,]\d)")
# Figures, and what a backend may be asked for, in brackets: (tensorrt.tf32=true), (torch_compile:reduce-overhead).
FILLED = re.compile(rf"{FIGURE.pattern}|(?<=\()[a-z]\w*(?:\.\w+=\w+|:[a-z-]+)(?=\))")


class Notes:
    """Numbered notes beneath a table; those that differ in figures, or in what to ask for, alone share a number.

    Figures are given as ranges, and what the rows' backends may be asked for one after the other.
    """

    def __init__(self) -> None:
        self._figures: dict[str, list[list[str]]] = {}  # by a note's words, what each row that has it fills in

    def marks(self, texts: Iterable[str]) -> str:
        """Numbers of the notes of one row, such as ``¹˙³``, adding those that are new."""
        numbers = []
        for text in texts:
            text = text.replace("{", "(").replace("}", ")")
            words = FILLED.sub("{}", text)
            self._figures.setdefault(words, []).append(FILLED.findall(text))
            numbers.append(list(self._figures).index(words) + 1)
        return "˙".join(str(number).translate(_SUPERSCRIPTS) for number in dict.fromkeys(numbers))

    @property
    def texts(self) -> list[str]:
        """Every note, once."""
        return [words.format(*map(_range, zip(*figures, strict=True))) for words, figures in self._figures.items()]

    def numbered(self) -> list[str]:
        """Each note behind its mark."""
        return [f"{str(number).translate(_SUPERSCRIPTS)} {text}" for number, text in enumerate(self.texts, 1)]


def _range(figures: Sequence[str]) -> str:
    """What several notes have in one place: a figure, or the least and the greatest; or all that may be asked for."""
    if not all(map(FIGURE.fullmatch, figures)):
        return ", ".join(dict.fromkeys(figures))
    least, greatest = min(figures, key=_value), max(figures, key=_value)
    return least if _value(least) == _value(greatest) else f"{least} to {greatest}"


def _value(figure: str) -> float:
    return float(figure.replace(",", ""))
