"""From paths to what is shown of them: reads and analyses; one trace, two compared, or those of all ranks or runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from inferlens.analysis.trace_findings import trace_findings
from inferlens.errors import InferlensError, check_choice
from inferlens.trace import several
from inferlens.trace.analysis import Analysis, load_analysis
from inferlens.trace.columns import Columns
from inferlens.trace.steps import WHOLE_TRACE
from inferlens.units import duration, milliseconds, plural
from inferlens.views.plain import plain
from inferlens.views.table import FOR_PROGRAMS, FORMATS, Column, Document, Line, Table
from inferlens.views.traced.trace_columns import RANKS, RUNS
from inferlens.views.traced.trace_views import BY, TOP, VIEWS, Row, Selection, TraceTable, TraceView, compared

Load = Callable[[Path], Analysis]
_TIMES = re.compile(r" \([^()]* ms a step\)")  # for which the row of a trace among others has no room
_MOST = 12  # traces of several that people get
_WIDEST = 100  # columns of a command that stays on one line


@dataclass(frozen=True)
class ShownTrace:
    """What is shown of one trace, or of several: views of it; ``more`` is what JSON alone has.

    ``words`` are those that the command takes to show it.
    """

    name: str
    words: tuple[str, ...]
    views: Sequence[TraceView]
    notes: Sequence[str] = ()
    more: dict[str, Any] | None = None

    @property
    def tables(self) -> list[TraceTable]:
        """Those that programs get."""
        return [table for view in self.views for table in view.tables if isinstance(table, TraceTable)]


def document(
    path: Path, format: str = "table", *, against: Path | None = None, view: str = "overview", step: str | None = None,
    by: str = "name", top: int | None = None, depth: int | None = None, wide: bool = False,
) -> tuple[Document, list[str]]:  # fmt: skip
    """What was asked for, and remarks on how it was read; ``view`` and ``by`` may name several, with commas.

    All is as the command ``inferlens trace`` has it.

    Raises:
        InferlensError: if there is no trace, no such step, or what was asked for cannot be compared.
    """

    load = partial(load_analysis, step=step)
    check_choice("format", format, FORMATS)
    views, keys = _words("view", view, VIEWS), _words("--by", by, BY)
    selection = Selection(keys, TOP if top is None and format not in FOR_PROGRAMS else top, depth)
    everything = wide or format == "html"
    if against is not None:
        every = [_compared(load, path, against, views, selection)]
    elif path.is_dir():
        brief = top is None and not everything and format not in FOR_PROGRAMS
        every = _of_folder(load, path, views, selection, format, brief)
    else:
        every = [shown_of(load(path), path, views, selection, format)]
    return of(every, views, everything, look=format != "html"), [note for shown in every for note in shown.notes]


def of(every: Sequence[ShownTrace], views: Sequence[str], everything: bool = False, look: bool = True) -> Document:
    """The document; people get ``everything`` or what fits on a screen, and with ``look`` the command to go on with."""

    def blocks() -> Iterator[Table | str]:
        for shown in every:
            if everything:
                yield from shown.notes
            for view in shown.views:
                about = " · ".join(filter(None, (shown.name, view.about)))
                yield Table(about, "", (), (), sentences=view.answer)
                for table in view.tables:
                    if isinstance(table, Table):
                        yield table
                    elif everything or not table.wide:
                        yield table.table()
        if look and (line := _look(every[-1])):
            yield line

    def data() -> dict[str, Any]:
        traces = [
            {
                "trace": shown.name,
                "notes": shown.notes,
                "answer": [sentence for view in shown.views for sentence in view.answer],
                **(shown.more or {}),
                "tables": {table.name: table.rows() for table in shown.tables},
            }
            for shown in every
        ]
        return {"schema": "inferlens.trace/1", "view": ",".join(views), "traces": traces}

    return Document(lambda: list(blocks()), data, lambda: _csv(every), f"{','.join(views)} of {every[0].name}")


def _look(shown: ShownTrace) -> str:
    """Where to look next: a command that can be pasted; of a trace that came through a pipe its options."""
    question, options = shown.views[-1].look if shown.views else ("", "")
    words = shlex.join("FILE" if word == "-" else word for word in shown.words)
    return f"{question}  inferlens trace {words} {options}".rstrip() if question else ""


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


def shown_of(
    analysis: Analysis, path: Path, views: Sequence[str], selection: Selection, format: str = "html"
) -> ShownTrace:
    """What views show of one trace."""
    more = {"overview": _overview(analysis)} if "overview" in views and format == "json" else None
    made = [VIEWS[view](analysis, selection) for view in views]
    return ShownTrace(_name(path), (str(path),), made, _notes(path, analysis), more)


def _compared(load: Load, path: Path, against: Path, views: Sequence[str], selection: Selection) -> ShownTrace:
    """What ``path`` is against the base."""
    candidate, base = (_only(item) for item in (path, against))
    before, after = load(base), load(candidate)
    made = [compared(before, after, view, selection) for view in views]
    notes = [*_notes(candidate, after), *_notes(base, before)]
    names = [_name(path), _name(against)]
    if names[0] == names[1]:  # such as trace.json.gz, in folders that tell them apart
        names = [plain(str(item)) for item in (path, against)]
    whole = [WHOLE_TRACE in analysis.counted.names for analysis in (after, before)]
    if whole[0] != whole[1]:
        one, other = names if whole[0] else reversed(names)
        notes.append(f"{one} has no marked steps: the whole of it is compared with one step of {other}.")
    return ShownTrace(f"{names[0]} against {names[1]}", (str(path), "--against", str(against)), made, notes)


def _only(path: Path) -> Path:
    """The trace itself, or the one in a log folder."""
    found = several.traces_in(path) if path.is_dir() else [path]
    if len(found) != 1:
        what = f"There are {len(found)} traces in {path}." if found else f"There is no trace in {path}."
        raise InferlensError(what, expected="one on each side", hint="the path of one of them")
    return found[0]


def _of_folder(
    load: Load, folder: Path, views: Sequence[str], selection: Selection, format: str, brief: bool
) -> list[ShownTrace]:
    """What each trace of a folder shows, one held at a time; before them what the ranks of a job, or runs, come to.

    ``brief``: that alone, or of other views than the overview the answers alone.
    """
    found = [(path.name, path) for path in several.traces_in(folder)]
    named = found or several.runs_in(folder)
    if not named:
        expected = f"files that end in {', '.join(several.SUFFIXES)}, in it or in the log folders in it"
        raise InferlensError(f"There is no trace in {folder}.", expected=expected)
    every, rows, origins, problems = [], [], {}, []
    for name, path in named:
        try:
            analysis = load(path)
            shown = shown_of(analysis, path, views, selection, format)
        except InferlensError as error:
            problems.append(plain(str(error)))
            continue
        every.append(replace(shown, name=plain(name), words=(str(folder / name),)))
        rows.append((several.rank_of(name, analysis), several.run_of(name, analysis.overview)))
        origins[plain(name)] = several.origin_of(name, analysis.trace)
    if not every:
        raise InferlensError(f"No trace in {folder} can be read. {' '.join(problems[:3])}")
    if len(every) == 1:
        one = replace(every[0], notes=[*problems, *every[0].notes])
        return [one if problems else replace(one, name=_name(folder), words=(str(folder),))]
    why = several.why_no_job(origins) if found else None
    together = _ranks([row for row, _ in rows]) if why == "" else runs_of([row for _, row in rows], why)
    words = every[0].words if why != "" else (str(folder),)
    made = [together] if "overview" in views or not brief else []
    if brief:
        made += [_answers(every, view, place) for place, view in enumerate(views) if view != "overview"]
        problems += [note for shown in every for note in shown.notes]
        return [ShownTrace(_name(folder), words, made, problems)]
    if why != "" and format != "json":  # the overview of runs is their table
        every = [replace(one, views=[shown for shown, view in zip(one.views, views, strict=True) if view != "overview"])
                 for one in every]  # fmt: skip
    return [ShownTrace(_name(folder), words, made, problems), *every]


def _ranks(rows: Sequence[Row]) -> TraceView:
    """The ranks of one job, how far they are apart, and which one the others wait for."""
    said = [f"A traced step takes {_extremes(rows)}."]
    fewest, *_, most = sorted(rows, key=lambda row: float(row["communicating"]))
    if most["communicating"]:
        times = f"{milliseconds(fewest['communicating'])} to {milliseconds(most['communicating'])} ms of a step"
        said.append(f"Communication takes {times}; the others wait for {plain(fewest['name'])}, which does so least.")
    table = _of_rows("ranks", "rank's trace", RANKS, rows)
    return TraceView(f"{len(rows)} ranks of one job", said, [table], ("Each of them?", "--wide"))


def runs_of(rows: Sequence[Row], why: str | None) -> TraceView:
    """Runs side by side; ``why`` says why traces that lie beside each other are not ranks, and are only listed."""
    hosts = sum(row["bound"] == "host" for row in rows)
    waits = f"While traced, the GPU waits for the host in {hosts} of {len(rows)}; tracing adds to that."
    more = [waits] if hosts else []
    if why is None:
        said, about, first = f"A traced step takes {_extremes(rows)}.", f"{len(rows)} runs", "run"
    else:
        said = f"They are not ranks of one job ({why}): look at one, or compare two with --against."
        about, first = f"{len(rows)} traces", "trace"
    return TraceView(about, [said, *more], [_of_rows("runs", first, RUNS, rows)], ("One of them?", ""))


def _of_rows(name: str, first: str, columns: Sequence[Column], rows: Sequence[Row]) -> TraceTable:
    data = Columns.named([*rows[0]], [[*row.values()] for row in rows])
    left = len(rows) - _MOST
    more = [f"{plural(left, 'more row')}: --format csv"] if left > 0 else []
    return TraceTable(name, "", first, columns, data, brief=lambda rows: rows[:_MOST], sentences=more)


def _extremes(rows: Sequence[Row]) -> str:
    fast, *_, slow = sorted(rows, key=lambda row: float(row["step_time"]))
    ends = [f"{duration(row['step_time'])} ({plain(row['name'])})" for row in (fast, slow)]
    return " to ".join(ends)


def _answers(every: Sequence[ShownTrace], view: str, place: int) -> TraceView:
    """What one view says of each trace: its first sentence."""
    names = min(max(len(shown.name) for shown in every), _WIDEST * 2 // 5)
    column = Column("", "", numeric=False, most=_WIDEST - names - 2)
    said = (_TIMES.sub("", next(iter(shown.views[place].answer), "")) for shown in every)
    lines = [Line(shown.name, [sentence]) for shown, sentence in zip(every[:_MOST], said, strict=False)]
    left = [f"{plural(len(every) - _MOST, 'more trace')}: --wide"] if len(every) > _MOST else []
    table = Table("", "trace", [column], lines, notes=left)
    return TraceView(f"{view} of {len(every)} traces", (), [table], ("One of them?", f"--view {view}"))


def _overview(analysis: Analysis) -> dict[str, Any]:
    """The overview and the advice under our names: those of a GPU's properties are Kineto's where they are read."""
    gpus = [
        {**structs.asdict(gpu), "properties": structs.asdict(gpu.properties) if gpu.properties else None}
        for gpu in analysis.overview.gpus
    ]
    advice = [
        {"what": trace_finding.hint, "evidence": trace_finding.sentence, "at_stake": trace_finding.seconds}
        for trace_finding in trace_findings(analysis)
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
