"""The first convolution of a network on images: few input channels leave the units of the hardware half empty."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.hints import sentence
from inferlens.analysis.findings.names import part
from inferlens.analysis.findings.rule import Finding, found, rule

_TRANSPOSED = re.compile("transpose|deconv|backpropdata", re.IGNORECASE)
PADDED = 4  # channels that tensor cores have kernels of their own for, beside multiples of 16 bytes
_HAS = "{name}, the first convolution, has {channels:#input channel}"


@rule("first-convolution", of="profile")
def first_convolution(seen: Evidence) -> Iterator[Finding]:
    """The rate of the others is what the same device and library reach in the same run: a goal that can be met."""
    convolutions = [each for each in seen.parts if each.family == "convolution" and each.steady > 0]
    if len(convolutions) < 2:
        return
    first, others = convolutions[0], convolutions[1:]
    channels = input_channels(first)
    if channels is None or channels > thresholds.FEW_CHANNELS:
        return
    mine, share, hint = flops(seen, first), seen.share(first.steady), _tries(seen, channels)
    known = [(done, each) for each in others if (done := flops(seen, each)) and not is_grouped(each)]
    numbers: dict[str, float | int | None] = {"channels": channels, "seconds": first.steady}
    if mine and known:
        rate = sum(done for done, _ in known) / sum(each.steady for _, each in known)
        floor = mine / rate
        won = first.steady - floor
        if first.steady < thresholds.SLOWER * floor or seen.share(won) < thresholds.FIRST_CONVOLUTION:
            return
        yield found(
            f"{_HAS}, takes {{run}} and computes at 1/{{slower:.1f}} of the rate of the other convolutions; at theirs "
            "it would take {seconds at their rate:duration}.",
            {**numbers, "flops": mine, "rate of the others": rate, "seconds at their rate": floor},
            subject=part(first), seconds=won, share=share, hint=hint, name=part(first), slower=first.steady / floor,
        )  # fmt: skip
    elif seen.on_gpu and share >= thresholds.FIRST_CONVOLUTION_WITHOUT_RATE:
        mean = sum(each.steady for each in others) / len(others)
        yield found(
            f"{_HAS} and takes {{run}}, {{times:ratio}} as long as the mean of the other convolutions.",
            {**numbers, "mean of the others": mean},
            subject=part(first), share=share, hint=hint, name=part(first), times=first.steady / mean,
        )  # fmt: skip


def _tries(seen: Evidence, channels: int) -> str:
    """Padding and folding are for tensor cores: that they help anywhere else is not known."""
    tries = []
    if seen.multiple:
        sizes = [str(size) for size in sorted({PADDED, seen.multiple}) if size > channels]
        if sizes:
            tries.append(f"pad the input channels to {' or '.join(sizes)} (zeros in the input and in the weights)")
        tries.append("fold 2x2 pixels into channels before it (space to depth)")
    order = seen.hint("channels_last")
    tries += [f"use channels-last memory order ({order.ask})"] if order.ask else []
    return sentence(tries if seen.multiple else [*tries, "compare other backends (inferlens modules)"])


def input_channels(of: Part) -> int | None:
    """Channels of a convolution's input, which is the second of its logical dimensions; ``None`` if not told."""
    shape = of.layer.inputs[0].shape if of.layer.inputs else ()
    return shape[1] if 3 <= len(shape) <= 5 and shape[1] > 0 else None


def flops(seen: Evidence, of: Part) -> float | None:
    """Floating-point operations of a convolution in one run, a multiplication and an addition counted as two.

    Every element of the output takes as many multiplications as a filter has weights. The weights are the second input,
    where a backend tells it; if they are not told, or the convolution is a transposed one, it is the work of the
    layer's modules, of a module in several layers this one's share.
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


def is_grouped(of: Part) -> bool:
    """Whether a convolution's filters are known to see a part of the channels alone."""
    weights, channels = filters(of), input_channels(of)
    return bool(weights and channels and weights[1] < channels)
