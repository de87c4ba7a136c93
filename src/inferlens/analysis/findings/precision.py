"""Units and types that compute faster: tensor cores, TF32, and layers left in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferlens.analysis.findings.convolutions import FEW_CHANNELS, filters, input_channels
from inferlens.analysis.findings.evidence import FIRST, MULTIPLES, Evidence, Launched, Part
from inferlens.analysis.findings.families import DENSE, could_use_tensor_cores
from inferlens.analysis.findings.finding import Finding, rule
from inferlens.analysis.findings.hints import sentence
from inferlens.analysis.findings.words import kinds, longest, longest_kernels, of_gpu, of_run, part, verb, where
from inferlens.units import duration, listing, percent, plural

LEAST = 0.02
LEAST_IN_FP32 = 0.05
LEAST_TF32 = 0.2
TRADE = (
    "a trade of accuracy for time. Products keep 10 bits of mantissa instead of 23, so check the outputs. A lower "
    "precision is the next step."
)


@rule(
    "tensor-cores-unused",
    needs="kernels, and layers for the reason; without kernels layers alone, with the shapes of their tensors",
    speaks="on a GPU that has tensor cores, in fp16, bf16, fp8, INT8 or TF32: kernels of convolutions and matrix "
    f"products that use none, as their names tell, take {percent(LEAST)} of the GPU's time; without kernels: layers "
    f"whose channels are no multiples of {MULTIPLES['fp16']} (TF32: {MULTIPLES['tf32']}, INT8 and fp8: "
    f"{MULTIPLES['int8']}) take {percent(LEAST)} of a run",
    silent="where a kernel's name does not tell; for products with a vector, depthwise and grouped convolutions; for a "
    f"first convolution with at most {FEW_CHANNELS} channels; in fp32 without TF32, which has a rule of its own",
    advice=f"Make channels and features multiples of {MULTIPLES['fp16']} (TF32: {MULTIPLES['tf32']}, INT8 and fp8: "
    f"{MULTIPLES['int8']}) by padding, where they are not; else channels-last order, where the backend has the option, "
    "or another backend.",
)
def tensor_cores_unused(seen: Evidence) -> Iterator[Finding]:
    """Kernels know it; shapes alone tell only that tensor cores are used badly or not at all."""
    multiple = seen.multiple
    if not multiple:
        return
    odd = [each for each in seen.parts if each.family in DENSE and each.seconds > 0 and _odd(each, multiple)]
    if seen.launched:
        found = _without_tensor_cores(seen)
        total, calls = sum(each.seconds for each in found), sum(each.kernel.calls for each in found)
        share = seen.share_of_gpu(total)
        if found and share >= LEAST:
            mine = _belonging(found, odd)
            why = f" {_sizes(mine, multiple)}" if mine else ""
            yield Finding(
                subject=longest_kernels(found),
                sentence=f"{plural(calls, 'kernel call')} of convolutions and matrix products "
                f"{verb(calls, 'uses', 'use')} no tensor cores and {verb(calls)} {of_gpu(total, share)}; most in "
                f"{longest_kernels(found)}.{why}",
                share=share,
                evidence={"calls": calls, "seconds": total, "multiple": multiple},
                advice=_advice(seen, odd=bool(mine) or not seen.parts, images=_images(found)),
            )
        return
    total = sum(each.seconds for each in odd)
    if odd and seen.share(total) >= LEAST:
        yield Finding(
            subject=longest(odd),
            sentence=f"{_sizes(odd, multiple)} They take {of_run(total, seen.share(total))}, and tensor cores may be "
            "used badly in them, or not at all; profiled kernels would tell.",
            share=seen.share(total),
            evidence={"layers": len(odd), "seconds": total, "multiple": multiple},
            advice=_advice(seen, odd=True, images=_images(odd)),
        )


def _advice(seen: Evidence, *, odd: bool, images: bool) -> str:
    """Padding where channels may be ``odd``; another memory order where convolutions are among what is slow."""
    order = seen.hint("channels_last").ask if images else ""
    tries = [f"make channels and features multiples of {seen.multiple} by padding"] if odd else []
    tries += [f"try channels-last order ({order})"] if order else []
    return sentence([*tries, "try another backend"])


def _images(found: Sequence[Part] | Sequence[Launched]) -> bool:
    return any(each.family == "convolution" for each in found)


def _without_tensor_cores(seen: Evidence) -> list[Launched]:
    return [
        each
        for each in seen.launched
        if each.family in DENSE and each.kernel.tensor_cores is False and could_use_tensor_cores(each.kernel.name)
    ]


def _belonging(found: Sequence[Launched], odd: Sequence[Part]) -> list[Part]:
    """The layers that such a kernel belongs to and whose channels do not fit."""
    modules = {path for each in found for path in each.kernel.modules}
    layers = {each.kernel.layer for each in found}
    return [each for each in odd if each.name in layers or modules.intersection(each.layer.modules)]


def _sizes(odd: Sequence[Part], multiple: int) -> str:
    """``Channels of conv1 (30 to 65) and conv2 (65 to 12) are no multiples of 8.``"""
    ordered = sorted(odd, key=lambda each: -each.seconds)
    said = [f"{part(each)} ({' to '.join(map(str, _channels(each)))})" for each in ordered[:3]]
    rest = len(ordered) - len(said)
    return f"Channels of {listing([*said, plural(rest, 'other')] if rest else said)} are no multiples of {multiple}."


def _odd(of: Part, multiple: int) -> bool:
    channels, weights = _channels(of), filters(of)
    few = of.family == "convolution" and bool(channels) and channels[0] <= FEW_CHANNELS
    grouped = bool(weights) and weights[1] != channels[0]
    return bool(channels) and not few and not grouped and any(size % multiple for size in channels)


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


@rule(
    "tf32-off",
    needs="layers or kernels, and the GPU's compute capability",
    speaks="in fp32, on a GPU with TF32 (compute capability 8.0 and later), without the option tf32: convolutions and "
    f"matrix products take {percent(LEAST_TF32)} of a run, or kernels of these without tensor cores as much of the "
    "GPU's time",
    silent="where the option is on, or the library uses TF32 unasked. What could be won is told if the rates of both "
    "were measured, as if nothing else limited these layers",
    advice=f"TF32 (the option tf32; of an engine, when it is built): {TRADE}",
)
def tf32_off(seen: Evidence) -> Iterator[Finding]:
    """An accuracy trade-off, and said to be one."""
    found = seen.hint("tf32")
    if not seen.on_gpu or found.asked or seen.precision != "fp32" or seen.capability < FIRST["tf32"]:
        return
    if seen.launched:
        total = sum(each.seconds for each in _without_tensor_cores(seen))
        share, said = seen.share_of_gpu(total), of_gpu(total, seen.share_of_gpu(total))
    else:
        total = sum(each.seconds for each in seen.parts if each.family in DENSE)
        share, said = seen.share(total), of_run(total, seen.share(total))
    if share < LEAST_TF32:
        return
    rates = seen.ceilings.rates if seen.ceilings else {}
    gain = 1 - rates["fp32"] / rates["tf32"] if rates.get("fp32", 0) > 0 and rates.get("tf32", 0) > 0 else None
    won = total * gain if gain is not None and gain > 0 else None
    most = f" At the measured rates {duration(won)} of it could be won." if won else ""
    yield Finding(
        subject="convolutions and matrix products",
        sentence=f"Convolutions and matrix products take {said} in full fp32, although this GPU has TF32.{most}",
        seconds=won,
        whole=seen.call if seen.launched else None,
        share=share,
        evidence={"seconds": total, "fp32 rate": rates.get("fp32"), "tf32 rate": rates.get("tf32")},
        advice=f"{found.ask}: {TRADE}" if found.ask else "",
    )


@rule(
    "fp32-layers",
    needs="layers with the types of their tensors",
    speaks=f"in an fp16 or bf16 case, layers that read and write fp32 alone take {percent(LEAST_IN_FP32)} of a run "
    "together",
    silent="for normalisations, which are often kept in fp32 for accuracy, and for layers that only change type or "
    "memory order",
    advice="Look why: the backend may have no kernel in the case's precision, a cast in the model, or a rule that "
    "keeps these layers accurate.",
)
def fp32_layers(seen: Evidence) -> Iterator[Finding]:
    """Layers that do not compute in what was asked for."""
    if seen.case.precision not in ("fp16", "bf16"):
        return
    spared = ("normalisation", "reformat", "cast", "copy")
    found = [
        each for each in seen.parts if each.widths == {"single"} and each.family not in spared and each.seconds > 0
    ]
    total = sum(each.seconds for each in found)
    if found and seen.share(total) >= LEAST_IN_FP32:
        count = len(found)
        timed = sum(each.seconds > 0 for each in seen.parts)
        yield Finding(
            subject=longest(found),
            sentence=f"{count:,} of {plural(timed, 'layer')} {verb(count, 'computes', 'compute')} in fp32 although the "
            f"case is {seen.case.precision} ({kinds(found)}), and {verb(count)} {of_run(total, seen.share(total))}"
            f"{where(found)}.",
            share=seen.share(total),
            evidence={"layers": count, "of": timed, "seconds": total},
        )
