"""Documents and charts of trace files: one trace, two compared, or all ranks or runs of a folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from inferlens.analysis.profile_table import short_kernel_name
from inferlens.analysis.samples import group_by
from inferlens.analysis.trace import trace_findings
from inferlens.errors import InferlensError, check_choice
from inferlens.trace import distributed
from inferlens.trace.analysis import PARTS, PREFIXES, WHOLE_TRACE, Analysis, Overview, communication, load_analysis
from inferlens.trace.model import CALLS, SECOND, Category, Columns, Ints, Trace
from inferlens.trace.tables import stepping
from inferlens.units import duration, listing, milliseconds, percent, plural
from inferlens.views.picture import (
    GREY,
    PALETTE,
    Box,
    Theme,
    boxes_svg,
    draw_chart,
    field,
    fields,
    marks,
    picture,
    title,
    vega_document,
)
from inferlens.views.table import (
    DATA_FORMATS,
    FORMATS,
    Block,
    Column,
    Document,
    Line,
    Picture,
    Section,
    Table,
    cut_middle,
    plain,
)
from inferlens.views.trace import (
    GROUPINGS,
    RANK_COLUMNS,
    RUN_COLUMNS,
    TOP,
    VIEWS,
    Row,
    Selection,
    TraceTable,
    TraceView,
    compare_view,
)

Load = Callable[[Path], Analysis]
_TIMES = re.compile(r" \([^()]* ms a step\)")  # omitted where each trace has one row
_MAX_TRACES = 12  # rows for people
_WIDEST = 60  # characters of a sentence in such a row


@dataclass(frozen=True)
class ShownTrace:
    """The views of one trace or of several. Only JSON has ``more``.

    ``words`` are those that the command takes to show it.
    """

    name: str
    words: tuple[str, ...]
    views: Sequence[TraceView]
    notes: Sequence[str] = ()
    more: dict[str, Any] | None = None

    @property
    def tables(self) -> list[TraceTable]:
        return [table for view in self.views for table in view.tables if isinstance(table, TraceTable)]


def trace_document(
    path: Path, format: str = "table", *, against: Path | None = None, view: str = "overview", step: str | None = None,
    by: str = "name", top: int | None = None, depth: int | None = None, wide: bool = False,
) -> tuple[Document, list[str]]:  # fmt: skip
    """Return the document of a trace, and remarks on reading it; ``view`` and ``by`` take several, with commas.

    Raises:
        InferlensError: if there is no trace, no such step, or a view does not compare.
    """

    load = partial(load_analysis, step=step)
    check_choice("format", format, FORMATS)
    views, keys = _check_words("view", view, VIEWS), _check_words("--by", by, GROUPINGS)
    selection = Selection(keys, TOP if top is None and format not in DATA_FORMATS else top, depth)
    everything = wide or format == "html"
    if against is not None:
        traces = [_compare_traces(load, path, against, views, selection)]
    elif path.is_dir():
        brief = not everything and format not in DATA_FORMATS
        traces = _folder_traces(load, path, views, selection, format, brief)
    else:
        traces = [show_trace(load(path), path, views, selection, format)]
    document = traces_document(traces, views, everything, next_step=format != "html")
    return document, [note for shown in traces for note in shown.notes]


def traces_document(
    traces: Sequence[ShownTrace], views: Sequence[str], all_tables: bool = False, next_step: bool = True
) -> Document:
    """Return the document; people get ``all_tables`` or what fits, and with ``next_step`` the next command."""

    def blocks() -> Iterator[Table | str]:
        for shown in traces:
            if all_tables:
                yield from shown.notes
            for view in shown.views:
                about = " · ".join(filter(None, (shown.name, view.about)))
                yield Table(about, sentences=view.answer)
                for table in view.tables:
                    if isinstance(table, Table):
                        yield table
                    elif all_tables or not table.wide:
                        yield table.table()
        if next_step and (line := _trace_command(traces[-1])):
            yield line

    def data() -> dict[str, Any]:
        described = [
            {
                "trace": shown.name, "notes": shown.notes,
                "answer": [sentence for view in shown.views for sentence in view.answer], **(shown.more or {}),
                "tables": {table.name: table.rows() for table in shown.tables},
            }
            for shown in traces
        ]  # fmt: skip
        return {"schema": "inferlens.trace/1", "view": ",".join(views), "traces": described}

    def csv_rows() -> Iterator[dict[str, Any]]:
        """Yield the rows of all tables. Truths are ``True`` and ``False``."""
        for shown in traces:
            for table in shown.tables:
                for row in table.rows():
                    values = {key: str(value) if isinstance(value, bool) else value for key, value in row.items()}
                    yield {"trace": shown.name, "table": table.name, **values}

    tables = [table for shown in traces for table in shown.tables]
    front = ["trace"] * (len(traces) > 1) + ["table"] * any(len(shown.tables) > 1 for shown in traces)
    fields = list(dict.fromkeys([*front, *(name for table in tables for name in table.data.columns)]))
    return Document(lambda: list(blocks()), data, csv_rows, fields, f"{','.join(views)} of {traces[0].name}")


def _trace_command(shown: ShownTrace) -> str:
    """Return the next command; a trace from a pipe needs a file name."""
    question, options = shown.views[-1].next_step if shown.views else ("", "")
    words = shlex.join("FILE" if word == "-" else word for word in shown.words)
    return f"{question}  inferlens trace {words} {options}".rstrip() if question else ""


def show_trace(
    analysis: Analysis, path: Path, views: Sequence[str], selection: Selection, format: str = "html"
) -> ShownTrace:
    more = {"overview": _overview_data(analysis)} if "overview" in views and format == "json" else None
    shown = [VIEWS[view](analysis, selection) for view in views]
    return ShownTrace(_trace_name(path), (str(path),), shown, _reading_notes(path, analysis), more)


def _compare_traces(load: Load, path: Path, against: Path, views: Sequence[str], selection: Selection) -> ShownTrace:
    candidate, base = _single_trace(path), _single_trace(against)
    before, after = load(base), load(candidate)
    shown = [compare_view(before, after, view, selection) for view in views]
    notes = [*_reading_notes(candidate, after), *_reading_notes(base, before)]
    names = [_trace_name(path), _trace_name(against)]
    if names[0] == names[1]:  # such as trace.json.gz in two folders
        names = [plain(str(path)), plain(str(against))]
    unmarked = [WHOLE_TRACE in analysis.counted.names for analysis in (after, before)]
    if unmarked[0] != unmarked[1]:
        whole_trace, other = names if unmarked[0] else reversed(names)
        notes.append(f"{whole_trace} has no marked steps: the whole of it is compared with one step of {other}.")
    return ShownTrace(f"{names[0]} against {names[1]}", (str(path), "--against", str(against)), shown, notes)


def _single_trace(path: Path) -> Path:
    """Return the trace itself, or the only one in a folder."""
    traces = distributed.traces_in(path) if path.is_dir() else [path]
    if len(traces) != 1:
        problem = f"There are {len(traces)} traces in {path}." if traces else f"There is no trace in {path}."
        raise InferlensError(problem, expected="one on each side", hint="the path of one of them")
    return traces[0]


def _folder_traces(
    load: Load, folder: Path, views: Sequence[str], selection: Selection, format: str, brief: bool
) -> list[ShownTrace]:
    """Load the traces of a folder one at a time; a view of ranks or runs comes first.

    ``brief`` returns that view alone, and the answers of other views.
    """
    ranks = [(path.name, path) for path in distributed.traces_in(folder)]
    named = ranks or distributed.runs_in(folder)
    if not named:
        expected = f"files that end in {', '.join(distributed.SUFFIXES)}, in it or in the log folders in it"
        raise InferlensError(f"There is no trace in {folder}.", expected=expected)
    traces, rank_rows, run_rows, origins, problems = [], [], [], {}, []
    for name, path in named:
        try:
            analysis = load(path)
            shown = show_trace(analysis, path, views, selection, format)
        except InferlensError as error:
            problems.append(plain(str(error)))
            continue
        traces.append(replace(shown, name=plain(name), words=(str(folder / name),)))
        rank_rows.append(distributed.rank_of(name, analysis))
        run_rows.append(distributed.run_of(name, analysis.overview))
        origins[plain(name)] = distributed.trace_origin(name, analysis.trace)
    if not traces:
        raise InferlensError(f"No trace in {folder} can be read. {' '.join(problems[:3])}")
    if len(traces) == 1:
        notes = [*problems, *traces[0].notes]
        return [replace(traces[0], name=_trace_name(folder), words=(str(folder),), notes=notes)]
    why = distributed.why_no_job(origins) if ranks else None
    overview = _ranks_view(rank_rows) if why == "" else runs_view(run_rows, why)
    words = traces[0].words if why != "" else (str(folder),)
    if not brief:
        return [ShownTrace(_trace_name(folder), words, [overview], problems), *traces]
    shown_views = [
        overview if view == "overview" else _answers_view(traces, view, place) for place, view in enumerate(views)
    ]
    problems += [note for shown in traces for note in shown.notes]
    return [ShownTrace(_trace_name(folder), words, shown_views, problems)]


def _ranks_view(rows: Sequence[Row]) -> TraceView:
    """Compare the ranks of one job, and name the one that others wait for."""
    sentences = [f"A traced step takes {_extremes(rows)}."]
    fewest, *_, most = sorted(rows, key=lambda row: float(row["communicating"]))
    if most["communicating"]:
        times = f"{milliseconds(fewest['communicating'])} to {milliseconds(most['communicating'])} ms of a step"
        awaited = plain(fewest["name"])
        sentences.append(f"Communication takes {times}; the others wait for {awaited}, which does so least.")
    table = _runs_table("ranks", "rank's trace", RANK_COLUMNS, rows)
    return TraceView(f"{len(rows)} ranks of one job", sentences, [table], ("Each of them?", "--wide"))


def runs_view(rows: Sequence[Row], why: str | None) -> TraceView:
    """Compare runs; ``why`` is the reason that traces are not ranks and are only listed."""
    first, sentences = "run", [f"A traced step takes {_extremes(rows)}."]
    if why is not None:
        first, problem = "trace", f"They are not ranks of one job ({why})"
        sentences = [f"{problem}: look at one, or compare two with --against."]
    if hosts := sum(row["bound"] == "host" for row in rows):
        sentences.append(f"While traced, the GPU waits for the host in {hosts} of {len(rows)}; tracing adds to that.")
    table = _runs_table("runs", first, RUN_COLUMNS, rows)
    return TraceView(f"{len(rows)} {first}s", sentences, [table], ("One of them?", ""))


def _runs_table(name: str, first: str, columns: Sequence[Column], rows: Sequence[Row]) -> TraceTable:
    data = Columns.named([*rows[0]], [[*row.values()] for row in rows])
    left = len(rows) - _MAX_TRACES
    more = [f"{plural(left, 'more row')}: --format csv"] if left > 0 else []
    return TraceTable(name, "", first, columns, data, brief=lambda rows: rows[:_MAX_TRACES], sentences=more)


def _extremes(rows: Sequence[Row]) -> str:
    """Return the shortest and the longest step of several traces with their names."""
    fast, *_, slow = sorted(rows, key=lambda row: float(row["step_time"]))
    ends = [f"{duration(row['step_time'])} ({cut_middle(plain(row['name']), LONGEST_NAME)})" for row in (fast, slow)]
    return " to ".join(ends)


def _answers_view(traces: Sequence[ShownTrace], view: str, place: int) -> TraceView:
    """Return the first sentence of a view for each trace."""
    sentences = (_TIMES.sub("", next(iter(shown.views[place].answer), "")) for shown in traces)
    lines = [Line(shown.name, [sentence]) for shown, sentence in zip(traces[:_MAX_TRACES], sentences, strict=False)]
    left = [f"{plural(len(traces) - _MAX_TRACES, 'more trace')}: --wide"] if len(traces) > _MAX_TRACES else []
    table = Table("", "trace", [Column("answer", "", numeric=False, max_width=_WIDEST)], lines, notes=left)
    return TraceView(f"{view} of {len(traces)} traces", (), [table], ("One of them?", f"--view {view}"))


def _overview_data(analysis: Analysis) -> dict[str, Any]:
    """Return overview and advice under our names, except for GPU properties, which keep Kineto's."""
    gpus = []
    for gpu in analysis.overview.gpus:
        properties = structs.asdict(gpu.properties) if gpu.properties else None
        gpus.append({**structs.asdict(gpu), "properties": properties})
    findings = trace_findings(analysis)
    advice = [{"what": finding.hint, "evidence": finding.sentence, "at_stake": finding.seconds} for finding in findings]
    return {**structs.asdict(analysis.overview), "gpus": gpus, "advice": advice}


def _check_words(what: str, text: str, choices: Sequence[str] | dict[str, Any]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in words:
        check_choice(what, word, choices)
    return words


def _trace_name(path: Path) -> str:
    return plain(path.name or str(path))


def _reading_notes(path: Path, analysis: Analysis) -> list[str]:
    return [plain(f"{path}: {note}") for note in analysis.trace.notes]


# Bars of the parts of each step or trace.

STEPS_CAPTION = "Each bar is {what}: what the GPU did comes first, then what the host did while no GPU worked."
BARS_WIDTH, MAX_BARS_HEIGHT = 700, 420  # pixels; of all bars together at most
MAX_BARS = 60  # bars
LONGEST_NAME, LONGEST_LINE = 40, 110
MIN_PART = 0.001  # of all bars: smaller parts are not visible
# Neighbours differ in lightness too.
PART_COLOURS = dict(zip(PARTS, (*(PALETTE[place] for place in (0, 1, 2, 8, 4, 5, 3)), GREY), strict=True))

Bars = Sequence[tuple[str, Mapping[str, float]]]


def render_steps(path: Path, format: str, *, step: str | None = None) -> str | bytes:
    """Draw the steps of a trace, or the mean step of each trace of a folder.

    Raises:
        InferlensError: if there is no trace, none has steps, or a library is missing.
    """

    load, runs = partial(load_analysis, step=step), list[tuple[str, Path]]()
    if path.is_dir():
        runs = [(file.name, file) for file in distributed.traces_in(path)] or distributed.runs_in(path)
    if len(runs) > 1:
        overviews = [(name, load(file).overview) for name, file in runs]
        return draw_chart(partial(traces_chart, overviews), format, path.name)
    return draw_chart(partial(steps_chart, load(runs[0][1] if runs else path), path.name), format, path.name)


def steps_chart(analysis: Analysis, name: str, theme: Theme) -> dict[str, Any]:
    bars: list[tuple[str, Mapping[str, float]]] = []
    counts: dict[str, int] = {}
    for row in stepping(analysis).rows(MAX_BARS):
        label = f"{row['step']} ({row['note']})" if row["note"] else str(row["step"])
        counts[label] = counts.get(label, 0) + 1
        bars.append((label + f" #{counts[label]}" * (counts[label] > 1), row))
    overview = analysis.overview
    part = max(overview.parts, key=lambda part: overview.parts[part])
    share = percent(overview.parts[part] / (overview.step_time or 1.0))
    gpus = dict.fromkeys(plain(gpu.name) or f"GPU {gpu.device}" for gpu in overview.gpus)
    about = [listing([*gpus]), f"{plural(overview.steps, 'traced step')} of {duration(overview.step_time)}"]
    answer = f"{cut_middle(plain(name), LONGEST_NAME)}: {part} takes most of a step, {share}"
    return _step_bars(bars, "step", answer, " · ".join(filter(None, about)), theme)


def traces_chart(traces: Sequence[tuple[str, Overview]], theme: Theme) -> dict[str, Any]:
    bars = [(cut_middle(plain(name), LONGEST_NAME), overview.parts) for name, overview in traces[:MAX_BARS]]
    times = [{"name": name, "step_time": overview.step_time} for name, overview in traces]
    answer = f"A traced step takes {_extremes(times)}"
    return _step_bars(bars, "trace", answer, plural(len(traces), "trace"), theme)


def _step_bars(bars: Bars, what: str, answer: str, about: str, theme: Theme) -> dict[str, Any]:
    if not bars:
        raise InferlensError("There is nothing to draw: the trace has no events.", expected="a trace with steps")
    sums = {part: sum(parts[part] for _, parts in bars) for part in PARTS}
    shown = [part for part in PARTS if sums[part] > MIN_PART * sum(sums.values())]
    values = []
    for label, parts in bars:
        whole = sum(parts[part] for part in PARTS) or 1.0
        values += [
            {what: label, "part": part, "place": PARTS.index(part), "time (ms)": 1e3 * parts[part],
             "took": f"{milliseconds(parts[part])} ms, {percent(parts[part] / whole)}"}
            for part in shown
        ]  # fmt: skip
    scale = {"domain": shown, "range": [PART_COLOURS[part] for part in shown]}
    legend = {"title": None, "orient": "top", "offset": 8, "symbolType": "square"}
    labels = [label for label, _ in bars]
    above = "step" if what == "step" and len(labels) > 1 else None
    channels = {
        "x": field("time (ms):Q", stack=True, title="time (ms)", axis={"format": ",~r", "tickCount": 8}),
        "y": field(f"{what}:N", sort=labels, title=above, axis={"labelOverlap": True}),
        "color": field("part:N", scale=scale, legend=legend),
        "order": field("place:Q"),
        "tooltip": fields(*((name, name) for name in (what, "part", "took"))),
    }
    size = {"width": BARS_WIDTH, "height": {"step": min(26, max(4, MAX_BARS_HEIGHT // len(labels)))}}
    heading = title(answer, cut_middle(about, LONGEST_LINE), size=16, offset=12)
    return vega_document({**marks("bar", channels, values, height={"band": 0.8}), **size, "title": heading}, theme)


# Traces in a report: a timeline of one step, and views and differences of all traces.

TIMELINE_HOW = (
    "A step from left to right, in the colours above: operators of the host and their calls, then what each GPU ran."
)
THREADS, STREAMS = 3, 6  # the busiest threads of the host, and streams of all GPUs
MAX_NESTING = 4  # rows of a thread
TIMELINE_BINS = 360  # bins of a step: short events of one kind that begin in the same bin share a box
KERNEL, COPY, FILL, COMMUNICATION, RUNTIME, LOADER, CPU, _ = range(len(PARTS))


def step_timeline(analysis: Analysis, name: str) -> Picture | None:
    """Draw the step of median length, if anything ran in it."""
    steps = analysis.counted
    lengths = steps.end - steps.begin
    if not len(steps) or not lengths.max():
        return None
    place = int(np.argsort(lengths)[len(lengths) // 2])
    begin, end, number = int(steps.begin[place]), int(steps.end[place]), plain(str(steps.names[place]))
    lanes = [*_threads(analysis.trace, begin, end), *_streams(analysis, begin, end)]
    which = f"{number if number == WHOLE_TRACE else f'step {number}'}, {duration((end - begin) / SECOND)}"
    panels = [(f"{which} · {title}" if not count else title, boxes) for count, (title, boxes) in enumerate(lanes)]
    return Picture(name, TIMELINE_HOW, partial(boxes_svg, "what ran when in one step", panels)) if panels else None


def _threads(trace: Trace, begin: int, end: int) -> Iterator[tuple[str, list[Box]]]:
    """Yield the busiest threads of the host with nested operators and calls."""
    rows = np.concatenate([trace.scopes.row, trace.calls.row])
    rows = rows[~trace.starting(rows, *PREFIXES)]
    rows = rows[(trace.ends(rows) > begin) & (trace.begin[rows] < end)]  # a host that is ahead launches before it
    threads, thread_index = np.unique(trace.thread[rows], return_inverse=True)
    took = np.bincount(thread_index, trace.duration[rows], len(threads))
    for thread in np.argsort(-took)[:THREADS].tolist():
        events = rows[thread_index == thread]
        events = events[np.lexsort((-trace.duration[events], trace.begin[events]))]
        # The depth of an event is the number of events that have begun minus those that have ended; all take some time.
        ends = np.sort(np.maximum(trace.ends(events), trace.begin[events] + 1))
        depth = np.arange(len(events)) - np.searchsorted(ends, trace.begin[events], "right")
        parts = np.full(len(events), CPU)
        parts[np.isin(trace.category[events], CALLS)] = RUNTIME
        parts[trace.named(events, lambda name: "DataLoader" in name)] = LOADER
        parts[trace.starting(events, "nccl:", "gloo:")] = COMMUNICATION
        shown = depth < MAX_NESTING
        process, number = trace.threads[int(threads[thread])]
        boxes = _event_boxes(trace, events[shown], depth[shown], parts[shown], begin, end)
        yield f"host · thread {plain(number or process)}", boxes


def _streams(analysis: Analysis, begin: int, end: int) -> Iterator[tuple[str, list[Box]]]:
    """Yield the busiest GPU streams in order."""
    trace, gpu = analysis.trace, analysis.trace.gpu
    parts = np.full(len(gpu), KERNEL)
    parts[trace.category[gpu.row] == Category.MEMCPY] = COPY
    parts[trace.category[gpu.row] == Category.MEMSET] = FILL
    parts[communication(trace, analysis.launch_links)] = COMMUNICATION
    inside = np.flatnonzero((trace.ends(gpu.row) > begin) & (trace.begin[gpu.row] < end))
    streams, stream_index = np.unique(np.stack([gpu.device[inside], gpu.stream[inside]]), axis=1, return_inverse=True)
    stream_index = stream_index.reshape(-1)
    took = np.bincount(stream_index, trace.duration[gpu.row[inside]], streams.shape[1])
    for place in sorted(np.argsort(-took)[:STREAMS].tolist()):
        events = inside[stream_index == place]
        device, stream = streams[:, place].tolist()
        boxes = _event_boxes(trace, gpu.row[events], np.zeros(len(events), np.int64), parts[events], begin, end)
        yield f"GPU {device} · stream {stream}", boxes


def _event_boxes(trace: Trace, rows: Ints, depth: Ints, parts: NDArray[np.int64], begin: int, end: int) -> list[Box]:
    """Return events as boxes; short neighbours are merged."""
    length, boxes = end - begin, list[Box]()
    left, right = ((np.clip(times, begin, end) - begin) / length for times in (trace.begin[rows], trace.ends(rows)))
    took = trace.duration[rows] / SECOND

    def box(members: Ints) -> None:
        first = int(members[0])
        part, row = PARTS[int(parts[first])], int(depth[first])
        name = trace.name_of(int(rows[first]))
        label = plain(short_kernel_name(name) if part == "kernel" else name)
        text = label if len(members) == 1 else plural(len(members), "event")
        wide = float(right[members].max() - left[first])
        spent, after = duration(float(took[members].sum())), duration(float(left[first] * length / SECOND))
        about = f"{text}; {part}; {spent}; {after} after the step's begin"
        names = [text, cut_middle(text, 24), cut_middle(text, 12)] if len(members) == 1 else []
        boxes.append(Box(float(left[first]), wide, row, names, about, PART_COLOURS[part]))

    short = right - left < 1 / TIMELINE_BINS
    for place in np.flatnonzero(~short)[:, None]:
        box(place)
    places = np.flatnonzero(short)
    bins = (left[places] * TIMELINE_BINS).astype(np.int64)
    keys = (bins * MAX_NESTING + depth[places]) * len(PARTS) + parts[places]
    order = np.argsort(keys, kind="stable")
    for members in np.split(places[order], np.flatnonzero(np.diff(keys[order])) + 1):
        if len(members):
            box(members)
    return boxes


# A trace is read once for all sections.

MAX_REPORT_TRACES = 12
REPORT_ROWS = 20  # rows of operators and kernels
REPORT_VIEWS = ("overview", "operators", "kernels")
TRACES_CAPTION = STEPS_CAPTION.format(what="the mean step of a trace")


@dataclass(frozen=True)
class ReportTrace:
    """A trace of a report: its name, analysis, answer and blocks, or the problem."""

    name: str
    analysis: Analysis | None = None
    answer: Sequence[str] = ()
    blocks: Sequence[Block] = ()
    problem: str = ""


def load_traces(paths: Sequence[Path]) -> Iterator[ReportTrace]:
    """Load the first :data:`MAX_REPORT_TRACES` traces."""
    for number, (path, name) in enumerate(zip(paths[:MAX_REPORT_TRACES], trace_names(paths), strict=False), 1):
        try:
            analysis = load_analysis(path)
            shown = replace(show_trace(analysis, path, REPORT_VIEWS, Selection(top=REPORT_ROWS)), name="")
            tables = traces_document([shown], REPORT_VIEWS, all_tables=True, next_step=False).blocks()
            blocks: list[Block] = []
            if len(analysis.steps):
                steps = partial(steps_chart, analysis, name)
                blocks.append(picture(f"steps-{number}", STEPS_CAPTION.format(what="a step"), steps))
            blocks += [*filter(None, [step_timeline(analysis, f"timeline-{number}")]), *tables]
            yield ReportTrace(name, analysis, shown.views[REPORT_VIEWS.index("overview")].answer, blocks)
        except InferlensError as error:
            yield ReportTrace(name, problem=str(error))


def trace_differences(traces: Sequence[ReportTrace]) -> Iterator[Section]:
    """Compare each readable trace with the first one whose name ends in the same number, such as a batch size."""
    readable = [(trace.name, trace.analysis) for trace in traces if trace.analysis]
    groups = [*group_by(readable, lambda pair: "".join(re.findall(r"\d+$", pair[0]))).values()]
    groups = groups if len(groups) < len(readable) else [readable]
    pairs = [(group[0], candidate) for group in groups for candidate in group[1:]]
    for number, ((base_name, base), (name, analysis)) in enumerate(pairs, 1):
        views = [compare_view(base, analysis, view, Selection(top=REPORT_ROWS)) for view in REPORT_VIEWS]
        document = traces_document([ShownTrace("", (), views)], REPORT_VIEWS, all_tables=True, next_step=False)
        chart = partial(traces_chart, [(base_name, base.overview), (name, analysis.overview)])
        drawn = [picture(f"against-{number}", TRACES_CAPTION, chart)] if len(traces) > 2 else []
        yield Section(f"difference-{number}", f"{name} against {base_name}", [*drawn, *document.blocks()], folded=True)


def trace_names(paths: Sequence[Path]) -> list[str]:
    """Return distinct names of traces: folders, or folder and file."""
    folders = [path.resolve().parent.name for path in paths]
    distinct = len({*folders}) == len(folders) > 1
    return [folder if distinct else f"{folder}/{path.name}" for folder, path in zip(folders, paths, strict=True)]
