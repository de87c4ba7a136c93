"""Profiles with what is beside them, named, and in groups that can be compared: one model, its inputs, one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferlens.analysis.samples import latencies
from inferlens.record.layer_profile import Level, Profile
from inferlens.record.record import Record, card_name, machine_name
from inferlens.record.store import LoadedProfiles, latest_profiles
from inferlens.spec.case import shown_together
from inferlens.spec.plan import plainness, unknown, words
from inferlens.views.plain import plain


@dataclass(frozen=True)
class ProfiledCase:
    """One profile, the record of its case timed without profiling, and a name that tells it from its like."""

    profile: Profile
    record: Record | None = None
    name: str = ""

    @property
    def unprofiled(self) -> Sequence[float]:
        """Latency samples without profiling, in seconds; none where they are not known."""
        return latencies(self.record).samples if self.record else ()

    @property
    def right(self) -> bool:
        """Whether nothing is known against its outputs."""
        return not (self.record and self.record.agreement and self.record.agreement.agrees is False)

    @property
    def device(self) -> str:
        """The GPU or the CPU that it ran on."""
        environment = self.profile.environment
        gpu = environment.gpus[0].name if environment.gpus else "GPU"
        return environment.cpu or "CPU" if self.profile.case.device == "cpu" else gpu

    @property
    def inputs(self) -> str:
        """Names and sizes of the inputs: ``x=1x3x224x224``."""
        specs = self.profile.model.inputs or self.profile.case.inputs
        return ", ".join(f"{spec.name}={'x'.join(map(str, spec.shape))}" for spec in specs)

    @property
    def headline(self) -> str:
        """Model, inputs and device."""
        words = self.profile.case.model, self.inputs, self.device
        return " · ".join(plain(word)[:200] for word in words if word)

    @property
    def data(self) -> dict[str, Any]:
        """What tells a case from others, for JSON."""
        profile = self.profile
        return {
            "name": self.name, "case": profile.case, "digest": profile.case.digest,
            "profile": profile.id, "record": profile.record,
        }  # fmt: skip

    @property
    def fields(self) -> list[object]:
        """The first fields of every line of CSV: model, case, its digest, and the profile."""
        return [self.profile.case.model, self.profile.case.label, self.profile.case.digest, self.profile.id]

    def fits(self, named: str) -> bool:
        """Whether all words are words of its label or name, or its backend."""
        case = self.profile.case
        return words(named) <= words(case.label) | words(self.name) | {case.backend}


def told_apart(cases: Sequence[ProfiledCase], *, backends: bool = True) -> tuple[str, list[str]]:
    """What all cases share, on one line, and for each a name without that; ``backends``: with the backend's."""
    every = {
        "model": [one.profile.case.model for one in cases],
        "inputs": [one.inputs for one in cases],
        "precision": [one.profile.case.precision for one in cases],
        "device": [one.device for one in cases],
    }
    shared = {key for key, words in every.items() if len(set(words)) == 1}
    models = [model.partition(":")[2] or model for model in every["model"]]
    if "model" not in shared and len(set(models)) == len(set(every["model"])):
        every["model"] = models  # without where they are from
    devices = {one.profile.case.device for one in cases}
    names = []
    for place, one in enumerate(cases):
        name = one.name if "precision" not in shared else one.name.replace(f" {one.profile.case.precision}", "", 1)
        words = {
            "model": every["model"][place], "name": name if backends else "",
            "inputs": one.profile.case.sizes_label or one.inputs,
            "device": one.profile.case.device if len(devices) > 1 else one.device,
        }  # fmt: skip
        names.append(" · ".join(plain(word)[:80] for key, word in words.items() if word and key not in shared))
    counts = Counter(names)
    cards = [
        card_name(one.profile.environment) if counts[name] > 1 else "" for one, name in zip(cases, names, strict=True)
    ]
    names = [" · ".join(filter(None, both)) for both in zip(cards, names, strict=True)]
    return " · ".join(plain(words[0])[:200] for key, words in every.items() if key in shared and words[0]), names


def groups(loaded: LoadedProfiles, level: Level | None = None) -> list[list[ProfiledCase]]:
    """The latest profiles, named, in groups that can be compared: of every level, or of each case that of ``level``.

    A case that has none of that level has another one, which says what there is instead.
    """
    one_each: dict[tuple[object, ...], Profile] = {}
    for one in latest_profiles(loaded.profiles):
        key = one.case.digest, machine_name(one.environment), None if level else one.level
        if key not in one_each or one.level == level:
            one_each[key] = one
    found: dict[tuple[object, ...], list[ProfiledCase]] = {}
    for one in one_each.values():
        case, inputs, machine = one.case, one.model.inputs or one.case.inputs, machine_name(one.environment)
        group = case.model, case.batch, inputs, case.weights, case.seed, machine
        found.setdefault(group, []).append(ProfiledCase(one, loaded.records.get(one.id)))
    return [named(group) for group in found.values()]


def of_level(loaded: LoadedProfiles, level: Level | None) -> list[ProfiledCase]:
    """The cases of all groups, one after the other."""
    return [case for group in groups(loaded, level) for case in group]


def referenced(group: Sequence[ProfiledCase], named: str | None) -> list[ProfiledCase]:
    """The group with its reference first: of those that ``named`` fits, or that ran, the plainest, as of records."""
    able = [one for one in group if one.profile.status == "ok"] or list(group)
    checked = [one.record.agreement.reference for one in group if one.record and one.record.agreement]
    usual = {reference.partition(" ")[0] for reference in checked}

    def place(one: ProfiledCase) -> tuple[object, ...]:
        case = one.profile.case
        return named not in (one.name, case.label), *plainness(case, case.device, usual)

    first = min([one for one in group if named and one.fits(named)] or able, key=place)
    return [first, *(one for one in group if one is not first)]


def check_reference(every: Sequence[ProfiledCase], named: str | None) -> None:
    """Refuses a reference that fits no profile, with an InferlensError."""
    if named and not any(one.fits(named) for one in every):
        raise unknown(named, [one.profile.case.label for one in every])


def named(group: Sequence[ProfiledCase], *, tell_level: bool = True) -> list[ProfiledCase]:
    """Names without what all of a group share, and with a number where they are equal.

    ``tell_level``: profiles of kernels say so where others are of layers.
    """
    one_device = len({one.profile.case.device for one in group}) == 1
    unsaid = ["batch", *group[0].profile.case.sizes, *["device"] * one_device]
    tell_level = tell_level and len({one.profile.level for one in group}) > 1
    seen: dict[str, int] = {}
    found = []
    for one, case in zip(group, shown_together([one.profile.case for one in group]), strict=True):
        words = [*case.words(*unsaid), *["kernels"] * (tell_level and one.profile.level == "kernel")]
        name = plain(" ".join(words))
        number = seen[name] = seen.get(name, 0) + 1
        found.append(ProfiledCase(one.profile, one.record, f"{name} ({number})" if number > 1 else name))
    return found
