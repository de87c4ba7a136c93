"""Which profile of each case is its column in the tree of modules: that of its layers, or that of its kernels.

A table is of kernels where every case that ran has times of kernels that are traced to modules: these are the GPU's
own, whatever profiling cost the host, and so can be compared. Otherwise it is of layers, and a case that has none is a
column of kernels all the same. A level that is asked for is shown alone.

The times of a case's kernels are those of its profile of kernels. Without one, or where too much of these is of no
known module, they are those of its layers, if CUPTI timed the kernels of each layer: the same kernels, summed by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

from inferlens.analysis.profile.kernels import busy_of
from inferlens.analysis.profile.layers import (
    Reconciliation,
    Runs,
    RunTimes,
    reconciliation,
    runs_of,
    times_kernels,
    unknown_share,
)
from inferlens.analysis.profile.modules import MOST_UNKNOWN
from inferlens.record.layer_profile import Level
from inferlens.views.profiled.cases import ProfiledCase, named, referenced

LEVELS: tuple[Level, ...] = get_args(Level)
MOST_COST = 1.5  # of a profiled call over an unprofiled one: beyond, columns are not compared
_OVERLAP = 0.005  # of all kernels: less comes from the clock's rounding


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
        """How long the GPU ran any kernel, the sum of layers that are timed as kernels; shares are of all kernels.

        ``None`` if the column is not of kernels, or that is not known.
        """
        if not self.of_kernels:
            return None
        kernels = self.case.profile.kernels
        busy = busy_of(kernels, self.runs) if kernels else self.runs.sums
        return None if busy is None else self.runs.times(busy)

    @property
    def overlaps(self) -> bool:
        """Whether kernels add up to more than the time in which the GPU was busy, so that some ran side by side."""
        all_ = self.runs.typical(self.runs.sums)
        return self.busy is not None and all_ - self.busy.typical > _OVERLAP * all_

    @property
    def distorted(self) -> bool:
        """Whether profiling made calls so much longer that a module's time may be more of what timed it than its own.

        Times of kernels are the GPU's own, whatever profiling costs the host.
        """
        return not self.of_kernels and self.account.cost is not None and self.account.cost > MOST_COST


@dataclass(frozen=True)
class MissingColumn:
    """A case that is no column: of what level it has nothing, and why."""

    case: ProfiledCase
    level: Level
    why: str


@dataclass(frozen=True)
class ModuleColumns:
    """What one tree is of.

    Attributes:
        level: of the table.
        shown: the reference first.
        elsewhere: names of the cases that the other level has columns of, which are not shown.
    """

    level: Level
    shown: tuple[ModuleColumn, ...]
    missing: tuple[MissingColumn, ...]
    elsewhere: tuple[str, ...]


def columns(group: Sequence[ProfiledCase], level: Level | None, reference: str | None) -> ModuleColumns:
    """The columns of profiles that can be compared, one for each case.

    Args:
        group: profiles of every level that there is, as of :func:`.cases.groups`.
        level: shown alone; ``None``: kernels if every case that ran has them traced to modules, layers otherwise.
        reference: words that name the first column.

    Raises:
        InferlensError: if ``reference`` fits several cases.
    """
    levels: dict[str, dict[Level, ProfiledCase]] = {}
    for one in group:
        levels.setdefault(one.profile.case.digest, {})[one.profile.level] = one
    cases = [_Case(each) for each in levels.values()]
    ran = [case for case in cases if case.column_of("layer") or case.kernels]
    chosen: Level = level or ("kernel" if ran and all(case.traced for case in ran) else "layer")
    found = [case.column(chosen, alone=level is not None) for case in cases]
    mixed = len({one.of_kernels for one in found if isinstance(one, ModuleColumn)}) > 1
    names = named([one.case for one in found], tell_level=mixed)
    found = [replace(one, case=case) for one, case in zip(found, names, strict=True)]
    by_id = {one.case.profile.id: one for one in found}
    ordered = [by_id[case.profile.id] for case in referenced(names, reference)]
    elsewhere = (
        one.case.name
        for one, case in zip(found, cases, strict=True)
        if (case.column_of("layer") if chosen == "kernel" else case.kernels and not getattr(one, "of_kernels", False))
    )
    return ModuleColumns(
        level=chosen,
        shown=tuple(one for one in ordered if isinstance(one, ModuleColumn)),
        missing=tuple(one for one in ordered if isinstance(one, MissingColumn)),
        elsewhere=tuple(elsewhere),
    )


@dataclass(frozen=True)
class _Case:
    """The profiles of a case, by their level; at least one of them is there."""

    profiles: dict[Level, ProfiledCase]

    def column_of(self, level: Level) -> ModuleColumn | None:
        """The column of the profile of a level, with shares of its runs."""
        case = self.profiles.get(level)
        runs = runs_of(case.profile) if case else ""
        return ModuleColumn(case, runs) if case and not isinstance(runs, str) else None

    @cached_property
    def kernels(self) -> ModuleColumn | None:
        """The column of its kernels, from the profile that tells enough of their modules, or else most."""
        able = [
            ModuleColumn(column.case, column.runs.of_kernels())
            for level in ("kernel", "layer")
            if (column := self.column_of(level)) and times_kernels(column.case.profile)
        ]
        return min(able, key=lambda column: max(_unknown(column), MOST_UNKNOWN), default=None)

    @property
    def traced(self) -> bool:
        """Whether its kernels are traced to modules."""
        return self.kernels is not None and _unknown(self.kernels) <= MOST_UNKNOWN

    def column(self, level: Level, *, alone: bool) -> ModuleColumn | MissingColumn:
        """Its column in a table of that level; ``alone``: of no other."""
        order = sorted(LEVELS, key=lambda each: each != level)[: 1 if alone else None]
        for each in order:
            column = self.kernels if each == "kernel" else self.column_of("layer")
            if column:
                return column
        for each in order:
            if case := self.profiles.get(each):
                return MissingColumn(case, each, str(runs_of(case.profile)))
        why = f"It was not profiled at that level; inferlens profile MODEL --level {level} does that."
        return MissingColumn(next(self.profiles[each] for each in LEVELS if each in self.profiles), level, why)


def _unknown(column: ModuleColumn) -> float:
    return unknown_share(column.case.profile, column.runs)
