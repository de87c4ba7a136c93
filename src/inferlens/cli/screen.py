"""Where the commands print: tables and data to standard output, notes to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from inferlens.record.record import Record, Warning
    from inferlens.views.base import View


WIDTH_OF_A_PIPE = 160


def output() -> Console:
    """The console for what was asked for."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_OF_A_PIPE
    return console


def errors() -> Console:
    """The console for progress and notes."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)


def note(text: str) -> None:
    """One remark beside what was asked for."""
    from rich.markup import escape

    errors().print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)


def warnings(found: Iterable[Warning]) -> None:
    """What must be known of something that was made, a remark each."""
    for warning in found:
        note(f"{warning.message} {warning.advice}".strip())


def data(value: Any) -> None:
    """Prints a value as indented JSON to standard output, for machines."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n")


@contextmanager
def busy(what: str) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal that something is under way; gives what to tell the name of each step to."""
    console = errors()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(what) as status:
        yield lambda step: status.update(f"{what}: {step}")


def view(format: str, reference: str | None) -> View:
    """The view of that name, made for this terminal.

    Raises:
        InferlensError: if there is none, or it draws pictures.
    """
    from inferlens.errors import InferlensError
    from inferlens.views import VIEWS

    chosen = VIEWS.get(format)
    if not chosen.printable:
        raise InferlensError(f"The view '{format}' draws pictures.", hint="inferlens plot")
    if not chosen.fits_width:
        return chosen(reference=reference)
    console = output()
    color = console.is_terminal and not console.no_color
    return chosen(reference=reference, width=console.width, color=color)  # type: ignore[call-arg]


def show(records: Sequence[Record], format: str, reference: str | None) -> None:
    """Prints records to standard output in that format."""
    drawn = view(format, reference).render(records)
    text(drawn.decode() if isinstance(drawn, bytes) else drawn)


def text(drawn: str) -> None:
    """Prints what was drawn to standard output."""
    sys.stdout.write(drawn if drawn.endswith("\n") else drawn + "\n")
    sys.stdout.flush()
