"""What lies under the paths that a report is of: records, profiles, tunings, quantizations and traces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inferlens.analysis.evidence import Finding
from inferlens.analysis.profile_table import short_name
from inferlens.analysis.trace_findings import trace_findings
from inferlens.analysis.tuning import TuningReport, find_tunings, load_tuning, tunings_under
from inferlens.errors import InferlensError, paths_like
from inferlens.record.file_kind import READABLE, refuse_other_files
from inferlens.record.files import files_under
from inferlens.record.quantization import KEPT, Quantization
from inferlens.record.quantization import read as read_quantization
from inferlens.record.record import Record
from inferlens.record.store import BEST, LoadedProfiles, load_profiles, load_records, read_one
from inferlens.trace import several
from inferlens.trace.analysis import Analysis, Overview, load_analysis
from inferlens.trace.columns import SECOND
from inferlens.trace.steps import PARTS, PREFIXES, WHOLE_TRACE, communication
from inferlens.trace.trace import CALLS, Category, Ints, Trace
from inferlens.units import duration, plural
from inferlens.views.picture import Box, colours_of, picture, svg
from inferlens.views.plain import plain, without_middle
from inferlens.views.profiled.findings import Judged, judged
from inferlens.views.report.blocks import Block, Picture, Section
from inferlens.views.rows import Row, rows
from inferlens.views.table import Table
from inferlens.views.traced import show, step_chart
from inferlens.views.traced.step_chart import COLOURS
from inferlens.views.traced.trace_views import VIEWS, Selection, TraceTable, TraceView, compared

# One step of a trace from left to right: what each thread of the host did, and what each stream of a GPU ran.

TIMELINE_HOW = (
    "A step from left to right, in the colours above: operators of the host and their calls, then what each GPU ran."
)
THREADS, STREAMS, DEEPEST = 3, 6, 4  # of the host, of all GPUs together, that took the most; rows of a thread
BINS = 360  # of a step: short events of one kind that begin in the same bin are one box
KERNEL, COPY, FILL, COMMUNICATION, RUNTIME, LOADER, CPU, _ = range(len(PARTS))


def timeline(analysis: Analysis, name: str) -> Picture | None:
    """Of the step whose length is the median; none where nothing ran in it."""
    steps = analysis.counted
    lengths = steps.end - steps.begin
    if not len(steps) or not lengths.max():
        return None
    place = int(np.argsort(lengths)[len(lengths) // 2])
    begin, end, number = int(steps.begin[place]), int(steps.end[place]), plain(str(steps.names[place]))
    lanes = [*_threads(analysis.trace, begin, end), *_streams(analysis, begin, end)]
    which = f"{number if number == WHOLE_TRACE else f'step {number}'}, {duration((end - begin) / SECOND)}"
    panels = [(f"{which} · {title}" if not count else title, boxes) for count, (title, boxes) in enumerate(lanes)]
    return Picture(name, TIMELINE_HOW, partial(svg, "what ran when in one step", panels)) if panels else None


def _threads(trace: Trace, begin: int, end: int) -> Iterator[tuple[str, list[Box]]]:
    """The threads of the host that did the most, with their operators and calls nested."""
    rows = np.concatenate([trace.scopes.row, trace.calls.row])
    rows = _inside(trace, rows[~trace.starting(rows, *PREFIXES)], begin, end)
    threads, of = np.unique(trace.thread[rows], return_inverse=True)
    took = np.bincount(of, trace.duration[rows], len(threads))
    for thread in np.argsort(-took)[:THREADS].tolist():
        mine = rows[of == thread]
        mine = mine[np.lexsort((-trace.duration[mine], trace.begin[mine]))]
        # Of events that are in one another: those that have begun less those that have ended. None ends as it begins.
        ends = np.sort(np.maximum(trace.ends(mine), trace.begin[mine] + 1))
        depth = np.arange(len(mine)) - np.searchsorted(ends, trace.begin[mine], "right")
        parts = np.full(len(mine), CPU)
        parts[np.isin(trace.category[mine], CALLS)] = RUNTIME
        parts[trace.named(mine, lambda name: "DataLoader" in name)] = LOADER
        parts[trace.starting(mine, "nccl:", "gloo:")] = COMMUNICATION
        shown = depth < DEEPEST
        process, number = trace.threads[int(threads[thread])]
        yield (
            f"host · thread {plain(number or process)}",
            _boxes(trace, mine[shown], depth[shown], parts[shown], begin, end),
        )


def _streams(analysis: Analysis, begin: int, end: int) -> Iterator[tuple[str, list[Box]]]:
    """The streams of GPUs that ran the most, in order."""
    trace, gpu = analysis.trace, analysis.trace.gpu
    parts = np.full(len(gpu), KERNEL)
    parts[trace.category[gpu.row] == Category.MEMCPY] = COPY
    parts[trace.category[gpu.row] == Category.MEMSET] = FILL
    parts[communication(trace, analysis.launch_links)] = COMMUNICATION
    inside = np.flatnonzero((trace.ends(gpu.row) > begin) & (trace.begin[gpu.row] < end))
    streams, of = np.unique(np.stack([gpu.device[inside], gpu.stream[inside]]), axis=1, return_inverse=True)
    of = of.reshape(-1)
    took = np.bincount(of, trace.duration[gpu.row[inside]], streams.shape[1])
    for which in sorted(np.argsort(-took)[:STREAMS].tolist()):
        here = inside[of == which]
        device, stream = streams[:, which].tolist()
        boxes = _boxes(trace, gpu.row[here], np.zeros(len(here), np.int64), parts[here], begin, end)
        yield f"GPU {device} · stream {stream}", boxes


def _inside(trace: Trace, rows: Ints, begin: int, end: int) -> Ints:
    """The events that go on in the step, also those that began before it: a host that is ahead launches early."""
    found: Ints = rows[(trace.ends(rows) > begin) & (trace.begin[rows] < end)]
    return found


def _boxes(trace: Trace, rows: Ints, depth: Ints, parts: NDArray[np.int64], begin: int, end: int) -> list[Box]:
    """Events as boxes; of short ones those that begin about the same time are one."""
    length, found = end - begin, list[Box]()
    left, right = ((np.clip(item, begin, end) - begin) / length for item in (trace.begin[rows], trace.ends(rows)))
    took = trace.duration[rows] / SECOND

    def box(members: Ints) -> None:
        first = int(members[0])
        part, row = PARTS[int(parts[first])], int(depth[first])
        name = trace.name_of(int(rows[first]))
        one = plain(short_name(name) if part == "kernel" else name)
        what = one if len(members) == 1 else plural(len(members), "event")
        wide = float(right[members].max() - left[first])
        spent, after = duration(float(took[members].sum())), duration(float(left[first] * length / SECOND))
        about = f"{what}; {part}; {spent}; {after} after the step's begin"
        names = (
            [what, *(without_middle(what, letters) for letters in (60, 40, 30, 24, 18, 12, 8))]
            if len(members) == 1
            else []
        )
        found.append(Box(float(left[first]), wide, row, names, about, COLOURS[part]))

    short = right - left < 1 / BINS
    for place in np.flatnonzero(~short)[:, None]:
        box(place)
    some = np.flatnonzero(short)
    keys = ((left[some] * BINS).astype(np.int64) * DEEPEST + depth[some]) * len(PARTS) + parts[some]
    order = np.argsort(keys, kind="stable")
    for members in np.split(some[order], np.flatnonzero(np.diff(keys[order])) + 1):
        if len(members):
            box(members)
    return found


# Traces as a page has them, each read once and one held at a time: what it comes to, and what is shown of it.

MOST = 12
ROWS = 20  # of operators and kernels
SHOWN = ("overview", "operators", "kernels")
HOW = step_chart.HOW.format(what="the mean step of a trace")


@dataclass(frozen=True)
class Looked:
    """One trace: its name among the others, its overview and advice, what is shown of it, or why it cannot be read."""

    name: str
    analysis: Analysis | None = None
    overview: Overview | None = None
    advice: Sequence[Finding] = ()
    answer: Sequence[str] = ()
    blocks: Sequence[Block] = ()
    problem: str = ""


def looked(paths: Sequence[Path]) -> Iterator[Looked]:
    """The first :data:`MOST` of them."""
    for number, (path, name) in enumerate(zip(paths[:MOST], names(paths), strict=False), 1):
        try:
            analysis = load_analysis(path)
            shown = replace(show.shown_of(analysis, path, SHOWN, Selection(top=ROWS)), name="")
            tables = show.of([shown], SHOWN, everything=True, look=False).blocks()
            blocks = [*_pictures(analysis, name, number), *tables]
            answer = VIEWS["overview"](analysis, Selection()).answer
            yield Looked(name, analysis, analysis.overview, trace_findings(analysis), answer, blocks)
        except InferlensError as error:
            yield Looked(name, problem=str(error))


def differences(traces: Sequence[Looked]) -> Iterator[Section]:
    """Each of them against the first of those whose names end in the same number, such as a batch size."""
    alike: dict[str, list[Looked]] = {}
    for trace in traces:
        alike.setdefault("".join(re.findall(r"\d+$", trace.name)), []).append(trace)
    for group in alike.values() if len(alike) < len(traces) else [traces]:
        for item in group[1:]:
            base = group[0]
            if not (base.analysis and base.overview and item.analysis and item.overview):
                continue  # why not is said where it is shown by itself
            try:
                views = [compared(base.analysis, item.analysis, view, Selection(top=ROWS)) for view in SHOWN]
            except InferlensError:
                continue
            title = f"{item.name} against {base.name}"
            blocks = show.of([show.ShownTrace("", (), views)], SHOWN, everything=True, look=False).blocks()
            pair = [(base.name, base.overview), (item.name, item.overview)]
            drawn = [picture(f"against-{title}", HOW, partial(step_chart.of_traces, pair))] if len(traces) > 2 else []
            yield Section(re.sub(r"\W+", "-", title), title, [*drawn, *blocks], folded=True)


def _pictures(analysis: Analysis, name: str, number: int) -> Iterator[Block]:
    """What its steps went to, and what ran when in one of them."""
    if len(analysis.steps):
        how = step_chart.HOW.format(what="a step")
        yield picture(f"steps-{number}", how, partial(step_chart.of_steps, analysis, name))
    if one := timeline(analysis, f"timeline-{number}"):
        yield one


def names(paths: Sequence[Path]) -> list[str]:
    """What the traces are called: by their folders where these tell them apart, else by folder and file."""
    folders = [path.resolve().parent.name for path in paths]
    alone = len({*folders}) == len(folders) > 1
    return [folder if alone else f"{folder}/{path.name}" for folder, path in zip(folders, paths, strict=True)]


@dataclass
class Found:
    """All of it; ``problems`` are what could not be read, a sentence each, ``folders`` of records by their ids."""

    records: list[Record] = field(default_factory=list)
    profiles: LoadedProfiles = field(default_factory=LoadedProfiles)
    tunings: list[TuningReport] = field(default_factory=list)
    quantizations: list[Quantization] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    folders: dict[str, Path] = field(default_factory=dict)

    @property
    def every(self) -> list[Record]:
        """All records, those of tunings' finals included."""
        return [*self.records, *(record for tuning in self.tunings for record in tuning.final_records)]

    @cached_property
    def colours(self) -> dict[str, str]:
        """The colour of each backend, in all charts of the page."""
        tried = (record for tuning in self.tunings for trial in tuning.trials for record in trial.records)
        cases = [
            *(record.case for record in (*self.every, *tried)),
            *(profile.case for profile in self.profiles.profiles),
        ]
        return colours_of(sorted({plain(case.backend_label) for case in cases}))

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the records beside the tunings."""
        return rows(self.records)

    @cached_property
    def looked(self) -> list[Looked]:
        """The traces, as far as they are shown."""
        return list(looked(self.traces))

    @cached_property
    def judged(self) -> list[Judged]:
        """The profiled cases with their findings."""
        return judged(self.profiles, self.rows)


def found_in(paths: Sequence[Path]) -> Found:
    """What there is under ``paths``.

    Raises:
        InferlensError: if there is nothing, or a path is not there.
    """
    found = Found()
    for path in paths:
        if not path.exists():
            hint = paths_like(path, folders=True) or "inferlens bench"
            raise InferlensError(f"{path} does not exist.", expected="a folder with results", hint=hint)
    folders = find_tunings(paths) or [folder for path in paths for folder in tunings_under(path)]
    winners = set()
    for folder in folders:
        try:
            found.tunings.append(load_tuning(folder))
            winners.add(folder.parent / BEST)
        except InferlensError as error:
            found.problems.append(str(error))
    found.traces = list(dict.fromkeys(trace for path in paths for trace in several.traces_under(path)))
    files = [file for path in paths for file in files_under(path, KEPT)]
    found.quantizations = [one for file in files if (one := read_one(file, read_quantization, found.problems))]
    for load in (_records, _profiles):
        load(found, [path for path in paths if path not in found.traces])
    # What a tuning left ready to be used is shown with it.
    found.records = [record for record in found.records if found.folders.get(record.id) not in winners]
    if not (found.records or found.profiles.profiles or found.tunings or found.quantizations or found.traces):
        refuse_other_files(paths, READABLE, "record, profile, tuning or trace")
        what = f"There is nothing to report in {', '.join(map(str, paths))}. {' '.join(found.problems[:2])}"
        raise InferlensError(
            what.strip(), expected="records, profiles, tunings or traces", hint="inferlens bench MODEL"
        )
    return found


def _records(found: Found, paths: Sequence[Path]) -> None:
    try:
        loaded = load_records(paths)
    except InferlensError:
        return  # there may be profiles or traces
    found.records, found.folders = loaded.records, loaded.folders
    found.problems += loaded.problems


def _profiles(found: Found, paths: Sequence[Path]) -> None:
    try:
        found.profiles = load_profiles(paths)
    except InferlensError:
        return
    found.problems += found.profiles.problems
    known = {record.case.model for record in found.records}
    found.records += [record for record in found.profiles.records.values() if record.case.model not in known]


# Traces: what a step of each is made of, and what to do about it.

FINDINGS = 3


def answer(found: Found) -> Iterator[Block]:
    """What the traces come to: of one what bounds it and what to do, of several how long a step of each takes."""
    able = [item for item in found.looked if item.overview]
    if len(able) == 1:
        first, *more = able[0].answer
        yield Table(able[0].name, "", (), (), answer=[first], sentences=more)
    elif able:
        said = _side_by_side(_overviews(found)).answer
        advice = [(plain(item.name), finding) for item in able for finding in item.advice[:1]]
        advice.sort(key=lambda pair: -(pair[1].seconds or 0.0))
        hints = [f"{name}: {finding.sentence} {finding.hint}" for name, finding in advice[:FINDINGS]]
        yield Table(plural(len(able), "trace"), "", (), (), answer=said[:1], sentences=[*said[1:], *hints])


def traces(found: Found) -> Iterator[Block]:
    """All side by side; of each its steps as a picture, overview with advice, operators, kernels; then what changed."""
    made = _overviews(found)
    if len(made) > 1:
        yield picture("traces", HOW, partial(step_chart.of_traces, made))
        table = _side_by_side(made).tables[0]
        yield table.table() if isinstance(table, TraceTable) else table
    for number, item in enumerate(found.looked, 1):
        if item.problem:
            yield item.problem
        else:
            yield Section(f"trace-{number}", item.name, item.blocks, folded=len(found.traces) > 1)
    yield from differences(found.looked)
    if len(found.traces) > MOST:
        yield f"{plural(len(found.traces) - MOST, 'more trace')} not shown."


def _overviews(found: Found) -> list[tuple[str, Overview]]:
    return [(item.name, item.overview) for item in found.looked if item.overview]


def _side_by_side(made: Sequence[tuple[str, Overview]]) -> TraceView:
    return show.runs_of([several.run_of(*item) for item in made], None)
