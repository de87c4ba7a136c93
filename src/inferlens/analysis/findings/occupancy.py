"""Kernels that leave much of the GPU empty: too few blocks, or too few threads of each multiprocessor."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.analysis.findings.evidence import Evidence
from inferlens.analysis.findings.families import DENSE
from inferlens.analysis.findings.finding import Finding, rule
from inferlens.analysis.findings.words import few, longest_kernels, of_gpu, verb
from inferlens.units import byte_count, percent, plural

LEAST = 0.2
LEAST_LOW = 0.1
LOW = 0.25
COMPILED = (
    "A larger --batch, where throughput counts, fills it. For latency, another backend may split such work further."
)


@rule(
    "few-blocks",
    needs="kernels with their grids, and the GPU's number of multiprocessors",
    speaks=f"kernels with fewer blocks than the GPU has multiprocessors take {percent(LEAST)} of its time together",
    silent="for copies, fills, and kernels whose grid is not told. What could be won is as if a kernel's work could be "
    "spread evenly over all multiprocessors",
    advice="A larger --batch, where throughput counts, fills it. For latency, a backend that splits such work further "
    "(tensorrt, torch_compile:max-autotune).",
)
def few_blocks(seen: Evidence) -> Iterator[Finding]:
    """A multiprocessor without a block has nothing to do."""
    processors = seen.kernels.gpu.multiprocessors if seen.kernels else 0
    found = [each for each in seen.launched if each.kernel.kind == "kernel" and 0 < each.blocks < processors]
    total, calls = sum(each.seconds for each in found), sum(each.kernel.calls for each in found)
    share = seen.share_of_gpu(total)
    if found and share >= LEAST:
        idle = sum(each.seconds * (1 - each.blocks / processors) for each in found)
        yield Finding(
            subject=longest_kernels(found),
            sentence=f"{plural(calls, 'kernel call')} with fewer blocks than the GPU's {processors} multiprocessors "
            f"{verb(calls)} {of_gpu(total, share)}, and on average {percent(idle / total)} of the GPU is empty "
            "meanwhile; "
            f"most in {longest_kernels(found)}.",
            seconds=idle,
            advice="" if seen.by_operator else COMPILED,
            whole=seen.call,
            share=share,
            evidence={"calls": calls, "seconds": total, "idle": idle, "multiprocessors": processors},
        )


@rule(
    "low-occupancy",
    needs="kernels with their occupancy",
    speaks=f"kernels of which less than {percent(LOW)} of a multiprocessor's threads fit in at a time take "
    f"{percent(LEAST_LOW)} of the GPU's time together",
    silent="for convolutions and matrix products, which are written to need few threads with many registers; for "
    "kernels with too few blocks, which have a rule of their own",
    advice="If the kernel is yours: smaller blocks, fewer registers or less shared memory. If not: a newer library, or "
    "a backend that compiles the operator differently.",
)
def low_occupancy(seen: Evidence) -> Iterator[Finding]:
    """Kernels that wait for memory need many threads to have something else to do meanwhile."""
    processors = seen.kernels.gpu.multiprocessors if seen.kernels else 0
    found = [
        each
        for each in seen.launched
        if each.kernel.occupancy is not None
        and each.kernel.occupancy < LOW
        and each.family not in DENSE
        and not each.kernel.tensor_cores
        and not 0 < each.blocks < processors
    ]
    total, calls = sum(each.seconds for each in found), sum(each.kernel.calls for each in found)
    share = seen.share_of_gpu(total)
    if found and share >= LEAST_LOW:
        worst = max(found, key=lambda each: each.seconds).kernel
        limits = [plural(worst.registers, "register") + " a thread"] if worst.registers else []
        limits += [f"{byte_count(worst.shared_memory)} of shared memory a block"] if worst.shared_memory else []
        yield Finding(
            subject=longest_kernels(found),
            sentence=f"{plural(calls, 'kernel call')} with an occupancy below {percent(LOW)} {verb(calls)} "
            f"{of_gpu(total, share)}; most in {longest_kernels(found, 1)} with {percent(worst.occupancy or 0.0)}"
            f"{f' ({few(limits)})' if limits else ''}.",
            share=share,
            evidence={"calls": calls, "seconds": total, "occupancy": worst.occupancy},
        )
