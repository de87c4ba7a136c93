"""Modules as rows, backends as columns, time in the cells: one tree for each model, its inputs and machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inferlens.analysis.profile.layers import clock_of, timed_of
from inferlens.analysis.profile.modules import MOST_UNKNOWN, RULES, Cell, ModuleRow, ModuleTable, module_table
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Level
from inferlens.units import ABSENT, listing, milliseconds, percent, plural, ratio
from inferlens.views.columns import FASTEST
from inferlens.views.profiled.cases import CASE, TIMES, ProfiledCase, check_reference, time_fields
from inferlens.views.profiled.module_columns import LEVELS, ModuleColumn, ModuleColumns, columns
from inferlens.views.profiled.sentences import name_of, short
from inferlens.views.table import Column, Document, Line, Table, share

SCHEMA = "inferlens.modules/1"
MOST_ROWS = 40
MARKS = ("shared", "untimed", "fastest", "slower")
CSV = (*CASE, "row", "module", "depth", "rule", *TIMES, *MARKS, "level", "share_of")
SLOWER = "▼"
SHARED = {"whole": "↑", "split": "≈"}
SHARED_NOTES = {
    "whole": "↑: fused with modules outside of this row; that time is in the deepest module that contains all of them.",
    "split": "≈: a layer fused from several modules, split among them by their FLOPs: a convention, no measurement.",
    "split equally": "≈: a layer fused from several modules, split equally among them: a convention, no measurement.",
}
_FEW = 6
_NAMES = {
    "itself": "(itself)",
    "not attributed": "not attributed",
    "unknown module": "layers of no known module",
    "outside layers": "in no layer",
}


@dataclass(frozen=True)
class ModuleTree:
    """The columns of one model and their tree; ``None`` without any."""

    columns: ModuleColumns
    table: ModuleTable | None


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
        level: ``layer`` or ``kernel``, whose times are shown; ``None``: as :mod:`.module_columns` says.
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

    def trees(most_rows: int | None = None) -> list[ModuleTree]:
        return [tree(columns(group, level, reference), fused, depth, most_rows) for group in groups]

    return Document(
        blocks=lambda: [_table(each) for each in trees(MOST_ROWS)],
        data=lambda: {"schema": SCHEMA, "models": [_data(each) for each in trees()]},
        csv=lambda: (CSV, _lines(trees())),
    )


def tree(of: ModuleColumns, fused: str = "whole", depth: int | None = None, most_rows: int | None = None) -> ModuleTree:
    """The tree of some columns, the first of which is the reference."""
    if not of.shown:
        return ModuleTree(of, None)
    profiles = [(one.case.profile, one.runs) for one in of.shown]
    right = [one.case.right and not one.distorted for one in of.shown]
    return ModuleTree(of, module_table(profiles, rule=fused, depth=depth, most_rows=most_rows, right=right))


def _table(of: ModuleTree) -> Table:
    shown, table = of.columns.shown, of.table
    title = (shown or of.columns.missing)[0].case.headline
    missing = [f"{one.case.name} has no {one.level}s: {one.why} {one.case.profile.hint}" for one in of.columns.missing]
    if table is None:
        return Table(title, "module", (), (), sentences=missing)
    kernels = {one.of_kernels for one in shown}
    whole = "whole run" if kernels == {False} else "all kernels" if kernels == {True} else "whole run, or all kernels"
    headings = [
        heading
        for place, one in enumerate(shown)
        for heading in (Column("", one.case.name, "ms", keep=place), Column("", "", "share", keep=len(shown) + place))
    ]
    counts = sorted({one.runs.count for one in shown})
    runs = plural(counts[0], "run") if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,} runs"
    times = {
        "kernel times, as shares of all kernels"
        if one.of_kernels
        else f"{timed_of(one.case.profile)} times of layers, as shares of the whole run"
        for one in shown
    }
    lines = [_line(row, table, {**_NAMES, "whole": whole}) for row in table.rows]
    return Table(
        title,
        "module",
        headings,
        [*lines, *_beneath(shown)],
        about=f"{runs} · {listing(sorted(times))} · unfolded {table.depth} of {table.deepest} deep",
        notes=[*_legend(shown, table), *_not_compared(shown, table), *_other_level(of.columns), *missing],
        sentences=sentences(shown, table),
    )


def _line(row: ModuleRow, table: ModuleTable, names: dict[str, str]) -> Line:
    name = names.get(row.kind) or name_of(row.path[-1] if row.path else "")
    full = name_of(".".join(row.path)) if row.path else name
    full = f"{full} {name}" if row.kind == "itself" and row.path else full
    more = f" +{row.folded}" if row.folded else ""
    cells = [text for cell in row.cells for text in _times(cell.times if cell else None)]
    marks = [mark for cell in row.cells for mark in (_mark(cell, table.rule), "")]
    style = {"whole": "bold", "module": ""}.get(row.kind, "dim")
    return Line(name + more, cells, marks, indent=indent(row.last), full=full + more, style=style)


def _times(times: Any) -> tuple[str, str]:
    return (milliseconds(times.typical), share(times.share)) if times else (ABSENT, ABSENT)


def _mark(cell: Cell | None, rule: str) -> str:
    if cell is None:
        return ""
    mark = SHARED[rule] if cell.shared else FASTEST if cell.fastest else SLOWER if cell.slower else ""
    return f" {mark}" if mark else ""


def _beneath(shown: Sequence[ModuleColumn]) -> Iterator[Line]:
    """How long the GPU was busy, where kernels overlap, and how long a call takes that is not profiled, if known."""
    busy = [one.busy.typical if one.busy else None for one in shown]
    unprofiled = [one.account.unprofiled for one in shown]
    if any(one.overlaps for one in shown):
        yield Line("GPU busy", [cell for time in busy for cell in (milliseconds(time), "")])
    if any(unprofiled):
        yield Line("unprofiled call", [cell for time in unprofiled for cell in (milliseconds(time), "")])


def indent(last: Sequence[bool]) -> str:
    """The lines of a tree before a name, from whether the row and those above it are the last of their siblings."""
    if not last:
        return ""
    return "".join("   " if each else "│  " for each in last[:-1]) + ("└─ " if last[-1] else "├─ ")


# Notes


def _legend(shown: Sequence[ModuleColumn], table: ModuleTable) -> Iterator[str]:
    """What the marks mean that are there."""
    cells = [cell for row in table.rows for cell in row.cells if cell]
    if any(cell.fastest for cell in cells):
        yield f"{FASTEST}: faster than in every other column."
    if any(cell.slower and not cell.fastest for cell in cells):
        yield f"{SLOWER}: slower than with {shown[0].case.name}."
    if any(cell.shared for cell in cells):
        yield SHARED_NOTES["split equally" if table.rule == "split" and not table.by_flops else table.rule]
    if folded := sum(row.folded for row in table.rows):
        yield f"+N: modules below it; --depth {table.depth + 1} unfolds more of {folded:,}."


def _not_compared(shown: Sequence[ModuleColumn], table: ModuleTable) -> Iterator[str]:
    """Columns whose outputs are wrong, and those that are not compared with others, with the reason."""
    yield from (f"The outputs of {one.case.name} are wrong." for one in shown if not one.case.right)
    why = f"more than {percent(MOST_UNKNOWN)} is in {'kernels' if shown[0].of_kernels else 'layers'} of no known module"
    if len({one.of_kernels for one in shown}) > 1:
        why = "some columns are times of layers, some of kernels"
    if len({timed_of(one.case.profile) for one in shown}) > 1:
        why = "some columns are times of the host, some of the GPU"
    out = [one for one, marked in zip(shown, table.marked, strict=True) if not marked and one.case.right]
    reasons = {one.case.name: why for one in out} | {
        one.case.name: f"profiling made calls {ratio(one.account.cost)} as long" for one in out if one.distorted
    }
    if reasons and len(shown) > 1:
        yield f"Not compared with others: {listing([f'{name} ({why})' for name, why in reasons.items()])}."


def _other_level(of: ModuleColumns) -> Iterator[str]:
    if of.elsewhere:
        level = "layer" if of.level == "kernel" else "kernel"
        yield f"--level {level} shows the {level}s of {listing(of.elsewhere)}."


# Sentences


def sentences(shown: Sequence[ModuleColumn], table: ModuleTable) -> list[str]:
    """Which module takes most of each column, how much is not attributed, how busy the GPU is, what profiling cost."""
    found = [_most(shown, table), _not_attributed(shown, table), _busy(shown), _cost(shown)]
    return [sentence for sentence in found if sentence]


def _with(said: Iterable[tuple[str, ModuleColumn]]) -> str:
    """What was said of some columns, of the first few."""
    return listing([f"{each} with {column.case.name}" for each, column in said][:_FEW])


def _shares(row: ModuleRow, shown: Sequence[ModuleColumn]) -> list[tuple[float, ModuleColumn]]:
    pairs = zip(row.cells, shown, strict=True)
    return [(cell.times.share, one) for cell, one in pairs if cell and cell.times and cell.times.share is not None]


def _most(shown: Sequence[ModuleColumn], table: ModuleTable) -> str:
    """The module that takes most of each column, of the first level that has more than one."""
    modules = [row for row in table.rows if row.kind == "module"]
    levels = ([row for row in modules if len(row.path) == depth] for depth in range(1, table.depth + 1))
    level = next((rows for rows in levels if len(rows) > 1), modules)
    found: dict[str, list[tuple[str, ModuleColumn]]] = {}
    for column in shown:
        shares = [(part, row) for row in level for part, one in _shares(row, shown) if one is column and part > 0]
        if shares:
            part, row = max(shares, key=lambda pair: pair[0])
            found.setdefault(short(".".join(row.path)), []).append((percent(part), column))
    return "; ".join(f"{path} takes most: {_with(said)}" for path, said in found.items()) + "." if found else (
        "No module has a time of its own."
    )  # fmt: skip


def _not_attributed(shown: Sequence[ModuleColumn], table: ModuleTable) -> str:
    """What belongs to no module: of layers a share of the run, of kernels one of their time."""
    row = next(row for row in table.rows if row.kind == "not attributed")
    shares = _shares(row, shown)
    below = " Below zero: layers ran at the same time." if any(part < 0 for part, _ in shares) else ""
    said = _with((share(part), one) for part, one in shares)
    return f"Attributed to no module: {said}.{below}" if said else ""


def _busy(shown: Sequence[ModuleColumn]) -> str:
    """How much of an unprofiled call the GPU works: that it was idle while profiled is mostly the profiler's doing."""
    said = [
        (f"{milliseconds(one.busy.median)} of {milliseconds(before)} ms ({percent(one.busy.median / before)})", one)
        for one in shown
        if one.busy and (before := one.account.unprofiled)
    ]
    return f"Of an unprofiled call the GPU works {_with(said)}." if said else ""


def _cost(shown: Sequence[ModuleColumn]) -> str:
    known = [(ratio(one.account.cost), one) for one in shown if one.account.cost is not None]
    unknown = [one.case.name for one in shown if one.account.cost is None]
    said = f"A profiled call takes {_with(known)} as long as an unprofiled one." if known else ""
    more = f"What profiling cost with {listing(unknown[:_FEW])} is not known." if unknown else ""
    return f"{said} {more}".strip()


# For programs


def _data(of: ModuleTree) -> dict[str, Any]:
    """One tree, its columns and what could not be one."""
    table = of.table
    return {
        "level": of.columns.level,
        "rule": table.rule if table else None,
        "depth": table.depth if table else None,
        "deepest": table.deepest if table else None,
        "columns": [
            {
                **one.case.data, "level": one.case.profile.level, "share_of": one.runs.share_of,
                "timed": timed_of(one.case.profile), "clock": clock_of(one.case.profile), "marked": marked,
                "busy": one.busy, "reconciliation": one.account,
            }
            for one, marked in zip(of.columns.shown, table.marked if table else (), strict=True)
        ],
        "rows": [
            {**msgspec.structs.asdict(row), "path": ".".join(row.path)} for row in (table.rows if table else ())
        ],
        "failed": [{**one.case.data, "level": one.level, "reason": one.why} for one in of.columns.missing],
        "sentences": sentences(of.columns.shown, table) if table else [],
    }  # fmt: skip


def _lines(trees: Iterable[ModuleTree]) -> Iterator[list[object]]:
    """Every cell of every tree that is not empty; those of a column at the same depth add up to its whole."""
    for of in trees:
        for row in of.table.rows if of.table else ():
            for one, cell in zip(of.columns.shown, row.cells, strict=True):
                if cell and of.table:
                    place = [row.kind, ".".join(row.path), row.depth, of.table.rule]
                    marks = [getattr(cell, mark) for mark in MARKS]
                    kind = [one.case.profile.level, one.runs.share_of]
                    yield [*one.case.fields, *place, *time_fields(cell.times), *marks, *kind]
