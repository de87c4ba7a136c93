"""Rows of one comparison against each other: speed-ups, which is the fastest, and the order they are shown in."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from inferlens.analysis.findings.warnings import in_waves, on_other_card
from inferlens.analysis.interference.samples import CaseRuns, in_rounds
from inferlens.record.record import Warning
from inferlens.stats.compare import compare
from inferlens.stats.intervals import ends
from inferlens.views.row import Row


def compared(pairs: Sequence[tuple[Row, CaseRuns]], chosen: dict[str, Row]) -> list[Row]:
    """Rows of one comparison with speed-ups against the reference of their device, the fastest marked, in order."""
    runs = {row.id: run for row, run in pairs}
    processes = {row.id: _processes(run, pairs) for row, run in pairs}
    done = []
    for row, run in pairs:
        reference = chosen.get(row.device)
        if reference is not None:
            row = _against(row, reference, processes, in_rounds(runs[reference.id], run))
        done.append(row)
    return sorted(_marked(done), key=_place)


def _marked(rows: Sequence[Row]) -> list[Row]:
    """The rows, those marked that cannot be told from the fastest; with the reference all that lies between the two."""
    ranked = [row for row in rows if row.ranked]
    best = min(ranked, key=lambda row: row.pace or 0.0, default=None)
    if best is None:
        return list(rows)
    doubtful = max((row.pace or 0.0 for row in ranked if row.may_equal(best)), default=0.0)
    return [replace(row, fastest=row.ranked and (row.overlaps(best) or (row.pace or 0.0) <= doubtful)) for row in rows]


def comparable(pairs: Sequence[tuple[Row, CaseRuns]]) -> list[tuple[Row, CaseRuns]]:
    """The rows of a comparison; those that do not have what is compared may not win."""
    return [(replace(row, ranked=row.ranked and bool(_processes(run, pairs))), run) for row, run in pairs]


def _processes(run: CaseRuns, pairs: Sequence[tuple[Row, CaseRuns]]) -> list[Sequence[float]]:
    """What is compared of a run: latencies, or seconds per call of each window where nobody measured latency."""
    if any(other.processes for _, other in pairs):
        return run.processes
    return [[1 / rate for rate in rates if rate > 0] for rates in run.windows]


def _against(row: Row, reference: Row, processes: dict[str, list[Sequence[float]]], paired: bool) -> Row:
    if row.id == reference.id:
        return replace(row, reference=reference.name, is_reference=True, speedup=1.0)
    base, own = processes[reference.id], processes[row.id]
    found = compare(base, own, paired=paired and len(base) == len(own)) if row.ranked else None
    if found is None or found.speedup is None:
        return replace(row, reference=reference.name)
    low, high = ends(found.speedup_interval)
    row = replace(
        row,
        reference=reference.name,
        speedup=found.speedup,
        speedup_low=low,
        speedup_high=high,
        waves=bool(found.resemblance),
        other_card=bool(row.card and reference.card and row.card != reference.card),
    )
    return replace(row, warnings=(*row.warnings, *map(note, of_comparison(row))))


def of_comparison(row: Row) -> tuple[Warning, ...]:
    """The warnings that a row has of being compared with its reference."""
    found = ((row.waves, in_waves()), (row.other_card, on_other_card()))
    return tuple(warning for true, warning in found if true)


def note(warning: Warning) -> str:
    """A warning as it stands beneath a table: what, and what to do about it."""
    return f"{warning.message} {warning.advice}".strip()


def _place(row: Row) -> tuple[str, bool, bool, bool, float]:
    """Order within a comparison and device: reference, ranked rows by speed, wrong ones by speed, what did not run."""
    return row.device, not row.is_reference, not row.ranked, not row.ok, math.inf if row.pace is None else row.pace
