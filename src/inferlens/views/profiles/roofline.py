"""Floors and rooflines: the least time that the work of a layer needs, and the possible gain.

People see repeated blocks as one row, and several cases as a row each. Programs get all rows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from inferlens.analysis.profile_table import kernel_family, short_kernel_name
from inferlens.analysis.roofline import Floor, Roofline, RowKind, roofline
from inferlens.errors import InferlensError, check_choice
from inferlens.record.display import fields_by_key
from inferlens.record.store import LoadedProfiles
from inferlens.stats.samples import LEAST_FOR_P95
from inferlens.units import (
    ABSENT,
    bandwidth,
    bare,
    flop_rate,
    listing,
    mebibytes,
    megaflops,
    milliseconds,
    plural,
    ratio,
)
from inferlens.views.picture import (
    GAP,
    PALETTE,
    Part,
    Theme,
    draw_chart,
    field,
    fields,
    marks,
    overlay,
    picture,
    place_labels,
    stack_charts,
    title,
    vega_document,
)
from inferlens.views.profiles.cases import (
    MAX_SUMMED,
    THE_MODEL,
    TIME_WRITERS,
    ShownCase,
    case_document,
    cases_of_level,
    cut_name,
    distinguish,
    in_unit,
    rank_cases,
    scaling_notes,
    unit_of,
)
from inferlens.views.profiles.layers_kernels import PartTable, part_name
from inferlens.views.table import Column, ColumnSet, Document, Line, Picture, Table, lines_and_sums, plain, share

SORTS = ("won", "time", "order")
ROWS, CASES, MAX_NOTE_LINES = 8, 12, 2  # on a screen, by default
# Phrases for calls that faster layers do not speed up.
BOUND_PHRASES = {"host": "waits for the host", "other": "far from all floors"}


@dataclass(frozen=True)
class RepeatedRows:
    """Rows that do the same work in repeated blocks, and their sum."""

    rows: Sequence[Floor]
    total: Floor


def _row_kind(row: Floor) -> str:
    """Return a layer's kind, or what a kernel computes according to its name."""
    return (kernel_family(row.name) if row.kind == "kernel" else plain(row.kind)) or ABSENT


def _row_name(row: Floor) -> str:
    """Return the backend's name; a kernel loses namespaces and arguments."""
    return plain(short_kernel_name(row.name) if row.kind == "kernel" else row.name)


COLUMNS = ColumnSet((
    Column("won", "to win", "ms", write=milliseconds, keep=0),
    Column("of_call", "of call", write=share, keep=1),
    Column("time", "time", "ms", write=milliseconds, keep=2),
    Column("floor", "floor", "ms", write=milliseconds, keep=3),
    Column("distance", "times floor", write=ratio, keep=4),
    Column("bound", "bound by", keep=5, numeric=False),
    Column("kind", "kind", write_row=_row_kind, keep=6, numeric=False, max_width=14),
    Column("share", "share", write=share, keep=8, wide=True),
    Column("flops", "work", "MFLOP", write=megaflops, keep=6, wide=True),
    Column("bytes", "bytes", "MiB", write=mebibytes, keep=7, wide=True),
    Column("intensity", "intensity", "FLOP/B", write=bare, keep=9, wide=True),
    Column("name", "layer", write_row=_row_name, keep=10, numeric=False, max_width=60, wide=True),
    Column("place", "#", keep=11, wide=True),
))  # fmt: skip
CASE_COLUMNS = (*COLUMNS.pick("of_call", "won"), *COLUMNS.pick("time", title="call"))
# Fields in CSV: of single rows, and of all.
_ROW_FIELDS = ("place", "name", "kind", "modules")
NUMBERS = ("time", "share", "flops", "bytes", "intensity", "floor", "bound", "distance", "won", "of_call")


def case_rooflines(
    loaded: LoadedProfiles, by: RowKind = "layer", depth: int | None = None, sort: str = "won"
) -> list[ShownCase[Roofline]]:
    """Return the floors of the latest profile of each case and level, or the reason for none.

    ``sort`` is one of :data:`SORTS`; raises InferlensError for others.
    """
    check_choice("order of floors", sort, SORTS)

    def ranked(roofline: Roofline) -> Sequence[Floor]:
        return sorted(roofline.rows, key=lambda row: -row.time) if sort == "time" else roofline.ranked

    tables = ((case, roofline(case.profile, case.record, by=by, depth=depth)) for case in cases_of_level(loaded, None))
    return rank_cases(tables, ranked, sort)


def roofline_document(
    cases: Sequence[ShownCase[Roofline]], *, top: int | None = None, results: str = "RESULTS"
) -> Document:
    """Return the floors of each case: ``top`` rows, by default as many as fit.

    ``results`` is the folder for the next command.
    """
    return case_document(
        "roofline", cases, top, blocks=lambda: _roofline_blocks(cases, top, results), data=_roofline_data,
        rows=_roofline_rows, fields=("precision", "row", *_ROW_FIELDS, *NUMBERS),
    )  # fmt: skip


def _roofline_blocks(cases: Sequence[ShownCase[Roofline]], top: int | None, results: str) -> Iterator[Table | str]:
    """Yield the rows of one case or of ``top`` rows each; else a row per case."""
    if len(cases) > 1 and top is None:
        yield from _combined_table(cases, results)
        return
    for case in cases:
        head, (name,) = distinguish([case.case])
        title = f"{head} · {name}"
        if isinstance(case.table, str):
            yield from (Table(title), f"No floors: {case.why}")
            continue
        yield Table(title, about=ceilings(case.table))
        yield roofline_answer(case.table, unit_of([case.case]))
        note_lines = min(len(roofline_notes(case, case.table)), MAX_NOTE_LINES)
        yield _roofline_table(case, case.table, top or ROWS + 1 - max(note_lines, 1))
    if any(not isinstance(case.table, str) for case in cases):
        yield f"What to try: inferlens show {results} --view findings"


def _roofline_table(case: ShownCase[Roofline], roofline: Roofline, top: int) -> Table:
    groups = merge_repeats(roofline, case.ranked)
    if case.in_order:
        groups = [RepeatedRows([row], row) for row in case.ranked]
    by_module, no_sum = roofline.by == "module", ("name", "place")
    columns = [
        replace(column, title=roofline.timed) if column.key == "name" else column
        for column in in_unit(COLUMNS, unit_of([case.case]))
        if not (by_module and column.key in no_sum)
    ]

    def sum_line(name: str, groups: Sequence[RepeatedRows], style: str) -> Line:
        total = roofline.sum_of(row for group in groups for row in group.rows)
        line = Line.from_row(name, columns, total, style=style)
        cells = zip(columns, line.cells, strict=True)
        return replace(line, cells=[ABSENT if column.key in no_sum else cell for column, cell in cells])

    lines = [Line.from_row(module_path(group), columns, group.total) for group in groups[:top]]
    if hidden := groups[top:]:
        lines.append(sum_line(f"{len(hidden):,} more: --top {len(groups)}, or --format csv", hidden, "dim"))
    with_floor = [group for group in groups if group.total.floor is not None]
    lines_sums = lines_and_sums(lines, [sum_line(f"all {roofline.timed}s with a floor", with_floor, "bold")])
    first = "module" if by_module or any(row.modules for row in roofline.rows) else roofline.by
    return Table("", first, columns, lines_sums, notes=roofline_notes(case, roofline)[:MAX_NOTE_LINES])


def _combined_table(cases: Sequence[ShownCase[Roofline]], results: str) -> Iterator[Table | str]:
    """Yield a row per case, the largest possible gain first."""
    head, names = distinguish([case.case for case in cases])
    calls = [
        (case.table, whole_call(case.table), cut_name(name))
        for case, name in zip(cases, names, strict=True)
        if not isinstance(case.table, str)
    ]
    calls.sort(key=lambda call: -1.0 if call[1].of_call is None else call[1].of_call, reverse=True)
    unit = unit_of(case.case for case in cases if not isinstance(case.table, str))
    columns = (*in_unit(CASE_COLUMNS, unit), Column("name", "most in", keep=4, numeric=False, max_width=26))
    reasons = Counter(case.why for case in cases if isinstance(case.table, str))
    notes = [f"{plural(count, 'case')} without floors: {reason}" for reason, count in reasons.items()]
    lines, room = [], CASES - 2 * min(len(notes), MAX_NOTE_LINES)
    for table, total, name in calls[:room]:
        best = next(iter(merge_repeats(table, table.ranked)), None)
        place = module_path(best) if best and best.total.won else ""
        lines.append(Line.from_row(name, columns, structs.replace(total, name=BOUND_PHRASES.get(table.bound, place))))
    if len(calls) > room:
        lines.append(Line(f"{len(calls) - room:,} more: --format csv", [ABSENT] * len(columns), style="dim"))
    about = "to win: time above the floor, which is the least that this device needs for what a layer does"
    yield Table(head, about=about)
    if calls and calls[0][1].won:
        _, total, name = calls[0]
        part = f"{TIME_WRITERS[unit](total.won)} of {TIME_WRITERS[unit](total.time)} {unit} ({share(total.of_call)})"
        yield f"Most to win with {name}: at most {part}."
    yield Table("", "case", columns, lines, notes=notes[:MAX_NOTE_LINES])
    yield f"Where in each: inferlens roofline {results} --top 5"


def whole_call(roofline: Roofline) -> Floor:
    part = None if roofline.won is None or not roofline.time else roofline.won / roofline.time
    return Floor(time=roofline.time, won=roofline.won, of_call=part)


def merge_repeats(roofline: Roofline, ranked: Sequence[Floor]) -> list[RepeatedRows]:
    """Merge rows of equal work in modules that differ in numbers alone, in the order of ``ranked``."""
    groups: dict[object, list[Floor]] = {}
    for row in ranked:
        modules = tuple(re.sub(r"\d+", "*", path) for path in row.modules)
        kind = short_kernel_name(row.name) if roofline.by == "kernel" else row.kind
        key = (modules, kind, row.flops, row.bytes, row.bound) if row.modules else row.place
        groups.setdefault(key, []).append(row)
    merged = []
    for rows in groups.values():
        shared = {name: getattr(rows[0], name) for name in ("name", "kind", "place", "bound", "modules")}
        total = structs.replace(roofline.sum_of(rows), **shared) if len(rows) > 1 else rows[0]
        merged.append(RepeatedRows(rows, total))
    by_time = bool(ranked) and ranked == sorted(ranked, key=lambda row: -row.time)
    return sorted(merged, key=lambda group: group.total.time if by_time else group.total.above, reverse=True)


def module_path(rows: RepeatedRows) -> str:
    """Return module paths with ``*`` for differing parts: ``encoder.layers.*.mlp.0 +1``."""
    paths = [row.modules[0] if row.modules else None for row in rows.rows]
    if paths[0] is None:
        return cut_name(_row_name(rows.total)) if rows.total.name else "of no known module"
    split = [re.split(r"(\d+)", path or "") for path in paths]
    name = "".join(words[0] if len(set(words)) == 1 else "*" for words in zip(*split, strict=True))
    more, count = len(rows.total.modules) - 1, len(rows.rows)
    return cut_name(name or THE_MODEL) + (f" +{more}" if more > 0 else "") + (f" ({count}x)" if count > 1 else "")


def ceilings(roofline: Roofline) -> str:
    rate = f"{flop_rate(roofline.rate)} ({roofline.precision}) and " if roofline.rate else ""
    return f"floor: the fastest possible on this device, at {rate}{bandwidth(roofline.ceilings.bandwidth)}"


def roofline_answer(roofline: Roofline, unit: str = "ms") -> str:
    """Return the largest possible gain and its place, or the bound of the call."""
    write = TIME_WRITERS[unit]
    call = f"{write(roofline.time)} {unit}"
    if not any(row.floor is not None for row in roofline.rows):
        return (
            f"Which {roofline.timed} does what is not known. The whole model cannot take less than "
            f"{write(roofline.least)} {unit} here, and takes {call}."
        )
    if roofline.bound == "host":
        works = "" if roofline.gpu_time is None else f" (the GPU works {write(roofline.gpu_time)} {unit} of it)"
        return f"Faster {roofline.timed}s win nothing: the call of {call} waits for the host{works}."
    if roofline.bound:
        far = ratio(roofline.floored_time / roofline.floor)
        layers = f"its {roofline.timed}s take {far} their floors"
        return f"Neither arithmetic nor memory bounds the call of {call}: {layers}."
    first = next(iter(merge_repeats(roofline, roofline.ranked)))
    if not first.total.won:
        return f"Nothing can be won: no {roofline.by} takes longer than its floor."
    where = f"most in {cut_name(module_path(first), 36)}: {write(first.total.won)} {unit}"
    part = share(whole_call(roofline).of_call)
    return f"At most {write(roofline.won)} of a call of {call} ({part}) could be won, {where}."


def roofline_notes(case: ShownCase[Roofline], roofline: Roofline) -> list[str]:
    """Return doubts about the answer, the largest first."""
    profile = case.case.profile
    sentences = [roofline.ceilings.disturbed] if roofline.ceilings.disturbed else []
    if roofline.rate is None:
        why = roofline.ceilings.absent.get(roofline.precision, "it was not measured")
        sentences.append(f"No rate of {roofline.precision} is known ({why}), so floors count bytes alone.")
    if roofline.unplaced:
        names = [cut_name(path) if path else THE_MODEL for path in roofline.unplaced]
        sentences.append(f"In no {roofline.timed}: the work of {plural(len(names), 'module')}, such as {names[0]}.")
    if profile.work and profile.work.uncovered:
        sentences.append(f"FLOPs not counted: {listing(list(profile.work.uncovered)[:MAX_SUMMED])}.")
    return [*sentences, *scaling_notes([case.case])]


def _roofline_data(case: ShownCase[Roofline], roofline: Roofline) -> dict[str, Any]:
    work = case.case.profile.work
    return {
        **{key: value for key, value in fields_by_key(roofline).items() if key != "rows"},
        "counted": work.note if work else "", "uncovered": work.uncovered if work else {},
        "sentences": [roofline_answer(roofline)], "notes": roofline_notes(case, roofline),
    }  # fmt: skip


def _roofline_rows(case: ShownCase[Roofline], roofline: Roofline) -> Iterator[dict[str, Any]]:
    """Yield the rows and the time outside layers, so that times add up."""

    def csv_row(kind: str, row: Floor, *names: str) -> dict[str, Any]:
        values = {name: getattr(row, name) for name in (*names, *NUMBERS)}
        return {"precision": roofline.precision, "row": kind, **values}

    for row in case.rows:
        yield csv_row(roofline.by, row, *_ROW_FIELDS)
    if case.rest:
        yield csv_row(f"other {roofline.by}s", Floor(time=sum(row.time for row in case.rest)))
    yield csv_row(f"in no {roofline.timed}", Floor(time=roofline.outside))
    yield csv_row("whole", Floor(time=roofline.time, floor=roofline.floor, won=roofline.won))


# A box is the middle half of the runs; whiskers reach from the 5th to the 95th percentile, or over few runs entirely.
# A point of a roofline is a layer or module: its work per byte and per second. The roof is the device's best rate.

WIDTH, HEIGHT = 640, 360
STEP = 20  # pixels from one box to the next
NAMED_POINTS = 5  # the points with the largest gains have labels
TOP = 20  # boxes of a case by default
LONGEST_NAME, LONGEST_IN_TITLE, LONGEST_TITLE, LONGEST_LINE = 40, 28, 78, 104
BOXES = "Boxes: the middle half of the runs, with a line at the median; whiskers: the 5th to the 95th percentile."
ROOF = "The roof is the device's best: what is far below it could be faster. Points are as large as their time."
COLOURS = {"compute": PALETTE[4], "memory": PALETTE[0]}

Drawing = tuple[str | bytes, list[str]]


def draw_cases(cases: Sequence[ShownCase[Any]], format: str) -> Drawing:
    """Draw the roofline of each case, or its layers as boxes, with a sentence per omitted case.

    Raises InferlensError if there is nothing to draw.
    """
    panels = [(case, _case_panel(case)) for case in cases]
    missing = [plain(f"Not drawn: {case.case.name}. {why}") for case, why in panels if isinstance(why, str)]
    drawn = [(case, panel) for case, panel in panels if not isinstance(panel, str)]
    if not drawn:
        raise InferlensError(f"There is nothing to draw. {' '.join(missing[:1])}", hint="the same without --plot")
    document = partial(_panels_document, [panel for _, panel in drawn])
    return draw_chart(document, format, drawn[0][0].case.headline), missing


def _case_panel(case: ShownCase[Any]) -> Callable[[Theme], Part] | str:
    """Return what draws a case for a theme, or the reason for nothing."""
    table = case.table
    if isinstance(table, str):
        return table
    if isinstance(table, Roofline):
        return partial(_roofline_chart, case, table) if any(map(_has_point, table.rows)) else "Nothing in it computes."
    return partial(_box_chart, case, table) if table.runs.timed else "No layer has a time."


def _panels_document(panels: Sequence[Callable[[Theme], Part]], theme: Theme) -> Part:
    charts = [panel(theme) for panel in panels]
    return vega_document(stack_charts(charts, own_scales=("color", "size"), spacing=44), theme)


def case_picture(name: str, case: ShownCase[Any]) -> Iterator[Picture]:
    """Yield the boxes or the roofline of a case for a page, if any."""
    panel = _case_panel(case)
    if not isinstance(panel, str):
        yield picture(name, ROOF if isinstance(case.table, Roofline) else BOXES, partial(_panels_document, [panel]))


def _case_title(case: ShownCase[Any], answer: str, about: str) -> dict[str, Any]:
    subtitle = f"{cut_name(case.case.headline, LONGEST_LINE - len(about) - 3)} · {about}"
    heading = cut_name(f"{case.case.name}: {answer}", LONGEST_TITLE)
    return title(heading, subtitle, size=16, offset=8, frame="group")


def _box_chart(case: ShownCase[PartTable], table: PartTable, _: Theme) -> Any:
    """Draw the boxes of one case in milliseconds."""
    runs, rows = table.runs, [row for row in replace(case, top=case.top or TOP).rows if row.times]
    enough = runs.count >= LEAST_FOR_P95
    ends = [0.05, 0.25, 0.5, 0.75, 0.95] if enough else [0.0, 0.25, 0.5, 0.75, 1.0]
    values: list[dict[str, Any]] = []
    for row in rows:
        quantiles = np.quantile(runs.layers[row.place - 1], ends)
        lower, middle, upper = map(milliseconds, quantiles[1:4].tolist())
        name = f"{cut_name(part_name(row), LONGEST_NAME)}  #{row.place}"  # shortened names may be equal
        texts = {"name": name, "kind": plain(row.kind)[:LONGEST_NAME], "text": f"{middle} ({lower} to {upper})"}
        numbers = zip(("low", "lower", "middle", "upper", "high"), (quantiles * 1e3).tolist(), strict=True)
        values.append({**dict(numbers), **texts})
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
    largest = max(rows, key=lambda row: row.times.typical if row.times else 0.0)
    took = f", {share(largest.times.share)} of a run" if largest.times and largest.times.share is not None else ""
    answer = f"{cut_name(part_name(largest), LONGEST_IN_TITLE)} has the largest share{took}"
    about = f"{len(rows)} of {plural(len(table.rows), 'layer')} · {plural(runs.count, 'run')}"
    return overlay(layers, values, width=WIDTH, height={"step": STEP}, title=_case_title(case, answer, about))


def _has_point(row: Floor) -> bool:
    return bool(row.intensity and row.time > 0)


def _roofline_chart(case: ShownCase[Roofline], roofline: Roofline, theme: Theme) -> Any:
    """Draw the roof, points sized by time and coloured by bound, and names."""
    groups = [group for group in merge_repeats(roofline, roofline.ranked) if _has_point(group.total)]
    points = [_roofline_point(module_path(group), group.total, roofline) for group in groups]
    ceilings, peak_rate = roofline.ceilings, roofline.rate or math.inf
    # Beyond the ridge the rate is the limit.
    ridge = [peak_rate / ceilings.bandwidth] if roofline.rate else []
    low, high = _point_range([*(point["intensity"] for point in points), *ridge])

    def roof_of(speed: float) -> list[dict[str, float]]:
        corner = [peak_rate / speed] if low < peak_rate / speed < high else []
        return [{"intensity": at, "rate": min(at * speed, peak_rate)} for at in (low, *corner, high)]

    roof = roof_of(ceilings.bandwidth)
    cache_roof = roof_of(ceilings.cached) if ceilings.cached > ceilings.bandwidth else []
    floor, top = _point_range([point["rate"] for point in [*points, *roof, *cache_roof]])
    x = field("intensity:Q", title="FLOPs for each byte", **_logarithmic(low, high, "~g"))
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
        marks("line", line, values=roof, strokeWidth=2, color=theme.faint),
        marks("point", point, values=points, filled=True, opacity=0.75),
    ]
    for label in _ceiling_labels(roofline, roof, cache_roof):
        look: Part = {"align": label["side"], "dx": label["dx"], "dy": label["dy"], "color": theme.faint}
        layers.append(marks("text", text, [label], **look))
    if cache_roof:
        layers.append(marks("line", line, cache_roof, strokeWidth=1.5, strokeDash=[4, 4], color=theme.faint))
    axes = {"intensity": (low, high, True), "rate": (floor, top, True)}
    lines = [roof, *([cache_roof] if cache_roof else [])]
    named = place_labels(points[:NAMED_POINTS], "name", axes, (WIDTH, HEIGHT), lines)
    halo: Part = {"stroke": theme.background, "strokeWidth": 4, "strokeJoin": "round"}  # separates names from points
    layers += [
        marks("text", text, named, where=f"datum.side == '{side}'", align=side, dx=dx, fontSize=11, **outline)
        for side, dx in (("left", GAP), ("right", -GAP))
        for outline in (halo, {})
    ]
    name, far = cut_name(module_path(groups[0]), LONGEST_IN_TITLE), milliseconds(groups[0].total.above)
    answer = f"{name} is {far} ms above its floor" if roofline.bound else f"most to be won in {name}, {far} ms"
    return overlay(layers, width=WIDTH, height=HEIGHT, title=_case_title(case, answer, f"points are {roofline.by}s"))


def _ceiling_labels(
    roofline: Roofline, roof: Sequence[dict[str, float]], cache_roof: Sequence[dict[str, float]]
) -> list[dict[str, Any]]:
    """Label the device's peaks on the roof, and on the roof for cached data."""
    begin, end = roof[0]["intensity"], roof[1]["intensity"]
    # Above the slope, where there are no points, but below it if the cache has a roof above it.
    middle, side, dx, dy = (0.3, "left", 10, 12) if cache_roof else (0.7, "right", -10, -4)
    at = begin * (end / begin) ** middle
    memory = {"intensity": at, "rate": at * roofline.ceilings.bandwidth, "side": side, "dx": dx, "dy": dy}
    labels = [{**memory, "name": f"memory at {bandwidth(roofline.ceilings.bandwidth)}"}]
    if cache_roof:
        name = f"cache at {bandwidth(roofline.ceilings.cached)}"
        labels.append({**cache_roof[-2], "name": name, "side": "left", "dx": 0, "dy": -9})
    if roofline.rate:
        name = f"{roofline.precision} at {flop_rate(roofline.rate)}"
        labels.append({**roof[-1], "name": name, "side": "right", "dx": 0, "dy": -18})  # above points on the roof
    return labels


def _roofline_point(name: str, row: Floor, roofline: Roofline) -> dict[str, Any]:
    return {
        "name": cut_name(name, LONGEST_IN_TITLE), "kind": plain(row.kind)[:LONGEST_NAME],
        "intensity": row.intensity, "rate": (row.flops or 0.0) / row.time, "time": row.time * 1e3,
        "bound": row.bound if roofline.rate else "memory", "took": f"{milliseconds(row.time)} ms",
        "floor": f"{milliseconds(row.floor)} ms", "distance": ratio(row.distance),
    }  # fmt: skip


def _logarithmic(low: float, high: float, format: str) -> dict[str, Any]:
    """Return scale and axis with a tick per power of ten."""
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    axis = {"format": format, "values": [10.0**power for power in powers]}
    return {"scale": {"type": "log", "domain": [low, high], "nice": False}, "axis": axis}


def _point_range(values: Sequence[float]) -> tuple[float, float]:
    """Return a range around all values."""
    return min(values) / 2, max(values) * 2.5
