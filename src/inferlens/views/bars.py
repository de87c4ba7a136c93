"""A table's figures as bars, for a terminal: names, bars an eighth of a character fine, and the figures beside them.

Bars start at zero and are clear without colours. A column says itself whether it is drawn (``Column.bars``)::

    openvino     ███████████████▍                  17.1   1.49x
    onnxruntime  ████████████████▌                 18.3   1.39x
    pytorch      ██████████████████████▉           25.4   reference
"""

from __future__ import annotations

from dataclasses import replace

from rich.cells import cell_len

from inferlens.errors import InferlensError
from inferlens.units import number
from inferlens.views.renderers.terminal import GAP, widest
from inferlens.views.table import Column, Document, Table, chosen, longest

EIGHTHS = " ▏▎▍▌▋▊▉█"
LONGEST, SHORTEST = 48, 12  # of bars, in characters


def barred(document: Document, width: int, columns: str | None = None) -> Document:
    """``document`` with bars in its tables, ``width`` characters wide; ``columns`` are drawn and shown instead.

    Raises:
        InferlensError: when it is rendered, if a column is not known, or there is none with numbers.
    """

    def blocks() -> list[Table | str]:
        every = (document.screen or document.blocks)()
        if all(isinstance(each, str) for each in every):  # a screen holds the answers alone
            every = document.blocks()
        found = chosen(every, columns) if columns else every
        return [
            each if isinstance(each, str) or not each.lines else _barred(each, width, bool(columns)) for each in found
        ]

    return replace(document, blocks=blocks, screen=None)


def bar(share: float, width: int) -> str:
    """A bar of that share of ``width`` characters; what is not zero has at least an eighth of one."""
    share = max(0.0, min(share, 1.0))
    eighths = max(round(share * width * 8), share > 0)
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _barred(table: Table, width: int, asked: bool) -> Table:
    used = table.used()
    plots = [place for place in used if asked or table.columns[place].bars == "drawn"]
    figures = {place: [None if line.sums else number(line.cells[place]) for line in table.lines] for place in plots}
    drawn = next((place for place in plots if {*figures[place]} != {None}), None)
    if drawn is None:
        raise InferlensError("No column of this table has numbers to draw.", hint="the same without --bars")
    kept = [place for place in used if table.columns[place].bars == "beside" and not table.columns[place].wide]
    beside = used if asked else sorted([drawn, *kept])
    names = widest([table.first, *(line.indent + line.name for line in table.lines)])
    taken = sum(GAP + max(widest(table.cells(place)), cell_len(table.columns[place].heading)) for place in beside)
    room = min(max(width - min(names, width * 2 // 5) - taken - GAP, SHORTEST), LONGEST)
    numbers = figures[drawn]
    lines = [
        replace(line, cells=["" if each is None else bar(each / most, room), *(line.cells[place] for place in beside)])
        for line, each, most in zip(table.lines, numbers, longest(table, numbers), strict=True)
    ]
    shown = [replace(table.columns[place], wide=False, fold=False) for place in beside]
    columns = [Column("", "", numeric=False, most=LONGEST), *shown]
    return replace(table, columns=columns, lines=lines, fold=False)  # a bar beside each line of names
