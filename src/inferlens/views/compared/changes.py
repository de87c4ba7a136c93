"""The changes of a comparison as a chart: a point for each case, with how far it may be off, the largest ratio on top.

The axis is logarithmic in the ratio of candidate and base, so that twice as much and half as much are equally far from
no change; what lies in the band is a difference that does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from inferlens.analysis.compare.cases import Compared
from inferlens.errors import InferlensError
from inferlens.units import plural
from inferlens.views import picture
from inferlens.views.chart import LETTER, LETTER_OF_TITLE, WIDTH
from inferlens.views.compared import CaseLine, answer, headline, lines
from inferlens.views.picture import GREY, PALETTE, Part, Theme, field, finished, layered, marks, title
from inferlens.views.plain import without_middle

MOST = 40  # cases that are drawn: those that changed most
STEP = 24  # pixels of a case
HOW = "Bars reach as far as a change may be off; beyond the grey band it matters. Filled: decided; hollow: not yet."
_FAR = 3.0  # times the largest ratio: how far a bar is drawn at most
_LONGEST = 60  # characters of a name
_COLOURS = {"SLOWER": PALETTE[4], "FASTER": PALETTE[2], "SAME": GREY, "UNDECIDED": PALETTE[1]}
_SHAPES = {"SLOWER": "triangle-right", "FASTER": "triangle-left", "SAME": "circle", "UNDECIDED": "diamond"}


def drawn(compared: Compared, format: str) -> str | bytes:
    """The chart alone: text for SVG, bytes for PNG. Raises as :func:`spec`, and MissingLibrary."""
    return picture.drawn(spec(compared), format, "Comparison")


def spec(compared: Compared) -> Callable[[Theme], dict[str, Any]]:
    """What makes the Vega-Lite document for a theme; InferlensError if no case ran on both sides."""
    able = [line for line in lines(compared) if line.of.compared and line.of.change is not None]
    if not able:
        raise InferlensError("There is nothing to draw: no case ran on both sides.", hint="the table, which says why")
    chosen = sorted(able, key=lambda line: -abs(math.log(_ratio(line))))[:MOST]
    chosen.sort(key=lambda line: -_ratio(line))
    return lambda theme: _chart(compared, chosen, len(able), theme)


def _ratio(line: CaseLine) -> float:
    """The candidate's median over the base's."""
    return max(1 + (line.of.change or 0.0), 1e-9)


def _chart(compared: Compared, shown: Sequence[CaseLine], able: int, theme: Theme) -> dict[str, Any]:
    values = _values(shown)
    low = min(1 / (1 + 2 * compared.threshold), *(each["low"] for each in values))
    high = max(1 + 2 * compared.threshold, *(each["high"] for each in values))
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
    y = field("case:N", sort=[each["case"] for each in values], title=None)
    band = [{"from": max(1 / (1 + compared.threshold), low / margin), "to": min(1 + compared.threshold, high * margin)}]
    verdicts = [verdict for verdict in _COLOURS if any(each["verdict"] == verdict for each in values)]
    colour, shape = (
        field(
            "verdict:N",
            scale={"domain": verdicts, "range": [each[verdict] for verdict in verdicts]},
            legend={"title": None, "orient": "top"},
        )
        for each in (_COLOURS, _SHAPES)
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
    names = LETTER * (max(len(each["case"]) + len(each["change"]) for each in values) + 2)
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
        ratio, found = _ratio(line), line.of.change_interval if line.of.between else None
        values.append({
            "case": name if names.count(name) == 1 else f"{name} {len(values) + 1}",
            "verdict": line.of.verdict,
            "decided": line.of.verdict != "UNDECIDED",
            "ratio": ratio,
            "low": max(1 + found.low, 1 / most) if found else ratio,
            "high": min(1 + found.high, most) if found else ratio,
            "change": line.change,
            "base": line.base,
            "candidate": line.candidate,
        })  # fmt: skip
    return values
