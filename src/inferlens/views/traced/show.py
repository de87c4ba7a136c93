"""From paths to what is shown of them: reads and analyses; one trace, two compared, or those of all ranks or runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from inferlens.analysis.findings import trace_findings
from inferlens.errors import InferlensError, check_choice
from inferlens.trace.analysis import Analysis
from inferlens.trace.folders import SUFFIXES, rank_of, run_of, runs_in, traces_in
from inferlens.trace.reader import read, read_cached
from inferlens.views.plain import plain
from inferlens.views.table import FOR_PROGRAMS, FORMATS, Document, Table
from inferlens.views.traced.compared import compared_tables
from inferlens.views.traced.tables import BY, TOP, VIEWS, Selection, TraceTable, together


@dataclass(frozen=True)
class Shown:
    """What is shown of one trace, or of two compared: a heading and tables; ``more`` is what JSON alone has."""

    name: str
    tables: Sequence[TraceTable]
    notes: Sequence[str] = ()
    more: dict[str, Any] | None = None


@dataclass(frozen=True)
class TraceRequest:
    """What was asked for; ``view`` and ``by`` may name several, with commas."""

    path: Path
    against: Path | None = None
    view: str = "overview"
    step: str | None = None
    by: str = "name"
    top: int | None = None
    depth: int | None = None
    cache: bool = True

    def analysis(self, path: Path) -> Analysis:
        """A trace, or the step of it that was asked for.

        Raises:
            InferlensError: if there is no trace, or no such step.
        """
        return Analysis(read_cached(path) if self.cache else read(path), self.step)


def document(request: TraceRequest, format: str = "table") -> tuple[Document, list[str]]:
    """What was asked for, and remarks on how it was read.

    Raises:
        InferlensError: if there is no trace, no such step, or what was asked for cannot be compared.
    """
    check_choice("format", format, FORMATS)
    views, keys = _words("view", request.view, VIEWS), _words("--by", request.by, BY)
    top = request.top if request.top is not None or format in FOR_PROGRAMS else TOP
    selection = Selection(keys, top, request.depth)
    if request.against is not None:
        every = [_compared(request, request.against, views, selection)]
    elif request.path.is_dir():
        every = _of_folder(request, views, selection, format)
    else:
        every = [_shown(request.analysis(request.path), request.path, views, selection, format)]
    return of(every, views, notes=format == "html"), [note for shown in every for note in shown.notes]


def of(every: Sequence[Shown], views: Sequence[str], *, notes: bool = False) -> Document:
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


def _csv(every: Sequence[Shown]) -> tuple[list[str], list[list[Any]]]:
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


def _shown(analysis: Analysis, path: Path, views: Sequence[str], selection: Selection, format: str) -> Shown:
    more = {"overview": _overview(analysis)} if "overview" in views and format == "json" else None
    tables = [table for view in views for table in VIEWS[view](analysis, selection)]
    return Shown(_name(path), tables, _notes(path, analysis), more)


def _compared(request: TraceRequest, against: Path, views: Sequence[str], selection: Selection) -> Shown:
    paths = [_only(path) for path in (request.path, against)]
    before, after = (request.analysis(path) for path in paths)
    tables = [table for view in views for table in compared_tables(before, after, view, selection)]
    notes = [*_notes(paths[0], before), *_notes(paths[1], after)]
    return Shown(f"{_name(request.path)} against {_name(against)}", tables, notes)


def _only(path: Path) -> Path:
    """The trace itself, or the one in a log folder.

    Raises:
        InferlensError: if a folder has none, or several.
    """
    found = traces_in(path) if path.is_dir() else [path]
    if len(found) != 1:
        what = f"There are {len(found)} traces in {path}." if found else f"There is no trace in {path}."
        raise InferlensError(what, expected="one on each side", hint="the path of one of them")
    return found[0]


def _of_folder(request: TraceRequest, views: Sequence[str], selection: Selection, format: str) -> list[Shown]:
    """What each trace of a folder shows, one held at a time; before them what the ranks of a job, or runs, come to."""
    job = traces_in(request.path)
    named = [(_name(path), path) for path in job] or [(plain(name), path) for name, path in runs_in(request.path)]
    if not named:
        expected = f"files that end in {', '.join(SUFFIXES)}, in it or in the log folders in it"
        raise InferlensError(f"There is no trace in {request.path}.", expected=expected)
    if not job and len(named) > 1 and format != "json":  # the overview of runs is their table
        views = tuple(view for view in views if view != "overview")
    every, rows, problems = [], [], []
    for name, path in named:
        try:
            analysis = request.analysis(path)
            every.append(replace(_shown(analysis, path, views, selection, format), name=name))
        except InferlensError as error:
            problems.append(plain(str(error)))
            continue
        rows.append(rank_of(name, analysis) if job else run_of(name, analysis.overview))
    if not every:
        raise InferlensError(f"No trace in {request.path} can be read. {' '.join(problems[:3])}")
    tables = [together(rows, ranks=bool(job))] if len(every) > 1 else []
    return [Shown(_name(request.path), tables, problems), *every] if tables or problems else every


def _overview(analysis: Analysis) -> dict[str, Any]:
    """The overview and the advice under our names: those of a GPU's properties are Kineto's where they are read."""
    made = structs.asdict(analysis.overview)
    notes = made.pop("notes")
    gpus = [
        {**structs.asdict(gpu), "properties": structs.asdict(gpu.properties) if gpu.properties else None}
        for gpu in analysis.overview.gpus
    ]
    advice = [
        {"what": each.hint, "evidence": each.sentence, "at_stake": each.seconds} for each in trace_findings(analysis)
    ]
    return {**made, "gpus": gpus, "advice": advice, "notes": notes}


def _words(what: str, given: str, known: Sequence[str] | dict[str, Any]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in given.split(",") if word.strip()))
    for word in words:
        check_choice(what, word, known)
    return words


def _name(path: Path) -> str:
    return plain(path.name or str(path))


def _notes(path: Path, analysis: Analysis) -> list[str]:
    return [plain(f"{path}: {note}") for note in analysis.trace.notes]
