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
    Times,
    reconciliation,
    runs_of,
    times_kernels,
    unknown_share,
)
from inferlens.analysis.profile.modules import MOST_UNKNOWN
from inferlens.errors import InferlensError, suggestion
from inferlens.record.layer_profile import Level
from inferlens.units import listing
from inferlens.views.profiled.cases import Profiled, named, referenced

LEVELS: tuple[Level, ...] = get_args(Level)
MOST_COST = 1.5  # of a profiled call over an untouched one: beyond, columns are not compared


@dataclass(frozen=True)
class Column:
    """A case in the tree of modules; ``runs`` say what its shares are of: of a run, or of all kernels."""

    case: Profiled
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
    def busy(self) -> Times | None:
        """How long the GPU ran any kernel, the sum of layers that are timed as kernels; shares are of all kernels.

        ``None`` if the column is not of kernels, or that is not known.
        """
        if not self.of_kernels:
            return None
        kernels = self.case.profile.kernels
        busy = busy_of(kernels, self.runs) if kernels else self.runs.sums
        return None if busy is None else self.runs.times(busy)

    @property
    def distorted(self) -> bool:
        """Whether profiling made calls so much longer that a module's time may be more of what timed it than its own.

        Times of kernels are the GPU's own, whatever profiling costs the host.
        """
        return not self.of_kernels and self.account.cost is not None and self.account.cost > MOST_COST


@dataclass(frozen=True)
class Missing:
    """A case that is no column: of what level it has nothing, why, and what to try; all of it sentences."""

    case: Profiled
    level: Level
    why: str
    hint: str


@dataclass(frozen=True)
class Columns:
    """What one tree is of.

    Attributes:
        level: of the table.
        shown: the reference first.
        by_layers: names of the cases that can be columns of layers.
        by_kernels: of those that can be columns of kernels, and whether their kernels are traced to modules.
    """

    level: Level
    shown: tuple[Column, ...]
    missing: tuple[Missing, ...]
    by_layers: tuple[str, ...]
    by_kernels: dict[str, bool]


def check_level(level: str | None) -> None:
    """Refuses a level that there is not.

    Raises:
        InferlensError: if there is no such level.
    """
    if level is not None and level not in LEVELS:
        hint = suggestion(level, LEVELS)
        raise InferlensError(f"There are no modules of the level '{level}'.", expected=listing(LEVELS), hint=hint)


def columns(group: Sequence[Profiled], level: Level | None, reference: str | None) -> Columns:
    """The columns of profiles that can be compared, one for each case.

    Args:
        group: profiles of every level that there is, as of :func:`.cases.groups`.
        level: shown alone; ``None``: kernels if every case that ran has them traced to modules, layers otherwise.
        reference: words that name the first column.

    Raises:
        InferlensError: if ``reference`` fits several cases.
    """
    cases = _cases(group)
    ran = [case for case in cases if case.by_layers or case.by_kernels]
    chosen: Level = level or ("kernel" if ran and all(case.traced for case in ran) else "layer")
    found = [case.column(chosen, alone=level is not None) for case in cases]
    mixed = len({one.of_kernels for one in found if isinstance(one, Column)}) > 1
    names = named([one.case for one in found], tell_level=mixed)
    found = [replace(one, case=case) for one, case in zip(found, names, strict=True)]
    by_id = {one.case.profile.id: one for one in found}
    ordered = [by_id[case.profile.id] for case in referenced(names, reference)]
    return Columns(
        level=chosen,
        shown=tuple(one for one in ordered if isinstance(one, Column)),
        missing=tuple(one for one in ordered if isinstance(one, Missing)),
        by_layers=tuple(name.name for name, case in zip(names, cases, strict=True) if case.by_layers),
        by_kernels={name.name: case.traced for name, case in zip(names, cases, strict=True) if case.by_kernels},
    )


@dataclass(frozen=True)
class _Case:
    """The profiles of a case; at least one of them is there."""

    layers: Profiled | None
    kernels: Profiled | None

    @cached_property
    def by_layers(self) -> Column | None:
        """The column of its layers."""
        return _column(self.layers)

    @cached_property
    def by_kernels(self) -> Column | None:
        """The column of its kernels, from the profile that tells enough of their modules, or else most."""
        able = [
            Column(column.case, column.runs.of_kernels())
            for column in (_column(self.kernels), self.by_layers)
            if column and times_kernels(column.case.profile)
        ]
        return min(able, key=lambda column: max(_unknown(column), MOST_UNKNOWN), default=None)

    @property
    def traced(self) -> bool:
        """Whether its kernels are traced to modules."""
        return self.by_kernels is not None and _unknown(self.by_kernels) <= MOST_UNKNOWN

    def column(self, level: Level, *, alone: bool) -> Column | Missing:
        """Its column in a table of that level; ``alone``: of no other."""
        order: tuple[Level, ...] = (level, *(each for each in LEVELS if each != level and not alone))
        able = {"layer": self.by_layers, "kernel": self.by_kernels}
        profiles = {"layer": self.layers, "kernel": self.kernels}
        column = next((able[each] for each in order if able[each]), None)
        if column:
            return column
        for each in order:
            if case := profiles[each]:
                return Missing(case, each, str(runs_of(case.profile)), case.profile.hint)
        other = next(case for case in profiles.values() if case)
        why = f"It was not profiled at that level; inferlens profile MODEL --level {level} does that."
        return Missing(other, level, why, hint="")


def _cases(group: Sequence[Profiled]) -> list[_Case]:
    """The profiles of each case, in the order of the first ones."""
    found: dict[str, dict[Level, Profiled]] = {}
    for one in group:
        found.setdefault(one.profile.case.digest, {})[one.profile.level] = one
    return [_Case(each.get("layer"), each.get("kernel")) for each in found.values()]


def _column(case: Profiled | None) -> Column | None:
    runs = runs_of(case.profile) if case else "There is none."
    return None if case is None or isinstance(runs, str) else Column(case, runs)


def _unknown(column: Column) -> float:
    return unknown_share(column.case.profile, column.runs)
