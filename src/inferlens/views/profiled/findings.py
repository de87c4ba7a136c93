"""Findings of each case: a ranked list for people, or all of each finding for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inferlens.analysis.findings import Finding, evidence_of, findings, unseen
from inferlens.record.layer_profile import Profile
from inferlens.record.profile_store import LoadedProfiles
from inferlens.record.record import machine_name
from inferlens.units import duration, listing, percent
from inferlens.views.plain import plain
from inferlens.views.profiled.cases import ProfiledCase, of_level
from inferlens.views.table import Document, Table

SCHEMA = "inferlens.findings/1"
FORMATS = ("table", "markdown", "csv", "json")
CASE = ("model", "case", "digest", "profile")
# Names of a finding in CSV, and its attributes.
FIELDS = {
    "rule": "code", "about": "about", "subject": "subject", "sentence": "sentence", "seconds": "seconds",
    "whole": "whole", "share": "share", "advice": "hint",
}  # fmt: skip
NOTHING = "No rule has anything to say."


@dataclass(frozen=True)
class Judged:
    """One case and what was found.

    Attributes:
        case: its name, its record, and its profile, or one of several.
        unseen: what could not be looked at.
        reason: why there is nothing to look at; empty where there is.
    """

    case: ProfiledCase
    found: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()
    reason: str = ""


def judged(loaded: LoadedProfiles) -> list[Judged]:
    """The findings of every case on every machine: of the latest profile of each level."""
    levels: dict[tuple[str, str], dict[str, Profile]] = {}
    for profile in loaded.profiles:  # by their creation
        levels.setdefault(_key(profile), {})[profile.level] = profile
    cases: dict[tuple[str, str], ProfiledCase] = {}
    for case in of_level(loaded, "layer"):
        cases.setdefault(_key(case.profile), case)
    return [_judged(case, list(levels[key].values()), loaded) for key, case in cases.items()]


def _key(profile: Profile) -> tuple[str, str]:
    return profile.case.digest, machine_name(profile.environment)


def _judged(case: ProfiledCase, profiles: Sequence[Profile], loaded: LoadedProfiles) -> Judged:
    able = [each for each in profiles if each.status == "ok"]
    if not able:
        reason = case.profile.reason or f"It ended as '{case.profile.status}', and no reason is known."
        return Judged(case, (), reason=f"{reason} {case.profile.hint}".strip())
    # What profiling cost is told of layers, so by the calls that were timed with them, as in their table.
    layers_first = sorted(able, key=lambda each: each.level != "layer")
    records = [record for each in layers_first if (record := loaded.records.get(each.id))]
    record = records[0] if records else None
    return Judged(case, tuple(findings(able, record)), tuple(unseen(evidence_of(able, record))))


def document(cases: Sequence[Judged], *, top: int | None = None, brief: bool = False) -> Document:
    """The findings of each case.

    Args:
        cases: as :func:`judged` makes them.
        top: how many of each case; ``None``: all.
        brief: for people: without the rules' names and what could not be looked at.
    """
    return Document(
        lambda: list(_blocks(cases, top, brief)) or ["There are no profiles to look at."],
        data=lambda: {"schema": SCHEMA, "cases": [_object(each, top) for each in cases]},
        csv=lambda: ((*CASE, "place", *FIELDS, "evidence"), _lines(cases, top)),
        title="Findings",
    )


def _blocks(cases: Sequence[Judged], top: int | None, brief: bool) -> Iterator[Table | str]:
    headline = ""
    for of in cases:
        if brief and of.reason:
            continue  # what is beneath says so
        if of.case.headline != headline:
            headline = of.case.headline
            yield Table(headline, "", (), ())
        said = [
            f"{number}. {each.sentence} Try: {each.hint}{'' if brief else f' ({about(each)})'}"
            for number, each in enumerate(of.found[:top], 1)
        ]
        missing = f"Not looked at: {listing(of.unseen)}." if of.unseen and not brief else ""
        told = tuple(map(plain, said or [of.reason or NOTHING]))
        yield Table(plain(of.case.name), "", (), (), notes=(missing,) if missing else (), sentences=told)


def about(of: Finding) -> str:
    """What could be won, and the rule: ``at most 1.3 ms of a profiled run could be won (11 %) · reformats``."""
    if of.seconds is None or of.won is None:
        return of.code
    run = "an unprofiled call" if of.untouched else "a profiled run"
    return f"at most {duration(of.seconds)} of {run} could be won ({percent(of.won)}) · {of.code}"


def _object(of: Judged, top: int | None) -> dict[str, Any]:
    return {
        **of.case.data,
        "status": of.case.profile.status,
        "reason": of.reason,
        "not_looked_at": of.unseen,
        "findings": of.found[:top],
    }


def _lines(cases: Sequence[Judged], top: int | None) -> Iterable[Sequence[object]]:
    for of in cases:
        profile = of.case.profile
        case = (profile.case.model, profile.case.label, profile.case.digest, profile.id)
        for place, each in enumerate(of.found[:top], 1):
            fields = [getattr(each, name) for name in FIELDS.values()]
            yield [*case, place, *fields, msgspec.json.encode(each.numbers).decode()]
