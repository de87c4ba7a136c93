"""Documents of records: the answer, a table for each model and machine, notes, and commands to go on.

A metric is a field of ``rows.Row`` and a line in :data:`COLUMNS`. Numbers become text through ``units`` alone, and
names and reasons, which may come from anywhere, through ``plain``.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

from msgspec import structs

from inferlens.analysis.interference import mean_load
from inferlens.analysis.notes import LEVELS, OUTCOME_LEVELS, Note
from inferlens.analysis.samples import group_by, split_runs
from inferlens.record.display import fields_by_key
from inferlens.record.record import AGREEMENT, Record
from inferlens.spec.case import bare, short_name
from inferlens.units import (
    ABSENT,
    bare_seconds,
    drop,
    duration,
    error_size,
    half_width,
    latency,
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
    with_notes,
)
from inferlens.views.table import SCREEN, Column, Document, Line, Screen, Table, plain, select_columns, text

RECORDS_SCHEMA = "inferlens.table/1"
RUNS_HINT = ": --runs all shows each"
WIDTH = SCREEN.width  # of answers
LEAST_HEIGHT = 5  # of a table: its title, answer, heading, a row and the space between
LEAST_ROWS = 4  # of a single comparison, before what to do next
MOST_NOTES = 3
MOST_GROUPS = 4  # lines about rows that are left out
MEASURED_ONCE = "measured once"
SLOW_BUILD = 10.0  # seconds from which on a row says how long its build took

COLUMNS = (
    Column("precision", "precision", keep=0, numeric=False, bars="beside"),
    Column("batch", "batch", "", text, 0, bars="beside"),
    Column("median", "latency", "ms", latency_cell, 0, chart="median latency (ms)", bars="drawn"),
    Column("", "±", "95 %", lambda row: half_width(row.median, row.median_low, row.median_high), 7, wide=True),
    Column("mean", "mean", "ms", latency_cell, 10, wide=True),
    Column("p95", "p95", "ms", latency_cell, 5),
    Column("p99", "p99", "ms", latency_cell, 11, wide=True),
    Column("gpu_time", "GPU time", "ms", milliseconds, 9, wide=True),
    Column("", "enqueue", "ms", lambda row: milliseconds(row.enqueue if row.io == "host" else None), 9, wide=True),
    Column("h2d", "H2D", "ms", milliseconds, 8, wide=True),
    Column("compute", "compute", "ms", milliseconds, 8, wide=True),
    Column("d2h", "D2H", "ms", milliseconds, 8, wide=True),
    Column("iterations_per_second", "calls", "per s", rate, 8, wide=True),
    Column("items_per_second", "items/s", "", rate, 4, chart="throughput (items per second)", bars="drawn"),
    Column("", "in flight", "", lambda row: _in_flight(row), 9, wide=True),
    Column("", "energy", "mJ per item", lambda row: _energy(row), 9, wide=True),
    Column("bound", "bound by", "", text, 12, numeric=False, wide=True),
    Column("", "speed-up", "", lambda row: _speedup(row), 1, numeric=False, bars="beside"),
    Column("", "interval", "95 %", lambda row: ratio_range(row.speedup_low, row.speedup_high), 14, wide=True),
    Column("", "accuracy", "", accuracy_score, 1, wide=True),
    Column("", "drop", "", lambda row: drop(row.drop, row.drop_low, row.drop_high), 1, wide=True),
    Column("", "top-5", "", lambda row: percent(row.top5) if row.top5 is not None else ABSENT, 12, wide=True),
    Column("", "outputs", "", lambda row: row.outputs if row.ok else row.status, 2, numeric=False),
    Column("", "error", "rel. L2", lambda row: error_size(row.error) if row.ok else ABSENT, 10, wide=True),
    Column("", "build", "s", lambda row: bare_seconds(row.build) + (" cached" if row.cached else ""), 12, wide=True),
    Column("first_inference", "first call", "ms", milliseconds, 12, wide=True),
    Column("host_peak", "memory", "host MiB", mebibytes, 13, wide=True),
    Column("device_peak", "memory", "GPU MiB", mebibytes, 13, wide=True),
    Column("processes", "processes", "", text, 15, wide=True),
    Column("samples", "samples", "", text, 15, wide=True),
    Column("", "", "", lambda row: remark(row), 6, numeric=False, fold=True),
)  # fmt: skip


def records_document(
    records: Sequence[Record],
    reference: str | None = None,
    *,
    where: str | Sequence[str] = "",
    top: int | None = None,
    all_runs: bool = False,
    into: str = "",
) -> Document:
    """Return the document of records; ``reference`` is as of :func:`inferlens.views.rows.rows`.

    Args:
        where: the folders that they lie in, for the commands to go on with.
        top: rows of each comparison that a screen shows; ``None``: as many as fit.
        all_runs: whether each run is shown, in tables of its own, the oldest first.
        into: the ``--output`` of the run, for commands that measure more; empty for the usual one.
    """
    where = shlex.join(filter(None, [where] if isinstance(where, str) else where))
    shown, lacking = _rows_by_run(records, reference) if all_runs else (rows(records, reference, notes=False), [])
    if into:
        words = f" --output {shlex.quote(into)}"
        hints = [row.hint + words * (row.standing == "likeliest") for row in shown]
        shown = [
            structs.replace(row, profile=row.profile + words, hint=hint) for row, hint in zip(shown, hints, strict=True)
        ]
    many = not all_runs and top is None
    runs = {} if all_runs else runs_by_row(records)

    @cache
    def whole() -> list[Row]:
        return with_notes(shown, runs) if runs else shown

    def tries(screen: Screen) -> Iterator[list[Table | str]]:
        if not many or LEAST_HEIGHT * len(group_rows(shown, "table")) <= screen.lines:
            return _tries(whole(), where, top, screen)
        # Answers say nothing of the other rows.
        named = [row for row in shown if row.place == 1 or row.fastest or row.is_reference]
        first = {row.id: row for row in with_notes(named, runs)}
        return _answers_only([first.get(row.id, row) for row in shown], where, screen)

    if not shown:
        nothing = {"schema": RECORDS_SCHEMA, "rows": [], "verdict": []}
        return Document(lambda: ["There are no records to show."], lambda: nothing, list, row_fields(shown))
    return Document(
        blocks=lambda: [*record_blocks(whole(), where), *lacking],
        data=lambda: {
            "schema": RECORDS_SCHEMA,
            "rows": whole(),
            "verdict": [str(answer) for answer in answers(whole())],
            "machine_load": mean_load(row.machine_load for row in whole()),
        },
        rows=lambda: map(row_values, whole()),
        fields=row_fields(shown),
        title=f"{shown[0].model} – Inferlens",
        tries=None if all_runs else tries,
    )


def check_columns(columns: str | None) -> None:
    """Refuse names of no column before anything is measured."""
    names = [name for name in (columns or "").split(",") if not name.strip().startswith("vs")]  # which the records say
    select_columns([Table("", "", COLUMNS, [])], ",".join(names))


def _rows_by_run(records: Sequence[Record], reference: str | None) -> tuple[list[Row], list[str]]:
    """Return the rows of each run, and notes on runs without the ``reference``."""
    result, missing = [], []
    for part in split_runs(records):
        shown, begun = rows(part), part[0].created
        if reference and any(matches_words(row, reference) for row in shown):
            shown = rows(part, reference)
        elif reference:
            day = begun[:16].replace("T", " ")
            missing.append(f"The run of {day} has no '{reference}', and shows its own reference.")
        result += [structs.replace(row, run=begun) for row in shown]
    if len(missing) == len(split_runs(records)):
        rows(records, reference)  # refuses what no run has
    return result, missing


def rerun_notes(runs: Sequence[tuple[str, int]], hint: str = "") -> list[str]:
    """Say that the newest of several runs is shown; ``runs`` pairs each case's model with its number of runs."""
    counts = [count for _, count in runs]
    repeated = sum(count > 1 for count in counts)
    if not repeated:
        return []
    if repeated < len(counts) or len({model for model, _ in runs}) > 1:
        subject = f"{repeated:,} of {plural(len(counts), 'case')} were measured again"
        return [f"{subject}; their rows are of a newer run{hint}."]
    often = f"{max(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    return [f"{plain(runs[0][0])} was measured {often} times; the newest run is shown{hint}."]


def headline(table: Sequence[Row]) -> str:
    """Return what the rows of a table share: model, inputs, precision, machine and number of ways."""
    ran = [row for row in table if row.ok] or table
    usual = [row for row in ran if row.threads is None] or ran
    threads = sorted({row.cpus for row in usual if row.device == "cpu" and row.cpus})
    number = plural(threads[0], "thread") if len(threads) == 1 else f"{listing([*map(str, threads)])} threads"
    devices = [row.device_name + f", {number}" * (row.device == "cpu" and bool(threads)) for row in ran]
    prepared, precisions = {row.prepared for row in table}, {row.precision for row in table}
    words = [
        bare(ran[0].model),
        ran[0].inputs_without(varying_sizes(table)).replace(":float32", ""),
        f"prepared for {min(prepared)}" if len(prepared) == 1 and any(prepared) else "",
    ]
    words += [min(precisions) if len(precisions) == 1 else "", " and ".join(dict.fromkeys(devices))]
    words.append(f"run of {ran[0].run[:16].replace('T', ' ')}" if ran[0].run else "")
    held = table[0].rounds if len(group_rows(table, "comparison")) == 1 else 0
    counts = [plural(len({row.name for row in table}), "way"), *[plural(held, "round")] * (held > 0)]
    took = command_seconds(table)
    words.append(", ".join([*counts, *([] if took is None else [duration(took)])]))
    return " · ".join(plain(word) for word in words if word)


def _tries(shown: Sequence[Row], where: str, top: int | None, screen: Screen) -> Iterator[list[Table | str]]:
    """Yield what a screen may show: all rows, else fewer, else answers alone."""
    if top is not None:
        yield record_blocks(shown, where, top)
        return
    comparisons = group_rows(shown, "comparison")
    longest = max(map(len, comparisons))
    least = min(longest, LEAST_ROWS if len(comparisons) == 1 else 2)
    ran = max(sum(row.ok for row in comparison) for comparison in comparisons)
    every, enough, few = range(longest, max(ran, 1) - 1, -1), range(ran - 1, least - 1, -1), range(least - 1, 0, -1)
    tries = [(most, detail) for most in every for detail in (2, 1, 0)]
    tries += [(most, detail) for some in (enough, few) for detail in (2, 1) for most in some]
    yield from (record_blocks(shown, where, most, detail) for most, detail in tries if most < screen.lines)
    yield from _answers_only(shown, where, screen)


def record_blocks(
    shown: Sequence[Row], where: str | None, top: int | None = None, detail: int = 2
) -> list[Table | str]:
    """Return a table for each model and machine, its answers above it, and what to do next.

    With ``detail`` 1 the commands to go on with are left out, with 0 also sentences, and notes but the most important.
    """
    tables = [records_table(table, where, top, detail=detail) for table in group_rows(shown, "table")]
    again = rerun_notes([(row.model, 1 if row.run else row.runs) for row in shown], RUNS_HINT)
    return [*tables, *again, *_next_commands(shown, where, profile=detail > 1)]


def _answers_only(shown: Sequence[Row], where: str, screen: Screen) -> Iterator[list[Table | str]]:
    """Yield the answer of each comparison alone, and fewer of them."""
    lines = answers(shown, full_names=True)

    def first(count: int) -> list[Table | str]:
        left = len(lines) - count
        more = [*[f"{left} more"] * (left > 0), plural(len(group_rows(shown, "table")), "table")]
        rest = f"{listing(more)}: inferlens show {where or 'RESULTS'} --top {LEAST_ROWS}"
        busy = filter(None, [mean_load(row.machine_load for row in shown).sentence])
        return [*(line.brief for line in lines[:count]), *busy, rest, *_next_commands(shown, where)]

    return map(first, range(min(len(lines), screen.lines), 0, -1))


def records_table(
    table: Sequence[Row],
    where: str | None,
    top: int | None = None,
    columns: Sequence[Column] = COLUMNS,
    detail: int = 2,
) -> Table:
    """Return one model on one machine; ``where`` is the folder of its records, ``top`` limits the rows.

    ``detail`` is as of :func:`record_blocks`.
    """
    comparisons = group_rows(table, "comparison")
    several = len(comparisons) > 1
    columns = [size for column in columns for size in (_column(column, table), *_sizes(column, table))]
    lines, hidden, shown = [], list[Row](), list[Row]()
    for comparison in comparisons:
        first = _first_rows(comparison, top)
        hidden += [row for row in comparison if row not in first]
        shown += first
        for row in first:
            style = "dim" if not row.ok else "red" if row.agrees is False else "bold green" if row.fastest else ""
            number = "" if row.place is None or (row.is_reference and row.place != 1) else str(row.place)
            ends = several and row is first[-1] and comparison is not comparisons[-1] and len(first) > 1
            lines.append(Line.from_row(row.way, columns, row, indent=f"{number:>2} ", style=style, ends=ends))
    only = "Only the first row of each comparison is shown. " * (several and len(lines) == len(comparisons))
    count = f"{only}{plural(len(hidden), 'more row')}: --top {max(map(len, comparisons))}, or --format csv"
    more = [count, *_hidden_lines(hidden, shown)] if hidden else []
    return Table(
        headline(table), "   way", columns, lines,
        notes=[*more, *table_notes(table, where, shown)[: None if detail else 1]], answer=_table_answer(table),
        sentences=[*shortest_p95(comparisons), *growth(comparisons)] if detail else (), fold=True,
    )  # fmt: skip


def _hidden_lines(hidden: Sequence[Row], shown: Sequence[Row]) -> list[str]:
    """Return a line for each precision, or else backend, of which no row is shown, and what else did not run right."""
    precisions, libraries = {row.precision for row in shown}, {_library(row) for row in shown}
    groups: dict[str, list[Row]] = {}
    for row in hidden:
        library = plain(row.name) if _library(row) in libraries else _library(row)
        groups.setdefault(library if row.precision in precisions else row.precision, []).append(row)
    wrong = {name: sentences for name, rows in groups.items() if (sentences := _failures(rows))}
    most = MOST_GROUPS if len(wrong) <= MOST_GROUPS else MOST_GROUPS - 1
    others = [f"{plural(len(wrong) - most, 'more way')} did not run right"] if len(wrong) > most else []
    return [*(f"{name}: {item}" for name, item in [*wrong.items()][:most]), *others]


def _library(row: Row) -> str:
    return row.backend.partition(":")[0]


def _failures(rows: Sequence[Row]) -> str:
    """Return how many of some rows did not run or are wrong, and why; empty if none."""
    failures = (row for row in rows if not row.ok or row.agrees is False)
    groups = group_by(failures, lambda row: row.outputs if row.ok else row.status)
    parts = []
    for word, item in groups.items():
        noise = any(note.code == "random-calibration" for row in item for note in row.notes)
        why = ", calibrated with noise" if noise else f": {plain(item[0].reason or item[0].agreement_reason)}"
        parts.append(f"{word}{f' in {len(item)} of {len(rows)}' * (len(rows) > 1)}{why}")
    return "; ".join(part.rstrip(".") for part in parts) + "." * bool(parts)


def _table_answer(table: Sequence[Row]) -> list[str]:
    """Return the answers of a table, and the command that decides open ones."""
    lines = answers(table)
    if len(lines) == 1:
        return lines[0].fold(WIDTH)
    undecided = [line for line in lines if line.decide]
    which = f" (the first of {len(undecided)})" if len(undecided) > 1 else ""
    decide = [f"To decide {line.where}{which}: {line.decide}" for line in undecided[:1]]
    if which and (command := _bench_of_open(table)):
        decide = [f"To decide all {len(undecided)}: {command}"]
    return [*(line.fit(WIDTH) for line in lines), *decide]


def _bench_of_open(table: Sequence[Row]) -> str:
    """Return the command that measures all undecided ways longer; empty where these flags do not name them."""
    rows = [row for row in table if row.standing in ("likeliest", "open")]
    passed = shlex.split(next(row.hint for row in rows if row.standing == "likeliest"))
    special = {"--input", "--weights", "--calibration", "--keep", "--seed", "--metric", "--io"} & {*passed}
    uniform = len({(row.device, row.options, row.threads, row.io, row.call_mode) for row in rows}) == 1
    if passed[:2] != ["inferlens", "ab"] or special or not uniform or rows[0].options or rows[0].call_mode:
        return ""
    axes = {axis: dict.fromkeys(str(getattr(row, axis)) for row in rows) for axis in ("backend", "precision", "batch")}
    flags = {f"--{axis}": ",".join(values) for axis, values in axes.items()}
    kept = [flag for flag in ("--device", "--threads", "--output") if flag in passed]
    flags |= {flag: passed[passed.index(flag) + 1] for flag in kept}
    words = [word for flag in flags.items() for word in flag]
    return shlex.join(["inferlens", "bench", bare(rows[0].model), *words, "--thorough"])


def _first_rows(rows: Sequence[Row], top: int | None) -> list[Row]:
    """Return the first rows and the reference."""
    if top is None or len(rows) <= top:
        return list(rows)
    reference = next((row for row in rows if row.is_reference), rows[0])
    first = list(rows[:top])
    return first if reference in first or top == 1 else [*first[:-1], reference]


def _sizes(column: Column, table: Sequence[Row]) -> list[Column]:
    """Return columns for sizes in which rows differ."""
    names = varying_sizes(table) if column.key == "batch" else []
    size = partial(replace, column, key="dimensions", identifies=True)
    writers = {name: lambda sizes, name=name: text(sizes.get(name)) for name in names if name != column.key}
    return [size(title=name, write=write) for name, write in writers.items()]


def _column(column: Column, table: Sequence[Row]) -> Column:
    """Adapt a column to the table. Values that all rows share stand in the headline."""
    if column.key in ("precision", "batch"):
        return replace(column, wide=len({getattr(row, column.key) for row in table}) == 1, identifies=True)
    if column is COLUMNS[-1] and any(remark(row, builds=False) for row in table):
        return replace(column, keep=3)  # marks before p95, how long builds take after it
    metrics = {row.metric for row in table if row.metric}
    if column.title == "accuracy":
        return replace(column, title=min(metrics) if len(metrics) == 1 else "accuracy", wide=not metrics)
    if column.title == "drop":
        return replace(column, wide=all(row.drop is None or row.metric == AGREEMENT for row in table))
    if metrics and column in COLUMNS and column.key in ("p95", "items_per_second"):  # they make room
        return replace(column, wide=any(row.median is not None for row in table))
    if column.title == "speed-up":
        # Answers and its own row say the rest of it.
        references = {"reference" if row.options else row.backend for row in table if row.is_reference}
        title = f"vs {min(references)}" if len(references) == 1 else "speed-up"
        return replace(column, title=title, wide=all(row.is_reference for row in table))
    return column


def table_notes(table: Sequence[Row], where: str | None, shown: Sequence[Row] = ()) -> list[str]:
    """Return how busy the machine was, what the marks of ``shown`` rows mean, and the most important that no row says.

    Two lines at most after that of the machine; the last says how to see the rest, if there is a way.
    """
    load = mean_load(row.machine_load for row in table)
    notes = {note.code: note for row in reversed(table) for note in row.notes}
    silent = {*OUTCOME_LEVELS, *["busy", "disturbed"] * load.busy}
    codes = dict.fromkeys(note.code for row in table for note in row.notes if note.code not in silent)
    rows_by_code = {code: [row for row in table if code in {note.code for note in row.notes}] for code in codes}
    marks = {mark for row in shown for mark in (row.outputs, remark(row, builds=False))}
    marked = {code for code in codes if DOUBTS.get(code) in marks}
    shown_anyway = marked | {"disturbed"} | (codes.keys() - DOUBTS.keys())
    shown_codes = [code for code in codes if notes[code].level != "know" and code in shown_anyway]
    shown_codes.sort(key=lambda code: (notes[code].level != "changes", code not in DOUBTS, -len(rows_by_code[code])))
    notes_by_case: dict[str, str] = {}
    for code in shown_codes:
        code_rows, note = rows_by_code[code], notes[code]
        if code in marked:
            label = f"{DOUBTS[code]}: "
        elif len(code_rows) == len(table):
            label = ""
        else:
            few = f"{len(code_rows)} of {len(table)} rows"
            label = f"{row_names(table)[code_rows[0].id] if len(code_rows) == 1 else few}: "
        both = f"{label}{note.message} {note.hint}"
        notes_by_case.setdefault(label, both if len(both) <= WIDTH else f"{label}{note.message}")
    if any(row.separate_rate for row in shown):
        notes_by_case["rate"] = "items/s was measured in separate processes, before the rounds."
    if MEASURED_ONCE in marks:
        notes_by_case[MEASURED_ONCE] = f"{MEASURED_ONCE}: too slow to be the fastest, so it was not measured again."
    lines = list(notes_by_case.values())[:MOST_NOTES]
    hidden = len(codes.keys() - set(shown_codes[: len(lines)]))
    more = [f"{hidden} more"] if hidden and lines else []
    more += ["why outputs are wrong"] if any(row.ok and row.agrees is False for row in shown) else []
    if more and where is not None:
        text = f"{listing(more)}: inferlens show {where or 'RESULTS'} --view notes"
        if lines and len(lines[-1]) + len(text) + 3 <= WIDTH:
            lines[-1] += f" ({text})"
        else:
            lines[MOST_NOTES - 1 :] = [f"{text[0].upper()}{text[1:]}"]
    return [load.sentence, *lines] if load.busy else lines


def _next_commands(shown: Sequence[Row], where: str | None, *, profile: bool = True) -> list[str]:
    """Return commands to go on with: the log of what failed, and ``then`` what the fastest spends its time on."""
    if not where:
        return []
    failed = next((row for row in shown if not row.ok and row.status != "unsupported"), None)
    log = [f"Why did it fail? inferlens show {where} --log '{plain(failed.label)}'"] if failed else []
    best = next((row for row in shown if row.fastest), None)
    if best is None or not profile:
        return log
    lines = [*log, f"Where does the time go? {best.profile}"]
    more = [
        f"A chart: inferlens show {where} --plot chart.svg",
        f"Precisions side by side: inferlens show {where} --by precision",
    ]
    for command in more[: len({row.precision for row in shown if row.ok})]:
        if len(lines[-1]) + len(command) + 3 <= WIDTH:
            lines[-1] += f" · {command}"
        else:
            lines.append(command)
    return lines


def row_fields(shown: Sequence[Row]) -> list[str]:
    """Return the names of the fields of rows in CSV, with a field for each size."""
    left_out = ("machine_load", "sizes", "form")  # a note says it, fields of their own, the inputs
    *fields, notes = (name for name in Row.__struct_encode_fields__ if name not in left_out)
    return [*fields, *dict.fromkeys(name for row in shown for name in row.sizes), notes]


def row_values(row: Row) -> dict[str, Any]:
    """Return the values of a row by the names of its fields; notes become texts."""
    return {**fields_by_key(row), **row.sizes, "notes": list(map(str, row.notes))}


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


def shortest_p95(comparisons: Sequence[Sequence[Row]]) -> list[str]:
    """Name ways with a surely shorter p95 than the fastest."""
    all_rows = [row for comparison in comparisons for row in comparison]
    sentences, names, sizes = [], row_names(all_rows), varying_sizes(all_rows)
    for comparison in comparisons:
        measured = [row for row in comparison if row.ranked and row.p95 and row.p95_low and row.p95_high]
        fastest = [row for row in measured if row.fastest]
        if not fastest:
            continue
        first, least = fastest[0], min(measured, key=lambda row: row.p95 or 0.0)
        if not least.fastest and (least.p95_high or 0.0) < (first.p95_low or 0.0):
            where = f" at {sizes_text(first, sizes)}" if sizes else ""
            both = latency(least.p95), latency(first.p95)
            sentences.append(f"{names[least.id]}{where}, {both[0]} ({names[first.id]} {both[1]})")
    return [f"Shortest p95: {listing(sentences)}."] if sentences else []


def growth(comparisons: Sequence[Sequence[Row]]) -> list[str]:
    """Say for each dimension how its sizes change what is fastest, at the largest sizes of the others."""
    names, sentences = varying_sizes(row for comparison in comparisons for row in comparison), []
    largest = {name: max(comparison[0].dimensions.get(name) or 0 for comparison in comparisons) for name in names}
    for name in names:
        fixed = {item: size for item, size in largest.items() if item != name}
        at_largest = [item for item in comparisons if fixed.items() <= item[0].dimensions.items()]
        by_size = {item[0].dimensions.get(name): item for item in at_largest}
        if None not in by_size and 1 < len(at_largest) == len(by_size):
            where = f", at {sizes_text(at_largest[0][0], fixed)}" if fixed else ""
            grown = _throughput_growth(at_largest) if name == "batch" else _time_growth(name, at_largest)
            sentences += [f"{sentence}{where}{more}." for sentence, more in grown]
    return sentences


def _throughput_growth(comparisons: Sequence[Sequence[Row]]) -> list[tuple[str, str]]:
    """Return the batch size at which throughput stops growing, and the most."""
    rated = [[row for row in comparison if row.ranked and row.items_per_second] for comparison in comparisons]
    best = {row.batch or 0: row for item in rated if item for row in [max(item, key=_rate)]}
    if len(best) < len(comparisons):
        return []
    most = max(map(_rate, best.values()))
    enough = next(size for size in sorted(best) if _rate(best[size]) >= 0.95 * most)
    row, top = best[enough], max(best, key=lambda size: _rate(best[size]))
    grows = "still grows at" if enough == max(best) else "stops growing at" if enough == top else "hardly grows after"
    by = f" by {plain(row.way)}" if any(len(item) > 1 for item in rated) else ""
    more = f", {rate(most)} at batch {top}" if top > enough else ""
    return [(f"Throughput {grows} batch {enough}: {rate(_rate(row))} items a second{by}", more)]


def _time_growth(name: str, comparisons: Sequence[Sequence[Row]]) -> list[tuple[str, str]]:
    """Return how the shortest time grows with a size, and where most steeply."""
    first = (row for comparison in comparisons for row in comparison if row.place == 1)
    times = {row.sizes[name]: row.seconds_per_call for row in first if row.seconds_per_call}
    if len(times) < len(comparisons):
        return []
    steps = list(pairwise(sorted(times)))
    low, high = steps[0][0], steps[-1][1]
    steepest = max(steps, key=lambda step: math.log(times[step[1]] / times[step[0]]) / math.log(step[1] / step[0]))
    most = f", most steeply from {steepest[0]} to {steepest[1]}" if len(steps) > 1 else ""
    both = ratio(high / low), ratio(times[high] / times[low])
    return [(f"From {plain(name)} {low} to {high} ({both[0]}) the fastest takes {both[1]} the time{most}", "")]


def _rate(row: Row) -> float:
    return row.items_per_second or 0.0


# Notes of records: as many as fit on a screen, or all case by case. A screen merges notes that differ in figures alone.

NOTES_SCHEMA = "inferlens.warnings/1"
# Figures, and options or variants in brackets: (tensorrt.tf32=true), (torch_compile:reduce-overhead).
_FIGURE = r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:e-\d+)?(?!\w|[.,]\d)"
_BLANK = re.compile(_FIGURE + r"|(?<=\()[a-z]\w*(?:\.\w+=\w+|:[a-z-]+)(?=\))")
_LEVEL_PHRASES = {"changes": "changing the answer", "weakens": "weakening it", "know": "good to know"}
_NAMES_WIDTH = 36  # columns
NOTE_FIELDS = ("code", "level", "message", "hint")
_WORST = ("wrong-outputs", "state-lost", "did-not-run")
_NOTE_COLUMNS = [Column("", "", numeric=False, fold=True)]


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
        runs = runs_by_row(records)
        pairs = [(row, runs[row.id, row.machine]) for row in shown]
        cases = [
            {
                "model": row.model, "label": row.label, "digest": run.first.case.digest,
                "records": [record.id for record in run.records], "status": row.status, "warnings": row.notes,
            }
            for row, run in pairs
        ]  # fmt: skip
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
    lines = [[line for note in row.notes for line in _note_lines(note, LEVELS[note.level])] for row in shown]
    return [
        Table(f"{row.model} {row.label}", "", _NOTE_COLUMNS, note_lines)
        for row, note_lines in zip(shown, lines, strict=True)
        if note_lines
    ]


def _note_lines(note: Note, first: str) -> list[Line]:
    hint = [Line("", (f"→ {note.hint}",), style="dim")] if note.hint else []
    return [Line(first, (note.message,), indent="  "), *hint]


def _group_notes(shown: Sequence[Row]) -> list[tuple[Note, str]]:
    """Return notes with the names of their cases, by level and number of cases."""
    pairs = ((note, name) for row, name in zip(shown, _distinct_names(shown), strict=True) for note in row.notes)
    groups = group_by(pairs, lambda pair: (pair[0].level, pair[0].code, _BLANK.sub("", pair[0].message)))
    order, merged = list(LEVELS), []
    for group in sorted(groups.values(), key=len, reverse=True):
        first, names = group[0][0], list(dict.fromkeys(name for _, name in group))
        message = _merge_texts([note.message for note, _ in group])
        hints = [note.hint for note, _ in group if _BLANK.sub("", note.hint) == _BLANK.sub("", first.hint)]
        together = structs.replace(first, message=message, hint=_merge_texts(hints))
        merged.append((together, _case_names(names, len(shown))))
    return sorted(merged, key=lambda item: (order.index(item[0].level), item[0].code not in _WORST))


def _case_names(names: Sequence[str], cases: int) -> str:
    """Return short lists of names, or the number of cases."""
    if len(names) == cases > 2:
        return f"all {cases} cases"
    if len(text := listing(names)) <= _NAMES_WIDTH or len(names) == 1:
        return text
    return f"{names[0]} and {len(names) - 1:,} more"


def _distinct_names(shown: Sequence[Row]) -> list[str]:
    """Return distinct case names, the backend first."""
    models = len({row.model for row in shown}) > 1
    sizes = varying_sizes(shown)
    name_words = [row.name.split() for row in shown]
    common = set(name_words[0][1:]).intersection(*name_words) if name_words else set()
    names = []
    for row, words in zip(shown, name_words, strict=True):
        distinct = [words[0], *(word for word in words[1:] if word not in common)]
        model = [short_name(row.model)] if models else []
        names.append(plain(" ".join([*model, *distinct, sizes_text(row, sizes)])))
    return names


def _merge_texts(texts: Sequence[str]) -> str:
    """Merge texts that differ in figures alone."""
    filled = [*map(_merge_figures, zip(*map(_BLANK.findall, texts), strict=True)), ""]
    return "".join(part for pair in zip(_BLANK.split(texts[0]), filled, strict=True) for part in pair)


def _merge_figures(figures: Iterable[str]) -> str:
    """Return a figure, a range of figures, or all words."""
    once = list(dict.fromkeys(figures))
    if not once[0][0].isdigit():
        return ", ".join(once)
    once.sort(key=lambda figure: float(figure.replace(",", "")))
    return once[0] if len(once) == 1 else f"{once[0]} to {once[-1]}"
