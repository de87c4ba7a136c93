"""Ways of looking at a comparison of two sets of records: for the terminal, pages, GitHub, test reports and programs.

They draw a ``Compared``, not records, and so are no views of the registry. What holds
for these holds here too: nothing is printed, and the same comparison gives the same text.
"""

from __future__ import annotations

from importlib import import_module

from inferlens.analysis.compare.cases import Compared
from inferlens.errors import InferlensError, suggestion
from inferlens.units import listing

FORMATS = ("table", "markdown", "github", "junit", "json")


def render(compared: Compared, format: str = "table", *, width: int = 120, color: bool = False) -> str:
    """``compared`` as text.

    Args:
        compared: what ``inferlens.compare`` returns.
        format: one of :data:`FORMATS`.
        width: columns of the terminal, of ``table``.
        color: whether to use the terminal's colours, in ``table``.

    Raises:
        InferlensError: if there is no such format.
    """
    check(format)
    drawing = import_module(f"inferlens.views.compared.{format}")
    text: str = drawing.render(compared, width, color) if format == "table" else drawing.render(compared)
    return text


def check(format: str) -> None:
    """Refuses a format that there is not.

    Raises:
        InferlensError: if there is no such format.
    """
    if format not in FORMATS:
        hint = suggestion(format, FORMATS)
        raise InferlensError(f"There is no format '{format}' of a comparison.", expected=listing(FORMATS), hint=hint)
