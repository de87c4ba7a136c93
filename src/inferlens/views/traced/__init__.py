"""Ways of looking at traces: an overview, and tables of operators, kernels, modules, memory, steps and slices of time.

They draw what :mod:`inferlens.trace` computes. Nothing is printed, and the same trace gives the same text.
"""

from __future__ import annotations

from inferlens.errors import InferlensError, suggestion
from inferlens.units import listing

FORMATS = ("table", "markdown", "csv", "json", "html")
VIEWS = ("overview", "operators", "kernels", "modules", "memory", "steps", "timeline")


def check(format: str) -> None:
    """Refuses a format that there is not.

    Raises:
        InferlensError: if there is no such format.
    """
    _known("format", format, FORMATS)


def check_view(view: str) -> None:
    """Refuses a view that there is not.

    Raises:
        InferlensError: if there is no such view.
    """
    _known("view", view, VIEWS)


def _known(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        hint = suggestion(given, known)
        raise InferlensError(f"There is no {what} '{given}' of a trace.", expected=listing(known), hint=hint)
