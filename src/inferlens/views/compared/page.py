"""A comparison as a page: what changed and how sure that is, each case, and what differs between the two sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from inferlens.analysis.comparison import RecordComparison, Verdict, case_count_label, match_cases
from inferlens.errors import InferlensError, MissingLibrary
from inferlens.record.record import Record
from inferlens.units import percent, plural
from inferlens.views import picture as pictures
from inferlens.views.chart import LETTER, LETTER_OF_TITLE, WIDTH
from inferlens.views.compared import CaseLine, answer, changed, document, first, headline, lines, next_steps, table_of
from inferlens.views.picture import (
    GREY,
    PALETTE,
    Part,
    Theme,
    converter,
    field,
    finished,
    layered,
    marks,
    picture,
    title,
)
from inferlens.views.plain import plain, without_middle
from inferlens.views.renderers.csv import written
from inferlens.views.report import measured
from inferlens.views.report.blocks import Block, Download, Report, Section
from inferlens.views.report.page import MOST_PACKED, environments, packed
from inferlens.views.table import Column, Line, Table

# The changes of a comparison as a chart: a point for each case, with how far it may be off, the largest ratio on top.
#
# The axis is logarithmic in the ratio of candidate and base, so that twice as much and half as much are equally far
# from no change; what lies in the band is a difference that does not matter.

MOST = 40  # cases that are drawn: those that changed most
STEP = 24  # pixels of a case
HOW = "Bars reach as far as a change may be off; beyond the grey band it matters. Filled: decided; hollow: not yet."
_FAR = 3.0  # times the largest ratio: how far a bar is drawn at most
_LONGEST = 60  # characters of a name
_COLOURS = {"SLOWER": PALETTE[4], "FASTER": PALETTE[2], "SAME": GREY, "UNDECIDED": PALETTE[1]}
_SHAPES = {"SLOWER": "triangle-right", "FASTER": "triangle-left", "SAME": "circle", "UNDECIDED": "diamond"}


def drawn(compared: RecordComparison, format: str) -> str | bytes:
    """The chart alone: text for SVG, bytes for PNG. Raises as :func:`spec`, and MissingLibrary."""
    return pictures.drawn(spec(compared), format, "Comparison")


def spec(compared: RecordComparison) -> Callable[[Theme], dict[str, Any]]:
    """What makes the Vega-Lite document for a theme; InferlensError if no case ran on both sides."""
    able = [line for line in lines(compared) if line.of.comparable and line.of.change is not None]
    if not able:
        raise InferlensError("There is nothing to draw: no case ran on both sides.", hint="the table, which says why")
    chosen = sorted(able, key=lambda line: -abs(math.log(_ratio(line))))[:MOST]
    chosen.sort(key=lambda line: -_ratio(line))
    return lambda theme: _chart(compared, chosen, len(able), theme)


def _ratio(line: CaseLine) -> float:
    """The candidate's median over the base's."""
    return max(1 + (line.of.change or 0.0), 1e-9)


def _chart(compared: RecordComparison, shown: Sequence[CaseLine], able: int, theme: Theme) -> dict[str, Any]:
    values = _values(shown)
    low = min(1 / (1 + 2 * compared.threshold), *(value["low"] for value in values))
    high = max(1 + 2 * compared.threshold, *(value["high"] for value in values))
    margin = (high / low) ** 0.04
    scale = {"type": "log", "domain": [low / margin, high * margin], "nice": False}
    less, more = ("slower", "faster") if compared.metric == "throughput" else ("faster", "slower")
    direction = f"← {less} · change of the {compared.metric}, candidate against base · {more} →"
    label = "(datum.value > 1 ? '+' : '') + format(100 * (datum.value - 1), '~r') + ' %'"
    axis = {"tickCount": 8, "labelExpr": label, "labelOverlap": True}
    x, begin, end, at = (
        field(f"{name}:Q", scale=scale, **more)
        for name, more in (("ratio", {"title": direction, "axis": axis}), ("low", {}), ("from", {}), ("at", {}))
    )
    y = field("case:N", sort=[value["case"] for value in values], title=None)
    band = [{"from": max(1 / (1 + compared.threshold), low / margin), "to": min(1 + compared.threshold, high * margin)}]
    verdicts = [verdict for verdict in _COLOURS if any(value["verdict"] == verdict for value in values)]
    colour, shape = (
        field(
            "verdict:N",
            scale={"domain": verdicts, "range": [item[verdict] for verdict in verdicts]},
            legend={"title": None, "orient": "top"},
        )
        for item in (_COLOURS, _SHAPES)
    )
    tooltip = [field(f"{name}:N") for name in ("case", "verdict", "change", "base", "candidate")]
    point = {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip}
    hollow: Part = {"filled": False, "size": 90, "opacity": 1, "fill": theme.background}
    layers = [
        marks("rect", {"x": end, "x2": {"field": "to"}}, of=band, color=theme.faint, opacity=0.14),
        marks("rule", {"x": at}, of=[{"at": 1}], strokeWidth=1, color=theme.faint),
        marks("rule", {"x": begin, "x2": {"field": "high"}, "y": y, "color": colour}, strokeWidth=2),
        marks("point", point, where="datum.decided", filled=True, size=90, opacity=1),
        marks("point", point, where="!datum.decided", **hollow),
        marks("text", {"y": y, "text": field("change:N")}, align="left", x=WIDTH + 10),
    ]
    names = LETTER * (max(len(value["case"]) + len(value["change"]) for value in values) + 2)
    room = WIDTH + names
    few = f" · the {len(shown)} of {plural(able, 'case')} that changed most" * (able > len(shown))
    subtitle = without_middle(f"{headline(compared)}{few}", int(room / LETTER))
    heading = title(without_middle(answer(compared), int(room / LETTER_OF_TITLE)), subtitle, offset=14)
    return finished(layered(layers, values, width=WIDTH, height={"step": STEP}, title=heading), theme)


def _values(shown: Sequence[CaseLine]) -> list[dict[str, Any]]:
    """What is drawn of each case; a bar beyond all points ends at the edge."""
    most = max(max(_ratio(line), 1 / _ratio(line)) for line in shown) * _FAR
    names = [without_middle(line.full, _LONGEST) for line in shown]
    values: list[dict[str, Any]] = []
    for line, name in zip(shown, names, strict=True):
        ratio, interval = _ratio(line), line.of.change_interval if line.of.replicated else None
        values.append({
            "case": name if names.count(name) == 1 else f"{name} {len(values) + 1}",
            "verdict": line.of.verdict,
            "decided": line.of.verdict != "UNDECIDED",
            "ratio": ratio,
            "low": max(1 + interval.low, 1 / most) if interval else ratio,
            "high": min(1 + interval.high, most) if interval else ratio,
            "change": line.change,
            "base": line.base,
            "candidate": line.candidate,
        })  # fmt: skip
    return values


MOST_SAMPLES = 4  # changed cases of which the samples are drawn
_SPREAD = "{}: the stronger the colour, the more calls took that long; the line is the median."
_UNLIKE = "Not the same conditions, so changes are not the software's alone."
_DIFFERENT = (Column("", "base", numeric=False, fold=True), Column("", "candidate", numeric=False, fold=True),
              Column("", "cases", numeric=False))  # fmt: skip


def report(
    compared: RecordComparison, base: Sequence[Record], candidate: Sequence[Record], names: Sequence[str]
) -> Report:
    """The page of ``compared``; ``names`` are those of both sides, such as their folders."""
    try:
        converter()
        able: list[Block] = []
    except MissingLibrary as error:
        able = [f"Without charts: {error}"]
    sides = list(zip(("base", "candidate"), names, (base, candidate), strict=True))
    whole = replace(table_of(compared, len(compared.cases)), title="", about="")
    sections = [
        Section("answer", "Answer", list(_answer(compared))),
        Section("changes", "Changes", [*(able or _changes(compared)), whole]),
        Section("samples", "Samples", [] if able else list(_samples(compared, base, candidate))),
        Section("differences", "What else differs", _differences(compared)),
        Section("how", "How it was measured", [_side(*side) for side in sides] + [_figures(compared)]),
    ]
    models = {case.case.model for case in compared.cases}
    model = f"{models.pop().rpartition(':')[2]}: " if len(models) == 1 else ""
    return Report(f"{model}{names[1]} against {names[0]}", [section for section in sections if section.blocks])


def _answer(compared: RecordComparison) -> Iterator[Block]:
    yield Table(headline(compared), "", (), (), answer=[answer(compared)])
    verdicts: tuple[Verdict, ...] = ("SLOWER", "FASTER")
    for verdict in verdicts:
        if found := [f"{line.full}, {line.change}" for line in changed(compared, verdict)]:
            yield f"{verdict.capitalize()}: {first(found)}."
    if compared.comparisons:
        small = percent(compared.threshold)
        yield f"All verdicts together are {percent(compared.level)} sure; changes below {small} count as none."
    if any(one.unlike for one in compared.differences):
        yield _UNLIKE
    yield from next_steps(compared)


def _changes(compared: RecordComparison) -> list[Block]:
    try:
        return [picture("changes", HOW, spec(compared))]
    except InferlensError:
        return []  # no case ran on both sides


def _samples(compared: RecordComparison, base: Sequence[Record], candidate: Sequence[Record]) -> Iterator[Block]:
    """Both sides of the cases that changed most, where latency is what is compared."""
    if compared.metric != "latency":
        return
    runs = {id(of): match for of, match in zip(compared.cases, match_cases(base, candidate), strict=True)}
    for number, line in enumerate(changed(compared, "SLOWER", "FASTER")[:MOST_SAMPLES], 1):
        sides = zip(("base", "candidate"), runs[id(line.of)], strict=True)
        ways = [(name, side) for name, side in sides if side and side.processes]
        yield picture(f"samples-{number}", _SPREAD.format(line.full), partial(measured.spread, ways))


def _differences(compared: RecordComparison) -> list[Block]:
    counts = [case_count_label(one, compared.common_cases).strip(" ()") for one in compared.differences]
    found = [
        Line(plain(one.field), [plain(one.base), plain(one.candidate), count], style="bold" if one.unlike else "")
        for one, count in zip(compared.differences, counts, strict=True)
    ]  # fmt: skip
    return [Table("", "what", _DIFFERENT, found)] if found else ["Nothing else that is known."]


def _side(side: str, name: str, records: Sequence[Record]) -> Section:
    blocks = [*environments(records), packed(records, side, MOST_PACKED // 2)]
    return Section(side, f"{side.capitalize()}: {plain(name)}", blocks)


def _figures(compared: RecordComparison) -> Download:
    names, values = document(compared).csv()  # type: ignore[misc] # which it has
    return Download("compare.csv", "every number of the comparison", "text/csv", written(names, values).encode())
