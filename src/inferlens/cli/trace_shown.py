"""What ``inferlens trace`` prints: the trace to standard output, remarks on how it was read to standard error."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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
    from inferlens.views.traced import check
    from inferlens.views.traced.show import Wanted, render

    check(format)
    console = screen.output()
    color = console.is_terminal and not console.no_color
    wanted = Wanted(path=path, against=against, view=view, step=step, by=by, top=top, depth=depth, cache=not no_cache)
    try:
        drawn, notes = render(wanted, format, width=console.width, color=color)
    except MemoryError as error:
        what = f"There is not enough memory for {path}, even with its columns in files."
        raise InferlensError(
            what, hint="a limit that is less tight (ulimit -d, ulimit -v), or fewer steps in a trace"
        ) from error
    for note in notes:
        screen.note(note)
    screen.text(drawn)


def _import_numpy() -> None:
    """Without the threads of its linear algebra: nothing here uses them, and starting them takes long."""
    threads = "OPENBLAS_NUM_THREADS"
    if "numpy" in sys.modules or threads in os.environ:
        return
    os.environ[threads] = "1"
    import numpy  # noqa: F401

    del os.environ[threads]
