"""Tables of modules: modules as rows, backends as columns, time in the cells, from several profiles of one model.

A module is a path, its names in a tuple; the model itself is the empty path. If a layer was fused from several modules,
no backend reports the time of each. A rule assigns it: ``work`` to the module with most of the layer's FLOPs, ``whole``
to the deepest module that contains all of these modules, and ``split`` divides it among them by their FLOPs.

In every column the leaf rows add up to the whole, in typical times (see :mod:`.profile_table`). For that, an unfolded
module has a row ``itself`` for its own layers, and one row has layers of no known module and the time outside of all
layers. The whole of a column is a run, or the sum of all kernels.

A cell is *fastest* if its interval of the median lies below those of all other columns, and *slower* if it lies above
the reference's, by more than single processes usually differ. Cells with a part that counts elsewhere or has no time
are neither, nor are those of a column with much time in no known module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.profile_table import Runs, RunTimes
from inferlens.analysis.samples import group_by
from inferlens.record.profile import Profile, Work
from inferlens.stats.samples import Array

FUSION_RULES = ("work", "whole", "split")
MOST_UNKNOWN = 0.1  # of a column's time in layers of no known module, for it to be compared
SEPARATION = 1.1  # ratio of times in single processes that is a difference
MOST_WORK = 2 / 3  # the share of a layer's FLOPs from which on a module gets all of the layer
DEEPEST = 64  # deeper names stay together, lest a malicious file take all memory

Path = tuple[str, ...]
FusionRule = Callable[[Sequence[Path]], dict[Path, float]]
ModuleRowKind = Literal["whole", "module", "itself", "not attributed"]


def module_path(module: str) -> Path:
    """Return the names in a module's path; PyTorch allows no dot within a name."""
    return tuple(module.split(".", DEEPEST - 1)) if module else ()


def ancestor(paths: Sequence[Path]) -> Path:
    """Return the deepest module that contains all of ``paths``, at least one."""
    return tuple(commonprefix(list(paths)))  # noqa: RUF071 - of tuples it compares names


def module_flops(work: Work | None) -> dict[Path, float]:
    """Return each module's FLOPs without those of its submodules; empty if unknown."""
    return {module_path(module.module): max(module.flops, 0.0) for module in work.modules} if work else {}


def fusion_rule(name: str, flops: Mapping[Path, float] | None = None) -> FusionRule:
    """Return the function that gives the shares of a layer by the modules that it was fused from."""

    def split(paths: Sequence[Path]) -> dict[Path, float]:
        counts = {path: flops[path] for path in paths if flops and flops.get(path, 0.0) > 0}
        total = sum(counts.values())
        return {path: count / total for path, count in counts.items()} or {path: 1 / len(paths) for path in paths}

    def work(paths: Sequence[Path]) -> dict[Path, float]:
        shares = split(paths)
        dominant = [path for path, share in shares.items() if share >= MOST_WORK]
        return {ancestor(dominant or list(shares)): 1.0}

    return {"work": work, "whole": lambda paths: {ancestor(paths): 1.0}, "split": split}[name]


class Cell(Struct, frozen=True, kw_only=True):
    """One module on one backend."""

    times: RunTimes | None  # of its layers and of those below it; ``None`` if none of them has a time of its own
    shared: bool = False  # a layer was fused with modules outside of this one; ``untimed``: a layer has no time
    untimed: bool = False
    counted_in: str | None = None  # the module that has the time of a fused layer, if nothing remains here
    fastest: bool = False
    slower: bool = False

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval of its median, if its time is that of the complete module and nothing else."""
        if self.times is None or self.shared or self.untimed:
            return None
        low, high = self.times.median_low, self.times.median_high
        return None if low is None or high is None else (low, high)


class ModuleRow(Struct, frozen=True, kw_only=True):
    """One module on all backends."""

    kind: ModuleRowKind
    path: Path = ()
    depth: int
    cells: tuple[Cell | None, ...]  # one for each column; ``None`` if the backend names no such module
    folded: int = 0  # number of modules below it without a row


@dataclass(frozen=True)
class ModuleTable:
    """The tree of one model: rows in pre-order, its shown and its full depth, and which columns are compared."""

    rows: tuple[ModuleRow, ...]
    rule: str
    depth: int
    deepest: int
    comparable: tuple[bool, ...]


@dataclass(eq=False)
class ModuleTimes:
    """Seconds of one profile's modules in each run."""

    runs: Runs
    unknown: Array  # of layers of no known module
    # Of a module's own layers; ``total_seconds``: of these and of the modules below it.
    own_seconds: dict[Path, Array] = field(default_factory=dict)
    total_seconds: dict[Path, Array] = field(default_factory=dict)
    shared: set[Path] = field(default_factory=set)  # modules with a layer that was fused with modules outside of them
    untimed: set[Path] = field(default_factory=set)  # modules with, at any depth, a layer that has no time
    # Modules of fused layers, and which of them, or above them, has most of the layer.
    assigned: dict[Path, Path] = field(default_factory=dict)
    # All modules that layers name, and those above them, in the order of execution.
    order: dict[Path, None] = field(default_factory=dict)

    @property
    def outside(self) -> Array:
        """The part of each run in no layer; zeros if the whole is all kernels."""
        return self.runs.base - self.runs.sums

    def own_cell(self, path: Path) -> Cell | None:
        """Return the cell of a module's own layers."""
        return Cell(times=self.runs.times(self.own_seconds[path])) if path in self.own_seconds else None

    def cell(self, path: Path) -> Cell | None:
        """Return the cell of a module with the modules below it."""
        if path not in self.order:
            return None
        times = self.runs.times(self.total_seconds[path]) if path in self.total_seconds else None
        owner = ".".join(self.assigned[path]) if times is None and path in self.assigned else None
        return Cell(times=times, shared=path in self.shared, untimed=path in self.untimed, counted_in=owner)


def module_times(profile: Profile, runs: Runs, rule: FusionRule) -> ModuleTimes:
    """Return the times of a profile's modules, from its layers or its kernels; fused ones by ``rule``."""
    times = ModuleTimes(runs, np.zeros(runs.count))
    for part, seconds, timed in zip(profile.parts, runs.layers, runs.timed, strict=True):
        paths = list(dict.fromkeys(map(module_path, part.modules)))
        if not paths:
            times.unknown = times.unknown + seconds
            continue
        top = len(ancestor(paths))
        for path in paths:
            times.order.update(dict.fromkeys(_prefixes(path)))
            times.shared.update(prefix for prefix in _prefixes(path) if len(prefix) > top)
            times.untimed.update(() if timed else _prefixes(path))
        shares = rule(paths) if timed else {}
        if shares:
            times.assigned.update(dict.fromkeys(paths, max(shares, key=shares.__getitem__)))
        for path, share in shares.items():
            times.own_seconds[path] = times.own_seconds.get(path, 0.0) + share * seconds
            for prefix in _prefixes(path):
                times.total_seconds[prefix] = times.total_seconds.get(prefix, 0.0) + share * seconds
    return times


def _prefixes(path: Path) -> Iterator[Path]:
    """Return the model, the modules above a module, and the module itself."""
    return (path[:length] for length in range(len(path) + 1))


def module_table(
    profiles: Sequence[tuple[Profile, Runs]],
    *,
    rule: str = "work",
    depth: int | None = None,
    right: Sequence[bool] = (),
) -> ModuleTable:
    """Return the tree of modules of several profiles of one model, the first of which is the reference.

    Args:
        profiles: with their runs, of the same inputs on the same machine; at least one.
        depth: modules deeper than this, 1 or more, are folded into those above; ``None`` folds none.
        right: whether each profile may be compared, as its outputs are right; all may if it is empty.
    """
    # All backends do the same work: one profile that has it is enough for all.
    flops = next((flops for profile, _ in profiles if (flops := module_flops(profile.work))), {})
    fuse = fusion_rule(rule, flops)
    columns = [module_times(profile, runs, fuse) for profile, runs in profiles]
    paths = list(dict.fromkeys(path for column in columns for path in column.order))
    deepest = max(map(len, paths), default=0)
    shown = deepest if depth is None else min(max(depth, 1), deepest)
    same_basis = len({(profile.timed, runs.share_of) for profile, runs in profiles}) == 1
    comparable = tuple(
        same_basis and is_right and (column.runs.share(column.unknown) or 0.0) <= MOST_UNKNOWN
        for column, is_right in zip(columns, right or [True] * len(columns), strict=True)
    )
    rows = tuple(_mark(row, comparable) for row in _rows(columns, paths, shown))
    return ModuleTable(rows, rule, shown, deepest, comparable)


def _mark(row: ModuleRow, comparable: Sequence[bool]) -> ModuleRow:
    """Return the row with its marks; rows of no module have different contents, and so no marks."""
    if row.kind != "module" or len(row.cells) < 2:
        return row
    bounds = [cell.bounds if cell and compare else None for cell, compare in zip(row.cells, comparable, strict=True)]
    cells = list(row.cells)
    for index, (cell, interval) in enumerate(zip(row.cells, bounds, strict=True)):
        if cell and interval:
            rest = bounds[:index] + bounds[index + 1 :]
            fastest = all(other is not None and interval[1] * SEPARATION < other[0] for other in rest)
            slower = bounds[0] is not None and interval[0] > bounds[0][1] * SEPARATION
            cells[index] = replace(cell, fastest=fastest, slower=slower)
    return replace(row, cells=tuple(cells))


def _rows(columns: Sequence[ModuleTimes], paths: Sequence[Path], depth: int) -> Iterator[ModuleRow]:
    """Yield the row of the whole, the rows of the modules below it, and the row of the time in no module."""
    children = group_by(filter(None, paths), lambda path: path[:-1])
    descendants = Counter(prefix for path in paths for prefix in _prefixes(path) if prefix != path)

    def rows_below(path: Path, level: int) -> Iterator[ModuleRow]:
        """Yield the module's own layers if it has any, and its submodules; rows of no module follow the model's."""
        inner = children.get(path, []) if len(path) < depth else []
        if path and not inner:
            return
        cells = tuple(column.own_cell(path) for column in columns)
        if any(cells):
            yield ModuleRow(kind="itself", path=path, depth=level, cells=cells)
        for child in inner:
            cells = tuple(column.cell(child) for column in columns)
            folded = descendants[child] if len(child) == depth else 0
            yield ModuleRow(kind="module", path=child, depth=level, cells=cells, folded=folded)
            yield from rows_below(child, level + 1)  # no deeper than DEEPEST

    def sum_row(kind: ModuleRowKind, level: int, series: Callable[[ModuleTimes], Array]) -> ModuleRow:
        cells = tuple(Cell(times=column.runs.times(series(column))) for column in columns)
        return ModuleRow(kind=kind, depth=level, cells=cells)

    yield sum_row("whole", 0, lambda column: column.runs.base)
    yield from rows_below((), 1)
    yield sum_row("not attributed", 1, lambda column: column.unknown + column.outside)
