"""Tables and lines as text for a terminal, by rich; every table is in the style of all."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable

GAP = 2
# A line under the header and between the batches, none around.
_LINES = "    \n    \n ── \n    \n ── \n ── \n    \n    \n"


def lined() -> RichTable:
    """An empty table in the style of all: lines under the header and between sections, none around."""
    from rich.box import Box
    from rich.table import Table as RichTable

    return RichTable(box=Box(_LINES), show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))


def drawn(parts: Iterable[RenderableType], width: int, color: bool) -> str:
    """Parts as text, ``width`` columns wide."""
    console = _console(width, color)
    for part in parts:
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _console(width: int, color: bool) -> Console:
    from rich.console import Console

    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
