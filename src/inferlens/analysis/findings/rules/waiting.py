"""Time in which the device waits: for the host, between tiny kernels, and outside of all layers."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.analysis.findings import hints
from inferlens.analysis.findings.evidence import Evidence
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.findings.thresholds import FEW_LAUNCHES, OUTSIDE, TINY, TINY_SHARE
from inferlens.stats.host_bound import enqueueing_takes_all, gpu_waits
from inferlens.units import plural


@rule("host-bound", of="profile")
def host_bound(seen: Evidence) -> Iterator[Finding]:
    """The GPU's time per run against the latency; kernels do not take longer for being profiled, calls do."""
    latency = seen.latency
    if not seen.on_gpu or not latency:
        return
    more = [] if seen.compiled else ["fewer and larger kernels by compiling"]
    hint = hints.for_the_host(seen.case, seen.facts, *more)
    if seen.busy > 0 and seen.kernels is not None:
        idle = latency - seen.busy
        if not gpu_waits(idle, latency):
            return
        kernels = [each for each in seen.launched if each.kernel.kind == "kernel"]
        calls, launches = sum(each.kernel.calls for each in kernels), seen.kernels.launches
        few = "Look at what the host does around so few launches, or use a larger --batch."
        yield found(
            "Host-bound: the GPU works {busy:duration} of a call's {latency:duration} ({works:percent}); "
            "{launches:#launch}, {kernels:#kernel} of {mean kernel:duration} on average.",
            {
                "busy": seen.busy, "latency": latency, "launches": launches, "kernels": calls,
                "mean kernel": sum(each.seconds for each in kernels) / max(calls, 1),
            },
            subject="the run", seconds=idle, whole=latency, share=1 - seen.busy / latency,
            hint=few if launches < FEW_LAUNCHES else hint, works=seen.busy / latency,
        )  # fmt: skip
        return
    enqueue = seen.measured("enqueue time")
    if enqueue and enqueueing_takes_all(enqueue, latency) and seen.measured("GPU time"):
        yield found(
            "Host-bound, if no call waits for the GPU by itself: enqueueing takes {enqueue:duration} of a call's "
            "{latency:duration}; profiled kernels would tell what the GPU does meanwhile.",
            {"enqueue": enqueue, "latency": latency},
            subject="the run", share=min(enqueue / latency, 1.0), hint=hint,
        )  # fmt: skip


@rule(
    "tiny-kernels",
    of="profile",
    hint="A larger --batch, so that each has more to do; a backend that compiles the model may fuse more of them.",
)
def tiny_kernels(seen: Evidence) -> Iterator[Finding]:
    """A kernel of a few microseconds mostly starts and ends."""
    kernels = [each for each in seen.launched if each.kernel.kind == "kernel"]
    total, share, calls = seen.on_the_gpu([each for each in kernels if 0 < each.each < TINY])
    if calls >= FEW_LAUNCHES and share >= TINY_SHARE:
        yield found(
            "{tiny:,} of {calls:#kernel call} last less than {least:duration} each ({mean:duration} on average) and "
            "take {gpu}.",
            {
                "tiny": calls, "calls": sum(each.kernel.calls for each in kernels), "seconds": total,
                "mean": total / calls,
            },
            subject=plural(calls, "kernel call"), share=share, least=TINY,
        )  # fmt: skip


@rule(
    "outside-layers",
    of="profile",
    hint="Look around the layers: at Python, checks of the inputs, copies of inputs and outputs. A larger --batch "
    "spreads it over more items.",
)
def outside_layers(seen: Evidence) -> Iterator[Finding]:
    """What profiling has added is taken from what is in no layer, all of it, so that only the rest is claimed."""
    if seen.table is None or seen.latency is None or seen.table.timed != "host":
        return
    account = seen.table.reconciliation
    added = max(account.whole.median - seen.latency, 0.0)
    left = account.outside.typical - added
    if left > 0 and seen.share(left) >= OUTSIDE:
        yield found(
            "{share:percent} of a profiled run ({left:duration}) is spent outside of all layers.",
            {"outside": account.outside.typical, "added by profiling": added, "whole": account.whole.typical},
            subject="the run", seconds=left, share=seen.share(left), left=left,
        )  # fmt: skip
