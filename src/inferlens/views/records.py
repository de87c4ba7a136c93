"""Documents of records: the answer, a table for each model and machine, notes, and commands to go on.

A metric is a field of ``rows.Row`` and a line in :data:`COLUMNS`. Numbers become text through ``units`` alone, and
names and reasons, which may come from anywhere, through ``plain``.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from textwrap import shorten
from typing import Any

from msgspec import structs

from inferlens.analysis.interference import mean_load
from inferlens.analysis.notes import LEVELS, OUTCOME_LEVELS, Note
from inferlens.analysis.samples import group_by, split_runs
from inferlens.record.display import fields_by_key
from inferlens.record.record import AGREEMENT, Record
from inferlens.spec.case import bare, short_name
from inferlens.spec.plan import unknown
from inferlens.units import (
    ABSENT,
    bare_seconds,
    drop,
    duration,
    error_size,
    half_width,
    latency_cell,
    listing,
    mebibytes,
    millijoules,
    milliseconds,
    percent,
    plural,
    rate,
    ratio,
    ratio_range,
    ratio_spread,
    with_half_width,
)
from inferlens.views.answer import DOUBTS, accuracy_score, answers, doubts
from inferlens.views.renderers import terminal
from inferlens.views.rows import (
    Row,
    command_seconds,
    group_rows,
    matches_words,
    row_names,
    rows,
    runs_by_row,
    sizes_text,
    varying_sizes,
)
from inferlens.views.table import (
    SCREEN,
    Column,
    ColumnSet,
    Document,
    Line,
    Screen,
    Table,
    more_rows_note,
    plain,
    select_columns,
    text,
)

RECORDS_SCHEMA = "inferlens.table/1"
RUNS_HINT = ": --runs all shows each"
LEAST_HEIGHT = 5  # lines of a table: title, answer, heading, one row and a blank line
LEAST_ROWS = 4  # rows of a single comparison; several comparisons have at least two each
MOST_NOTES = 2
MAX_FAILURES = 4  # lines about rows that are left out
MAX_REASON = 160  # characters; messages of libraries go on with how the error arose
MEASURED_ONCE = "measured once"
SLOW_BUILD = 10.0  # seconds: rows of slower builds say how long they took
NOTES_SCHEMA = "inferlens.warnings/1"
_LEVEL_PHRASES = {"changes": "changing the answer", "weakens": "weakening it", "know": "good to know"}
_NAMES_WIDTH = 36  # columns
NOTE_FIELDS = ("code", "level", "message", "hint")
_WORST = ("wrong-outputs", "state-lost", "did-not-run")
_NOTE_COLUMNS = [Column("note", "", numeric=False, fold=True)]


def _in_flight(row: Row) -> str:
    """Return calls in flight where there was a choice."""
    return ABSENT if row.in_flight is None or (row.in_flight == 1 and row.device == "cpu") else str(row.in_flight)


def _energy(row: Row) -> str:
    """Return the energy with its half-width, which includes the sensor's uncertainty."""
    return with_half_width(millijoules(row.energy), row.energy, row.energy_low, row.energy_high)


def _speedup(row: Row) -> str:
    if row.is_reference:
        return "reference"
    return ratio(row.speedup) + (ratio_spread(row.speedup, row.speedup_low, row.speedup_high) if row.sure else "")


def remark(row: Row, *, builds: bool = True) -> str:
    """Return why a row did not run, what makes it doubtful, or its build time."""
    if not row.ok:
        why = next(note.message for note in row.notes if note.code in OUTCOME_LEVELS)
        return plain(f"{why} Try: {row.hint}" if row.hint else why)
    words = [note.message for note in row.notes if note.code == "plain-way"]
    words += [word for word in doubts(row) if word != row.outputs]
    if row.agrees is False:
        words = [plain(row.agreement_reason)]
    if row.rounds and row.processes == 1:
        words.append(MEASURED_ONCE)
    if builds and not words and row.build is not None and row.build >= SLOW_BUILD and not row.cached:
        words.append(f"{duration(row.build)} to build")
    return next(iter(words), "")


COLUMNS = ColumnSet((
    Column("precision", "precision", keep=0, numeric=False),
    Column("batch", "batch", write=text, keep=0),
    Column("median", "latency", "ms", write=latency_cell, keep=0, chart="median latency (ms)", bars=True),
    Column("half_width", "±", "95 %", keep=7, wide=True,
           write_row=lambda row: half_width(row.median, row.median_low, row.median_high)),
    Column("mean", "mean", "ms", write=latency_cell, keep=10, wide=True),
    Column("p95", "p95", "ms", write=latency_cell, keep=5),
    Column("p99", "p99", "ms", write=latency_cell, keep=11, wide=True),
    Column("gpu_time", "GPU time", "ms", write=milliseconds, keep=9, wide=True),
    Column("enqueue", "enqueue", "ms", keep=9, wide=True,
           write_row=lambda row: milliseconds(row.enqueue if row.io == "host" else None)),
    Column("h2d", "H2D", "ms", write=milliseconds, keep=8, wide=True),
    Column("compute", "compute", "ms", write=milliseconds, keep=8, wide=True),
    Column("d2h", "D2H", "ms", write=milliseconds, keep=8, wide=True),
    Column("iterations_per_second", "calls", "per s", write=rate, keep=8, wide=True),
    Column("items_per_second", "items/s", write=rate, keep=4, chart="throughput (items per second)", bars=True),
    Column("in_flight", "in flight", write_row=_in_flight, keep=9, wide=True),
    Column("energy", "energy", "mJ per item", write_row=_energy, keep=9, wide=True),
    Column("bound", "bound by", write=text, keep=12, numeric=False, wide=True),
    Column("speedup", "speed-up", write_row=_speedup, keep=1, numeric=False),
    Column("interval", "interval", "95 %", keep=14, wide=True,
           write_row=lambda row: ratio_range(row.speedup_low, row.speedup_high)),
    Column("accuracy", "accuracy", write_row=accuracy_score, keep=1, wide=True),
    Column("drop", "drop", write_row=lambda row: drop(row.drop, row.drop_low, row.drop_high), keep=1, wide=True),
    Column("top5", "top-5", write=lambda value: ABSENT if value is None else percent(value), keep=12, wide=True),
    Column("outputs", "outputs", write_row=lambda row: row.outputs if row.ok else row.status, keep=2, numeric=False),
    Column("error", "error", "rel. L2", keep=10, wide=True,
           write_row=lambda row: error_size(row.error) if row.ok else ABSENT),
    Column("build", "build", "s", keep=12, wide=True,
           write_row=lambda row: bare_seconds(row.build) + " cached" * row.cached),
    Column("first_inference", "first call", "ms", write=milliseconds, keep=12, wide=True),
    Column("host_peak", "memory", "host MiB", write=mebibytes, keep=13, wide=True),
    Column("device_peak", "memory", "GPU MiB", write=mebibytes, keep=13, wide=True),
    Column("processes", "processes", write=text, keep=15, wide=True),
    Column("samples", "samples", write=text, keep=15, wide=True),
    Column("remark", "", write_row=remark, keep=3, numeric=False, fold=True),
))  # fmt: skip


def records_document(
    records: Sequence[Record],
    reference: str | None = None,
    *,
    where: str | Sequence[str] = "",
    top: int | None = None,
    all_runs: bool = False,
    output: str = "",
) -> Document:
    """Return the document of records; :func:`inferlens.views.rows.rows` describes ``reference``.

    Args:
        where: the folders of the records, for the next commands.
        top: rows of each comparison that a screen shows; ``None``: as many as fit.
        all_runs: whether each run has its own tables, the oldest first.
        output: the ``--output`` of the run, for commands that measure more; empty for the usual folder.
    """
    where = shlex.join(filter(None, [where] if isinstance(where, str) else where))
    shown = _rows_by_run(records, reference) if all_runs else rows(records, reference)
    if output:
        option = f" --output {shlex.quote(output)}"
        shown = [
            structs.replace(row, profile=row.profile + option, hint=row.hint + option * (row.standing == "likeliest"))
            for row in shown
        ]

    def tries(screen: Screen) -> Iterator[list[Table | str]]:
        if top is not None:
            yield record_blocks(shown, where, top)
            return
        sizes, tables = list(map(len, group_rows(shown, "comparison"))), len(group_rows(shown, "table"))
        least = min(max(sizes), LEAST_ROWS if len(sizes) == 1 else 2)
        fewer = range(max(sizes) - 1, least - 1, -1)
        for brief, limit in [*product((False, True), [max(sizes)]), *product((False, True), fewer)]:
            if sum(min(limit, size) for size in sizes) + LEAST_HEIGHT * tables <= screen.lines:
                yield record_blocks(shown, where, limit, brief=brief)
        lines = [answer.brief for answer in answers(shown, full_names=True)]
        for limit in range(min(len(lines), screen.lines), 0, -1):
            yield _first_answers(shown, lines, where, limit)

    if not shown:
        nothing = {"schema": RECORDS_SCHEMA, "rows": [], "verdict": []}
        return Document(lambda: ["There are no records to show."], lambda: nothing, list, row_fields(shown))
    return Document(
        blocks=lambda: record_blocks(shown, where),
        data=lambda: {
            "schema": RECORDS_SCHEMA,
            "rows": shown,
            "verdict": [str(answer) for answer in answers(shown)],
            "machine_load": mean_load(row.machine_load for row in shown),
        },
        rows=lambda: map(row_values, shown),
        fields=row_fields(shown),
        title=f"{shown[0].model} – Inferlens",
        tries=None if all_runs else tries,
    )


def check_columns(columns: str | None) -> None:
    """Refuse unknown names of columns before anything is measured. Only records can say what "vs" refers to."""
    names = [name for name in (columns or "").split(",") if not name.strip().startswith("vs")]
    select_columns([Table("", "", COLUMNS, [])], ",".join(names))


def _rows_by_run(records: Sequence[Record], reference: str | None) -> list[Row]:
    """Return the rows of each run; a run without the ``reference`` has its usual one."""
    result, matched = list[Row](), False
    for run in split_runs(records):
        shown = rows(run)
        if reference and any(matches_words(row, reference) for row in shown):
            shown, matched = rows(run, reference), True
        result += [structs.replace(row, run=run[0].created) for row in shown]
    if reference and not matched:
        raise unknown(reference, [row.label for row in result])
    return result


def rerun_notes(counts: Sequence[int], hint: str = "") -> list[str]:
    """Say that the newest of several runs is shown; ``counts`` are the runs of each case."""
    repeated = sum(count > 1 for count in counts)
    return [f"There are several runs of {plural(repeated, 'case')}; the newest is shown{hint}."] if repeated else []


def headline(table: Sequence[Row]) -> str:
    """Return what the rows of a table share: model, inputs, precision, machine and number of ways."""
    shown = [row for row in table if row.ok] or table
    threads = {row.cpus for row in shown if row.device == "cpu" and row.threads is None} - {None}
    threads_text = "".join(f", {plural(count, 'thread')}" for count in threads if count and len(threads) == 1)
    devices = dict.fromkeys(row.device_name + threads_text * (row.device == "cpu") for row in shown)
    prepared, precisions = {row.prepared for row in table}, {row.precision for row in table}
    rounds = table[0].rounds if len(group_rows(table, "comparison")) == 1 else 0
    seconds = command_seconds(table)
    counts = [plural(len({row.name for row in table}), "way")]
    counts += [plural(rounds, "round")] if rounds else []
    counts += [] if seconds is None else [duration(seconds)]
    words = [
        bare(shown[0].model),
        shown[0].inputs_without(varying_sizes(table)).replace(":float32", ""),
        f"prepared for {min(prepared)}" if len(prepared) == 1 and any(prepared) else "",
        min(precisions) if len(precisions) == 1 else "",
        " and ".join(devices),
        f"run of {shown[0].run[:16].replace('T', ' ')}" if shown[0].run else "",
        ", ".join(counts),
    ]
    return " · ".join(plain(word) for word in words if word)


def record_blocks(
    shown: Sequence[Row], where: str | None, top: int | None = None, *, brief: bool = False
) -> list[Table | str]:
    """Return a table for each model and machine, its answers above it, and what to do next.

    ``brief`` omits what to do next, and shows one note of each table.
    """
    tables = [records_table(table, where, top, brief=brief) for table in group_rows(shown, "table")]
    again = rerun_notes([1 if row.run else row.runs for row in shown], RUNS_HINT)
    if brief:
        return [*(replace(table, sentences=()) for table in tables), *again]
    return [*tables, *again, *_next_commands(shown, where)]


def _first_answers(shown: Sequence[Row], lines: Sequence[str], where: str, limit: int) -> list[Table | str]:
    """Return the first answers without tables, and how to see the rest."""
    more = [f"{len(lines) - limit} more"] * (limit < len(lines)) + [plural(len(group_rows(shown, "table")), "table")]
    rest = f"{listing(more)}: inferlens show {where or 'RESULTS'} --top {LEAST_ROWS}"
    busy = mean_load(row.machine_load for row in shown).sentence
    return [*lines[:limit], *filter(None, [busy]), rest, *_next_commands(shown, where)]


def records_table(
    table: Sequence[Row],
    where: str | None,
    top: int | None = None,
    columns: Sequence[Column] = COLUMNS,
    *,
    brief: bool = False,
) -> Table:
    """Return one model on one machine; ``where`` is the folder of its records, ``top`` limits the rows."""
    comparisons = group_rows(table, "comparison")
    columns = [size for column in columns for size in (_adapt_column(column, table), *_size_columns(column, table))]
    lines, shown = [], list[Row]()
    for comparison in comparisons:
        first = _shown_rows(comparison, top)
        shown += first
        for row in first:
            style = "dim" if not row.ok else "red" if row.agrees is False else "bold green" if row.fastest else ""
            number = "" if row.place is None or (row.is_reference and row.place != 1) else str(row.place)
            ends = row is first[-1] and comparison is not comparisons[-1] and len(first) > 1
            lines.append(Line.from_row(row.way, columns, row, indent=f"{number:>2} ", style=style, ends=ends))
    hidden = [row for row in table if row not in shown]
    notes = table_notes(table, where, shown)[: (1 if hidden else 2) if brief else None]
    notes = [*more_rows_note(len(hidden), max(map(len, comparisons))), *_failure_notes(hidden, shown), *notes]
    return Table(
        headline(table), "   way", columns, lines, notes=notes, answer=_answer_lines(table),
        sentences=growth(comparisons), fold=True,
    )  # fmt: skip


def _failure_notes(hidden: Sequence[Row], shown: Sequence[Row]) -> list[str]:
    """Return a line on the failures of each precision or backend without shown rows, and of each other hidden way."""
    precisions, libraries = {row.precision for row in shown}, {row.library for row in shown}

    def name(row: Row) -> str:
        library = plain(row.name) if row.library in libraries else row.library
        return library if row.precision in precisions else row.precision

    groups = group_by(hidden, name).items()
    lines = [f"{name}: {failures}" for name, rows in groups if (failures := _failures_text(rows))]
    most = MAX_FAILURES if len(lines) <= MAX_FAILURES else MAX_FAILURES - 1
    return [*lines[:most], *([f"{plural(len(lines) - most, 'more way')} did not run right."] if lines[most:] else [])]


def _failures_text(rows: Sequence[Row]) -> str:
    """Return how many rows did not run or are wrong, and why; empty if none."""
    failures = [row for row in rows if not row.ok or row.agrees is False]
    parts = []
    for word, alike in group_by(failures, lambda row: row.outputs if row.ok else row.status).items():
        noise = any(note.code == "random-calibration" for row in alike for note in row.notes)
        reason = shorten(plain(alike[0].reason or alike[0].agreement_reason), MAX_REASON, placeholder=" …")
        why = ", calibrated with noise" if noise else f": {reason}"
        parts.append(f"{word}{f' in {len(alike)} of {len(rows)}' * (len(rows) > 1)}{why}".rstrip("."))
    return "; ".join(parts) + "." * bool(parts)


def _answer_lines(table: Sequence[Row]) -> list[str]:
    """Return the answers of a table, and the command that decides the first open one."""
    lines = answers(table)
    if len(lines) == 1:
        return lines[0].lines
    decide = [f"To decide {line.where}: {line.decide}" for line in lines if line.decide]
    first = (line.lines[0] if len(line.lines[0]) <= SCREEN.width else line.main for line in lines)
    return [*first, *decide[:1]]


def _shown_rows(rows: Sequence[Row], top: int | None) -> list[Row]:
    """Return the first rows and the reference."""
    if top is None or len(rows) <= top:
        return list(rows)
    reference = next((row for row in rows if row.is_reference), rows[0])
    first = list(rows[:top])
    return first if reference in first or top == 1 else [*first[:-1], reference]


def _size_columns(column: Column, table: Sequence[Row]) -> list[Column]:
    """Return columns for sizes in which rows differ."""
    names = varying_sizes(table) if column.key == "batch" else []
    size = partial(replace, column, key="dimensions", identifies=True)
    writers = {name: lambda sizes, name=name: text(sizes.get(name)) for name in names if name != column.key}
    return [size(title=name, write=write) for name, write in writers.items()]


def _adapt_column(column: Column, table: Sequence[Row]) -> Column:
    """Adapt a column to the table. Values that all rows share stand in the headline."""
    if column.key in ("precision", "batch"):
        return replace(column, wide=len({getattr(row, column.key) for row in table}) == 1, identifies=True)
    metrics = {row.metric for row in table if row.metric}
    if column.key == "accuracy":
        return replace(column, title=min(metrics) if len(metrics) == 1 else "accuracy", wide=not metrics)
    if column.key == "drop":
        return replace(column, wide=all(row.drop is None or row.metric == AGREEMENT for row in table))
    if column.key == "speedup":
        references = {row.backend for row in table if row.is_reference and not row.options}
        title = f"vs {min(references)}" if len(references) == 1 else "speed-up"
        return replace(column, title=title, wide=all(row.is_reference for row in table))
    return column


def table_notes(table: Sequence[Row], where: str | None, shown: Sequence[Row] = ()) -> list[str]:
    """Return how busy the machine was, what the marks of ``shown`` rows mean, and the most important other notes.

    The last line is the command that shows the rest, if ``where`` is known.
    """
    load = mean_load(row.machine_load for row in table)
    silent = {*OUTCOME_LEVELS, *["busy", "disturbed"] * load.busy}
    notes = {note.code: note for row in reversed(table) for note in row.notes if note.code not in silent}
    noted = group_by(((note.code, row) for row in table for note in row.notes), lambda pair: pair[0])
    rows_by_code = {code: list({row.id: row for _, row in pairs}.values()) for code, pairs in noted.items()}
    marks = {mark for row in shown for mark in (row.outputs, remark(row, builds=False))}
    codes = [code for code in notes if DOUBTS.get(code) in marks]
    codes += [code for code in notes if code not in DOUBTS and notes[code].level != "know"]
    codes.sort(key=lambda code: (notes[code].level != "changes", code not in DOUBTS, -len(rows_by_code[code])))
    lines = []
    for code in codes[:MOST_NOTES]:
        rows, label = rows_by_code[code], ""
        if code in DOUBTS:
            label = f"{DOUBTS[code]}: "
        elif len(rows) < len(table):
            label = f"{row_names(table)[rows[0].id] if len(rows) == 1 else f'{len(rows)} of {len(table)} rows'}: "
        lines.append(f"{label}{notes[code].message} {notes[code].hint}".rstrip())
    if any(row.separate_rate for row in shown):
        lines.append("items/s was measured in separate processes, before the rounds.")
    if MEASURED_ONCE in marks:
        lines.append(f"{MEASURED_ONCE}: too slow to be the fastest, so it was not measured again.")
    more = [code for code in notes if notes[code].level != "know" and code not in codes[:MOST_NOTES]]
    if more and where is not None:
        lines.append(f"More notes: inferlens show {where or 'RESULTS'} --view notes")
    return [load.sentence, *lines] if load.busy else lines


def _next_commands(shown: Sequence[Row], where: str | None) -> list[str]:
    """Return commands to go on with: the log of what failed, and what the fastest spends its time on."""
    if not where:
        return []
    failed = next((row for row in shown if not row.ok and row.status != "unsupported"), None)
    lines = [f"Why did it fail? inferlens show {where} --log '{plain(failed.label)}'"] if failed else []
    best = next((row for row in shown if row.fastest), None)
    if best:
        lines.append(f"Where does the time go? {best.profile}")
        lines.append(f"A chart: inferlens show {where} --plot chart.svg")
    return lines


def row_fields(shown: Sequence[Row]) -> list[str]:
    """Return the names of the fields of rows in CSV, with a field for each size."""
    # A note says how busy the machine was, each size has its own field, and the inputs say the same as the form.
    left_out = ("machine_load", "sizes", "form")
    *fields, notes = (name for name in Row.__struct_encode_fields__ if name not in left_out)
    return [*fields, *dict.fromkeys(name for row in shown for name in row.sizes), notes]


def row_values(row: Row) -> dict[str, Any]:
    """Return the values of a row by the names of its fields; notes become texts."""
    return {**fields_by_key(row), **row.sizes, "notes": list(map(str, row.notes))}


def growth(comparisons: Sequence[Sequence[Row]]) -> list[str]:
    """Say for each dimension how its sizes change what is fastest, at the largest sizes of the others."""
    dimensions, sentences = [comparison[0].dimensions for comparison in comparisons], []
    names = varying_sizes(row for comparison in comparisons for row in comparison)
    largest = {name: max(sizes.get(name) or 0 for sizes in dimensions) for name in names}
    for name in names:
        fixed = {other: size for other, size in largest.items() if other != name}
        alike = [comparison for comparison in comparisons if fixed.items() <= comparison[0].dimensions.items()]
        by_size = {size: rows for rows in alike if (size := rows[0].dimensions.get(name)) is not None}
        if 1 < len(by_size) == len(alike):
            sentence = _throughput_growth(by_size) if name == "batch" else _time_growth(name, by_size)
            where = f", at {sizes_text(alike[0][0], fixed)}" if fixed else ""
            sentences += [f"{sentence}{where}."] if sentence else []
    return sentences


def _throughput_growth(comparisons: Mapping[int, Sequence[Row]]) -> str:
    """Say up to which batch size the throughput grows; empty if it is not known."""
    best: dict[int, tuple[float, Row]] = {}
    for size, comparison in sorted(comparisons.items()):
        rates = [(row.items_per_second, row) for row in comparison if row.ranked and row.items_per_second]
        if not rates:
            return ""
        best[size] = max(rates, key=lambda pair: pair[0])
    highest = max(items_per_second for items_per_second, _ in best.values())
    enough = next(size for size in best if best[size][0] >= 0.95 * highest)
    grows = "still grows at" if enough == max(best) else "hardly grows after"
    items_per_second, row = best[enough]
    return f"Throughput {grows} batch {enough}: {rate(items_per_second)} items a second by {plain(row.way)}"


def _time_growth(name: str, comparisons: Mapping[int, Sequence[Row]]) -> str:
    """Say how the shortest time grows with a size, and where most steeply; empty if a time is missing."""
    fastest = ((size, row) for size, rows in comparisons.items() for row in rows if row.place == 1)
    times = {size: row.seconds_per_call for size, row in sorted(fastest) if row.seconds_per_call}
    if len(times) < len(comparisons):
        return ""
    steps = list(pairwise(times))
    low, high = steps[0][0], steps[-1][1]
    begin, end = max(steps, key=lambda step: math.log(times[step[1]] / times[step[0]], step[1] / step[0]))
    steepest = f", most steeply from {begin} to {end}" if len(steps) > 1 else ""
    factor = ratio(times[high] / times[low])
    return f"From {plain(name)} {low} to {high} ({ratio(high / low)}) the fastest takes {factor} the time{steepest}"


# Notes of records: as many as fit on a screen, or all case by case. A screen merges notes that differ in figures alone.


def notes_document(
    records: Sequence[Record],
    *,
    all_cases: bool = False,
    paths: str = "RESULTS",
    known_rows: Sequence[Row] | None = None,
) -> Document:
    """Return the notes of the latest run of each case: as many as a screen holds, or all, case by case.

    ``paths`` are the words of the command; ``known_rows`` saves computing the rows again.
    """
    shown = rows(records) if known_rows is None else known_rows

    def data() -> dict[str, Any]:
        runs, cases = runs_by_row(records), []
        for row in shown:
            run = runs[row.id, row.machine]
            cases.append({
                "model": row.model, "label": row.label, "digest": run.first.case.digest,
                "records": [record.id for record in run.records], "status": row.status, "warnings": row.notes,
            })  # fmt: skip
        return {"schema": NOTES_SCHEMA, "cases": cases}

    return Document(
        blocks=lambda: [_notes_head(shown), *_by_case(shown)],
        data=data,
        rows=lambda: (
            {"model": row.model, "case": row.label, **{name: getattr(note, name) for name in NOTE_FIELDS}}
            for row in shown
            for note in row.notes
        ),
        fields=("model", "case", *NOTE_FIELDS),
        title="Notes – Inferlens",
        tries=None if all_cases else lambda screen: [[_notes_head(shown), *_fit_notes(shown, paths, screen)]],
    )


def _notes_head(shown: Sequence[Row]) -> str:
    models = list(dict.fromkeys(plain(row.model) for row in shown))
    subject = models[0] if len(models) == 1 else plural(len(models), "model")
    counts: Counter[str] = Counter(note.level for row in shown for note in row.notes)
    counts_text = [f"{counts[level]:,} {words}" for level, words in _LEVEL_PHRASES.items() if counts[level]]
    return f"{subject}, {plural(len(shown), 'case')}. Notes: {listing(counts_text) or 'none'}."


def _fit_notes(shown: Sequence[Row], paths: str, screen: Screen) -> list[Table | str]:
    """Return as many notes as a screen holds, and the number of the rest."""
    groups, (height, width) = _group_notes(shown), screen
    groups = [(structs.replace(note, hint=note.hint.replace("RESULTS", paths)), names) for note, names in groups]
    for count in range(len(groups), 0, -1):
        table = _by_level(groups[:count])
        hidden = len(groups) - count
        more = [f"{hidden} more: inferlens show {paths} --view notes --all"] if hidden else []
        if count <= height and terminal.height([_notes_head(shown), table, *more], width) < height:
            return [table, *more]
    return []


def _by_level(groups: Sequence[tuple[Note, str]]) -> Table:
    lines: list[Line] = []
    for level, words in LEVELS.items():
        level_lines = [line for note, names in groups if note.level == level for line in _note_lines(note, names)]
        lines += [Line(words.upper(), ("",), style="bold"), *level_lines] if level_lines else []
    return Table("", "", _NOTE_COLUMNS, lines, fold=True)


def _by_case(shown: Sequence[Row]) -> list[Table]:
    tables = []
    for row in (row for row in shown if row.notes):
        lines = [line for note in row.notes for line in _note_lines(note, LEVELS[note.level])]
        tables.append(Table(f"{row.model} {row.label}", "", _NOTE_COLUMNS, lines))
    return tables


def _note_lines(note: Note, first: str) -> list[Line]:
    hint = [Line("", (f"→ {note.hint}",), style="dim")] if note.hint else []
    return [Line(first, (note.message,), indent="  "), *hint]


def _group_notes(shown: Sequence[Row]) -> list[tuple[Note, str]]:
    """Return the notes with the names of their cases, by level and number of cases.

    Notes that differ only in figures are merged, with the figures of the first case.
    """
    pairs = ((note, name) for row, name in zip(shown, _case_labels(shown), strict=True) for note in row.notes)
    kinds = group_by(pairs, lambda pair: (pair[0].level, pair[0].code, re.sub(r"\d[\d.,]*", "", pair[0].message)))
    groups = sorted(kinds.values(), key=len, reverse=True)
    merged = [
        (group[0][0], _case_names(list(dict.fromkeys(name for _, name in group)), len(shown))) for group in groups
    ]
    order = list(LEVELS)
    return sorted(merged, key=lambda pair: (order.index(pair[0].level), pair[0].code not in _WORST))


def _case_names(names: Sequence[str], cases: int) -> str:
    """Return short lists of names, or the number of cases."""
    if len(names) == cases > 2:
        return f"all {cases} cases"
    if len(text := listing(names)) <= _NAMES_WIDTH or len(names) == 1:
        return text
    return f"{names[0]} and {len(names) - 1:,} more"


def _case_labels(shown: Sequence[Row]) -> list[str]:
    """Return the names of rows with the model and the sizes in which they differ."""
    several, sizes, names = len({row.model for row in shown}) > 1, varying_sizes(shown), row_names(shown)
    words = ([short_name(row.model) if several else "", names[row.id], sizes_text(row, sizes)] for row in shown)
    return [plain(" ".join(filter(None, texts))) for texts in words]
