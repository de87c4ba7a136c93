"""Ways of looking at profiles: tables of layers and trees of modules, for terminals, pages, spreadsheets and programs.

They draw profiles, not records, and so are no views of the registry. What holds for these holds here too: nothing is
printed, and the same profiles give the same text.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferlens.errors import InferlensError, suggestion
from inferlens.units import listing

FORMATS = ("table", "markdown", "csv", "json")


def check(format: str) -> None:
    """Refuses a format that there is not.

    Raises:
        InferlensError: if there is no such format.
    """
    if format not in FORMATS:
        hint = suggestion(format, FORMATS)
        raise InferlensError(f"There is no format '{format}' of a profile.", expected=listing(FORMATS), hint=hint)


def check_order(things: str, order: str, orders: Iterable[str]) -> None:
    """Refuses an order of ``things`` that there is not.

    Raises:
        InferlensError: if there is no such order.
    """
    known = list(orders)
    if order not in known:
        hint = suggestion(order, known)
        raise InferlensError(f"{things} cannot be sorted by '{order}'.", expected=listing(known), hint=hint)
