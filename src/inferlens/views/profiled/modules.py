"""Modules as rows, backends as columns, time in the cells: one tree for each model, its inputs and machine.

A table is of kernels where every case that ran has times of kernels that are traced to modules: these are the GPU's
own, whatever profiling cost the host, and so can be compared. Otherwise it is of layers, and a case that has none is a
column of kernels all the same. A level that is asked for is shown alone. The times of a case's kernels are those of its
profile of kernels; without one, or where too much of these is of no known module, they are those of its layers, if
CUPTI timed the kernels of each layer: the same kernels, summed by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import msgspec

from inferlens.analysis.profile.kernels import busy_of
from inferlens.analysis.profile.layers import (
    Reconciliation,
    Runs,
    RunTimes,
    reconciliation,
    runs_of,
)
from inferlens.analysis.profile.modules import MOST_UNKNOWN, RULES, Cell, ModuleRow, ModuleTable, module_table
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Level
from inferlens.units import listing, milliseconds, percent, plural, ratio
from inferlens.views.profiled.cases import ProfiledCase, check_reference, named, referenced
from inferlens.views.profiled.profile_tables import CASE, TIMES, name_of, short, time_fields
from inferlens.views.records import FASTEST
from inferlens.views.table import Column, Document, Line, Table, share

SCHEMA = "inferlens.modules/1"
LEVELS: tuple[Level, ...] = get_args(Level)
MOST_ROWS = 40
# How the clock of layers begins whose times are those of the kernels that they launched, and nothing else.
KERNELS_CLOCK = "torch.profiler (CUPTI)"
MOST_COST = 1.5  # of a profiled call over an unprofiled one: beyond, columns are not compared
MARKS = ("shared", "untimed", "fastest", "slower")
CSV = (*CASE, "row", "module", "depth", "rule", *TIMES, *MARKS, "level", "share_of")
SLOWER = "▼"
SHARED = {"whole": "↑", "split": "≈"}
SHARED_NOTES = {
    "whole": "↑: fused with modules outside of this row; that time is in the deepest module that contains all of them.",
    "split": "≈: a layer fused from several modules, split by their FLOPs, or equally where these are not known.",
}
_NAMES = {
    "itself": "(itself)",
    "not attributed": "not attributed",
    "unknown module": "layers of no known module",
    "outside layers": "in no layer",
}


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
        kernels = self.case.profile.kernels
        busy = busy_of(kernels, self.runs) if kernels else self.runs.sums
        return self.runs.times(busy) if self.of_kernels and busy is not None else None

    @property
    def distorted(self) -> bool:
        """Whether profiling made calls so much longer that a module's time may be mostly what timed it."""
        return not self.of_kernels and (self.account.cost or 0.0) > MOST_COST


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


def document(
    groups: Sequence[Sequence[ProfiledCase]],
    *,
    level: Level | None = None,
    depth: int | None = None,
    reference: str | None = None,
    fused: str = "whole",
) -> Document:
    """The modules of each model.

    Args:
        groups: profiles of every level that can be compared, of each model.
        level: ``layer`` or ``kernel``, whose times are shown; ``None``: kernels if every case that ran has them traced
            to modules, layers otherwise.
        depth: how deep to unfold; ``None``: to about :data:`MOST_ROWS` rows for people, all for programs.
        reference: words that name the case that is the first column.
        fused: what becomes of layers fused from several modules, one of ``RULES``.

    Raises:
        InferlensError: for another level or rule, or a reference that fits none or several.
    """
    if level is not None:
        check_choice("level of modules", level, LEVELS)
    check_choice("rule for fused layers", fused, RULES)
    check_reference([one for group in groups for one in group], reference)
    found = [columns(group, level, reference) for group in groups]

    def trees(most_rows: int | None = None) -> list[ModuleTree]:
        return [_tree(each, fused, depth, most_rows) for each in found]

    return Document(
        blocks=lambda: [_table(each, each.table) for each in trees(MOST_ROWS)],
        data=lambda: {"schema": SCHEMA, "models": [_data(each, each.table) for each in trees()]},
        csv=lambda: (CSV, (line for each in trees() if each.table for line in _lines(each.shown, each.table))),
    )


def _tree(of: ModuleTree, fused: str, depth: int | None, most_rows: int | None) -> ModuleTree:
    if not of.shown:
        return of
    profiles = [(one.case.profile, one.runs) for one in of.shown]
    right = [one.case.right and not one.distorted for one in of.shown]
    table = module_table(profiles, rule=fused, depth=depth, most_rows=most_rows, right=right)
    return replace(of, table=table)


# Columns


def columns(group: Sequence[ProfiledCase], level: Level | None, reference: str | None) -> ModuleTree:
    """The columns of profiles that can be compared, one for each case; ``level`` and ``reference`` as of a document.

    Raises:
        InferlensError: if ``reference`` fits several cases.
    """
    cases: dict[str, dict[Level, ProfiledCase]] = {}
    for one in group:
        cases.setdefault(one.profile.case.digest, {})[one.profile.level] = one
    able = [_able(profiles) for profiles in cases.values()]
    traced = [(of := each.get("kernel")) and of.runs.unknown(of.case.profile) <= MOST_UNKNOWN for each in able if each]
    chosen: Level = level or ("kernel" if traced and all(traced) else "layer")
    order = [chosen] if level else sorted(LEVELS, key=lambda each: each != chosen)
    found: list[ModuleColumn | MissingColumn] = []
    for profiles, each in zip(cases.values(), able, strict=True):
        column = next((each[one] for one in order if one in each), None)
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
        profile, runs = case.profile, runs_of(case.profile)
        if isinstance(runs, str):
            continue
        if level == "layer":
            every[level] = ModuleColumn(case, runs)
        if profile.timed == "GPU" and (level == "kernel" or profile.clock.startswith(KERNELS_CLOCK)):
            share = max(runs.unknown(profile), MOST_UNKNOWN)
            if share < unknown:
                unknown, every["kernel"] = share, ModuleColumn(case, runs.of_kernels())
    return every


def _missing(profiles: Mapping[Level, ProfiledCase], order: Sequence[Level]) -> MissingColumn:
    """Why a case is no column of any of the levels."""
    level = next(each for each in (*order, *LEVELS) if each in profiles)
    wanted = level if level in order else order[0]
    return MissingColumn(profiles[level], wanted, str(runs_of(profiles[level].profile, wanted)))


# For people


def _table(of: ModuleTree, table: ModuleTable | None) -> Table:
    shown, first = of.shown, of.shown[0].case if of.shown else of.missing[0].case
    missing = [f"{one.case.name} has no {one.level}s: {one.why} {one.case.profile.hint}" for one in of.missing]
    if table is None:
        return Table(first.headline, "module", (), (), sentences=missing)
    kernels = {one.of_kernels for one in shown}
    whole = "whole run" if kernels == {False} else "all kernels" if kernels == {True} else "whole run, or all kernels"
    headings = [
        heading
        for place, one in enumerate(shown)
        for heading in (
            Column("", one.case.name, "ms", keep=place, bars="beside" if place else "drawn"),
            Column("", "", "share", keep=len(shown) + place, bars="" if place else "beside"),
        )
    ]
    times = {
        "kernel times, as shares of all kernels"
        if one.of_kernels
        else f"{one.case.profile.timed} times of layers, as shares of the whole run"
        for one in shown
    }
    lines = [_line(row, table, {**_NAMES, "whole": whole}) for row in table.rows]
    unprofiled = [one.account.unprofiled for one in shown]
    if any(unprofiled):
        cells = [cell for time in unprofiled for cell in (milliseconds(time), "")]
        lines.append(Line("unprofiled call", cells, sums=True))
    return Table(
        first.headline,
        "module",
        headings,
        lines,
        about=f"{plural(min(one.runs.count for one in shown), 'run')} · {listing(sorted(times))} · "
        f"unfolded {table.depth} of {table.deepest} deep",
        notes=[*_legend(shown, table), *missing],
        sentences=sentences(shown, table),
    )


def _line(row: ModuleRow, table: ModuleTable, names: dict[str, str]) -> Line:
    name = names.get(row.kind) or name_of(row.path[-1] if row.path else "")
    full = name_of(".".join(row.path)) if row.path else name
    full = f"{full} {name}" if row.kind == "itself" and row.path else full
    more = f" +{row.folded}" if row.folded else ""
    times = [cell.times if cell else None for cell in row.cells]
    told = [(each.typical, each.share) if each else (None, None) for each in times]
    cells = [text for time, part in told for text in (milliseconds(time), share(part))]
    marks = []
    for cell in row.cells:
        one = cell or Cell(times=None)
        mark = SHARED[table.rule] if one.shared else FASTEST if one.fastest else SLOWER if one.slower else ""
        marks += [f" {mark}" if mark else "", ""]
    style = {"whole": "bold", "module": ""}.get(row.kind, "dim")
    indent = "".join("   " if each else "│  " for each in row.last[:-1])
    indent += ("└─ " if row.last[-1] else "├─ ") if row.last else ""
    return Line(name + more, cells, marks, indent=indent, full=full + more, style=style, sums=row.kind == "whole")


def _legend(shown: Sequence[ModuleColumn], table: ModuleTable) -> Iterator[str]:
    """What the marks mean that are there, and which columns have none."""
    cells = [cell for row in table.rows for cell in row.cells if cell]
    if any(cell.fastest for cell in cells):
        yield f"{FASTEST}: faster than in every other column."
    if any(cell.slower and not cell.fastest for cell in cells):
        yield f"{SLOWER}: slower than with {shown[0].case.name}."
    if any(cell.shared for cell in cells):
        yield SHARED_NOTES[table.rule]
    if folded := sum(row.folded for row in table.rows):
        yield f"+N: modules below it; --depth {table.depth + 1} unfolds more of {folded:,}."
    if wrong := [one.case.name for one in shown if not one.case.right]:
        yield f"The outputs of {listing(wrong)} are wrong."
    out = [one.case.name for one, marked in zip(shown, table.marked, strict=True) if not marked]
    if out and len(shown) > 1:
        yield (
            f"Not compared with others: {listing(out)}. Such columns have wrong outputs, times of another kind, calls "
            f"that profiling made over {MOST_COST}x as long, or more than {percent(MOST_UNKNOWN)} in no known module."
        )


def sentences(shown: Sequence[ModuleColumn], table: ModuleTable) -> list[str]:
    """Of each column, which module takes most, how much is in none, how busy the GPU is, and what profiling cost."""
    modules = [row for row in table.rows if row.kind == "module"]
    none = next(row for row in table.rows if row.kind == "not attributed")
    depths = [len(row.path) for row in modules]
    depth = next((each for each in sorted(set(depths)) if depths.count(each) > 1), 1)  # the first that has several
    said = []
    for place, one in enumerate(shown):
        shares = {short(".".join(row.path)): _share(row, place) for row in modules if len(row.path) == depth}
        most = max(shares, key=shares.__getitem__, default="")
        before, cost = one.account.unprofiled, one.account.cost
        parts = [f"most takes {most} ({percent(shares[most])})"] if most and shares[most] > 0 else []
        parts.append(f"{share(_share(none, place))} in no module")
        if one.busy and before:
            busy = one.busy.median
            parts.append(f"the GPU works {milliseconds(busy)} of {milliseconds(before)} ms ({percent(busy / before)})")
        parts += [f"a profiled call takes {ratio(cost)} as long as an unprofiled one"] if cost is not None else []
        said.append(f"{one.case.name}: {', '.join(parts)}.")
    return said


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
                "marked": marked, "busy": one.busy, "reconciliation": one.account,
            }
            for one, marked in zip(of.shown, table.marked if table else (), strict=True)
        ],
        "rows": [
            {**msgspec.structs.asdict(row), "path": ".".join(row.path)} for row in (table.rows if table else ())
        ],
        "failed": [{**one.case.data, "level": one.level, "reason": one.why} for one in of.missing],
        "sentences": sentences(of.shown, table) if table else [],
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
