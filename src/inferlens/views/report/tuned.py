"""Each tuning: its finals, everything that was tried, and what its settings do."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.errors import InferlensError
from inferlens.views.picture import picture
from inferlens.views.raced import tuned as one
from inferlens.views.raced.tuned_chart import spec
from inferlens.views.report.blocks import Block, Section
from inferlens.views.report.found import Found
from inferlens.views.table import Table

_FRONT = "The dashed line joins candidates that no other beats in both measures; hollow ones break a limit."


def tuned(found: Found) -> Iterator[Block]:
    """Of each tuning its table, chart, and what was tried."""
    for number, each in enumerate(found.tunings, 1):
        *blocks, tried = one.document(each).blocks()
        yield from blocks
        try:
            document = spec(each, colours=found.colours)
        except InferlensError:
            pass  # nothing was timed
        else:
            yield picture(f"tuning-{number}", _FRONT, document)
        if isinstance(tried, Table):
            yield Section(f"tried-{number}", tried.title, [tried], folded=True)
