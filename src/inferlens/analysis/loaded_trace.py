"""A trace from Python: its views as polars data frames, seconds and bytes, null for what is not known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferlens.analysis.evidence import Findings
from inferlens.analysis.trace_findings import trace_findings
from inferlens.record.display import Displayed
from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.columns import Columns
from inferlens.trace.memory import holders
from inferlens.trace.reader import read
from inferlens.trace.tables import kernels, module_tree, operators, stepping, timeline
from inferlens.trace.trace import Category
from inferlens.units import plural

if TYPE_CHECKING:
    from polars import DataFrame


class LoadedTrace(Displayed):
    """A trace that was read; each view is computed when it is asked for. ``notes``: what was skipped or mended."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.notes = analysis, analysis.trace.notes

    def __repr__(self) -> str:
        steps, events = plural(len(self.analysis.steps), "step"), f"{len(self.analysis.trace.begin):,} events"
        return f"<LoadedTrace of {steps}, {events}>"

    def overview(self) -> Overview:
        """The numbers of the overview."""
        return self.analysis.overview

    def advice(self) -> Findings:
        """What to try, what could save the most of a step first."""
        return trace_findings(self.analysis)

    def operators(self, *by: str) -> DataFrame:
        """Operators by name, and by ``"shapes"`` or ``"stack"`` too where that is given."""
        return operators(self.analysis, *by).frame()

    def kernels(self, *, by_operator: bool = False) -> DataFrame:
        """Kernels, copies and fills by name, or by the operator that launched them, grid and block too."""
        return kernels(self.analysis, by_operator=by_operator).frame()

    def modules(self) -> DataFrame:
        """Modules in the order of a walk through their tree."""
        return module_tree(self.analysis).frame()

    def memory(self) -> DataFrame:
        """Who held memory at each device's peak."""
        return holders(self.analysis).frame()

    def steps(self) -> DataFrame:
        """Every step, and what its time went to."""
        return stepping(self.analysis).frame()

    def timeline(self) -> DataFrame:
        """How much of each slice of time the GPU and the host were at work."""
        return timeline(self.analysis).frame()

    def events(self) -> DataFrame:
        """All complete events, in the order of the file; begin and duration in nanoseconds."""
        trace = self.analysis.trace
        categories = [category.name.lower() for category in Category]
        threads = [trace.threads[code] for code in trace.thread.tolist()]
        columns: dict[str, Any] = {
            "name": [trace.strings[code] for code in trace.name.tolist()],
            "category": [categories[code] for code in trace.category.tolist()],
            "process": [process for process, _ in threads],
            "thread": [thread for _, thread in threads],
            "begin": trace.begin,
            "duration": trace.duration,
        }
        return Columns(columns).frame()


def load_trace(path: Path | str, step: int | str | None = None) -> LoadedTrace:
    """A trace that torch.profiler wrote, or another in Chrome's trace event format.

    Args:
        path: a file, plain or packed with gzip or zstd, or a pipe.

    Raises InferlensError if there is no trace, or no such step. Its frames need polars.
    """
    return LoadedTrace(Analysis(read(Path(path)), step))
