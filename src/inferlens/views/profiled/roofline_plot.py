"""The rooflines of cases, log-log, one panel for each, as SVG, PNG or one HTML file.

A point is a layer or a module: how much it computes for each byte, and how much in a second. The roof above it is what
the device reaches at best; how far below it a point lies is its distance. What computes nothing to speak of has no
place on such a chart, and a line beneath the title says how much time that is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from inferlens.analysis.profile.roofline import Floor, Roofline
from inferlens.errors import InferlensError
from inferlens.units import bandwidth, flop_rate, milliseconds, percent, plural, ratio
from inferlens.views import picture
from inferlens.views.picture import PALETTE, Theme, config
from inferlens.views.plain import plain
from inferlens.views.profiled.boxes import _short
from inferlens.views.profiled.roofline import Roofed
from inferlens.views.profiled.roofline_sentences import name_in

WIDTH, HEIGHT = 640, 360
NAMED = 5  # points with most to be won that have their name beside them
LONGEST_NAME = 40
# In pixels: between two lines of names, from a point's middle to its edge and to its name, and of a letter.
LINE, POINT, GAP, LETTER = 12, 8, 13, 6.2
MANY_DECADES = 2000
COLOURS = {"compute": PALETTE[4], "memory": PALETTE[0]}


def render(cases: Sequence[Roofed], format: str) -> str | bytes:
    """One panel for each case: text for SVG and HTML, bytes for PNG.

    Args:
        cases: as ``roofline.roofed`` makes them.
        format: ``svg``, ``png`` or ``html``.

    Raises:
        InferlensError: for another format, if a library is missing, or if no case has floors.
    """
    picture.check(format, "--plot layers.svg")
    picture.converter()
    able = [(case, case.found) for case in cases if not why_not(case) and not isinstance(case.found, str)]
    if not able:
        reasons = list(dict.fromkeys(map(why_not, cases)))
        raise InferlensError(
            f"There is nothing to draw: {plain(' '.join(reasons[:1]))}", hint="inferlens roofline without --plot"
        )
    return picture.drawn(
        lambda theme: _chart([_panel(case, found, theme) for case, found in able], theme),
        format,
        able[0][0].case.headline,
    )


def not_drawn(cases: Sequence[Roofed]) -> list[str]:
    """A sentence for each case that has no panel, and why."""
    return [plain(f"Not drawn: {case.case.name}. {why}") for case in cases if (why := why_not(case))]


def why_not(of: Roofed) -> str:
    """Why a case has no panel; empty if it has one."""
    if isinstance(of.found, str):
        return of.found
    return "" if any(map(drawn, of.found.rows)) else "Nothing in it computes."


def drawn(row: Floor) -> bool:
    """Whether a row has a place on the chart."""
    return bool(row.flops and row.bytes and row.time > 0)


def _panel(of: Roofed, found: Roofline, theme: Theme) -> Any:
    """One case."""
    import altair as alt

    rows = [row for row in found.rows if drawn(row)]
    points = [_point(row, found) for row in rows]
    low, high = _ends([point["intensity"] for point in points] + _ridge(found))
    roof = _roof(found, low, high)
    floor, top = _ends([point["rate"] for point in points] + [each["rate"] for each in roof])
    by_won = sorted(range(len(rows)), key=lambda index: -(rows[index].won or 0.0))
    names = _names([points[index] for index in by_won], (low, high), (floor, top))
    x = alt.X("intensity:Q", title="FLOPs for each byte", scale=_scale(low, high), axis=_axis(low, high, "~g"))
    y = alt.Y("rate:Q", title="FLOPs per second", scale=_scale(floor, top), axis=_axis(floor, top, "~s"))
    line = alt.Chart(alt.Data(values=roof)).mark_line(strokeWidth=2, color=theme.faint).encode(x=x, y=y)
    texts = [
        alt.Chart(alt.Data(values=[point for point in names if point["side"] == side]))
        .mark_text(align=side, dx=GAP if side == "left" else -GAP, fontSize=11)
        .encode(x=x, y=y, text="name:N")
        for side in ("left", "right")
    ]
    title = alt.TitleParams(
        plain(of.case.name), subtitle=_about(of, found, rows), fontSize=16, anchor="start", frame="bounds"
    )
    return alt.layer(line, _marks(points, x, y), *texts).properties(width=WIDTH, height=HEIGHT, title=title)


def _marks(points: Sequence[dict[str, Any]], x: Any, y: Any) -> Any:
    """The points: as large as their time, in the colour of what their floor is made by."""
    import altair as alt

    bounds = [bound for bound in COLOURS if any(point["bound"] == bound for point in points)]
    colour = alt.Color(
        "bound:N",
        title="floor by",
        scale=alt.Scale(domain=bounds, range=[COLOURS[bound] for bound in bounds]),
        legend=alt.Legend(orient="bottom", direction="horizontal"),
    )
    largest = max(point["time"] for point in points)
    size = alt.Size(
        "time:Q",
        title="time (ms)",
        scale=alt.Scale(domain=[0, largest], range=[20, 700]),
        legend=alt.Legend(orient="bottom", direction="horizontal", values=[largest / 10, largest], format=".2~g"),
    )
    tooltip = [alt.Tooltip(f"{name}:N", title=name) for name in ("name", "kind", "took", "floor", "distance")]
    return (
        alt.Chart(alt.Data(values=points))
        .mark_point(filled=True, opacity=0.75)
        .encode(x=x, y=y, color=colour, size=size, tooltip=tooltip)
    )


def _point(row: Floor, found: Roofline) -> dict[str, Any]:
    assert row.flops
    assert row.bytes
    return {
        "name": _short(name_in(found, row) if row.name else "the model", LONGEST_NAME),
        "kind": _short(plain(row.kind), LONGEST_NAME),
        "intensity": row.flops / row.bytes,
        "rate": row.flops / row.time,
        "time": row.time * 1e3,
        "bound": row.bound if found.rate else "memory",
        "took": f"{milliseconds(row.time)} ms",
        "floor": f"{milliseconds(row.floor)} ms",
        "distance": ratio(row.distance),
    }


def _names(points: Sequence[dict[str, Any]], x: tuple[float, float], y: tuple[float, float]) -> list[dict[str, Any]]:
    """The first few points beside which there is room for their names, each with the side of the name that is there."""
    spots = [(WIDTH * _along(each["intensity"], *x), HEIGHT * _along(each["rate"], *y)) for each in points]
    taken: list[tuple[float, float, float]] = [(up, across - POINT, across + POINT) for across, up in spots]
    named: list[dict[str, Any]] = []
    for point, (across, up) in zip(points, spots, strict=True):
        long = LETTER * len(point["name"]) + GAP
        # Points behind this one, or nearly so, are no more in the way of its name than it is itself.
        behind = {place for place, spot in enumerate(spots) if abs(spot[0] - across) <= GAP}
        others = [each for place, each in enumerate(taken) if place not in behind]
        for side, begin, end in (("left", across, across + long), ("right", across - long, across)):
            inside = begin > 0 and end < WIDTH
            free = all(abs(up - other) > LINE or end < first or last < begin for other, first, last in others)
            if inside and free and len(named) < NAMED:
                taken.append((up, begin, end))
                named.append({**point, "side": side})
                break
    return named


def _along(value: float, low: float, high: float) -> float:
    """How far along a logarithmic axis a value is, 0 to 1."""
    return math.log(value / low) / math.log(high / low)


def _scale(low: float, high: float) -> Any:
    import altair as alt

    return alt.Scale(type="log", domain=[low, high], nice=False)


def _axis(low: float, high: float, format: str) -> Any:
    """An axis with a tick at every power of ten, and between them where they are few."""
    import altair as alt

    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < MANY_DECADES else (1,)
    values = [step * 10.0**power for power in powers for step in steps]
    return alt.Axis(format=format, values=[value for value in values if low <= value <= high])


def _ridge(found: Roofline) -> list[float]:
    """The intensity from which on the rate is what counts."""
    return [found.rate / found.ceilings.bandwidth] if found.rate else []


def _roof(found: Roofline, low: float, high: float) -> list[dict[str, float]]:
    """The corners of the roof between two intensities."""
    corners = [low, *(each for each in _ridge(found) if low < each < high), high]
    rate = found.rate or math.inf
    return [{"intensity": each, "rate": min(each * found.ceilings.bandwidth, rate)} for each in corners]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds all of them, with some room."""
    return min(values) / 2, max(values) * 2.5


def _about(of: Roofed, found: Roofline, rows: Sequence[Floor]) -> list[str]:
    """The device and its ceilings; what a point is; what is not drawn."""
    roof = f"copies at {bandwidth(found.ceilings.bandwidth)}"
    roof += f", matrix products in {found.precision} at {flop_rate(found.rate)}" if found.rate else ""
    left = sum(row.time for row in found.rows) - sum(row.time for row in rows)
    share = f" ({percent(left / found.time)})" if found.time else ""
    hidden = plural(len(found.rows) - len(rows), found.by)
    return [
        _short(of.case.headline, 110),
        f"Each point is a {found.by}, as large as its time. The line is what the device reaches at best:",
        f"{roof}.",
        f"Without FLOPs, and so not drawn: {hidden}, {milliseconds(left)} ms{share}.",
    ]


def _chart(panels: Sequence[Any], theme: Theme) -> dict[str, Any]:
    """The Vega-Lite document."""
    import altair as alt

    chart = alt.vconcat(*panels, spacing=44).resolve_scale(color="independent", size="independent")
    document: dict[str, Any] = chart.to_dict()
    document["config"] = config(theme)
    return document
