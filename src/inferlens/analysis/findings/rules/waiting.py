"""A GPU that waits for the host: one rule for records, profiles and traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferlens.analysis.findings.evidence import Evidence
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.findings.thresholds import COPY_BOUND
from inferlens.analysis.interference.samples import steady_samples
from inferlens.record.record import Record
from inferlens.spec.hints import for_the_host
from inferlens.stats.host_bound import enqueueing_takes_all, gpu_waits
from inferlens.stats.quantiles import median

if TYPE_CHECKING:
    from inferlens.analysis.findings.rules.records import RecordEvidence
    from inferlens.analysis.findings.rules.traces import TraceEvidence

_RUNS = "has {calls:#kernel} of {mean:duration} to run"
_WAITS = f"Bound by the host: the GPU waits for {{share:percent}} of {{whole:duration}}, and {_RUNS}."
# The host is slower while it is traced: by a trace alone nobody knows whether the GPU waits for it as long otherwise.
_WAITS_TRACED = (
    f"While traced, the GPU waits for the host for {{share:percent}} of {{whole:duration}}, and {_RUNS}; "
    "tracing adds to that."
)
_IF_UNTRACED = (
    "If bench says host-bound too, launch less: torch.compile(mode='reduce-overhead'), a CUDA graph, or a larger batch."
)


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
                calls=wait.calls, mean=wait.mean, hint=_IF_UNTRACED if wait.traced else _hint(seen),
            )  # fmt: skip
    elif seen.record and bound_by(seen.record) == "host":
        latency, enqueue = (
            median(steady_samples(seen.record, each).for_median) for each in ("latency", "enqueue time")
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
    return f"Another backend with a CUDA graph: {seen.command(others=True)}"


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
    if all(copies) and sum(median(each) for each in copies) >= COPY_BOUND * median(gpu):
        return "copies"
    return "host" if enqueueing_takes_all(median(enqueue), median(latency)) else "GPU"
