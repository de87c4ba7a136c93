"""Times by module, with a column per case: one tree for each model, its inputs and machine.

A tree has kernels if every case has kernels that are traced to modules, because profiling does not distort them.
Otherwise it has layers, and a case without layers keeps its kernels. A requested level is shown alone. Kernel times
come from the profile of kernels. If that is missing, or has too many unknown modules, they come from the layers whose
kernels CUPTI timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, get_args

import msgspec

from inferlens.analysis.modules import FUSION_RULES, MOST_UNKNOWN, Cell, ModuleRow, ModuleTable, Path, module_table
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
from inferlens.analysis.samples import group_by
from inferlens.errors import check_choice
from inferlens.record.profile import Level
from inferlens.units import ABSENT, listing, percent, plural, ratio
from inferlens.views.picture import GREY, PALETTE, Box, boxes_svg, colours_of
from inferlens.views.profiles.cases import (
    CALL,
    CASE_FIELDS,
    PROFILED_CALL,
    THE_MODEL,
    TIME_WRITERS,
    TIMES,
    ProfiledCase,
    check_profile_reference,
    cut_name,
    display_name,
    distinguish,
    few_names,
    first_notes,
    name_cases,
    reference_first,
    time_fields,
    time_source,
    unit_of,
)
from inferlens.views.table import Column, Document, Line, Picture, Table, lines_and_sums, plain, share

LEVELS: tuple[Level, ...] = get_args(Level)
MOST_COST = 1.5  # of a profiled call over an unprofiled one: beyond, columns are not compared


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
    def in_modules(self) -> float:
        """Return the share of the whole that lies in modules."""
        attributed = [bool(part.modules) for part in self.case.profile.parts]
        return self.runs.share(self.runs.layers[attributed].sum(axis=0)) or 0.0

    @property
    def unknown(self) -> float:
        """Return the share of the time that is of no known module."""
        return self.runs.unattributed_share(self.case.profile)

    @property
    def scale(self) -> float:
        """Return the divisor of times that gives those of an unprofiled call."""
        return 1 / self.runs.scale

    @cached_property
    def waits(self) -> bool:
        return waits_for_host(self.case.profile, self.runs, self.case.record)

    @property
    def distorted(self) -> bool:
        """Return whether profiling lengthened calls too much for a comparison."""
        return not self.of_kernels and (self.account.cost or 0.0) > MOST_COST


def coverage(columns: Sequence[ModuleColumn]) -> str:
    """Return how much of the time lies in modules, and its scale: ``98.1 % to 100 % in modules, scale 1.00x``."""

    def ends(texts: list[str]) -> str:
        return " to ".join(dict.fromkeys((texts[0], texts[-1])))

    shares = ends([percent(value) for value in sorted(column.in_modules for column in columns)])
    return f"{shares} in modules, scale {ends([ratio(value) for value in sorted(column.scale for column in columns)])}"


@dataclass(frozen=True)
class MissingColumn:
    """A case without a column, and the level and reason."""

    case: ProfiledCase
    level: Level
    reason: str


@dataclass(frozen=True)
class ModuleTree:
    """The columns of one model, the reference first, and their rows; ``table`` is ``None`` without columns."""

    level: Level
    columns: tuple[ModuleColumn, ...]
    missing: tuple[MissingColumn, ...]
    table: ModuleTable | None = None


def module_columns(group: Sequence[ProfiledCase], level: Level | None, reference: str | None) -> ModuleTree:
    """Return one column per comparable case."""
    cases: dict[str, dict[Level, ProfiledCase]] = {}
    for case in group:
        cases.setdefault(case.profile.case.digest, {})[case.profile.level] = case
    possible = [_possible_columns(profiles) for profiles in cases.values()]
    traced = [(column := item.get("kernel")) and column.unknown <= MOST_UNKNOWN for item in possible if item]
    chosen: Level = level or ("kernel" if traced and all(traced) else "layer")
    order = [chosen] if level else sorted(LEVELS, key=lambda item: item != chosen)
    entries = [
        next((options[level] for level in order if level in options), None) or _missing(profiles, order)
        for profiles, options in zip(cases.values(), possible, strict=True)
    ]
    mixed = len({entry.of_kernels for entry in entries if isinstance(entry, ModuleColumn)}) > 1
    named = name_cases([entry.case for entry in entries], with_level=mixed)
    by_id = {case.profile.id: replace(entry, case=case) for entry, case in zip(entries, named, strict=True)}
    ordered = [by_id[case.profile.id] for case in reference_first(named, reference)]
    return ModuleTree(
        level=chosen,
        columns=tuple(entry for entry in ordered if isinstance(entry, ModuleColumn)),
        missing=tuple(entry for entry in ordered if isinstance(entry, MissingColumn)),
    )


def _possible_columns(profiles: Mapping[Level, ProfiledCase]) -> dict[Level, ModuleColumn]:
    """Return the possible columns of a case: its layers, and the kernels with enough known modules."""
    columns: dict[Level, ModuleColumn] = {}
    unknown = 2.0
    for level, case in sorted(profiles.items()):  # kernels first
        profile, runs = case.profile, profile_runs(case.profile, None, case.unprofiled)
        if isinstance(runs, str):
            continue
        if level == "layer":
            columns[level] = ModuleColumn(case, runs)
        if kernels_alone(profile):
            share = max(runs.unattributed_share(profile), MOST_UNKNOWN)
            if share < unknown:
                unknown, columns["kernel"] = share, ModuleColumn(case, runs.with_kernel_shares())
    return columns


def _missing(profiles: Mapping[Level, ProfiledCase], order: Sequence[Level]) -> MissingColumn:
    level = next(item for item in (*order, *LEVELS) if item in profiles)
    wanted = level if level in order else order[0]
    return MissingColumn(profiles[level], wanted, str(profile_runs(profiles[level].profile, wanted)))


SCHEMA = "inferlens.modules/1"
LINES, WIDTH = 16, 100  # lines below the headings of a screen, and its columns
FEW_ROWS = 4  # of a tree: with so few, modules that hold nearly all of the time are left out
MOST_SHARES, MOST_COLUMNS = 3, 7  # columns with shares, and all columns, by default
MOST_IN = 24  # characters of the name of the module that another's time is in
MARKS = ("shared", "untimed", "fastest", "slower")
FIELDS = (*CASE_FIELDS, "row", "module", "depth", "rule", *TIMES, *MARKS, "level", "share_of")
MAIN_SHARE = 2 / 3  # of the time: above it children are compared
SIMILAR = 1.25  # ratio of similar modules
LARGEST_SHARE = " has the largest share"
_KIND_NAMES = {
    "not attributed": "in no module",
    "unknown module": "· of it in layers of no known module",
    "outside layers": "· of it in no layer",
}


def modules_document(
    groups: Sequence[Sequence[ProfiledCase]],
    *,
    level: Level | None = None,
    depth: int | None = None,
    reference: str | None = None,
    fused: str = "work",
    lines: int = LINES,
    brief: bool = False,
    command: str = "",
) -> Document:
    """Return the modules of each model from comparable profiles of every level.

    Args:
        groups: the profiles of each model; the others but the last three are as of the command.
        lines: of a tree and its notes, for people, where no depth is asked for.
        brief: without a title, and with one note; without models of which nothing was profiled, beside others.
        command: the command that shows the rest, if it is not the one that shows this.

    Raises:
        InferlensError: for another level or rule, or a reference that fits none.
    """
    if level is not None:
        check_choice("level of modules", level, LEVELS)
    check_choice("rule for fused layers", fused, FUSION_RULES)
    check_profile_reference([case for group in groups for case in group], reference)
    trees = [tree_of(module_columns(group, level, reference), fused, depth) for group in groups]
    return Document(
        blocks=lambda: list(_blocks(trees, None if depth else lines, brief=brief, command=command)),
        data=lambda: {"schema": SCHEMA, "models": [_data(tree, tree.table) for tree in trees]},
        rows=lambda: (row for tree in trees if tree.table for row in _rows(tree.columns, tree.table)),
        fields=FIELDS,
    )


def tree_of(tree: ModuleTree, fused: str, depth: int | None) -> ModuleTree:
    """Return ``tree`` with its rows down to ``depth``."""
    if not tree.columns:
        return tree
    profiles = [(column.case.profile, column.runs) for column in tree.columns]
    right = [column.case.outputs_right and not column.distorted for column in tree.columns]
    return replace(tree, table=module_table(profiles, rule=fused, depth=depth, right=right))


def _blocks(trees: Sequence[ModuleTree], most: int | None, *, brief: bool, command: str = "") -> Iterator[Table | str]:
    """Yield the trees with at most ``most`` lines."""
    drawn = [tree for tree in trees if tree.table]
    if most and len(drawn) > 1:
        shown = _combined_table(trees, most - 3 * brief)
        yield _with_command(replace(shown, title="", notes=()) if brief else shown, command)
        return
    for shown_tree in trees:
        head, names = distinguish([column.case for column in shown_tree.columns or shown_tree.missing])
        missing = _missing_notes(shown_tree)
        if shown_tree.table is None and brief and drawn:
            continue  # the command has printed the reason
        if shown_tree.table is None:
            yield Table(head, sentences=first_notes(missing))
            continue
        unit = unit_of(column.case for column in shown_tree.columns)
        sentences = _lead(shown_tree, shown_tree.table, names, unit) + f" {_times(shown_tree.columns)}." * brief
        notes = first_notes([*_notes(shown_tree.columns, names), *missing])[: 1 if brief else None]
        sums = _sums(shown_tree, shown_tree.table, unit)
        used = sum(1 + len(text) // WIDTH for text in (head, sentences, *notes)) + bool(notes) + len(sums)
        calls = plural(min(column.runs.count for column in shown_tree.columns), "call")
        if not brief:  # the coverage has the scale
            times = _times(shown_tree.columns).replace(", scaled to a call without profiling", "")
            yield Table(head, about=f"{times} · {calls} · {coverage(shown_tree.columns)}")
        yield sentences
        lines = _module_lines(shown_tree.table, len(names), unit, most and max(most - used, 1))
        wholes = ["kernels" if column.of_kernels else "call" for column in shown_tree.columns]
        table = Table("", "module", _headings(names, unit, wholes), lines_and_sums(lines, sums), notes=notes)
        yield _with_command(table, command)


def _with_command(table: Table, command: str) -> Table:
    """Move the number of hidden modules below the table, with the command that shows them, if another one does."""
    rest = [line.name.replace("--depth", f"{command} --depth") for line in table.lines if "more: --depth" in line.name]
    if not command or not rest:
        return table
    lines = [line for line in table.lines if "more: --depth" not in line.name]
    return replace(table, lines=lines, notes=[*table.notes, *rest])


def _combined_table(trees: Sequence[ModuleTree], most: int) -> Table:
    """Return one table of several trees: each whole and its largest modules, as many as fit."""
    drawn = [(tree, tree.table) for tree in trees if tree.table]
    head, names = distinguish([tree.columns[0].case for tree, _ in drawn], backends=False)
    columns = list(dict.fromkeys(name for tree, _ in drawn for name in _case_names(tree)))
    shown = [column for tree in trees for column in tree.columns]
    waiting = sum(column.waits for column in shown)
    notes = [f"{waiting} of {plural(len(shown), 'call')} wait for the host: faster modules win nothing there."]
    notes = notes * bool(waiting)
    notes += [note for tree in trees for note in (*_notes(tree.columns, _case_names(tree)), *_missing_notes(tree))]
    room = most + 1 - 3 * bool(notes) - 2 * (len(columns) > MOST_SHARES)
    per_case = max(1, room // len(drawn) - 1)
    lines: list[Line] = []
    left = sum(visible_rows(table.rows[1:], per_case)[1] for _, table in drawn)
    unit = unit_of(column.case for column in shown)
    for (tree, table), name in list(zip(drawn, names, strict=True))[: max(room // (per_case + 1), 1)]:
        whole, *calls = _sums(tree, table, unit)
        calls = calls[: per_case > 2]
        modules = _module_lines(table, len(tree.columns), unit, per_case - len(calls), rest=False)
        own = [replace(whole, name=name), *calls, *modules]
        for number, line in enumerate(own):
            pairs = dict(zip(_case_names(tree), zip(line.cells[::2], line.cells[1::2], strict=True), strict=True))
            cells = [cell for column in columns for cell in pairs.get(column, ("", ""))]
            lines.append(replace(line, cells=cells, indent=f"  {line.indent}" if number else ""))
    lines += [Line(f"{left:,} more: --depth 2", [""] * 2 * len(columns), style="dim", sums=True)] if left else []
    about = f"The modules that take most · {_times(shown, shares=False)}"
    notes = first_notes(list(dict.fromkeys(notes)))[:1]
    return Table(head, "module", _headings(columns, unit), lines, about=about, notes=notes)


def _case_names(tree: ModuleTree) -> list[str]:
    return distinguish([column.case for column in tree.columns])[1]


def _missing_notes(tree: ModuleTree) -> list[str]:
    return [
        f"{column.case.name} has no {column.level}s: {column.reason} {column.case.profile.hint}".strip()
        for column in tree.missing
    ]


def _times(columns: Sequence[ModuleColumn], *, shares: bool = True) -> str:
    """Return the source of the times and the meaning of shares."""
    shares = shares and len(columns) <= MOST_SHARES
    texts = {
        time_source([column.case], "kernels" if column.of_kernels else "layers")
        + ", as share of all kernels" * (shares and column.of_kernels)
        for column in columns
    }
    return "; ".join(sorted(texts))


def _headings(names: Sequence[str], unit: str, wholes: Sequence[str] = ()) -> list[Column]:
    """Return a column of times and one of shares for each case."""
    many = len(names) > MOST_SHARES
    return [
        heading
        for place, name in enumerate(names)
        for heading in (
            Column("", name, unit, keep=place, bars="beside" if place else "drawn", wide=place >= MOST_COLUMNS),
            Column("", "", f"share of {wholes[place]}" if many and wholes else "share", keep=len(names) + place,
                   bars="" if place else "beside", wide=many),
        )
    ]  # fmt: skip


def _module_lines(table: ModuleTable, columns: int, unit: str, most: int | None, *, rest: bool = True) -> list[Line]:
    """Return the lines of the modules, and of the rest."""
    shown, left = visible_rows(table.rows[1:], most)
    lines = [_line(row, unit, name, indent) for row, indent, name in shown]
    if left and rest:
        deeper = min(table.depth, max((len(row.path) for row, _, _ in shown), default=0)) + 1
        lines.append(Line(f"{left:,} more: --depth {deeper}", [""] * 2 * columns, style="dim", sums=True))
    return lines


def _sums(tree: ModuleTree, table: ModuleTable, unit: str) -> list[Line]:
    """Return the whole, the call that contains the kernels, and the GPU's working time."""
    kernels = {column.of_kernels for column in tree.columns}
    scaled = all(column.account.unprofiled for column in tree.columns)
    titles = [CALL if scaled else PROFILED_CALL] * (False in kernels) + ["all kernels"] * (True in kernels)
    sums = [replace(_line(table.rows[0], unit, ", or ".join(titles)), style="bold", sums=True)]
    if True in kernels and any(column.account.unprofiled for column in tree.columns):
        calls = [cell for column in tree.columns for cell in (TIME_WRITERS[unit](column.account.unprofiled), "")]
        sums.append(Line(CALL, calls, sums=True))
    if any(column.busy and column.account.unprofiled for column in tree.columns):
        works = [cell for column in tree.columns for cell in _gpu_work(column, unit)]
        sums.append(Line("GPU at work", works, indent="  ", sums=True))
    return sums


def _gpu_work(column: ModuleColumn, unit: str) -> tuple[str, str]:
    before, busy = column.account.unprofiled, column.busy and column.busy.median
    return (TIME_WRITERS[unit](busy), percent(busy / before)) if busy and before else ("", "")


def _line(row: ModuleRow, unit: str, name: str, indent: str = "") -> Line:
    cells = [text for cell in row.cells for text in _cells(cell, unit)]
    full = display_name(".".join(row.path)) if row.kind == "module" else name
    return Line(name, cells, indent=indent, full=full, style="" if row.kind == "module" else "dim")


def _cells(cell: Cell | None, unit: str) -> tuple[str, str]:
    """Return time and share, or the module that includes a fused one."""
    if cell and cell.counted_in is not None:
        return f"in {cut_name(cell.counted_in, MOST_IN) if cell.counted_in else THE_MODEL}", ""
    times = cell.times if cell else None
    return (TIME_WRITERS[unit](times.typical), share(times.share)) if times else (ABSENT, ABSENT)


def visible_rows(rows: Sequence[ModuleRow], limit: int | None) -> tuple[list[tuple[ModuleRow, str, str]], int]:
    """Return the largest rows in order with indentation and name, and the number of hidden modules.

    ``None`` returns all. A module with a single child is shown as that child.
    """
    parents: dict[int, int] = {}  # the index of each row's parent; -1 at the top
    open_at: dict[int, int] = {}
    for at, row in enumerate(rows):
        parents[at] = open_at.get(row.depth - 1, -1)
        open_at[row.depth] = at
    inside = Counter(parents.values())
    single = {parents[at] for at, row in enumerate(rows) if row.kind == "module" and inside[parents[at]] == 1}
    remaining = [at for at, row in enumerate(rows) if not (row.kind == "module" and at in single)]
    few = limit is not None and limit <= FEW_ROWS
    frames = {at for at in remaining if few and inside[at] and min(_shares(rows[at])) > MAIN_SHARE}
    ranked = sorted(remaining, key=lambda at: (at in frames, -max(_shares(rows[at]))))
    shown = sorted(ranked[:limit])
    visible, depths = [], {-1: -1}  # of those that are shown, and of what is around all of them
    for at in shown:
        above = parents[at]
        while above not in depths:
            above = parents[above]
        depths[at] = depths[above] + 1
        visible.append((rows[at], "  " * depths[at], _name(rows[at], rows[above].path if above >= 0 else ())))
    hidden = set(remaining) - set(shown)
    return visible, sum(rows[at].kind == "module" for at in hidden) + sum(rows[at].folded for at in remaining)


def _name(row: ModuleRow, above: Path) -> str:
    """Return the path relative to the visible parent; a number keeps its parent's name."""
    if row.kind in _KIND_NAMES:
        return _KIND_NAMES[row.kind]
    if row.kind == "itself":
        return f"{display_name(row.path[-1])} itself" if row.path else f"{THE_MODEL} itself"
    name = ".".join(row.path[len(above) :])
    return display_name(f"{above[-1]}.{name}" if above and name[:1].isdigit() else name)


def _shares(row: ModuleRow) -> list[float]:
    return [cell.times.share or 0.0 for cell in row.cells if cell and cell.times] or [0.0]


def _notes(columns: Sequence[ModuleColumn], names: Sequence[str]) -> Iterator[str]:
    named = list(zip(columns, names, strict=True))
    if wrong := [name for column, name in named if not column.case.outputs_right]:
        yield f"The outputs of {listing(wrong)} are wrong."
    stated = len(columns) == 1 and columns[0].busy  # the lead has the working time
    if waiting := [name for column, name in named if column.waits and not stated]:
        yield f"The call waits for the host with {few_names(waiting)}: faster modules win nothing there."
    if costly := [f"{name} ({ratio(column.account.cost)})" for column, name in named if column.distorted]:
        yield f"Times of {listing(costly)} are scaled from longer profiled calls: small differences mean nothing."
    if len({(column.case.profile.timed, column.of_kernels) for column in columns}) > 1:
        yield "Columns are timed in different ways: compare shares, not times."
    if lost := [name for column, name in named if column.unknown > MOST_UNKNOWN]:
        yield f"Over {percent(MOST_UNKNOWN)} of {listing(lost)} is of no known module."


def _lead(tree: ModuleTree, table: ModuleTable, names: Sequence[str], unit: str) -> str:
    """Return the GPU's working time in a call, if known for a single column, and the largest module."""
    kernels = all(column.of_kernels for column in tree.columns)
    sentence = answer(table, names, " of the GPU's time" * kernels)
    works, part = _gpu_work(tree.columns[0], unit) if len(tree.columns) == 1 else ("", "")
    if not works:
        return sentence
    subject = "The call waits for the host: the GPU" if tree.columns[0].waits else "The GPU"
    works = f"{subject} works {works} of {TIME_WRITERS[unit](tree.columns[0].account.unprofiled)} {unit} ({part})"
    words, most = _hottest(table, 0)
    first = words.removesuffix(LARGEST_SHARE)
    return f"{works}; of that {first} takes {most}." if first != words else f"{works}. {sentence}"


def answer(table: ModuleTable, names: Sequence[str], whole: str = "") -> str:
    """Return ``layer3 takes most: 34.3 % with pytorch, 27.7 % with tensorrt.``"""
    sentences: dict[str, list[str]] = {}
    for place, name in enumerate(names):
        words, part = _hottest(table, place)
        if words:
            words = words + whole * words.endswith(LARGEST_SHARE)
            sentences.setdefault(words, []).append(f"{part} with {name}" if len(names) > 1 else part)
    return " ".join(f"{words}: {', '.join(parts)}." for words, parts in sentences.items()) or "Nothing has a time."


def _hottest(table: ModuleTable, place: int) -> tuple[str, str]:
    """Return the largest module of a column and its share, below modules that hold most of the time."""
    children = group_by((row for row in table.rows if row.kind == "module"), lambda row: row.path[:-1])
    path: Path = ()
    others: list[ModuleRow] = []
    while inner := sorted(children.get(path, []), key=lambda row: -_share(row, place)):
        first, *rest = inner
        if _share(first, place) < MAIN_SHARE or first.path not in children:
            break
        path, others = first.path, [*others, *rest]
    candidates = [row for row in (*others, *inner[:1]) if _share(row, place) > 0]
    if not candidates:
        return "", ""
    first = max(candidates, key=lambda row: _share(row, place))
    similar = [row for row in inner if _share(row, place) * SIMILAR > _share(first, place)]
    if first is inner[0] and path and len(similar) == len(inner) > 2:
        mean = sum(_share(row, place) for row in similar) / len(similar)
        return f"Each of the {len(similar)} modules of {cut_name('.'.join(path))} takes as much", percent(mean)
    context = f" (beside {cut_name('.'.join(path))})" if first in others else ""
    return f"{cut_name('.'.join(first.path))}{context}{LARGEST_SHARE}", percent(_share(first, place))


def _share(row: ModuleRow, place: int) -> float:
    cell = row.cells[place]
    return (cell.times.share or 0.0) if cell and cell.times else 0.0


def _data(tree: ModuleTree, table: ModuleTable | None) -> dict[str, Any]:
    return {
        "level": tree.level,
        "rule": table and table.rule,
        "depth": table and table.depth,
        "deepest": table and table.deepest,
        "columns": [
            {
                **column.case.data, "level": column.case.profile.level, "share_of": column.runs.share_of,
                "timed": column.case.profile.timed, "clock": column.case.profile.clock,
                "in_modules": column.in_modules, "scale": column.scale,
                "marked": marked, "busy": column.busy, "reconciliation": column.account,
            }
            for column, marked in zip(tree.columns, table.comparable if table else (), strict=True)
        ],
        "rows": [
            {**msgspec.structs.asdict(row), "path": ".".join(row.path)} for row in (table.rows if table else ())
        ],
        "failed": [{**column.case.data, "level": column.level, "reason": column.reason} for column in tree.missing],
        "sentences": [answer(table, [column.case.name for column in tree.columns])] if table else [],
    }  # fmt: skip


def _rows(columns: Sequence[ModuleColumn], table: ModuleTable) -> Iterator[dict[str, Any]]:
    """Yield every cell. Those of one column and depth add up to the whole."""
    for row in table.rows:
        place = {"row": row.kind, "module": ".".join(row.path), "depth": row.depth, "rule": table.rule}
        for column, cell in zip(columns, row.cells, strict=True):
            if cell:
                kind = {"level": column.case.profile.level, "share_of": column.runs.share_of}
                marks = {mark: getattr(cell, mark) for mark in MARKS}
                yield {**column.case.fields, **place, **time_fields(cell.times), **marks, **kind}


# Boxes of modules as wide as their shares of the call. Boxes without children add up to the call. Colours mark parts of
# the model in all cases.

MODULES_CAPTION = (
    "Each box is as wide as its share of the time, with the modules in it beneath; a colour is a part of the model."
)
DEEPEST = 100


def icicle(group: Sequence[ProfiledCase], name: str) -> Iterator[Picture]:
    """Yield a picture of one model, its inputs and machine with a panel per case, if any has modules."""
    tree = tree_of(module_columns(group, None, None), "work", DEEPEST)
    if tree.table:
        panels, values = _module_panels(tree, tree.table)
        yield Picture(name, MODULES_CAPTION, partial(boxes_svg, "where the time goes, by modules", panels), values)


def _module_panels(tree: ModuleTree, table: ModuleTable) -> tuple[list[tuple[str, list[Box]]], list[dict[str, Any]]]:
    """Return the boxes of each case, and all of them as rows."""
    unit = unit_of(column.case for column in tree.columns)
    shown = [(row, len(indent) // 2, name) for row, indent, name in visible_rows(table.rows[1:], None)[0]]
    placed = [(row, depth) for row, depth, _ in shown]
    parts = _parts(placed)
    colours = colours_of(dict.fromkeys(filter(None, parts)), [item for item in PALETTE if item != GREY])
    panels, values = [], []
    for place, case in enumerate(_case_names(tree)):
        drawn = []
        for (row, depth, name), part, (left, wide) in zip(shown, parts, _box_places(placed, place), strict=True):
            cell = row.cells[place]
            times = cell.times if cell else None
            took, share_text = (TIME_WRITERS[unit](times.typical), share(times.share)) if times else ("", "")
            path = plain(".".join(row.path)) if row.kind == "module" else name.removeprefix("· ")
            named = plain(name)
            fits = (f"{named} {percent(wide)}", named, named.rpartition(".")[2])
            about = f"{path}; {took} {unit}; {share_text} of the time"
            drawn.append(Box(left, wide, depth, fits, about, colours.get(part, GREY)))
            values.append({"case": case, "module": path, "depth": depth, f"time ({unit})": took,
                           "left": round(left, 6), "share": round(wide, 6)})  # fmt: skip
        whole = table.rows[0].cells[place]
        took = f" · {TIME_WRITERS[unit](whole.times.typical)} {unit}" if whole and whole.times else ""
        whole_name = "all kernels" if tree.columns[place].of_kernels else "the call"
        panels.append((f"{case}{took}, {whole_name}", drawn))
    return panels, values


def _parts(rows: Sequence[tuple[ModuleRow, int]]) -> list[str]:
    """Return the part of the model per row: its outermost module below those that hold most of the time."""
    parts: list[str] = []
    above: dict[int, str] = {}
    for row, depth in rows:
        part = above.get(depth - 1, "") if depth else ""
        if not part and row.kind == "module" and min(_shares(row)) <= MAIN_SHARE:
            part = ".".join(row.path)
        above[depth] = part
        parts.append(part)
    return parts


def _box_places(rows: Sequence[tuple[ModuleRow, int]], place: int) -> list[tuple[float, float]]:
    """Return the begin and width of each row's box in a column, as shares of the whole.

    A parent is as wide as its children, and all together fill the whole.
    """
    widths: list[float] = []
    below: dict[int, float] = {}
    for row, depth in reversed(rows):
        widths.append(below.pop(depth + 1, 0.0) or max(_share(row, place), 0.0))
        below[depth] = below.get(depth, 0.0) + widths[-1]
    whole = below.get(0) or 1.0
    left: dict[int, float] = {}
    places = []
    for (_, depth), wide in zip(rows, reversed(widths), strict=True):
        begin = left.get(depth, 0.0)
        places.append((begin, wide / whole))
        left[depth], left[depth + 1] = begin + wide / whole, begin
    return places
