"""Time that computes nothing: changes of memory order and type, and copies between host and device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.finding import Finding, rule
from inferlens.analysis.findings.hints import Hint
from inferlens.analysis.findings.words import few, kernel, kinds, of_gpu, of_run, short, verb
from inferlens.units import duration, percent, plural

LEAST = 0.02
AT_THE_ENDS = 2
TYPE = "Feed the model in the type that the backend computes in, which is the case's precision for most of it."
ORDER = (
    "Feed the model in the memory order that the backend computes in, or compare other backends (inferlens modules)."
)
BLOCKED = (
    "Compare other backends (inferlens modules): on a CPU the order is often the library's own, in blocks of channels, "
    "which cannot be fed."
)
_ACROSS = re.compile(r"HtoD|DtoH|Host ?To ?Device|Device ?To ?Host", re.IGNORECASE)


@rule(
    "reformats",
    needs="layers, or else kernels",
    speaks=f"layers that only change memory order or type take {percent(LEAST)} of a run together, or such kernels of "
    "the GPU's time",
    silent="where a reshape costs nothing; what a kernel does is told from its name",
    advice="Feed the model in the order and type that the backend computes in: the case's precision, and for "
    "convolutions in PyTorch channels-last (the option channels_last).",
)
def reformats(seen: Evidence) -> Iterator[Finding]:
    """Layers first: a kernel that reformats is part of a layer where layers are told."""
    parts = [each for each in seen.parts if each.family in ("reformat", "cast") and each.seconds > 0]
    total = sum(each.seconds for each in parts)
    if parts and seen.share(total) >= LEAST:
        calls = sum(each.layer.calls for each in parts)
        own = [each for each in parts if each.layer.modules and not each.inserted]
        said = f" {len(own):,} of them {verb(len(own), 'is', 'are')} the model's own." if own else ""
        said = " It is the model's own." if own and len(parts) == 1 else said
        yield Finding(
            subject=plural(len(parts), "layer"),
            sentence=f"{plural(len(parts), 'layer')} that only {verb(len(parts), 'changes', 'change')} memory order or "
            f"type ({kinds(parts)}) {verb(len(parts))} {of_run(total, seen.share(total))}.{said}",
            seconds=total,
            share=seen.share(total),
            evidence={"layers": len(parts), "calls": calls, "own": len(own), "seconds": total},
            advice=_advice(seen, parts, own),
        )
    elif not parts:
        yield from _kernels(seen)


def _advice(seen: Evidence, parts: Sequence[Part], own: Sequence[Part]) -> str:
    """What to try, for what takes most: the model's own, those in the midst of it, or those at its ends."""
    if sum(each.seconds for each in own) * 2 > sum(each.seconds for each in parts):
        return "Permute and cast less in the model: keep one memory order and one type from end to end."
    if len(parts) - len(own) > AT_THE_ENDS:
        return (
            "See what stands between them (inferlens layers --sort order): an operator that the backend cannot compute "
            "in its own order or type is put between two of them. Replace it, or try another backend."
        )
    if not seen.on_gpu and all(each.family == "reformat" for each in parts):
        return BLOCKED
    casts = sum(each.seconds for each in parts if each.family == "cast")
    return TYPE if casts * 2 > sum(each.seconds for each in parts) else _order(seen)


def _order(seen: Evidence) -> str:
    """What memory order to ask for: only where the backend takes such an order, and was not told already."""
    found = seen.hint("channels_last") if seen.convolves else Hint()
    if found.asked:
        return "Compare other backends (inferlens modules): channels-last order was asked for already."
    return f"Keep images and weights in channels-last order ({found.ask})." if found.ask else ORDER


def _kernels(seen: Evidence) -> Iterator[Finding]:
    found = [each for each in seen.launched if each.family == "reformat"]
    total = sum(each.seconds for each in found)
    share = seen.share_of_gpu(total)
    if found and share >= LEAST:
        calls = sum(each.kernel.calls for each in found)
        names = few([kernel(each) for each in sorted(found, key=lambda each: -each.seconds)], 2)
        yield Finding(
            subject=names,
            sentence=f"{plural(calls, 'kernel call')} that only {verb(calls, 'changes', 'change')} memory order "
            f"{verb(calls)} {of_gpu(total, share)}: {names}.",
            seconds=total,
            whole=seen.call,
            share=share,
            evidence={"calls": calls, "seconds": total},
            advice=_order(seen),
        )


@rule(
    "host-copies",
    needs="kernels, or else layers",
    speaks=f"copies between host and GPU inside of a run take {percent(LEAST)} of it",
    silent="where the call begins and ends on the host (`--io host`): the copies are asked for, and `inferlens bench` "
    "tells them apart",
    advice="Keep what the model needs on the GPU: make constants buffers of the model, call neither .item() nor .cpu() "
    "in forward, and look for operators that the backend runs on the CPU.",
)
def host_copies(seen: Evidence) -> Iterator[Finding]:
    """Copies as the profiler names them, ``Memcpy HtoD (Pageable -> Device)``, or ONNX Runtime's copying nodes."""
    if not seen.on_gpu or seen.case.io == "host":
        return
    found = [each for each in seen.launched if each.kernel.kind == "copy" and _ACROSS.search(each.kernel.name)]
    total, calls = sum(each.seconds for each in found), sum(each.kernel.calls for each in found)
    whole, names = seen.call or 0.0, [short(each.kernel.name) for each in found]
    if not found:
        parts: list[Part] = [each for each in seen.parts if each.family == "copy"]
        total, calls = sum(each.seconds for each in parts), sum(each.layer.calls for each in parts)
        whole, names = seen.profiled or 0.0, [kinds(parts)]
    share = total / whole if whole > 0 else 0.0
    if calls and share >= LEAST:
        yield Finding(
            subject=few(names, 2),
            sentence=f"{calls:,} {verb(calls, 'copy', 'copies')} between host and GPU "
            f"inside of a run {verb(calls)} {percent(share)} of it ({duration(total)}): {few(names, 2)}.",
            seconds=total,
            whole=whole,
            share=share,
            evidence={"copies": calls, "seconds": total},
        )
