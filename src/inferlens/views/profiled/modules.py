"""Modules as rows, backends as columns, time in the cells: one tree for each model, its inputs and machine.

A table is of kernels where every case that ran has times of kernels that are traced to modules: these are the GPU's
own, whatever profiling cost the host, and so can be compared. Otherwise it is of layers, and a case that has none is a
column of kernels all the same. A level that is asked for is shown alone. The times of a case's kernels are those of its
profile of kernels; without one, or where too much of these is of no known module, they are those of its layers, if
CUPTI timed the kernels of each layer: the same kernels, summed by layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Level
from inferlens.units import ABSENT, listing, percent, plural, ratio
from inferlens.views.profiled.cases import ProfiledCase, check_reference, named, referenced, told_apart
from inferlens.views.profiled.profile_tables import (
    CALL,
    CASE,
    PROFILED_CALL,
    THE_MODEL,
    TIMES,
    WRITE,
    few,
    few_names,
    name_of,
    short,
    time_fields,
    timed,
    unit_of,
)
from inferlens.views.table import Column, Document, Line, Table, ruled, share

# Which profile of each case is a column of the table of modules, and what is known of it.

LEVELS: tuple[Level, ...] = get_args(Level)
MOST_COST = 1.5  # of a profiled call over an unprofiled one: beyond, columns are not compared


@dataclass(frozen=True)
class ModuleColumn:
    """A case in the tree of modules; ``runs`` say what its shares are of: of a run, or of all kernels."""

    case: ProfiledCase
    runs: Runs

    @property
    def of_kernels(self) -> bool:
        """Whether its whole is all kernels, rather than a run."""
        return self.runs.share_of == "kernels"

    @cached_property
    def account(self) -> Reconciliation:
        """How its layers or kernels and the whole run fit together; shares are of the run."""
        return reconciliation(replace(self.runs, share_of="run"), self.case.unprofiled)

    @cached_property
    def busy(self) -> RunTimes | None:
        """How long the GPU ran any kernel, or the sum of layers that are timed as such; ``None`` if not known."""
        busy = gpu_busy(self.case.profile, self.runs) if self.of_kernels else None
        return None if busy is None else self.runs.times(busy)

    @cached_property
    def in_modules(self) -> float:
        """The share of its whole that lies in modules."""
        known = [bool(part.modules) for part in self.case.profile.parts]
        return self.runs.share(self.runs.layers[known].sum(axis=0)) or 0.0

    @property
    def scale(self) -> float:
        """By what times of layers or kernels were divided to be those of an unprofiled call."""
        return 1 / self.runs.scale

    @cached_property
    def waits(self) -> bool:
        """Whether the call waits for the host."""
        return waits_for_host(self.case.profile, self.runs, self.case.record)

    @property
    def distorted(self) -> bool:
        """Whether profiling made calls so much longer that a module's time may be mostly what timed it."""
        return not self.of_kernels and (self.account.cost or 0.0) > MOST_COST


def coverage(shown: Sequence[ModuleColumn]) -> str:
    """Return how much of the time lies in modules, and its scale: ``98.1 % to 100 % in modules, scale 1.00x``."""

    def ends(texts: list[str]) -> str:
        return " to ".join(dict.fromkeys((texts[0], texts[-1])))

    shares = ends([percent(value) for value in sorted(one.in_modules for one in shown)])
    return f"{shares} in modules, scale {ends([ratio(value) for value in sorted(one.scale for one in shown)])}"


@dataclass(frozen=True)
class MissingColumn:
    """A case that is no column: of what level it has nothing, and why."""

    case: ProfiledCase
    level: Level
    why: str


@dataclass(frozen=True)
class ModuleTree:
    """The columns of one model, the reference first, and their tree; ``None`` without any column."""

    level: Level
    shown: tuple[ModuleColumn, ...]
    missing: tuple[MissingColumn, ...]
    table: ModuleTable | None = None


def columns(group: Sequence[ProfiledCase], level: Level | None, reference: str | None) -> ModuleTree:
    """The columns of profiles that can be compared, one for each case; ``level`` and ``reference`` as of a document."""
    cases: dict[str, dict[Level, ProfiledCase]] = {}
    for one in group:
        cases.setdefault(one.profile.case.digest, {})[one.profile.level] = one
    able = [_able(profiles) for profiles in cases.values()]
    traced = [
        (of := item.get("kernel")) and of.runs.unattributed_share(of.case.profile) <= MOST_UNKNOWN
        for item in able
        if item
    ]
    chosen: Level = level or ("kernel" if traced and all(traced) else "layer")
    order = [chosen] if level else sorted(LEVELS, key=lambda item: item != chosen)
    found: list[ModuleColumn | MissingColumn] = []
    for profiles, entry in zip(cases.values(), able, strict=True):
        column = next((entry[one] for one in order if one in entry), None)
        found.append(column or _missing(profiles, order))
    mixed = len({one.of_kernels for one in found if isinstance(one, ModuleColumn)}) > 1
    names = named([one.case for one in found], tell_level=mixed)
    by_id = {case.profile.id: replace(one, case=case) for one, case in zip(found, names, strict=True)}
    ordered = [by_id[case.profile.id] for case in referenced(names, reference)]
    return ModuleTree(
        level=chosen,
        shown=tuple(one for one in ordered if isinstance(one, ModuleColumn)),
        missing=tuple(one for one in ordered if isinstance(one, MissingColumn)),
    )


def _able(profiles: Mapping[Level, ProfiledCase]) -> dict[Level, ModuleColumn]:
    """The columns that a case can be: of its layers; of the kernels that tell enough of their modules, or else most."""
    every: dict[Level, ModuleColumn] = {}
    unknown = 2.0
    for level, case in sorted(profiles.items()):  # kernels first
        profile, runs = case.profile, profile_runs(case.profile, None, case.unprofiled)
        if isinstance(runs, str):
            continue
        if level == "layer":
            every[level] = ModuleColumn(case, runs)
        if kernels_alone(profile):
            share = max(runs.unattributed_share(profile), MOST_UNKNOWN)
            if share < unknown:
                unknown, every["kernel"] = share, ModuleColumn(case, runs.with_kernel_shares())
    return every


def _missing(profiles: Mapping[Level, ProfiledCase], order: Sequence[Level]) -> MissingColumn:
    """Why a case is no column of any of the levels."""
    level = next(item for item in (*order, *LEVELS) if item in profiles)
    wanted = level if level in order else order[0]
    return MissingColumn(profiles[level], wanted, str(profile_runs(profiles[level].profile, wanted)))


SCHEMA = "inferlens.modules/1"
LINES, WIDTH = 16, 100  # that fit on a screen beside the headings; its columns
FEW_ROWS = 4  # of a tree: with so few, modules that hold nearly all of the time are left out
MOST_SHARES, MOST_COLUMNS = 3, 7  # columns with shares, and columns at all, unless more are asked for
MOST_IN = 24  # characters of the name of the module that another's time is in
MARKS = ("shared", "untimed", "fastest", "slower")
CSV = (*CASE, "row", "module", "depth", "rule", *TIMES, *MARKS, "level", "share_of")
MAIN, ALIKE = 2 / 3, 1.25  # of the time, for what is in a module to be looked at; modules that differ less are alike
MOST = " has the largest share"
_NAMES = {
    "not attributed": "in no module",
    "unknown module": "· of it in layers of no known module",
    "outside layers": "· of it in no layer",
}


def document(
    groups: Sequence[Sequence[ProfiledCase]],
    *,
    level: Level | None = None,
    depth: int | None = None,
    reference: str | None = None,
    fused: str = "work",
    lines: int = LINES,
    brief: bool = False,
) -> Document:
    """The modules of each model, of profiles of every level that can be compared.

    Args:
        groups: the profiles of each model; the others but the last two are as of the command.
        lines: of a tree and its notes, for people, where no depth is asked for.
        brief: without a title, and with one note; without models of which nothing was profiled, beside others.

    Raises:
        InferlensError: for another level or rule, or a reference that fits none.
    """
    if level is not None:
        check_choice("level of modules", level, LEVELS)
    check_choice("rule for fused layers", fused, FUSION_RULES)
    check_reference([one for group in groups for one in group], reference)
    found = [columns(group, level, reference) for group in groups]

    trees = [tree_of(module_tree, fused, depth) for module_tree in found]

    return Document(
        blocks=lambda: list(_blocks(trees, None if depth else lines, brief=brief)),
        data=lambda: {"schema": SCHEMA, "models": [_data(tree, tree.table) for tree in trees]},
        csv=lambda: (CSV, (line for tree in trees if tree.table for line in _lines(tree.shown, tree.table))),
    )


def tree_of(of: ModuleTree, fused: str, depth: int | None) -> ModuleTree:
    """``of`` with its rows, ``depth`` deep."""
    if not of.shown:
        return of
    profiles = [(one.case.profile, one.runs) for one in of.shown]
    right = [one.case.right and not one.distorted for one in of.shown]
    return replace(of, table=module_table(profiles, rule=fused, depth=depth, right=right))


# For people


def _blocks(trees: Sequence[ModuleTree], most: int | None, *, brief: bool) -> Iterator[Table | str]:
    """The trees, with as many rows as fit into ``most`` lines, or with all of them."""
    drawn = [tree for tree in trees if tree.table]
    if most and len(drawn) > 1:
        shown = _together(trees, most - 3 * brief)
        yield replace(shown, title="", notes=()) if brief else shown
        return
    for of in trees:
        head, names = told_apart([one.case for one in of.shown or of.missing])
        missing = _missing_notes(of)
        if of.table is None and brief and drawn:
            continue  # why it was not profiled was said when it was not
        if of.table is None:
            yield Table(head, "", (), (), sentences=few(missing))
            continue
        unit = unit_of(one.case.profile for one in of.shown)
        said = _lead(of, of.table, names, unit) + f" {_times(of.shown)}." * brief
        notes = few([*_notes(of.shown, names), *missing])[: 1 if brief else None]
        sums = _sums(of, of.table, unit)
        taken = sum(1 + len(text) // WIDTH for text in (head, said, *notes)) + bool(notes) + len(sums)
        calls = plural(min(one.runs.count for one in of.shown), "call")
        if not brief:
            times = _times(of.shown).replace(", scaled to a call without profiling", "")  # the scale is said
            yield Table(head, "", (), (), about=f"{times} · {calls} · {coverage(of.shown)}")
        yield said
        lines = _lines_of(of.table, len(names), unit, most and max(most - taken, 1))
        wholes = ["kernels" if one.of_kernels else "call" for one in of.shown]
        yield Table("", "module", _headings(names, unit, wholes), ruled(lines, sums), notes=notes)


def _together(trees: Sequence[ModuleTree], most: int) -> Table:
    """One table of several trees: of each the whole, and the modules that take most, as many as fit on a screen."""
    drawn = [(of, of.table) for of in trees if of.table]
    head, names = told_apart([of.shown[0].case for of, _ in drawn], backends=False)
    columns = list(dict.fromkeys(name for of, _ in drawn for name in _names_of(of)))
    every = [one for of in trees for one in of.shown]
    waiting = sum(one.waits for one in every)
    notes = [f"{waiting} of {plural(len(every), 'call')} wait for the host: faster modules win nothing there."]
    notes = notes * bool(waiting)
    notes += [note for of in trees for note in (*_notes(of.shown, _names_of(of)), *_missing_notes(of))]
    room = most + 1 - 3 * bool(notes) - 2 * (len(columns) > MOST_SHARES)
    each = max(1, room // len(drawn) - 1)
    lines: list[Line] = []
    left = sum(chosen(table.rows[1:], each)[1] for _, table in drawn)
    unit = unit_of(one.case.profile for of, _ in drawn for one in of.shown)
    for (of, table), name in list(zip(drawn, names, strict=True))[: room // (each + 1)]:
        whole, *calls = _sums(of, table, unit)
        calls = calls[: each > 2]
        modules = _lines_of(table, len(of.shown), unit, each - len(calls), rest=False)
        mine = [replace(whole, name=name), *calls, *modules]
        for number, line in enumerate(mine):
            pairs = dict(zip(_names_of(of), zip(line.cells[::2], line.cells[1::2], strict=True), strict=True))
            cells = [cell for column in columns for cell in pairs.get(column, ("", ""))]
            lines.append(replace(line, cells=cells, indent=f"  {line.indent}" if number else ""))
    lines += [Line(f"{left:,} more: --depth 2", [""] * 2 * len(columns), style="dim", sums=True)] if left else []
    about = f"The modules that take most · {_times(every, shares=False)}"
    notes = few(list(dict.fromkeys(notes)))[:1]
    return Table(head, "module", _headings(columns, unit), lines, about=about, notes=notes)


def _names_of(of: ModuleTree) -> list[str]:
    return told_apart([one.case for one in of.shown])[1]


def _missing_notes(of: ModuleTree) -> list[str]:
    return [f"{one.case.name} has no {one.level}s: {one.why} {one.case.profile.hint}".strip() for one in of.missing]


def _times(shown: Sequence[ModuleColumn], *, shares: bool = True) -> str:
    """Whose time is shown, and what shares are of."""
    shares = shares and len(shown) <= MOST_SHARES
    found = {
        timed([one.case], "kernels" if one.of_kernels else "layers")
        + ", as share of all kernels" * (shares and one.of_kernels)
        for one in shown
    }
    return "; ".join(sorted(found))


def _headings(names: Sequence[str], unit: str, wholes: Sequence[str] = ()) -> list[Column]:
    """A column of times and one of shares for each case, where they are many with what these are of."""
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


def _lines_of(table: ModuleTable, columns: int, unit: str, most: int | None, *, rest: bool = True) -> list[Line]:
    """The modules, and how many others there are."""
    shown, left = chosen(table.rows[1:], most)
    lines = [_line(row, unit, name, indent) for row, indent, name in shown]
    if left and rest:
        deeper = min(table.depth, max((len(row.path) for row, _, _ in shown), default=0)) + 1
        lines.append(Line(f"{left:,} more: --depth {deeper}", [""] * 2 * columns, style="dim", sums=True))
    return lines


def _sums(of: ModuleTree, table: ModuleTable, unit: str) -> list[Line]:
    """The whole, and of kernels the call that they are part of, and how long the GPU works in it."""
    kernels, known = {one.of_kernels for one in of.shown}, all(one.account.unprofiled for one in of.shown)
    titles = [CALL if known else PROFILED_CALL] * (False in kernels) + ["all kernels"] * (True in kernels)
    sums = [replace(_line(table.rows[0], unit, ", or ".join(titles)), style="bold", sums=True)]
    if True in kernels and any(one.account.unprofiled for one in of.shown):
        calls = [cell for one in of.shown for cell in (WRITE[unit](one.account.unprofiled), "")]
        sums.append(Line(CALL, calls, sums=True))
    if any(one.busy and one.account.unprofiled for one in of.shown):
        works = [cell for one in of.shown for cell in _at_work(one, unit)]
        sums.append(Line("GPU at work", works, indent="  ", sums=True))
    return sums


def _at_work(one: ModuleColumn, unit: str) -> tuple[str, str]:
    before, busy = one.account.unprofiled, one.busy and one.busy.median
    return (WRITE[unit](busy), percent(busy / before)) if busy and before else ("", "")


def _line(row: ModuleRow, unit: str, name: str, indent: str = "") -> Line:
    cells = [text for cell in row.cells for text in _cells(cell, unit)]
    full = name_of(".".join(row.path)) if row.kind == "module" else name
    return Line(name, cells, indent=indent, full=full, style="" if row.kind == "module" else "dim")


def _cells(cell: Cell | None, unit: str) -> tuple[str, str]:
    """Time and share; or where it is counted, of a module that was fused into another."""
    if cell and cell.counted_in is not None:
        return f"in {short(cell.counted_in, MOST_IN) if cell.counted_in else THE_MODEL}", ""
    times = cell.times if cell else None
    return (WRITE[unit](times.typical), share(times.share)) if times else (ABSENT, ABSENT)


def chosen(rows: Sequence[ModuleRow], most: int | None) -> tuple[list[tuple[ModuleRow, str, str]], int]:
    """The rows that take most, in their order, with indentation and name; how many modules are not among them.

    ``None``: all. A module in which there is nothing but one other module is shown as that one.
    """
    parents = _parents(rows)
    inside = Counter(parents.values())
    single = {parents[at] for at, row in enumerate(rows) if row.kind == "module" and inside[parents[at]] == 1}
    kept = [at for at, row in enumerate(rows) if not (row.kind == "module" and at in single)]
    frames = {at for at in kept if inside[at] and min(_shares(rows[at])) > MAIN} if most and most <= FEW_ROWS else set()
    ranked = sorted(kept, key=lambda at: (at in frames, -max(_shares(rows[at]))))
    shown = sorted(ranked[:most])
    found, depths = [], {-1: -1}  # of those that are shown, and of what is around all of them
    for at in shown:
        above = parents[at]
        while above not in depths:
            above = parents[above]
        depths[at] = depths[above] + 1
        found.append((rows[at], "  " * depths[at], _name(rows[at], rows[above].path if above >= 0 else ())))
    hidden = set(kept) - set(shown)
    return found, sum(rows[at].kind == "module" for at in hidden) + sum(rows[at].folded for at in kept)


def _parents(rows: Sequence[ModuleRow]) -> dict[int, int]:
    """By each row's place, that of the row it lies in; -1 at the top."""
    found: dict[int, int] = {}
    open_at: dict[int, int] = {}
    for at, row in enumerate(rows):
        found[at] = open_at.get(row.depth - 1, -1)
        open_at[row.depth] = at
    return found


def _name(row: ModuleRow, above: Path) -> str:
    """The path from the module that it is shown in; with that one's name before a number."""
    if row.kind in _NAMES:
        return _NAMES[row.kind]
    if row.kind == "itself":
        return f"{name_of(row.path[-1])} itself" if row.path else f"{THE_MODEL} itself"
    name = ".".join(row.path[len(above) :])
    return name_of(f"{above[-1]}.{name}" if above and name[:1].isdigit() else name)


def _shares(row: ModuleRow) -> list[float]:
    return [cell.times.share or 0.0 for cell in row.cells if cell and cell.times] or [0.0]


def _notes(shown: Sequence[ModuleColumn], names: Sequence[str]) -> Iterator[str]:
    """What weakens the answer."""
    named = list(zip(shown, names, strict=True))
    if wrong := [name for one, name in named if not one.case.right]:
        yield f"The outputs of {listing(wrong)} are wrong."
    said = len(shown) == 1 and shown[0].busy  # how long the GPU works is said above the table then
    if waiting := [name for one, name in named if one.waits and not said]:
        yield f"The call waits for the host with {few_names(waiting)}: faster modules win nothing there."
    if costly := [f"{name} ({ratio(one.account.cost)})" for one, name in named if one.distorted]:
        yield f"Times of {listing(costly)} are scaled from longer profiled calls: small differences mean nothing."
    if len({(one.case.profile.timed, one.of_kernels) for one in shown}) > 1:
        yield "Columns are timed in different ways: compare shares, not times."
    if lost := [name for one, name in named if one.runs.unattributed_share(one.case.profile) > MOST_UNKNOWN]:
        yield f"Over {percent(MOST_UNKNOWN)} of {listing(lost)} is of no known module."


def _lead(of: ModuleTree, table: ModuleTable, names: Sequence[str], unit: str) -> str:
    """How long the GPU works in a call, where that is known of the only column, and what takes most of that."""
    kernels = all(one.of_kernels for one in of.shown)
    said = answer(table, names, " of the GPU's time" * kernels)
    works, part = _at_work(of.shown[0], unit) if len(of.shown) == 1 else ("", "")
    if not works:
        return said
    who = "The call waits for the host: the GPU" if of.shown[0].waits else "The GPU"
    works = f"{who} works {works} of {WRITE[unit](of.shown[0].account.unprofiled)} {unit} ({part})"
    words, most = _hottest(table, 0)
    first = words.removesuffix(MOST)
    return f"{works}; of that {first} takes {most}." if first != words else f"{works}. {said}"


def answer(table: ModuleTable, names: Sequence[str], whole: str = "") -> str:
    """Which module takes most in which columns: ``layer3 takes most: 34.3 % with pytorch, 27.7 % with tensorrt.``"""
    said: dict[str, list[str]] = {}
    for place, name in enumerate(names):
        words, part = _hottest(table, place)
        if words:
            words = words + whole * words.endswith(MOST)
            said.setdefault(words, []).append(f"{part} with {name}" if len(names) > 1 else part)
    return " ".join(f"{words}: {', '.join(parts)}." for words, parts in said.items()) or "Nothing has a time."


def _hottest(table: ModuleTable, place: int) -> tuple[str, str]:
    """What takes most in a column, in words, and its share: of the modules that divide most of the time."""
    children: dict[Path, list[ModuleRow]] = {}
    for row in table.rows:
        if row.kind == "module":
            children.setdefault(row.path[:-1], []).append(row)
    path: Path = ()
    others: list[ModuleRow] = []
    while inner := sorted(children.get(path, []), key=lambda row: -_share(row, place)):
        first, *rest = inner
        if _share(first, place) < MAIN or first.path not in children:
            break
        path, others = first.path, [*others, *rest]
    candidates = [row for row in (*others, *inner[:1]) if _share(row, place) > 0]
    if not candidates:
        return "", ""
    first = max(candidates, key=lambda row: _share(row, place))
    alike = [row for row in inner if _share(row, place) * ALIKE > _share(first, place)]
    if first is inner[0] and path and len(alike) == len(inner) > 2:
        mean = sum(_share(row, place) for row in alike) / len(alike)
        return f"Each of the {len(alike)} modules of {short('.'.join(path))} takes as much", percent(mean)
    beside = f" (beside {short('.'.join(path))})" if first in others else ""
    return f"{short('.'.join(first.path))}{beside}{MOST}", percent(_share(first, place))


def _share(row: ModuleRow, place: int) -> float:
    cell = row.cells[place]
    return cell.times.share or 0.0 if cell and cell.times else 0.0


# For programs


def _data(of: ModuleTree, table: ModuleTable | None) -> dict[str, Any]:
    """One tree, its columns and what could not be one."""
    return {
        "level": of.level,
        "rule": table and table.rule,
        "depth": table and table.depth,
        "deepest": table and table.deepest,
        "columns": [
            {
                **one.case.data, "level": one.case.profile.level, "share_of": one.runs.share_of,
                "timed": one.case.profile.timed, "clock": one.case.profile.clock,
                "in_modules": one.in_modules, "scale": one.scale,
                "marked": marked, "busy": one.busy, "reconciliation": one.account,
            }
            for one, marked in zip(of.shown, table.comparable if table else (), strict=True)
        ],
        "rows": [
            {**msgspec.structs.asdict(row), "path": ".".join(row.path)} for row in (table.rows if table else ())
        ],
        "failed": [{**one.case.data, "level": one.level, "reason": one.why} for one in of.missing],
        "sentences": [answer(table, [one.case.name for one in of.shown])] if table else [],
    }  # fmt: skip


def _lines(shown: Sequence[ModuleColumn], table: ModuleTable) -> Iterator[list[object]]:
    """Every cell of a tree that is not empty; those of a column at the same depth add up to its whole."""
    for row in table.rows:
        for one, cell in zip(shown, row.cells, strict=True):
            if cell:
                place = [row.kind, ".".join(row.path), row.depth, table.rule]
                marks = [getattr(cell, mark) for mark in MARKS]
                kind = [one.case.profile.level, one.runs.share_of]
                yield [*one.case.fields, *place, *time_fields(cell.times), *marks, *kind]
