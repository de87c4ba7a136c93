"""``inferlens trace``: what traces of torch.profiler say. It imports little, for reading them takes little time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from inferlens.cli import options, screen
from inferlens.errors import InferlensError, MissingLibrary
from inferlens.spec.options import OptionSpec

if TYPE_CHECKING:
    from inferlens.views.table import Report

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
        if output and format in ("html", "pdf") and not columns and (page := _charts_page(path, **words)):
            return screen.save_report(page, output, format)
        shown, notes = trace_document(path, "html" if format == "pdf" else format, wide=wide, **words)
        screen.notes(notes[:MOST_NOTES])
        if len(notes) > MOST_NOTES:
            screen.note(f"({len(notes) - MOST_NOTES} more: --format json)")
        screen.document(shown, format, wide=wide, columns=columns, output=output)
    except MemoryError as error:
        hint = "a limit that is less tight (ulimit -d, ulimit -v), or fewer steps in a trace"
        raise InferlensError(f"There is not enough memory for {path}.", hint=hint) from error


def _charts_page(path: Path, *, against: Path | None = None, **words: Any) -> Report | None:
    """Return the page of a report, if the user asked for no more than that, and charts can be drawn here."""
    from inferlens.trace.distributed import traces_under
    from inferlens.views.picture import converter
    from inferlens.views.report import ReportInputs, report

    traces = [traces_under(side) for side in filter(None, (against, path))]
    if words.items() - {("view", "overview"), ("by", "name")} or (against and [*map(len, traces)] != [1, 1]):
        return None
    try:
        converter()
    except MissingLibrary:
        return None
    inputs = ReportInputs(traces=[trace for side in traces for trace in side])
    return report(inputs) if any(trace.analysis for trace in inputs.loaded_traces) else None
