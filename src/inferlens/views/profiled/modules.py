"""Modules as rows, backends as columns, time in the cells: one tree for each model, its inputs and machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferlens.insight.fused import SAID, rule_of
from inferlens.insight.layers import Reconciliation, reconciliation
from inferlens.insight.modules import MOST_UNKNOWN, Cell, ModuleRow, ModuleTable, module_table
from inferlens.insight.runs import part_runs, timed_of
from inferlens.units import ABSENT, listing, milliseconds, percent, plural, ratio
from inferlens.views.columns import FASTEST, plain
from inferlens.views.profiled import check, csv, json, markdown, terminal
from inferlens.views.profiled.cases import Profiled, check_reference, referenced
from inferlens.views.profiled.grid import Grid, Heading, Line
from inferlens.views.profiled.layers import signed_percent
from inferlens.views.profiled.sentences import name_of
from inferlens.views.profiled.tree_sentences import sentences

MOST_ROWS = 40
MOST_COST = 1.5  # of a profiled call over an untouched one: beyond, columns are not compared
SLOWER = "▼"
SHARED = {"whole": "↑", "split": "≈"}
_WORDS = {
    "whole": "whole run",
    "itself": "(itself)",
    "not attributed": "not attributed",
    "unknown module": "layers of no known module",
    "outside layers": "in no layer",
}
_WORDS_OF_KERNELS = {
    **_WORDS,
    "unknown module": "kernels of no known module",
    "outside layers": "in no kernel (GPU idle)",
}
_WORDS_OF_BOTH = {
    **_WORDS,
    "unknown module": "layers and kernels of no known module",
    "outside layers": "in no layer or kernel",
}


@dataclass(frozen=True)
class Tree:
    """The profiles of one model that have layers or kernels, the reference first, their tree, and those without."""

    cases: tuple[Profiled, ...]
    accounts: tuple[Reconciliation, ...]
    table: ModuleTable | None
    failed: tuple[tuple[Profiled, str], ...]


def render(
    groups: Sequence[Sequence[Profiled]],
    format: str = "table",
    *,
    depth: int | None = None,
    reference: str | None = None,
    fused: str = "whole",
    width: int = 120,
    color: bool = False,
) -> str:
    """The modules of each model as text.

    Args:
        groups: profiles that can be compared, of each model.
        format: one of ``FORMATS``.
        depth: how deep to unfold; ``None``: to about :data:`MOST_ROWS` rows in tables for people, all otherwise.
        reference: words that name the case that is the first column.
        fused: what becomes of layers fused from several modules, one of ``insight.fused.RULES``.
        width, color: of the terminal.

    Raises:
        InferlensError: for another format or rule, or a reference that fits none or several.
    """
    check(format)
    rule_of(fused)
    check_reference([one for group in groups for one in group], reference)
    most = None if format in ("csv", "json") else MOST_ROWS
    trees = [tree(referenced(group, reference), fused, depth, most) for group in groups]
    if format == "csv":
        return csv.modules([(each.cases, each.table) for each in trees if each.table])
    if format == "json":
        return json.modules(
            json.model(each.cases, each.accounts, each.table, each.failed, _sentences(each)) for each in trees
        )
    grids = [grid(each) for each in trees]
    return markdown.render(grids) if format == "markdown" else terminal.render(grids, width, color)


def tree(group: Sequence[Profiled], fused: str, depth: int | None, most_rows: int | None) -> Tree:
    """The tree of profiles that can be compared, the first of which is the reference."""
    found = [(one, part_runs(one.profile)) for one in group]
    able = [(one, runs) for one, runs in found if not isinstance(runs, str)]
    table = None
    if able:
        profiles = [(one.profile, runs) for one, runs in able]
        right = [one.right and not distorted(one, reconciliation(runs, one.untouched)) for one, runs in able]
        table = module_table(profiles, rule=fused, depth=depth, most_rows=most_rows, right=right)
    return Tree(
        cases=tuple(one for one, _ in able),
        accounts=tuple(reconciliation(runs, one.untouched) for one, runs in able),
        table=table,
        failed=tuple((one, runs) for one, runs in found if isinstance(runs, str)),
    )


def distorted(one: Profiled, account: Reconciliation) -> bool:
    """Whether profiling made calls so much longer that a module's time may be more of what timed it than of itself.

    Times of kernels are the GPU's own, whatever profiling costs the host.
    """
    return one.profile.level == "layer" and account.cost is not None and account.cost > MOST_COST


def grid(of: Tree) -> Grid:
    """One tree as a table."""
    headline = (of.cases or [one for one, _ in of.failed])[0].headline
    missing = tuple(
        plain(f"{one.name} has no {one.profile.level}s: {why} {one.profile.cure}") for one, why in of.failed
    )
    table = of.table
    if table is None:
        return Grid(headline, "", "module", (), (), sentences=missing)
    words = _words(of)
    lines = [*(_line(row, table, words) for row in table.rows), *_untouched(of)]
    headings = [
        heading
        for place, one in enumerate(of.cases)
        for heading in (
            Heading(one.name, "ms", keep=place),
            Heading("", "share", keep=len(of.cases) + place),
        )
    ]
    clocks = {_times(one) for one in of.cases}
    counts = sorted({account.runs for account in of.accounts})
    runs = plural(counts[0], "run") if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,} runs"
    about = f"{runs} · {listing(sorted(clocks))} · unfolded {table.depth} of {table.deepest} deep"
    return Grid(
        headline=headline,
        about=about,
        first="module",
        headings=tuple(headings),
        lines=tuple(lines),
        notes=(*_legend(of, table), *missing),
        sentences=tuple(_sentences(of)),
    )


def _times(of: Profiled) -> str:
    """What the times of a column are of."""
    return "kernel times" if of.profile.level == "kernel" else f"{timed_of(of.profile)} times"


def _sentences(of: Tree) -> list[str]:
    if of.table is None:
        return []
    levels = [one.profile.level for one in of.cases]
    return sentences([one.name for one in of.cases], of.accounts, of.table, levels)


def _words(of: Tree) -> dict[str, str]:
    """What rows that are no module are called, where the columns are of layers, of kernels, or of both."""
    levels = {one.profile.level for one in of.cases}
    if levels == {"layer"}:
        return _WORDS
    return _WORDS_OF_KERNELS if levels == {"kernel"} else _WORDS_OF_BOTH


def _line(row: ModuleRow, table: ModuleTable, words: dict[str, str]) -> Line:
    name = words.get(row.kind) or name_of(row.path[-1] if row.path else "")
    full = name if row.kind != "module" else name_of(".".join(row.path))
    if row.kind == "itself" and row.path:
        full = f"{name_of('.'.join(row.path))} {name}"
    more = f" +{row.folded}" if row.folded else ""
    cells = [text for cell in row.cells for text in _texts(cell, table.rule)]
    style = {"whole": "bold", "module": ""}.get(row.kind, "dim")
    return Line(name + more, tuple(cells), indent=indent(row.last), full=full + more, style=style)


def _untouched(of: Tree) -> list[Line]:
    """How long a call takes that is not profiled, where that is known of any column."""
    cells = [((milliseconds(account.untouched), ""), ("", "")) for account in of.accounts]
    known = any(account.untouched is not None for account in of.accounts)
    return [Line("untouched call", tuple(text for cell in cells for text in cell))] if known else []


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


def _legend(of: Tree, table: ModuleTable) -> list[str]:
    """What the marks mean that are there."""
    cells = [cell for row in table.rows for cell in row.cells if cell]
    legend = []
    if any(cell.fastest for cell in cells):
        legend.append(f"{FASTEST}: faster than in every other column.")
    if any(cell.slower and not cell.fastest for cell in cells):
        legend.append(f"{SLOWER}: slower than with {of.cases[0].name}.")
    legend = [" ".join(legend)] if legend else []
    if any(cell.shared for cell in cells):
        legend.append(SAID["split equally" if table.rule == "split" and not table.by_flops else table.rule])
    if any(row.folded for row in table.rows):
        folded = sum(row.folded for row in table.rows)
        legend.append(f"+N: modules below it; --depth {table.depth + 1} unfolds more of {folded:,}.")
    wrong = [one.name for one in of.cases if not one.right]
    legend += [f"The outputs of {name} are wrong." for name in wrong]
    out = [name for name, marked in zip([one.name for one in of.cases], table.marked, strict=True) if not marked]
    costly = {
        one.name: account.cost for one, account in zip(of.cases, of.accounts, strict=True) if distorted(one, account)
    }
    if costly and len(of.cases) > 1:
        times = listing([f"{name} ({ratio(cost)})" for name, cost in costly.items()])
        legend.append(f"Not compared with others, because profiling made calls that much longer: {times}.")
    few = [name for name in out if name not in wrong and name not in costly]
    if few and len(of.cases) > 1:
        legend.append(f"Not compared with others: {', '.join(few)} ({_why(of)}).")
    return legend


def _why(of: Tree) -> str:
    if len({timed_of(one.profile) for one in of.cases}) > 1:
        return "some columns are times of the host, some of the GPU"
    if len({one.profile.level for one in of.cases}) > 1:
        return "some columns are times of layers, some of kernels"
    return f"more than {percent(MOST_UNKNOWN)} is in layers of no known module"
