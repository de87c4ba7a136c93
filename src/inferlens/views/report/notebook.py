"""Comparisons, A/B tests and traces that print and show themselves: what the command line shows, as text and as HTML.

Python's functions come from here, for what they return knows no view.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferlens.analysis.compare.ab_result import ABResult
from inferlens.analysis.compare.ab_steps import ABSteps
from inferlens.analysis.compare.cases import Compared, compare
from inferlens.analysis.loaded_trace import LoadedTrace, load_trace
from inferlens.execution.ab import ab, ab_steps
from inferlens.views import compared
from inferlens.views.raced import ab as raced
from inferlens.views.renderers.html import fragment
from inferlens.views.table import Document, chosen, render
from inferlens.views.traced import show
from inferlens.views.traced.trace_views import Selection

__all__ = ["ABResult", "ABSteps", "Compared", "LoadedTrace", "ab", "ab_steps", "compare", "load_trace"]


def _trace(found: LoadedTrace) -> Document:
    return show.of(
        [show.shown_of(found.analysis, Path("trace"), ("overview",), Selection())], ("overview",), look=False
    )


def _shows(kind: type, document: Callable[[Any], Document]) -> None:
    """Makes results of a kind print and show what their document has on a screen."""

    def html(found: Any) -> str:
        made = document(found)
        return fragment(chosen((made.screen or made.blocks)(), None))

    setattr(kind, "_repr_html_", html)  # noqa: B010 - which no type knows
    setattr(kind, "__str__", lambda found: render(document(found)).rstrip("\n"))  # noqa: B010


_shows(Compared, compared.document)
_shows(ABResult, raced.document)
_shows(ABSteps, raced.document)
_shows(LoadedTrace, _trace)
