"""Profiles with what is beside them, named, and in groups that can be compared: one model, its inputs, one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from inferlens.analysis.interference.samples import latencies
from inferlens.analysis.profile.layers import RunTimes
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Level, Profile
from inferlens.record.profile_store import LoadedProfiles, latest
from inferlens.record.record import Record, machine_name
from inferlens.units import listing, plural
from inferlens.views.plain import plain

TOP = 20  # rows that people get if they ask for no other number; programs get all
CASE = ("model", "case", "digest", "profile")  # the first fields of every line of CSV
TIMES = ("typical", "share", "mean", "median", "median_low", "median_high", "p95")


@dataclass(frozen=True)
class ProfiledCase:
    """One profile, the record of its case timed without profiling, and a name that tells it from its like."""

    profile: Profile
    record: Record | None = None
    name: str = ""

    @property
    def unprofiled(self) -> tuple[float, ...]:
        """Latency samples without profiling, in seconds; none where they are not known."""
        return latencies(self.record).samples if self.record else ()

    @property
    def right(self) -> bool:
        """Whether nothing is known against its outputs."""
        return not (self.record and self.record.agreement and self.record.agreement.agrees is False)

    @property
    def group(self) -> tuple[object, ...]:
        """Profiles that share this can be compared."""
        case = self.profile.case
        inputs = self.profile.model.inputs or case.inputs
        return case.model, case.batch, inputs, case.weights, case.seed, machine_name(self.profile.environment)

    @property
    def headline(self) -> str:
        """Model, device and inputs."""
        of = self.profile
        gpu = of.environment.gpus[0].name if of.environment.gpus else "GPU"
        device = of.environment.cpu or "CPU" if of.case.device == "cpu" else gpu
        inputs = ", ".join(map(str, of.model.inputs or of.case.inputs))
        return " · ".join(plain(word)[:200] for word in (of.case.model, device, inputs) if word)

    @property
    def title(self) -> str:
        """Model, device, inputs, and the case."""
        return f"{self.headline} · {self.name}"

    @property
    def fields(self) -> list[object]:
        """The fields of :data:`CASE`."""
        return [self.profile.case.model, self.profile.case.label, self.profile.case.digest, self.profile.id]

    @property
    def data(self) -> dict[str, Any]:
        """What tells a case from others, for JSON."""
        made = self.profile
        return {
            "name": self.name, "case": made.case, "digest": made.case.digest, "profile": made.id, "record": made.record,
        }  # fmt: skip


class Rows(Protocol):
    """What has rows."""

    @property
    def rows(self) -> Sequence[Any]:
        """All of them."""


T = TypeVar("T", bound=Rows)


@dataclass(frozen=True)
class Chosen(Generic[T]):
    """One case, what has its rows or the sentence that says why it has none, and the rows to show, in their order."""

    case: ProfiledCase
    table: T | str
    rows: Sequence[Any] = ()

    @property
    def data(self) -> dict[str, Any]:
        """What JSON has of every table: which case it is, how it ended, its rows, or why it has none."""
        reason = self.table if isinstance(self.table, str) else ""
        return {**self.case.data, "status": self.case.profile.status, "reason": reason, "rows": self.rows}

    @property
    def rest(self) -> list[Any]:
        """The rows that are not shown."""
        shown = {id(row) for row in self.rows}
        return [] if isinstance(self.table, str) else [row for row in self.table.rows if id(row) not in shown]


def chosen(
    case: ProfiledCase, table: T | str, ranked: Callable[[T], Sequence[Any]], sort: str, top: int | None
) -> Chosen[T]:
    """The ``top`` rows of those that are ``ranked``; sorted by ``order``, they are in that of execution."""
    if isinstance(table, str):
        return Chosen(case, table)
    rows = ranked(table)[:top]
    return Chosen(case, table, sorted(rows, key=lambda row: row.place) if sort == "order" else rows)


def by_time(table: Rows) -> list[Any]:
    """The rows that take most first; those without a time last."""
    return sorted(table.rows, key=lambda row: -1.0 if row.times is None else row.times.typical, reverse=True)


def time_fields(times: RunTimes | None) -> list[object]:
    """The fields of :data:`TIMES`, in seconds."""
    return [getattr(times, name, None) for name in TIMES]


def groups(loaded: LoadedProfiles, level: Level | None = None) -> list[list[ProfiledCase]]:
    """The latest profiles, named, in groups that can be compared.

    Args:
        loaded: what could be read.
        level: of each case the profile of this level alone, or if it has none, another that says what there is instead;
            ``None``: those of every level.
    """
    one_each: dict[tuple[object, ...], Profile] = {}
    for one in latest(loaded.profiles):
        key = one.case.digest, machine_name(one.environment), None if level else one.level
        if key not in one_each or one.level == level:
            one_each[key] = one
    found: dict[tuple[object, ...], list[ProfiledCase]] = {}
    for one in one_each.values():
        profiled = ProfiledCase(one, loaded.records.get(one.id))
        found.setdefault(profiled.group, []).append(profiled)
    return [named(group) for group in found.values()]


def of_level(loaded: LoadedProfiles, level: Level | None) -> list[ProfiledCase]:
    """The cases of all groups, one after the other."""
    return [case for group in groups(loaded, level) for case in group]


def referenced(group: Sequence[ProfiledCase], words: str | None) -> list[ProfiledCase]:
    """The group with its reference first: the one that ``words`` name, else the usual one, else the first that ran.

    The usual one is plain (fp32, no options) and of the backend that the others' outputs were checked against.

    Raises:
        InferlensError: if ``words`` fit more than one.
    """
    able = [one for one in group if one.profile.status == "ok"] or list(group)
    checked = [one.record.agreement.reference for one in group if one.record and one.record.agreement]
    usual = {reference.partition(" ")[0] for reference in checked}
    first = next((one for one in able if _is_plain(one) and one.profile.case.backend_label in usual), able[0])
    fitting = [one for one in group if words and _fits(one, words)]
    exact = [one for one in fitting if words in (one.name, one.profile.case.label)]
    if len(exact or fitting) > 1:
        raise InferlensError(f"The reference '{words}' fits {len(fitting)} cases.", expected=_labels(fitting))
    first = (exact or fitting or [first])[0]
    return [first, *(one for one in group if one is not first)]


def check_reference(every: Sequence[ProfiledCase], words: str | None) -> None:
    """Refuses a reference that is nowhere.

    Raises:
        InferlensError: if ``words`` fit no profile.
    """
    if words and not any(_fits(one, words) for one in every):
        raise InferlensError(f"No case fits the reference '{words}'.", expected=_labels(every))


def _labels(cases: Sequence[ProfiledCase]) -> str:
    return f"one of {listing(list(dict.fromkeys(repr(one.profile.case.label) for one in cases))[:12])}"


def _is_plain(one: ProfiledCase) -> bool:
    case = one.profile.case
    return case.precision == "fp32" and not case.options and case.threads is None


def _fits(one: ProfiledCase, words: str) -> bool:
    case = one.profile.case
    return set(words.split()) <= {*case.label.split(), *one.name.split(), case.backend}


def named(group: Sequence[ProfiledCase], *, tell_level: bool = True) -> list[ProfiledCase]:
    """Names without what all of a group share, and with a number where they are equal.

    Args:
        group: profiles that can be compared.
        tell_level: whether those of kernels say so where others are of layers.
    """
    devices = {one.profile.case.device for one in group}
    levels = {one.profile.level for one in group}
    seen: dict[str, int] = {}
    found = []
    for one in group:
        case = one.profile.case
        words = [case.backend_label, case.precision, case.device if len(devices) > 1 else ""]
        words += ["" if case.threads is None else plural(case.threads, "thread"), *case.call_mode, case.options_label]
        words += ["kernels"] if tell_level and len(levels) > 1 and one.profile.level == "kernel" else []
        name = plain(" ".join(word for word in words if word))
        number = seen[name] = seen.get(name, 0) + 1
        found.append(ProfiledCase(one.profile, one.record, f"{name} ({number})" if number > 1 else name))
    return found
