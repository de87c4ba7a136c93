"""Traces as a page has them, each read once and one held at a time: what it comes to, and what is shown of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from inferlens.analysis.findings import Finding, trace_findings
from inferlens.errors import InferlensError
from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.reader import read
from inferlens.views.picture import picture
from inferlens.views.report.blocks import Block, Section
from inferlens.views.report.timeline import timeline
from inferlens.views.traced import show, step_chart
from inferlens.views.traced.compared import compared
from inferlens.views.traced.trace_views import VIEWS, Selection

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
            analysis = Analysis(read(path))
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
    for each in traces:
        alike.setdefault("".join(re.findall(r"\d+$", each.name)), []).append(each)
    for group in alike.values() if len(alike) < len(traces) else [traces]:
        for each in group[1:]:
            base = group[0]
            if not (base.analysis and base.overview and each.analysis and each.overview):
                continue  # why not is said where it is shown by itself
            try:
                views = [compared(base.analysis, each.analysis, view, Selection(top=ROWS)) for view in SHOWN]
            except InferlensError:
                continue
            title = f"{each.name} against {base.name}"
            blocks = show.of([show.ShownTrace("", (), views)], SHOWN, everything=True, look=False).blocks()
            pair = [(base.name, base.overview), (each.name, each.overview)]
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
