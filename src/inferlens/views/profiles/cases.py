"""Cases that were profiled: their names, and the groups in which they can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferlens.analysis.samples import latencies
from inferlens.record.profile import Level, Profile
from inferlens.record.record import Record, card_name, machine_name
from inferlens.record.store import LoadedProfiles, latest_profiles
from inferlens.spec.case import shown_together
from inferlens.spec.plan import plainness, unknown, words
from inferlens.views.table import plain

CASE_FIELDS = ("model", "case", "digest", "profile")  # the first fields of every line of CSV


@dataclass(frozen=True)
class ProfiledCase:
    """A profile, the record of the same case without profiling, and a distinct name."""

    profile: Profile
    record: Record | None = None
    name: str = ""

    @property
    def unprofiled(self) -> Sequence[float]:
        """Return latency samples without profiling in seconds, if any."""
        return latencies(self.record).samples if self.record else ()

    @property
    def outputs_right(self) -> bool:
        return not (self.record and self.record.agreement and self.record.agreement.agrees is False)

    @property
    def device(self) -> str:
        """Return the name of the GPU or CPU."""
        environment = self.profile.environment
        gpu = environment.gpus[0].name if environment.gpus else "GPU"
        return environment.cpu or "CPU" if self.profile.case.device == "cpu" else gpu

    @property
    def inputs(self) -> str:
        """Return names and sizes of the inputs: ``x=1x3x224x224``."""
        specs = self.profile.model.inputs or self.profile.case.inputs
        return ", ".join(f"{spec.name}={'x'.join(map(str, spec.shape))}" for spec in specs)

    @property
    def headline(self) -> str:
        return _join_words(self.profile.case.model, self.inputs, self.device)

    @property
    def data(self) -> dict[str, Any]:
        """Return the identity of a case for JSON."""
        profile = self.profile
        return {
            "name": self.name, "case": profile.case, "digest": profile.case.digest,
            "profile": profile.id, "record": profile.record,
        }  # fmt: skip

    @property
    def fields(self) -> dict[str, Any]:
        """Return the values of :data:`CASE_FIELDS`."""
        case = self.profile.case
        return dict(zip(CASE_FIELDS, (case.model, case.label, case.digest, self.profile.id), strict=True))

    def matches(self, phrase: str) -> bool:
        """Return whether label, name or backend contain all words of ``phrase``."""
        case = self.profile.case
        return words(phrase) <= words(case.label) | words(self.name) | {case.backend}


def _join_words(*texts: str, longest: int = 200) -> str:
    return " · ".join(plain(text)[:longest] for text in texts if text)


def distinguish(cases: Sequence[ProfiledCase], *, backends: bool = True) -> tuple[str, list[str]]:
    """Return what all cases share in one line, and a distinct name per case, if wanted with the backend."""
    models = [case.profile.case.model for case in cases]
    without_origin = [model.partition(":")[2] or model for model in models]
    if 1 < len(set(models)) == len(set(without_origin)):
        models = without_origin
    properties = {
        "model": models,
        "inputs": [case.inputs for case in cases],
        "precision": [case.profile.case.precision for case in cases],
        "device": [case.device for case in cases],
    }
    shared = {key: values[0] for key, values in properties.items() if len(set(values)) == 1}
    mixed_devices = len({case.profile.case.device for case in cases}) > 1
    names = []
    for case, model in zip(cases, models, strict=True):
        own = case.profile.case
        name = case.name.replace(f" {own.precision}", "", 1) if "precision" in shared else case.name
        texts = {
            "model": model, "name": name if backends else "", "inputs": own.sizes_label or case.inputs,
            "device": own.device if mixed_devices else case.device,
        }  # fmt: skip
        names.append(_join_words(*(text for key, text in texts.items() if key not in shared), longest=80))
    counts = Counter(names)
    for place, case in enumerate(cases):
        if counts[names[place]] > 1:
            names[place] = " · ".join(filter(None, [card_name(case.profile.environment), names[place]]))
    return _join_words(*shared.values()), names


def group_profiles(loaded: LoadedProfiles, level: Level | None = None) -> list[list[ProfiledCase]]:
    """Return the latest profiles, named, in comparable groups: of every level, or one profile per case.

    A case without a profile of ``level`` keeps another one, which says what exists instead.
    """
    latest: dict[tuple[object, ...], Profile] = {}
    for profile in latest_profiles(loaded.profiles):
        key = profile.case.digest, machine_name(profile.environment), None if level else profile.level
        if key not in latest or profile.level == level:
            latest[key] = profile
    groups: dict[tuple[object, ...], list[ProfiledCase]] = {}
    for profile in latest.values():
        case, inputs = profile.case, profile.model.inputs or profile.case.inputs
        group = case.model, case.batch, inputs, case.weights, case.seed, machine_name(profile.environment)
        groups.setdefault(group, []).append(ProfiledCase(profile, loaded.records.get(profile.id)))
    return [name_cases(group) for group in groups.values()]


def cases_of_level(loaded: LoadedProfiles, level: Level | None) -> list[ProfiledCase]:
    return [case for group in group_profiles(loaded, level) for case in group]


def reference_first(group: Sequence[ProfiledCase], reference: str | None) -> list[ProfiledCase]:
    """Put the reference first: the plainest of the cases that match ``reference``, or that ran."""
    eligible = [case for case in group if case.profile.status == "ok"] or list(group)
    checked = [case.record.agreement.reference for case in group if case.record and case.record.agreement]
    usual = {name.partition(" ")[0] for name in checked}

    def place(case: ProfiledCase) -> tuple[object, ...]:
        own = case.profile.case
        return reference not in (case.name, own.label), *plainness(own, own.device, usual)

    first = min([case for case in group if reference and case.matches(reference)] or eligible, key=place)
    return [first, *(case for case in group if case is not first)]


def check_profile_reference(cases: Sequence[ProfiledCase], reference: str | None) -> None:
    """Raise InferlensError if ``reference`` matches no profile."""
    if reference and not any(case.matches(reference) for case in cases):
        raise unknown(reference, [case.profile.case.label for case in cases])


def name_cases(group: Sequence[ProfiledCase], *, with_level: bool = True) -> list[ProfiledCase]:
    """Name cases by what they do not share, and number equal names.

    ``with_level`` marks profiles of kernels in a mixed group.
    """
    profiles = [case.profile for case in group]
    one_device = len({profile.case.device for profile in profiles}) == 1
    omitted = ["batch", *profiles[0].case.sizes, *["device"] * one_device]
    with_level = with_level and len({profile.level for profile in profiles}) > 1
    counts: Counter[str] = Counter()
    named = []
    for case, shown in zip(group, shown_together([profile.case for profile in profiles]), strict=True):
        marks = ["kernels"] * (with_level and case.profile.level == "kernel")
        name = plain(" ".join([*shown.words(*omitted), *marks]))
        counts[name] += 1
        named.append(replace(case, name=f"{name} ({counts[name]})" if counts[name] > 1 else name))
    return named
