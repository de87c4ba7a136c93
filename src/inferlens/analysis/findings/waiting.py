"""Time in which the device waits: for the host, between tiny kernels, and outside of all layers."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.analysis.findings import hints as cures
from inferlens.analysis.findings.evidence import Evidence
from inferlens.analysis.findings.finding import Finding, rule
from inferlens.analysis.findings.words import of_gpu, of_run
from inferlens.units import duration, percent, plural

BUSY = 0.8
ENQUEUE = 0.9
LAUNCHES = 20
TINY = 5e-6
TINY_SHARE = 0.2
OUTSIDE = 0.05
COMPILED = "A larger --batch, so that each has more to do; another backend may fuse more of them."


@rule(
    "host-bound",
    needs="kernels and untouched calls, or their enqueue time",
    speaks=f"the GPU works less than {percent(BUSY)} of an untouched call; without kernels: enqueueing takes "
    f"{percent(ENQUEUE)} of the latency",
    silent="for a profiled call, which waits for the profiler too: the GPU's time is held against calls that were not "
    "profiled",
    advice="A CUDA graph, where the backend has an option or a variant for it, which the finding names; fewer and "
    "larger kernels by compiling; or a larger --batch.",
)
def host_bound(seen: Evidence) -> Iterator[Finding]:
    """The GPU's time per run against the latency; kernels do not take longer for being profiled, calls do."""
    latency = seen.latency
    if not seen.on_gpu or not latency:
        return
    if seen.busy > 0 and seen.kernels is not None:
        if seen.busy >= BUSY * latency:
            return
        kernels = [each for each in seen.launched if each.kernel.kind == "kernel"]
        calls = sum(each.kernel.calls for each in kernels)
        launches, mean = seen.kernels.launches, sum(each.seconds for each in kernels) / max(calls, 1)
        few = launches < LAUNCHES
        yield Finding(
            subject="the run",
            sentence=f"Host-bound: the GPU works {duration(seen.busy)} of a call's {duration(latency)} "
            f"({percent(seen.busy / latency)}); {plural(launches, 'launch')}, "
            f"{plural(calls, 'kernel')} of {duration(mean)} on average.",
            seconds=latency - seen.busy,
            whole=latency,
            share=1 - seen.busy / latency,
            evidence={
                "busy": seen.busy, "latency": latency, "launches": launches, "kernels": calls, "mean kernel": mean,
            },
            advice="Look at what the host does around so few launches, or use a larger --batch."
            if few else _of_the_host(seen),
        )  # fmt: skip
        return
    enqueue = seen.measured("enqueue time")
    if enqueue and enqueue >= ENQUEUE * latency and seen.measured("GPU time"):
        yield Finding(
            subject="the run",
            sentence=f"Host-bound, if no call waits for the GPU by itself: enqueueing takes {duration(enqueue)} of a "
            f"call's {duration(latency)}; profiled kernels would tell what the GPU does meanwhile.",
            share=min(enqueue / latency, 1.0),
            evidence={"enqueue": enqueue, "latency": latency},
            advice=_of_the_host(seen),
        )


def _of_the_host(seen: Evidence) -> str:
    more = [] if seen.compiled else ["fewer and larger kernels by compiling"]
    return cures.of_the_host(seen.case, seen.facts, *more)


@rule(
    "tiny-kernels",
    needs="kernels",
    speaks=f"at least {LAUNCHES} kernel calls in a run last less than {duration(TINY)} on average, and take "
    f"{percent(TINY_SHARE)} of the GPU's time together",
    silent="in few calls, where there is little to fuse",
    advice="Fuse them: torch_compile, tensorrt or another backend that compiles; or a larger --batch, so that each has "
    "more to do.",
)
def tiny_kernels(seen: Evidence) -> Iterator[Finding]:
    """A kernel of a few microseconds mostly starts and ends."""
    kernels = [each for each in seen.launched if each.kernel.kind == "kernel"]
    tiny = [each for each in kernels if 0 < each.each < TINY]
    total, calls = sum(each.seconds for each in tiny), sum(each.kernel.calls for each in tiny)
    share = seen.share_of_gpu(total)
    if calls >= LAUNCHES and share >= TINY_SHARE:
        every = sum(each.kernel.calls for each in kernels)
        yield Finding(
            subject=plural(calls, "kernel call"),
            sentence=f"{calls:,} of {plural(every, 'kernel call')} last less than {duration(TINY)} each "
            f"({duration(total / calls)} on average) and take {of_gpu(total, share)}.",
            share=share,
            evidence={"tiny": calls, "calls": every, "seconds": total, "mean": total / calls},
            advice="" if seen.by_operator else COMPILED,
        )


@rule(
    "outside-layers",
    needs="layers and untouched calls",
    speaks=f"{percent(OUTSIDE)} of a run or more is in no layer, after what profiling has added to it",
    silent="where the layers are times of the GPU, of which the whole on the host is no sum; where layers overlap",
    advice="Look around the layers: at Python, checks of the inputs, copies of inputs and outputs. A larger --batch "
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
        yield Finding(
            subject="the run",
            sentence=f"{of_run(left, seen.share(left))} is spent outside of all layers.",
            seconds=left,
            share=seen.share(left),
            evidence={
                "outside": account.outside.typical, "added by profiling": added, "whole": account.whole.typical,
            },
        )  # fmt: skip
