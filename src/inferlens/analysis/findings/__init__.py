"""Profiles become findings: a short ranked list in plain words, each with its evidence and what to try.

Every finding comes from one of a closed list of rules, ``rules.RULES``. A rule speaks only where its evidence is there
and reaches a threshold, and claims no more than it shows: what could be won is what could be won at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.findings.evidence import Evidence
from inferlens.analysis.findings.finding import Finding
from inferlens.analysis.findings.rules import RULES
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Profile
from inferlens.record.record import Record

__all__ = ["RULES", "Evidence", "Finding", "evidence_of", "findings", "unseen"]
DOUBTFUL = "doubtful-profile"
UNKNOWN = 0.1  # of a run: so that a fallback or a graph break, which no profile shows the cost of, is not the last


def findings(profiles: Profile | Sequence[Profile], record: Record | None = None) -> list[Finding]:
    """What the rules find, most important first.

    A doubtful profile comes first of all: everything else stands on it. Then what concerns time, by the part of a run
    that could be won, or that it is about where that is not known; what tells neither counts as a tenth. Last comes how
    far the profile can be trusted.

    Args:
        profiles: of one case; several are its levels.
        record: of the same case, timed untouched; without it rules are silent that need to know what a call takes.

    Raises:
        InferlensError: if the profiles are of different cases, or there are none.
    """
    seen = evidence_of(profiles, record)
    found = [each for rule in RULES for each in rule(seen)]
    return sorted(found, key=_rank)


def evidence_of(profiles: Profile | Sequence[Profile], record: Record | None = None) -> Evidence:
    """What the rules look at, as :func:`findings` takes it.

    Raises:
        InferlensError: if the profiles are of different cases, or there are none.
    """
    several = (profiles,) if isinstance(profiles, Profile) else tuple(profiles)
    if len({each.case.digest for each in several}) != 1:
        raise InferlensError("Findings are of one case.", expected="one profile, or several levels of the same case")
    return Evidence(several, record)


def unseen(seen: Evidence) -> list[str]:
    """What the rules could not look at for want of evidence, a few words each."""
    found = []
    if not seen.parts:
        found.append("layers (no profile of them)")
    if seen.on_gpu and not seen.launched:
        found.append("kernels (no profile of them)")
    if seen.parts and seen.floors is None:
        found.append("floors (the model's work or the device's ceilings are not known)")
    if seen.latency is None:
        found.append("untouched calls (no record beside the profile)")
    return found


def _rank(of: Finding) -> tuple[int, float]:
    """Lowest first."""
    group = 0 if of.rule == DOUBTFUL else 1 if of.about == "time" else 2
    return group, -next(each for each in (of.won, of.share, UNKNOWN) if each is not None)
