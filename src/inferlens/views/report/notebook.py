"""Comparisons, A/B tests and traces that show themselves in a notebook: what the command line shows, as HTML.

Python's functions come from here, for what they return knows no view.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferlens.analysis.compare.ab_result import ABResult
from inferlens.analysis.compare.cases import Compared, compare
from inferlens.analysis.loaded_trace import LoadedTrace, load_trace
from inferlens.execution.ab import ab
from inferlens.views import compared
from inferlens.views.raced import ab as raced
from inferlens.views.renderers.html import fragment
from inferlens.views.table import Document, chosen
from inferlens.views.traced import show
from inferlens.views.traced.trace_views import Selection

__all__ = ["ABResult", "Compared", "LoadedTrace", "ab", "compare", "load_trace"]


def _trace(found: LoadedTrace) -> Document:
    return show.of(
        [show.shown_of(found.analysis, Path("trace"), ("overview",), Selection())], ("overview",), look=False
    )


def _shown(document: Callable[[Any], Document]) -> Callable[[Any], str]:
    """What a document has on a screen, as HTML."""

    def html(found: Any) -> str:
        made = document(found)
        return fragment(chosen((made.screen or made.blocks)(), None))

    return html


setattr(Compared, "_repr_html_", _shown(compared.document))  # noqa: B010 - which no type knows
setattr(ABResult, "_repr_html_", _shown(raced.document))  # noqa: B010
setattr(LoadedTrace, "_repr_html_", _shown(_trace))  # noqa: B010
