"""From paths to what is shown of them: reads and analyses; one trace, two compared, or those of all ranks or runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from inferlens.analysis.findings import trace_findings
from inferlens.errors import InferlensError, check_choice
from inferlens.trace import several
from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import Columns
from inferlens.trace.reader import read, read_cached
from inferlens.units import ABSENT, microseconds, milliseconds, ratio, significant
from inferlens.views.plain import plain
from inferlens.views.table import FOR_PROGRAMS, FORMATS, Column, Document, Table, text
from inferlens.views.traced.trace_views import BY, TOP, VIEWS, Selection, TraceTable, shapes, short, together

Load = Callable[[Path], Analysis]


@dataclass(frozen=True)
class ShownTrace:
    """What is shown of one trace, or of two compared: a heading and tables; ``more`` is what JSON alone has."""

    name: str
    tables: Sequence[TraceTable]
    notes: Sequence[str] = ()
    more: dict[str, Any] | None = None


def document(
    path: Path, format: str = "table", *, against: Path | None = None, view: str = "overview", step: str | None = None,
    by: str = "name", top: int | None = None, depth: int | None = None, cache: bool = True,
) -> tuple[Document, list[str]]:  # fmt: skip
    """What was asked for, and remarks on how it was read; ``view`` and ``by`` may name several, with commas.

    Raises:
        InferlensError: if there is no trace, no such step, or what was asked for cannot be compared.
    """

    def load(file: Path) -> Analysis:
        return Analysis(read_cached(file) if cache else read(file), step)

    check_choice("format", format, FORMATS)
    views, keys = _words("view", view, VIEWS), _words("--by", by, BY)
    selection = Selection(keys, TOP if top is None and format not in FOR_PROGRAMS else top, depth)
    if against is not None:
        every = [_compared(load, path, against, views, selection)]
    elif path.is_dir():
        every = _of_folder(load, path, views, selection, format)
    else:
        every = [_shown(load(path), path, views, selection, format)]
    return of(every, views, notes=format == "html"), [note for shown in every for note in shown.notes]


def of(every: Sequence[ShownTrace], views: Sequence[str], *, notes: bool = False) -> Document:
    """The document; ``notes`` says whether remarks stand in it."""

    def blocks() -> list[Table | str]:
        made: list[Table | str] = []
        for shown in every:
            made += shown.notes if notes else ()
            made += [table.table(shown.name if len(every) > 1 else "") for table in shown.tables]
        return made

    def data() -> dict[str, Any]:
        traces = [
            {
                "trace": shown.name,
                "notes": shown.notes,
                **(shown.more or {}),
                "tables": {table.name: table.rows() for table in shown.tables},
            }
            for shown in every
        ]
        return {"schema": "inferlens.trace/1", "view": ",".join(views), "traces": traces}

    return Document(blocks, data, lambda: _csv(every), f"{','.join(views)} of {every[0].name}")


def _csv(every: Sequence[ShownTrace]) -> tuple[list[str], list[list[Any]]]:
    """All rows under the columns of all tables; which trace and table a row is of stands in front, where it matters."""
    several_tables = any(len(shown.tables) > 1 for shown in every)
    names: dict[str, None] = {}
    rows: list[dict[str, Any]] = []
    for shown in every:
        for table in shown.tables:
            front = {"trace": shown.name} if len(every) > 1 else {}
            front |= {"table": table.name} if several_tables else {}
            names.update(dict.fromkeys([*front, *table.data.columns]))
            rows += [{**front, **row} for row in table.rows()]
    # Truths are True and False in it.
    cells = ([row.get(name) for name in names] for row in rows)
    return [*names], [[str(cell) if isinstance(cell, bool) else cell for cell in line] for line in cells]


def _shown(analysis: Analysis, path: Path, views: Sequence[str], selection: Selection, format: str) -> ShownTrace:
    more = {"overview": _overview(analysis)} if "overview" in views and format == "json" else None
    tables = [table for view in views for table in VIEWS[view](analysis, selection)]
    return ShownTrace(_name(path), tables, _notes(path, analysis), more)


def _compared(load: Load, path: Path, against: Path, views: Sequence[str], selection: Selection) -> ShownTrace:
    paths = [_only(each) for each in (path, against)]
    before, after = map(load, paths)
    tables = [table for view in views for table in _compared_tables(before, after, view, selection)]
    notes = [*_notes(paths[0], before), *_notes(paths[1], after)]
    return ShownTrace(f"{_name(path)} against {_name(against)}", tables, notes)


def _only(path: Path) -> Path:
    """The trace itself, or the one in a log folder."""
    found = several.traces_in(path) if path.is_dir() else [path]
    if len(found) != 1:
        what = f"There are {len(found)} traces in {path}." if found else f"There is no trace in {path}."
        raise InferlensError(what, expected="one on each side", hint="the path of one of them")
    return found[0]


def _of_folder(load: Load, folder: Path, views: Sequence[str], selection: Selection, format: str) -> list[ShownTrace]:
    """What each trace of a folder shows, one held at a time; before them what the ranks of a job, or runs, come to."""
    job = several.traces_in(folder)
    named = [(_name(path), path) for path in job] or [(plain(name), path) for name, path in several.runs_in(folder)]
    if not named:
        expected = f"files that end in {', '.join(several.SUFFIXES)}, in it or in the log folders in it"
        raise InferlensError(f"There is no trace in {folder}.", expected=expected)
    if not job and len(named) > 1 and format != "json":  # the overview of runs is their table
        views = tuple(view for view in views if view != "overview")
    every, rows, problems = [], [], []
    for name, path in named:
        try:
            analysis = load(path)
            every.append(replace(_shown(analysis, path, views, selection, format), name=name))
        except InferlensError as error:
            problems.append(plain(str(error)))
            continue
        rows.append(several.rank_of(name, analysis) if job else several.run_of(name, analysis.overview))
    if not every:
        raise InferlensError(f"No trace in {folder} can be read. {' '.join(problems[:3])}")
    tables = [together(rows, ranks=bool(job))] if len(every) > 1 else []
    return [ShownTrace(_name(folder), tables, problems), *every] if tables or problems else every


def _overview(analysis: Analysis) -> dict[str, Any]:
    """The overview and the advice under our names: those of a GPU's properties are Kineto's where they are read."""
    gpus = [
        {**structs.asdict(gpu), "properties": structs.asdict(gpu.properties) if gpu.properties else None}
        for gpu in analysis.overview.gpus
    ]
    advice = [
        {"what": each.hint, "evidence": each.sentence, "at_stake": each.seconds} for each in trace_findings(analysis)
    ]
    return {**structs.asdict(analysis.overview), "gpus": gpus, "advice": advice}


def _words(what: str, given: str, known: Sequence[str] | dict[str, Any]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in given.split(",") if word.strip()))
    for word in words:
        check_choice(what, word, known)
    return words


def _name(path: Path) -> str:
    return plain(path.name or str(path))


def _notes(path: Path, analysis: Analysis) -> list[str]:
    return [plain(f"{path}: {note}") for note in analysis.trace.notes]


# Two traces compared: what changed most first, and what all changes so far come to.

COMPARED = ("overview", "operators", "kernels", "modules", "timeline")


def _signed(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{milliseconds(abs(value))}"


def _calls(value: float | None) -> str:
    return ABSENT if not value else significant(value) if value % 1 else f"{value:,.0f}"


_TIMES = (
    Column("before", "before", "ms", milliseconds, 1),
    Column("after", "after", "ms", milliseconds, 2),
    Column("change", "change", "ms", _signed, 0),
)
_ROWS = (
    *_TIMES,
    Column("accumulated", "so far", "ms", _signed, 3),
    Column("calls_before", "calls before", "", _calls, 5),
    Column("calls_after", "calls after", "", _calls, 6),
    Column("state", "", "", text, 4, numeric=False),
)
_EVENTS = (
    Column("begin_before", "from before", "ms", milliseconds, 4),
    Column("before", "before", "µs", microseconds, 1),
    Column("begin_after", "from after", "ms", milliseconds, 5),
    Column("after", "after", "µs", microseconds, 0),
    Column("state", "", "", text, 2, numeric=False),
)
_SHAPES = Column("shapes", "shapes", "", shapes, 4, numeric=False, most=36)


def _compared_tables(before: Analysis, after: Analysis, view: str, selection: Selection) -> list[TraceTable]:
    if view not in COMPARED:
        raise InferlensError(f"The view '{view}' does not compare traces.", expected=", ".join(COMPARED))
    if view == "overview":
        return _overviews(before, after)
    if view == "timeline":
        data = several.execution(before, after)
        return [TraceTable("execution", "One step of each, side by side", "event", _EVENTS, data, top=selection.top)]
    data = several.rows_compared(view, before, after)
    columns = (_SHAPES, *_ROWS) if view == "operators" else _ROWS
    label = short if view == "kernels" else "path" if view == "modules" else "name"
    title = f"{view.capitalize()}: what changed most first, per step"
    return [TraceTable(view, title, view[:-1], columns, data, label, sentences=[_sum(data)], top=selection.top)]


def _overviews(before: Analysis, after: Analysis) -> list[TraceTable]:
    first, second = before.overview, after.overview
    parts = several.parts_compared({**first.parts, "step": first.step_time}, {**second.parts, "step": second.step_time})
    said = []
    if first.step_time and second.step_time:
        times = f"{milliseconds(first.step_time)} ms before and {milliseconds(second.step_time)} ms after"
        said.append(f"A step took {times}: {ratio(first.step_time / second.step_time)} as fast.")
    found = [TraceTable("parts", "What a step's time goes to", "part", _TIMES, parts, sentences=said)]
    if first.gpus or second.gpus:
        idle = several.parts_compared(first.idle, second.idle)
        found.append(TraceTable("idle", "Why the GPU is idle", "cause", _TIMES, idle))
    return found


def _sum(table: Columns) -> str:
    changes, states = table.columns["change"], list(table.columns["state"])
    gained, lost = (sum(each for each in changes if each * sign > 0) for sign in (-1, 1))
    whole = f"{_signed(gained + lost)} ms a step: {milliseconds(-gained)} ms gained, {milliseconds(lost)} ms lost"
    return f"In all {whole}; {states.count(several.NEW):,} rows are new, {states.count(several.GONE):,} are gone."
