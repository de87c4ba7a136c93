"""Which profile of each case is a column of the table of modules, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

from inferlens.analysis.profile.layers import (
    Reconciliation,
    Runs,
    RunTimes,
    gpu_busy,
    kernels_alone,
    reconciliation,
    runs_of,
    waits_for_host,
)
from inferlens.analysis.profile.modules import MOST_UNKNOWN, ModuleTable
from inferlens.record.layer_profile import Level
from inferlens.units import percent, ratio
from inferlens.views.profiled.cases import ProfiledCase, named, referenced

LEVELS: tuple[Level, ...] = get_args(Level)
MOST_COST = 1.5  # of a profiled call over an unprofiled one: beyond, columns are not compared


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
        """How long the GPU ran any kernel, or the sum of layers that are timed as such; ``None`` if not known."""
        busy = gpu_busy(self.case.profile, self.runs) if self.of_kernels else None
        return None if busy is None else self.runs.times(busy)

    @cached_property
    def in_modules(self) -> float:
        """The share of its whole that lies in modules."""
        known = [bool(part.modules) for part in self.case.profile.parts]
        return self.runs.share(self.runs.layers[known].sum(axis=0)) or 0.0

    @property
    def scale(self) -> float:
        """By what times of layers or kernels were divided to be those of an unprofiled call."""
        return 1 / self.runs.scale

    @cached_property
    def waits(self) -> bool:
        """Whether the call waits for the host."""
        return waits_for_host(self.case.profile, self.runs, self.case.record)

    @property
    def distorted(self) -> bool:
        """Whether profiling made calls so much longer that a module's time may be mostly what timed it."""
        return not self.of_kernels and (self.account.cost or 0.0) > MOST_COST


def coverage(shown: Sequence[ModuleColumn]) -> str:
    """Return how much of the time lies in modules, and its scale: ``98.1 % to 100 % in modules, scale 1.00x``."""

    def ends(texts: list[str]) -> str:
        return " to ".join(dict.fromkeys((texts[0], texts[-1])))

    shares = ends([percent(value) for value in sorted(one.in_modules for one in shown)])
    return f"{shares} in modules, scale {ends([ratio(value) for value in sorted(one.scale for one in shown)])}"


@dataclass(frozen=True)
class MissingColumn:
    """A case that is no column: of what level it has nothing, and why."""

    case: ProfiledCase
    level: Level
    why: str


@dataclass(frozen=True)
class ModuleTree:
    """The columns of one model, the reference first, and their tree; ``None`` without any column."""

    level: Level
    shown: tuple[ModuleColumn, ...]
    missing: tuple[MissingColumn, ...]
    table: ModuleTable | None = None


def columns(group: Sequence[ProfiledCase], level: Level | None, reference: str | None) -> ModuleTree:
    """The columns of profiles that can be compared, one for each case; ``level`` and ``reference`` as of a document."""
    cases: dict[str, dict[Level, ProfiledCase]] = {}
    for one in group:
        cases.setdefault(one.profile.case.digest, {})[one.profile.level] = one
    able = [_able(profiles) for profiles in cases.values()]
    traced = [(of := each.get("kernel")) and of.runs.unknown(of.case.profile) <= MOST_UNKNOWN for each in able if each]
    chosen: Level = level or ("kernel" if traced and all(traced) else "layer")
    order = [chosen] if level else sorted(LEVELS, key=lambda each: each != chosen)
    found: list[ModuleColumn | MissingColumn] = []
    for profiles, each in zip(cases.values(), able, strict=True):
        column = next((each[one] for one in order if one in each), None)
        found.append(column or _missing(profiles, order))
    mixed = len({one.of_kernels for one in found if isinstance(one, ModuleColumn)}) > 1
    names = named([one.case for one in found], tell_level=mixed)
    by_id = {case.profile.id: replace(one, case=case) for one, case in zip(found, names, strict=True)}
    ordered = [by_id[case.profile.id] for case in referenced(names, reference)]
    return ModuleTree(
        level=chosen,
        shown=tuple(one for one in ordered if isinstance(one, ModuleColumn)),
        missing=tuple(one for one in ordered if isinstance(one, MissingColumn)),
    )


def _able(profiles: Mapping[Level, ProfiledCase]) -> dict[Level, ModuleColumn]:
    """The columns that a case can be: of its layers; of the kernels that tell enough of their modules, or else most."""
    every: dict[Level, ModuleColumn] = {}
    unknown = 2.0
    for level, case in sorted(profiles.items()):  # kernels first
        profile, runs = case.profile, runs_of(case.profile, None, case.unprofiled)
        if isinstance(runs, str):
            continue
        if level == "layer":
            every[level] = ModuleColumn(case, runs)
        if kernels_alone(profile):
            share = max(runs.unknown(profile), MOST_UNKNOWN)
            if share < unknown:
                unknown, every["kernel"] = share, ModuleColumn(case, runs.of_kernels())
    return every


def _missing(profiles: Mapping[Level, ProfiledCase], order: Sequence[Level]) -> MissingColumn:
    """Why a case is no column of any of the levels."""
    level = next(each for each in (*order, *LEVELS) if each in profiles)
    wanted = level if level in order else order[0]
    return MissingColumn(profiles[level], wanted, str(runs_of(profiles[level].profile, wanted)))
