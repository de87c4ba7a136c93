"""Kernels: units of the GPU that they do not use, blocks and time that they do not fill, and copies between them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import FIRST, Evidence, Pieces, TimedKernel, TimedLayer, few
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.findings.rules.layers import channels_of, is_grouped
from inferlens.analysis.profile.families import DENSE, could_use_tensor_cores
from inferlens.units import plural

_ACROSS = re.compile(r"HtoD|DtoH|Host ?To ?Device|Device ?To ?Host", re.IGNORECASE)
_TRADE = "A trade of accuracy for time, so check the outputs"


@rule("tensor-cores-unused", of="profile")
def tensor_cores_unused(evidence: Evidence) -> Iterator[Finding]:
    """Kernels know it; shapes alone tell only that tensor cores are used badly or not at all."""
    odd = evidence.layers(part for part in evidence.parts if evidence.multiple and _is_odd(part, evidence.multiple))
    some: Pieces[TimedLayer] | Pieces[TimedKernel] = _without_tensor_cores(evidence) if evidence.launched else odd
    if not evidence.multiple or not some or some.share < thresholds.NO_TENSOR_CORES:
        return
    what = "{layers:#layer} may use tensor cores badly, or not at all"
    if evidence.launched:
        what = "{calls:#kernel call} of convolutions and matrix products {calls:uses|use} no tensor cores"
        paths = {
            path
            for without_tensor_core in _without_tensor_cores(evidence)
            for path in without_tensor_core.kernel.modules
        }
        odd = evidence.layers(timed_layer for timed_layer in odd if paths.intersection(timed_layer.layer.modules))
    sizes = few((f"{timed_layer.name} ({' to '.join(map(str, channels_of(timed_layer)))})" for timed_layer in odd), 1)
    pad = f"make channels and features multiples of {evidence.multiple} by padding" if odd else ""
    order = evidence.hint("channels_last").ask if any(item.family == "convolution" for item in some) else ""
    yield found(
        what + ": {much}{where}" + ("; channels of {sizes} are no multiples of {multiple}." if odd else "."),
        {"multiple": evidence.multiple}, some, sizes=sizes,
        hint=evidence.advice(pad, "try channels-last order" if order else "",
        asks=[order], others="try another backend"),
    )  # fmt: skip


def _without_tensor_cores(evidence: Evidence) -> Pieces[TimedKernel]:
    return evidence.kernels([
        timed_kernel for timed_kernel in evidence.launched
        if timed_kernel.family in DENSE and timed_kernel.kernel.tensor_cores is False
        and could_use_tensor_cores(timed_kernel.kernel.name)
    ])  # fmt: skip


def _is_odd(of: TimedLayer, multiple: int) -> bool:
    """Whether a layer's channels do not fit tensor cores; grouped and first convolutions never do."""
    channels = channels_of(of) if of.family in DENSE and not is_grouped(of) else ()
    is_first = of.family == "convolution" and channels[:1] <= (thresholds.FEW_CHANNELS,)
    return not is_first and any(size % multiple for size in channels)


@rule("tf32-off", of="profile", hint=f"TF32 (of an engine, when it is built). {_TRADE}.")
def tf32_off(evidence: Evidence) -> Iterator[Finding]:
    """An accuracy trade-off, and said to be one."""
    hint = evidence.hint("tf32")
    if not evidence.on_gpu or hint.asked or evidence.precision != "fp32" or evidence.capability < FIRST["tf32"]:
        return
    dense = evidence.layers(part for part in evidence.parts if part.family in DENSE)
    some: Pieces[TimedLayer] | Pieces[TimedKernel] = _without_tensor_cores(evidence) if evidence.launched else dense
    if some.share < thresholds.TF32:
        return
    rates = next((profile.ceilings.rates for profile in evidence.profiles if profile.ceilings), {})
    slow, fast = rates.get("fp32"), rates.get("tf32")
    won = some.seconds * (1 - slow / fast) if slow and fast and 0 < slow < fast else None
    yield found(
        "Convolutions and matrix products take {much} in full fp32, although this GPU has TF32{gain}.",
        {"seconds": some.seconds, "fp32 rate": slow, "tf32 rate": fast},
        subject="convolutions and matrix products", seconds=won, whole=some.run, share=some.share, much=some.much,
        gain=f", {fast / slow:.1f} times as fast" if won and slow and fast else "",
        hint=f"{_TRADE}: {evidence.command(hint.ask)}" if hint.ask else "",
    )  # fmt: skip


@rule(
    "host-copies",
    of="profile",
    hint="Keep constants in buffers of the model; call neither .item() nor .cpu() in forward.",
)
def host_copies(evidence: Evidence) -> Iterator[Finding]:
    """Copies as the profiler names them, ``Memcpy HtoD (Pageable -> Device)``, or a backend's copying layers."""
    copies = tuple(
        timed_kernel
        for timed_kernel in evidence.launched
        if timed_kernel.kind == "copy" and _ACROSS.search(timed_kernel.kernel.name)
    )
    layers = evidence.layers(part for part in evidence.parts if part.family == "copy")
    of = "the call" if evidence.latency else "the profiled call"
    some = Pieces(copies, evidence.call or 0.0, of, evidence.call) if copies else layers
    if evidence.on_gpu and evidence.case.io != "host" and some.share >= thresholds.LAYOUT:
        yield found(
            "{copies:,} {copies:copy|copies} between host and GPU {copies:takes|take} {much}{where}.",
            {"copies": some.calls, "seconds": some.seconds},
            subject=some.longest, seconds=some.seconds, whole=some.run, share=some.share,
            much=some.much, where=some.where,
        )  # fmt: skip


@rule("tiny-kernels", of="profile")
def tiny_kernels(evidence: Evidence) -> Iterator[Finding]:
    """A kernel of a few microseconds mostly starts and ends."""
    kernels = evidence.kernels([timed_kernel for timed_kernel in evidence.launched if timed_kernel.kind == "kernel"])
    tiny = evidence.kernels([e for e in kernels if 0 < e.seconds / max(e.kernel.calls, 1) < thresholds.TINY])
    if tiny.calls >= thresholds.FEW_LAUNCHES and tiny.share >= thresholds.TINY_SHARE:
        yield found(
            "{tiny:,} of {calls:#kernel call} last {mean:duration} on average, and take {much}.",
            {"tiny": tiny.calls, "calls": kernels.calls, "mean": tiny.seconds / tiny.calls}, tiny,
            subject=plural(tiny.calls, "kernel call"),
            hint=evidence.advice(others="a backend that fuses more of them"),
        )  # fmt: skip


@rule("few-blocks", of="profile")
def few_blocks(evidence: Evidence) -> Iterator[Finding]:
    """A multiprocessor without a block has nothing to do."""
    few = [
        timed_kernel
        for timed_kernel in evidence.launched
        if timed_kernel.kind == "kernel" and 0 < timed_kernel.blocks < evidence.multiprocessors
    ]
    some = evidence.kernels(few)
    if some.share >= thresholds.FEW_BLOCKS:
        fills = "For latency, another backend may split the work further; a larger batch fills it"
        fills = "A larger batch fills it" if evidence.rivals else fills
        idle = sum(timed_kernel.seconds * (1 - timed_kernel.blocks / evidence.multiprocessors) for timed_kernel in some)
        yield found(
            "{calls:#kernel call} {calls:has|have} too few blocks for {multiprocessors} multiprocessors: {much}, with "
            "{empty:percent} of the GPU empty.",
            {"idle": idle, "multiprocessors": evidence.multiprocessors}, some, seconds=idle, empty=idle / some.seconds,
            hint=f"{fills}: {evidence.command(larger=True)}",
        )  # fmt: skip
