"""A comparison of two sets of records as a document, as annotations of GitHub, and as a test report."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from inferlens.analysis.compare.cases import Compared
from inferlens.analysis.compare.environment_diff import about
from inferlens.errors import check_choice
from inferlens.units import percent
from inferlens.views import table
from inferlens.views.compared.lines import full_names, groups, sentences, unit
from inferlens.views.compared.reports import github, junit
from inferlens.views.notes import Notes
from inferlens.views.plain import plain
from inferlens.views.table import Column, Document, Line, Table

SCHEMA = "inferlens.comparison/1"
OWN = {"github": github, "junit": junit}
FORMATS = (*(name for name in table.FORMATS if name != "csv"), *OWN)
_STYLES = {"FASTER": "green", "SLOWER": "bold red", "UNDECIDED": "yellow", "DID NOT RUN": "bold magenta", "SAME": ""}


def render(compared: Compared, format: str = "table", *, width: int = 120, color: bool = False) -> str:
    """``compared``, which is what ``inferlens.compare`` returns, as text; ``width`` and ``color`` are the terminal's.

    Raises:
        InferlensError: if there is no such format.
    """
    check_choice("format", format, FORMATS)
    if format in OWN:
        return OWN[format](compared)
    return table.render(document(compared), format, width=width, color=color)


def document(compared: Compared) -> Document:
    """A table for each model, the verdict, and what else differs."""
    return Document(
        blocks=lambda: [*_tables(compared), *sentences(compared), *_differences(compared)],
        data=lambda: _data(compared),
        title="Comparison – Inferlens",
    )


def _tables(compared: Compared) -> Iterator[Table]:
    metric, notes, found = unit(compared.metric), Notes(), groups(compared)
    columns = (
        Column("base", "base", metric, keep=1),
        Column("candidate", "candidate", metric, keep=1),
        Column("change", "change"),
        Column("interval", "interval", percent(compared.level), keep=2),
        Column("verdict", "verdict", numeric=False),
    )
    for group in found:
        lines = [
            Line.of(line.name + notes.marks(line.notes), columns, line, style=_STYLES[line.verdict])
            for line in group.lines
        ]
        numbered = notes.numbered() if group is found[-1] else ()
        yield Table(group.headline, "case", columns, lines, notes=numbered, fold=True)


def _differences(compared: Compared) -> Iterator[Table]:
    columns = [Column(side, side, numeric=False, fold=True) for side in ("base", "candidate")]
    lines = [
        Line.of(plain(one.field) + about(one, compared.on_both), columns, one, style="bold red" if one.unlike else "")
        for one in compared.differences
    ]
    if lines:
        yield Table("", "what else differs", columns, lines, fold=True)


def _data(compared: Compared) -> dict[str, object]:
    """Every field of every case, the exit code, and the closing sentences."""
    cases = [
        {"name": name, "digest": line.of.case.digest, **msgspec.structs.asdict(line.of)}
        for name, line in full_names(compared)
    ]
    return {
        "schema": SCHEMA,
        "exit_code": compared.exit_code,
        "sentences": sentences(compared),
        **msgspec.structs.asdict(compared),
        "cases": cases,
    }
