"""Modules as rows, backends as columns, time in the cells: one tree for each model, its inputs and machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferlens.analysis.profile.layers import timed_of
from inferlens.analysis.profile.modules import Cell, ModuleRow, ModuleTable, module_table, rule_of
from inferlens.record.layer_profile import Level
from inferlens.units import ABSENT, listing, milliseconds, plural
from inferlens.views.columns import FASTEST
from inferlens.views.plain import plain
from inferlens.views.profiled import check, csv, json
from inferlens.views.profiled.cases import Profiled, check_reference
from inferlens.views.profiled.grid import Grid, Heading, Line
from inferlens.views.profiled.layers import signed_percent
from inferlens.views.profiled.module_columns import Column, Columns, check_level, columns
from inferlens.views.profiled.module_notes import SHARED, SLOWER, notes
from inferlens.views.profiled.sentences import name_of
from inferlens.views.profiled.tables import drawn
from inferlens.views.profiled.tree_sentences import overlaps, sentences

MOST_ROWS = 40
_WORDS = {
    "whole": "whole run",
    "itself": "(itself)",
    "not attributed": "not attributed",
    "unknown module": "layers of no known module",
    "outside layers": "in no layer",
}
_WORDS_OF_BOTH = {
    **_WORDS,
    "whole": "whole run, or all kernels",
    "unknown module": "layers and kernels of no known module",
}


@dataclass(frozen=True)
class Tree:
    """The columns of one model and their tree; ``None`` without any."""

    columns: Columns
    table: ModuleTable | None


def render(
    groups: Sequence[Sequence[Profiled]],
    format: str = "table",
    *,
    level: Level | None = None,
    depth: int | None = None,
    reference: str | None = None,
    fused: str = "whole",
    width: int = 120,
    color: bool = False,
) -> str:
    """The modules of each model as text.

    Args:
        groups: profiles of every level that can be compared, of each model.
        format: one of ``FORMATS``.
        level: ``layer`` or ``kernel``, whose times are shown; ``None``: as :mod:`.module_columns` says.
        depth: how deep to unfold; ``None``: to about :data:`MOST_ROWS` rows in tables for people, all otherwise.
        reference: words that name the case that is the first column.
        fused: what becomes of layers fused from several modules, one of ``insight.fused.RULES``.
        width, color: of the terminal.

    Raises:
        InferlensError: for another format, level or rule, or a reference that fits none or several.
    """
    check(format)
    check_level(level)
    rule_of(fused)
    check_reference([one for group in groups for one in group], reference)
    most = None if format in ("csv", "json") else MOST_ROWS
    trees = [tree(columns(group, level, reference), fused, depth, most) for group in groups]
    if format == "csv":
        return csv.modules([(each.columns.shown, each.table) for each in trees if each.table])
    if format == "json":
        return json.modules(json.model(each.columns, each.table, _sentences(each)) for each in trees)
    return drawn(map(grid, trees), format, width, color)


def tree(of: Columns, fused: str, depth: int | None, most_rows: int | None) -> Tree:
    """The tree of some columns, the first of which is the reference."""
    if not of.shown:
        return Tree(of, None)
    profiles = [(one.case.profile, one.runs) for one in of.shown]
    right = [one.case.right and not one.distorted for one in of.shown]
    return Tree(of, module_table(profiles, rule=fused, depth=depth, most_rows=most_rows, right=right))


def grid(of: Tree) -> Grid:
    """One tree as a table."""
    shown, table = of.columns.shown, of.table
    headline = (shown or of.columns.missing)[0].case.headline
    missing = tuple(plain(f"{one.case.name} has no {one.level}s: {one.why} {one.hint}") for one in of.columns.missing)
    if table is None:
        return Grid(headline, "", "module", (), (), sentences=missing)
    words = _WORDS_OF_BOTH if any(one.of_kernels for one in shown) else _WORDS
    if all(one.of_kernels for one in shown):
        words = {**_WORDS, "whole": "all kernels"}
    headings = [
        heading
        for place, one in enumerate(shown)
        for heading in (
            Heading(one.case.name, "ms", keep=place),
            Heading("", "share", keep=len(shown) + place),
        )
    ]
    return Grid(
        headline=headline,
        about=_about(shown, table),
        first="module",
        headings=tuple(headings),
        lines=(*(_line(row, table, words) for row in table.rows), *_beneath(shown)),
        notes=(*notes(of.columns, table), *missing),
        sentences=tuple(_sentences(of)),
    )


def _about(shown: Sequence[Column], table: ModuleTable) -> str:
    """How many runs there were, whose times these are, and what shares are of."""
    counts = sorted({one.runs.count for one in shown})
    runs = plural(counts[0], "run") if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,} runs"
    times = {
        "kernel times, as shares of all kernels"
        if one.of_kernels
        else f"{timed_of(one.case.profile)} times of layers, as shares of the whole run"
        for one in shown
    }
    return f"{runs} · {listing(sorted(times))} · unfolded {table.depth} of {table.deepest} deep"


def _sentences(of: Tree) -> list[str]:
    return sentences(of.columns.shown, of.table) if of.table else []


def _line(row: ModuleRow, table: ModuleTable, words: dict[str, str]) -> Line:
    name = words.get(row.kind) or name_of(row.path[-1] if row.path else "")
    full = name if row.kind != "module" else name_of(".".join(row.path))
    if row.kind == "itself" and row.path:
        full = f"{name_of('.'.join(row.path))} {name}"
    more = f" +{row.folded}" if row.folded else ""
    cells = [text for cell in row.cells for text in _texts(cell, table.rule)]
    style = {"whole": "bold", "module": ""}.get(row.kind, "dim")
    return Line(name + more, tuple(cells), indent=indent(row.last), full=full + more, style=style)


def _beneath(shown: Sequence[Column]) -> list[Line]:
    """How long the GPU was busy, where kernels overlap, and how long a call takes that is not profiled, if known."""
    busy = [one.busy.typical if one.busy else None for one in shown]
    untouched = [one.account.unprofiled for one in shown]
    rows = [("GPU busy", busy, any(overlaps(one) for one in shown))]
    rows += [("untouched call", untouched, any(time is not None for time in untouched))]
    return [
        Line(name, tuple(cell for time in times for cell in ((milliseconds(time), ""), ("", ""))))
        for name, times, told in rows
        if told
    ]


def indent(last: Sequence[bool]) -> str:
    """The lines of a tree before a name, from whether the row and those above it are the last of their siblings."""
    if not last:
        return ""
    return "".join("   " if each else "│  " for each in last[:-1]) + ("└─ " if last[-1] else "├─ ")


def _texts(cell: Cell | None, rule: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Time and share of a cell, with its marks."""
    if cell is None:
        return (ABSENT, ""), (ABSENT, "")
    mark = FASTEST if cell.fastest else SLOWER if cell.slower else ""
    mark = SHARED[rule] if cell.shared else mark
    if cell.times is None:
        return (ABSENT, f" {mark}" if mark else ""), (ABSENT, "")
    share = ABSENT if cell.times.share is None else signed_percent(cell.times.share)
    return (milliseconds(cell.times.typical), f" {mark}" if mark else ""), (share, "")
