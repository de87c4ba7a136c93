"""Findings for people: numbered, each with what could be won and what to try, under the case that they are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferlens.units import duration, listing, percent
from inferlens.views.drawing import drawn
from inferlens.views.plain import plain
from inferlens.views.renderers.markdown import escape

if TYPE_CHECKING:
    from rich.console import RenderableType

    from inferlens.analysis.findings import Finding
    from inferlens.views.profiled.findings import Judged

NOTHING = "No rule has anything to say."
_LEAST_WIDTH = 60
_MOST_WIDTH = 120  # longer lines of prose are hard to read


def terminal(cases: Sequence[Judged], top: int | None, brief: bool, width: int, color: bool) -> str:
    """The findings of each case, one beneath the other, at most ``width`` columns wide."""
    from rich.text import Text

    parts: list[RenderableType] = []
    headline = ""
    for of in cases:
        if brief and of.reason:
            continue  # what is beneath says so
        parts += [Text("")] if parts else []
        if of.case.headline != headline:
            headline = of.case.headline
            parts += [Text(headline, style="bold"), Text("")]
        parts += _case(of, top, brief)
    width = min(max(width, _LEAST_WIDTH), _MOST_WIDTH)
    return drawn(parts or [Text("There are no profiles to look at.")], width, color)


def _case(of: Judged, top: int | None, brief: bool) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    name, shown = plain(of.case.name), of.found[:top]
    if not shown:
        return [Text.assemble((name, "bold"), ": ", nothing(of)), *_ending(of, brief)]
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right")
    grid.add_column()
    for number, each in enumerate(shown, 1):
        text = Text.assemble(plain(each.sentence), " ", (f"Try: {plain(each.advice)}", "dim"))
        grid.add_row(f" {number}.", text)
        if not brief:
            grid.add_row("", Text(about(each), style="dim"))
    return [Text(name, style="bold"), grid, *_ending(of, brief)]


def _ending(of: Judged, brief: bool) -> list[RenderableType]:
    from rich.text import Text

    return [Text(looked_at(of), style="dim")] if of.unseen and not brief else []


def markdown(cases: Sequence[Judged], top: int | None) -> str:
    """The findings as numbered lists in GitHub's Markdown."""
    blocks: list[str] = []
    headline = ""
    for of in cases:
        if of.case.headline != headline:
            headline = of.case.headline
            blocks.append(f"**{escape(headline)}**")
        shown = of.found[:top]
        ending = "" if shown else f": {escape(nothing(of))}"
        blocks.append(f"**{escape(of.case.name)}**{ending}")
        lines = [
            f"{number}. {escape(each.sentence)} *Try: {escape(each.advice)}* ({escape(about(each))})"
            for number, each in enumerate(shown, 1)
        ]
        blocks += ["\n".join(lines)] if lines else []
        blocks += [escape(looked_at(of))] if of.unseen else []
    return "\n\n".join(blocks or ["There are no profiles to look at."]) + "\n"


def nothing(of: Judged) -> str:
    """Why a case has no findings."""
    return plain(of.reason) or NOTHING


def looked_at(of: Judged) -> str:
    """What the rules could not look at."""
    return f"Not looked at: {plain(listing(of.unseen))}."


def about(of: Finding) -> str:
    """What could be won, and the rule: ``at most 1.3 ms of a profiled run could be won (11 %) · reformats``."""
    if of.seconds is None or of.won is None:
        return of.rule
    run = "an untouched call" if of.untouched else "a profiled run"
    return f"at most {duration(of.seconds)} of {run} could be won ({percent(of.won)}) · {of.rule}"
