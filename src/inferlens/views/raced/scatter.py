"""Points by two measures in a panel: the dashed line joins what nothing else beats in both; labels lie on no point.

Points come as data, with ``x`` and a second measure in the units of their axes. Those that are not ``filled`` cannot be
on the line, ``wrong`` ones are crossed out. A label stands beside its point where there is room, the most important
first; one without room is left out unless it has a role, and the tooltip has it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferlens.spec.case import PRECISIONS, QUANTIZED
from inferlens.views.picture import SHAPES, Part, Theme, field, fields, layered, marks

LETTER, LINE = 6.6, 13.0  # of labels, in pixels
POINT = 7.0  # from the middle of a point, in pixels, that no label may cover
FAR = 4.0  # times the least, from which on an axis has a logarithmic scale
MOST_LABELS = 60  # of the most important points; more have no room, and each is held against all others
WRONG = "#C62828"
_CROSS = "M-1,-1L1,1M1,-1L-1,1"
# Where labels may stand: alignment, and how far from the point.
_PLACES = (("left", 12, 0), ("right", -12, 0), ("center", 0, -17), ("center", 0, 17), ("left", 9, -13),
           ("right", -9, -13), ("left", 9, 13), ("right", -9, 13))  # fmt: skip


@dataclass(frozen=True)
class PanelAxis:
    """A measure as an axis: its key in the points, its title, whether less is better.

    Its ``scale`` is ``near`` (around the values, logarithmic where they are far apart), ``decades`` or ``zero``.
    """

    key: str
    title: str
    less: bool = True
    scale: str = "near"
    format: str = ",~r"

    def domain(self, values: Sequence[float]) -> tuple[float, float, bool]:
        """Both ends, and whether it is logarithmic."""
        least, most = min(values), max(values)
        if self.scale == "decades":
            return 10.0 ** math.floor(math.log10(least) - 0.3), 10.0 ** math.ceil(math.log10(most) + 0.3), True
        if self.scale == "zero":
            return 0.0, 1.15 * most or 1.0, False
        if most > FAR * least > 0:
            return least / 1.3, most * 1.3, True
        room = 0.12 * (most - least) or 0.1 * most
        return max(least - room, 0.0), most + room, False


ERROR = PanelAxis("error", "error of the outputs (relative L2)", scale="decades", format="~e")
ACCURACY = PanelAxis("accuracy", "accuracy (shares in %)", less=False)
ENERGY = PanelAxis("energy", "energy of an item (mJ)")
MEMORY = PanelAxis("memory", "peak memory (MiB)", scale="zero")


def least_error(errors: Sequence[float | None]) -> float:
    """What stands for an error of 0, which has no place on a logarithmic scale."""
    return min((error for error in errors if error), default=3e-7) / 3


def front(values: Sequence[dict[str, Any]], key: str, *, less: bool, also: bool = True) -> list[dict[str, Any]]:
    """What nothing else beats in both, from the best ``x`` to the worst; what is not filled aside.

    ``less`` says whether less ``x`` is better, ``also`` whether less of the other one is.
    """
    able = [each for each in values if each[key] is not None and each["filled"]]
    across, up = (1 if less else -1), (1 if also else -1)
    found: list[dict[str, Any]] = []
    for each in sorted(able, key=lambda each: (across * each["x"], up * each[key])):
        if not found or up * each[key] < up * found[-1][key]:
            found.append(each)
    return found


def panel(
    values: Sequence[dict[str, Any]],
    across: PanelAxis,
    up: PanelAxis,
    theme: Theme,
    size: tuple[float, float],
    tooltip: Sequence[tuple[str, str]],
    colours: Mapping[str, str],
) -> dict[str, Any]:
    """The points by two measures, in a panel of that width and height.

    ``tooltip`` has keys and their titles, ``colours`` those of what the points have as ``colour``.
    """
    known = [each for each in values if each[up.key] is not None]
    ends = {each.key: each.domain([one[each.key] for one in known]) for each in (across, up)}
    best = front(known, up.key, less=across.less, also=up.less)
    known = _placed(known, best, (across, up), ends, size)
    x, y = (
        field(f"{each.key}:Q", title=_title(each, ends[each.key]), axis=axis, scale=_scale(ends[each.key]))
        for each, axis in (
            (across, {"format": across.format, "tickCount": 6, "labelOverlap": True}),
            (up, _axis(up, ends[up.key])),
        )
    )
    base = {"x": x, "y": y, "detail": [field("colour:N"), field("precision:N")]}  # by which a page hides them
    point, text = {**base, "tooltip": fields(*tooltip), **_looks(values, theme, colours)}, field("label:N")
    line: Part = {
        "interpolate": "step-after" if across.less else "step-before",
        "strokeWidth": 1.5,
        "strokeDash": [4, 3],
    }
    ring: Part = {"filled": False, "size": 230, "strokeWidth": 1.8, "color": theme.text, "shape": "circle"}
    layers = [
        marks("line", {"x": x, "y": y}, of=best, color=theme.faint, **line),
        marks("point", point, where="datum.filled", filled=True, size=75, opacity=0.85),
        marks("point", point, where="!datum.filled", filled=False, size=75, opacity=0.85),
        marks("point", base, where="datum.role != ''", **ring),
        marks("point", base, where="datum.wrong", shape=_CROSS, size=160, strokeWidth=2.2, color=WRONG),
    ]
    for number, (align, dx, dy) in enumerate(_PLACES):
        for bold in (True, False):
            some = f"datum.place == {number} && datum.role {'!=' if bold else '=='} ''"
            look: Part = {"baseline": "middle", "fontWeight": "bold" if bold else "normal"}
            layers.append(marks("text", {**base, "text": text}, where=some, align=align, dx=dx, dy=dy, **look))
    return layered(layers, known, width=size[0], height=size[1])


def _title(measured: PanelAxis, ends: tuple[float, float, bool]) -> str:
    return f"{measured.title[:-1]}, log scale)" if ends[2] and measured.title.endswith(")") else measured.title


def _scale(ends: tuple[float, float, bool]) -> dict[str, Any]:
    return {"type": "log" if ends[2] else "linear", "domain": ends[:2], "nice": False}


def _axis(up: PanelAxis, ends: tuple[float, float, bool]) -> dict[str, Any]:
    if up.scale != "decades":
        return {"format": up.format, "tickCount": 6}
    powers = range(round(math.log10(ends[0])), round(math.log10(ends[1])) + 1)
    return {"values": [10.0**power for power in powers], "format": up.format}


def _looks(values: Sequence[dict[str, Any]], theme: Theme, colours: Mapping[str, str]) -> dict[str, Any]:
    """Colours for backends, shapes for precisions, the same in every panel of these values."""
    backends = sorted({each["colour"] for each in values})
    precisions = [each for each in (*PRECISIONS, *QUANTIZED) if each in {one["precision"] for one in values}]
    legend = {"title": None, "orient": "top"}
    grey = {"symbolFillColor": theme.faint, "symbolStrokeColor": theme.faint}
    shades = {"domain": backends, "range": [colours[each] for each in backends]}
    shapes = {"domain": precisions, "range": SHAPES}
    return {
        "color": field("colour:N", scale=shades, legend={**legend, "columns": 4}),
        "shape": field("precision:N", scale=shapes, legend={**legend, **grey} if len(precisions) > 1 else None),
    }


def _placed(
    values: Sequence[dict[str, Any]],
    best: Sequence[dict[str, Any]],
    axes: tuple[PanelAxis, PanelAxis],
    ends: Mapping[str, tuple[float, float, bool]],
    size: tuple[float, float],
) -> list[dict[str, Any]]:
    """The points with the place of each label, which covers neither point nor line: -1 where there is no room."""

    def spot(each: dict[str, Any]) -> tuple[float, float]:
        x, y = (_share(each[axis.key], *ends[axis.key]) for axis in axes)
        return size[0] * x, size[1] * (1 - y)

    spots = [spot(each) for each in values]
    taken = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in spots]
    for one, other in itertools.pairwise(map(spot, best)):
        corner = (other[0], one[1]) if axes[0].less else (one[0], other[1])
        for start, end in ((one, corner), (corner, other)):
            (left, right), (top, bottom) = (sorted(pair) for pair in zip(start, end, strict=True))
            taken.append((left, top - 1, right + 1, bottom + 1))
    places = [-1] * len(values)
    order = sorted(range(len(values)), key=lambda at: (not values[at]["role"], values[at] not in best, spots[at]))
    for at in order[:MOST_LABELS]:
        if not values[at]["label"]:
            continue
        others = [box for number, box in enumerate(taken) if number != at]
        boxes = [_box(spots[at], place, LETTER * len(values[at]["label"])) for place in _PLACES]
        covered = {
            number: sum(_overlap(box, other) for other in others)
            for number, box in enumerate(boxes)
            if box[0] >= 0 and box[1] >= 0 and box[2] <= size[0] and box[3] <= size[1]
        }
        chosen = min(covered, key=lambda number: covered[number], default=-1)
        if chosen >= 0 and (values[at]["role"] or not covered[chosen]):
            places[at] = chosen
            taken.append(boxes[chosen])
    return [{**each, "place": place} for each, place in zip(values, places, strict=True)]


def _share(value: float, low: float, high: float, log: bool) -> float:
    """Where a value lies between both ends of its axis."""
    if log:
        value, low, high = (math.log(max(each, 1e-300)) for each in (value, low, high))
    return (value - low) / (high - low)


def _box(spot: tuple[float, float], place: tuple[str, int, int], width: float) -> tuple[float, float, float, float]:
    align, dx, dy = place
    left = spot[0] + dx - {"left": 0.0, "center": width / 2, "right": width}[align]
    top = spot[1] + dy - LINE / 2
    return left, top, left + width, top + LINE


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """The area that two boxes share."""
    across, up = (min(one[at + 2], other[at + 2]) - max(one[at], other[at]) for at in (0, 1))
    return max(across, 0.0) * max(up, 0.0)
