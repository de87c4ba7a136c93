"""The answer of each comparison with what it costs, and all ways that were measured beside each other."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from inferlens.analysis.interference import mean_load
from inferlens.analysis.samples import CaseRuns, latest
from inferlens.analysis.tuning import TuningReport, candidate_facts
from inferlens.record.record import machine_name
from inferlens.units import ABSENT, listing, plural
from inferlens.views.answer import AnswerLine, answers, likely
from inferlens.views.chart import WIDTH, chart_of, drawn, leading, names_of
from inferlens.views.picture import PALETTE, Theme, field, finished, layered, marks, picture, stacked, title
from inferlens.views.plain import plain
from inferlens.views.profiled.findings import document as findings_of
from inferlens.views.profiled.quantized import document as of_quantization
from inferlens.views.raced import against
from inferlens.views.raced.tuned import answer_of, finals_of, sentences
from inferlens.views.records import COLUMNS, headline, table_of
from inferlens.views.report.blocks import Block, Section
from inferlens.views.report.found import Found
from inferlens.views.report.found import answer as of_traces
from inferlens.views.rows import Row, by, ways
from inferlens.views.table import Column, Line, Table

# The raw samples of the ways of a comparison as charts: how they spread, and how they changed meanwhile.

BINS, POINTS = 80, 120  # of a way
STEP, TALL = 24, 44  # pixels of a way
MOST = 12  # ways
_FAR = 3.0  # times the largest median: what is slower still is at the edge


def spread(
    ways: Sequence[tuple[str, CaseRuns]], theme: Theme, colours: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """How often each latency was seen: the stronger the colour, the more often; a line at the median.

    ``colours`` are those of backends, by their names.
    """
    samples = {name: np.concatenate([np.asarray(series.samples) for series in run.series]) * 1e3 for name, run in ways}
    low = min(float(values.min()) for values in samples.values())
    high = min(
        max(float(np.quantile(values, 0.999)) for values in samples.values()),
        _FAR * max(float(np.median(values)) for values in samples.values()),
    )
    high = max(high, low * 1.02 + 1e-9)
    shades = {name: _colour(run, colours) for name, run in ways}
    edges = np.linspace(low - 0.02 * (high - low), high, BINS + 1)
    values = []
    for name, item in samples.items():
        counts, _ = np.histogram(np.minimum(item, high), edges)
        for place in np.flatnonzero(counts):
            values.append({
                "way": name, "from": edges[place], "to": edges[place + 1], "samples": int(counts[place]),
                "share": float(counts[place] / counts.max()) ** 0.5, "colour": shades[name],
            })  # fmt: skip
    middles = [{"way": name, "median": float(np.median(np.concatenate(run.processes))) * 1e3} for name, run in ways]
    order = list(samples)
    y = field("way:N", sort=order, title=None)
    scale = {"domain": [float(edges[0]), float(edges[-1])], "nice": False}
    bars = {
        "x": field("from:Q", scale=scale, title="latency of one call (ms)", axis={"format": ",~r", "tickCount": 8}),
        "x2": {"field": "to"},
        "y": y,
        "opacity": field("share:Q", scale={"domain": [0, 1], "range": [0.08, 1]}, legend=None),
        "color": field("colour:N", scale=None),
        "tooltip": [field(name) for name in ("way:N", "from:Q", "to:Q", "samples:Q")],
    }
    layers = [
        marks("bar", bars, values, height={"band": 0.7}),
        marks("tick", {"x": field("median:Q", scale=scale), "y": y}, middles, thickness=2, size=STEP * 0.8,
              color=theme.text),
    ]  # fmt: skip
    heading = title("How long single calls took", size=16, offset=10)
    return finished(layered(layers, width=WIDTH, height={"step": STEP}, title=heading), theme)


def _colour(run: CaseRuns, colours: Mapping[str, str]) -> str:
    return colours.get(plain(run.first.case.backend_label), PALETTE[0])


def over_time(
    ways: Sequence[tuple[str, CaseRuns]], theme: Theme, colours: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """The latencies of each way in the order they were taken, its processes one after the other."""
    panels = []
    for place, (name, run) in enumerate(ways):
        taken = [np.asarray(series.samples) * 1e3 for series in run.series if series.samples]
        whole = np.concatenate(taken)
        done = np.cumsum([len(item) for item in taken])[:-1]
        pieces = np.array_split(whole, min(POINTS, len(whole)))
        middles = [tuple(map(float, np.quantile(piece, [0.1, 0.5, 0.9]))) for piece in pieces]
        mine: list[dict[str, Any]] = [
            {"way": name, "at": 100 * (at + 0.5) / len(pieces), "low": low, "median": middle, "high": high}
            for at, (low, middle, high) in enumerate(middles)
        ]
        most = max(float(np.quantile([item["high"] for item in mine], 0.98)), max(item["median"] for item in mine))
        scale = {"domain": [min(item["low"] for item in mine) * 0.98, most * 1.02], "nice": False, "clamp": True}
        last = place == len(ways) - 1
        axis = {"format": ".0f", "tickCount": 5, "labels": last, "ticks": last}
        said = "share of its samples, in the order taken (%)" if last else None
        x = field("at:Q", title=said, axis=axis, scale={"domain": [0, 100], "nice": False})
        upright = {"tickCount": 3, "format": ",~r", "grid": False, "minExtent": 44}
        y, colour = field("median:Q", title=None, scale=scale, axis=upright), _colour(run, colours)
        band = {"x": x, "y": field("low:Q", scale=scale), "y2": {"field": "high"}}
        layers = [
            marks("area", band, opacity=0.22, color=colour),
            marks("line", {"x": x, "y": y}, strokeWidth=1.4, color=colour),
        ]
        edges = [{"at": float(100 * at / len(whole))} for at in done]
        if edges:
            layers.append(marks("rule", {"x": x}, edges, strokeDash=[3, 3], color=theme.faint, strokeWidth=1))
        above = {"text": name, "fontSize": 12, "fontWeight": "normal", "anchor": "start", "offset": 3}
        panels.append(layered(layers, mine, width=WIDTH, height=TALL, title=above))
    heading = {"text": "Latency (ms) while it was measured", "fontSize": 16, "anchor": "start", "offset": 10}
    return finished(stacked(panels, spacing=6, title=heading), theme)


MOST_CHARTS, MOST_SAMPLES, MOST_WHOLE = 6, 3, 2  # tables of which charts are drawn, those of samples, all of them
MOST_ANSWERS, MOST_BATCHES = 12, 3  # beneath the index of many models; in the line of one of them
FINDINGS, WHOLE = 6, 1000  # lines: three findings with their hints; of which a page has room for as many as there are
# What the answer costs, beside its speed.
_COSTS = ("precision", "batch", "median", "items_per_second", "energy", "speed-up", "accuracy", "drop", "error",
          "build", "host_peak", "device_peak")  # fmt: skip
_BRACKETS = "In brackets: what could be won at most."
_BARS = "Bars start at zero, whiskers reach from the 5th to the 95th percentile; the fastest stands on top."
_LINES = "Both axes are logarithmic: ways whose lines are parallel differ by the same factor at every batch size."
_AGAINST = "The dashed line joins ways that no other beats in both speed and {}; wrong outputs are crossed out."
_SPREAD = "The stronger the colour, the more samples took that long; the line is the median. Two peaks are two modes."
_TIME = "The line is the median of neighbouring samples, the band their middle 80 %; dashed: the next process begins."


def answer(found: Found) -> Iterator[Block]:
    """Which way is fastest, by how much and how sure; what it costs; what to do about it."""
    tables = by(found.rows, "table")
    if len(tables) < 2:
        yield from itertools.chain.from_iterable(map(_of_tuning, found.tunings))
    if len(tables) == 1:
        lines = answers(tables[0])
        yield Table(headline(tables[0]), "", (), (), answer=[line.lines[0] for line in lines])
        yield from _more(tables[0], lines, found)
    elif tables:
        yield from _of_many(tables, found)
        for number, tuned in enumerate(found.tunings, 1):
            yield Section(f"tuned-{number}", f"Tuned: {_in_a_line(tuned)}", list(_of_tuning(tuned)), folded=True)
    if found.profiles.profiles:
        yield from _worth_acting_on(found)
    if not (found.tunings or found.records):
        yield from of_traces(found)


def _of_tuning(tuned: TuningReport) -> Iterator[Block]:
    """What came out as the best, what it costs, and the command that uses it."""
    finals = finals_of(tuned)
    said = answer_of(tuned, finals) if finals else []
    yield Table(headline(finals) if finals else "", "", (), (), answer=said[:1])
    yield from said[1:]
    if finals:
        yield _costs(finals, ways(finals))
    yield from (sentence for sentence in sentences(tuned, candidate_facts(tuned)) if sentence.startswith("Use"))


def _in_a_line(tuned: TuningReport) -> str:
    """Of what a tuning is, and its answer."""
    finals = finals_of(tuned)
    if not finals:
        return "nothing ran with right outputs"
    return " · ".join([*headline(finals).split(" · ")[:2], answer_of(tuned, finals)[0].replace("  ", " · ")])


def _worth_acting_on(found: Found) -> Iterator[Table]:
    """The few findings that matter most, each in a sentence with what to try beneath it."""
    for block in findings_of(found.judged, lines=WHOLE, brief=True, measured=found.rows).blocks():
        if isinstance(block, Table) and block.lines:
            lines = block.lines[:FINDINGS]
            said = [" ".join(filter(None, [f"{line.name}." * bool(line.name), line.cells[1]])) for line in lines]
            about = " ".join([f"{block.title}. {_BRACKETS}", *block.answer])
            yield Table("Worth acting on", "", (), (), about=about, sentences=said)


def _more(table: Sequence[Row], lines: Sequence[AnswerLine], found: Found) -> Iterator[Block]:
    """What decides it, what the fastest costs beside its time, and the commands that use it and look into it."""
    yield from dict.fromkeys(line for answer_line in lines for line in answer_line.lines[1:])
    yield _costs(table, ways(table))
    comparisons = by(table, "comparison")
    leads = [item for item in leading(comparisons, names_of(table)).values() if item[0][1].id in found.folders]
    for lead in leads:
        where = f" at {listing([where for where, _ in lead])}" if len(leads) > 1 else ""
        folder = shlex.quote(str(found.folders[lead[0][1].id]))
        yield f"Use it{where}: inferlens export --best {folder} --output deploy"
    weights = {record.id: record.model.weights_note for record in found.records}
    yield from dict.fromkeys(filter(None, (weights[lead[0][1].id] for lead in leads)))
    best = next((row for row in table if row.fastest), None)
    if best and not found.profiles.profiles:
        yield f"Where does the time go? {best.profile}"


def _of_many(tables: Sequence[Sequence[Row]], found: Found) -> Iterator[Block]:
    """The fastest way of each model, machine and batch size in a row, and what it costs where one unfolds it."""
    yield _index(tables)
    lines = iter(answers(found.rows))
    for number, table in enumerate(tables, 1):
        mine = [next(lines) for _ in by(table, "comparison")]
        if number <= MOST_ANSWERS:
            shared = mine[0].where.rpartition(", ")[0] + ", "  # model and machine, said once
            said = " · ".join([mine[0].brief, *(item.brief.removeprefix(shared) for item in mine[1:])])
            if len(mine) > MOST_BATCHES:
                said = f"{shared}{plural(len(mine), 'batch size')}"
            yield Section(f"answer-{number}", said, list(_more(table, mine, found)), folded=True)


def _index(tables: Sequence[Sequence[Row]]) -> Table:
    """The fastest way of each model, machine and batch size, side by side."""
    found = [row for table in tables for item in by(table, "comparison") for row in item if row.place == 1]
    told = {"median", "items_per_second"}
    told |= {name for name in ("precision", "batch") if len({getattr(row, name) for row in found}) > 1}
    plainly = [replace(column, wide=False, bars="") for column in COLUMNS]  # bars of unlike models compare nothing
    columns = [
        *(column for column in plainly if column.key in ("precision", "batch") and column.key in told),
        Column("way", "fastest", numeric=False, fold=True),
        *(column for column in plainly if column.key in ("median", "items_per_second")),
        *(column for column in plainly if column.title == "speed-up"),
        Column("", "how sure", numeric=False, write=_sure),
        *(column for column in plainly if column.title == "outputs" and any(row.outputs != "right" for row in found)),
        *([Column("device_name", "machine", numeric=False)] if len({row.machine for row in found}) > 1 else []),
    ]
    return Table("", "model", columns, [Line.of(_short(row), columns, row) for row in found])


def _sure(row: Row) -> str:
    """In a word, whether it is known to be the fastest."""
    return likely(row.chance) if row.standing == "likeliest" else "sure"


def _short(row: Row) -> str:
    return plain(row.model.removeprefix("torchvision:"))


def _costs(table: Sequence[Row], names: dict[str, str]) -> Table:
    """The fastest of each comparison, the next one and the reference, by what may matter beside the latency."""
    shown = [row for item in by(table, "comparison") for row in _first_of(item)]
    told = {*_COSTS} - {"host_peak" if any(row.device_peak for row in shown) else "device_peak"}
    told -= {name for name in ("precision", "batch") if len({getattr(row, name) for row in shown}) == 1}
    columns = [replace(column, wide=False, bars="") for column in COLUMNS if {column.key, column.title} & told]
    best = [row for row in shown if row.fastest] or shown  # what is known of others alone tells no cost of theirs
    columns = [column for column in columns if {column.text(row) for row in best} - {ABSENT, ""}]
    lines = [Line.of(names[row.id], columns, row, style="bold" if row.fastest else "") for row in shown]
    return Table("", "way", columns, lines)


def _first_of(rows: Sequence[Row]) -> list[Row]:
    """The fastest of a comparison, the next if it is one alone, and the reference."""
    first = {row.id for row in [row for row in rows if row.ranked][:2]}
    return [row for row in rows if row.id in first or row.fastest or row.is_reference]


def comparison(found: Found) -> Iterator[Block]:
    """All ways with everything that was measured of them, and charts."""
    runs = {(run.first.id, machine_name(run.first.environment)): run for run in latest(found.records)}
    tables = by(found.rows, "table")
    for number, table in enumerate(tables, 1):
        columns = [replace(item, wide=False) if item.title == "±" else item for item in COLUMNS]
        load = mean_load(row.machine_load for row in table)
        yield replace(table_of(table, None, columns=columns), answer=(), notes=[*filter(None, [load.sentence])])
        if number <= MOST_CHARTS:
            yield from _charts(table, number, found.colours, whole=len(tables) <= MOST_WHOLE)
        if number <= MOST_SAMPLES:
            yield from _samples(table, runs, number, found.colours)
    if len(tables) > MOST_CHARTS:
        yield f"Charts are of the first {MOST_CHARTS} models; 'inferlens show --plot' draws those of the others."
    for number, quantization in enumerate(found.quantizations, 1):
        quantized = of_quantization(quantization)
        shown = [block for block in quantized.blocks() if isinstance(block, Table)]
        yield Section(f"quantized-{number}", f"Layers that lose most · {quantized.title}", shown, folded=True)


def _charts(table: Sequence[Row], number: int, colours: dict[str, str], *, whole: bool) -> Iterator[Block]:
    """Latency and throughput, and the latency against the error or accuracy; ``whole``: and against other costs."""
    if any(drawn(row) for row in table):
        several = len({row.batch for row in table if drawn(row)}) > 1
        yield picture(f"comparison-{number}", _LINES if several else _BARS, partial(chart_of, table, colours=colours))
    costs = ["accuracy" if any(row.accuracy is not None for row in table) else "error"]
    if len({row.precision for row in table if against.drawable(row, costs[0])}) < 2:
        costs = []  # of one precision, errors are those of rounding
    others = ("memory", "energy") if whole else ()
    costs += [
        cost for cost in others
        if any(sum(against.drawable(row, cost) for row in item) > 2 for item in by(table, "comparison"))
    ]  # fmt: skip
    for cost in costs:
        drawing = partial(against.chart_of, table, cost, colours=colours)
        shown = picture(f"{cost}-{number}", _AGAINST.format(cost), drawing)
        name, title = f"{cost}-of-{number}", f"Latency against {cost}"
        yield Section(name, title, [shown], folded=True) if cost in others else shown


def _samples(
    table: Sequence[Row], runs: dict[tuple[str, str], CaseRuns], number: int, colours: dict[str, str]
) -> Iterator[Block]:
    """How the samples of the fastest ways spread, and how they changed meanwhile: of one batch size."""
    each = next((item for item in by(table, "comparison") if any(row.ranked and row.median for row in item)), [])
    able = [row for row in each if row.ranked and row.median][:MOST]
    names = names_of(each)
    known = [(names[row.id], run) for row in able if (run := runs[row.id, row.machine]).processes]
    if not known:
        return
    batch = f" At batch {each[0].batch}." if len(by(table, "comparison")) > 1 else ""
    yield picture(f"spread-{number}", _SPREAD + batch, partial(spread, known, colours=colours))
    yield picture(f"samples-{number}", _TIME + batch, partial(over_time, known, colours=colours))
