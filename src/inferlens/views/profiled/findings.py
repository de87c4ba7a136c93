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
CASE = ("model", "case", "digest", "profile")
# Names of a finding in CSV, as in JSON.
FIELDS = ("rule", "about", "subject", "sentence", "seconds", "whole", "share", "advice")


@dataclass(frozen=True)
class Judged:
    """One case, with its latest profile, what was found, what could not be looked at, or why nothing could."""

    case: ProfiledCase
    found: tuple[Finding, ...] = ()
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
    # What profiling cost is about layers, so by the calls that were timed with them, as in their table.
    able = sorted((each for each in profiles if each.status == "ok"), key=lambda each: each.level != "layer")
    if not able:
        reason = case.profile.reason or f"It ended as '{case.profile.status}', and no reason is known."
        return Judged(case, reason=f"{reason} {case.profile.hint}".strip())
    record = next((record for each in able if (record := loaded.records.get(each.id))), None)
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
        ] or [of.reason or "No rule has anything to say."]
        notes = (f"Not looked at: {listing(of.unseen)}.",) if of.unseen and not brief else ()
        yield Table(plain(of.case.name), "", (), (), notes=notes, sentences=tuple(map(plain, said)))


def about(of: Finding) -> str:
    """What could be won, and the rule: ``at most 1.3 ms of a profiled run could be won (11 %) · reformats``."""
    if of.seconds is None or of.won is None:
        return of.code
    run = "an unprofiled call" if of.unprofiled else "a profiled run"
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
            fields = msgspec.to_builtins(each)
            numbers = msgspec.json.encode(each.numbers).decode()
            yield [*case, place, *(fields[name] for name in FIELDS), numbers]
