"""What results print, and show in a notebook: what the command line shows, as text and as HTML.

Python's functions come from here, for what they return knows no view.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from inferlens.analysis.ab_result import ABResult, ABSteps
from inferlens.analysis.comparison import RecordComparison, compare
from inferlens.analysis.evidence import Finding, Findings
from inferlens.analysis.findings import findings
from inferlens.analysis.loaded_trace import LoadedTrace, load_trace
from inferlens.analysis.tuning import TuningReport
from inferlens.execution.deploy.call import Deployed, load
from inferlens.record.display import Struct, draw, short
from inferlens.record.layer_profile import Profile
from inferlens.record.quantization import Quantization
from inferlens.record.record import Record
from inferlens.record.store import LoadedProfiles, load_profiles
from inferlens.views import compared
from inferlens.views.plain import plain
from inferlens.views.profiled import findings as profiled
from inferlens.views.profiled import modules, quantized
from inferlens.views.profiled.cases import groups
from inferlens.views.python import Records, Tuning, load_records
from inferlens.views.raced import ab as raced
from inferlens.views.raced.tuned import tunings_document
from inferlens.views.renderers.html import for_notebook
from inferlens.views.report.page import DEEPEST
from inferlens.views.table import Column, Document, Line, Table, chosen, render
from inferlens.views.traced import show
from inferlens.views.traced.trace_views import Selection

__all__ = [
    "ABResult",
    "ABSteps",
    "Deployed",
    "Finding",
    "Findings",
    "LoadedProfiles",
    "LoadedTrace",
    "Profile",
    "Quantization",
    "Record",
    "RecordComparison",
    "Records",
    "Tuning",
    "compare",
    "findings",
    "load",
    "load_profiles",
    "load_records",
    "load_trace",
]  # fmt: skip


def _trace(trace: LoadedTrace) -> Document:
    shown = show.shown_of(trace.analysis, Path("trace"), ("overview",), Selection())
    return show.of([shown], ("overview",), look=False)


def _profiles(loaded: LoadedProfiles) -> Document:
    """Return what could be won in each case, and the modules of all of them."""

    def blocks(depth: int | None) -> list[Table | str]:
        found = profiled.document(profiled.judged(loaded), brief=True).blocks()
        return [*found, *modules.document(groups(loaded), depth=depth, brief=True).blocks()]

    return Document(lambda: blocks(DEEPEST), dict, screen=lambda _: blocks(None))


def _fields(result: Struct) -> Document:
    """Return the fields of a result that differ from their defaults."""
    lines = [
        Line(name, (plain(str(value) if isinstance(value, str) else short(value)),))
        for name, value in result.__rich_repr__()
    ]
    return Document(lambda: [Table(type(result).__name__, "", [Column("", "", numeric=False, fold=True)], lines)], dict)


DOCUMENTS: dict[type, Callable[[Any], Document]] = {
    Records: lambda records: records.document,
    Record: lambda record: Records([record]).document,
    Deployed: lambda deployed: Records([deployed.record]).document,
    TuningReport: lambda tuned: tunings_document([tuned]),
    RecordComparison: compared.document,
    ABResult: raced.document,
    ABSteps: raced.document,
    LoadedProfiles: _profiles,
    Profile: lambda one: _profiles(LoadedProfiles([one])),
    Findings: lambda several: Document(lambda: [profiled.table_of(several)], dict),
    Finding: lambda one: Document(lambda: [profiled.table_of([one])], dict),
    Quantization: quantized.document,
    LoadedTrace: _trace,
}


def _drawn(document: Document, format: Literal["table", "html"]) -> str:
    if format == "table":
        return render(document).rstrip("\n")
    return for_notebook(chosen(document.blocks(), None))


@draw.register
def _struct(result: Struct, format: Literal["table", "html"]) -> str:
    return repr(result) if format == "table" else _drawn(_fields(result), format)


for kind, document in DOCUMENTS.items():
    draw.register(kind, lambda result, format, of=document: _drawn(of(result), format))
