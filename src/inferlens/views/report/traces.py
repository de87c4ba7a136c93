"""Traces: what a step of each is made of, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from inferlens.trace import several
from inferlens.trace.analysis import Overview
from inferlens.units import plural
from inferlens.views.picture import picture
from inferlens.views.plain import plain
from inferlens.views.report.blocks import Block, Section
from inferlens.views.report.found import Found
from inferlens.views.report.looked import HOW, MOST, differences
from inferlens.views.table import Table
from inferlens.views.traced import show, step_chart
from inferlens.views.traced.trace_views import TraceTable, TraceView

FINDINGS = 3


def answer(found: Found) -> Iterator[Block]:
    """What the traces come to: of one what bounds it and what to do, of several how long a step of each takes."""
    able = [each for each in found.looked if each.overview]
    if len(able) == 1:
        first, *more = able[0].answer
        yield Table(able[0].name, "", (), (), answer=[first], sentences=more)
    elif able:
        said = _side_by_side(_overviews(found)).answer
        advice = [(plain(each.name), finding) for each in able for finding in each.advice[:1]]
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
    for number, each in enumerate(found.looked, 1):
        if each.problem:
            yield each.problem
        else:
            yield Section(f"trace-{number}", each.name, each.blocks, folded=len(found.traces) > 1)
    yield from differences(found.looked)
    if len(found.traces) > MOST:
        yield f"{plural(len(found.traces) - MOST, 'more trace')} not shown."


def _overviews(found: Found) -> list[tuple[str, Overview]]:
    return [(each.name, each.overview) for each in found.looked if each.overview]


def _side_by_side(made: Sequence[tuple[str, Overview]]) -> TraceView:
    return show.runs_of([several.run_of(*each) for each in made], None)
