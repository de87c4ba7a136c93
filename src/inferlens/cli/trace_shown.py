"""What ``inferlens trace`` prints: the trace to standard output, remarks on how it was read to standard error.

Typer, and what it imports, takes as long as reading a trace of 100,000 events does. Where the words are right it is not
needed: ``argparse`` reads these, and the command says what is wrong with others.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parsed(words: Sequence[str]) -> dict[str, Any] | None:
    """What the command would be called with; ``None`` if it has to say something: help, or what is wrong."""
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("path", type=Path)
    for name in ("--view", "--step", "--by"):
        parser.add_argument(name)
    parser.add_argument("--format", "-f")
    parser.add_argument("--against", type=Path)
    for name in ("--top", "--depth"):
        parser.add_argument(name, type=int)
    parser.add_argument("--no-cache", action="store_true")
    try:
        found = vars(parser.parse_args(words))
    except ValueError:
        return None
    return None if min(found.get("top", 1), found.get("depth", 1)) < 1 else found


def show(path: Path, *, format: str = "table", no_cache: bool = False, **words: Any) -> None:
    """Prints a trace; the words are those of the command.

    Raises:
        InferlensError: if there is no trace, the words mean nothing, or memory is not enough.
    """
    if "numpy" not in sys.modules:  # nothing here uses the threads of its linear algebra, and starting them takes long
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from inferlens.cli import screen
    from inferlens.errors import InferlensError
    from inferlens.views.traced.show import TraceRequest, document

    try:
        shown, notes = document(TraceRequest(path, cache=not no_cache, **words), format)
        for note in notes:
            screen.note(note)
        screen.document(shown, format)
    except MemoryError as error:
        hint = "a limit that is less tight (ulimit -d, ulimit -v), or fewer steps in a trace"
        raise InferlensError(f"There is not enough memory for {path}.", hint=hint) from error
