"""The first convolution of a network on images: few input channels leave the units of the hardware half empty."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.finding import Finding, rule
from inferlens.analysis.findings.hints import sentence
from inferlens.analysis.findings.words import of_run, part
from inferlens.units import duration, percent, plural, ratio

LEAST = 0.02
LEAST_WITHOUT_RATE = 0.1
FEW_CHANNELS = 4
SLOWER = 2.0
_TRANSPOSED = re.compile("transpose|deconv|backpropdata", re.IGNORECASE)
PADDED = 4  # channels that tensor cores have kernels of their own for, beside multiples of 16 bytes


@rule(
    "first-convolution",
    needs="layers with the shapes of their tensors; FLOPs from the weights' shape or from the model's work",
    speaks=f"the first convolution has at most {FEW_CHANNELS} input channels, computes at less than "
    f"1/{SLOWER:.0f} of the rate of the other convolutions, and {percent(LEAST)} of a run could be won at their rate; "
    f"without FLOPs, on a GPU: it takes {percent(LEAST_WITHOUT_RATE)} of a run",
    silent="where it is the only convolution; grouped ones are not compared with",
    advice="On tensor cores: pad the input channels to 4 or 8 (zeros in the input and in the weights), or fold 2x2 "
    "pixels into channels before it (space to depth). Anywhere: channels-last memory order, where the backend has the "
    "option, or another backend.",
)
def first_convolution(seen: Evidence) -> Iterator[Finding]:
    """The rate of the others is what the same device and library reach in the same run: a goal that can be met."""
    found = [each for each in seen.parts if each.family == "convolution" and each.steady > 0]
    if len(found) < 2:
        return
    first, others = found[0], found[1:]
    channels = input_channels(first)
    if channels is None or channels > FEW_CHANNELS:
        return
    mine, share = flops(seen, first), seen.share(first.steady)
    known = [(done, each) for each in others if (done := flops(seen, each)) and not _grouped(each)]
    says = f"{part(first)}, the first convolution, has {plural(channels, 'input channel')}"
    advice = sentence(_tries(seen, channels))
    if mine and known:
        rate = sum(done for done, _ in known) / sum(each.steady for _, each in known)
        floor = mine / rate
        won = first.steady - floor
        if first.steady < SLOWER * floor or seen.share(won) < LEAST:
            return
        yield Finding(
            subject=part(first),
            sentence=f"{says}, takes {of_run(first.steady, share)} and computes at 1/{first.steady / floor:.1f} of "
            f"the rate of the other convolutions; at theirs it would take {duration(floor)}.",
            seconds=won,
            share=share,
            advice=advice,
            evidence={
                "channels": channels,
                "seconds": first.steady,
                "flops": mine,
                "rate of the others": rate,
                "seconds at their rate": floor,
            },
        )
    elif seen.on_gpu and share >= LEAST_WITHOUT_RATE:
        mean = sum(each.steady for each in others) / len(others)
        yield Finding(
            subject=part(first),
            sentence=f"{says} and takes {of_run(first.steady, share)}, {ratio(first.steady / mean)} as long as the "
            "mean of the other convolutions.",
            share=share,
            advice=advice,
            evidence={"channels": channels, "seconds": first.steady, "mean of the others": mean},
        )


def _tries(seen: Evidence, channels: int) -> list[str]:
    """Padding and folding are for tensor cores: that they help anywhere else is not known."""
    tries = []
    if seen.multiple:
        sizes = [str(size) for size in sorted({PADDED, seen.multiple}) if size > channels]  # TensorRT pads to 4 itself
        if sizes:
            tries.append(f"pad the input channels to {' or '.join(sizes)} (zeros in the input and in the weights)")
        tries.append("fold 2x2 pixels into channels before it (space to depth)")
    order = seen.hint("channels_last")
    tries += [f"use channels-last memory order ({order.ask})"] if order.ask else []
    return tries if seen.multiple else [*tries, "compare other backends (inferlens modules)"]


def input_channels(of: Part) -> int | None:
    """Channels of a convolution's input, which is the second of its logical dimensions; ``None`` if not told."""
    shape = of.layer.inputs[0].shape if of.layer.inputs else ()
    return shape[1] if 3 <= len(shape) <= 5 and shape[1] > 0 else None


def flops(seen: Evidence, of: Part) -> float | None:
    """Floating-point operations of a convolution in one run, a multiplication and an addition counted as two.

    Every element of the output takes as many multiplications as a filter has weights. The weights are the second input,
    as ONNX Runtime and OpenVINO tell it; if they are not told, or the convolution is a transposed one, it is the work
    of the layer's modules, of a module in several layers this one's share.
    """
    weights = filters(of)
    out = of.layer.outputs[0].shape if of.layer.outputs else ()
    if weights and len(out) == len(weights) and all(size > 0 for size in out) and not _TRANSPOSED.search(of.layer.kind):
        return 2.0 * math.prod(out) * math.prod(weights[1:]) * of.layer.calls
    done = seen.done(of)
    return done.flops if done and 0 < done.flops < math.inf else None


def filters(of: Part) -> tuple[int, ...]:
    """Shape of a convolution's weights: filters, channels of each, its sizes; empty where that is not told."""
    if len(of.layer.inputs) < 2 or not of.layer.outputs:
        return ()
    image, weights, out = of.layer.inputs[0].shape, of.layer.inputs[1].shape, of.layer.outputs[0].shape
    fits = len(image) == len(weights) == len(out) >= 3 and weights[0] == out[1] and all(size > 0 for size in weights)
    return weights if fits and image[1] % weights[1] == 0 else ()


def _grouped(of: Part) -> bool:
    weights = filters(of)
    channels = input_channels(of)
    return bool(weights and channels and weights[1] < channels)
