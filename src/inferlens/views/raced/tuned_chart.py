"""A tuning as a chart: what is to be best against the error of the outputs, and against memory, of all that was timed.

The line of each panel joins what nothing else beats in both. The winner, the best way with its defaults and the
reference are named; what breaks a limit is hollow, and what failed is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from inferlens.analysis.tuned import WINNER, CandidateFacts, Tuned, facts_of
from inferlens.errors import InferlensError, check_choice
from inferlens.spec.case import PRECISIONS, QUANTIZED
from inferlens.units import error_size, mebibytes, plural, ratio, ratio_range
from inferlens.views import picture
from inferlens.views.chart import LETTER, LETTER_OF_TITLE, WIDTH
from inferlens.views.picture import PALETTE, SHAPES, THEMES, Theme, config
from inferlens.views.plain import cut, plain
from inferlens.views.raced.tuned import finals_of

HEIGHT, BETWEEN = 320, 70
FAR = 4.0  # times the least, from which on an axis has a logarithmic scale
_UNITS = {"s": ("ms", 1e3), "J": ("mJ", 1e3), "B": ("MiB", 2.0**-20)}  # of measures, as axes have them
_MIB = 2.0**-20
_PLACES = {"winner": -16, "best defaults": 20, "reference": 20}  # of words above or below a point, in pixels


def render(tuned: Tuned, format: str, theme: str = "auto", reference: str | None = None) -> str | bytes:
    """The chart: text for SVG and HTML, bytes for PNG.

    Raises:
        InferlensError: if nothing was timed, the format is none, or ``reference`` names no row of the finals.
        MissingLibrary: if what draws is not there.
    """
    picture.check(format, "--output tuning.svg")
    check_choice("theme", theme, ("auto", *THEMES))
    picture.converter()
    return picture.drawn(spec(tuned, reference), format, _model(tuned), theme)


def spec(tuned: Tuned, reference: str | None = None) -> Callable[[Theme], dict[str, Any]]:
    """What makes the Vega-Lite document for a theme.

    Raises:
        InferlensError: if nothing was timed, or ``reference`` names no row of the finals.
    """
    facts = facts_of(tuned)
    timed = [one for one in facts if one.objective is not None]
    if not any(one.error is not None or one.memory for one in timed):
        raise InferlensError("There is nothing to draw: nothing was timed.", hint="inferlens show, which says why")
    roles = _roles(tuned, facts, reference)
    return lambda theme: _chart(tuned, timed, facts, roles, theme)


def _model(tuned: Tuned) -> str:
    return plain(tuned.trials[0].records[0].case.model.rpartition(":")[2])


def _roles(tuned: Tuned, facts: Sequence[CandidateFacts], reference: str | None) -> dict[str, list[str]]:
    """What is named, by the case's digest."""
    roles: dict[str, list[str]] = {}
    if facts[0].came == WINNER:
        roles[facts[0].case.digest] = ["winner"]
    usual = next((one.case for one in facts if one.candidate.final and not one.candidate.settings), None)
    if usual:
        roles.setdefault(usual.digest, []).append("best defaults")
    base = next((row.label for row in finals_of(tuned, reference) if row.is_reference), "")
    for one in facts:
        if base and one.case.label == base:
            roles.setdefault(one.case.digest, []).append("reference")
    return roles


def _chart(
    tuned: Tuned,
    timed: Sequence[CandidateFacts],
    facts: Sequence[CandidateFacts],
    roles: dict[str, list[str]],
    theme: Theme,
) -> dict[str, Any]:
    """The Vega-Lite document."""
    import altair as alt

    values = _values(tuned, timed, roles)
    titles = {
        "error": "error of the outputs (relative L2, log scale)",
        "memory": "peak memory, of processes that did not export (MiB)",
    }
    names = [name for name in titles if name != tuned.objective.name and any(each[name] is not None for each in values)]
    width = (WIDTH - BETWEEN * (len(names) - 1)) / max(len(names), 1)
    panels = [_panel(tuned, values, name, titles[name], theme).properties(width=width, height=HEIGHT) for name in names]
    room = WIDTH + 2 * BETWEEN  # with what stands beside the axes
    answer, about = _answer(tuned, timed, room / LETTER_OF_TITLE), cut(_about(tuned, facts), int(room / LETTER))
    title = alt.TitleParams(answer, subtitle=about, fontSize=18, anchor="start", offset=18, frame="bounds")
    chart = alt.hconcat(*panels, spacing=BETWEEN, title=title)
    return {**chart.to_dict(), "config": config(theme)}


def _answer(tuned: Tuned, timed: Sequence[CandidateFacts], room: float) -> str:
    """The winner, with what is to be best of it, against the reference; in as many words as there is room for."""
    model = _model(tuned)
    row = next((row for row in finals_of(tuned) if tuned.best and row.label == tuned.best.label), None)
    if row is None or not tuned.best:
        return f"{model}: nothing ran with right outputs"
    how = {"equal": "is as good as any", "likeliest": "is likeliest to be best"}.get(tuned.answer.kind, "is best")
    took = tuned.objective.measure.show(timed[0].objective)
    settings = plural(len(timed[0].candidate.settings), "setting")
    names = [tuned.best.way, f"{tuned.best.backend_label} {tuned.best.precision} with {settings}"]
    than = [""]
    if row.speedup and not row.is_reference:
        by = f", {ratio(row.speedup)} {row.reference}"
        than = [f"{by} ({ratio_range(row.speedup_low, row.speedup_high)})"] * bool(row.speedup_low) + [by, ""]
    options = [plain(f"{model}: {name} {how}: {took}{more}") for name in names for more in than]
    return next((each for each in options if len(each) <= room), cut(options[-1], int(room)))


def _about(tuned: Tuned, facts: Sequence[CandidateFacts]) -> str:
    """One line beneath the title: of what it is, and what is not drawn."""
    untimed = sum(one.objective is None for one in facts)
    row = finals_of(tuned)[0]
    words = [plain(row.inputs.replace(":float32", "")), plain(row.device_name)]
    words.append(f"{len(facts):,} of {plural(tuned.size, 'candidate')} tried")
    words += [f"{untimed} that failed or were wrong are not drawn"] if untimed else []
    return " · ".join([*words, "dashed: nothing is better in both"])


def _values(tuned: Tuned, timed: Sequence[CandidateFacts], roles: dict[str, list[str]]) -> list[dict[str, Any]]:
    """What is drawn of each candidate; those that are named last, so that they lie on top."""
    measure = tuned.objective.measure
    scale = _UNITS.get(measure.unit, ("", 1.0))[1]
    least = min((one.error for one in timed if one.error and one.error > 0), default=1e-7)
    values = []
    for one in timed:
        role = roles.get(one.case.digest, [])
        values.append(
            {
                "name": plain(one.case.way),
                "x": (one.objective or 0.0) * scale,
                "said": measure.show(one.objective),
                "error": None if one.error is None else max(one.error, least / 3),  # 0 has no place on a log scale
                "error_said": error_size(one.error),
                "memory": None if one.memory is None else one.memory * _MIB,
                "memory_said": mebibytes(one.memory),
                "speedup": ratio(one.candidate.speedup),
                "colour": plain(one.case.backend_label),
                "precision": one.case.precision,
                "role": ", ".join(role),
                "first": role[0] if role else "",
                "filled": not one.candidate.out,
                "came": cut(plain(one.came), 80),
            }
        )
    return sorted(values, key=lambda each: bool(each["role"]))


def front(values: Sequence[dict[str, Any]], name: str, *, less: bool) -> list[dict[str, Any]]:
    """What nothing else beats in both, from the best to the worst of the objective; what breaks a limit aside."""
    able = [each for each in values if each[name] is not None and each["filled"]]
    found: list[dict[str, Any]] = []
    for each in sorted(able, key=lambda each: (each["x"] if less else -each["x"], each[name])):
        if not found or each[name] < found[-1][name]:
            found.append(each)
    return found


def _panel(tuned: Tuned, values: Sequence[dict[str, Any]], name: str, title: str, theme: Theme) -> Any:
    """The candidates by what is to be best, across, and one other measure."""
    import altair as alt

    measure = tuned.objective.measure
    unit = _UNITS.get(measure.unit, (measure.unit, 1.0))[0]
    across = [each["x"] for each in values]
    least, most = min(across), max(across)
    log, room = most > FAR * least > 0, 0.12 * (most - least) or 0.1 * most
    ends = [least / 1.3, most * 1.3] if log else [max(least - room, 0.0), most + room]
    scale = alt.Scale(type="log" if log else "linear", domain=ends, nice=False)
    titled = f"{measure.title} ({unit}{', log scale' if log else ''})"
    x = alt.X("x:Q", title=titled, scale=scale, axis=alt.Axis(format=",~r", tickCount=6, labelOverlap=True))
    known = [each for each in values if each[name] is not None]
    heights = [each[name] for each in known]
    y = alt.Y("memory:Q", title=title, scale=alt.Scale(domain=[0, 1.15 * max(heights)], nice=False))
    if name == "error":
        low, high = (math.log10(end(heights)) for end in (min, max))
        decades = [10.0**power for power in range(math.floor(low - 0.3), math.ceil(high + 0.3) + 1)]
        powers = alt.Scale(type="log", domain=[decades[0], decades[-1]], nice=False)
        y = alt.Y("error:Q", title=title, scale=powers, axis=alt.Axis(values=decades, format="~e"))
    backends = sorted({each["colour"] for each in values})
    precisions = [each for each in (*PRECISIONS, *QUANTIZED) if each in {one["precision"] for one in values}]
    legend = alt.Legend(title=None, orient="top", columns=4)
    colour = alt.Color("colour:N", scale=alt.Scale(domain=backends, range=PALETTE), legend=legend)
    grey = {"symbolFillColor": theme.faint, "symbolStrokeColor": theme.faint}
    shapes = alt.Legend(title=None, orient="top", **grey) if len(precisions) > 1 else None
    shape = alt.Shape("precision:N", scale=alt.Scale(domain=precisions, range=SHAPES), legend=shapes)
    tooltip = [
        alt.Tooltip(f"{key}:N", title=said)
        for key, said in (
            ("name", "candidate"), ("said", measure.title), ("speedup", "vs the winner"), ("error_said", "error"),
            ("memory_said", "memory (MiB)"), ("came", "what came of it"),
        )
    ]  # fmt: skip
    line = alt.Chart(alt.Data(values=front(known, name, less=measure.less)))
    steps = "step-after" if measure.less else "step-before"
    base = alt.Chart(alt.Data(values=known))
    point = base.encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip)
    named = base.transform_filter("datum.role != ''")
    layers = [
        line.mark_line(interpolate=steps, strokeWidth=1.5, strokeDash=[4, 3], color=theme.faint).encode(x=x, y=y),
        point.transform_filter("datum.filled").mark_point(filled=True, size=70, opacity=0.85),
        point.transform_filter("!datum.filled").mark_point(filled=False, size=70, opacity=0.85),
        named.mark_point(filled=False, size=230, strokeWidth=1.8, color=theme.text, shape="circle").encode(x=x, y=y),
    ]
    middle = math.sqrt(math.prod(ends)) if log else sum(ends) / 2
    for word, dy in _PLACES.items():
        for side, dx, which in (("left", -9, "<="), ("right", 9, ">")):  # into the panel, not over its axis
            some = base.transform_filter(f"datum.first == '{word}' && datum.x {which} {middle}")
            layers.append(some.mark_text(align=side, dx=dx, dy=dy, fontWeight="bold").encode(x=x, y=y, text="role:N"))
    return alt.layer(*layers)
