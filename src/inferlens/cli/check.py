"""``inferlens bench --check``: the warnings of stored records, worked out anew. Nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferlens.analysis.interference.samples import CaseRuns
    from inferlens.record.record import Warning

FORMATS = ("table", "json")
SCHEMA = "inferlens.warnings/1"


def check(paths: Sequence[str], words: Mapping[str, Any], format: str) -> None:
    """Prints each case's warnings: of its latest run, as the tables have it.

    Args:
        paths: folders with records, at any height, or record files.
        words: what else the command line said.
        format: ``table`` or ``json``.

    Raises:
        InferlensError: if there is no record, or a word is given that is of measuring.
    """
    from inferlens.analysis.findings.warnings import warnings_of
    from inferlens.analysis.interference.samples import latest
    from inferlens.cli import screen
    from inferlens.record.store import load_records
    from inferlens.views.rows import of_comparisons

    _refuse(words, format)
    loaded = load_records([Path(path) for path in paths])
    for problem in loaded.problems:
        screen.note(problem)
    compared = of_comparisons(loaded.records)
    found = [
        (repeats, (*warnings_of(repeats), *compared.get(repeats.first.id, ()))) for repeats in latest(loaded.records)
    ]
    if format == "json":
        screen.data({"schema": SCHEMA, "cases": [_data(*each) for each in found]})
    else:
        screen.text("\n".join(_lines(found)))


def _refuse(words: Mapping[str, Any], format: str) -> None:
    from inferlens.errors import InferlensError

    given = [f"--{name.replace('_', '-')}" for name, value in words.items() if value not in (None, [], False)]
    if given:
        raise InferlensError(f"With --check nothing is measured, and {given[0]} means nothing.", hint="without it")
    if format not in FORMATS:
        raise InferlensError(f"Warnings have no format '{format}'.", expected=f"one of {', '.join(FORMATS)}")


def _data(runs: CaseRuns, warnings: Sequence[Warning]) -> dict[str, Any]:
    case = runs.first.case
    return {
        "model": case.model, "label": case.label, "digest": case.digest,
        "records": [record.id for record in runs.records], "status": runs.first.status, "warnings": warnings,
    }  # fmt: skip


def _lines(found: Sequence[tuple[CaseRuns, Sequence[Warning]]]) -> list[str]:
    """A paragraph for each case that has warnings, and a closing sentence."""
    from inferlens.units import plural
    from inferlens.views.plain import plain

    lines = []
    for runs, warnings in found:
        lines += [plain(f"{runs.first.case.model} {runs.first.case.label}")] if warnings else []
        for warning in warnings:
            lines += [f"  {plain(warning.code)}: {plain(warning.message)}"]
            lines += [f"    {plain(warning.advice)}"] if warning.advice else []
    total, warned = sum(len(warnings) for _, warnings in found), sum(bool(warnings) for _, warnings in found)
    failed, cases = sum(not runs.ran for runs, _ in found), plural(len(found), "case")
    said = f"{plural(total, 'warning')} about {warned:,} of {cases}" if total else f"No warnings about {cases}"
    return [*lines, *([""] if lines else []), said + (f"; {failed:,} did not run." if failed else ".")]
