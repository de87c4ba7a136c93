"""Charts of records: latency and throughput by way and by size, and latency against error, accuracy or memory.

Rows become a Vega-Lite document. Its title is the answer, and the subtitle names the work. Bars start at zero, every
mark has its value as text, and ways that did not run have a word in place of a bar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from inferlens.analysis.samples import CaseRuns
from inferlens.errors import InferlensError, check_choice
from inferlens.record.record import Record
from inferlens.spec.case import PRECISIONS, QUANTIZED, short_name
from inferlens.units import error_size, listing, mebibytes, millijoules, milliseconds, ratio, score
from inferlens.views import View
from inferlens.views.answer import answers
from inferlens.views.picture import (
    DASHES,
    PALETTE,
    SHAPES,
    Ends,
    Part,
    Theme,
    check_picture,
    colours_of,
    draw_chart,
    field,
    fields,
    marks,
    overlay,
    place_labels,
    stack_charts,
    title,
    vega_document,
)
from inferlens.views.records import COLUMNS, headline
from inferlens.views.renderers.terminal import wrap
from inferlens.views.rows import Row, group_rows, row_names, rows, sizes_text, varying_sizes
from inferlens.views.table import Column, cut_middle, plain

CHART_WIDTH = 736  # pixels of a row of panels
UNSET = "(default)"  # the value of a row without the option
MAX_WAYS, MAX_WAYS_PER_SIZE = 30, 8  # ways that are drawn of one batch size, and of several
LETTER, TITLE_LETTER = 6.3, 9.6  # pixels that a letter takes on average
_STEP = 27
# The right panel of lines has its own axis, which aligns both right panels.
_BETWEEN = 76
_BETWEEN_LINES = 12
_SCALES = {"ms": 1e3}  # factors from seconds
CHARTED = tuple(column for column in COLUMNS if column.chart)


class Chart(View):
    """Draw latency and throughput, or latency against a measure, one block per model and machine."""

    name: ClassVar[str] = "chart"
    summary: ClassVar[str] = "latency and throughput side by side, as SVG, PNG or HTML"
    printable: ClassVar[bool] = False

    def __init__(
        self, *, reference: str | None = None, format: str = "svg", theme: str = "auto", top: int | None = None,
        against: str | None = None,
    ) -> None:  # fmt: skip
        """Take ``format`` and ``theme`` as :func:`.draw_chart` does.

        ``top`` limits the ways of which latency and throughput are drawn; ``against`` is one of :data:`AGAINST`.
        """
        super().__init__(reference=reference)
        if against:
            check_choice("measure", against, AGAINST)
        check_picture(format, theme=theme)
        self.format, self.theme, self.top, self.against = format, theme, top, against

    def render(self, records: Sequence[Record]) -> str | bytes:
        """Return text for SVG and HTML, bytes for PNG."""
        shown, against = rows(records, self.reference), self.against
        if against and not any(drawable(row, against) for row in shown):
            problem = f"There is nothing to draw: no case has both a latency and its {AGAINST[against].title}."
            raise InferlensError(problem, hint="inferlens show --wide")
        if not against and not any(map(has_mark, shown)):
            reason = next((f" {plain(row.reason)}" for row in shown if row.reason), "")
            problem = f"There is nothing to draw: no case has right outputs and a latency or a rate.{reason}"
            raise InferlensError(problem, hint="inferlens show")
        chart = partial(points_chart, shown, against) if against else partial(records_chart, shown, top=self.top)
        return draw_chart(chart, self.format, shown[0].model, self.theme)


def records_chart(
    shown: Sequence[Row], theme: Theme, top: int | None = None, colours: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the Vega-Lite document; ``colours`` maps backend names to colours."""
    colours = colours or colours_by_backend(shown)
    tables = [table for table in group_rows(shown, "table") if any(map(has_mark, table))]
    charts = [_table_chart(table, top, colours) for table in tables]
    return vega_document(stack_charts(charts, own_scales=("color", "shape", "strokeDash"), spacing=44), theme)


def colours_by_backend(shown: Sequence[Row]) -> dict[str, str]:
    """Return one colour per backend for all charts of these rows."""
    return colours_of(sorted({plain(row.backend) for row in shown}))


def has_mark(row: Row) -> bool:
    """Return whether a row has marks; other rows get a word."""
    return row.ranked and row.seconds_per_call is not None


def _table_chart(table: Sequence[Row], top: int | None, colours: Mapping[str, str]) -> dict[str, Any]:
    """Draw one model on one machine: lines over each dimension of several sizes or values of one option, or bars."""
    names = chart_names(table)
    comparisons = group_rows(table, "comparison")
    several = len(comparisons) > 1
    series = row_names(table) if several else {row.id: plain(row.backend) for row in table}
    first = _first_ways(comparisons, names, top or (MAX_WAYS_PER_SIZE if several else MAX_WAYS))
    shown = [row for row in table if names[row.id] in first]
    marked = [row for row in shown if has_mark(row)]
    series_colours = {series[row.id]: colours[plain(row.backend)] for row in shown}
    sizes = varying_sizes(marked)
    panels = [_lines(marked, series, series_colours, name) for name in sizes]
    texts = []
    for comparison in group_rows(shown, "comparison"):
        texts += labels(comparison, names)
        if not several and (option := swept_option(comparison)):
            panels.append(_curve(comparison, option))
        elif not sizes:
            heading = comparison_place(comparison, comparisons) if several else ""
            panels.append(_bars(comparison, names, series, series_colours, heading))
    width = CHART_WIDTH + LETTER * max(map(len, texts))
    answer = title_of(comparisons, names, width / TITLE_LETTER)
    left_out = len(set(names.values())) - len(first)
    about = f"{headline(table)}{f' · the first {len(first)} are drawn' * bool(left_out)}"
    subtitle = cut_middle(about, int(width / LETTER))
    # Each panel names its colours itself; sharing them would make one legend of those with and without.
    return stack_charts(panels, own_scales=("color", "shape", "strokeDash"), spacing=30, title=title(answer, subtitle))


def swept_option(rows: Sequence[Row]) -> str:
    """Return the option, or ``threads``, whose values are all that differs between rows that have marks.

    Empty if other things differ, a row has no mark, or none is the reference.
    """
    options = [option_words(row) for row in rows]
    names = {name for words in options for name in words}
    different = [name for name in names if len({words.get(name) for words in options}) > 1]
    if len(different) != 1 or not all(map(has_mark, rows)) or not any(row.is_reference for row in rows):
        return ""
    (option,) = different
    pattern = r"\d+ threads?" if option == "threads" else rf"{re.escape(option)}=\S+"
    texts = {" ".join(re.sub(pattern, "", f"{row.name} {row.label}").split()) for row in rows}
    return option if len(texts) == 1 else ""


def option_words(row: Row) -> dict[str, str]:
    """Return the values of a row's options, and of its threads if they were given, as text."""
    pairs = (word.partition("=") for word in row.options.split())
    words = {name: value for name, _, value in pairs if name not in ("keep", "checkout")}
    return words if row.threads is None else {"threads": str(row.threads), **words}


def _curve(rows: Sequence[Row], option: str) -> dict[str, Any]:
    """Draw the speed-up over the reference with its interval against the values of an option."""
    values = [
        {
            "value": plain(option_words(row).get(option, UNSET)), "speedup": row.speedup or 1.0,
            "low": row.speedup_low or row.speedup or 1.0, "high": row.speedup_high or row.speedup or 1.0,
        }
        for row in sorted(rows, key=lambda row: _value_order(row, option))
    ]  # fmt: skip
    reference = next(plain(row.name) for row in rows if row.is_reference)
    x = field("value:N", sort=None, title=plain(option), axis={"labelAngle": 0})
    scale = {"zero": False, "nice": True}
    y = field("speedup:Q", title=cut_middle(f"speed-up over {reference}, 95 % interval", 50), scale=scale)
    interval = {"x": x, "y": field("low:Q", scale=scale), "y2": {"field": "high"}}
    layers = [
        marks("rule", interval, strokeWidth=1.5),
        marks("line", {"x": x, "y": y}, strokeWidth=2, color=PALETTE[0]),
        marks("point", {"x": x, "y": y}, filled=True, size=60, opacity=1, color=PALETTE[0]),
    ]
    return overlay(layers, values, width=CHART_WIDTH, height=260)


def _value_order(row: Row, option: str) -> tuple[int, float, str]:
    """Return a sort key: the row without the option first, then numbers, then other values as they were measured."""
    value = option_words(row).get(option)
    if value is None:
        return 0, 0.0, ""
    try:
        return 1, float(value), ""
    except ValueError:
        return 2, 0.0, row.created


def chart_names(table: Sequence[Row]) -> dict[str, str]:
    """Return row names by id, without a shared precision and without the ``io`` that stands above the bars."""
    names = row_names(table)
    if len({row.io for row in table}) > 1:
        names = {row.id: names[row.id].replace(f" {row.io} io", "", 1) for row in table}
    return names


def labels(rows: Sequence[Row], names: dict[str, str]) -> list[str]:
    """Return the row names of one comparison with their roles."""
    several = sum(map(has_mark, rows)) > 1
    words = {"fastest": "fastest", "equal": "as fast", "likeliest": "likely fastest"} if several else {}
    texts = []
    for row in rows:
        roles = [*["reference"] * row.is_reference, *filter(None, [words.get(row.standing)])]
        texts.append(f"{names[row.id]} ({', '.join(roles)})" if roles else names[row.id])
    return texts


def answer_title(model: str, answer: str, about: str, width: float) -> Part:
    """Return a title with the whole answer about a model, and a subtitle that is cut to a width in pixels."""
    text = plain(f"{model}: {answer.replace('  ', ' · ')}")
    return title(wrap(text, int(width / TITLE_LETTER)), cut_middle(plain(about), int(width / LETTER)))


def title_of(comparisons: Sequence[Sequence[Row]], names: dict[str, str], room: float) -> list[str]:
    """Return the title: the model and its answer, or the fastest way of each comparison."""
    model = plain(short_name(comparisons[0][0].model))
    if len(comparisons) == 1:
        return wrap(plain(f"{model}: {answers(comparisons[0])[0].lines[0].replace('  ', ' · ')}"), int(room))
    winners = []
    for name, rows_by_place in fastest_places(comparisons, names).items():
        places = [place + " (probably)" * (row.standing == "likeliest") for place, row in rows_by_place.items()]
        winners.append(f"{name} at {listing(places)}")
    return wrap(f"{model}, fastest: {', '.join(winners) or 'none, all outputs are wrong'}", int(room))


def fastest_places(comparisons: Sequence[Sequence[Row]], names: Mapping[str, str]) -> dict[str, dict[str, Row]]:
    """Return the fastest ways by name, with the comparisons that they win by place, and their rows there."""
    winners: dict[str, dict[str, Row]] = {}
    for comparison in comparisons:
        if winner := next((row for row in comparison if row.fastest), None):
            winners.setdefault(names[winner.id], {})[comparison_place(comparison, comparisons)] = winner
    return winners


def comparison_place(rows: Sequence[Row], comparisons: Sequence[Sequence[Row]]) -> str:
    """Return what distinguishes one comparison from the others."""
    texts = {"io": f"{rows[0].io} io", "call_mode": rows[0].call_mode or "repeated"}
    words = [texts[name] for name in texts if len({getattr(comparison[0], name) for comparison in comparisons}) > 1]
    sizes = sizes_text(rows[0], varying_sizes(comparison[0] for comparison in comparisons))
    return plain(", ".join(filter(None, [sizes, *words])))


def _order(row: Row) -> tuple[bool, float]:
    """Return the key that sorts by speed; rows without a bar come last."""
    return not has_mark(row), row.seconds_per_call or 0.0


def _first_ways(comparisons: Sequence[Sequence[Row]], names: dict[str, str], limit: int) -> set[str]:
    """Return the names of ``limit`` ways: references and the fastest ways come first, then others by speed."""
    rows = [row for comparison in comparisons for row in comparison]
    rows.sort(key=lambda row: (not (row.is_reference or row.fastest), *_order(row)))
    return set(list(dict.fromkeys(names[row.id] for row in rows))[:limit])


def _panels(values: Sequence[dict[str, Any]]) -> tuple[list[Column], float]:
    """Return the columns that have values, and the width of a panel of one of them."""
    columns = [column for column in CHARTED if any(value[column.key] for value in values)] or [CHARTED[0]]
    return columns, (CHART_WIDTH - _BETWEEN * (len(columns) - 1)) / len(columns)


def _bars(
    rows: Sequence[Row], names: dict[str, str], series: dict[str, str], colours: Mapping[str, str], heading: str
) -> dict[str, Any]:
    """Draw the measurements of one comparison side by side, the fastest on top, with whiskers at the latency."""
    ordered = sorted(rows, key=_order)
    row_labels = labels(ordered, names)
    values = [{**_row_values(row, series), "name": name} for row, name in zip(ordered, row_labels, strict=True)]
    colour = field("colour:N", scale={"domain": [*colours], "range": [*colours.values()]}, legend=None)
    panels, (columns, width) = list[Any](), _panels(values)
    for column in columns:
        text = f"{column.key}_text"
        y = field("name:N", sort=row_labels, title=None, **({"axis": None} if panels else {}))
        # The axis leaves room for the texts behind the bars.
        longest = max(
            value[f"{column.key}_end"] / max(1 - (10 + LETTER * len(value[text])) / width, 0.3) for value in values
        )
        scale = {"domain": [0, longest or 1.0], "nice": False}
        has_whiskers = column.key == "median" and any(value["low"] for value in values)
        axis_title = column.chart + ", whiskers: 5th to 95th percentile" * has_whiskers
        axis = {"tickCount": 5, "format": ",~r", "labelOverlap": True}
        x, end = field(f"{column.key}:Q", title=axis_title, scale=scale, axis=axis), f"{column.key}_end:Q"
        base = {"y": y, "detail": field("colour:N")}  # by which a page hides all of a series
        bar = {**base, "x": x, "color": colour, "tooltip": _tooltip()}
        layers = [marks("bar", bar, height={"band": 0.66}, cornerRadiusEnd=2)]
        if column.key == "median":
            low, high = ({**base, "x": field(f"{end}:Q")} for end in ("low", "high"))
            layers.append(marks("rule", {**low, "x2": {"field": "high"}}, strokeWidth=1.5))
            layers += [marks("tick", channels, size=9, thickness=1.5) for channels in (low, high)]
        words = {**base, "x": field(end, scale=scale), "text": field(f"{text}:N")}
        layers.append(marks("text", words, align="left", baseline="middle", dx=6))
        panels.append(overlay(layers, width=width, height={"step": _STEP}))
    title_part: Part = {"title": {"text": heading, "frame": "group"}} if heading else {}
    return stack_charts(panels, across=True, values=values, spacing=_BETWEEN, **title_part)


def _lines(rows: Sequence[Row], series: dict[str, str], colours: Mapping[str, str], dimension: str) -> dict[str, Any]:
    """Draw the measurements against a dimension, one line per series."""
    other_sizes = [name for name in varying_sizes(rows) if name != dimension]
    sized = [row for row in rows if row.dimensions.get(dimension)]
    names = {row.id: ", ".join(filter(None, [series[row.id], sizes_text(row, other_sizes)])) for row in sized}
    values = [{**_row_values(row, names), "size": row.dimensions[dimension]} for row in sized]
    axis: Part = {"values": sorted({value["size"] for value in values}), "format": "d", "labelOverlap": True}
    scale: Part = {"type": "log", "base": 2, "nice": False}
    axis_title = f"{'batch size' if dimension == 'batch' else plain(dimension)} (log scale)"
    x = field("size:Q", title=axis_title, scale=scale, axis=axis)
    legend = {"title": None, "orient": "top", "columns": 2, "offset": 16}
    largest_first = sorted(sized, key=lambda row: (-(row.dimensions[dimension] or 0), _order(row)))
    line_colours = {names[row.id]: colours[series[row.id]] for row in largest_first}
    colour, shape, dash = (
        field("colour:N", scale={"domain": [*line_colours], "range": looks}, legend=legend)
        for looks in ([*line_colours.values()], SHAPES, DASHES)
    )
    panels, (columns, width) = list[Any](), _panels(values)
    for column in columns:
        positive = [value[column.key] for value in values if value[column.key]]
        # A log scale keeps slow and fast apart; lines whose speed-up is the same at every batch are parallel.
        low, high = min(positive) / 1.2, max(positive) * 1.2
        axis = {"tickCount": 6, "labelOverlap": True, "format": ",~r", "minExtent": 44}
        scale = {"type": "log", "domain": [low, high], "nice": False}
        y = field(f"{column.key}:Q", title=f"{column.chart}, log scale", scale=scale, axis=axis)
        base, has_value = {"x": x, "y": y, "color": colour}, f"datum.{column.key} > 0"
        point = {**base, "shape": shape, "tooltip": _tooltip()}
        layers = [
            marks("line", {**base, "strokeDash": dash}, where=has_value, strokeWidth=2),
            marks("point", point, where=has_value, filled=True, size=60, opacity=1),
        ]
        panels.append(overlay(layers, width=width, height=260))
    return stack_charts(panels, across=True, values=values, spacing=_BETWEEN_LINES)


def _tooltip() -> list[Any]:
    charted = ((f"{column.key}_text", column.chart) for column in CHARTED)
    return fields(("case", "case"), ("spread", "p5 to p95 (ms)"), *charted)


def _row_values(row: Row, series: dict[str, str]) -> dict[str, Any]:
    """Return the values of a row that the panels draw, in the unit of their column, and as text."""
    marked = has_mark(row)
    missing = "wrong outputs" if row.ok and row.agrees is False else "not measured" if row.ok else row.status
    values: dict[str, Any] = {
        "case": plain(row.name), "colour": series[row.id],
        "low": None if row.p5 is None or not marked else 1e3 * row.p5,
        "high": None if row.p95 is None or not marked else 1e3 * row.p95,
        "spread": f"{milliseconds(row.p5)} to {milliseconds(row.p95)}",
    }  # fmt: skip
    for place, column in enumerate(CHARTED):
        value = (getattr(row, column.key) or 0.0) * _SCALES.get(column.unit, 1.0) if marked else 0.0
        text = column.text(row) if value else "not measured" if marked else "" if place else missing
        compared = value and row.speedup and not row.is_reference and not place
        faster = f" · {ratio(row.speedup)}" if compared else ""
        values |= {column.key: value, f"{column.key}_text": text + faster}
        values[f"{column.key}_end"] = max(value, values["high"] or 0.0) if column.key == "median" else value
    return values


# Points by two measures in a panel. The dashed line is the Pareto front of the filled points; wrong ones are crossed
# out. Tooltips have the names that do not fit.

WIDE_RANGE = 4.0  # times the least, from which on an axis has a logarithmic scale
WRONG = "#C62828"
_CROSS = "M-1,-1L1,1M1,-1L-1,1"


@dataclass(frozen=True)
class PanelAxis:
    """A measure as an axis around the values, logarithmic for a wide range; ``less`` is whether smaller is better."""

    key: str
    title: str
    less: bool = True
    format: str = ",~r"

    def domain(self, values: Sequence[float]) -> Ends:
        """Return both ends, and whether the axis is logarithmic."""
        low, high = min(values), max(values)
        if high > WIDE_RANGE * low > 0:
            return low / 1.3, high * 1.3, True
        room = 0.12 * (high - low) or 0.1 * high
        return max(low - room, 0.0), high + room, False


ERROR = PanelAxis("error", "error of the outputs (relative L2)", format="~e")
ACCURACY = PanelAxis("accuracy", "accuracy (shares in %)", less=False)
ENERGY = PanelAxis("energy", "energy of an item (mJ)")
MEMORY = PanelAxis("memory", "peak memory (MiB)")


def accuracy_axis(metrics: Iterable[tuple[str, bool]]) -> PanelAxis:
    """Return the accuracy axis under its metric's name if all share one; the booleans mark metrics that are shares."""
    titles = {plain(name) + " (%)" * share for name, share in metrics}
    return replace(ACCURACY, title=titles.pop()) if len(titles) == 1 else ACCURACY


def least_error(errors: Sequence[float | None]) -> float:
    """Return the value that replaces an error of 0 on a logarithmic scale."""
    return min((error for error in errors if error), default=3e-7) / 3


def point_measures(
    error: float | None, least: float, metric: str, accuracy: float | None, is_share: bool, memory: float | None
) -> dict[str, Any]:
    """Return the measures of a point in the units of their axes, and as text; ``least`` replaces smaller errors."""
    return {
        "error": None if error is None else max(error, least), "error_said": error_size(error),
        "accuracy": accuracy and accuracy * (100 if is_share else 1),
        "accuracy_said": f"{metric} {score(accuracy, share=is_share)}" if metric else "",
        "memory": memory and memory * _MIB, "memory_said": mebibytes(memory),
    }  # fmt: skip


def pareto_front(
    values: Sequence[dict[str, Any]], key: str, *, less: bool, up_less: bool = True
) -> list[dict[str, Any]]:
    """Return the Pareto front of filled points from the best ``x`` to the worst.

    ``less`` and ``up_less`` say whether smaller values are better.
    """
    points = [value for value in values if value[key] is not None and value["filled"]]
    across, up = (1 if less else -1), (1 if up_less else -1)
    best: list[dict[str, Any]] = []
    for point in sorted(points, key=lambda point: (across * point["x"], up * point[key])):
        if not best or up * point[key] < up * best[-1][key]:
            best.append(point)
    return best


def scatter_panel(
    values: Sequence[dict[str, Any]],
    across: PanelAxis,
    up: PanelAxis,
    theme: Theme,
    size: tuple[float, float],
    tooltip: Sequence[tuple[str, str]],
    colours: Mapping[str, str],
) -> dict[str, Any]:
    """Draw points by two measures in a panel.

    ``tooltip`` pairs keys with titles; ``colours`` maps the points' ``colour``.
    """
    points = [value for value in values if value[up.key] is not None]
    ends = {axis.key: axis.domain([point[axis.key] for point in points]) for axis in (across, up)}
    best = pareto_front(points, up.key, less=across.less, up_less=up.less)
    by_priority = sorted(points, key=lambda point: (not point["role"], point not in best, point["x"]))
    points = place_labels(by_priority, "label", ends, size)
    points.sort(key=lambda point: bool(point["role"]))  # points with a role lie on top
    channels = []
    for axis in (across, up):
        low, high, log = ends[axis.key]
        heading = f"{axis.title[:-1]}, log scale)" if log and axis.title.endswith(")") else axis.title
        scale = {"type": "log" if log else "linear", "domain": (low, high), "nice": False}
        ticks = {"format": axis.format, "tickCount": 6, "labelOverlap": True}
        channels.append(field(f"{axis.key}:Q", title=heading, axis=ticks, scale=scale))
    x, y = channels
    base = {"x": x, "y": y, "detail": [field("colour:N"), field("precision:N")]}  # by which a page hides them
    point, text = {**base, "tooltip": fields(*tooltip), **_point_channels(values, theme, colours)}, field("label:N")
    step = "step-after" if across.less else "step-before"
    line: Part = {"interpolate": step, "strokeWidth": 1.5, "strokeDash": [4, 3]}
    ring: Part = {"filled": False, "size": 230, "strokeWidth": 1.8, "color": theme.text, "shape": "circle"}
    layers = [
        marks("line", {"x": x, "y": y}, values=best, color=theme.faint, **line),
        marks("point", point, where="datum.filled", filled=True, size=75, opacity=0.85),
        marks("point", point, where="!datum.filled", filled=False, size=75, opacity=0.85),
        marks("point", base, where="datum.role != ''", **ring),
        marks("point", base, where="datum.wrong", shape=_CROSS, size=160, strokeWidth=2.2, color=WRONG),
    ]
    for side in ("left", "right"):
        look: Part = {"align": side, "dy": -17, "baseline": "middle"}
        layers.append(marks("text", {**base, "text": text}, where=f"datum.side == '{side}'", **look))
    return overlay(layers, points, width=size[0], height=size[1])


def _point_channels(values: Sequence[dict[str, Any]], theme: Theme, colours: Mapping[str, str]) -> dict[str, Any]:
    """Return colours by backend and shapes by precision, equal in all panels."""
    backends = sorted({value["colour"] for value in values})
    drawn = {value["precision"] for value in values}
    precisions = [precision for precision in (*PRECISIONS, *QUANTIZED) if precision in drawn]
    legend = {"title": None, "orient": "top"}
    grey = {"symbolFillColor": theme.faint, "symbolStrokeColor": theme.faint}
    shades = {"domain": backends, "range": [colours[backend] for backend in backends]}
    shapes = {"domain": precisions, "range": SHAPES}
    return {
        "color": field("colour:N", scale=shades, legend={**legend, "columns": 4}),
        "shape": field("precision:N", scale=shapes, legend={**legend, **grey} if len(precisions) > 1 else None),
    }


# Latency against error, accuracy, memory or energy: a panel per comparison, with wrong ways crossed out.

POINTS_HEIGHT = 340
MAX_PANELS = 6  # comparisons of a table that are drawn, the first
AGAINST = {"error": ERROR, "accuracy": ACCURACY, "memory": MEMORY, "energy": ENERGY}
LATENCY = PanelAxis("x", "median latency (ms)")
_MIB = 2.0**-20
_POINT_TOOLTIP = (
    ("name", "way"), ("said", "latency (ms)"), ("speedup", "speed-up"), ("error_said", "error"),
    ("accuracy_said", "accuracy"), ("memory_said", "memory (MiB)"), ("energy_said", "energy (mJ)"),
    ("outputs", "outputs"),
)  # fmt: skip


def points_chart(
    shown: Sequence[Row], measure: str, theme: Theme, colours: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the Vega-Lite document; ``colours`` maps backend names to colours."""
    colours = colours or colours_by_backend(shown)
    tables = [table for table in group_rows(shown, "table") if any(drawable(row, measure) for row in table)]
    blocks = [_points_block(table, measure, theme, colours) for table in tables]
    return vega_document(stack_charts(blocks, own_scales=("color", "shape"), spacing=44), theme)


def drawable(row: Row, measure: str) -> bool:
    """Return whether a row is a point; wrong rows are, too."""
    values = {"error": row.error, "accuracy": row.accuracy, "memory": _memory_bytes(row), "energy": row.energy}
    return row.ok and row.median is not None and values[measure] is not None


def _memory_bytes(row: Row) -> int | None:
    return row.host_peak if row.device == "cpu" else row.device_peak


def _points_block(table: Sequence[Row], measure: str, theme: Theme, colours: Mapping[str, str]) -> dict[str, Any]:
    """Draw one model on one machine, with a panel per comparison."""
    comparisons = group_rows(table, "comparison")
    names = chart_names(table)
    metrics = [(row.metric, row.accuracy_share) for row in table if drawable(row, "accuracy")]
    axis = accuracy_axis(metrics) if measure == "accuracy" else AGAINST[measure]
    panels = list[Part]()
    for comparison in comparisons:
        values = _point_values([row for row in comparison if drawable(row, measure)], names)
        if values and len(panels) < MAX_PANELS:
            size = (CHART_WIDTH, POINTS_HEIGHT)
            panel = scatter_panel(values, LATENCY, axis, theme, size, _POINT_TOOLTIP, colours)
            place = comparison_place(comparison, comparisons)
            panels.append({**panel, "title": place} if place else panel)
    words = ["dashed: nothing is better in both", "crossed out: wrong", *headline(table).split(" · ")[1:-1]]
    room = CHART_WIDTH + 90  # with the labels of the axis
    answer, about = title_of(comparisons, names, room / TITLE_LETTER), wrap(" · ".join(words), int(room / LETTER))
    return stack_charts(panels, spacing=30, title=title(answer, about))


def _point_values(points: Sequence[Row], names: dict[str, str]) -> list[dict[str, Any]]:
    least, values = least_error([row.error for row in points]), []
    for row, label in zip(points, labels(points, names), strict=True):
        right, role = row.agrees is not False, label.removeprefix(names[row.id]).strip(" ()")
        values.append({
            **point_measures(row.error, least, row.metric, row.accuracy, row.accuracy_share, _memory_bytes(row)),
            "name": plain(row.name), "x": 1e3 * (row.median or 0.0), "said": milliseconds(row.median),
            "energy": row.energy and 1e3 * row.energy, "energy_said": millijoules(row.energy),
            "speedup": ratio(row.speedup), "outputs": row.outputs, "colour": plain(row.backend),
            "precision": row.precision, "role": role, "label": label + " (wrong)" * (not right),
            "filled": right, "wrong": not right,
        })  # fmt: skip
    return values


# Samples of the fastest ways: how often a latency occurs, and how latencies change while they are measured.

LATENCY_BINS, TIME_BINS = 80, 120  # bins per way
WAY_STEP, WAY_HEIGHT = 24, 44  # pixels per way: a row of bins, and a panel
_EDGE = 3.0  # times the largest median: slower samples are drawn at the edge
Ways = Sequence[tuple[str, CaseRuns]]


def samples_chart(ways: Ways, theme: Theme, colours: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Draw how often each latency occurs, with a line at the median; ``colours`` maps backend names to colours."""
    latencies = {name: 1e3 * np.concatenate([series.samples for series in run.series]) for name, run in ways}
    low = min(float(samples.min()) for samples in latencies.values())
    usual = max(float(np.quantile(samples, 0.999)) for samples in latencies.values())
    edge = _EDGE * max(float(np.median(samples)) for samples in latencies.values())
    high = max(min(usual, edge), low * 1.02 + 1e-9)
    bounds = np.linspace(low - 0.02 * (high - low), high, LATENCY_BINS + 1)
    values = []
    for name, run in ways:
        counts, _ = np.histogram(np.minimum(latencies[name], high), bounds)
        values += [
            {"way": name, "from": bounds[place], "to": bounds[place + 1], "samples": int(counts[place]),
             "share": float(counts[place] / counts.max()) ** 0.5, "colour": _way_colour(run, colours)}
            for place in np.flatnonzero(counts)
        ]  # fmt: skip
    medians = [{"way": name, "median": float(np.median(np.concatenate(run.processes))) * 1e3} for name, run in ways]
    y = field("way:N", sort=list(latencies), title=None)
    scale = {"domain": [float(bounds[0]), float(bounds[-1])], "nice": False}
    bars = {
        "x": field("from:Q", scale=scale, title="latency of one call (ms)", axis={"format": ",~r", "tickCount": 8}),
        "x2": {"field": "to"}, "y": y, "color": field("colour:N", scale=None),
        "opacity": field("share:Q", scale={"domain": [0, 1], "range": [0.08, 1]}, legend=None),
        "tooltip": [field(name) for name in ("way:N", "from:Q", "to:Q", "samples:Q")],
    }  # fmt: skip
    median = {"x": field("median:Q", scale=scale), "y": y}
    layers = [
        marks("bar", bars, values, height={"band": 0.7}),
        marks("tick", median, medians, thickness=2, size=WAY_STEP * 0.8, color=theme.text),
    ]
    heading = title("How long single calls took", size=16, offset=10)
    return vega_document(overlay(layers, width=CHART_WIDTH, height={"step": WAY_STEP}, title=heading), theme)


def over_time_chart(ways: Ways, theme: Theme, colours: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Draw the latencies of each way in order, one process after the other; ``colours`` as in :func:`samples_chart`."""
    panels = list[Part]()
    for name, run in ways:
        processes = [np.asarray(series.samples) * 1e3 for series in run.series if series.samples]
        samples = np.concatenate(processes)
        bins = np.array_split(samples, min(TIME_BINS, len(samples)))
        values: list[dict[str, Any]] = []
        for place, latencies in enumerate(bins):
            low, median, high = map(float, np.quantile(latencies, [0.1, 0.5, 0.9]))
            at = 100 * (place + 0.5) / len(bins)
            values.append({"way": name, "at": at, "low": low, "median": median, "high": high})
        is_last = len(panels) == len(ways) - 1
        axis = {"format": ".0f", "tickCount": 5, "labels": is_last, "ticks": is_last}
        axis_title = "share of its samples, in the order taken (%)" if is_last else None
        x = field("at:Q", title=axis_title, axis=axis, scale={"domain": [0, 100], "nice": False})
        scale = {"zero": False, "nice": False}
        upright = {"tickCount": 3, "format": ",~r", "grid": False, "minExtent": 44}
        y, colour = field("median:Q", title=None, scale=scale, axis=upright), _way_colour(run, colours)
        band = {"x": x, "y": field("low:Q", scale=scale), "y2": {"field": "high"}}
        layers = [
            marks("area", band, opacity=0.22, color=colour),
            marks("line", {"x": x, "y": y}, strokeWidth=1.4, color=colour),
        ]
        starts = np.cumsum(list(map(len, processes)))[:-1]  # of the processes after the first
        if rules := [{"at": float(100 * start / len(samples))} for start in starts]:
            layers.append(marks("rule", {"x": x}, rules, strokeDash=[3, 3], color=theme.faint, strokeWidth=1))
        above = {"text": name, "fontSize": 12, "fontWeight": "normal", "anchor": "start", "offset": 3}
        panels.append(overlay(layers, values, width=CHART_WIDTH, height=WAY_HEIGHT, title=above))
    heading = {"text": "Latency (ms) while it was measured", "fontSize": 16, "anchor": "start", "offset": 10}
    return vega_document(stack_charts(panels, spacing=6, title=heading), theme)


def _way_colour(run: CaseRuns, colours: Mapping[str, str] | None) -> str:
    return (colours or {}).get(plain(run.first.case.backend_label), PALETTE[0])
