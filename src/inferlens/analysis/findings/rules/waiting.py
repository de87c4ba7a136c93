"""How far a profile can be trusted; and a GPU that waits for the host: one rule for records, profiles and traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import Evidence
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.findings.thresholds import COPY_BOUND
from inferlens.analysis.interference.samples import steady_samples
from inferlens.analysis.profile.layers import kernels_alone
from inferlens.record.record import Record
from inferlens.spec.hints import for_the_host
from inferlens.stats.host_bound import enqueueing_takes_all, gpu_waits
from inferlens.stats.quantiles import median

if TYPE_CHECKING:
    from inferlens.analysis.findings.rules.records import RecordEvidence
    from inferlens.analysis.findings.rules.traces import TraceEvidence


@rule("doubtful-profile", of="profile", about="trust", hint="Shares say where to look, not what can be won.")
def doubtful_profile(evidence: Evidence) -> Iterator[Finding]:
    """What was profiled is not quite what runs unprofiled."""
    stretched = evidence.layered is not None and not kernels_alone(evidence.layered)
    account = evidence.table.reconciliation if evidence.table and stretched else None
    if account and account.cost is not None and account.unprofiled:
        slower = min(account.cost, account.cost_low or account.cost) >= thresholds.COST
        if slower or max(account.cost, account.cost_high or account.cost) <= thresholds.FASTER:
            yield found(
                "Layer times are doubtful: a profiled call takes {profiled:duration}, {cost:ratio} an unprofiled one.",
                {"cost": account.cost, "profiled": account.profiled, "untouched": account.unprofiled},
                subject="the layers",
            )
    if evidence.latency and evidence.busy >= thresholds.GPU_COST * evidence.latency:
        yield found(
            "Kernel times are doubtful: the GPU works {busy:duration} of a profiled call, an unprofiled call takes "
            "{latency:duration}.",
            {"busy": evidence.busy, "latency": evidence.latency},
            subject="the kernels",
        )


@rule("unstable", of="profile", about="trust", hint="Look for what else runs on the machine; more --runs.")
def unstable(evidence: Evidence) -> Iterator[Finding]:
    """Runs that differ."""
    whole = evidence.table.reconciliation.whole if evidence.table else None
    if whole and whole.p95 is not None and 0 < thresholds.RUN_SPREAD * whole.median <= whole.p95:
        scale = evidence.table.runs.whole_scale if evidence.table else 1.0
        yield found(
            "Profiled runs vary: their 95th percentile is {p95:duration}, {times:ratio} their median.",
            {"p95": whole.p95 / scale, "median": whole.median / scale},
            subject="the runs", times=whole.p95 / whole.median,
        )  # fmt: skip


_WAITS = (
    "Bound by the host: the GPU waits for {share:percent} of {whole:duration}, and has {calls:#kernel} of "
    "{mean:duration} to run."
)
# The host is slower while it is traced: by a trace alone nobody knows whether the GPU waits for it as long otherwise.
_WAITS_TRACED = (
    "The host is slow to launch {calls:#kernel} of {mean:duration} a step: at most {share:percent} of a step "
    "({idle:duration}) to save."
)
_IF_UNTRACED = "If bench says host-bound too: torch.compile(mode='reduce-overhead'), a CUDA graph, or a larger batch."


@rule(
    "host-bound",
    of=("record", "profile", "trace"),
    hint="Launch less from Python: torch.compile(mode='reduce-overhead'), a CUDA graph, or a larger batch.",
)
def host_bound(seen: RecordEvidence | Evidence | TraceEvidence) -> Iterator[Finding]:
    """The GPU is seen to wait, or where nobody looked, enqueueing a call takes about as long as the call."""
    if wait := seen.host_wait:
        if gpu_waits(wait.idle, wait.whole):
            yield found(
                _WAITS_TRACED if wait.traced else _WAITS,
                wait.numbers, subject="the run", seconds=wait.idle, whole=wait.whole, share=wait.idle / wait.whole,
                calls=wait.calls, mean=wait.mean, idle=wait.idle, hint=_IF_UNTRACED if wait.traced else _hint(seen),
            )  # fmt: skip
    elif seen.record and bound_by(seen.record) == "host":
        latency, enqueue = (
            median(steady_samples(seen.record, name).for_median) for name in ("latency", "enqueue time")
        )
        yield found(
            "Bound by the host: enqueueing a call takes about as long as the call.",
            {"enqueue": enqueue, "latency": latency},
            subject="the run", share=min(enqueue / latency, 1.0), hint=_hint(seen),
        )  # fmt: skip


def _hint(seen: RecordEvidence | Evidence | TraceEvidence) -> str:
    """Asked for where there is a finding alone: it takes importing the backend."""
    if not isinstance(seen, Evidence):
        return for_the_host(seen.record.case, seen.record.facts) if seen.record else ""
    graph = seen.hint("cuda_graph")
    if graph.asked:
        return f"A larger batch: {seen.command(larger=True)}"
    if graph.ask:
        return f"A CUDA graph: {seen.command(graph.ask)}"
    return seen.advice(others="another backend with a CUDA graph")


def bound_by(record: Record) -> str:
    """What a call on a GPU waits for most: ``host``, ``copies`` or ``GPU``; empty where that was not measured."""
    if not record.measurement("enqueue time"):
        return ""
    latency, enqueue, gpu = (
        steady_samples(record, metric).for_median for metric in ("latency", "enqueue time", "GPU time")
    )
    if not (latency and enqueue and gpu):
        return ""
    copies = [steady_samples(record, metric).for_median for metric in ("H2D time", "D2H time")]
    if all(copies) and sum(median(copy) for copy in copies) >= COPY_BOUND * median(gpu):
        return "copies"
    return "host" if enqueueing_takes_all(median(enqueue), median(latency)) else "GPU"
