"""Where the commands print: tables and data to standard output, notes to standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from inferlens.record import Record
    from inferlens.views.base import View


def output() -> Console:
    """The console for what was asked for."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False)


def errors() -> Console:
    """The console for progress and notes."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)


def note(text: str) -> None:
    """One remark beside what was asked for."""
    from rich.markup import escape

    errors().print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)
