"""The raw samples of the ways of a comparison as charts: how they spread, and how they changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferlens.analysis.runs import CaseRuns
from inferlens.units import milliseconds
from inferlens.views.chart import WIDTH
from inferlens.views.picture import PALETTE, Theme, config

BINS, POINTS = 80, 120  # of a way
STEP, TALL = 24, 44  # pixels of a way
MOST = 12  # ways
_FAR = 3.0  # times the largest median: what is slower still is at the edge


def spread(ways: Sequence[tuple[str, CaseRuns]], theme: Theme) -> dict[str, Any]:
    """How often each latency was seen: the darker, the more often; a line at the median."""
    import altair as alt

    samples = {name: np.concatenate([np.asarray(each) for each in run.processes]) * 1e3 for name, run in ways}
    low = min(float(values.min()) for values in samples.values())
    high = min(
        max(float(np.quantile(values, 0.999)) for values in samples.values()),
        _FAR * max(float(np.median(values)) for values in samples.values()),
    )
    high = max(high, low * 1.02 + 1e-9)
    edges = np.linspace(low - 0.02 * (high - low), high, BINS + 1)
    values = []
    for name, found in samples.items():
        counts, _ = np.histogram(np.minimum(found, high), edges)
        middle = milliseconds(float(np.median(found)) / 1e3)
        for place in np.flatnonzero(counts):
            values.append({
                "way": name, "from": edges[place], "to": edges[place + 1], "samples": int(counts[place]),
                "share": float(counts[place] / counts.max()) ** 0.5, "median": middle,
            })  # fmt: skip
    middles = [{"way": name, "median": float(np.median(found))} for name, found in samples.items()]
    order = list(samples)
    y = alt.Y("way:N", sort=order, title=None)
    scale = alt.Scale(domain=[float(edges[0]), float(edges[-1])], nice=False)
    x = alt.X("from:Q", scale=scale, title="latency of one call (ms)", axis=alt.Axis(format=",~r", tickCount=8))
    shade = alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.08, 1]), legend=None)
    bars = alt.Chart(alt.Data(values=values)).mark_bar(height=alt.RelativeBandSize(0.7), color=PALETTE[0])
    ticks = alt.Chart(alt.Data(values=middles)).mark_tick(thickness=2, size=STEP * 0.8, color=theme.text)
    layered = alt.layer(
        bars.encode(x=x, x2="to:Q", y=y, opacity=shade, tooltip=["way:N", "from:Q", "to:Q", "samples:Q"]),
        ticks.encode(x=alt.X("median:Q", scale=scale), y=y),
    )
    return {**layered.properties(width=WIDTH, height=alt.Step(STEP)).to_dict(), "config": config(theme)}


def over_time(ways: Sequence[tuple[str, CaseRuns]], theme: Theme) -> dict[str, Any]:
    """The latencies of each way in the order they were taken, its processes one after the other."""
    import altair as alt

    values: list[dict[str, Any]] = []
    borders: list[dict[str, Any]] = []
    for name, run in ways:
        taken = [np.asarray(each) * 1e3 for each in run.processes]
        whole = np.concatenate(taken)
        done = np.cumsum([len(each) for each in taken])[:-1]
        borders += [{"way": name, "at": float(100 * place / len(whole))} for place in done]
        pieces = np.array_split(whole, min(POINTS, len(whole)))
        for place, piece in enumerate(pieces):
            low, middle, high = (float(each) for each in np.quantile(piece, [0.1, 0.5, 0.9]))
            values.append(
                {"way": name, "at": 100 * (place + 0.5) / len(pieces), "low": low, "median": middle, "high": high}
            )
    data = alt.Data(values=values)
    panels = []
    for place, (name, _) in enumerate(ways):
        mine = [each for each in values if each["way"] == name]
        most = max(float(np.quantile([each["high"] for each in mine], 0.98)), max(each["median"] for each in mine))
        scale = alt.Scale(domain=[min(each["low"] for each in mine) * 0.98, most * 1.02], nice=False, clamp=True)
        last = place == len(ways) - 1
        axis = alt.Axis(format=".0f", tickCount=5, labels=last, ticks=last)
        x = alt.X("at:Q", title="share of its samples, in the order taken (%)" if last else None, axis=axis,
                  scale=alt.Scale(domain=[0, 100], nice=False))  # fmt: skip
        y = alt.Y(
            "median:Q", title=None, scale=scale, axis=alt.Axis(tickCount=3, format=",~r", grid=False, minExtent=44)
        )
        base = alt.Chart(data).transform_filter(alt.datum.way == name)
        lines = [
            base.mark_area(opacity=0.22, color=PALETTE[0]).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q"),
            base.mark_line(strokeWidth=1.4, color=PALETTE[0]).encode(x=x, y=y),
        ]
        edges = [{"at": each["at"]} for each in borders if each["way"] == name]
        if edges:
            rule = alt.Chart(alt.Data(values=edges)).mark_rule(strokeDash=[3, 3], color=theme.faint, strokeWidth=1)
            lines.append(rule.encode(x=x))
        title = alt.TitleParams(name, fontSize=12, fontWeight="normal", anchor="start", offset=3)
        panels.append(alt.layer(*lines).properties(width=WIDTH, height=TALL, title=title))
    chart = alt.vconcat(*panels, spacing=6).resolve_scale(y="independent")
    return {**chart.to_dict(), "config": config(theme)}
