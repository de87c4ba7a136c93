"""The report: all results under some paths on one page, the answer first.

:data:`SECTIONS` lists the sections, each of which uses the tables and charts of the commands. A section without content
is left out.
"""

from __future__ import annotations

import dataclasses
import gzip
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import msgspec

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
from inferlens.spec.plan import bench_words, budget_words, command
from inferlens.trace import distributed
from inferlens.trace.analysis import Overview
from inferlens.units import byte_count, listing, plural
from inferlens.views.answer import answers, chance_text
from inferlens.views.chart import (
    AGAINST,
    chart_names,
    drawable,
    fastest_places,
    has_mark,
    over_time_chart,
    points_chart,
    records_chart,
    samples_chart,
    swept_option,
)
from inferlens.views.graph import render_graphs
from inferlens.views.load import load_answers, load_section
from inferlens.views.partition import PartitionResult, distinguish_cases, partition_blocks
from inferlens.views.picture import PALETTE, Box, boxes_svg, colours_of, picture
from inferlens.views.profiles.cases import ProfiledCase, cases_of_level, group_profiles
from inferlens.views.profiles.findings import CaseFindings, findings_document, judge_cases
from inferlens.views.profiles.layers_kernels import part_tables, parts_document
from inferlens.views.profiles.modules import LEVELS, icicle, modules_document
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
    trace_differences,
    trace_names,
    traces_chart,
)
from inferlens.views.tuning import finals_rows, tuning_answer, tuning_chart, tuning_document, tuning_sentences

MAX_CHARTED = 3  # tables of the comparison with charts
MAX_SAMPLED = 12  # ways whose samples are drawn
MAX_FINDINGS = 3  # in the answer
MAX_PARTITIONS = 10  # ways of a model
MAX_PROFILED = 8  # cases whose layers, kernels and rooflines are drawn
MAX_PARTS = 40  # rows of a table of layers or kernels
MAX_REPEATED = 12  # commands that repeat measurements
MAX_DEPTH = 100  # modules are unfolded wholly, and folded on the page
MAX_GRAPH = 400_000  # characters
GRAPH_DEADLINE = 20.0  # seconds for the layout of a graph
MAX_PACKED = 2_000_000  # bytes of records in a page
LARGE = "The graph of its layers is too large for this page; 'inferlens graph' draws it into a file of its own."
SEGMENT_COLOURS = {"TensorRT": PALETTE[0], "PyTorch": PALETTE[1]}
_COST_COLUMNS = (
    "precision", "batch", "median", "items_per_second", "energy", "speedup", "accuracy", "drop", "error", "build",
    "host_peak", "device_peak",
)  # fmt: skip
_CAPTIONS = {
    "bars": "Bars start at zero, whiskers reach from the 5th to the 95th percentile; the fastest stands on top.",
    "curve": "The vertical lines are 95 % intervals.",
    "lines": "Both axes are logarithmic: ways whose lines are parallel differ by the same factor at every batch size.",
    "cost": "The dashed line joins ways that no other beats in both speed and {}; wrong outputs are crossed out.",
    "spread": "The stronger the colour, the more samples took that long; the line is the median. Two peaks are two "
    "modes.",
    "samples": "The line is the median of neighbouring samples, the band their middle 80 %; dashed: the next process "
    "begins.",
    "partition": "Boxes are as wide as their shares of the operators, in the order of the graph: blue runs in "
    "TensorRT, orange in PyTorch.",
    "graph": "A box is a layer, or all layers of a module: the darker, the longer it takes; its left band is its "
    "precision.",
    "tuning": "The dashed line joins candidates that no other beats in both measures; hollow ones break a limit.",
}


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
    def tables(self) -> list[list[Row]]:
        """Return the rows of each model on each machine."""
        return group_rows(self.rows, "table")

    @cached_property
    def loaded_traces(self) -> list[ReportTrace]:
        return list(load_traces(self.traces))

    @property
    def overviews(self) -> list[tuple[str, Overview]]:
        """Return the overviews of readable traces with their names."""
        return [(trace.name, trace.analysis.overview) for trace in self.loaded_traces if trace.analysis]

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
    winner_folders = set()
    for folder in find_tunings(paths) or [folder for path in paths for folder in tunings_under(path)]:
        try:
            inputs.tunings.append(load_tuning(folder))
            winner_folders.add(folder.parent / BEST)
        except InferlensError as error:
            inputs.problems.append(str(error))
    load_paths = [folder for path in paths for folder in load_folders(path)]
    inputs.loads = load_tests(load_loads(load_paths, inputs.problems))
    inputs.traces = list(dict.fromkeys(trace for path in paths for trace in distributed.traces_under(path)))
    files = [file for path in paths for file in files_under(path, QUANTIZATIONS)]
    quantizations = (read_one(file, read_quantization, inputs.problems) for file in files)
    inputs.quantizations = [quantization for quantization in quantizations if quantization]
    other_paths = [path for path in paths if path not in inputs.traces]
    with suppress(InferlensError):  # there may be profiles or traces
        loaded = load_records(other_paths)
        inputs.records, inputs.folders = loaded.records, loaded.folders
        inputs.problems += loaded.problems
    with suppress(InferlensError):
        inputs.profiles = load_profiles(other_paths)
        inputs.problems += inputs.profiles.problems
    models = {record.case.model for record in inputs.records}
    inputs.records += [record for record in inputs.profiles.records.values() if record.case.model not in models]
    # The section of a tuning shows its winner, which the tuning left ready to be used.
    inputs.records = [record for record in inputs.records if inputs.folders.get(record.id) not in winner_folders]
    results = (inputs.profiles.profiles, inputs.tunings, inputs.loads, inputs.quantizations, inputs.traces)
    if not (inputs.records or any(results)):
        refuse_other_files(paths, READABLE, "record, profile, tuning or trace")
        problem = " ".join([f"There is nothing to report in {', '.join(map(str, paths))}.", *inputs.problems[:2]])
        raise InferlensError(problem, expected="records, profiles, tunings or traces", hint="inferlens bench MODEL")
    return inputs


def answer_section(inputs: ReportInputs) -> Iterator[Block]:
    """Yield the fastest way, its costs, and what to do next."""
    for tuned in inputs.tunings:
        yield from _winner_blocks(tuned)
    if len(inputs.tables) == 1:
        yield Table(headline(inputs.tables[0]))
        yield from _fastest_blocks(inputs.tables[0], inputs)
    elif inputs.tables:
        yield _fastest_table(inputs.tables)
        for number, table in enumerate(inputs.tables, 1):
            yield Section(f"answer-{number}", headline(table), list(_fastest_blocks(table, inputs)), folded=True)
    if inputs.profiles.profiles:
        findings = findings_document(inputs.case_findings, most=MAX_FINDINGS, brief=True, measured=inputs.rows)
        yield from (replace(block, title="Worth acting on") for block in findings.blocks() if isinstance(block, Table))
    yield from load_answers(inputs.loads)
    if not (inputs.tunings or inputs.records or inputs.loads):
        yield from _trace_answers(inputs)


def _winner_blocks(tuned: TuningReport) -> Iterator[Block]:
    """Yield the winner of a tuning, its costs, and the command that uses it."""
    if finals := finals_rows(tuned):
        answer, *sentences = tuning_answer(tuned, finals)
        yield Table(headline(finals), answer=[answer])
        yield from sentences
        yield _costs_table(finals)
    yield from (sentence for sentence in tuning_sentences(tuned) if sentence.startswith("Use"))


def _fastest_blocks(table: Sequence[Row], inputs: ReportInputs) -> Iterator[Block]:
    """Yield the answers of a model on a machine, the costs of the fastest ways, and commands to go on."""
    lines = answers(table)
    yield Table(answer=[line.lines[0] for line in lines])
    yield from dict.fromkeys(text for line in lines for text in line.lines[1:])
    yield _costs_table(table)
    fastest = fastest_places(group_rows(table, "comparison"), chart_names(table)).values()
    winners = [(list(rows_by_place), next(iter(rows_by_place.values()))) for rows_by_place in fastest]
    usable = [(places, row) for places, row in winners if row.id in inputs.folders]
    for places, row in usable:
        where = f" at {listing(places)}" if len(usable) > 1 else ""
        folder = shlex.quote(str(inputs.folders[row.id]))
        yield f"Use it{where}: inferlens export --best {folder} --output deploy"
    weights = {record.id: record.model.weights_note for record in inputs.records}
    yield from dict.fromkeys(filter(None, (weights[row.id] for _, row in usable)))
    best = next((row for row in table if row.fastest), None)
    if best and not inputs.profiles.profiles:
        yield f"Where does the time go? {best.profile}"


def _fastest_table(tables: Sequence[Sequence[Row]]) -> Table:
    """Return the fastest way per model, machine and batch size."""

    def certainty(row: Row) -> str:
        return chance_text(row.chance) if row.standing == "likeliest" else "sure"

    winners = [row for table in tables for row in table if row.place == 1]
    # Columns keep their general titles, because models differ.
    pick = partial(COLUMNS.pick, wide=False, bars=False)
    columns = [
        *pick("batch"),
        Column("way", "fastest", numeric=False, fold=True),
        *pick("median", "precision", "items_per_second", "speedup"),  # a phone shows the columns up to the latency
        Column("standing", "how sure", numeric=False, write_row=certainty),
        *pick("outputs"),
        Column("device_name", "machine", numeric=False),
    ]
    lines = [Line.from_row(plain(row.model.removeprefix("torchvision:")), columns, row) for row in winners]
    return Table("", "model", columns, lines)


def _costs_table(table: Sequence[Row]) -> Table:
    """Return the first two ways of each comparison, the equally fast ones and the reference by other measures."""
    names = row_names(table)
    leaders = {row.id for rows in group_rows(table, "comparison") for row in [row for row in rows if row.ranked][:2]}
    shown = [row for row in table if row.id in leaders or row.fastest or row.is_reference]
    columns = COLUMNS.pick(*_COST_COLUMNS, wide=False, bars=False)
    lines = [Line.from_row(names[row.id], columns, row, style="bold" * row.fastest) for row in shown]
    return Table("", "way", columns, lines)


def comparison_section(inputs: ReportInputs) -> Iterator[Block]:
    """Yield all ways with all measurements, and charts."""
    runs = runs_by_row(inputs.records)
    columns = [replace(column, wide=False) if column.key == "half_width" else column for column in COLUMNS]
    for number, table in enumerate(inputs.tables, 1):
        load = mean_load(row.machine_load for row in table)
        yield replace(records_table(table, None, columns=columns), answer=(), notes=[*filter(None, [load.sentence])])
        if number <= MAX_CHARTED:
            yield from _chart_pictures(table, number, inputs.colours)
            yield from _sample_pictures(table, runs, number, inputs.colours)
    if len(inputs.tables) > MAX_CHARTED:
        yield f"Charts are of the first {MAX_CHARTED} models; 'inferlens show --plot' draws those of the others."
    for number, quantization in enumerate(inputs.quantizations, 1):
        document = quantization_document(quantization)
        tables = [block for block in document.blocks() if isinstance(block, Table)]
        yield Section(f"quantized-{number}", f"Layers that lose most · {document.title}", tables, folded=True)


def _chart_pictures(table: Sequence[Row], number: int, colours: dict[str, str]) -> Iterator[Block]:
    """Yield charts of latency and throughput, and folded ones of latency against other costs."""
    batches = {row.batch for row in table if has_mark(row)}
    if batches:
        caption = _CAPTIONS["lines" if len(batches) > 1 else "curve" if swept_option(table) else "bars"]
        yield picture(f"comparison-{number}", caption, partial(records_chart, table, colours=colours))
    for cost in AGAINST:
        if sum(drawable(row, cost) for row in table) > 2:
            drawing = partial(points_chart, table, cost, colours=colours)
            chart = picture(f"{cost}-{number}", _CAPTIONS["cost"].format(cost), drawing)
            yield Section(f"{cost}-of-{number}", f"Latency against {cost}", [chart], folded=True)


def _sample_pictures(
    table: Sequence[Row], runs: dict[RowKey, CaseRuns], number: int, colours: dict[str, str]
) -> Iterator[Block]:
    """Draw how the samples of the fastest ways of the first batch size are distributed, and how they change."""
    names = chart_names(table)
    timed = [row for row in group_rows(table, "comparison")[0] if row.ranked and row.median]
    ways = [(names[row.id], runs[row.id, row.machine]) for row in timed[:MAX_SAMPLED]]
    if ways := [(name, run) for name, run in ways if run.processes]:
        yield picture(f"spread-{number}", _CAPTIONS["spread"], partial(samples_chart, ways, colours=colours))
        yield picture(f"samples-{number}", _CAPTIONS["samples"], partial(over_time_chart, ways, colours=colours))


def tuning_section(inputs: ReportInputs) -> Iterator[Block]:
    """Yield the table, chart and candidates of each tuning."""
    for number, tuned in enumerate(inputs.tunings, 1):
        *blocks, candidates = tuning_document(tuned).blocks()
        yield from blocks
        with suppress(InferlensError):  # nothing was timed
            yield picture(f"tuning-{number}", _CAPTIONS["tuning"], tuning_chart(tuned, colours=inputs.colours))
        if isinstance(candidates, Table):
            yield Section(f"tried-{number}", candidates.title, [candidates], folded=True)


def profile_sections(inputs: ReportInputs) -> Iterator[Block]:
    """Yield findings, modules, and each case's own sections."""
    loaded = inputs.profiles
    if not loaded.profiles:
        return
    findings = findings_document(inputs.case_findings, whole=True, measured=inputs.rows).blocks()
    yield Section("findings", "Findings of each case", findings, folded=True)
    groups = group_profiles(loaded)
    for number, group in enumerate(groups, 1):
        head, *tree = modules_document([group], depth=MAX_DEPTH).blocks()
        assert isinstance(head, Table)
        drawn = [replace(head, title=""), *icicle(group, f"modules-{number}"), *tree]
        yield Section(f"tree-{number}", f"Modules · {head.title}", drawn)
    rooflines = enumerate(case_rooflines(loaded)[:MAX_PROFILED], 1)
    if charts := [chart for number, case in rooflines for chart in case_picture(f"roofline-{number}", case)]:
        yield Section("rooflines", "Rooflines", charts, folded=True)
    for level in LEVELS:
        for number, case in enumerate(cases_of_level(loaded, level)[:MAX_PROFILED], 1):
            if case.profile.level == level and case.profile.status == "ok":
                blocks: list[Block] = [*parts_document(level, [case], top=MAX_PARTS).blocks()]
                if level == "layer":
                    blocks += case_picture(f"layers-{number}", part_tables(level, [case], "time")[0])
                    blocks += _graph_blocks(case, number)
                subject = " · ".join([plain(case.name), *[case.headline] * (len(groups) > 1)])
                yield Section(f"{level}s-{number}", f"{level.capitalize()}s · {subject}", blocks, folded=True)


def _graph_blocks(case: ProfiledCase, number: int) -> list[Block]:
    """Draw the executed graph, or say how to draw it."""
    source = profile_source(case.profile, case.name, case.headline, case.unprofiled)
    if isinstance(source, str) or not source.layers:
        return []
    try:
        drawn = str(render_graphs([build_graph(source)], "svg", title=case.name, deadline=GRAPH_DEADLINE))
    except InferlensError as error:
        return [f"The graph of its layers is not drawn: {error.what}"]
    if len(drawn) > MAX_GRAPH:
        return [LARGE]
    return [Picture(f"graph-{number}", _CAPTIONS["graph"], lambda _: drawn, light_only=True)]


def partition_sections(inputs: ReportInputs) -> Iterator[Section]:
    """Yield the partitions of each model, without repeats for other batch sizes or precisions."""
    models: dict[str, dict[tuple[str, str, bytes], PartitionResult]] = {}
    for run in latest(inputs.records):
        case, partition = run.first.case, partition_in(run.first.facts)
        if partition:
            key = case.backend_label, case.options_label, msgspec.json.encode(partition)
            models.setdefault(case.model, {}).setdefault(key, PartitionResult(case, partition))
    for number, (model, results_by_key) in enumerate(models.items(), 1):
        results = list(results_by_key.values())[:MAX_PARTITIONS]
        blocks = list[Block](partition_blocks(results, wide=False))[:-2]  # without commands
        partitions = [result.partition for result in results if result.partition]
        divided = any(len(partition.segments) > 1 for partition in partitions)
        if divided and all(partition.operators for partition in partitions):
            shared, labels = distinguish_cases([result.case for result in results])
            names = labels if len(results) > 1 else [" ".join(shared)]
            panels = list(zip(names, map(_segment_boxes, partitions), strict=True))
            drawn = partial(boxes_svg, "what runs in TensorRT and what in PyTorch", panels)
            values = [
                {"case": name, "segment": place, "what": plain(box.about), "share": round(box.wide, 6)}
                for name, boxes in panels
                for place, box in enumerate(boxes, 1)
            ]
            blocks.insert(1, Picture(f"partition-{number}", _CAPTIONS["partition"], drawn, values))
        title = f"Torch-TensorRT's partition · {plain(model)}"
        yield Section(f"partitions-{number}", title, blocks, folded=bool(inputs.profiles.profiles))


def _segment_boxes(partition: Partition) -> list[Box]:
    """Return a box per segment."""
    total = sum(len(segment.operators) for segment in partition.segments)
    boxes: list[Box] = []
    left, engines = 0.0, 0
    for segment in partition.segments:
        engines += segment.runs_in == "TensorRT"
        name = f"engine {engines}" if segment.runs_in == "TensorRT" else "PyTorch"
        size = plural(len(segment.operators), "operator")
        modules = list(dict.fromkeys(operator.module for operator in segment.operators if operator.module))
        where = f"{modules[0]} to {modules[-1]}" if len(modules) > 1 else "".join(modules)
        about = "; ".join(filter(None, (name, size, where)))
        width, names = len(segment.operators) / total, (f"{name} · {size}", name, str(engines))
        boxes.append(Box(left, width, 0, names, about, SEGMENT_COLOURS[segment.runs_in]))
        left += width
    return boxes


def _trace_answers(inputs: ReportInputs) -> Iterator[Block]:
    """Yield what bounds a single trace and what to do, or the step times of several."""
    readable = [trace for trace in inputs.loaded_traces if trace.analysis]
    if len(readable) == 1:
        yield Table(readable[0].name, answer=readable[0].answer[:1], sentences=readable[0].answer[1:])
    elif readable:
        step_times, *sentences = _traces_view(inputs.overviews).answer
        yield Table(plural(len(readable), "trace"), answer=[step_times], sentences=sentences)


def traces_section(inputs: ReportInputs) -> Iterator[Block]:
    """Yield a comparison of all traces, the views of each, and their differences."""
    traces, overviews = inputs.loaded_traces, inputs.overviews
    if len(overviews) > 1:
        yield picture("traces", TRACES_CAPTION, partial(traces_chart, overviews))
        table = _traces_view(overviews).tables[0]
        yield table.table() if isinstance(table, TraceTable) else table
    for number, trace in enumerate(traces, 1):
        section = Section(f"trace-{number}", trace.name, trace.blocks, folded=len(inputs.traces) > 1)
        yield trace.problem or section
    yield from trace_differences(traces)
    if len(inputs.traces) > MAX_REPORT_TRACES:
        yield f"{plural(len(inputs.traces) - MAX_REPORT_TRACES, 'more trace')} not shown."


def _traces_view(overviews: Sequence[tuple[str, Overview]]) -> TraceView:
    return runs_view([distributed.run_of(name, overview) for name, overview in overviews], None)


def how_it_was_measured(inputs: ReportInputs) -> Iterator[Block]:
    yield from environments([*inputs.all_records, *(as_record(test[0]) for test in inputs.loads)])
    if inputs.records:
        models = group_by(inputs.records, lambda record: (record.case.model, machine_name(record.environment)))
        yield from list(dict.fromkeys(map(_repeat_command, models.values())))[:MAX_REPEATED]
        head, *notes = notes_document(inputs.records, known_rows=inputs.rows).blocks()
        yield Section("notes", f"Notes: {head}", notes, folded=True)
        numbers = csv_text(map(row_values, inputs.rows), row_fields(inputs.rows)).encode()
        yield Download("table.csv", "every number of the comparison", "text/csv", numbers)
    if inputs.all_records:
        yield pack_records(inputs.all_records)
    yield from inputs.problems


def _repeat_command(records: Sequence[Record]) -> str:
    """Return the command that repeats the measurement of a model and machine."""
    cases = [record.case for record in records]
    first = min(cases, key=lambda case: len(case.options))
    batches = sorted({case.batch for case in cases if case.batch is not None})
    precisions = list(dict.fromkeys(case.precision for case in cases))
    flags = [f"--precision {','.join(precisions)}"] if precisions != ["fp32"] else []
    device = "cuda" if records[0].environment.gpus else "cpu"
    model, *words = bench_words(first, device, flags, others=True, batches=batches)
    for backend, backend_cases in group_by(cases, lambda case: case.backend).items():
        for name in backend_cases[0].options:
            if all(name in case.options for case in backend_cases):
                values = dict.fromkeys(str(case.options[name]) for case in backend_cases)
                texts = (value.lower() if value in ("True", "False") else value for value in values)
                words += ["--option", f"{backend}.{name}={','.join(texts)}"]
    record = next((record for record in records if not record.repeat), records[0])
    backends = ",".join(dict.fromkeys(case.backend_label for case in cases))
    words = [model, "-b", backends, *words, *budget_words(record.budget, record.repeats)]
    return plain(f"Repeat it: {command('bench', words)}")


def environments(records: Sequence[Record]) -> Iterator[Table]:
    """Yield the properties of each machine and its libraries."""
    for machine, machine_records in group_by(records, lambda record: machine_name(record.environment)).items():
        environment = machine_records[-1].environment
        days = sorted({record.created[:10] for record in machine_records})
        libraries = {
            f"{name} {version}" for record in machine_records for name, version in record.environment.libraries.items()
        }
        threads = f", {environment.cpu_threads} threads" if environment.cpu_threads else ""
        facts = {
            "device": listing(list(dict.fromkeys(map(device_name, machine_records)))),
            "CPU": f"{environment.cpu}{threads}",
            "memory": byte_count(environment.memory) if environment.memory else "",
            "GPU driver": environment.driver,
            "system": " ".join(filter(None, [environment.system, environment.container])),
            "Python": environment.python,
            "Inferlens": environment.inferlens,
            "libraries": ", ".join(sorted(libraries)),
            "variables": ", ".join(f"{name}={value}" for name, value in environment.variables.items()),
            "measured": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
        }
        lines = [Line(name, [plain(value)]) for name, value in facts.items() if value]
        yield Table(plain(machine), "machine", [Column("value", "", numeric=False, fold=True)], lines)


def pack_records(records: Sequence[Record], name: str = "records", limit: int = MAX_PACKED) -> Block:
    """Pack the records with all samples, or say that they are too large."""
    about = "the records with all samples, one in each line"
    lines = (msgspec.json.encode(record, enc_hook=tuple) + b"\n" for record in records)
    packed = gzip.compress(b"".join(lines), 6, mtime=0)
    if len(packed) > limit:
        return f"Not in this page: {about}, which are more than {byte_count(limit)}."
    return Download(f"{name}.jsonl.gz", about, "application/gzip", packed)


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
    """Return the page with its sections; the title names the models, or the traces."""
    cases = [record.case for record in inputs.all_records] + [test[0].case for test in inputs.loads]
    names = list(dict.fromkeys(plain(bare(case.model)) for case in cases)) or trace_names(inputs.traces)
    title = listing(names if len(names) < 5 else [*names[:3], f"{len(names) - 3} more"])
    sections = [Section(name, heading, list(blocks(inputs))) for name, (heading, blocks) in SECTIONS.items()]
    return Report(title, [section for section in sections if section.blocks])
