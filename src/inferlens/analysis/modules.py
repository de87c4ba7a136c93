"""Modules as rows, backends as columns, time in the cells: several profiles of one model become one tree.

A module is a path, its names in a tuple; the model itself is the empty one. No backend says how much of a layer that
was fused from several modules belongs to each of them, so every rule for that is a convention: ``work`` gives the layer
to the module that does most of its FLOPs, ``whole`` leaves it in the deepest module that contains them all, ``split``
divides it by their FLOPs.

In every column the rows that have no rows below them add up to the whole, in typical times (see :mod:`.layers`). For
that, a module that is unfolded has a row ``itself`` where layers are its own, and what belongs to no module has rows of
its own: layers of which no module is known, and time outside of all layers. The whole of a column is a run, or where
its runs say so, all kernels, outside of which there is nothing.

*Fastest* is a cell whose median's interval lies below those of all other columns, *slower* one whose interval lies
above the reference's, by more than single processes are taken to differ. Cells of which a part is counted elsewhere, or
a layer has no time, are neither, nor are those of a column of which much is of no known module.
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
from inferlens.record.layer_profile import Profile
from inferlens.record.work import Work
from inferlens.stats.samples import Array

# A column with more than this in layers of no known module has too little in its modules to be compared.
MOST_UNKNOWN = 0.1
FUSION_RULES = ("work", "whole", "split")
MOST_WORK = 2 / 3  # of a layer's FLOPs, for one of its modules to count as the one that does the work
SEPARATION = 1.1  # times of a module in single processes that are closer are not called different
# Deeper names stay together: a tree of modules is not deeper, and a file that says so would take all memory.
DEEPEST = 64

Path = tuple[str, ...]
Rule = Callable[[Sequence[Path]], dict[Path, float]]
Kind = Literal["whole", "module", "itself", "not attributed", "unknown module", "outside layers"]


def module_path(module: str) -> Path:
    """The names in a module's path; PyTorch allows no dot within a name."""
    return tuple(module.split(".", DEEPEST - 1)) if module else ()


def ancestor(paths: Sequence[Path]) -> Path:
    """The deepest module that contains all of ``paths``, of which there is at least one."""
    return tuple(commonprefix(list(paths)))  # noqa: RUF071 - of tuples it compares names


def module_flops(work: Work | None) -> dict[Path, float]:
    """Each module's own FLOPs, without those of modules in it; empty where they are not known."""
    return {module_path(module.module): max(module.flops, 0.0) for module in work.modules} if work else {}


def fusion_rule(name: str, flops: Mapping[Path, float] | None = None) -> Rule:
    """What share of a layer goes to which of the modules that it was fused from; ``flops`` are those of the modules."""

    def known(paths: Sequence[Path]) -> dict[Path, float]:
        return {path: flops[path] for path in paths if flops and flops.get(path, 0.0) > 0}

    def split(paths: Sequence[Path]) -> dict[Path, float]:
        own = known(paths)
        total = sum(own.values())
        return {path: item / total for path, item in own.items()} or {path: 1 / len(paths) for path in paths}

    def work(paths: Sequence[Path]) -> dict[Path, float]:
        own = known(paths)
        most = [path for path, item in own.items() if item >= MOST_WORK * sum(own.values())]
        return {ancestor(most or list(own) or paths): 1.0}

    return {"work": work, "whole": lambda paths: {ancestor(paths): 1.0}, "split": split}[name]


class Cell(Struct, frozen=True, kw_only=True):
    """One module on one backend."""

    times: RunTimes | None  # of its layers and of those below it; ``None`` if none of them has a time of its own
    shared: bool = False  # a layer was fused with modules outside of this one; ``untimed``: a layer has no time
    untimed: bool = False
    counted_in: str | None = None  # the module that has the time of a fused layer, where nothing is left here
    fastest: bool = False
    slower: bool = False

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval of its median, if its time is that of the module, all of it and nothing else."""
        if self.times is None or self.shared or self.untimed:
            return None
        low, high = self.times.median_low, self.times.median_high
        return None if low is None or high is None else (low, high)


class ModuleRow(Struct, frozen=True, kw_only=True):
    """One module on all backends."""

    kind: Kind
    path: Path = ()
    depth: int
    cells: tuple[Cell | None, ...]  # one for each column; ``None`` where the backend names no such module
    folded: int = 0  # how many modules below it have no row
    last: tuple[bool, ...] = ()  # whether it is the last of its siblings, for itself and each row above it


@dataclass(frozen=True)
class ModuleTable:
    """The tree of one model: rows in pre-order, how deep it is unfolded and goes, and which columns are compared."""

    rows: tuple[ModuleRow, ...]
    rule: str
    depth: int
    deepest: int
    marked: tuple[bool, ...]


@dataclass(eq=False)
class ModuleTimes:
    """Times of one profile's modules in each run, in seconds.

    Attributes:
        unknown: of layers of which it is not known from which module they came.
        own: of layers that count as a module's own; ``total``: of those, and of the ones of modules below it.
        shared: modules of which a layer was fused with modules outside of them.
        untimed: modules with, at any depth, a layer that has no time.
        given: modules of fused layers, and which of them, or above them, has most of the layer.
        order: all modules that layers name, those above them too, in the order of execution.
    """

    runs: Runs
    unknown: Array
    own: dict[Path, Array] = field(default_factory=dict)
    total: dict[Path, Array] = field(default_factory=dict)
    shared: set[Path] = field(default_factory=set)
    untimed: set[Path] = field(default_factory=set)
    given: dict[Path, Path] = field(default_factory=dict)
    order: dict[Path, None] = field(default_factory=dict)

    @property
    def outside(self) -> Array:
        """What is in no layer of each run, or nothing where the whole is all kernels."""
        return self.runs.base - self.runs.sums

    def cell(self, path: Path, *, own: bool) -> Cell | None:
        """The cell of a module, or of what in it is its own."""
        if own:
            return Cell(times=self.runs.times(self.own[path])) if path in self.own else None
        if path not in self.order:
            return None
        times = self.runs.times(self.total[path]) if path in self.total else None
        given = ".".join(self.assigned[path]) if times is None and path in self.assigned else None
        return Cell(times=times, shared=path in self.shared, untimed=path in self.untimed, counted_in=given)


def module_times(profile: Profile, runs: Runs, rule: Rule) -> ModuleTimes:
    """The times of a profile's modules, from its layers or its kernels; fused ones by ``rule``."""
    module_times = ModuleTimes(runs, np.zeros(runs.count))
    for part, seconds, timed in zip(profile.parts, runs.layers, runs.timed, strict=True):
        paths = list(dict.fromkeys(map(module_path, part.modules)))
        if not paths:
            module_times.unknown = module_times.unknown + seconds
            continue
        top = len(ancestor(paths))
        for path in paths:
            module_times.order.update(dict.fromkeys(_prefixes(path)))
            module_times.shared.update(item for item in _prefixes(path) if len(item) > top)
            module_times.untimed.update(() if timed else _prefixes(path))
        shares = rule(paths) if timed else {}
        if shares:
            module_times.assigned.update(dict.fromkeys(paths, max(shares, key=shares.__getitem__)))
        for path, share in shares.items():
            module_times.own[path] = module_times.own.get(path, 0.0) + share * seconds
            for item in _prefixes(path):
                module_times.total[item] = module_times.total.get(item, 0.0) + share * seconds
    return module_times


def _prefixes(path: Path) -> Iterator[Path]:
    """The model, the modules on the way down, and the module itself."""
    return (path[:length] for length in range(len(path) + 1))


def module_table(
    profiles: Sequence[tuple[Profile, Runs]],
    *,
    rule: str = "work",
    depth: int | None = None,
    right: Sequence[bool] = (),
) -> ModuleTable:
    """The tree of modules of several profiles of one model, the first of which is the reference.

    Args:
        profiles: with their runs, of the same inputs on the same machine; at least one.
        depth: modules deeper than this, 1 or more, are folded into those above; ``None``: none are.
        right: for each profile whether its outputs are right; what is wrong is not marked. Empty: all are.
    """
    # What a model has to do is the same on every backend: one profile that says it serves for all.
    flops = next((found for profile, _ in profiles if (found := module_flops(profile.work))), {})
    chosen = fusion_rule(rule, flops)
    columns = [module_times(profile, runs, chosen) for profile, runs in profiles]
    paths = list(dict.fromkeys(path for one in columns for path in one.order))
    deepest = max(map(len, paths), default=0)
    shown = deepest if depth is None else min(max(depth, 1), deepest)
    ways = {(profile.timed, runs.share_of) for profile, runs in profiles}
    marked = tuple(
        len(ways) == 1 and (not right or right[index]) and (one.runs.share(one.unknown) or 0.0) <= MOST_UNKNOWN
        for index, one in enumerate(columns)
    )
    rows = [_mark(row, marked) for row in _rows(columns, paths, shown)]
    return ModuleTable(rows=tuple(rows), rule=rule, depth=shown, deepest=deepest, comparable=marked)


def _rows(columns: Sequence[ModuleTimes], paths: Sequence[Path], depth: int) -> Iterator[ModuleRow]:
    """The whole, the modules beneath it, and what belongs to none."""
    children: dict[Path, list[Path]] = {}
    for path in filter(None, paths):
        children.setdefault(path[:-1], []).append(path)
    below = Counter(item for path in paths for item in _prefixes(path) if item != path)

    def beneath(path: Path, above: tuple[bool, ...]) -> Iterator[ModuleRow]:
        """The module's own time if it has any, and the modules in it; beneath the model other rows follow them."""
        inner = children.get(path, []) if len(path) < depth else []
        if path and not inner:
            return
        own: list[tuple[Kind, Path]] = [("itself", path)] if any(path in one.own for one in columns) else []
        found = [*own, *(("module", item) for item in inner)]
        for place, (kind, item) in enumerate(found, 1):
            last = (*above, place == len(found) and path != ())
            cells = tuple(one.cell(item, own=kind == "itself") for one in columns)
            folded = below[item] if kind == "module" and len(item) == depth else 0
            yield ModuleRow(kind=kind, path=item, depth=len(last), cells=cells, folded=folded, last=last)
            if kind == "module":  # no deeper than DEEPEST
                yield from beneath(item, last)

    def sums(kind: Kind, last: tuple[bool, ...], series: Callable[[ModuleTimes], Array]) -> ModuleRow:
        outside = kind == "outside layers"  # of which kernels have none
        cells = (None if outside and one.runs.share_of != "run" else Cell(times=one.runs.times(series(one)))
                 for one in columns)  # fmt: skip
        return ModuleRow(kind=kind, depth=len(last), cells=tuple(cells), last=last)

    yield sums("whole", (), lambda one: one.runs.base)
    yield from beneath((), ())
    yield sums("not attributed", (True,), lambda one: one.unknown + one.outside)
    if any(one.runs.share_of == "run" for one in columns) and any(one.unknown.any() for one in columns):
        yield sums("unknown module", (True, False), lambda one: one.unknown)
        yield sums("outside layers", (True, True), lambda one: one.outside)


def _mark(row: ModuleRow, comparable: Sequence[bool]) -> ModuleRow:
    """The row with its marks; rows that are no module have none: what is in them differs."""
    if row.kind != "module" or len(row.cells) < 2:
        return row
    bounds = [cell.bounds if cell and able else None for cell, able in zip(row.cells, comparable, strict=True)]
    cells = list(row.cells)
    for index, (cell, entry) in enumerate(zip(row.cells, bounds, strict=True)):
        if cell and entry:
            others = bounds[:index] + bounds[index + 1 :]
            fastest = all(item is not None and entry[1] * SEPARATION < item[0] for item in others)
            slower = bounds[0] is not None and entry[0] > bounds[0][1] * SEPARATION
            cells[index] = replace(cell, fastest=fastest, slower=slower)
    return replace(row, cells=tuple(cells))
