"""What steps of traces went to as a picture: a bar for each, of parts that add up to it; SVG, PNG or one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from inferlens.errors import InferlensError
from inferlens.trace import several
from inferlens.trace.analysis import Analysis, Overview, load_analysis
from inferlens.trace.steps import PARTS
from inferlens.trace.tables import stepping
from inferlens.units import duration, listing, milliseconds, percent, plural
from inferlens.views.picture import GREY, PALETTE, Theme, drawn, field, fields, finished, marks, title
from inferlens.views.plain import plain, without_middle

HOW = "Each bar is {what}: what the GPU did comes first, then what the host did while no GPU worked."
WIDTH, TALL = 700, 420  # pixels; of all bars together at most
MOST = 60  # bars
LONGEST_NAME, LONGEST_LINE = 40, 110
LEAST = 0.001  # of all bars: a part that nobody would see
# Neighbours differ in lightness too.
COLOURS = dict(zip(PARTS, (*(PALETTE[item] for item in (0, 1, 2, 8, 4, 5, 3)), GREY), strict=True))

Bars = Sequence[tuple[str, Mapping[str, float]]]


def render(path: Path, format: str, *, step: str | None = None) -> str | bytes:
    """The steps of a trace, or the mean step of each trace of a folder: text, or bytes of a PNG.

    Raises:
        InferlensError: if there is no trace, none has steps, or a library is missing.
    """

    load = partial(load_analysis, step=step)
    runs = ([(item.name, item) for item in several.traces_in(path)] or several.runs_in(path)) if path.is_dir() else []
    if len(runs) > 1:
        made = [(name, load(file).overview) for name, file in runs]
        return drawn(partial(of_traces, made), format, path.name)
    return drawn(partial(of_steps, load(runs[0][1] if runs else path), path.name), format, path.name)


def of_steps(analysis: Analysis, name: str, theme: Theme) -> dict[str, Any]:
    """The steps of a trace; ``name`` is the trace's."""
    bars: list[tuple[str, Mapping[str, float]]] = []
    taken: dict[str, int] = {}
    for row in stepping(analysis).rows(MOST):
        label = f"{row['step']} ({row['note']})" if row["note"] else str(row["step"])
        taken[label] = taken.get(label, 0) + 1
        bars.append((label + f" #{taken[label]}" * (taken[label] > 1), row))
    overview = analysis.overview
    part = max(overview.parts, key=lambda part: overview.parts[part])
    share = percent(overview.parts[part] / (overview.step_time or 1.0))
    gpus = dict.fromkeys(plain(gpu.name) or f"GPU {gpu.device}" for gpu in overview.gpus)
    about = [listing([*gpus]), f"{plural(overview.steps, 'traced step')} of {duration(overview.step_time)}"]
    about += [f"the first {MOST} are drawn"] if len(analysis.steps) > len(bars) and analysis.step is None else []
    answer = f"{without_middle(plain(name), LONGEST_NAME)}: {part} takes most of a step, {share}"
    return _chart(bars, "step", answer, " · ".join(filter(None, about)), theme)


def of_traces(traces: Sequence[tuple[str, Overview]], theme: Theme) -> dict[str, Any]:
    """The mean step of each trace, by the traces' names."""
    bars = [(without_middle(plain(name), LONGEST_NAME), overview.parts) for name, overview in traces[:MOST]]
    fast, *_, slow = sorted(traces, key=lambda trace: trace[1].step_time)
    ends = [
        f"{duration(overview.step_time)} ({without_middle(plain(name), LONGEST_NAME // 2)})"
        for name, overview in (fast, slow)
    ]
    gpus = dict.fromkeys(plain(gpu.name) for _, overview in traces for gpu in overview.gpus if gpu.name)
    about = [listing([*gpus]), plural(len(traces), "trace"), *[f"the first {MOST} are drawn"] * (len(traces) > MOST)]
    answer = f"A traced step takes {' to '.join(ends)}"
    return _chart(bars, "trace", answer, " · ".join(filter(None, about)), theme)


def _chart(bars: Bars, what: str, answer: str, about: str, theme: Theme) -> dict[str, Any]:
    """The Vega-Lite document of bars under what they come to."""
    if not bars:
        raise InferlensError("There is nothing to draw: the trace has no events.", expected="a trace with steps")
    sums = {part: sum(parts[part] for _, parts in bars) for part in PARTS}
    shown = [part for part in PARTS if sums[part] > LEAST * sum(sums.values())]
    values = []
    for label, parts in bars:
        whole = sum(parts[part] for part in PARTS) or 1.0
        values += [
            {what: label, "part": part, "place": PARTS.index(part), "time (ms)": 1e3 * parts[part],
             "took": f"{milliseconds(parts[part])} ms, {percent(parts[part] / whole)}"}
            for part in shown
        ]  # fmt: skip
    scale = {"domain": shown, "range": [COLOURS[part] for part in shown]}
    legend = {"title": None, "orient": "top", "offset": 8, "symbolType": "square"}
    labels = [label for label, _ in bars]
    above = "step" if what == "step" and len(labels) > 1 else None
    channels = {
        "x": field("time (ms):Q", stack=True, title="time (ms)", axis={"format": ",~r", "tickCount": 8}),
        "y": field(f"{what}:N", sort=labels, title=above, axis={"labelOverlap": True}),
        "color": field("part:N", scale=scale, legend=legend),
        "order": field("place:Q"),
        "tooltip": fields(*((name, name) for name in (what, "part", "took"))),
    }
    size = {"width": WIDTH, "height": {"step": min(26, max(4, TALL // len(labels)))}}
    heading = title(answer, without_middle(about, LONGEST_LINE), size=16, offset=12)
    return finished({**marks("bar", channels, values, height={"band": 0.8}), **size, "title": heading}, theme)
