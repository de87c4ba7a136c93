"""Records as a document: a table for each model and machine, notes beneath, the verdict last.

A metric is a field of ``rows.Row`` and a line in :data:`COLUMNS`. Numbers become text through ``units`` alone, and
names and reasons, which may come from anywhere, through ``plain``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from inferlens.analysis.interference.samples import each_run
from inferlens.record.record import Record
from inferlens.units import (
    ABSENT,
    bare_seconds,
    error_size,
    half_width,
    listing,
    mebibytes,
    millijoules,
    milliseconds,
    plural,
    rate,
    ratio,
    ratio_range,
    with_half_width,
)
from inferlens.views.plain import plain
from inferlens.views.rows import Row, by, rows
from inferlens.views.table import Column, Document, Line, Notes, Table, text
from inferlens.views.verdict import verdict

SCHEMA = "inferlens.table/1"
FASTEST = "★"
EACH_RUN = ": --runs all shows each"

# Key, title, unit, how it is written, what stays first.
COLUMNS = (
    Column("precision", "precision", keep=1, numeric=False, bars="beside"),
    Column("batch", "batch", "", text, 6, bars="beside"),
    Column("mean", "mean", "ms", milliseconds, 10, better="lower"),
    Column("median", "median", "ms", milliseconds, 0, better="lower", chart="median latency (ms)", bars="drawn"),
    Column("", "±", "95 %", lambda row: half_width(row.median, row.median_low, row.median_high), 3, bars="beside"),
    Column("p95", "p95", "ms", milliseconds, 7, better="lower"),
    Column("p99", "p99", "ms", milliseconds, 11, better="lower"),
    Column("gpu_time", "GPU time", "ms", milliseconds, 9, better="lower"),
    Column("", "enqueue", "ms", lambda row: milliseconds(row.enqueue if row.io == "host" else None), 3, better="lower"),
    Column("h2d", "H2D", "ms", milliseconds, 3, better="lower"),
    Column("compute", "compute", "ms", milliseconds, 3, better="lower"),
    Column("d2h", "D2H", "ms", milliseconds, 3, better="lower"),
    Column("iterations_per_second", "iterations", "per s", rate, 8, better="higher"),
    Column(
        "items_per_second",
        "items",
        "per s",
        rate,
        5,
        better="higher",
        chart="throughput (items per second)",
        bars="drawn",
    ),
    Column("", "in flight", "", lambda row: _in_flight(row), 5),
    Column("", "energy", "mJ per item", lambda row: _energy(row), 9, better="lower"),
    Column("bound", "bound by", "", text, 12, numeric=False),
    Column("", "speed-up", "", lambda row: _outcome(row), 0, better="higher", bars="beside"),
    Column("", "interval", "95 %", lambda row: ratio_range(row.speedup_low, row.speedup_high), 14),
    Column("", "error", "rel. L2", lambda row: _error(row), 4, better="lower"),
    Column("", "build", "s", lambda row: bare_seconds(row.build) + (" cached" if row.cached else ""), 12),
    Column("host_peak", "memory", "host MiB", mebibytes, 13, better="lower"),
    Column("device_peak", "memory", "GPU MiB", mebibytes, 13, better="lower"),
)


def document(records: Sequence[Record], reference: str | None = None, *, every_run: bool = False) -> Document:
    """What there is to show of records.

    Args:
        records: in any order; of each case the latest run counts.
        every_run: whether each run is shown, in tables of its own, the oldest first.
        reference: words that name the row others are compared with; ``None`` is the usual one.

    Raises:
        InferlensError: if ``reference`` names no row, or more than one.
    """
    shown = _run_by_run(records, reference) if every_run else rows(records, reference)
    again = measured_again([(row.model, 1 if row.run else row.runs) for row in shown], EACH_RUN)
    return Document(
        blocks=lambda: [*_tables(shown), *again, *verdict(shown)] if shown else ["There are no records to show."],
        data=lambda: {"schema": SCHEMA, "rows": shown, "verdict": verdict(shown)},
        csv=lambda: _csv(shown),
        title=f"{shown[0].model} – Inferlens" if shown else "Inferlens",
    )


def _run_by_run(records: Sequence[Record], reference: str | None) -> list[Row]:
    parts = each_run(records)
    return [msgspec.structs.replace(row, run=part[0].created) for part in parts for row in rows(part, reference)]


def measured_again(runs: Sequence[tuple[str, int]], hint: str = "") -> list[str]:
    """That of several runs the newest is shown, if there are any; ``runs``: each case's model, and how many of it."""
    counts = [count for _, count in runs]
    several = sum(count > 1 for count in counts)
    if not several:
        return []
    if several < len(counts) or len({model for model, _ in runs}) > 1:
        what = f"{several:,} of {plural(len(counts), 'case')} were measured several times"
        return [f"{what}; the newest run of each is shown{hint}."]
    often = f"{max(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    return [f"{plain(runs[0][0])} was measured {often} times; the newest run is shown{hint}."]


def headline(table: Sequence[Row]) -> str:
    """Model, device and inputs of a table."""
    ran = [row for row in table if row.ok] or table
    devices = listing(list(dict.fromkeys(row.device_name for row in ran)))
    inputs = ran[0].inputs_any_batch if len({row.batch for row in table}) > 1 else ran[0].inputs
    prepared = {row.prepared for row in table}
    sizes = f"prepared for {min(prepared)}" if len(prepared) == 1 and any(prepared) else ""
    when = f"run of {ran[0].run[:16].replace('T', ' ')}" if ran[0].run else ""
    return " · ".join(plain(part) for part in (ran[0].model, devices, inputs, sizes, when) if part)


def _tables(shown: Sequence[Row]) -> Iterator[Table]:
    for table in by(shown, "table"):
        notes, lines = Notes(), []
        for row, after in zip(table, [*table[1:], table[-1]], strict=True):
            words = row.name.replace(f"{row.backend} {row.precision}", row.backend, 1)
            marks = notes.marks(plain(str(note)) for note in row.notes)
            name = f"{plain(words)}{marks}{f' {FASTEST}' if row.fastest else ''}"
            style = "dim" if not row.ok else "red" if row.agrees is False else "bold green" if row.fastest else ""
            lines.append(Line.of(name, COLUMNS, row, style=style, ends=row.comparison != after.comparison))
        yield Table(headline(table), "backend", COLUMNS, lines, notes=notes.numbered(), fold=True)


def _csv(shown: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """Every field of every row, in their order."""
    fields = msgspec.structs.fields(Row)
    return [field.encode_name for field in fields], [[getattr(row, field.name) for field in fields] for row in shown]


def _in_flight(row: Row) -> str:
    """Calls in flight where there was a choice: on a CPU one is the rule."""
    return ABSENT if row.in_flight is None or (row.in_flight == 1 and row.device == "cpu") else str(row.in_flight)


def _energy(row: Row) -> str:
    """With how far it may be off; the bounds contain what the sensor does not tell."""
    return with_half_width(millijoules(row.energy), row.energy, row.energy_low, row.energy_high)


def _outcome(row: Row) -> str:
    """The speed-up, or the word for why there is none."""
    if not row.ok:
        return row.status
    if row.agrees is False:
        return "wrong"
    return "reference" if row.is_reference else ratio(row.speedup)


def _error(row: Row) -> str:
    """The error of the outputs, or that it is not known."""
    if not row.ok:
        return ABSENT
    return "unchecked" if row.agrees is None else error_size(row.error)
