"""Traces in Python: their views as polars data frames, in seconds and bytes, null for unknown values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferlens.analysis.evidence import Findings
from inferlens.analysis.trace_findings import trace_findings
from inferlens.record.display import Displayed
from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.memory import holders
from inferlens.trace.model import Category, Columns
from inferlens.trace.read import read_trace
from inferlens.trace.tables import kernels, module_tree, operators, stepping, timeline
from inferlens.units import plural

if TYPE_CHECKING:
    from polars import DataFrame


class LoadedTrace(Displayed):
    """A trace whose views are computed on demand. ``notes`` tell the skipped and repaired parts of its file."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.notes = analysis, analysis.trace.notes

    def __repr__(self) -> str:
        steps, events = plural(len(self.analysis.steps), "step"), f"{len(self.analysis.trace.begin):,} events"
        return f"<LoadedTrace of {steps}, {events}>"

    def overview(self) -> Overview:
        return self.analysis.overview

    def advice(self) -> Findings:
        """Return findings, the largest possible saving of a step first."""
        return trace_findings(self.analysis)

    def operators(self, *by: str) -> DataFrame:
        """Return operators by name, and by ``"shapes"`` or ``"stack"`` as well if given."""
        return operators(self.analysis, *by).frame()

    def kernels(self, *, by_operator: bool = False) -> DataFrame:
        """Return kernels, copies and fills by name, or by launching operator, grid and block as well."""
        return kernels(self.analysis, by_operator=by_operator).frame()

    def modules(self) -> DataFrame:
        """Return modules in pre-order."""
        return module_tree(self.analysis).frame()

    def memory(self) -> DataFrame:
        """Return the holders of memory at each device's peak."""
        return holders(self.analysis).frame()

    def steps(self) -> DataFrame:
        """Return the parts of every step's time."""
        return stepping(self.analysis).frame()

    def timeline(self) -> DataFrame:
        """Return the utilization of GPU and host in slices of time."""
        return timeline(self.analysis).frame()

    def events(self) -> DataFrame:
        """Return all complete events in the order of the file; begin and duration in nanoseconds."""
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
    """Load a trace of torch.profiler, or another in Chrome's trace event format.

    Args:
        path: a file, plain or compressed with gzip or zstd, or a pipe.

    Raises InferlensError if there is no trace, or no such step. Its frames need polars.
    """
    return LoadedTrace(Analysis(read_trace(Path(path)), step))
