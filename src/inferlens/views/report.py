"""The report: all results under some paths on one page, the answer first.

Each section uses the tables and charts of the commands. A section without content is left out.
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from inferlens.analysis.graph import build_graph, profile_source
from inferlens.analysis.interference import mean_load
from inferlens.analysis.load import as_record, load_folders, load_loads, load_tests
from inferlens.analysis.samples import CaseRuns, device_name, group_by, latest
from inferlens.analysis.tuning import TuningReport, find_tunings, load_tuning, tunings_under
from inferlens.errors import InferlensError, paths_like
from inferlens.record.builds import QUANTIZATIONS, Partition, Quantization, partition_in, read_quantization
from inferlens.record.files import READABLE, files_under, refuse_other_files
from inferlens.record.load import LoadRecord
from inferlens.record.record import Record, machine_name
from inferlens.record.store import BEST, LoadedProfiles, load_profiles, load_records, read_one
from inferlens.spec.case import bare
from inferlens.trace import distributed
from inferlens.trace.analysis import Overview
from inferlens.units import byte_count, listing, plural
from inferlens.views.answer import answers, chance_text
from inferlens.views.chart import (
    AGAINST,
    CHART_WIDTH,
    chart_names,
    drawable,
    fastest_places,
    has_mark,
    points_chart,
    records_chart,
)
from inferlens.views.graph import render_graphs
from inferlens.views.load import load_answers, load_section
from inferlens.views.partition import PartitionResult, distinguish_cases, partition_blocks
from inferlens.views.picture import (
    PALETTE,
    Box,
    Theme,
    boxes_svg,
    colours_of,
    field,
    marks,
    overlay,
    picture,
    stack_charts,
    title,
    vega_document,
)
from inferlens.views.profiles.cases import ProfiledCase, cases_of_level, group_profiles
from inferlens.views.profiles.findings import CaseFindings, findings_document, judge_cases
from inferlens.views.profiles.layers_kernels import part_tables, parts_document
from inferlens.views.profiles.modules import LEVELS, modules_document
from inferlens.views.profiles.quantization import quantization_document
from inferlens.views.profiles.roofline import case_picture, case_rooflines
from inferlens.views.records import COLUMNS, headline, notes_document, records_table, row_fields, row_values
from inferlens.views.rows import Row, RowKey, group_rows, row_names, rows, runs_by_row
from inferlens.views.table import Block, Column, Download, Line, Picture, Report, Section, Table, csv_text, plain
from inferlens.views.trace import TraceTable, TraceView
from inferlens.views.trace_documents import (
    MAX_REPORT_TRACES,
    TRACES_CAPTION,
    ReportTrace,
    load_traces,
    runs_view,
    trace_difference,
    trace_names,
    traces_chart,
)
from inferlens.views.tuning import finals_rows, tuning_answer, tuning_chart, tuning_document, tuning_sentences


@dataclass
class ReportInputs:
    """All inputs; ``problems`` are sentences about unreadable files, ``folders`` map record ids."""

    records: list[Record] = dataclasses.field(default_factory=list)
    profiles: LoadedProfiles = dataclasses.field(default_factory=LoadedProfiles)
    tunings: list[TuningReport] = dataclasses.field(default_factory=list)
    loads: list[list[LoadRecord]] = dataclasses.field(default_factory=list)
    quantizations: list[Quantization] = dataclasses.field(default_factory=list)
    traces: list[Path] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    folders: dict[str, Path] = dataclasses.field(default_factory=dict)

    @property
    def all_records(self) -> list[Record]:
        """Return all records, with those of tunings' finals."""
        return [*self.records, *(record for tuning in self.tunings for record in tuning.final_records)]

    @cached_property
    def colours(self) -> dict[str, str]:
        """Return the colour of each backend in all charts."""
        trials = (record for tuning in self.tunings for trial in tuning.trials for record in trial.records)
        cases = [record.case for record in (*self.all_records, *trials)]
        cases += [profile.case for profile in self.profiles.profiles]
        cases += [load.case for test in self.loads for load in test]
        return colours_of(sorted({plain(case.backend_label) for case in cases}))

    @cached_property
    def rows(self) -> list[Row]:
        return rows(self.records)

    @cached_property
    def loaded_traces(self) -> list[ReportTrace]:
        return list(load_traces(self.traces))

    @cached_property
    def case_findings(self) -> list[CaseFindings]:
        return judge_cases(self.profiles, self.rows)


def load_inputs(paths: Sequence[Path]) -> ReportInputs:
    """Load everything under ``paths``.

    Raises:
        InferlensError: if there is nothing, or a path is not there.
    """
    inputs = ReportInputs()
    for path in paths:
        if not path.exists():
            hint = paths_like(path, folders=True) or "inferlens bench"
            raise InferlensError(f"{path} does not exist.", expected="a folder with results", hint=hint)
    folders = find_tunings(paths) or [folder for path in paths for folder in tunings_under(path)]
    winners = set()
    for folder in folders:
        try:
            inputs.tunings.append(load_tuning(folder))
            winners.add(folder.parent / BEST)
        except InferlensError as error:
            inputs.problems.append(str(error))
    inputs.loads = load_tests(load_loads([one for path in paths for one in load_folders(path)], inputs.problems))
    inputs.traces = list(dict.fromkeys(trace for path in paths for trace in distributed.traces_under(path)))
    files = [file for path in paths for file in files_under(path, QUANTIZATIONS)]
    inputs.quantizations = [one for file in files if (one := read_one(file, read_quantization, inputs.problems))]
    others = [path for path in paths if path not in inputs.traces]
    with suppress(InferlensError):  # there may be profiles or traces
        loaded = load_records(others)
        inputs.records, inputs.folders = loaded.records, loaded.folders
        inputs.problems += loaded.problems
    with suppress(InferlensError):
        inputs.profiles = load_profiles(others)
        inputs.problems += inputs.profiles.problems
    models = {record.case.model for record in inputs.records}
    inputs.records += [record for record in inputs.profiles.records.values() if record.case.model not in models]
    # What a tuning left ready to be used is shown with it.
    inputs.records = [record for record in inputs.records if inputs.folders.get(record.id) not in winners]
    results = (inputs.profiles.profiles, inputs.tunings, inputs.loads, inputs.quantizations, inputs.traces)
    if not (inputs.records or any(results)):
        refuse_other_files(paths, READABLE, "record, profile, tuning or trace")
        problem = " ".join([f"There is nothing to report in {', '.join(map(str, paths))}.", *inputs.problems[:2]])
        raise InferlensError(problem, expected="records, profiles, tunings or traces", hint="inferlens bench MODEL")
    return inputs


def traces_answer(inputs: ReportInputs) -> Iterator[Block]:
    """Yield what bounds a single trace and what to do, or the step times of several."""
    readable = [(item, item.analysis) for item in inputs.loaded_traces if item.analysis]
    if len(readable) == 1:
        ((trace, _),) = readable
        yield Table(trace.name, answer=trace.answer[:1], sentences=trace.answer[1:])
    elif readable:
        first, *more = _side_by_side(_overviews(inputs)).answer
        yield Table(plural(len(readable), "trace"), answer=[first], sentences=more)


def traces_section(inputs: ReportInputs) -> Iterator[Block]:
    """Yield a comparison of all traces, the views of each, and their differences."""
    overviews = _overviews(inputs)
    if len(overviews) > 1:
        yield picture("traces", TRACES_CAPTION, partial(traces_chart, overviews))
        table = _side_by_side(overviews).tables[0]
        yield table.table() if isinstance(table, TraceTable) else table
    for number, item in enumerate(inputs.loaded_traces, 1):
        if item.problem:
            yield item.problem
        else:
            yield Section(f"trace-{number}", item.name, item.blocks, folded=len(inputs.traces) > 1)
    if len(inputs.loaded_traces) == 2:
        yield from trace_difference(*inputs.loaded_traces)
    if len(inputs.traces) > MAX_REPORT_TRACES:
        yield f"{plural(len(inputs.traces) - MAX_REPORT_TRACES, 'more trace')} not shown."


def _overviews(inputs: ReportInputs) -> list[tuple[str, Overview]]:
    return [(item.name, item.analysis.overview) for item in inputs.loaded_traces if item.analysis]


def _side_by_side(overviews: Sequence[tuple[str, Overview]]) -> TraceView:
    return runs_view([distributed.run_of(*item) for item in overviews], None)


BINS, POINTS = 80, 120  # of a way
STEP, TALL = 24, 44  # pixels of a way
MOST = 12  # ways
_FAR = 3.0  # times the largest median: what is slower still is at the edge


def spread(
    ways: Sequence[tuple[str, CaseRuns]], theme: Theme, colours: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Draw how often each latency occurs, with a line at the median; ``colours`` maps backend names to colours."""
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
        "x2": {"field": "to"}, "y": y, "color": field("colour:N", scale=None),
        "opacity": field("share:Q", scale={"domain": [0, 1], "range": [0.08, 1]}, legend=None),
        "tooltip": [field(name) for name in ("way:N", "from:Q", "to:Q", "samples:Q")],
    }  # fmt: skip
    layers = [
        marks("bar", bars, values, height={"band": 0.7}),
        marks("tick", {"x": field("median:Q", scale=scale), "y": y}, middles, thickness=2, size=STEP * 0.8,
              color=theme.text),
    ]  # fmt: skip
    heading = title("How long single calls took", size=16, offset=10)
    return vega_document(overlay(layers, width=CHART_WIDTH, height={"step": STEP}, title=heading), theme)


def _colour(run: CaseRuns, colours: Mapping[str, str]) -> str:
    return colours.get(plain(run.first.case.backend_label), PALETTE[0])


def over_time(
    ways: Sequence[tuple[str, CaseRuns]], theme: Theme, colours: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Draw the latencies of each way in order, one process after the other."""
    panels = []
    for place, (name, run) in enumerate(ways):
        runs = [np.asarray(series.samples) * 1e3 for series in run.series if series.samples]
        whole = np.concatenate(runs)
        ends = np.cumsum([len(item) for item in runs])[:-1]
        pieces = np.array_split(whole, min(POINTS, len(whole)))
        middles = [tuple(map(float, np.quantile(piece, [0.1, 0.5, 0.9]))) for piece in pieces]
        values: list[dict[str, Any]] = [
            {"way": name, "at": 100 * (at + 0.5) / len(pieces), "low": low, "median": middle, "high": high}
            for at, (low, middle, high) in enumerate(middles)
        ]
        scale = {"zero": False, "nice": False}
        last = place == len(ways) - 1
        axis = {"format": ".0f", "tickCount": 5, "labels": last, "ticks": last}
        axis_title = "share of its samples, in the order taken (%)" if last else None
        x = field("at:Q", title=axis_title, axis=axis, scale={"domain": [0, 100], "nice": False})
        upright = {"tickCount": 3, "format": ",~r", "grid": False, "minExtent": 44}
        y, colour = field("median:Q", title=None, scale=scale, axis=upright), _colour(run, colours)
        band = {"x": x, "y": field("low:Q", scale=scale), "y2": {"field": "high"}}
        layers = [
            marks("area", band, opacity=0.22, color=colour),
            marks("line", {"x": x, "y": y}, strokeWidth=1.4, color=colour),
        ]
        edges = [{"at": float(100 * at / len(whole))} for at in ends]
        if edges:
            layers.append(marks("rule", {"x": x}, edges, strokeDash=[3, 3], color=theme.faint, strokeWidth=1))
        above = {"text": name, "fontSize": 12, "fontWeight": "normal", "anchor": "start", "offset": 3}
        panels.append(overlay(layers, values, width=CHART_WIDTH, height=TALL, title=above))
    heading = {"text": "Latency (ms) while it was measured", "fontSize": 16, "anchor": "start", "offset": 10}
    return vega_document(stack_charts(panels, spacing=6, title=heading), theme)


MOST_CHARTS = 3  # tables of which charts are drawn
FINDINGS = 3
_COST_COLUMNS = ("precision", "batch", "median", "items_per_second", "energy", "speed-up", "accuracy", "drop", "error",
          "build", "host_peak", "device_peak")  # fmt: skip
_BARS_CAPTION = "Bars start at zero, whiskers reach from the 5th to the 95th percentile; the fastest stands on top."
_LINES_CAPTION = (
    "Both axes are logarithmic: ways whose lines are parallel differ by the same factor at every batch size."
)
_COST_CAPTION = "The dashed line joins ways that no other beats in both speed and {}; wrong outputs are crossed out."
_SPREAD_CAPTION = (
    "The stronger the colour, the more samples took that long; the line is the median. Two peaks are two modes."
)
_SAMPLES_CAPTION = (
    "The line is the median of neighbouring samples, the band their middle 80 %; dashed: the next process begins."
)


def answer_section(inputs: ReportInputs) -> Iterator[Block]:
    """Yield the fastest way, its costs, and what to do next."""
    tables = group_rows(inputs.rows, "table")
    yield from itertools.chain.from_iterable(map(_tuning_blocks, inputs.tunings))
    if len(tables) == 1:
        yield Table(headline(tables[0]))
        yield from _table_answer(tables[0], inputs)
    elif tables:
        yield _fastest_table(tables)
        for number, table in enumerate(tables, 1):
            yield Section(f"answer-{number}", headline(table), list(_table_answer(table, inputs)), folded=True)
    if inputs.profiles.profiles:
        yield from _main_findings(inputs)
    yield from load_answers(inputs.loads)
    if not (inputs.tunings or inputs.records or inputs.loads):
        yield from traces_answer(inputs)


def _tuning_blocks(tuned: TuningReport) -> Iterator[Block]:
    """Yield the winner, its costs, and the command that uses it."""
    finals = finals_rows(tuned)
    lines = tuning_answer(tuned, finals) if finals else []
    yield Table(headline(finals) if finals else "", answer=lines[:1])
    yield from lines[1:]
    if finals:
        yield _costs_table(finals)
    yield from (sentence for sentence in tuning_sentences(tuned) if sentence.startswith("Use"))


def _main_findings(inputs: ReportInputs) -> Iterator[Table]:
    """Yield the main findings with advice."""
    document = findings_document(inputs.case_findings, most=FINDINGS, brief=True, measured=inputs.rows)
    yield from (replace(block, title="Worth acting on") for block in document.blocks() if isinstance(block, Table))


def _table_answer(table: Sequence[Row], inputs: ReportInputs) -> Iterator[Block]:
    """Yield the answers of a model on a machine, the costs of the fastest, and commands to go on."""
    lines = answers(table)
    yield Table(answer=[line.lines[0] for line in lines])
    yield from dict.fromkeys(line for answer_line in lines for line in answer_line.lines[1:])
    yield _costs_table(table)
    comparisons = group_rows(table, "comparison")
    fastest = fastest_places(comparisons, chart_names(table)).values()
    leads = [lead for lead in fastest if lead[0][1].id in inputs.folders]
    for lead in leads:
        where = f" at {listing([where for where, _ in lead])}" if len(leads) > 1 else ""
        folder = shlex.quote(str(inputs.folders[lead[0][1].id]))
        yield f"Use it{where}: inferlens export --best {folder} --output deploy"
    weights = {record.id: record.model.weights_note for record in inputs.records}
    yield from dict.fromkeys(filter(None, (weights[lead[0][1].id] for lead in leads)))
    best = next((row for row in table if row.fastest), None)
    if best and not inputs.profiles.profiles:
        yield f"Where does the time go? {best.profile}"


def _fastest_table(tables: Sequence[Sequence[Row]]) -> Table:
    """Return the fastest way per model, machine and batch size."""

    def sure(row: Row) -> str:
        return chance_text(row.chance) if row.standing == "likeliest" else "sure"

    winners = [row for table in tables for item in group_rows(table, "comparison") for row in item if row.place == 1]
    titles = {column.title: replace(column, wide=False, bars="") for column in COLUMNS}  # models are not alike
    columns = [
        titles["batch"],
        Column("way", "fastest", numeric=False, fold=True),
        *(titles[name] for name in ("latency", "precision", "items/s", "speed-up")),  # a phone shows up to the latency
        Column("", "how sure", numeric=False, write=sure),
        titles["outputs"],
        Column("device_name", "machine", numeric=False),
    ]
    lines = [Line.from_row(plain(row.model.removeprefix("torchvision:")), columns, row) for row in winners]
    return Table("", "model", columns, lines)


def _costs_table(table: Sequence[Row]) -> Table:
    """Return a table of the fastest, the next and the reference by other measures."""
    names = row_names(table)
    shown = [row for item in group_rows(table, "comparison") for row in _first_rows(item)]
    columns = [replace(item, wide=False, bars="") for item in COLUMNS if {item.key, item.title} & {*_COST_COLUMNS}]
    lines = [Line.from_row(names[row.id], columns, row, style="bold" if row.fastest else "") for row in shown]
    return Table("", "way", columns, lines)


def _first_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the fastest rows, the next one, and the reference."""
    first = {row.id for row in [row for row in rows if row.ranked][:2]}
    return [row for row in rows if row.id in first or row.fastest or row.is_reference]


def comparison_section(inputs: ReportInputs) -> Iterator[Block]:
    """Yield all ways with all measurements, and charts."""
    runs = runs_by_row(inputs.records)
    tables = group_rows(inputs.rows, "table")
    for number, table in enumerate(tables, 1):
        columns = [replace(item, wide=False) if item.title == "±" else item for item in COLUMNS]
        load = mean_load(row.machine_load for row in table)
        yield replace(records_table(table, None, columns=columns), answer=(), notes=[*filter(None, [load.sentence])])
        if number <= MOST_CHARTS:
            yield from _chart_pictures(table, number, inputs.colours)
            yield from _sample_pictures(table, runs, number, inputs.colours)
    if len(tables) > MOST_CHARTS:
        yield f"Charts are of the first {MOST_CHARTS} models; 'inferlens show --plot' draws those of the others."
    for number, quantization in enumerate(inputs.quantizations, 1):
        quantized = quantization_document(quantization)
        shown = [block for block in quantized.blocks() if isinstance(block, Table)]
        yield Section(f"quantized-{number}", f"Layers that lose most · {quantized.title}", shown, folded=True)


def _chart_pictures(table: Sequence[Row], number: int, colours: dict[str, str]) -> Iterator[Block]:
    """Yield charts of latency and throughput, and folded ones of latency against other costs."""
    if any(has_mark(row) for row in table):
        several = len({row.batch for row in table if has_mark(row)}) > 1
        caption = _LINES_CAPTION if several else _BARS_CAPTION
        yield picture(f"comparison-{number}", caption, partial(records_chart, table, colours=colours))
    for cost in AGAINST:
        if sum(drawable(row, cost) for row in table) > 2:
            drawing = partial(points_chart, table, cost, colours=colours)
            shown = picture(f"{cost}-{number}", _COST_CAPTION.format(cost), drawing)
            yield Section(f"{cost}-of-{number}", f"Latency against {cost}", [shown], folded=True)


def _sample_pictures(
    table: Sequence[Row], runs: dict[RowKey, CaseRuns], number: int, colours: dict[str, str]
) -> Iterator[Block]:
    """Draw how the samples of the fastest ways of the first batch size are distributed, and how they change."""
    names = chart_names(table)
    shown = [row for row in group_rows(table, "comparison")[0] if row.ranked and row.median]
    runs_by_name = [(names[row.id], run) for row in shown[:MOST] if (run := runs[row.id, row.machine]).processes]
    if runs_by_name:
        yield picture(f"spread-{number}", _SPREAD_CAPTION, partial(spread, runs_by_name, colours=colours))
        yield picture(f"samples-{number}", _SAMPLES_CAPTION, partial(over_time, runs_by_name, colours=colours))


PARTITION_CAPTION = (
    "Boxes are as wide as their shares of the operators, in the order of the graph: blue runs in TensorRT, orange in "
    "PyTorch."
)
SEGMENT_COLOURS = {"TensorRT": PALETTE[0], "PyTorch": PALETTE[1]}
MAX_PARTITIONS = 10  # ways of a model


def partition_sections(inputs: ReportInputs) -> Iterator[Section]:
    """Yield the partitions of each model, without repeats for other batch sizes or precisions."""
    models: dict[str, dict[tuple[str, str, bytes], PartitionResult]] = {}
    for run in latest(inputs.records):
        case, part = run.first.case, partition_in(run.first.facts)
        if part:
            key = case.backend_label, case.options_label, msgspec.json.encode(part)
            models.setdefault(case.model, {}).setdefault(key, PartitionResult(case, part))
    for number, (model, partitions_by_key) in enumerate(models.items(), 1):
        answers = list(partitions_by_key.values())[:MAX_PARTITIONS]
        blocks = list[Block](partition_blocks(answers, wide=False))[:-2]  # without commands
        parts = [item.partition for item in answers if item.partition]
        if any(len(part.segments) > 1 for part in parts) and all(part.operators for part in parts):
            shared, labels = distinguish_cases([item.case for item in answers])
            names = labels if len(answers) > 1 else [" ".join(shared)]
            panels = list(zip(names, map(_segment_boxes, parts), strict=True))
            drawn = partial(boxes_svg, "what runs in TensorRT and what in PyTorch", panels)
            values = [
                {"case": name, "segment": number, "what": plain(box.about), "share": round(box.wide, 6)}
                for name, boxes in panels
                for number, box in enumerate(boxes, 1)
            ]
            blocks.insert(1, Picture(f"partition-{number}", PARTITION_CAPTION, drawn, values))
        title = f"Torch-TensorRT's partition · {plain(model)}"
        yield Section(f"partitions-{number}", title, blocks, folded=bool(inputs.profiles.profiles))


def _segment_boxes(part: Partition) -> list[Box]:
    """Return a box per segment."""
    sizes = [len(segment.operators) for segment in part.segments]
    whole = sum(sizes)
    boxes: list[Box] = []
    left, engines = 0.0, 0
    for segment, size in zip(part.segments, sizes, strict=True):
        engines += segment.runs_in == "TensorRT"
        name = f"engine {engines}" if segment.runs_in == "TensorRT" else "PyTorch"
        many = plural(size, "operator")
        modules = list(dict.fromkeys(operator.module for operator in segment.operators if operator.module))
        where = f"{modules[0]} to {modules[-1]}" if len(modules) > 1 else "".join(modules)
        about = "; ".join(filter(None, (name, many, where)))
        wide, names = size / whole, (f"{name} · {many}", name, str(engines))
        boxes.append(Box(left, wide, 0, names, about, SEGMENT_COLOURS[segment.runs_in]))
        left += wide
    return boxes


MOST_CASES = 8  # of which layers, kernels and rooflines are drawn
MOST_ROWS = 40
MOST_GRAPH = 400_000  # characters
GRAPH_DEADLINE = 20.0  # seconds in which a graph is laid out
GRAPH_CAPTION = (
    "A box is a layer, or all layers of a module: the darker, the longer it takes; its left band is its precision."
)
LARGE = "The graph of its layers is too large for this page; 'inferlens graph' draws it into a file of its own."
MAX_DEPTH = 100  # modules are unfolded wholly, and folded on the page


def profile_sections(inputs: ReportInputs) -> Iterator[Block]:
    """Yield findings, modules, and each case's own sections."""
    loaded = inputs.profiles
    if not loaded.profiles:
        return
    blocks_of_findings = findings_document(inputs.case_findings, whole=True, measured=inputs.rows).blocks()
    yield Section("findings", "Findings of each case", blocks_of_findings, folded=True)
    grouped = group_profiles(loaded)
    yield from _module_sections(grouped)
    roofs = case_rooflines(loaded)[:MOST_CASES]
    drawn_roofs = [item for place, roof in enumerate(roofs, 1) for item in case_picture(f"roofline-{place}", roof)]
    if drawn_roofs:
        yield Section("rooflines", "Rooflines", drawn_roofs, folded=True)
    for level in LEVELS:
        for place, case in enumerate(cases_of_level(loaded, level)[:MOST_CASES], 1):
            if case.profile.level == level and case.profile.status == "ok":
                blocks: list[Block] = [*parts_document(level, [case], top=MOST_ROWS).blocks()]
                if level == "layer":
                    blocks += case_picture(f"layers-{place}", part_tables(level, [case], "time")[0])
                    blocks += _graph_blocks(case, place)
                subject = " · ".join([plain(case.name), *[case.headline] * (len(grouped) > 1)])
                yield Section(f"{level}s-{place}", f"{level.capitalize()}s · {subject}", blocks, folded=True)


def _module_sections(grouped: Sequence[Sequence[ProfiledCase]]) -> Iterator[Section]:
    """Yield the modules of each model as a tree."""
    for number, group in enumerate(grouped, 1):
        head, *tree = modules_document([group], depth=MAX_DEPTH).blocks()
        assert isinstance(head, Table)
        yield Section(f"tree-{number}", f"Modules · {head.title}", [replace(head, title=""), *tree])


def _graph_blocks(case: ProfiledCase, place: int) -> list[Block]:
    """Draw the executed graph, or say how to draw it."""
    source = profile_source(case.profile, case.name, case.headline, case.unprofiled)
    if isinstance(source, str) or not source.layers:
        return []
    try:
        drawn = str(render_graphs([build_graph(source)], "svg", title=case.name, deadline=GRAPH_DEADLINE))
    except InferlensError as error:
        return [f"The graph of its layers is not drawn: {error.what}"]
    if len(drawn) > MOST_GRAPH:
        return [LARGE]
    return [Picture(f"graph-{place}", GRAPH_CAPTION, lambda _: drawn, light_only=True)]


MOST_PACKED = 2_000_000  # bytes of records in a page
_CELL = [Column("", "", numeric=False, fold=True)]


def how_it_was_measured(inputs: ReportInputs) -> Iterator[Block]:
    yield from environments([*inputs.all_records, *(as_record(test[0]) for test in inputs.loads)])
    if inputs.records:
        note_blocks = notes_document(inputs.records, known_rows=inputs.rows).blocks()
        yield Section("notes", f"Notes: {note_blocks[0]}", note_blocks[1:], folded=True)
        numbers = csv_text(map(row_values, inputs.rows), row_fields(inputs.rows)).encode()
        yield Download("table.csv", "every number of the comparison", "text/csv", numbers)
    if inputs.all_records:
        yield pack_records(inputs.all_records)
    yield from inputs.problems


def environments(records: Sequence[Record]) -> Iterator[Table]:
    for name, item in group_by(records, lambda record: machine_name(record.environment)).items():
        yield _environment_table(name, item)


def _environment_table(name: str, records: Sequence[Record]) -> Table:
    """Return the properties of a machine and its libraries."""
    environment = records[-1].environment
    days = sorted({record.created[:10] for record in records})
    libraries = {f"{name} {version}" for record in records for name, version in record.environment.libraries.items()}
    facts = {
        "device": listing(list(dict.fromkeys(device_name(record) for record in records))),
        "CPU": f"{environment.cpu}, {environment.cpu_threads} threads" if environment.cpu_threads else environment.cpu,
        "memory": byte_count(environment.memory) if environment.memory else "",
        "GPU driver": environment.driver,
        "system": " ".join(filter(None, [environment.system, environment.container])),
        "Python": environment.python,
        "Inferlens": environment.inferlens,
        "libraries": ", ".join(sorted(libraries)),
        "variables": ", ".join(f"{key}={value}" for key, value in environment.variables.items()),
        "measured": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
    }
    lines = [Line(key, [plain(value)]) for key, value in facts.items() if value]
    return Table(plain(name), "machine", _CELL, lines)


def pack_records(records: Sequence[Record], name: str = "records", limit: int = MOST_PACKED) -> Block:
    """Pack the records with all samples, or say that they are too large."""
    about = "the records with all samples, one in each line"
    lines = (msgspec.json.encode(record, enc_hook=tuple) + b"\n" for record in records)
    packed = gzip.compress(b"".join(lines), 6, mtime=0)
    if len(packed) > limit:
        return f"Not in this page: {about}, which are more than {byte_count(limit)}."
    return Download(f"{name}.jsonl.gz", about, "application/gzip", packed)


_FRONT = "The dashed line joins candidates that no other beats in both measures; hollow ones break a limit."


def tuning_section(inputs: ReportInputs) -> Iterator[Block]:
    """Yield the table, chart and candidates of each tuning."""
    for number, tuned in enumerate(inputs.tunings, 1):
        *blocks, candidates = tuning_document(tuned).blocks()
        yield from blocks
        with suppress(InferlensError):  # nothing was timed
            yield picture(f"tuning-{number}", _FRONT, tuning_chart(tuned, colours=inputs.colours))
        if isinstance(candidates, Table):
            yield Section(f"tried-{number}", candidates.title, [candidates], folded=True)


SECTIONS: dict[str, tuple[str, Callable[[ReportInputs], Iterable[Block]]]] = {
    "answer": ("Answer", answer_section),
    "comparison": ("Comparison", comparison_section),
    "tuning": ("Tuning", tuning_section),
    "load": ("Under load", lambda inputs: load_section(inputs.loads, inputs.colours)),
    "time": ("Where the time goes", lambda inputs: [*profile_sections(inputs), *partition_sections(inputs)]),
    "traces": ("Traces", traces_section),
    "how": ("How it was measured", how_it_was_measured),
}


def report(inputs: ReportInputs) -> Report:
    sections = ((name, title, list(blocks(inputs))) for name, (title, blocks) in SECTIONS.items())
    return Report(_title(inputs), [Section(name, title, blocks) for name, title, blocks in sections if blocks])


def _title(inputs: ReportInputs) -> str:
    """Return the models, or the traces."""
    cases = [record.case for record in inputs.all_records] + [test[0].case for test in inputs.loads]
    names = list(dict.fromkeys(plain(bare(case.model)) for case in cases)) or trace_names(inputs.traces)
    return listing(names if len(names) < 5 else [*names[:3], f"{len(names) - 3} more"])
