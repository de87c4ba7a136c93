"""The raw samples of the ways of a comparison as charts: how they spread, and how they changed meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from inferlens.analysis.runs import CaseRuns
from inferlens.views.chart import WIDTH
from inferlens.views.picture import PALETTE, Theme, field, finished, layered, marks, stacked, title
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
    samples = {name: np.concatenate([np.asarray(each.samples) for each in run.series]) * 1e3 for name, run in ways}
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
        for place in np.flatnonzero(counts):
            values.append({
                "way": name, "from": edges[place], "to": edges[place + 1], "samples": int(counts[place]),
                "share": float(counts[place] / counts.max()) ** 0.5, "colour": shades[name],
            })  # fmt: skip
    middles = [{"way": name, "median": float(np.median(np.concatenate(run.processes))) * 1e3} for name, run in ways]
    order = list(samples)
    y = field("way:N", sort=order, title=None)
    scale = {"domain": [float(edges[0]), float(edges[-1])], "nice": False}
    bars = {
        "x": field("from:Q", scale=scale, title="latency of one call (ms)", axis={"format": ",~r", "tickCount": 8}),
        "x2": {"field": "to"},
        "y": y,
        "opacity": field("share:Q", scale={"domain": [0, 1], "range": [0.08, 1]}, legend=None),
        "color": field("colour:N", scale=None),
        "tooltip": [field(name) for name in ("way:N", "from:Q", "to:Q", "samples:Q")],
    }
    layers = [
        marks("bar", bars, values, height={"band": 0.7}),
        marks("tick", {"x": field("median:Q", scale=scale), "y": y}, middles, thickness=2, size=STEP * 0.8,
              color=theme.text),
    ]  # fmt: skip
    heading = title("How long single calls took", size=16, offset=10)
    return finished(layered(layers, width=WIDTH, height={"step": STEP}, title=heading), theme)


def _colour(run: CaseRuns, colours: Mapping[str, str]) -> str:
    return colours.get(plain(run.first.case.backend_label), PALETTE[0])


def over_time(
    ways: Sequence[tuple[str, CaseRuns]], theme: Theme, colours: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """The latencies of each way in the order they were taken, its processes one after the other."""
    panels = []
    for place, (name, run) in enumerate(ways):
        taken = [np.asarray(each.samples) * 1e3 for each in run.series if each.samples]
        whole = np.concatenate(taken)
        done = np.cumsum([len(each) for each in taken])[:-1]
        pieces = np.array_split(whole, min(POINTS, len(whole)))
        middles = [tuple(map(float, np.quantile(piece, [0.1, 0.5, 0.9]))) for piece in pieces]
        mine: list[dict[str, Any]] = [
            {"way": name, "at": 100 * (at + 0.5) / len(pieces), "low": low, "median": middle, "high": high}
            for at, (low, middle, high) in enumerate(middles)
        ]
        most = max(float(np.quantile([each["high"] for each in mine], 0.98)), max(each["median"] for each in mine))
        scale = {"domain": [min(each["low"] for each in mine) * 0.98, most * 1.02], "nice": False, "clamp": True}
        last = place == len(ways) - 1
        axis = {"format": ".0f", "tickCount": 5, "labels": last, "ticks": last}
        said = "share of its samples, in the order taken (%)" if last else None
        x = field("at:Q", title=said, axis=axis, scale={"domain": [0, 100], "nice": False})
        upright = {"tickCount": 3, "format": ",~r", "grid": False, "minExtent": 44}
        y, colour = field("median:Q", title=None, scale=scale, axis=upright), _colour(run, colours)
        band = {"x": x, "y": field("low:Q", scale=scale), "y2": {"field": "high"}}
        layers = [
            marks("area", band, opacity=0.22, color=colour),
            marks("line", {"x": x, "y": y}, strokeWidth=1.4, color=colour),
        ]
        edges = [{"at": float(100 * at / len(whole))} for at in done]
        if edges:
            layers.append(marks("rule", {"x": x}, edges, strokeDash=[3, 3], color=theme.faint, strokeWidth=1))
        above = {"text": name, "fontSize": 12, "fontWeight": "normal", "anchor": "start", "offset": 3}
        panels.append(layered(layers, mine, width=WIDTH, height=TALL, title=above))
    heading = {"text": "Latency (ms) while it was measured", "fontSize": 16, "anchor": "start", "offset": 10}
    return finished(stacked(panels, spacing=6, title=heading), theme)
