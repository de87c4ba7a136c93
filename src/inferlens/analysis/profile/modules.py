"""Modules as rows, backends as columns, time in the cells: several profiles of one model become one tree.

What always holds: in every column the rows that have no rows below them add up to the whole, in typical times (see
``runs``). For that, a module that is unfolded has a row ``itself`` where layers are its own, and what belongs to no
module has rows of its own: layers of which no module is known, and time outside of all layers. The whole of a column is
a run, or where its runs say so, all kernels, outside of which there is nothing.

A cell is marked only where the mark can be trusted. *Fastest* is a cell whose median's interval lies below those of all
other columns, *slower* one whose interval lies above the reference's, by more than single processes are taken to
differ. Cells of which a part is counted elsewhere, or a layer has no time, are neither, nor are those of a column of
which much is of no known module. The whole is not marked: which backend is fastest is for untouched calls to say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.profile.attribution import Path, flops_of, rule_of
from inferlens.analysis.profile.module_times import Tally, above, tally
from inferlens.analysis.profile.runs import Array, Runs, Times, timed_of
from inferlens.record.layer_profile import Profile
from inferlens.stats.compare import least_apart, unseen_on

# A column with more than this in layers of no known module has too little in its modules to be compared.
MOST_UNKNOWN = 0.1

Kind = Literal["whole", "module", "itself", "not attributed", "unknown module", "outside layers"]


class Cell(Struct, frozen=True, kw_only=True):
    """One module on one backend.

    Attributes:
        times: of its layers and of those below it; ``None`` if none of them has a time of its own.
        shared: a layer was fused with modules outside of this one: counted further up, or by an equal share.
        untimed: a layer has no time.
    """

    times: Times | None
    shared: bool = False
    untimed: bool = False
    fastest: bool = False
    slower: bool = False

    @property
    def comparable(self) -> bool:
        """Whether its time is that of the module, all of it and nothing else."""
        return self.times is not None and not self.shared and not self.untimed


class ModuleRow(Struct, frozen=True, kw_only=True):
    """One module on all backends.

    Attributes:
        path: names from the model down.
        depth: 0 for the whole.
        folded: how many modules below it have no row.
        last: whether it is the last of its siblings, for itself and each row above it.
        cells: one for each column; ``None`` where the backend names no such module.
    """

    kind: Kind
    path: Path
    depth: int
    cells: tuple[Cell | None, ...]
    folded: int = 0
    last: tuple[bool, ...] = ()


@dataclass(frozen=True)
class ModuleTable:
    """The tree of one model.

    Attributes:
        rows: in pre-order: the whole first, what is not attributed last.
        depth: how deep it is unfolded; ``deepest`` is how deep it goes.
        marked: for each column, whether its cells can be compared with others.
        by_flops: whether the modules' FLOPs are known, by which the rule ``split`` then goes.
    """

    rows: tuple[ModuleRow, ...]
    rule: str
    depth: int
    deepest: int
    marked: tuple[bool, ...]
    by_flops: bool = False


def module_table(
    profiles: Sequence[tuple[Profile, Runs]],
    *,
    rule: str = "whole",
    depth: int | None = None,
    most_rows: int | None = None,
    right: Sequence[bool] = (),
) -> ModuleTable:
    """The tree of modules of several profiles of one model, the first of which is the reference.

    Args:
        profiles: with their runs, of the same inputs on the same machine; at least one.
        rule: what becomes of fused layers, one of ``fused.RULES``.
        depth: modules deeper than this, 1 or more, are folded into those above; ``None``: as ``most_rows`` says.
        most_rows: unfold only as deep as gives no more rows of modules than these, but the first level at least;
            ``None``: all.
        right: for each profile whether its outputs are right; what is wrong is not marked. Empty: all are.

    Raises:
        InferlensError: if there is no such rule.
    """
    # What a model has to do is the same on every backend: one profile that tells it serves for all.
    flops = next((found for profile, _ in profiles if (found := flops_of(profile.work))), {})
    chosen = rule_of(rule, flops)
    tallies = [tally(profile, runs, chosen) for profile, runs in profiles]
    paths = list(dict.fromkeys(path for one in tallies for path in one.order))
    deepest = max(map(len, paths), default=0)
    shown = _depth(paths, deepest, depth, most_rows)
    ways = {(timed_of(profile), runs.share_of) for profile, runs in profiles}
    marked = tuple(
        len(ways) == 1 and (not right or right[index]) and (one.runs.share(one.unknown) or 0.0) <= MOST_UNKNOWN
        for index, one in enumerate(tallies)
    )
    apart = _least_apart({way for way, _ in ways})
    rows = [_marked(row, marked, apart) for row in _rows(tallies, paths, shown)]
    return ModuleTable(rows=tuple(rows), rule=rule, depth=shown, deepest=deepest, marked=marked, by_flops=bool(flops))


def _depth(paths: Sequence[Path], deepest: int, depth: int | None, most_rows: int | None) -> int:
    if depth is not None or most_rows is None:
        return deepest if depth is None else min(max(depth, 1), deepest)
    fitting = (d for d in range(deepest, 1, -1) if sum(len(path) <= d for path in paths) <= most_rows)
    return next(fitting, min(1, deepest))


def _rows(tallies: Sequence[Tally], paths: Sequence[Path], depth: int) -> Iterator[ModuleRow]:
    """The whole, the modules beneath it, and what belongs to none."""
    children: dict[Path, list[Path]] = {}
    below: dict[Path, int] = {}
    for path in paths:
        if path:
            children.setdefault(path[:-1], []).append(path)
        for each in list(above(path))[:-1]:
            below[each] = below.get(each, 0) + 1
    yield ModuleRow(kind="whole", path=(), depth=0, cells=_cells(tallies, lambda one: one.runs.base))
    # Not recursive: the names come from a file.
    waiting: list[tuple[Kind, Path, tuple[bool, ...]]] = _beneath((), tallies, children, depth, (), rest=True)[::-1]
    while waiting:
        kind, path, last = waiting.pop()
        own = kind == "itself"
        cells = tuple(_cell(one, path, own) for one in tallies)
        folded = below.get(path, 0) if len(path) == depth and not own else 0
        yield ModuleRow(kind=kind, path=path, depth=len(last), cells=cells, folded=folded, last=last)
        if not own:
            waiting += _beneath(path, tallies, children, depth, last, rest=False)[::-1]
    yield from _not_attributed(tallies)


def _beneath(
    path: Path,
    tallies: Sequence[Tally],
    children: dict[Path, list[Path]],
    depth: int,
    last: tuple[bool, ...],
    rest: bool,
) -> list[tuple[Kind, Path, tuple[bool, ...]]]:
    """The rows right beneath a module: its own time if it has any, the modules in it; ``rest``: others follow them."""
    inner = children.get(path, []) if len(path) < depth else []
    if not inner and path:
        return []
    found: list[tuple[Kind, Path]] = [("module", each) for each in inner]
    if any(path in one.own for one in tallies):
        found.insert(0, ("itself", path))
    end = len(found) - 1
    return [(kind, each, (*last, index == end and not rest)) for index, (kind, each) in enumerate(found)]


def _not_attributed(tallies: Sequence[Tally]) -> Iterator[ModuleRow]:
    """What belongs to no module, and of what it consists if that is of two kinds."""
    two = any(one.unknown.any() for one in tallies) and any(one.runs.share_of == "run" for one in tallies)
    yield ModuleRow(
        kind="not attributed",
        path=(),
        depth=1,
        cells=_cells(tallies, lambda one: one.unknown + _outside(one)),
        last=(True,),
    )
    if two:
        unknown = _cells(tallies, lambda one: one.unknown)
        outside = [cell if one.runs.share_of == "run" else None
                   for one, cell in zip(tallies, _cells(tallies, _outside), strict=True)]  # fmt: skip
        yield ModuleRow(kind="unknown module", path=(), depth=2, cells=unknown, last=(True, False))
        yield ModuleRow(kind="outside layers", path=(), depth=2, cells=tuple(outside), last=(True, True))


def _outside(one: Tally) -> Array:
    """What is in no layer of each run, or nothing where the whole is all kernels."""
    return one.runs.base - one.runs.sums


def _cells(tallies: Sequence[Tally], series: Callable[[Tally], Array]) -> tuple[Cell, ...]:
    return tuple(Cell(times=one.runs.times(series(one))) for one in tallies)


def _cell(one: Tally, path: Path, own: bool) -> Cell | None:
    if path not in one.order:
        return None
    series = (one.own if own else one.total).get(path)
    times = None if series is None else one.runs.times(series)
    if own:
        return None if times is None else Cell(times=times)
    return Cell(times=times, shared=path in one.shared, untimed=path in one.untimed)


def _least_apart(ways: Collection[str | None]) -> float:
    """The ratio that two columns have to be apart for being of one process each, timed in these ways."""
    unseen = unseen_on("cuda" if ways == {"GPU"} else "cpu")
    return least_apart(unseen, unseen)


def _marked(row: ModuleRow, marked: Sequence[bool], apart: float) -> ModuleRow:
    """The row with its marks; rows that are no module have none: what is in them differs."""
    if row.kind != "module" or len(row.cells) < 2:
        return row
    bounds = [_bounds(cell) if able else None for cell, able in zip(row.cells, marked, strict=True)]
    cells = list(row.cells)
    for index, (cell, mine) in enumerate(zip(row.cells, bounds, strict=True)):
        if cell is None or mine is None:
            continue
        others = bounds[:index] + bounds[index + 1 :]
        fastest = all(other is not None and mine[1] * apart < other[0] for other in others)
        slower = bounds[0] is not None and mine[0] > bounds[0][1] * apart
        cells[index] = replace(cell, fastest=fastest, slower=slower)
    return replace(row, cells=tuple(cells))


def _bounds(cell: Cell | None) -> tuple[float, float] | None:
    """The interval of a cell's median, if the cell can be compared with others."""
    if cell is None or not cell.comparable or cell.times is None:
        return None
    low, high = cell.times.median_low, cell.times.median_high
    return None if low is None or high is None else (low, high)
