"""Units and types that compute faster: tensor cores, TF32, and layers left in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferlens.analysis.findings.evidence import FIRST, Evidence, Launched, Part
from inferlens.analysis.findings.families import DENSE, could_use_tensor_cores
from inferlens.analysis.findings.hints import sentence
from inferlens.analysis.findings.names import kinds, longest, longest_kernels, part, where
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.findings.rules.convolutions import input_channels, is_grouped
from inferlens.analysis.findings.thresholds import FEW_CHANNELS, IN_FP32, NO_TENSOR_CORES, TF32
from inferlens.units import listing, plural

_TRADE = (
    "a trade of accuracy for time. Products keep 10 bits of mantissa instead of 23, so check the outputs. A lower "
    "precision is the next step."
)
_HALVES = ("float16", "half", "fp16", "bfloat16", "bf16")
_SINGLES = ("float32", "float", "fp32", "f32")


@rule("tensor-cores-unused", of="profile")
def tensor_cores_unused(seen: Evidence) -> Iterator[Finding]:
    """Kernels know it; shapes alone tell only that tensor cores are used badly or not at all."""
    if not seen.multiple:
        return
    odd = [each for each in seen.parts if each.family in DENSE and each.seconds > 0 and _is_odd(each, seen.multiple)]
    if seen.launched:
        kernels = _without_tensor_cores(seen)
        total, share, calls = seen.on_the_gpu(kernels)
        if kernels and share >= NO_TENSOR_CORES:
            mine = _belonging(kernels, odd)
            yield found(
                "{calls:#kernel call} of convolutions and matrix products {calls:uses|use} no tensor cores and "
                "{calls:takes|take} {gpu}; most in {names}.{why}",
                {"calls": calls, "seconds": total, "multiple": seen.multiple},
                subject=longest_kernels(kernels), share=share, hint=_hint(seen, kernels, bool(mine) or not seen.parts),
                names=longest_kernels(kernels), why=f" {_sizes(mine, seen.multiple)}" if mine else "",
            )  # fmt: skip
        return
    total, share = seen.together(odd)
    if odd and share >= NO_TENSOR_CORES:
        yield found(
            "{sizes} They take {run}, and tensor cores may be used badly in them, or not at all; profiled kernels "
            "would tell.",
            {"layers": len(odd), "seconds": total, "multiple": seen.multiple},
            subject=longest(odd), share=share, hint=_hint(seen, odd, True), sizes=_sizes(odd, seen.multiple),
        )  # fmt: skip


def _hint(seen: Evidence, slow: Sequence[Part] | Sequence[Launched], odd: bool) -> str:
    """Padding where channels may be ``odd``; another memory order where convolutions are among what is slow."""
    order = seen.hint("channels_last").ask if any(each.family == "convolution" for each in slow) else ""
    tries = [f"make channels and features multiples of {seen.multiple} by padding"] if odd else []
    tries += [f"try channels-last order ({order})"] if order else []
    return sentence([*tries, "try another backend"])


def _without_tensor_cores(seen: Evidence) -> list[Launched]:
    return [
        each
        for each in seen.launched
        if each.family in DENSE and each.kernel.tensor_cores is False and could_use_tensor_cores(each.kernel.name)
    ]


def _belonging(kernels: Sequence[Launched], odd: Sequence[Part]) -> list[Part]:
    """The layers that such a kernel belongs to and whose channels do not fit."""
    modules = {path for each in kernels for path in each.kernel.modules}
    layers = {each.kernel.layer for each in kernels}
    return [each for each in odd if each.name in layers or modules.intersection(each.layer.modules)]


def _sizes(odd: Sequence[Part], multiple: int) -> str:
    """``Channels of conv1 (30 to 65) and conv2 (65 to 12) are no multiples of 8.``"""
    ordered = sorted(odd, key=lambda each: -each.seconds)
    said = [f"{part(each)} ({' to '.join(map(str, _channels(each)))})" for each in ordered[:3]]
    rest = len(ordered) - len(said)
    return f"Channels of {listing([*said, plural(rest, 'other')] if rest else said)} are no multiples of {multiple}."


def _is_odd(of: Part, multiple: int) -> bool:
    channels = _channels(of)
    few = of.family == "convolution" and bool(channels) and channels[0] <= FEW_CHANNELS
    return bool(channels) and not few and not is_grouped(of) and any(size % multiple for size in channels)


def _channels(of: Part) -> tuple[int, ...]:
    """Channels, or features, that go into a layer and come out of it; empty where that is not told."""
    if not of.layer.inputs or not of.layer.outputs:
        return ()
    given, made = of.layer.inputs[0].shape, of.layer.outputs[0].shape
    if of.family == "convolution":
        channels = input_channels(of)
        return (channels, made[1]) if channels and len(made) == len(given) and made[1] > 0 else ()
    fits = len(given) > 1 and len(made) > 1 and min(given[-1], made[-1]) > 0
    return (given[-1], made[-1]) if fits else ()


@rule("tf32-off", of="profile", hint=f"TF32 (the option tf32; of an engine, when it is built): {_TRADE}")
def tf32_off(seen: Evidence) -> Iterator[Finding]:
    """An accuracy trade-off, and said to be one."""
    hint = seen.hint("tf32")
    if not seen.on_gpu or hint.asked or seen.precision != "fp32" or seen.capability < FIRST["tf32"]:
        return
    if seen.launched:
        total, share, _ = seen.on_the_gpu(_without_tensor_cores(seen))
    else:
        total, share = seen.together([each for each in seen.parts if each.family in DENSE])
    if share < TF32:
        return
    rates = seen.ceilings.rates if seen.ceilings else {}
    gain = 1 - rates["fp32"] / rates["tf32"] if rates.get("fp32", 0) > 0 and rates.get("tf32", 0) > 0 else None
    won = total * gain if gain is not None and gain > 0 else None
    takes, most = "{gpu}" if seen.launched else "{run}", " At the measured rates {won:duration} of it could be won."
    yield found(
        f"Convolutions and matrix products take {takes} in full fp32, although this GPU has TF32.{most if won else ''}",
        {"seconds": total, "fp32 rate": rates.get("fp32"), "tf32 rate": rates.get("tf32")},
        subject="convolutions and matrix products", seconds=won, whole=seen.call if seen.launched else None,
        share=share, hint=f"{hint.ask}: {_TRADE}" if hint.ask else "", won=won,
    )  # fmt: skip


@rule(
    "fp32-layers",
    of="profile",
    hint="Look why: the backend may have no kernel in the case's precision, a cast in the model, or a rule that keeps "
    "these layers accurate.",
)
def fp32_layers(seen: Evidence) -> Iterator[Finding]:
    """Layers that do not compute in what was asked for."""
    if seen.case.precision not in ("fp16", "bf16"):
        return
    spared = ("normalisation", "reformat", "cast", "copy")
    parts = [each for each in seen.parts if each.family not in spared and each.seconds > 0 and _is_single(each)]
    total, share = seen.together(parts)
    if parts and share >= IN_FP32:
        yield found(
            "{layers:,} of {of:#layer} {layers:computes|compute} in fp32 although the case is {precision} ({kinds}), "
            "and {layers:takes|take} {run}{where}.",
            {"layers": len(parts), "of": sum(each.seconds > 0 for each in seen.parts), "seconds": total},
            subject=longest(parts), share=share, precision=seen.case.precision, kinds=kinds(parts), where=where(parts),
        )  # fmt: skip


def _is_single(of: Part) -> bool:
    """Whether a layer reads and writes no floating-point type but fp32."""
    types = {tensor.dtype.lower() for tensor in (*of.layer.inputs, *of.layer.outputs)}
    return bool(types.intersection(_SINGLES)) and not types.intersection(_HALVES)
