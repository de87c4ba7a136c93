"""Traces: what a step of each is made of, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.errors import InferlensError
from inferlens.views.report.blocks import Block, Section
from inferlens.views.report.found import Found
from inferlens.views.traced import show

MOST = 6
VIEWS = "overview,operators,kernels"


def traces(found: Found) -> Iterator[Block]:
    """The overview, operators and kernels of each trace."""
    for number, path in enumerate(found.traces[:MOST], 1):
        try:
            document, _ = show.document(path, "html", view=VIEWS)
        except InferlensError as error:
            yield str(error)
            continue
        yield Section(f"trace-{number}", f"{path.parent.name}/{path.name}", list(document.blocks()), folded=number > 1)
    if len(found.traces) > MOST:
        yield f"{len(found.traces) - MOST} more traces: inferlens trace {found.traces[MOST]}"
