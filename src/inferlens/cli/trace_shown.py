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


def show(
    path: Path,
    *,
    view: str = "overview",
    against: Path | None = None,
    step: str | None = None,
    by: str = "name",
    top: int | None = None,
    depth: int | None = None,
    no_cache: bool = False,
    format: str = "table",
) -> None:
    """Prints a trace; the words are those of the command.

    Raises:
        InferlensError: if there is no trace, the words mean nothing, or memory is not enough.
    """
    _import_numpy()
    from inferlens.cli import screen
    from inferlens.errors import InferlensError
    from inferlens.views.traced.show import TraceRequest, document

    request = TraceRequest(path, against, view, step, by, top, depth, cache=not no_cache)
    try:
        shown, notes = document(request, format)
        for note in notes:
            screen.note(note)
        screen.document(shown, format)
    except MemoryError as error:
        hint = "a limit that is less tight (ulimit -d, ulimit -v), or fewer steps in a trace"
        raise InferlensError(f"There is not enough memory for {path}.", hint=hint) from error


def _import_numpy() -> None:
    """Without the threads of its linear algebra: nothing here uses them, and starting them takes long."""
    threads = "OPENBLAS_NUM_THREADS"
    if "numpy" in sys.modules or threads in os.environ:
        return
    os.environ[threads] = "1"
    import numpy  # noqa: F401

    del os.environ[threads]
