"""Charts of records: latency and throughput by way and by size, and latency against error, accuracy or memory.

Rows become a Vega-Lite document. Its title is the answer, and the subtitle names the work. Bars start at zero, every
mark has its value as text, and ways that did not run have a word in place of a bar.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from inferlens.errors import InferlensError, check_choice
from inferlens.record.record import Record
from inferlens.spec.case import PRECISIONS, QUANTIZED, short_name
from inferlens.units import error_size, listing, mebibytes, millijoules, milliseconds, ratio, score
from inferlens.views import View
from inferlens.views.answer import answers
from inferlens.views.picture import (
    DASHES,
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
MAX_WAYS, MAX_WAYS_PER_SIZE = 30, 8  # ways that are drawn of one batch size, and of several
LETTER, TITLE_LETTER = 6.3, 9.6  # pixels that a letter takes on average
_STEP = 27
# The right panel of lines has its own axis, which aligns both right panels.
_BETWEEN = 76
_BETWEEN_LINES = 12
_SCALES = {"ms": 1e3}  # of what is kept in seconds
CHARTED = tuple(column for column in COLUMNS if column.chart)


class Chart(View):
    """Draw latency and throughput, one block per model and machine."""

    name: ClassVar[str] = "chart"
    summary: ClassVar[str] = "latency and throughput side by side, as SVG, PNG or HTML"
    printable: ClassVar[bool] = False

    def __init__(
        self, *, reference: str | None = None, format: str = "svg", theme: str = "auto", top: int | None = None
    ) -> None:
        """Take ``format`` and ``theme`` as :func:`.draw_chart` does; ``top`` limits the ways that are drawn."""
        super().__init__(reference=reference)
        check_picture(format, theme=theme)
        self.format = format
        self.theme = theme
        self.top = top

    def render(self, records: Sequence[Record]) -> str | bytes:
        """See :class:`View`. Text for SVG and HTML, bytes for PNG."""
        shown = rows(records, self.reference)
        if not any(has_mark(row) for row in shown):
            reason = next((f" {plain(row.reason)}" for row in shown if row.reason), "")
            problem = f"There is nothing to draw: no case has right outputs and a latency or a rate.{reason}"
            raise InferlensError(problem, hint="inferlens show")
        return draw_chart(lambda theme: records_chart(shown, theme, self.top), self.format, shown[0].model, self.theme)


def records_chart(
    shown: Sequence[Row], theme: Theme, top: int | None = None, colours: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the Vega-Lite document; ``colours`` maps backend names to colours."""
    shades = colours or colours_by_backend(shown)
    blocks = [_block(table, top, shades) for table in group_rows(shown, "table") if any(has_mark(row) for row in table)]
    return vega_document(stack_charts(blocks, own_scales=("color", "shape", "strokeDash"), spacing=44), theme)


def colours_by_backend(shown: Sequence[Row]) -> dict[str, str]:
    """Return one colour per backend for all charts of these rows."""
    return colours_of(sorted({plain(row.backend) for row in shown}))


def has_mark(row: Row) -> bool:
    """Return whether a row has marks; other rows get a word."""
    return row.ranked and row.seconds_per_call is not None


def _block(table: Sequence[Row], top: int | None, colours: Mapping[str, str]) -> dict[str, Any]:
    """Draw one model on one machine: lines over each dimension of several sizes, or else bars."""
    names = chart_names(table)
    comparisons = group_rows(table, "comparison")
    several = len(comparisons) > 1
    keys = row_names(table) if several else {row.id: plain(row.backend) for row in table}
    first = _first(comparisons, names, top or (MAX_WAYS_PER_SIZE if several else MAX_WAYS))
    chosen = [row for row in table if names[row.id] in first]
    drawable_rows = [row for row in chosen if has_mark(row)]
    shades = {keys[row.id]: colours[plain(row.backend)] for row in chosen}
    panels = [_lines(drawable_rows, keys, shades, name) for name in varying_sizes(drawable_rows)]
    for item in () if panels else comparisons:
        drawn_rows = [row for row in item if names[row.id] in first]
        heading = comparison_place(item, comparisons) if several else ""
        panels += [_bars(drawn_rows, names, keys, shades, heading)] if drawn_rows else []
    named = [label for item in group_rows(chosen, "comparison") for label in labels(item, names)]
    width = CHART_WIDTH + LETTER * max(map(len, named))
    answer = title_of(comparisons, names, width / TITLE_LETTER)
    left_out = len(set(names.values())) - len(first)
    about = f"{headline(table)}{f' · the first {len(first)} are drawn' * bool(left_out)}"
    subtitle = cut_middle(about, int(width / LETTER))
    # Each panel names its colours itself; sharing them would make one legend of those with and without.
    return stack_charts(panels, own_scales=("color", "shape", "strokeDash"), spacing=30, title=title(answer, subtitle))


def chart_names(table: Sequence[Row]) -> dict[str, str]:
    """Return row names by id, without a shared precision and without the ``io`` that stands above the bars."""
    names = row_names(table)
    if len({row.io for row in table}) > 1:
        names = {row.id: names[row.id].replace(f" {row.io} io", "", 1) for row in table}
    return names


def labels(rows: Sequence[Row], names: dict[str, str]) -> list[str]:
    """Return the row names of one comparison with their roles."""
    several = sum(map(has_mark, rows)) > 1
    words = {"fastest": "fastest", "equal": "as fast", "likeliest": "likely fastest"}
    roles = [
        ["reference"] * row.is_reference + ([words[row.standing]] if several and row.standing in words else [])
        for row in rows
    ]
    return [names[row.id] + f" ({', '.join(item)})" * bool(item) for row, item in zip(rows, roles, strict=True)]


def answer_title(model: str, answer: str, about: str, width: float) -> Part:
    """Return a title with the whole answer about a model, and a subtitle that is cut to a width in pixels."""
    text = plain(f"{model}: {answer.replace('  ', ' · ')}")
    return title(wrap(text, int(width / TITLE_LETTER)), cut_middle(plain(about), int(width / LETTER)))


def title_of(comparisons: Sequence[Sequence[Row]], names: dict[str, str], room: float) -> list[str]:
    """Return the title: the model and its answer, or the fastest way of each comparison."""
    model = plain(short_name(comparisons[0][0].model))
    if len(comparisons) == 1:
        return wrap(plain(f"{model}: {answers(comparisons[0])[0].lines[0].replace('  ', ' · ')}"), int(room))
    leads = []
    for name, places in fastest_places(comparisons, names).items():
        sure = [where + " (probably)" * (row.standing == "likeliest") for where, row in places]
        leads.append(f"{name} at {listing(sure)}")
    return wrap(f"{model}, fastest: {', '.join(leads) or 'none, all outputs are wrong'}", int(room))


def fastest_places(comparisons: Sequence[Sequence[Row]], names: Mapping[str, str]) -> dict[str, list[tuple[str, Row]]]:
    """Return the ways that are fastest somewhere, with the places and rows."""
    leads: dict[str, list[tuple[str, Row]]] = {}
    for item in comparisons:
        for row in [row for row in item if row.fastest][:1]:
            leads.setdefault(names[row.id], []).append((comparison_place(item, comparisons), row))
    return leads


def comparison_place(rows: Sequence[Row], comparisons: Sequence[Sequence[Row]]) -> str:
    """Return what distinguishes one comparison from the others."""
    texts = {"io": f"{rows[0].io} io", "call_mode": rows[0].call_mode or "repeated"}
    words = [texts[name] for name in texts if len({getattr(comparison[0], name) for comparison in comparisons}) > 1]
    sizes = sizes_text(rows[0], varying_sizes(comparison[0] for comparison in comparisons))
    return plain(", ".join(filter(None, [sizes, *words])))


def _seconds(row: Row) -> float:
    return row.seconds_per_call or 0.0


def _order(row: Row) -> tuple[bool, float]:
    """Sort by speed; rows without a bar come last."""
    return not has_mark(row), _seconds(row)


def _first(comparisons: Sequence[Sequence[Row]], names: dict[str, str], most: int) -> set[str]:
    """Return the names of ``most`` ways: first references and those that are fastest somewhere."""

    def order(row: Row) -> tuple[bool, bool, float]:
        return not (row.is_reference or row.fastest), *_order(row)

    ordered = sorted((row for comparison in comparisons for row in comparison), key=order)
    return set(list(dict.fromkeys(names[row.id] for row in ordered))[:most])


def _panels(values: Sequence[dict[str, Any]]) -> tuple[list[Column], float]:
    """Return the columns that have values, and the width of a panel of one of them."""
    columns = [column for column in CHARTED if any(value[column.key] for value in values)] or [CHARTED[0]]
    return columns, (CHART_WIDTH - _BETWEEN * (len(columns) - 1)) / len(columns)


def _bars(
    rows: Sequence[Row], names: dict[str, str], keys: dict[str, str], shades: Mapping[str, str], heading: str
) -> dict[str, Any]:
    """Draw the measurements of one comparison side by side, the fastest on top, with whiskers at the latency."""
    ordered = sorted(rows, key=_order)
    shown = labels(ordered, names)
    values = [{**_values(row, keys), "name": name} for row, name in zip(ordered, shown, strict=True)]
    colour = field("colour:N", scale={"domain": [*shades], "range": [*shades.values()]}, legend=None)
    panels, (columns, width) = list[Any](), _panels(values)
    for column in columns:
        first = not panels
        text = f"{column.key}_text"
        y = field("name:N", sort=shown, title=None, **({} if first else {"axis": None}))
        # As long as leaves room for what stands behind the bars.
        most = max(
            value[f"{column.key}_end"] / max(1 - (10 + LETTER * len(value[text])) / width, 0.3) for value in values
        )
        scale = {"domain": [0, most or 1.0], "nice": False}
        whiskers = ", whiskers: 5th to 95th percentile" * (column.key == "median" and any(v["low"] for v in values))
        axis = {"tickCount": 5, "format": ",~r", "labelOverlap": True}
        x = field(f"{column.key}:Q", title=column.chart + whiskers, scale=scale, axis=axis)
        end = field(f"{column.key}_end:Q", scale=scale)
        base = {"y": y, "detail": field("colour:N")}  # by which a page hides all of a series
        bar = {**base, "x": x, "color": colour, "tooltip": _tooltip()}
        words = {**base, "x": end, "text": field(f"{text}:N")}
        layers = [
            marks("bar", bar, height={"band": 0.66}, cornerRadiusEnd=2),
            marks("text", words, align="left", baseline="middle", dx=6),
        ]
        if column.key == "median":
            low, high = ({**base, "x": field(f"{end}:Q")} for end in ("low", "high"))
            ticks = [marks("tick", item, size=9, thickness=1.5) for item in (low, high)]
            layers[1:1] = [marks("rule", {**low, "x2": {"field": "high"}}, strokeWidth=1.5), *ticks]
        panels.append(overlay(layers, width=width, height={"step": _STEP}))
    title_part: Part = {"title": {"text": heading, "frame": "group"}} if heading else {}
    return stack_charts(panels, across=True, values=values, spacing=_BETWEEN, **title_part)


def _lines(rows: Sequence[Row], keys: dict[str, str], colours: Mapping[str, str], name: str) -> dict[str, Any]:
    """Draw the measurements against a dimension, one line per series."""
    others = [item for item in varying_sizes(rows) if item != name]
    sized = [row for row in rows if row.dimensions.get(name)]
    largest_first = sorted(sized, key=lambda row: (-(row.dimensions[name] or 0), _seconds(row)))
    named = {row.id: ", ".join(filter(None, [keys[row.id], sizes_text(row, others)])) for row in sized}
    shades = {named[row.id]: colours[keys[row.id]] for row in largest_first}
    values = [{**_values(row, named), "size": row.dimensions[name]} for row in sized]
    axis: Part = {"values": sorted({value["size"] for value in values}), "format": "d", "labelOverlap": True}
    scale: Part = {"type": "log", "base": 2, "nice": False}
    title = f"{'batch size' if name == 'batch' else plain(name)} (log scale)"
    x = field("size:Q", title=title, scale=scale, axis=axis)
    legend = {"title": None, "orient": "top", "columns": 2, "offset": 16}
    colour, shape, dash = (
        field("colour:N", scale={"domain": [*shades], "range": item}, legend=legend)
        for item in ([*shades.values()], SHAPES, DASHES)
    )
    panels, (columns, width) = list[Any](), _panels(values)
    for column in columns:
        positive = [value[column.key] for value in values if value[column.key]]
        # A log scale keeps slow and fast apart; lines whose speed-up is the same at every batch are parallel.
        low, high = min(positive) / 1.2, max(positive) * 1.2
        axis = {"tickCount": 6, "labelOverlap": True, "format": ",~r", "minExtent": 44}
        scale = {"type": "log", "domain": [low, high], "nice": False}
        y = field(f"{column.key}:Q", title=f"{column.chart}, log scale", scale=scale, axis=axis)
        base, known_here = {"x": x, "y": y, "color": colour}, f"datum.{column.key} > 0"
        point = {**base, "shape": shape, "tooltip": _tooltip()}
        layers = [
            marks("line", {**base, "strokeDash": dash}, where=known_here, strokeWidth=2),
            marks("point", point, where=known_here, filled=True, size=60, opacity=1),
        ]
        panels.append(overlay(layers, width=width, height=260))
    return stack_charts(panels, across=True, values=values, spacing=_BETWEEN_LINES)


def _tooltip() -> list[Any]:
    charted = ((f"{column.key}_text", column.chart) for column in CHARTED)
    return fields(("case", "case"), ("spread", "p5 to p95 (ms)"), *charted)


def _values(row: Row, keys: dict[str, str]) -> dict[str, Any]:
    """Return the values of a row that the panels draw, in the unit of their column, and as text."""
    marked = has_mark(row)
    missing = "wrong outputs" if row.ok and row.agrees is False else "not measured" if row.ok else row.status
    values: dict[str, Any] = {
        "case": plain(row.name), "colour": keys[row.id],
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
        least, most = min(values), max(values)
        if most > WIDE_RANGE * least > 0:
            return least / 1.3, most * 1.3, True
        room = 0.12 * (most - least) or 0.1 * most
        return max(least - room, 0.0), most + room, False


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
    for point in sorted(points, key=lambda item: (across * item["x"], up * item[key])):
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
    order = sorted(points, key=lambda item: (not item["role"], item not in best, item["x"]))
    points = sorted(place_labels(order, "label", ends, size), key=lambda item: bool(item["role"]))  # these lie on top
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
    precisions = [item for item in (*PRECISIONS, *QUANTIZED) if item in {point["precision"] for point in values}]
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


def render_points(
    records: Sequence[Record], measure: str, format: str, *, reference: str | None = None, theme: str = "auto"
) -> str | bytes:
    """Return the picture as :func:`.draw_chart`. Raise InferlensError if there is nothing to draw."""
    check_choice("measure", measure, AGAINST)
    check_picture(format, theme=theme)
    shown = rows(records, reference)
    if not any(drawable(row, measure) for row in shown):
        problem = f"There is nothing to draw: no case has both a latency and its {AGAINST[measure].title}."
        raise InferlensError(problem, hint="inferlens show --wide")
    return draw_chart(lambda look: points_chart(shown, measure, look), format, shown[0].model, theme)


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
    for item in comparisons:
        values = _point_values([row for row in item if drawable(row, measure)], names)
        if values and len(panels) < MAX_PANELS:
            size = (CHART_WIDTH, POINTS_HEIGHT)
            drawn = scatter_panel(values, LATENCY, axis, theme, size, _POINT_TOOLTIP, colours)
            place = comparison_place(item, comparisons)
            panels.append({**drawn, "title": place} if place else drawn)
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
