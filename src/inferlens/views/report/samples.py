"""The raw samples of the ways of a comparison as charts: how they spread, and how they changed meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from inferlens.analysis.runs import CaseRuns
from inferlens.units import milliseconds
from inferlens.views.chart import WIDTH
from inferlens.views.picture import PALETTE, Theme, finished, inline, stacked
from inferlens.views.plain import plain

BINS, POINTS = 80, 120  # of a way
STEP, TALL = 24, 44  # pixels of a way
MOST = 12  # ways
_FAR = 3.0  # times the largest median: what is slower still is at the edge


def spread(
    ways: Sequence[tuple[str, CaseRuns]], theme: Theme, colours: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """How often each latency was seen: the stronger the colour, the more often; a line at the median.

    ``colours`` are those of backends, by their names.
    """
    import altair as alt

    samples = {name: np.concatenate([np.asarray(each) for each in run.processes]) * 1e3 for name, run in ways}
    low = min(float(values.min()) for values in samples.values())
    high = min(
        max(float(np.quantile(values, 0.999)) for values in samples.values()),
        _FAR * max(float(np.median(values)) for values in samples.values()),
    )
    high = max(high, low * 1.02 + 1e-9)
    shades = {name: _colour(run, colours) for name, run in ways}
    edges = np.linspace(low - 0.02 * (high - low), high, BINS + 1)
    values = []
    for name, found in samples.items():
        counts, _ = np.histogram(np.minimum(found, high), edges)
        middle = milliseconds(float(np.median(found)) / 1e3)
        for place in np.flatnonzero(counts):
            values.append({
                "way": name, "from": edges[place], "to": edges[place + 1], "samples": int(counts[place]),
                "share": float(counts[place] / counts.max()) ** 0.5, "median": middle, "colour": shades[name],
            })  # fmt: skip
    middles = [{"way": name, "median": float(np.median(found))} for name, found in samples.items()]
    order = list(samples)
    y = alt.Y("way:N", sort=order, title=None)
    scale = alt.Scale(domain=[float(edges[0]), float(edges[-1])], nice=False)
    x = alt.X("from:Q", scale=scale, title="latency of one call (ms)", axis=alt.Axis(format=",~r", tickCount=8))
    shade = alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.08, 1]), legend=None)
    bars = alt.Chart(inline(values)).mark_bar(height=alt.RelativeBandSize(0.7))
    ticks = alt.Chart(inline(middles)).mark_tick(thickness=2, size=STEP * 0.8, color=theme.text)
    layered = alt.layer(
        bars.encode(
            x=x,
            x2="to:Q",
            y=y,
            opacity=shade,
            color=alt.Color("colour:N", scale=None),
            tooltip=["way:N", "from:Q", "to:Q", "samples:Q"],
        ),
        ticks.encode(x=alt.X("median:Q", scale=scale), y=y),
    )
    title = alt.TitleParams("How long single calls took", fontSize=16, anchor="start", offset=10, frame="bounds")
    return finished(layered.properties(width=WIDTH, height=alt.Step(STEP), title=title), theme)


def _colour(run: CaseRuns, colours: Mapping[str, str]) -> str:
    return colours.get(plain(run.first.case.backend_label), PALETTE[0])


def over_time(
    ways: Sequence[tuple[str, CaseRuns]], theme: Theme, colours: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """The latencies of each way in the order they were taken, its processes one after the other."""
    import altair as alt

    panels = []
    for place, (name, run) in enumerate(ways):
        taken = [np.asarray(each) * 1e3 for each in run.processes]
        whole = np.concatenate(taken)
        done = np.cumsum([len(each) for each in taken])[:-1]
        pieces = np.array_split(whole, min(POINTS, len(whole)))
        middles = [tuple(map(float, np.quantile(piece, [0.1, 0.5, 0.9]))) for piece in pieces]
        mine: list[dict[str, Any]] = [
            {"way": name, "at": 100 * (at + 0.5) / len(pieces), "low": low, "median": middle, "high": high}
            for at, (low, middle, high) in enumerate(middles)
        ]
        most = max(float(np.quantile([each["high"] for each in mine], 0.98)), max(each["median"] for each in mine))
        scale = alt.Scale(domain=[min(each["low"] for each in mine) * 0.98, most * 1.02], nice=False, clamp=True)
        last = place == len(ways) - 1
        axis = alt.Axis(format=".0f", tickCount=5, labels=last, ticks=last)
        x = alt.X("at:Q", title="share of its samples, in the order taken (%)" if last else None, axis=axis,
                  scale=alt.Scale(domain=[0, 100], nice=False))  # fmt: skip
        y = alt.Y(
            "median:Q", title=None, scale=scale, axis=alt.Axis(tickCount=3, format=",~r", grid=False, minExtent=44)
        )
        base, colour = alt.Chart(inline(mine)), _colour(run, colours)
        lines = [
            base.mark_area(opacity=0.22, color=colour).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q"),
            base.mark_line(strokeWidth=1.4, color=colour).encode(x=x, y=y),
        ]
        edges = [{"at": float(100 * at / len(whole))} for at in done]
        if edges:
            rule = alt.Chart(inline(edges)).mark_rule(strokeDash=[3, 3], color=theme.faint, strokeWidth=1)
            lines.append(rule.encode(x=x))
        title = alt.TitleParams(name, fontSize=12, fontWeight="normal", anchor="start", offset=3)
        panels.append(alt.layer(*lines).properties(width=WIDTH, height=TALL, title=title))
    title = alt.TitleParams("Latency (ms) while it was measured", fontSize=16, anchor="start", offset=10)
    return finished(stacked(panels, spacing=6, title=title), theme)
