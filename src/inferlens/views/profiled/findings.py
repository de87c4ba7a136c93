"""Findings of each case as text: a ranked list for people, or all of each finding for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inferlens.analysis.findings import Finding, evidence_of, findings, unseen
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Profile
from inferlens.record.profile_store import LoadedProfiles
from inferlens.record.record import machine_name
from inferlens.views.profiled import findings_text
from inferlens.views.profiled.cases import Profiled, of_level
from inferlens.views.renderers.csv import csv_text

SCHEMA = "inferlens.findings/1"
FORMATS = ("table", "markdown", "csv", "json")
CASE = ("model", "case", "digest", "profile")
FIELDS = ("place", "rule", "about", "subject", "sentence", "seconds", "whole", "share", "advice")


@dataclass(frozen=True)
class Judged:
    """One case and what was found.

    Attributes:
        case: its name, its record, and its profile, or one of several.
        unseen: what could not be looked at.
        reason: why there is nothing to look at; empty where there is.
    """

    case: Profiled
    found: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()
    reason: str = ""


def judged(loaded: LoadedProfiles) -> list[Judged]:
    """The findings of every case on every machine: of the latest profile of each level."""
    levels: dict[tuple[str, str], dict[str, Profile]] = {}
    for profile in loaded.profiles:  # by their creation
        levels.setdefault(_key(profile), {})[profile.level] = profile
    found: dict[tuple[str, str], Judged] = {}
    for case in of_level(loaded, "layer"):
        key = _key(case.profile)
        if key not in found:
            found[key] = _judged(case, list(levels[key].values()), loaded)
    return list(found.values())


def _key(profile: Profile) -> tuple[str, str]:
    return profile.case.digest, machine_name(profile.environment)


def _judged(case: Profiled, profiles: Sequence[Profile], loaded: LoadedProfiles) -> Judged:
    able = [each for each in profiles if each.status == "ok"]
    if not able:
        reason = case.profile.reason or f"It ended as '{case.profile.status}', and no reason is known."
        return Judged(case, (), reason=f"{reason} {case.profile.hint}".strip())
    # What profiling cost is told of layers, so by the calls that were timed with them, as in their table.
    layers_first = sorted(able, key=lambda each: each.level != "layer")
    records = [record for each in layers_first if (record := loaded.records.get(each.id))]
    record = records[0] if records else None
    seen = evidence_of(able, record)
    return Judged(case, tuple(findings(able, record)), tuple(unseen(seen)))


def render(
    cases: Sequence[Judged],
    format: str = "table",
    *,
    top: int | None = None,
    brief: bool = False,
    width: int = 120,
    color: bool = False,
) -> str:
    """The findings of each case as text.

    Args:
        cases: as :func:`judged` makes them.
        format: one of ``FORMATS``.
        top: how many of each case; ``None``: all.
        brief: on the terminal: without the rules' names and what could not be looked at.
        width, color: of the terminal.

    Raises:
        InferlensError: for another format.
    """
    check_choice("format", format, FORMATS)
    if format == "csv":
        return _csv(cases, top)
    if format == "json":
        document = {"schema": SCHEMA, "cases": [_object(each, top) for each in cases]}
        return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
    if format == "markdown":
        return findings_text.markdown(cases, top)
    return findings_text.terminal(cases, top, brief, width, color)


def _object(of: Judged, top: int | None) -> dict[str, Any]:
    return {
        **of.case.data,
        "status": of.case.profile.status,
        "reason": of.reason,
        "not_looked_at": of.unseen,
        "findings": of.found[:top],
    }


def _csv(cases: Sequence[Judged], top: int | None) -> str:
    lines = []
    for of in cases:
        profile = of.case.profile
        case = (profile.case.model, profile.case.label, profile.case.digest, profile.id)
        for place, each in enumerate(of.found[:top], 1):
            fields = [place, *(getattr(each, name) for name in FIELDS[1:])]
            lines.append([*case, *fields, msgspec.json.encode(each.evidence).decode()])
    return csv_text((*CASE, *FIELDS, "evidence"), lines)
