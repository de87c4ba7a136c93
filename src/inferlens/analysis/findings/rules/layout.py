"""Time that computes nothing: changes of memory order and type, and copies between host and device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.hints import Hint
from inferlens.analysis.findings.names import few, kernel, kinds, short
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.findings.thresholds import AT_THE_ENDS, LAYOUT
from inferlens.units import plural

_TYPE = "Feed the model in the type that the backend computes in, which is the case's precision for most of it."
_ORDER = (
    "Feed the model in the memory order that the backend computes in, or compare other backends (inferlens modules)."
)
_BLOCKED = (
    "Compare other backends (inferlens modules): on a CPU the order is often the library's own, in blocks of channels, "
    "which cannot be fed."
)
_BETWEEN = (
    "See what stands between them (inferlens layers --sort order): an operator that the backend cannot compute in its "
    "own order or type is put between two of them. Replace it, or try another backend."
)
_ACROSS = re.compile(r"HtoD|DtoH|Host ?To ?Device|Device ?To ?Host", re.IGNORECASE)


@rule("reformats", of="profile")
def reformats(seen: Evidence) -> Iterator[Finding]:
    """Layers first: a kernel that reformats is part of a layer where layers are told."""
    parts = [each for each in seen.parts if each.family in ("reformat", "cast") and each.seconds > 0]
    total, share = seen.together(parts)
    if parts and share >= LAYOUT:
        own = [each for each in parts if each.layer.modules and not each.inserted]
        said = " {own:,} of them {own:is|are} the model's own." if own else ""
        said = " It is the model's own." if own and len(parts) == 1 else said
        calls = sum(each.layer.calls for each in parts)
        yield found(
            "{layers:#layer} that only {layers:changes|change} memory order or type ({kinds}) {layers:takes|take} "
            f"{{run}}.{said}",
            {"layers": len(parts), "calls": calls, "own": len(own), "seconds": total},
            subject=plural(len(parts), "layer"), seconds=total, share=share, hint=_hint(seen, parts, own),
            kinds=kinds(parts),
        )  # fmt: skip
    elif not parts:
        kernels = sorted((each for each in seen.launched if each.family == "reformat"), key=lambda each: -each.seconds)
        total, share, calls = seen.on_the_gpu(kernels)
        if kernels and share >= LAYOUT:
            names = few([kernel(each) for each in kernels], 2)
            yield found(
                "{calls:#kernel call} that only {calls:changes|change} memory order {calls:takes|take} {gpu}: {names}.",
                {"calls": calls, "seconds": total},
                subject=names, seconds=total, whole=seen.call, share=share, hint=_order(seen), names=names,
            )  # fmt: skip


def _hint(seen: Evidence, parts: Sequence[Part], own: Sequence[Part]) -> str:
    """What to try, for what takes most: the model's own, those in the midst of it, or those at its ends."""
    if sum(each.seconds for each in own) * 2 > sum(each.seconds for each in parts):
        return "Permute and cast less in the model: keep one memory order and one type from end to end."
    if len(parts) - len(own) > AT_THE_ENDS:
        return _BETWEEN
    if not seen.on_gpu and all(each.family == "reformat" for each in parts):
        return _BLOCKED
    casts = sum(each.seconds for each in parts if each.family == "cast")
    return _TYPE if casts * 2 > sum(each.seconds for each in parts) else _order(seen)


def _order(seen: Evidence) -> str:
    """What memory order to ask for: only where the backend takes such an order, and was not told already."""
    hint = seen.hint("channels_last") if seen.convolves else Hint()
    if hint.asked:
        return "Compare other backends (inferlens modules): channels-last order was asked for already."
    return f"Keep images and weights in channels-last order ({hint.ask})." if hint.ask else _ORDER


@rule(
    "host-copies",
    of="profile",
    hint="Keep what the model needs on the GPU: make constants buffers of the model, call neither .item() nor .cpu() "
    "in forward, and look for operators that the backend runs on the CPU.",
)
def host_copies(seen: Evidence) -> Iterator[Finding]:
    """Copies as the profiler names them, ``Memcpy HtoD (Pageable -> Device)``, or a backend's copying layers."""
    if not seen.on_gpu or seen.case.io == "host":
        return
    kernels = [each for each in seen.launched if each.kernel.kind == "copy" and _ACROSS.search(each.kernel.name)]
    total, _, calls = seen.on_the_gpu(kernels)
    whole, names = seen.call or 0.0, [short(each.kernel.name) for each in kernels]
    if not kernels:
        parts = [each for each in seen.parts if each.family == "copy"]
        total, calls = seen.together(parts)[0], sum(each.layer.calls for each in parts)
        whole, names = seen.profiled or 0.0, [kinds(parts)]
    share = total / whole if whole > 0 else 0.0
    if calls and share >= LAYOUT:
        yield found(
            "{copies:,} {copies:copy|copies} between host and GPU inside of a run {copies:takes|take} {share:percent} "
            "of it ({seconds:duration}): {names}.",
            {"copies": calls, "seconds": total},
            subject=few(names, 2), seconds=total, whole=whole, share=share, names=few(names, 2),
        )  # fmt: skip
