"""How far a profile can be trusted: what profiling cost, and how runs vary."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import Evidence
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.profile.layers import kernels_alone


@rule(
    "doubtful-profile",
    of="profile",
    about="trust",
    hint="Shares say where to look, not what can be won.",
)
def doubtful_profile(seen: Evidence) -> Iterator[Finding]:
    """What was profiled is not quite what runs unprofiled."""
    stretched = seen.layered is not None and not kernels_alone(seen.layered)
    account = seen.table.reconciliation if seen.table and stretched else None
    if account and account.cost is not None and account.unprofiled:
        slower = min(account.cost, account.cost_low or account.cost) >= thresholds.COST
        if slower or max(account.cost, account.cost_high or account.cost) <= thresholds.FASTER:
            yield found(
                "Layer times are doubtful: a profiled call takes {profiled:duration}, {cost:ratio} an unprofiled one.",
                {"cost": account.cost, "profiled": account.profiled, "untouched": account.unprofiled},
                subject="the layers",
            )
    if seen.latency and seen.busy >= thresholds.GPU_COST * seen.latency:
        yield found(
            "Kernel times are doubtful: the GPU works {busy:duration} of a profiled call, an unprofiled call takes "
            "{latency:duration}.",
            {"busy": seen.busy, "latency": seen.latency},
            subject="the kernels",
        )


@rule("unstable", of="profile", about="trust", hint="Look for what else runs on the machine; more --runs.")
def unstable(seen: Evidence) -> Iterator[Finding]:
    """Runs that differ."""
    whole = seen.table.reconciliation.whole if seen.table else None
    if whole and whole.p95 is not None and 0 < thresholds.RUN_SPREAD * whole.median <= whole.p95:
        scale = seen.table.runs.whole_scale if seen.table else 1.0
        yield found(
            "Profiled runs vary: their 95th percentile is {p95:duration}, {times:ratio} their median.",
            {"p95": whole.p95 / scale, "median": whole.median / scale},
            subject="the runs", times=whole.p95 / whole.median,
        )  # fmt: skip
