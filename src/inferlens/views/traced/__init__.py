"""Ways of looking at traces: an overview, and tables of operators, kernels, modules, memory, steps and slices of time.

They draw what :mod:`inferlens.trace` computes. Nothing is printed, and the same trace gives the same text.
"""

from __future__ import annotations

from inferlens.errors import InferlensError, suggestion
from inferlens.units import listing

FORMATS = ("table", "markdown", "csv", "json", "html")
VIEWS = ("overview", "operators", "kernels", "modules", "memory", "steps", "timeline")


def check(format: str, view: str) -> None:
    """Refuses a format or a view that there is not.

    Raises:
        InferlensError: if there is no such format or view.
    """
    for what, given, known in (("format", format, FORMATS), ("view", view, VIEWS)):
        if given not in known:
            cure = suggestion(given, known)
            raise InferlensError(f"There is no {what} '{given}' of a trace.", expected=listing(known), cure=cure)
