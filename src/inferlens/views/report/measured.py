"""The answer of each comparison with what it costs, and all ways that were measured beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from inferlens.analysis.runs import CaseRuns, latest
from inferlens.analysis.tuned import facts_of
from inferlens.record.record import machine_name
from inferlens.views.answer import answers
from inferlens.views.chart import chart_of, drawn, names_of
from inferlens.views.picture import picture
from inferlens.views.plain import plain
from inferlens.views.profiled.findings import document as findings_of
from inferlens.views.raced import against
from inferlens.views.raced.tuned import answer_of, finals_of, sentences
from inferlens.views.records import COLUMNS, headline, table_of
from inferlens.views.report import samples
from inferlens.views.report.blocks import Block
from inferlens.views.report.found import Found
from inferlens.views.rows import Row, by, ways
from inferlens.views.table import Column, Line, Table

MOST_TABLES = 12  # of which the charts of samples are drawn
MOST_ANSWERS = 12  # beneath the index of many models
FINDINGS = 6  # lines: three findings with their hints
# What the answer costs, beside its speed.
_COSTS = ("batch", "median", "p95", "p99", "items_per_second", "energy", "speed-up", "accuracy", "drop", "error",
          "build", "host_peak", "device_peak")  # fmt: skip
_BARS = "Bars start at zero, whiskers reach from the 5th to the 95th percentile; the fastest stands on top."
_LINES = "Both axes are logarithmic: ways whose lines are parallel differ by the same factor at every batch size."
_AGAINST = "The dashed line joins what nothing else beats in both speed and {}; wrong outputs are crossed out."
_SPREAD = "The darker, the more samples took that long; the line is the median. Two dark places are two modes."
_TIME = "The line is the median of neighbouring samples, the band their middle 80 %; dashed: the next process begins."


def answer(found: Found) -> Iterator[Block]:
    """Which way is fastest, by how much and how sure; what it costs; what to do about it."""
    for tuned in found.tunings:
        finals = finals_of(tuned)
        said = answer_of(tuned, finals) if finals else []
        yield Table(headline(finals) if finals else "", "", (), (), answer=said[:1])
        yield from [*said[1:], *(each for each in sentences(tuned, facts_of(tuned)) if each.startswith("Use"))]
    tables = by(found.rows, "table")
    if len(tables) > 1:
        yield _index(tables)
    for table in tables[:MOST_ANSWERS]:
        names = ways(table)
        lines = answers(table)
        yield Table(headline(table), "", (), (), answer=[each.lines[0] for each in lines])
        yield from dict.fromkeys(line for each in lines for line in each.lines[1:])
        yield _costs(table, names)
        best = next((row for row in table if row.fastest), None)
        if best:
            yield f"Where does the time go? {best.profile}"
    if found.profiles.profiles:
        yield from findings_of(found.judged, lines=FINDINGS, brief=True).blocks()


def _index(tables: Sequence[Sequence[Row]]) -> Table:
    """The fastest way of each model, machine and batch size, side by side."""
    columns = [
        Column("device_name", "machine", numeric=False),
        *(
            replace(each, wide=False)
            for each in COLUMNS
            if each.key in ("precision", "batch", "median", "items_per_second")
        ),
        Column("way", "fastest", numeric=False, fold=True),
        *(each for each in COLUMNS if each.title in ("speed-up", "outputs")),
    ]
    found = [row for table in tables for each in by(table, "comparison") for row in each if row.place == 1]
    return Table("", "model", columns, [Line.of(plain(row.model), columns, row) for row in found])


def _costs(table: Sequence[Row], names: dict[str, str]) -> Table:
    """The fastest of each comparison and its reference, by what may matter beside the latency."""
    columns = [replace(each, wide=False, bars="") for each in COLUMNS if {each.key, each.title} & {*_COSTS}]
    lines = []
    for each in by(table, "comparison"):
        for row in each:
            if row.fastest or row.is_reference:
                lines.append(Line.of(names[row.id], columns, row, style="bold" if row.fastest else ""))
    return Table("", "way", columns, lines)


def comparison(found: Found) -> Iterator[Block]:
    """All ways with everything that was measured of them, and charts."""
    runs = {(run.first.id, machine_name(run.first.environment)): run for run in latest(found.records)}
    for number, table in enumerate(by(found.rows, "table"), 1):
        whole = table_of(table, None)
        yield replace(whole, answer=(), notes=())
        if any(drawn(row) for row in table):
            several = len({row.batch for row in table if drawn(row)}) > 1
            yield picture(f"comparison-{number}", _LINES if several else _BARS, partial(chart_of, table))
        cost = "accuracy" if any(row.accuracy is not None for row in table) else "error"
        if len({row.precision for row in table if against.drawable(row, cost)}) > 1:
            yield picture(f"{cost}-{number}", _AGAINST.format(cost), partial(against.chart_of, table, cost))
        if number <= MOST_TABLES:
            yield from _samples(table, runs, number)


def _samples(table: Sequence[Row], runs: dict[tuple[str, str], CaseRuns], number: int) -> Iterator[Block]:
    """How the samples of the fastest ways spread, and how they changed meanwhile: of one batch size."""
    each = next((each for each in by(table, "comparison") if any(row.ranked and row.median for row in each)), [])
    able = [row for row in each if row.ranked and row.median][: samples.MOST]
    names = names_of(each)
    known = [(names[row.id], run) for row in able if (run := runs[row.id, row.machine]).processes]
    if not known:
        return
    batch = f" At batch {each[0].batch}." if len(by(table, "comparison")) > 1 else ""
    yield picture(f"spread-{number}", _SPREAD + batch, partial(samples.spread, known))
    yield picture(f"samples-{number}", _TIME + batch, partial(samples.over_time, known))
