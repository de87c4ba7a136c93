"""Times by module, with a column per case: one tree for each model, its inputs and machine.

A tree has kernels if every case has kernels that are traced to modules, because profiling does not distort them.
Otherwise it has layers. Shares are those of all kernels if all times are those of kernels, else of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, get_args

import msgspec

from inferlens.analysis.evidence import list_few
from inferlens.analysis.modules import FUSION_RULES, MOST_UNKNOWN, Cell, ModuleRow, ModuleTable, module_table
from inferlens.analysis.profile_table import (
    Reconciliation,
    Runs,
    RunTimes,
    gpu_busy,
    kernels_alone,
    profile_runs,
    reconciliation,
    waits_for_host,
)
from inferlens.errors import check_choice
from inferlens.record.profile import Level
from inferlens.spec.plan import unknown
from inferlens.units import ABSENT, listing, percent, plural
from inferlens.views.picture import GREY, PALETTE, Box, boxes_svg, colours_of
from inferlens.views.profiles.cases import (
    CALL,
    CASE_FIELDS,
    PROFILED_CALL,
    THE_MODEL,
    TIME_WRITERS,
    TIMES,
    LargestPart,
    ProfiledCase,
    cut_name,
    display_name,
    distinguish,
    first_notes,
    largest_parts,
    name_cases,
    reference_first,
    scaling_notes,
    time_fields,
    time_source,
    unit_of,
)
from inferlens.views.table import Column, Document, Line, Picture, Table, lines_and_sums, plain, share

LEVELS: tuple[Level, ...] = get_args(Level)
MOST_COST = 1.5  # of a profiled call over an unprofiled one: beyond, columns are not compared
SCHEMA = "inferlens.modules/1"
ROWS = 9  # modules of a model on a screen
MOST_SHARES, MOST_COLUMNS = 3, 7  # columns with shares, and all columns, by default
MOST_TREES = 3  # in one table; of more only the largest module of each case
MOST_IN = 24  # characters of the name of the module that another's time is in
MARKS = ("shared", "untimed", "fastest", "slower")
FIELDS = (*CASE_FIELDS, "row", "module", "depth", "rule", *TIMES, *MARKS, "level", "share_of")
MAIN_SHARE = 2 / 3  # of the time: a module with more is left to its children


@dataclass(frozen=True)
class ModuleColumn:
    """A case in the tree of modules; shares refer to a run or to all kernels, as ``runs`` says."""

    case: ProfiledCase
    runs: Runs

    @property
    def of_kernels(self) -> bool:
        return self.runs.share_of == "kernels"

    @cached_property
    def account(self) -> Reconciliation:
        """Return how layers or kernels add up to the run."""
        return reconciliation(replace(self.runs, share_of="run"), self.case.unprofiled)

    @cached_property
    def busy(self) -> RunTimes | None:
        """Return how long the GPU ran kernels or timed layers; ``None`` if unknown."""
        busy = gpu_busy(self.case.profile, self.runs) if self.of_kernels else None
        return None if busy is None else self.runs.times(busy)

    @cached_property
    def waits(self) -> bool:
        return waits_for_host(self.case.profile, self.runs, self.case.record)

    @property
    def comparable(self) -> bool:
        """Return whether the outputs are right and profiling did not lengthen calls too much."""
        return self.case.outputs_right and (self.of_kernels or (self.account.cost or 0.0) <= MOST_COST)


@dataclass(frozen=True)
class ModuleTree:
    """The columns of one model, the reference first, and their rows; ``table`` is ``None`` without columns."""

    level: Level
    columns: tuple[ModuleColumn, ...]
    missing: tuple[tuple[ProfiledCase, str], ...]  # cases without a column, and the reason
    table: ModuleTable | None = None


def module_tree(
    group: Sequence[ProfiledCase],
    level: Level | None = None,
    reference: str | None = None,
    fused: str = "work",
    depth: int | None = None,
) -> ModuleTree:
    """Return one column per comparable case, and their rows down to ``depth``."""
    cases: dict[str, dict[Level, ProfiledCase]] = {}
    for case in group:
        cases.setdefault(case.profile.case.digest, {})[case.profile.level] = case
    runs_by_profile = {case.profile.id: profile_runs(case.profile, None, case.unprofiled) for case in group}

    def traced(case: ProfiledCase | None) -> bool:
        """Return whether a case has kernels, most of them of known modules."""
        runs = runs_by_profile[case.profile.id] if case else ""
        return case is not None and isinstance(runs, Runs) and runs.unattributed_share(case.profile) <= MOST_UNKNOWN

    every_traced = all(traced(levels.get("kernel")) for levels in cases.values())
    only_kernels = all(case.profile.level == "kernel" for case in group)
    chosen: Level = level or ("kernel" if every_traced or only_kernels else "layer")
    named = name_cases([levels.get(chosen) or next(iter(levels.values())) for levels in cases.values()])
    columns, missing = [], []
    for case in reference_first(named, reference):
        runs = runs_by_profile[case.profile.id]
        if case.profile.level == chosen and isinstance(runs, Runs):
            columns.append(ModuleColumn(case, runs))
        else:
            missing.append((case, str(profile_runs(case.profile, chosen))))
    if all(kernels_alone(column.case.profile) for column in columns):
        columns = [replace(column, runs=column.runs.with_kernel_shares()) for column in columns]
    profiles = [(column.case.profile, column.runs) for column in columns]
    right = [column.comparable for column in columns]
    table = module_table(profiles, rule=fused, depth=depth, right=right) if profiles else None
    return ModuleTree(level=chosen, columns=tuple(columns), missing=tuple(missing), table=table)


def modules_document(
    groups: Sequence[Sequence[ProfiledCase]],
    *,
    level: Level | None = None,
    depth: int | None = None,
    reference: str | None = None,
    fused: str = "work",
    rows: int = ROWS,
    brief: bool = False,
    command: str = "",
) -> Document:
    """Return the modules of each model from comparable profiles of every level.

    Args:
        groups: the profiles of each model. The command ``modules`` describes the arguments after it.
        rows: number of modules of a tree that people see without ``depth``.
        brief: omit titles, all notes but one, and models without profiles next to models that have some.
        command: the command that shows the rest, if it is another one.

    Raises:
        InferlensError: for another level or rule, or a reference that fits none.
    """
    if level is not None:
        check_choice("level of modules", level, LEVELS)
    check_choice("rule for fused layers", fused, FUSION_RULES)
    cases = [case for group in groups for case in group]
    if reference and not any(case.matches(reference) for case in cases):
        raise unknown(reference, [case.profile.case.label for case in cases])
    trees = [module_tree(group, level, reference, fused, depth) for group in groups]
    return Document(
        blocks=lambda: list(_module_blocks(trees, None if depth else rows, brief=brief, command=command)),
        data=lambda: {"schema": SCHEMA, "models": list(map(_tree_data, trees))},
        rows=lambda: (row for tree in trees if tree.table for row in _cell_rows(tree.columns, tree.table)),
        fields=FIELDS,
    )


def _module_blocks(
    trees: Sequence[ModuleTree], limit: int | None, *, brief: bool, command: str
) -> Iterator[Table | str]:
    """Yield the tree with at most ``limit`` modules; a few trees in one table, many as their largest modules."""
    with_table = [tree for tree in trees if tree.table]
    if limit and 1 < len(with_table) <= MOST_TREES:
        yield _combined_table(trees, max(limit // len(with_table), 1), brief=brief)
        yield f"All modules: {command} --depth 2".replace("  ", " ")
        return
    if limit and len(with_table) > 1:
        yield from _largest_modules(trees, f"{command} --depth 1".strip())
        return
    for tree in trees:
        head, names = distinguish([column.case for column in tree.columns] or [case for case, _ in tree.missing])
        missing = [
            f"{case.name} has no {tree.level}s: {reason} {case.profile.hint}".strip() for case, reason in tree.missing
        ]
        if tree.table is None:
            if not (brief and with_table):  # the command has printed the reason
                yield Table(head, sentences=first_notes(missing))
            continue
        unit = unit_of(column.case for column in tree.columns)
        visible, left = visible_rows(tree.table.rows[1:], limit)
        lines = [_module_line(row, unit, _module_name(row), "  " * (row.depth - 1)) for row in visible]
        notes = first_notes([*_column_notes(tree.columns, names), *missing])[: 1 if brief else None]
        if left:
            deeper = min(tree.table.depth, max((len(row.path) for row in visible), default=0)) + 1
            notes.append(f"{left:,} more modules: " + f"{command} --depth {deeper}".strip())
        if not brief:
            calls = plural(min(column.runs.count for column in tree.columns), "call")
            parts = [(column.case, "kernels" if column.of_kernels else "layers") for column in tree.columns]
            sources = sorted({time_source([case], noun) for case, noun in parts})
            yield Table(head, about=f"{'; '.join(sources)} · {calls}")
        yield modules_answer(tree.table, names)
        sums = _sum_lines(tree, tree.table, unit)
        yield Table("", "module", _headings(names, unit), lines_and_sums(lines, sums), notes=notes)


def _combined_table(trees: Sequence[ModuleTree], limit: int, *, brief: bool) -> Table:
    """Return one table of several trees: the whole of each and its ``limit`` largest modules."""
    with_table = [(tree, tree.table) for tree in trees if tree.table]
    names = distinguish([tree.columns[0].case for tree, _ in with_table], backends=False)[1]
    labels = [distinguish([column.case for column in tree.columns])[1] for tree, _ in with_table]
    columns, shown = list(dict.fromkeys(chain(*labels))), [column for tree in trees for column in tree.columns]
    head, unit = distinguish([column.case for column in shown])[0], unit_of(column.case for column in shown)
    lines: list[Line] = []
    for (tree, table), name, cases in zip(with_table, names, labels, strict=True):
        whole = [replace(line, name=name, sums=False) for line in _sum_lines(tree, table, unit)[:1]]
        rows = visible_rows(table.rows[1:], limit)[0]
        for line in [*whole, *(_module_line(row, unit, _module_name(row), "  " * row.depth) for row in rows)]:
            pairs = dict(zip(cases, zip(line.cells[::2], line.cells[1::2], strict=True), strict=True))
            lines.append(replace(line, cells=[*chain.from_iterable(pairs.get(column, ("", "")) for column in columns)]))
    waiting = sum(column.waits for column in shown)
    host = f"{waiting} of {plural(len(shown), 'call')} wait for the host: faster modules win nothing there."
    notes = first_notes([*[host] * bool(waiting), *_count_notes(trees)])[: 1 if brief else None]
    return Table("" if brief else head, "module", _headings(columns, unit), lines, notes=notes)


def _largest_modules(trees: Sequence[ModuleTree], more: str) -> Iterator[Table | str]:
    """Yield one table of the largest module of each case."""
    parts = list[LargestPart]()
    for tree in trees:
        for place, column in enumerate(tree.columns if tree.table else ()):
            assert tree.table
            row, call = _largest_module(tree.table, place), column.account.unprofiled or column.account.whole.median
            name, part = (cut_name(".".join(row.path)), _cell_share(row, place)) if row else ("", None)
            parts.append(LargestPart(column.case, name, part, call, column.waits))
    yield from largest_parts("module", parts, list(_count_notes(trees)), more)


def _count_notes(trees: Sequence[ModuleTree]) -> Iterator[str]:
    if missing := sum(len(tree.missing) for tree in trees):
        yield f"{plural(missing, 'case')} without times of modules: --format json has the reasons."
    if wrong := sum(not column.case.outputs_right for tree in trees for column in tree.columns):
        yield f"The outputs of {plural(wrong, 'case')} are wrong."


def _headings(names: Sequence[str], unit: str) -> list[Column]:
    """Return a column of times and one of shares for each case."""
    columns = []
    for place, name in enumerate(names):
        time = Column(name, name, unit, keep=place, bars=True, wide=place >= MOST_COLUMNS)
        keep, wide = len(names) + place, len(names) > MOST_SHARES
        columns += [time, Column(f"{name} share", "", "share", keep=keep, wide=wide)]
    return columns


def _sum_lines(tree: ModuleTree, table: ModuleTable, unit: str) -> list[Line]:
    """Return the whole, the call that contains the kernels, and the GPU's working time."""
    scaled = all(column.account.unprofiled for column in tree.columns)
    title = CALL if scaled else PROFILED_CALL
    if not tree.columns[0].of_kernels:
        return [replace(_module_line(table.rows[0], unit, title), style="bold", sums=True)]
    sums = [replace(_module_line(table.rows[0], unit, "all kernels"), style="bold", sums=True)]
    if any(column.account.unprofiled for column in tree.columns):
        calls = [cell for column in tree.columns for cell in (TIME_WRITERS[unit](column.account.unprofiled), "")]
        sums.append(Line(CALL, calls, sums=True))
    if any(column.busy and column.account.unprofiled for column in tree.columns):
        works = []
        for column in tree.columns:
            before, busy = column.account.unprofiled, column.busy and column.busy.median
            works += [TIME_WRITERS[unit](busy), percent(busy / before)] if busy and before else ["", ""]
        sums.append(Line("GPU at work", works, indent="  ", sums=True))
    return sums


def _module_line(row: ModuleRow, unit: str, name: str, indent: str = "") -> Line:
    cells = [text for cell in row.cells for text in _cell_texts(cell, unit)]
    full = display_name(".".join(row.path)) if row.kind == "module" else name
    return Line(name, cells, indent=indent, full=full, style="" if row.kind == "module" else "dim")


def _cell_texts(cell: Cell | None, unit: str) -> tuple[str, str]:
    """Return time and share, or the module that includes a fused one."""
    if cell and cell.counted_in is not None:
        return f"in {cut_name(cell.counted_in, MOST_IN) if cell.counted_in else THE_MODEL}", ""
    times = cell.times if cell else None
    return (TIME_WRITERS[unit](times.typical), share(times.share)) if times else (ABSENT, ABSENT)


def visible_rows(rows: Sequence[ModuleRow], limit: int | None) -> tuple[list[ModuleRow], int]:
    """Return at most ``limit`` rows in order, and the number of hidden modules; ``None`` returns all.

    Rows of the highest level come first, the largest among them, and the largest of all others fill the rest.
    """
    ranked = sorted(range(len(rows)), key=lambda place: (rows[place].depth > 1, -max(_row_shares(rows[place]))))
    shown = [rows[place] for place in sorted(ranked[:limit])]
    hidden = sum(row.kind == "module" for row in rows) - sum(row.kind == "module" for row in shown)
    return shown, hidden + sum(row.folded for row in rows)


def _module_name(row: ModuleRow) -> str:
    """Return a module's name below its parent; a number keeps its parent's name."""
    if row.kind == "not attributed":
        return "in no module"
    if row.kind == "itself":
        return f"{display_name(row.path[-1]) if row.path else THE_MODEL} itself"
    return display_name(".".join(row.path[-2:] if row.path[-1][:1].isdigit() else row.path[-1:]))


def _row_shares(row: ModuleRow) -> list[float]:
    return [cell.times.share or 0.0 for cell in row.cells if cell and cell.times] or [0.0]


def _column_notes(columns: Sequence[ModuleColumn], names: Sequence[str]) -> Iterator[str]:
    named = list(zip(columns, names, strict=True))
    if wrong := [name for column, name in named if not column.case.outputs_right]:
        yield f"The outputs of {listing(wrong)} are wrong."
    if waiting := [name for column, name in named if column.waits]:
        yield f"The call waits for the host with {list_few(waiting)}: faster modules win nothing there."
    yield from scaling_notes([column.case for column in columns], names)
    if len({column.case.profile.timed for column in columns}) > 1:
        yield "Columns are timed in different ways: compare shares, not times."


def modules_answer(table: ModuleTable, names: Sequence[str]) -> str:
    """Return ``layer3 has the largest share: 34.3 % with pytorch, 27.7 % with tensorrt.``"""
    sentences: dict[str, list[str]] = {}
    for place, name in enumerate(names):
        if row := _largest_module(table, place):
            part = percent(_cell_share(row, place)) + (f" with {name}" if len(names) > 1 else "")
            sentences.setdefault(cut_name(".".join(row.path)), []).append(part)
    texts = [f"{path} has the largest share: {', '.join(parts)}." for path, parts in sentences.items()]
    return " ".join(texts) or "Nothing has a time."


def _largest_module(table: ModuleTable, place: int) -> ModuleRow | None:
    """Return the largest module of a column, without modules around others that hold most of the time."""
    rows = [row for row in table.rows if row.kind == "module" and _cell_share(row, place) > 0]
    parents = {row.path[:-1] for row in rows}
    inner = [row for row in rows if row.path not in parents or _cell_share(row, place) < MAIN_SHARE]
    return max(inner, key=lambda row: _cell_share(row, place), default=None)


def _cell_share(row: ModuleRow, place: int) -> float:
    cell = row.cells[place]
    return (cell.times.share or 0.0) if cell and cell.times else 0.0


def _tree_data(tree: ModuleTree) -> dict[str, Any]:
    table = tree.table

    def share_in_modules(column: ModuleColumn) -> float:
        attributed = [bool(part.modules) for part in column.case.profile.parts]
        return column.runs.share(column.runs.layers[attributed].sum(axis=0)) or 0.0

    return {
        "level": tree.level, "rule": table and table.rule, "depth": table and table.depth,
        "deepest": table and table.deepest,
        "columns": [
            {
                **column.case.data, "level": column.case.profile.level, "share_of": column.runs.share_of,
                "timed": column.case.profile.timed, "clock": column.case.profile.clock,
                "in_modules": share_in_modules(column), "scale": 1 / column.runs.scale,
                "busy": column.busy, "reconciliation": column.account, "comparable": compared,
            }
            for column, compared in zip(tree.columns, table.comparable if table else (), strict=True)
        ],
        "rows": [
            {**msgspec.structs.asdict(row), "path": ".".join(row.path)} for row in (table.rows if table else ())
        ],
        "failed": [{**case.data, "level": tree.level, "reason": reason} for case, reason in tree.missing],
        "sentences": [modules_answer(table, [column.case.name for column in tree.columns])] if table else [],
    }  # fmt: skip


def _cell_rows(columns: Sequence[ModuleColumn], table: ModuleTable) -> Iterator[dict[str, Any]]:
    """Yield every cell. Those of one column and depth add up to the whole."""
    for row in table.rows:
        place = {"row": row.kind, "module": ".".join(row.path), "depth": row.depth, "rule": table.rule}
        for column, cell in zip(columns, row.cells, strict=True):
            if cell:
                kind = {"level": column.case.profile.level, "share_of": column.runs.share_of}
                marks = {mark: getattr(cell, mark) for mark in MARKS}
                yield {**column.case.fields, **place, **time_fields(cell.times), **marks, **kind}


# Modules as boxes

MODULES_CAPTION = (
    "Each box is as wide as its share of the time, with the modules in it beneath; a colour is a part of the model."
)


def icicle(group: Sequence[ProfiledCase], name: str) -> Iterator[Picture]:
    """Yield a picture of one model with a panel for each case, if any has modules."""
    tree = module_tree(group)
    if tree.table:
        panels, values = _module_panels(tree.columns, tree.table.rows)
        yield Picture(name, MODULES_CAPTION, partial(boxes_svg, "where the time goes, by modules", panels), values)


def _module_panels(
    columns: Sequence[ModuleColumn], rows: Sequence[ModuleRow]
) -> tuple[list[tuple[str, list[Box]]], list[dict[str, Any]]]:
    """Return the boxes of each case, and all of them as rows; the first of ``rows`` is the whole."""
    unit, parts = unit_of(column.case for column in columns), _model_parts(rows[1:])
    colours = colours_of(dict.fromkeys(filter(None, parts)), [colour for colour in PALETTE if colour != GREY])
    panels, values = [], []
    for index, case in enumerate(distinguish([column.case for column in columns])[1]):
        boxes = []
        for row, part, (left, width) in zip(rows[1:], parts, _box_positions(rows[1:], index), strict=True):
            times = (cell := row.cells[index]) and cell.times
            time, share_text = (TIME_WRITERS[unit](times.typical), share(times.share)) if times else ("", "")
            label = plain(_module_name(row))
            path = plain(".".join(row.path)) if row.kind == "module" else label
            names = (f"{label} {percent(width)}", label, label.rpartition(".")[2])
            about = f"{path}; {time} {unit}; {share_text} of the time"
            boxes.append(Box(left, width, row.depth - 1, names, about, colours.get(part, GREY)))
            values.append({"case": case, "module": path, "depth": row.depth - 1, f"time ({unit})": time,
                           "left": round(left, 6), "share": round(width, 6)})  # fmt: skip
        whole = rows[0].cells[index]
        time = f" · {TIME_WRITERS[unit](whole.times.typical)} {unit}" if whole and whole.times else ""
        panels.append((f"{case}{time}, {'all kernels' if columns[index].of_kernels else 'the call'}", boxes))
    return panels, values


def _model_parts(rows: Sequence[ModuleRow]) -> list[str]:
    """Return the part of the model of each row: its outermost module below those that hold most of the time."""
    parts: list[str] = []
    above: dict[int, str] = {}
    for row in rows:
        part = above.get(row.depth - 1, "")
        if not part and row.kind == "module" and min(_row_shares(row)) <= MAIN_SHARE:
            part = ".".join(row.path)
        above[row.depth] = part
        parts.append(part)
    return parts


def _box_positions(rows: Sequence[ModuleRow], index: int) -> list[tuple[float, float]]:
    """Return the begin and width of each row's box in a column, as shares of the whole.

    A parent is as wide as its children, and all together fill the whole.
    """
    widths: list[float] = []
    below: dict[int, float] = {}
    for row in reversed(rows):
        widths.append(below.pop(row.depth + 1, 0.0) or max(_cell_share(row, index), 0.0))
        below[row.depth] = below.get(row.depth, 0.0) + widths[-1]
    whole = below.get(1) or 1.0
    left: dict[int, float] = {}
    positions = []
    for row, width in zip(rows, reversed(widths), strict=True):
        begin = left.get(row.depth, 0.0)
        positions.append((begin, width / whole))
        left[row.depth], left[row.depth + 1] = begin + width / whole, begin
    return positions
