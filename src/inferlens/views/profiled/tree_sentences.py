"""What a tree of modules comes to, in plain sentences: which modules take most, what belongs to none, what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.profile.modules import ModuleRow, ModuleTable
from inferlens.units import listing, milliseconds, percent, ratio
from inferlens.views.profiled.module_columns import Column
from inferlens.views.profiled.sentences import FASTER_WHEN_PROFILED, short

LONGER_THAN_CALLS = "Above 100 % kernels took longer in the profiled process than calls do untouched."
_FEW = 6
_OVERLAP = 0.005  # of all kernels: less comes from the clock's rounding


def sentences(columns: Sequence[Column], table: ModuleTable) -> list[str]:
    """Which module takes most of each column, how much is not attributed, how busy the GPU is, what profiling cost."""
    found = [_most(columns, table), _not_attributed(columns, table), _busy(columns), _side_by_side(columns)]
    return [sentence for sentence in (*found, _cost(columns)) if sentence]


def overlaps(column: Column) -> bool:
    """Whether kernels add up to more than the time in which the GPU was busy, so that some ran side by side."""
    all_ = column.runs.typical(column.runs.sums)
    return column.busy is not None and all_ - column.busy.typical > _OVERLAP * all_


def _most(columns: Sequence[Column], table: ModuleTable) -> str:
    """The module of the first level that takes most, for each column; a single one that takes all says nothing."""
    level = _telling_level(table)
    by_module: dict[str, list[str]] = {}
    for index, column in enumerate(columns):
        shares = [(share, row) for row in level if (share := _share(row, index)) is not None and share > 0]
        if shares:
            share, row = max(shares, key=lambda pair: pair[0])
            path = short(".".join(row.path))
            by_module.setdefault(path, []).append(f"{percent(share)} with {column.case.name}")
    if not by_module:
        return "No module has a time of its own."
    return "; ".join(f"{path} takes most: {listing(each[:_FEW])}" for path, each in by_module.items()) + "."


def _telling_level(table: ModuleTable) -> list[ModuleRow]:
    """The modules of the first level that has more than one."""
    modules = [row for row in table.rows if row.kind == "module"]
    for depth in range(1, table.depth + 1):
        level = [row for row in modules if len(row.path) == depth]
        if len(level) > 1:
            return level
    return modules


def _not_attributed(columns: Sequence[Column], table: ModuleTable) -> str:
    """What belongs to no module: of layers a share of the run, of kernels one of their time."""
    row = next(row for row in table.rows if row.kind == "not attributed")
    only_kernels = all(column.of_kernels for column in columns)
    said = []
    for index, column in enumerate(columns):
        share = _share(row, index)
        if share is not None:
            of = " of the kernels' time" if column.of_kernels and not only_kernels else ""
            said.append(f"{'-' if share < 0 else ''}{percent(share)}{of} with {column.case.name}")
    below = any((_share(row, index) or 0.0) < 0 for index in range(len(columns)))
    why = " Below zero: layers ran at the same time." if below else ""
    of_all = ", of the kernels' time" if only_kernels else ""
    return f"Attributed to no module{of_all}: {listing(said[:_FEW])}.{why}" if said else ""


def _busy(columns: Sequence[Column]) -> str:
    """How much of an untouched call the GPU works: that it was idle while profiled is mostly the profiler's doing."""
    said, above = [], False
    for column in columns:
        untouched, busy = column.account.unprofiled, column.busy
        if busy and untouched:
            share = busy.median / untouched
            of = f"{milliseconds(busy.median)} ms of an untouched call's {milliseconds(untouched)} ms"
            said.append(f"{of} ({percent(share)}) with {column.case.name}")
            above = above or share > 1
    return f"The GPU works {listing(said[:_FEW])}.{f' {LONGER_THAN_CALLS}' if above else ''}" if said else ""


def _side_by_side(columns: Sequence[Column]) -> str:
    names = [column.case.name for column in columns if overlaps(column)]
    said = "Kernels add up to more than the time in which the GPU was busy, as some ran side by side"
    return f"{said}: with {listing(names[:_FEW])}." if names else ""


def _cost(columns: Sequence[Column]) -> str:
    known = [(column.case.name, cost) for column in columns if (cost := column.account.cost) is not None]
    unknown = [column.case.name for column in columns if column.account.cost is None]
    said = [f"{ratio(each)} with {name}" for name, each in known[:_FEW]]
    sentence = ""
    if said:
        sentence = f"A profiled call takes {listing(said)} as long as an untouched one"
        if all(column.of_kernels for column in columns):
            sentence += ", which is the host's time and not the kernels'"
        sentence += "; which backend is fastest is for untouched calls to say. "
        sentence += f"{FASTER_WHEN_PROFILED} " if any(each < 1 for _, each in known) else ""
    if unknown:
        sentence += f"What profiling cost with {listing(unknown[:_FEW])} is not known."
    return sentence.strip()


def _share(row: ModuleRow, index: int) -> float | None:
    cell = row.cells[index]
    return cell.times.share if cell and cell.times else None
