"""What a tree of modules comes to, in plain sentences: which modules take most, what belongs to none, what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.insight.layers import Reconciliation
from inferlens.insight.modules import ModuleRow, ModuleTable
from inferlens.layer_profile import Level
from inferlens.units import listing, percent, ratio
from inferlens.views.profiled.sentences import FASTER_WHEN_PROFILED, short

_FEW = 6


def sentences(
    names: Sequence[str], accounts: Sequence[Reconciliation], table: ModuleTable, levels: Sequence[Level]
) -> list[str]:
    """Which module takes most of each column, how much is not attributed, what profiling cost."""
    found = [_most(names, table), _not_attributed(names, accounts, table, levels), _cost(names, accounts)]
    return [sentence for sentence in found if sentence]


def _most(names: Sequence[str], table: ModuleTable) -> str:
    """The module of the first level that takes most, for each column; a single one that takes all says nothing."""
    level = _telling_level(table)
    by_module: dict[str, list[str]] = {}
    for index, name in enumerate(names):
        shares = [(share, row) for row in level if (share := _share(row, index)) is not None and share > 0]
        if shares:
            share, row = max(shares, key=lambda pair: pair[0])
            path = short(".".join(row.path))
            by_module.setdefault(path, []).append(f"{percent(share)} with {name}")
    if not by_module:
        return "No module has a time of its own."
    return "; ".join(f"{path} takes most: {listing(columns[:_FEW])}" for path, columns in by_module.items()) + "."


def _telling_level(table: ModuleTable) -> list[ModuleRow]:
    """The modules of the first level that has more than one."""
    modules = [row for row in table.rows if row.kind == "module"]
    for depth in range(1, table.depth + 1):
        level = [row for row in modules if len(row.path) == depth]
        if len(level) > 1:
            return level
    return modules


def _not_attributed(
    names: Sequence[str], accounts: Sequence[Reconciliation], table: ModuleTable, levels: Sequence[Level]
) -> str:
    """What belongs to no module: of layers a share of the run, of kernels one of their time, for the rest is idle."""
    row = next(row for row in table.rows if row.kind == "not attributed")
    unknown = next((row for row in table.rows if row.kind == "unknown module"), None)
    only_kernels = set(levels) == {"kernel"}
    each, all_ = ("", ", of the kernels' time") if only_kernels else (" of the kernels' time", "")
    columns = []
    for index, name in enumerate(names):
        share = _share(row, index)
        if levels[index] == "kernel":
            cell = unknown.cells[index] if unknown else None
            time, total = cell.times.typical if cell and cell.times else 0.0, accounts[index].layers.typical
            columns.append(f"{percent(time / total if total else 0.0)}{each} with {name}")
        elif share is not None:
            columns.append(f"{'-' if share < 0 else ''}{percent(share)} with {name}")
    below = any((_share(row, index) or 0.0) < 0 for index, level in enumerate(levels) if level == "layer")
    why = " Below zero: layers ran at the same time." if below else ""
    return f"Attributed to no module{all_}: {listing(columns[:_FEW])}.{why}" if columns else ""


def _cost(names: Sequence[str], accounts: Sequence[Reconciliation]) -> str:
    known = [(name, account.cost) for name, account in zip(names, accounts, strict=True) if account.cost is not None]
    unknown = [name for name in names if name not in dict(known)]
    said = [f"{ratio(each)} with {name}" for name, each in known[:_FEW]]
    sentence = ""
    if said:
        times = f"A profiled call takes {listing(said)} as long as an untouched one"
        sentence = f"{times}; which backend is fastest is for untouched calls to say. "
        sentence += f"{FASTER_WHEN_PROFILED} " if any(each < 1 for _, each in known) else ""
    if unknown:
        sentence += f"What profiling cost with {listing(unknown[:_FEW])} is not known."
    return sentence.strip()


def _share(row: ModuleRow, index: int) -> float | None:
    cell = row.cells[index]
    return cell.times.share if cell and cell.times else None
