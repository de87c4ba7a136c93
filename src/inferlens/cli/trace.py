"""``inferlens trace``: what traces of torch.profiler say. It imports little, for reading them takes little time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

from inferlens.cli import options, screen
from inferlens.errors import InferlensError
from inferlens.spec.options import OptionSpec

PATH = (
    "A trace file (.json, .json.gz, .json.zst), a pipe, - for the standard input, a folder with the traces of a job's "
    "ranks, or a folder of log folders."
)
MOST_NOTES = 2  # remarks on how a trace was read


@options.takes()
def trace(
    path: Annotated[Path, OptionSpec(PATH, metavar="FILE|DIR")],
    *,
    format: str = "table",
    wide: bool = False,
    columns: str | None = None,
    output: Path | None = None,
    plot: Path | None = None,
    **words: Any,
) -> None:
    """Show what a trace of torch.profiler says, whoever took it.

    Nothing is measured, and no framework is needed. Damaged traces are read as far as possible, with a note.
    """
    if plot:
        from inferlens.views.trace_documents import render_steps

        format = screen.picture_format(plot, "steps.svg")
        return screen.draw(plot, (render_steps(path, format, step=words.get("step")), []), "--plot")
    if "numpy" not in sys.modules:  # nothing here uses the threads of its linear algebra, and starting them takes long
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from inferlens.views.trace_documents import trace_document

    try:
        format = screen.format_of(format, output)
        shown, notes = trace_document(path, "html" if format == "pdf" else format, wide=wide, **words)
        screen.notes(notes[:MOST_NOTES])
        if len(notes) > MOST_NOTES:
            screen.note(f"({len(notes) - MOST_NOTES} more: --format json)")
        screen.document(shown, format, wide=wide, columns=columns, output=output)
    except MemoryError as error:
        hint = "a limit that is less tight (ulimit -d, ulimit -v), or fewer steps in a trace"
        raise InferlensError(f"There is not enough memory for {path}.", hint=hint) from error
