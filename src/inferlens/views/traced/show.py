"""From a path to what is shown of it: reads, analyses, and renders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inferlens.errors import InferlensError, suggestion
from inferlens.trace.analysis import Analysis
from inferlens.trace.overview import overview_of
from inferlens.trace.reading import read
from inferlens.units import listing
from inferlens.views.columns import plain
from inferlens.views.traced.render import Part
from inferlens.views.traced.render import render as rendered
from inferlens.views.traced.sheets import BY, TOP, Choice, sheets_of


@dataclass(frozen=True)
class Wanted:
    """What was asked for; ``by`` may name several, with commas."""

    path: Path
    view: str = "overview"
    step: str | None = None
    by: str = "name"
    top: int | None = None
    depth: int | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """What rows are told apart by.

        Raises:
            InferlensError: for what they cannot be.
        """
        keys = tuple(word.strip() for word in self.by.split(",") if word.strip())
        for key in keys:
            if key not in BY:
                expected = listing(list(BY))
                raise InferlensError(
                    f"Rows cannot be told apart by '{key}'.", expected=expected, cure=suggestion(key, BY)
                )
        return keys


def render(wanted: Wanted, format: str, *, width: int = 120, color: bool = False) -> tuple[str, list[str]]:
    """What was asked for as text, and remarks on how it was read.

    Raises:
        InferlensError: if there is no trace, or no such step.
    """
    keys = wanted.keys
    analysis = Analysis(read(wanted.path), wanted.step)
    top = wanted.top if wanted.top is not None or format in ("csv", "json") else TOP
    more = {"overview": overview_of(analysis)} if wanted.view == "overview" and format == "json" else None
    sheets = sheets_of(analysis, wanted.view, Choice(keys, top, wanted.depth))
    part = Part(plain(wanted.path.name), sheets, analysis.trace.notes, more)
    notes = [plain(f"{wanted.path}: {note}") for note in analysis.trace.notes]
    return rendered([part], wanted.view, format, width=width, color=color), notes
