"""Records, profiles and traces become findings: what is worth knowing, each with its numbers and what to try.

Every finding comes from a rule of ``inferlens.analysis.findings.rules``. A rule speaks only where its evidence is there
and reaches a threshold, and claims no more than it shows: what could be won is what could be won at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import Evidence
from inferlens.analysis.findings.rule import Finding, Findings, found, rules_of
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Profile
from inferlens.record.record import Record

if TYPE_CHECKING:
    from inferlens.trace.analysis import Analysis

__all__ = ["Evidence", "Finding", "Findings", "evidence_of", "findings", "gain", "trace_findings", "unseen", "weight"]
_OF_THE_HOST = {"host-bound", "outside-layers"}  # what keeps a GPU waiting; all else is about what it does
_UNKNOWN = 0.1  # of a run: so that a fallback or a graph break, which no profile shows the cost of, is not the last


def findings(
    profiles: Profile | Sequence[Profile],
    record: Record | None = None,
    plain: Record | None = None,
    rivals: Mapping[str, float | None] | None = None,
) -> Findings:
    """What the rules find in profiles, most important first.

    First what concerns time, by the part of a run that could be won, or that it is about where that is not known; what
    shows neither counts as a tenth. Then how far the profile can be trusted. Where nothing could win much, it is said
    first what is left.

    Args:
        profiles: of one case; several are its levels.
        record: of the same case, timed unprofiled; without it rules are silent that need to know what a call takes.
        plain: of a quantized case, the record of the same in fp32.
        rivals: ways of other backends that were measured, and their seconds if they ran: these are not advised again.

    Raises InferlensError if the profiles are of different cases, or there are none.
    """
    evidence = dataclasses.replace(evidence_of(profiles, record), plain=plain, rivals=rivals or {})
    made = [finding for rule in rules_of("profile") for finding in rule(evidence)]
    won = [weight(_of_a_run(finding, evidence)) for finding in made if finding.about == "time"]
    if won and max(won) <= thresholds.WORTH:
        said = "No change of a layer or kernel could win more than {most:percent} of the call."
        finding = found(
            said,
            {"most": max(won)},
            code="near-ceiling",
            subject="the run",
            share=1 - max(won),
            hint=evidence.last_resort,
        )
        made.append(finding)
    # What concerns time comes first.
    ranked = sorted(
        (_of_a_run(finding, evidence) for finding in made),
        key=lambda finding: (finding.about != "time", -weight(finding)),
    )
    return Findings(ranked)


def trace_findings(analysis: Analysis) -> Findings:
    """What the rules find in a trace, what could save the most of a step first."""
    from inferlens.analysis.findings.rules.traces import TraceEvidence

    if not analysis.overview.step_time:
        return Findings()
    trace_evidence = TraceEvidence(analysis)
    made = [finding for rule in rules_of("trace") for finding in rule(trace_evidence)]
    return Findings(sorted(made, key=lambda finding: -(finding.seconds or 0.0)))


def evidence_of(profiles: Profile | Sequence[Profile], record: Record | None = None) -> Evidence:
    """What the rules look at; takes and refuses what :func:`findings` does."""
    several = (profiles,) if isinstance(profiles, Profile) else tuple(profiles)
    if len({profile.case.digest for profile in several}) != 1:
        raise InferlensError("Findings are for one case at a time.", expected="one profile, or several levels of it")
    return Evidence(several, record)


def unseen(evidence: Evidence) -> list[str]:
    """What the rules could not look at for want of evidence, a few words each."""
    absent = {
        "layers (no profile of them)": not evidence.parts,
        "kernels (no profile of them)": evidence.on_gpu and not evidence.launched,
        "floors (the model's work or the device's ceilings are not known)": bool(evidence.parts)
        and evidence.floors is None,
        "unprofiled calls (no record beside the profile)": evidence.latency is None,
    }
    return [words for words, is_absent in absent.items() if is_absent]


def _of_a_run(of: Finding, evidence: Evidence) -> Finding:
    unprofiled = of.seconds is not None and of.whole is not None and of.whole == evidence.latency
    return replace(of, whole=None if of.seconds is None else of.whole or evidence.profiled, unprofiled=unprofiled)


def weight(of: Finding) -> float:
    """The part of a run that could be won, or that it is about, or what an unknown part counts as."""
    return next(item for item in (of.won, of.share, _UNKNOWN) if item is not None)


def gain(of: Finding, every: Sequence[Finding]) -> float | None:
    """What could be won as a share of a call; ``None`` where nothing tells, among ``every`` finding of the case.

    What is scaled from a profiled call that took much longer is no more than where to look, and while a call waits for
    the host, faster layers and kernels win nothing.
    """
    codes = {finding.code for finding in every}
    waits = "host-bound" in codes and of.code not in _OF_THE_HOST
    return None if waits or ("doubtful-profile" in codes and not of.unprofiled) else of.won
