"""Traces: what a step of each is made of, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from inferlens.errors import InferlensError
from inferlens.trace import several
from inferlens.trace.analysis import Analysis, Overview
from inferlens.trace.reader import read_cached
from inferlens.units import plural
from inferlens.views.picture import picture
from inferlens.views.report.blocks import Block, Section
from inferlens.views.report.found import Found
from inferlens.views.traced import show, step_chart
from inferlens.views.traced.trace_views import Selection, TraceTable

MOST = 12
ROWS = 20  # of operators and kernels
VIEWS = ("overview", "operators", "kernels")


def traces(found: Found) -> Iterator[Block]:
    """All side by side; then of each its steps as a picture, the overview with advice, operators and kernels."""
    names = _names(found)
    sections: list[Block] = []
    made: list[tuple[str, Overview]] = []
    for number, path in enumerate(found.traces[:MOST], 1):
        try:
            analysis = Analysis(read_cached(path))
            shown = replace(show.shown_of(analysis, path, VIEWS, Selection(top=ROWS)), name="")
        except InferlensError as error:
            yield str(error)
            continue
        made.append((names[number - 1], analysis.overview))
        blocks: list[Block] = []
        if len(analysis.steps):
            how = step_chart.HOW.format(what="a step")
            blocks.append(picture(f"steps-{number}", how, partial(step_chart.of_steps, analysis, names[number - 1])))
        blocks += show.of([shown], VIEWS, everything=True, look=False).blocks()
        sections.append(Section(f"trace-{number}", names[number - 1], blocks, folded=len(found.traces) > 1))
    if len(made) > 1:
        how = step_chart.HOW.format(what="the mean step of a trace")
        yield picture("traces", how, partial(step_chart.of_traces, made))
        table = show.runs_of([several.run_of(*each) for each in made], None).tables[0]
        yield table.table() if isinstance(table, TraceTable) else table
    yield from sections
    if len(found.traces) > MOST:
        yield f"{plural(len(found.traces) - MOST, 'more trace')} not shown."


def _names(found: Found) -> list[str]:
    """What the traces are called: by their folders where these tell them apart, else by folder and file."""
    folders = [path.resolve().parent.name for path in found.traces]
    alone = len({*folders}) == len(folders) > 1
    return [folder if alone else f"{folder}/{path.name}" for folder, path in zip(folders, found.traces, strict=True)]
