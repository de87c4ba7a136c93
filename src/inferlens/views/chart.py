"""Latency and throughput of the ways side by side, and against the batch size, as SVG, PNG or one HTML file.

Rows come in, a Vega-Lite document goes out. The title is the answer, one line beneath it says of what. Bars start at
zero; every value is written beside its mark, by ``units``; what did not run has a word in place of a bar.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from inferlens.errors import InferlensError
from inferlens.record.record import Record
from inferlens.spec.case import bare
from inferlens.spec.plan import command
from inferlens.units import listing, milliseconds, ratio
from inferlens.views import View, picture
from inferlens.views.answer import answers
from inferlens.views.picture import (
    DASHES,
    SHAPES,
    Part,
    Theme,
    colours_of,
    field,
    fields,
    finished,
    layered,
    marks,
    stacked,
    title,
)
from inferlens.views.plain import plain, without_middle
from inferlens.views.records import COLUMNS, headline
from inferlens.views.renderers.terminal import wrap
from inferlens.views.rows import OF_OUTPUTS, Row, at, by, rows, varying
from inferlens.views.table import Column

WIDTH = 736  # of all panels beside each other, in pixels
MOST, MOST_OF_EACH = 30, 8  # ways that are drawn of one batch size, and of several
MOST_BARS = 4  # batch sizes of which all have bars beside the lines; of more, the first and the last
LETTER, LETTER_OF_TITLE = 6.3, 9.6  # pixels that a letter takes on average
_STEP = 27
# The right panel of lines has an axis of its own; with it, both right panels stand in line.
_BETWEEN = 76
_BETWEEN_LINES = 12
_SCALES = {"ms": 1e3}  # of what is kept in seconds
CHARTED = tuple(column for column in COLUMNS if column.chart)


class Chart(View):
    """Panels of latency and throughput, one block for each model and machine."""

    name: ClassVar[str] = "chart"
    summary: ClassVar[str] = "latency and throughput side by side, as SVG, PNG or HTML"
    printable: ClassVar[bool] = False

    def __init__(
        self, *, reference: str | None = None, format: str = "svg", theme: str = "auto", top: int | None = None
    ) -> None:
        """``format`` and ``theme`` as of :func:`inferlens.views.picture.drawn`; ``top``: ways that are drawn."""
        super().__init__(reference=reference)
        picture.check(format, theme=theme)
        self.format = format
        self.theme = theme
        self.top = top

    def render(self, records: Sequence[Record]) -> str | bytes:
        """See :class:`View`. Text for SVG and HTML, bytes for PNG."""
        shown = rows(records, self.reference)
        if not any(drawn(row) for row in shown):
            reason = next((f" {plain(row.reason)}" for row in shown if row.reason), "")
            what = f"There is nothing to draw: no case has right outputs and a latency or a rate.{reason}"
            raise InferlensError(what, hint="inferlens show")
        return picture.drawn(lambda theme: chart_of(shown, theme, self.top), self.format, shown[0].model, self.theme)


def lacking(records: Sequence[Record]) -> Iterator[str]:
    """Say that a picture has no throughput, and how to measure it, where none of the records has a rate."""
    if not any(record.measurement("throughput") for record in records):
        how = plain(command("bench", [bare(records[0].case.model), "--mode", "both"]))
        yield f"The picture has no throughput, for none was measured. To measure it: {how}"


def chart_of(
    shown: Sequence[Row], theme: Theme, top: int | None = None, colours: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The Vega-Lite document; ``colours`` are those of backends, by their names."""
    shades = colours or colours_by_backend(shown)
    blocks = [_block(table, top, shades) for table in by(shown, "table") if any(drawn(row) for row in table)]
    return finished(stacked(blocks, apart=("color", "shape", "strokeDash"), spacing=44), theme)


def colours_by_backend(shown: Sequence[Row]) -> dict[str, str]:
    """The colour of each backend, in all charts of these rows."""
    return colours_of(sorted({plain(row.backend) for row in shown}))


def drawn(row: Row) -> bool:
    """Whether a row has marks; the others have a word instead."""
    return row.ranked and row.seconds_per_call is not None


def _block(table: Sequence[Row], top: int | None, colours: Mapping[str, str]) -> dict[str, Any]:
    """One model on one machine: lines over each dimension of several sizes, bars for each of them."""
    names = names_of(table)
    comparisons = by(table, "comparison")
    several = len(comparisons) > 1
    keys = {row.id: names[row.id] if several else plain(row.backend) for row in table}
    if varying(table) and len({row.io for row in table}) > 1:  # each is a line of its own
        keys = {row.id: f"{names[row.id]}, {row.io} io" for row in table}
    first = _first(comparisons, names, top or (MOST_OF_EACH if several else MOST))
    chosen = [row for row in table if names[row.id] in first]
    able = [row for row in chosen if drawn(row)]
    shades = {keys[row.id]: colours[plain(row.backend)] for row in chosen}
    panels = [_lines(able, keys, shades, name) for name in varying(able)]
    few = comparisons if len(comparisons) <= MOST_BARS or not panels else [comparisons[0], comparisons[-1]]
    for item in few:
        where = where_of(item, comparisons)
        said = wrap(f"{where} · {answered(item)}", int(WIDTH / LETTER)) if several else []
        mine = [row for row in item if names[row.id] in first]
        panels += [_bars(mine, names, keys, shades, said)] if mine else []
    width = WIDTH + LETTER * max(len(label) for item in by(chosen, "comparison") for label in labels(item, names))
    answer = title_of(comparisons, names, width / LETTER_OF_TITLE)
    left_out = len(set(names.values())) - len(first)
    about = f"{headline(table)}{f' · the first {len(first)} are drawn' * bool(left_out)}"
    subtitle = without_middle(about, int(width / LETTER))
    # Each panel names its colours itself; sharing them would make one legend of those with and without.
    return stacked(panels, apart=("color", "shape", "strokeDash"), spacing=30, title=title(answer, subtitle))


# Words


def names_of(table: Sequence[Row]) -> dict[str, str]:
    """The names of a table's rows by their ids, without a precision that all share, nor what stands above the bars."""
    shared = len({row.precision for row in table}) == 1
    names = {row.id: row.way if shared else plain(row.name) for row in table}
    if len({row.io for row in table}) > 1:
        names = {row.id: names[row.id].replace(f" {row.io} io", "", 1) for row in table}
    return names


def labels(rows: Sequence[Row], names: dict[str, str]) -> list[str]:
    """Names of the rows of one comparison with their roles."""
    several = sum(map(drawn, rows)) > 1
    words = {"fastest": "fastest", "equal": "as fast", "likeliest": "likely fastest"}
    roles = [
        ["reference"] * row.is_reference + ([words[row.standing]] if several and row.standing in words else [])
        for row in rows
    ]
    return [names[row.id] + f" ({', '.join(item)})" * bool(item) for row, item in zip(rows, roles, strict=True)]


def title_of(comparisons: Sequence[Sequence[Row]], names: dict[str, str], room: float) -> list[str]:
    """The title: the model, and the answer; of several comparisons, which way is the fastest in each."""
    model = plain(re.split(r"[:/]", comparisons[0][0].model)[-1]) or plain(comparisons[0][0].model)
    if len(comparisons) == 1:
        return wrap(f"{model}: {answered(comparisons[0])}", int(room))
    leads = []
    for name, item in sorted(leading(comparisons, names).items(), key=lambda lead: -len(lead[1])):
        name += next((f" ({row.outputs})" for _, row in item if row.outputs in OF_OUTPUTS.values()), "")
        sure = [where + " (probably)" * (row.standing == "likeliest") for where, row in item]
        leads.append(f"{name} at {listing(sure)}")
        if len(item) == len(comparisons):
            leads = [f"{name} everywhere" + " (probably)" * any(row.standing == "likeliest" for _, row in item)]
    return wrap(f"{model}, fastest: {', '.join(leads) or 'none, all outputs are wrong'}", int(room))


def answered(comparison: Sequence[Row]) -> str:
    """The answer of one comparison, without the next one."""
    answer = answers(comparison)[0]
    return plain(replace(answer, rival=answer.least).lines[0].replace("  ", " · "))


def leading(comparisons: Sequence[Sequence[Row]], names: Mapping[str, str]) -> dict[str, list[tuple[str, Row]]]:
    """The ways that are the fastest somewhere: where, and their rows."""
    fastest = [[row for row in rows if row.fastest] for rows in comparisons]
    known = [{names[row.id] for row in best} for best in fastest]
    leads: dict[str, list[tuple[str, Row]]] = {}
    for item, best in zip(comparisons, fastest, strict=True):
        if best:  # of those that are equally fast, one that leads elsewhere too
            row = max(best, key=lambda row: sum(names[row.id] in others for others in known))
            leads.setdefault(names[row.id], []).append((where_of(item, comparisons), row))
    return leads


def where_of(rows: Sequence[Row], comparisons: Sequence[Sequence[Row]]) -> str:
    """What tells one comparison from the others."""
    told = {"io": f"{rows[0].io} io", "call_mode": rows[0].call_mode or "repeated"}
    words = [told[name] for name in told if len({getattr(comparison[0], name) for comparison in comparisons}) > 1]
    return plain(", ".join(filter(None, [at(rows[0], varying(comparison[0] for comparison in comparisons)), *words])))


def _word(row: Row) -> str:
    """Why a row has no bar."""
    return "wrong outputs" if row.ok and row.agrees is False else "not measured" if row.ok else row.status


# Which rows, and their order


def _seconds(row: Row) -> float:
    return row.seconds_per_call or 0.0


def _order(row: Row) -> tuple[bool, float]:
    """The fastest first, what has no bar last."""
    return not drawn(row), _seconds(row)


def _first(comparisons: Sequence[Sequence[Row]], names: dict[str, str], most: int) -> set[str]:
    """The names of ``most`` ways: the references, and those that are among the fastest somewhere."""
    places = sorted(
        (not (row.is_reference or row.fastest), place if drawn(row) else len(comparison), _seconds(row), names[row.id])
        for comparison in comparisons
        for place, row in enumerate(sorted(comparison, key=_order))
    )
    return set(list(dict.fromkeys(name for *_, name in places))[:most])


# Panels


def _measured(values: Sequence[dict[str, Any]]) -> list[Column]:
    return [column for column in CHARTED if any(value[column.key] for value in values)]


def _bars(
    rows: Sequence[Row], names: dict[str, str], keys: dict[str, str], shades: Mapping[str, str], said: list[str]
) -> dict[str, Any]:
    """What was measured in one comparison side by side, fastest on top; whiskers at the latency; ``said`` above."""
    ordered = sorted(rows, key=_order)
    shown = labels(ordered, names)
    values = [{**_values(row, keys), "name": name} for row, name in zip(ordered, shown, strict=True)]
    colour = field("colour:N", scale={"domain": [*shades], "range": [*shades.values()]}, legend=None)
    panels, columns = list[Any](), _measured(values) or CHARTED[:1]
    width = (WIDTH - _BETWEEN * (len(columns) - 1)) / len(columns)
    for column in columns:
        first = not panels
        text = f"{column.key}_{'said' if first else 'text'}"
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
        faint = field("opacity:Q", scale=None, legend=None)
        bar = {**base, "x": x, "color": colour, "tooltip": _tooltip()}
        words = {**base, "x": end, "text": field(f"{text}:N"), "opacity": faint}
        layers = [
            marks("bar", bar, height={"band": 0.66}, cornerRadiusEnd=2),
            marks("text", words, align="left", baseline="middle", dx=6),
        ]
        if column.key == "median":
            low, high = ({**base, "x": field(f"{end}:Q")} for end in ("low", "high"))
            ticks = [marks("tick", item, size=9, thickness=1.5) for item in (low, high)]
            layers[1:1] = [marks("rule", {**low, "x2": {"field": "high"}}, strokeWidth=1.5), *ticks]
        panels.append(layered(layers, width=width, height={"step": _STEP}))
    heading: Part = {"title": {"text": said, "frame": "group"}} if said else {}
    return stacked(panels, across=True, of=values, spacing=_BETWEEN, **heading)


def _lines(rows: Sequence[Row], keys: dict[str, str], colours: Mapping[str, str], name: str) -> dict[str, Any]:
    """What was measured against a dimension, one line for each series; those of one colour are dashed otherwise."""
    others = [item for item in varying(rows) if item != name]
    sized = [row for row in rows if row.dimensions.get(name)]
    largest_first = sorted(sized, key=lambda row: (-(row.dimensions[name] or 0), _seconds(row)))
    named = {row.id: ", ".join(filter(None, [keys[row.id], at(row, others)])) for row in sized}
    shades = {named[row.id]: colours[keys[row.id]] for row in largest_first}
    values = [{**_values(row, named), "size": row.dimensions[name]} for row in sized]
    axis: Part = {"values": sorted({value["size"] for value in values}), "format": "d", "labelOverlap": True}
    scale: Part = {"type": "log", "base": 2, "nice": False}
    title = f"{'batch size' if name == 'batch' else plain(name)} (log scale)"
    x = field("size:Q", title=title, scale=scale, axis=axis)
    columns_of_legend = max(1, 110 // (max(map(len, shades)) + 8))
    legend = {"title": None, "orient": "top", "columns": columns_of_legend, "offset": 16}
    domain, alike = [*shades], Counter[str]()
    dashes = []
    for shade in shades.values():
        dashes.append(DASHES[alike[shade] % len(DASHES)])
        alike[shade] += 1
    colour, shape, dash = (
        field("colour:N", scale={"domain": domain, "range": item}, legend=legend)
        for item in ([*shades.values()], SHAPES, dashes)
    )
    panels, columns = list[Any](), _measured(values)
    width = (WIDTH - _BETWEEN * (len(columns) - 1)) / len(columns)
    for column in columns:
        known = [value[column.key] for value in values if value[column.key]]
        # A log scale keeps slow and fast apart; lines whose speed-up is the same at every batch are parallel.
        low, high = min(known) / 1.2, max(known) * 1.2
        axis = {"tickCount": 6, "labelOverlap": True, "format": ",~r", "minExtent": 44}
        scale = {"type": "log", "domain": [low, high], "nice": False}
        y = field(f"{column.key}:Q", title=f"{column.chart}, log scale", scale=scale, axis=axis)
        base, known_here = {"x": x, "y": y, "color": colour}, f"datum.{column.key} > 0"
        point = {**base, "shape": shape, "tooltip": _tooltip()}
        layers = [
            marks("line", {**base, "strokeDash": dash}, where=known_here, strokeWidth=2),
            marks("point", point, where=known_here, filled=True, size=60, opacity=1),
        ]
        panels.append(layered(layers, width=width, height=260))
    return stacked(panels, across=True, of=values, spacing=_BETWEEN_LINES)


def _tooltip() -> list[Any]:
    every = (
        ("case", "case"),
        ("spread", "p5 to p95 (ms)"),
        *((f"{column.key}_text", column.chart) for column in CHARTED),
    )
    return fields(*every)


def _values(row: Row, keys: dict[str, str]) -> dict[str, Any]:
    """What the panels draw of a row: numbers in the unit of their column, and texts."""
    values: dict[str, Any] = {
        "case": plain(row.name),
        "colour": keys[row.id],
        "low": None if row.p5 is None or not drawn(row) else 1e3 * row.p5,
        "high": None if row.p95 is None or not drawn(row) else 1e3 * row.p95,
        "opacity": 1.0 if drawn(row) else 0.65,
        "spread": f"{milliseconds(row.p5)} to {milliseconds(row.p95)}",
    }
    for place, column in enumerate(CHARTED):
        value = (getattr(row, column.key) or 0.0) * _SCALES.get(column.unit, 1.0) if drawn(row) else 0.0
        text = column.text(row) if value else "not measured" if drawn(row) else "" if place else _word(row)
        faster = f" · {ratio(row.speedup)}" if value and row.speedup and not row.is_reference else ""
        values |= {column.key: value, f"{column.key}_text": text, f"{column.key}_said": text + faster}
        values[f"{column.key}_end"] = max(value, values["high"] or 0.0) if column.key == "median" else value
    return values
