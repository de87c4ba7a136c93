"""Box plots of layers' times and rooflines, one panel for each case, as SVG, PNG or one HTML file.

A box is the middle half of the runs with a line at the median; the whiskers reach from the 5th to the 95th percentile,
or over all runs where those are too few. In a roofline, log-log, a point is a layer or a module: how much it computes
for each byte, and how much in a second; the roof above it is what the device reaches at best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from inferlens.analysis.modules import ModuleRow
from inferlens.analysis.roofline import Floor, Roofline
from inferlens.errors import InferlensError
from inferlens.stats.samples import LEAST_FOR_P95
from inferlens.units import bandwidth, flop_rate, milliseconds, percent, plural, ratio
from inferlens.views.picture import (
    GAP,
    GREY,
    PALETTE,
    Box,
    Part,
    Theme,
    beside,
    colours_of,
    drawn,
    field,
    fields,
    finished,
    layered,
    marks,
    picture,
    stacked,
    svg,
    title,
)
from inferlens.views.plain import plain, without_middle
from inferlens.views.profiled import layers_and_kernels
from inferlens.views.profiled.cases import ProfiledCase, told_apart
from inferlens.views.profiled.layers_and_kernels import PartTable
from inferlens.views.profiled.modules import MAIN, ModuleTree, chosen, columns, tree_of
from inferlens.views.profiled.profile_tables import WRITE, ShownCase, T, short, unit_of
from inferlens.views.profiled.roofline import alike, where
from inferlens.views.report.blocks import Picture
from inferlens.views.table import share

WIDTH, HEIGHT = 640, 360
STEP = 20  # pixels from one box to the next
NAMED = 5  # points with most to be won that have their name beside them
TOP = 20  # boxes of a case, where no other number is asked for
LONGEST_NAME, LONGEST_IN_TITLE, LONGEST_TITLE, LONGEST_LINE = 40, 28, 78, 104
BOXES = "Boxes: the middle half of the runs, with a line at the median; whiskers: the 5th to the 95th percentile."
ROOF = "The roof is the device's best: what is far below it could be faster. Points are as large as their time."
COLOURS = {"compute": PALETTE[4], "memory": PALETTE[0]}

Drawing = tuple[str | bytes, list[str]]


def boxes(cases: Sequence[ShownCase[PartTable]], format: str, top: int | None = None) -> Drawing:
    """The ``top`` rows of each case as boxes, and a sentence on each that has none; InferlensError if none has any."""
    cases = [replace(case, top=top or TOP) for case in cases]
    return _panels(cases, format, _boxes, lambda table: any(table.runs.timed), "No layer has a time.")


def rooflines(cases: Sequence[ShownCase[Roofline]], format: str) -> Drawing:
    """The roofline of each case, as :func:`boxes`."""
    return _panels(
        cases, format, _roofline, lambda roofline: any(map(_has_point, roofline.rows)), "Nothing in it computes."
    )


def _panels(
    cases: Sequence[ShownCase[T]],
    format: str,
    panel: Callable[[ShownCase[T], T, Theme], Any],
    able: Callable[[T], bool],
    unable: str,
) -> Drawing:
    """A panel of each case that is able, beneath each other; ``unable`` says why another has none."""
    found = [(of, of.table) for of in cases if not isinstance(of.table, str) and able(of.table)]
    left = [of for of in cases if all(of is not one for one, _ in found)]
    missing = [plain(f"Not drawn: {of.case.name}. {of.table if isinstance(of.table, str) else unable}") for of in left]
    if not found:
        raise InferlensError(f"There is nothing to draw. {' '.join(missing[:1])}", hint="the same without --plot")

    return drawn(lambda theme: _document(found, panel, theme), format, found[0][0].case.headline), missing


def _document(
    found: Sequence[tuple[ShownCase[T], T]], panel: Callable[[ShownCase[T], T, Theme], Any], theme: Theme
) -> dict[str, Any]:
    """The Vega-Lite document of a panel for each case."""
    every = [panel(of, table, theme) for of, table in found]
    return finished(stacked(every, apart=("color", "size"), spacing=44), theme)


def pictured(name: str, of: ShownCase[PartTable] | ShownCase[Roofline]) -> Iterator[Picture]:
    """The boxes or the roofline of a case as a part of a page, if it has any."""
    table, shown = of.table, cast("ShownCase[Any]", of)
    if isinstance(table, Roofline) and any(map(_has_point, table.rows)):
        yield picture(name, ROOF, lambda theme: _document([(shown, table)], _roofline, theme))
    elif not isinstance(table, (str, Roofline)) and table.runs.timed:
        yield picture(name, BOXES, lambda theme: _document([(replace(shown, top=TOP), table)], _boxes, theme))


def _title(of: ShownCase[Any], answer: str, about: str) -> dict[str, Any]:
    """The answer, and one line that says of what."""
    subtitle = f"{short(of.case.headline, LONGEST_LINE - len(about) - 3)} · {about}"
    return title(
        without_middle(f"{plain(of.case.name)}: {answer}", LONGEST_TITLE), subtitle, size=16, offset=8, frame="group"
    )


def _boxes(of: ShownCase[PartTable], table: PartTable, _: Theme) -> Any:
    """The boxes of one case, in milliseconds."""
    runs, rows = table.runs, [row for row in of.rows if row.times]
    enough = runs.count >= LEAST_FOR_P95
    ends = [0.05, 0.25, 0.5, 0.75, 0.95] if enough else [0.0, 0.25, 0.5, 0.75, 1.0]
    values: list[dict[str, Any]] = []
    for row in rows:
        box = [float(item) * 1e3 for item in np.quantile(runs.layers[row.place - 1], ends)]
        lower, middle, upper = (milliseconds(item / 1e3) for item in box[1:4])
        name = f"{short(layers_and_kernels.row_name(row), LONGEST_NAME)}  #{row.place}"  # shortened names may be equal
        told = {"name": name, "kind": plain(row.kind)[:LONGEST_NAME], "text": f"{middle} ({lower} to {upper})"}
        values.append({**dict(zip(("low", "lower", "middle", "upper", "high"), box, strict=True)), **told})
    y = field("name:N", sort=[value["name"] for value in values], title=None)
    scale = {"domain": [0, max(value["high"] for value in values) * 1.05 or 1.0], "nice": False}
    tooltip = fields(("name", "name"), ("kind", "kind"), ("text", "median (middle half), ms"))
    whiskers = "5th to 95th percentile" if enough else "all runs"
    axis = f"time in each run (ms): median, middle half, whiskers over {'the ' * enough}{whiskers}"
    begin, left, centre = (
        field(f"{end}:Q", scale=scale, title=axis, axis={"tickCount": 8}) for end in ("low", "lower", "middle")
    )
    middle_half = {"x": left, "x2": {"field": "upper"}, "y": y, "tooltip": tooltip}
    layers = [
        marks("rule", {"x": begin, "x2": {"field": "high"}, "y": y}, strokeWidth=1.2),
        marks("bar", middle_half, height={"band": 0.6}, color=PALETTE[0]),
        marks("tick", {"x": centre, "y": y, "tooltip": tooltip}, size=STEP * 0.6, thickness=2),
    ]
    most = max(rows, key=lambda row: row.times.typical if row.times else 0.0)
    took = f", {share(most.times.share)} of a run" if most.times and most.times.share is not None else ""
    answer = f"{short(layers_and_kernels.row_name(most), LONGEST_IN_TITLE)} has the largest share{took}"
    about = f"{len(rows)} of {plural(len(table.rows), 'layer')} · {plural(runs.count, 'run')}"
    return layered(layers, values, width=WIDTH, height={"step": STEP}, title=_title(of, answer, about))


def _has_point(row: Floor) -> bool:
    return bool(row.intensity and row.time > 0)


def _roofline(of: ShownCase[Roofline], roofline: Roofline, theme: Theme) -> Any:
    """One case: the roof, points as large as their time and in the colour of what their floor is made by, names."""
    groups = [item for item in alike(roofline, roofline.ranked) if _has_point(item.total)]
    points = [_point(where(group), group.total, roofline) for group in groups]
    ceilings, most = roofline.ceilings, roofline.rate or math.inf
    low, high = _ends([point["intensity"] for point in points] + ([most / ceilings.bandwidth] if roofline.rate else []))

    def roof_of(speed: float) -> list[dict[str, float]]:
        ridge = [most / speed] if low < most / speed < high else []  # from there on the rate is what counts
        return [{"intensity": item, "rate": min(item * speed, most)} for item in (low, *ridge, high)]

    roof = roof_of(ceilings.bandwidth)
    near = roof_of(ceilings.cached) if ceilings.cached > ceilings.bandwidth else []
    floor, top = _ends([point["rate"] for point in [*points, *roof, *near]])
    left = sum(row.time for row in roofline.rows if not _has_point(row))
    across = (
        f"FLOPs for each byte (not drawn, without FLOPs: {milliseconds(left)} ms)" if left else "FLOPs for each byte"
    )
    x = field("intensity:Q", title=across, **_logarithmic(low, high, "~g"))
    y = field("rate:Q", title="FLOPs per second", **_logarithmic(floor, top, "~s"))
    legend = {"orient": "bottom", "direction": "horizontal"}
    bounds = [bound for bound in COLOURS if any(point["bound"] == bound for point in points)]
    colours = {"domain": bounds, "range": [COLOURS[bound] for bound in bounds]}
    largest = max(point["time"] for point in points)
    grey = {"symbolFillColor": theme.faint, "symbolStrokeColor": theme.faint}
    sizes = {**legend, "values": [largest / 10, largest], "format": ".2~g", **grey}
    point = {
        "x": x, "y": y,
        "size": field("time:Q", title="time (ms)", scale={"domain": [0, largest], "range": [20, 700]}, legend=sizes),
        "color": field("bound:N", title="floor by", scale=colours, legend=legend),
        "tooltip": fields(*((name, name) for name in ("name", "kind", "took", "floor", "distance"))),
    }  # fmt: skip
    line, text = {"x": x, "y": y}, {"x": x, "y": y, "text": field("name:N")}
    layers = [
        marks("line", line, of=roof, strokeWidth=2, color=theme.faint),
        marks("point", point, of=points, filled=True, opacity=0.75),
    ]
    for each in _reached(roofline, roof, near):
        layers.append(marks("text", text, [each], align=each["side"], dx=each["dx"], dy=each["dy"], color=theme.faint))
    if near:
        layers.append(marks("line", line, near, strokeWidth=1.5, strokeDash=[4, 4], color=theme.faint))
    halo: Part = {
        "stroke": theme.background,
        "strokeWidth": 4,
        "strokeJoin": "round",
    }  # so that points do not cross names
    axes = {"intensity": (low, high, True), "rate": (floor, top, True)}
    named = beside(points[:NAMED], "name", axes, (WIDTH, HEIGHT), [roof, *([near] if near else [])])
    layers += [
        marks("text", text, named, where=f"datum.side == '{side}'", align=side, dx=dx, fontSize=11, **under)
        for under in (halo, {})
        for side, dx in (("left", GAP), ("right", -GAP))
    ]
    name, far = short(where(groups[0]), LONGEST_IN_TITLE), milliseconds(groups[0].total.above)
    answer = f"{name} is {far} ms above its floor" if roofline.bound else f"most to be won in {name}, {far} ms"
    return layered(layers, width=WIDTH, height=HEIGHT, title=_title(of, answer, f"points are {roofline.by}s"))


def _reached(
    roofline: Roofline, roof: Sequence[dict[str, float]], near: Sequence[dict[str, float]]
) -> list[dict[str, Any]]:
    """What the device reaches at best, where it stands on the roof; ``near`` is that of data in the cache."""
    begin, end = roof[0]["intensity"], roof[1]["intensity"]
    # Above the slope, where no points are; but beneath it where the roof of the cache is above.
    middle, side, dx, dy = (0.3, "left", 10, 12) if near else (0.7, "right", -10, -4)
    at = begin * (end / begin) ** middle
    name = f"memory at {bandwidth(roofline.ceilings.bandwidth)}"
    said = [{"intensity": at, "rate": at * roofline.ceilings.bandwidth, "name": name, "side": side, "dx": dx, "dy": dy}]
    if near:
        name = f"cache at {bandwidth(roofline.ceilings.cached)}"
        said.append({**near[-2], "name": name, "side": "left", "dx": 0, "dy": -9})
    if roofline.rate:
        name = f"{roofline.precision} at {flop_rate(roofline.rate)}"
        said.append({**roof[-1], "name": name, "side": "right", "dx": 0, "dy": -18})  # above points on the roof
    return said


def _point(name: str, row: Floor, roofline: Roofline) -> dict[str, Any]:
    return {
        "name": short(name, LONGEST_IN_TITLE), "kind": plain(row.kind)[:LONGEST_NAME],
        "intensity": row.intensity, "rate": (row.flops or 0.0) / row.time, "time": row.time * 1e3,
        "bound": row.bound if roofline.rate else "memory", "took": f"{milliseconds(row.time)} ms",
        "floor": f"{milliseconds(row.floor)} ms", "distance": ratio(row.distance),
    }  # fmt: skip


def _logarithmic(low: float, high: float, format: str) -> dict[str, Any]:
    """Scale and axis of a channel, with a tick at every power of ten."""
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    axis = {"format": format, "values": [10.0**power for power in powers]}
    return {"scale": {"type": "log", "domain": [low, high], "nice": False}, "axis": axis}


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds all of them, with some room."""
    return min(values) / 2, max(values) * 2.5


# Where the time goes as a picture: the modules of each case as boxes, the model on top and what is in it beneath.
#
# It is drawn from the table of modules: a box is as wide as the module's share of the call, and boxes without any
# beneath them are what the call adds up to. A colour is a part of the model, the same for every case.

HOW = "Each box is as wide as its share of the time, with the modules in it beneath; a colour is a part of the model."
DEEPEST = 100


@dataclass
class _Placed:
    """One row of the table in one column: ``left`` and ``wide`` are shares of the whole."""

    row: ModuleRow
    name: str
    part: str
    depth: int
    wide: float = 0.0
    left: float = 0.0


def icicles(groups: Sequence[Sequence[ProfiledCase]]) -> Iterator[Picture]:
    """The picture of each model with its inputs and machine, a panel for each case."""
    for number, group in enumerate(groups, 1):
        of = tree_of(columns(group, None, None), "work", DEEPEST)
        if of.table:
            panels, values = _module_panels(of)
            yield Picture(f"modules-{number}", HOW, partial(svg, "where the time goes, by modules", panels), values)


def _module_panels(of: ModuleTree) -> tuple[list[tuple[str, list[Box]]], list[dict[str, Any]]]:
    """Of each case its name and its boxes; all of them as rows."""
    assert of.table
    rows, (_, names) = chosen(of.table.rows[1:], None)[0], told_apart([one.case for one in of.shown])
    unit = unit_of(one.case.profile for one in of.shown)
    parts = _parts([(row, len(indent) // 2) for row, indent, _ in rows])
    colours = colours_of(dict.fromkeys(filter(None, parts)), [item for item in PALETTE if item != GREY])
    panels, values = [], []
    for place, case in enumerate(names):
        boxes = _placed_boxes([(row, len(indent) // 2, name) for row, indent, name in rows], parts, place)
        drawn = []
        for box in boxes:
            times = box.row.cells[place]
            took = WRITE[unit](times.times.typical) if times and times.times else ""
            path = plain(".".join(box.row.path)) if box.row.kind == "module" else box.name.removeprefix("· ")
            said = share(times.times.share) if times and times.times else ""
            named = plain(box.name)
            fits = (f"{named} {percent(box.wide)}", named, named.rpartition(".")[2])
            about = f"{path}; {took} {unit}; {said} of the time"
            drawn.append(Box(box.left, box.wide, box.depth, fits, about, colours.get(box.part, GREY)))
            values.append({"case": case, "module": path, "depth": box.depth, f"time ({unit})": took,
                           "left": round(box.left, 6), "share": round(box.wide, 6)})  # fmt: skip
        whole = of.table.rows[0].cells[place]
        took = f" · {WRITE[unit](whole.times.typical)} {unit}" if whole and whole.times else ""
        what = "all kernels" if of.shown[place].of_kernels else "the call"
        panels.append((f"{case}{took}, {what}", drawn))
    return panels, values


def _parts(rows: Sequence[tuple[ModuleRow, int]]) -> list[str]:
    """The part of the model that each row is of: its outermost module that has not most of the time with all cases."""
    found: list[str] = []
    above: dict[int, str] = {}
    for row, depth in rows:
        shares = [cell.times.share or 0.0 for cell in row.cells if cell and cell.times]
        part = above.get(depth - 1, "") if depth else ""
        frame = bool(shares) and min(shares) > MAIN
        if not part and row.kind == "module" and not frame:
            part = ".".join(row.path)
        above[depth] = part
        found.append(part)
    return found


def _placed_boxes(rows: Sequence[tuple[ModuleRow, int, str]], parts: Sequence[str], place: int) -> list[_Placed]:
    """The boxes of a column: those with others beneath are as wide as these, and all together as wide as the whole."""
    boxes = []
    for (row, depth, name), part in zip(rows, parts, strict=True):
        cell = row.cells[place]
        wide = max((cell.times.share or 0.0) if cell and cell.times else 0.0, 0.0)
        boxes.append(_Placed(row, name, part, depth, wide))
    below: dict[int, float] = {}
    for box in reversed(boxes):
        inner = below.pop(box.depth + 1, 0.0)
        box.wide = inner or box.wide
        below[box.depth] = below.get(box.depth, 0.0) + box.wide
    whole = below.get(0) or 1.0
    left: dict[int, float] = {}
    for box in boxes:
        box.wide /= whole
        box.left = left.get(box.depth, 0.0)
        left[box.depth] = box.left + box.wide
        left[box.depth + 1] = box.left
    return boxes
