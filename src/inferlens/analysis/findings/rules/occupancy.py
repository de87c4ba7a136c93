"""Kernels that leave much of the GPU empty: too few blocks, or too few threads of each multiprocessor."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.analysis.findings.evidence import Evidence
from inferlens.analysis.findings.families import DENSE
from inferlens.analysis.findings.names import few, longest_kernels
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.findings.thresholds import FEW_BLOCKS, LOW_OCCUPANCY, LOW_OCCUPANCY_SHARE
from inferlens.units import byte_count, plural


@rule(
    "few-blocks",
    of="profile",
    hint="A larger --batch, where throughput counts, fills it. For latency, another backend may split such work "
    "further.",
)
def few_blocks(seen: Evidence) -> Iterator[Finding]:
    """A multiprocessor without a block has nothing to do."""
    processors = seen.kernels.gpu.multiprocessors if seen.kernels else 0
    kernels = [each for each in seen.launched if each.kernel.kind == "kernel" and 0 < each.blocks < processors]
    total, share, calls = seen.on_the_gpu(kernels)
    if kernels and share >= FEW_BLOCKS:
        idle = sum(each.seconds * (1 - each.blocks / processors) for each in kernels)
        yield found(
            "{calls:#kernel call} with fewer blocks than the GPU's {multiprocessors} multiprocessors "
            "{calls:takes|take} {gpu}, and on average {empty:percent} of the GPU is empty meanwhile; most in {names}.",
            {"calls": calls, "seconds": total, "idle": idle, "multiprocessors": processors},
            subject=longest_kernels(kernels), seconds=idle, whole=seen.call, share=share,
            empty=idle / total, names=longest_kernels(kernels),
        )  # fmt: skip


@rule(
    "low-occupancy",
    of="profile",
    hint="If the kernel is yours: smaller blocks, fewer registers or less shared memory. If not: a newer library, or "
    "a backend that compiles the operator differently.",
)
def low_occupancy(seen: Evidence) -> Iterator[Finding]:
    """Kernels that wait for memory need many threads to have something else to do meanwhile."""
    processors = seen.kernels.gpu.multiprocessors if seen.kernels else 0
    kernels = [
        each
        for each in seen.launched
        if each.kernel.occupancy is not None
        and each.kernel.occupancy < LOW_OCCUPANCY
        and each.family not in DENSE
        and not each.kernel.tensor_cores
        and not 0 < each.blocks < processors
    ]
    total, share, calls = seen.on_the_gpu(kernels)
    if kernels and share >= LOW_OCCUPANCY_SHARE:
        worst = max(kernels, key=lambda each: each.seconds).kernel
        limits = [plural(worst.registers, "register") + " a thread"] if worst.registers else []
        limits += [f"{byte_count(worst.shared_memory)} of shared memory a block"] if worst.shared_memory else []
        yield found(
            "{calls:#kernel call} with an occupancy below {low:percent} {calls:takes|take} {gpu}; most in {names} with "
            "{occupancy:percent}{limits}.",
            {"calls": calls, "seconds": total, "occupancy": worst.occupancy},
            subject=longest_kernels(kernels), share=share, low=LOW_OCCUPANCY, names=longest_kernels(kernels, 1),
            limits=f" ({few(limits)})" if limits else "",
        )  # fmt: skip
