"""Profiles with what is beside them, named, and in groups that can be compared: one model, its inputs, one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferlens.analysis.interference.samples import latencies
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Level, Profile
from inferlens.record.profile_store import LoadedProfiles, latest
from inferlens.record.record import Record, machine_name
from inferlens.units import listing, plural
from inferlens.views.plain import plain


@dataclass(frozen=True)
class Profiled:
    """One profile, the record of its case that was timed untouched, and a name that tells it from its like."""

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


def groups(loaded: LoadedProfiles, level: Level | None = None) -> list[list[Profiled]]:
    """The latest profiles, named, in groups that can be compared.

    Args:
        loaded: what could be read.
        level: of each case the profile of this level alone, or if it has none, another that says what there is instead;
            ``None``: those of every level.
    """
    found: dict[tuple[object, ...], list[Profiled]] = {}
    for one in latest(loaded.profiles) if level is None else _at(level, latest(loaded.profiles)):
        profiled = Profiled(one, loaded.records.get(one.id))
        found.setdefault(profiled.group, []).append(profiled)
    return [named(group) for group in found.values()]


def _at(level: Level, profiles: Sequence[Profile]) -> list[Profile]:
    """One profile of each case on each machine, of that level if there is one."""
    found: dict[tuple[str, str], Profile] = {}
    for one in profiles:
        key = one.case.digest, machine_name(one.environment)
        if key not in found or one.level == level:
            found[key] = one
    return list(found.values())


def referenced(group: Sequence[Profiled], named: str | None) -> list[Profiled]:
    """The group with its reference first: the one that ``named`` means, else plain PyTorch, else the first that ran.

    Raises:
        InferlensError: if ``named`` fits more than one.
    """
    able = [one for one in group if one.profile.status == "ok"] or list(group)
    plain_ones = [one for one in able if (one.profile.case.backend_label, _plainness(one)) == ("pytorch", 0)]
    chosen = (plain_ones or able)[0]
    fitting = [one for one in group if named and _fits(one, named)]
    exact = [one for one in fitting if named in (one.name, one.profile.case.label)]
    if fitting:
        chosen = (exact or fitting)[0]
        if len(exact or fitting) > 1:
            labels = listing([f"'{one.profile.case.label}'" for one in fitting[:12]])
            raise InferlensError(f"The reference '{named}' fits {len(fitting)} cases.", expected=f"one of {labels}")
    return [chosen, *(one for one in group if one is not chosen)]


def check_reference(every: Sequence[Profiled], named: str | None) -> None:
    """Refuses a reference that is nowhere.

    Raises:
        InferlensError: if ``named`` fits no profile.
    """
    if named and not any(_fits(one, named) for one in every):
        labels = listing(list(dict.fromkeys(f"'{one.profile.case.label}'" for one in every))[:12])
        raise InferlensError(f"No case fits the reference '{named}'.", expected=f"one of {labels}")


def _plainness(one: Profiled) -> int:
    case = one.profile.case
    return (case.precision != "fp32") + bool(case.options) + (case.threads is not None)


def _fits(one: Profiled, named: str) -> bool:
    case = one.profile.case
    words = {*case.label.split(), *one.name.split(), case.backend}
    return set(named.split()) <= words


def named(group: Sequence[Profiled], *, tell_level: bool = True) -> list[Profiled]:
    """Names without what all of a group share, and with a number where they are equal.

    Args:
        group: profiles that can be compared.
        tell_level: whether those of kernels say so where others are of layers.
    """
    devices = {one.profile.case.device for one in group}
    levels = {one.profile.level for one in group}
    seen: dict[str, int] = {}
    named = []
    for one in group:
        case = one.profile.case
        words = [case.backend_label, case.precision, case.device if len(devices) > 1 else ""]
        words += ["" if case.threads is None else plural(case.threads, "thread"), *case.manner, case.options_label]
        words += ["kernels"] if tell_level and len(levels) > 1 and one.profile.level == "kernel" else []
        name = plain(" ".join(word for word in words if word))
        number = seen[name] = seen.get(name, 0) + 1
        named.append(Profiled(one.profile, one.record, f"{name} ({number})" if number > 1 else name))
    return named
