"""From paths to what is shown of them: reads, analyses, and renders; one trace, two compared, or those of all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from inferlens.errors import InferlensError, suggestion
from inferlens.trace.advice import advice_of
from inferlens.trace.analysis import Analysis
from inferlens.trace.folders import SUFFIXES, rank_of, run_of, runs_in, traces_in
from inferlens.trace.reading.cache import read_cached
from inferlens.trace.reading.read import read
from inferlens.trace.trace import Trace
from inferlens.units import listing
from inferlens.views.plain import plain
from inferlens.views.traced import check_view
from inferlens.views.traced.render import Part
from inferlens.views.traced.render import render as rendered
from inferlens.views.traced.sheets import BY, TOP, Choice, sheets_of


@dataclass(frozen=True)
class Wanted:
    """What was asked for; ``view`` and ``by`` may name several, with commas."""

    path: Path
    against: Path | None = None
    view: str = "overview"
    step: str | None = None
    by: str = "name"
    top: int | None = None
    depth: int | None = None
    cache: bool = True

    @property
    def views(self) -> tuple[str, ...]:
        """The views to show, in that order.

        Raises:
            InferlensError: if there is no such view.
        """
        views = _words(self.view)
        for view in views:
            check_view(view)
        return views

    @property
    def keys(self) -> tuple[str, ...]:
        """What rows are told apart by.

        Raises:
            InferlensError: for what they cannot be.
        """
        keys = _words(self.by)
        for key in keys:
            if key not in BY:
                what = f"Rows cannot be told apart by '{key}'."
                raise InferlensError(what, expected=listing(list(BY)), hint=suggestion(key, BY))
        return keys


def render(wanted: Wanted, format: str, *, width: int = 120, color: bool = False) -> tuple[str, list[str]]:
    """What was asked for as text, and remarks on how it was read.

    Raises:
        InferlensError: if there is no trace, no such step, or what was asked for cannot be compared.
    """
    top = wanted.top if wanted.top is not None or format in ("csv", "json") else TOP
    choice = Choice(wanted.keys, top, wanted.depth)
    views = wanted.views
    if wanted.against is not None:
        parts = [_compared(wanted, wanted.against, views, choice)]
    elif wanted.path.is_dir():
        parts = _of_folder(wanted, views, choice, format)
    else:
        parts = [_part(wanted.path, wanted, views, choice, format)[0]]
    notes = [note for part in parts for note in part.notes]
    return rendered(parts, ",".join(views), format, width=width, color=color), notes


def _part(
    path: Path, wanted: Wanted, views: tuple[str, ...], choice: Choice, format: str = ""
) -> tuple[Part, Analysis]:
    analysis = Analysis(_read(path, wanted), wanted.step)
    more = {"overview": _plain(analysis)} if "overview" in views and format == "json" else None
    sheets = [sheet for view in views for sheet in sheets_of(analysis, view, choice)]
    return Part(_name(path), sheets, _notes(path, analysis), more), analysis


def _compared(wanted: Wanted, against: Path, views: tuple[str, ...], choice: Choice) -> Part:
    from inferlens.views.traced import compared

    sides = [_only(path) for path in (wanted.path, against)]
    before, after = (Analysis(_read(path, wanted), wanted.step) for path in sides)
    sheets = [sheet for view in views for sheet in compared.sheets_of(before, after, view, choice)]
    notes = [*_notes(sides[0], before), *_notes(sides[1], after)]
    return Part(f"{_name(wanted.path)} against {_name(against)}", sheets, notes)


def _only(path: Path) -> Path:
    """The trace itself, or the one in a log folder.

    Raises:
        InferlensError: if a folder has none, or several.
    """
    if not path.is_dir():
        return path
    found = traces_in(path)
    if len(found) != 1:
        what = f"There are {len(found)} traces in {path}." if found else f"There is no trace in {path}."
        raise InferlensError(what, expected="one on each side", hint="the path of one of them")
    return found[0]


def _of_folder(wanted: Wanted, views: tuple[str, ...], choice: Choice, format: str) -> list[Part]:
    """A part for each trace of a folder, one held at a time; before them what the ranks of a job, or runs, come to."""
    from inferlens.views.traced import ranks, runs

    job = traces_in(wanted.path)
    named = [(_name(path), path) for path in job] or [(plain(name), path) for name, path in runs_in(wanted.path)]
    if not named:
        expected = f"files that end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, in it or in the log folders in it"
        raise InferlensError(f"There is no trace in {wanted.path}.", expected=expected)
    if not job and len(named) > 1 and format != "json":  # the overview of runs is their table
        views = tuple(view for view in views if view != "overview")
    parts, of_ranks, of_runs, problems = [], [], [], []
    for name, path in named:
        try:
            part, analysis = _part(path, wanted, views, choice, format)
        except InferlensError as error:
            problems.append(plain(str(error)))
            continue
        parts.append(replace(part, name=name))
        if job:
            of_ranks.append(rank_of(name, analysis))
        else:
            of_runs.append(run_of(name, analysis.overview))
    if not parts:
        raise InferlensError(f"No trace in {wanted.path} can be read. {' '.join(problems[:3])}")
    several = len(parts) > 1
    together = [ranks.sheet(of_ranks) if job else runs.sheet(of_runs)] if several else []
    return [Part(_name(wanted.path), together, problems), *parts] if together or problems else parts


def _plain(analysis: Analysis) -> dict[str, Any]:
    """The overview and the advice under our names: those of a GPU's properties are Kineto's where they are read."""
    overview = analysis.overview
    gpus = [
        {**structs.asdict(gpu), "properties": structs.asdict(gpu.properties) if gpu.properties else None}
        for gpu in overview.gpus
    ]
    return {**structs.asdict(overview), "gpus": gpus, "advice": advice_of(analysis)}


def _read(path: Path, wanted: Wanted) -> Trace:
    return read_cached(path) if wanted.cache else read(path)


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _name(path: Path) -> str:
    return plain(path.name or str(path))


def _notes(path: Path, analysis: Analysis) -> list[str]:
    return [plain(f"{path}: {note}") for note in analysis.trace.notes]
