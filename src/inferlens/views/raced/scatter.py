"""Points by two measures in a panel: the dashed line joins what nothing else beats in both.

Points come as data, with ``x`` and a second measure in the units of their axes. Those that are not ``filled`` cannot be
on the line, ``wrong`` ones are crossed out. The tooltip has the name of a point that has none beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferlens.spec.case import PRECISIONS, QUANTIZED
from inferlens.views.picture import SHAPES, Ends, Part, Theme, beside, field, fields, layered, marks
from inferlens.views.plain import plain

FAR = 4.0  # times the least, from which on an axis has a logarithmic scale
WRONG = "#C62828"
_CROSS = "M-1,-1L1,1M1,-1L-1,1"


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

    def domain(self, values: Sequence[float]) -> Ends:
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


def of_accuracy(metrics: Iterable[tuple[str, bool]]) -> PanelAxis:
    """The accuracy as an axis, by its name where all have the same; the other part of each is whether it is a share."""
    titles = {plain(name) + " (%)" * share for name, share in metrics}
    return replace(ACCURACY, title=titles.pop()) if len(titles) == 1 else ACCURACY


def least_error(errors: Sequence[float | None]) -> float:
    """What stands for an error of 0, which has no place on a logarithmic scale."""
    return min((error for error in errors if error), default=3e-7) / 3


def front(values: Sequence[dict[str, Any]], key: str, *, less: bool, also: bool = True) -> list[dict[str, Any]]:
    """What nothing else beats in both, from the best ``x`` to the worst; what is not filled aside.

    ``less`` says whether less ``x`` is better, ``also`` whether less of the other one is.
    """
    able = [value for value in values if value[key] is not None and value["filled"]]
    across, up = (1 if less else -1), (1 if also else -1)
    found: list[dict[str, Any]] = []
    for entry in sorted(able, key=lambda item: (across * item["x"], up * item[key])):
        if not found or up * entry[key] < up * found[-1][key]:
            found.append(entry)
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
    known = [value for value in values if value[up.key] is not None]
    ends = {panel_axis.key: panel_axis.domain([one[panel_axis.key] for one in known]) for panel_axis in (across, up)}
    best = front(known, up.key, less=across.less, also=up.less)
    order = sorted(known, key=lambda item: (not item["role"], item not in best, item["x"]))
    known = sorted(beside(order, "label", ends, size), key=lambda item: bool(item["role"]))  # these lie on top
    x, y = (
        field(
            f"{panel_axis.key}:Q",
            title=_title(panel_axis, ends[panel_axis.key]),
            axis=axis,
            scale=_scale(ends[panel_axis.key]),
        )
        for panel_axis, axis in (
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
    for side in ("left", "right"):
        for bold in (True, False):
            some = f"datum.side == '{side}' && datum.role {'!=' if bold else '=='} ''"
            look: Part = {"align": side, "dy": -17, "baseline": "middle", "fontWeight": "bold" if bold else "normal"}
            layers.append(marks("text", {**base, "text": text}, where=some, **look))
    return layered(layers, known, width=size[0], height=size[1])


def _title(measured: PanelAxis, ends: Ends) -> str:
    return f"{measured.title[:-1]}, log scale)" if ends[2] and measured.title.endswith(")") else measured.title


def _scale(ends: Ends) -> dict[str, Any]:
    return {"type": "log" if ends[2] else "linear", "domain": ends[:2], "nice": False}


def _axis(up: PanelAxis, ends: Ends) -> dict[str, Any]:
    if up.scale != "decades":
        return {"format": up.format, "tickCount": 6}
    powers = range(round(math.log10(ends[0])), round(math.log10(ends[1])) + 1)
    return {"values": [10.0**power for power in powers], "format": up.format}


def _looks(values: Sequence[dict[str, Any]], theme: Theme, colours: Mapping[str, str]) -> dict[str, Any]:
    """Colours for backends, shapes for precisions, the same in every panel of these values."""
    backends = sorted({value["colour"] for value in values})
    precisions = [item for item in (*PRECISIONS, *QUANTIZED) if item in {one["precision"] for one in values}]
    legend = {"title": None, "orient": "top"}
    grey = {"symbolFillColor": theme.faint, "symbolStrokeColor": theme.faint}
    shades = {"domain": backends, "range": [colours[backend] for backend in backends]}
    shapes = {"domain": precisions, "range": SHAPES}
    return {
        "color": field("colour:N", scale=shades, legend={**legend, "columns": 4}),
        "shape": field("precision:N", scale=shapes, legend={**legend, **grey} if len(precisions) > 1 else None),
    }
