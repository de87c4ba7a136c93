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
from inferlens.views.picture import PALETTE, Theme, config, drawn
from inferlens.views.plain import plain
from inferlens.views.profiled.cases import Chosen
from inferlens.views.profiled.roofline import row_name
from inferlens.views.profiled.sentences import short

WIDTH, HEIGHT = 640, 360
NAMED = 5  # points with most to be won that have their name beside them
LONGEST_NAME, LONGEST_LINE = 40, 110
LINE, GAP, LETTER = 12, 13, 6.2  # in pixels: a line of names, from a point's middle to its name, a letter
COLOURS = {"compute": PALETTE[4], "memory": PALETTE[0]}


def render(cases: Sequence[Chosen[Roofline]], format: str) -> str | bytes:
    """One panel for each case: text for SVG and HTML, bytes for PNG.

    Args:
        cases: as ``roofline.roofed`` makes them.
        format: ``svg``, ``png`` or ``html``.

    Raises:
        InferlensError: if a library is missing, or if no case has floors.
    """
    able = [case for case in cases if not why_not(case)]
    if not able:
        reasons = list(dict.fromkeys(map(why_not, cases)))
        raise InferlensError(
            f"There is nothing to draw: {plain(' '.join(reasons[:1]))}", hint="inferlens roofline without --plot"
        )

    def document(theme: Theme) -> dict[str, Any]:
        import altair as alt

        panels = alt.vconcat(*(_panel(case, theme) for case in able), spacing=44)
        return {**panels.resolve_scale(color="independent", size="independent").to_dict(), "config": config(theme)}

    return drawn(document, format, able[0].case.headline)


def not_drawn(cases: Sequence[Chosen[Roofline]]) -> list[str]:
    """A sentence for each case that has no panel, and why."""
    return [plain(f"Not drawn: {case.case.name}. {why}") for case in cases if (why := why_not(case))]


def why_not(of: Chosen[Roofline]) -> str:
    """Why a case has no panel; empty if it has one."""
    if isinstance(of.table, str):
        return of.table
    return "" if any(map(_has_point, of.table.rows)) else "Nothing in it computes."


def _has_point(row: Floor) -> bool:
    return bool(row.flops and row.bytes and row.time > 0)


def _panel(of: Chosen[Roofline], theme: Theme) -> Any:
    """One case: the roof, points as large as their time and in the colour of what their floor is made by, names."""
    import altair as alt

    found = of.table
    assert not isinstance(found, str)
    rows = [row for row in found.ranked if _has_point(row)]
    points = [_point(row, found) for row in rows]
    ridge = [found.rate / found.ceilings.bandwidth] if found.rate else []  # from there on the rate is what counts
    low, high = _ends([point["intensity"] for point in points] + ridge)
    roof = [
        {"intensity": each, "rate": min(each * found.ceilings.bandwidth, found.rate or math.inf)}
        for each in (low, *ridge, high)
    ]
    floor, top = _ends([each["rate"] for each in points + roof])
    x = alt.X("intensity:Q", title="FLOPs for each byte", **_logarithmic(low, high, "~g"))
    y = alt.Y("rate:Q", title="FLOPs per second", **_logarithmic(floor, top, "~s"))
    legend = {"orient": "bottom", "direction": "horizontal"}
    bounds = [bound for bound in COLOURS if any(point["bound"] == bound for point in points)]
    colours = alt.Scale(domain=bounds, range=[COLOURS[bound] for bound in bounds])
    largest = max(point["time"] for point in points)
    size = alt.Size("time:Q", title="time (ms)", scale=alt.Scale(domain=[0, largest], range=[20, 700]),
                    legend=alt.Legend(**legend, values=[largest / 10, largest], format=".2~g"))  # fmt: skip
    marks = (
        alt.Chart(alt.Data(values=points))
        .mark_point(filled=True, opacity=0.75)
        .encode(
            x=x,
            y=y,
            size=size,
            color=alt.Color("bound:N", title="floor by", scale=colours, legend=alt.Legend(**legend)),
            tooltip=[alt.Tooltip(f"{name}:N", title=name) for name in ("name", "kind", "took", "floor", "distance")],
        )
    )
    names = [
        alt.Chart(alt.Data(values=_names(points, (low, high), (floor, top), side)))
        .mark_text(align=side, dx=GAP if side == "left" else -GAP, fontSize=11)
        .encode(x=x, y=y, text="name:N")
        for side in ("left", "right")
    ]
    line = alt.Chart(alt.Data(values=roof)).mark_line(strokeWidth=2, color=theme.faint).encode(x=x, y=y)
    title = alt.TitleParams(plain(of.case.name), subtitle=_about(of.case.headline, found, rows), fontSize=16,
                            anchor="start", frame="bounds")  # fmt: skip
    return alt.layer(line, marks, *names).properties(width=WIDTH, height=HEIGHT, title=title)


def _point(row: Floor, found: Roofline) -> dict[str, Any]:
    assert row.flops
    assert row.bytes
    return {
        "name": short(row_name(found, row), LONGEST_NAME),
        "kind": plain(row.kind)[:LONGEST_NAME],
        "intensity": row.flops / row.bytes,
        "rate": row.flops / row.time,
        "time": row.time * 1e3,
        "bound": row.bound if found.rate else "memory",
        "took": f"{milliseconds(row.time)} ms",
        "floor": f"{milliseconds(row.floor)} ms",
        "distance": ratio(row.distance),
    }


def _names(
    points: Sequence[dict[str, Any]], x: tuple[float, float], y: tuple[float, float], side: str
) -> list[dict[str, Any]]:
    """Of the first points, those whose names stand on that side, and do not lie over another's: inwards, in a line."""
    taken: list[tuple[float, float, float]] = []
    found = []
    for point in points[:NAMED]:
        across, up = WIDTH * _along(point["intensity"], *x), HEIGHT * _along(point["rate"], *y)
        left = across < WIDTH / 2
        begin, end = sorted((across, across + (1 if left else -1) * (LETTER * len(point["name"]) + GAP)))
        if all(abs(up - other) > LINE or end < first or last < begin for other, first, last in taken):
            taken.append((up, begin, end))
            found += [point] if left == (side == "left") else []
    return found


def _along(value: float, low: float, high: float) -> float:
    """How far along a logarithmic axis a value is, 0 to 1."""
    return math.log(value / low) / math.log(high / low)


def _logarithmic(low: float, high: float, format: str) -> dict[str, Any]:
    """Scale and axis of a channel, with a tick at every power of ten."""
    import altair as alt

    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    axis = alt.Axis(format=format, values=[10.0**power for power in powers])
    return {"scale": alt.Scale(type="log", domain=[low, high], nice=False), "axis": axis}


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds all of them, with some room."""
    return min(values) / 2, max(values) * 2.5


def _about(headline: str, found: Roofline, rows: Sequence[Floor]) -> list[str]:
    """The device and its ceilings; what a point is; what is not drawn."""
    roof = f"copies at {bandwidth(found.ceilings.bandwidth)}"
    roof += f", matrix products in {found.precision} at {flop_rate(found.rate)}" if found.rate else ""
    left = sum(row.time for row in found.rows) - sum(row.time for row in rows)
    part = f" ({percent(left / found.time)})" if found.time else ""
    hidden = plural(len(found.rows) - len(rows), found.by)
    return [
        short(headline, LONGEST_LINE),
        f"Each point is a {found.by}, as large as its time. The line is what the device reaches at best: {roof}.",
        f"Without FLOPs, and so not drawn: {hidden}, {milliseconds(left)} ms{part}.",
    ]
