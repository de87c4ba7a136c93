"""Layers: those far from their floors, those that could be part of others, and those that only move data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import Evidence, TimedLayer
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.profile.families import BATCH_NORM, DENSE, MOVING, POINTWISE
from inferlens.spec.case import Option
from inferlens.spec.hints import sentence
from inferlens.units import plural

# What makes a library take another algorithm, by the names that most backends have for it.
_ALGORITHMS: tuple[tuple[str, Option], ...] = (
    ("channels_last", True), ("cudnn_benchmark", True), ("cudnn_conv_algo_search", "EXHAUSTIVE"),
    ("max_autotune", True), ("optimization_level", 5),
)  # fmt: skip
_HALVES = ("float16", "half", "fp16", "bfloat16", "bf16")
_SINGLES = ("float32", "float", "fp32", "f32")


@rule("far-above-floor", of="profile")
def far_above_floor(seen: Evidence) -> Iterator[Finding]:
    """Layers that take much, and far more than they have to."""
    others = {id(each) for chain in _mergeable(seen.parts) for each in chain}
    unknown = DENSE if seen.floors and seen.floors.rate is None else ()  # floors of memory alone, as there is no rate
    far = [
        (each.steady - floor.floor, each, floor)
        for each in seen.parts
        if each.family not in (*MOVING, *unknown)
        and id(each) not in others
        and seen.share(each.steady) >= thresholds.LARGE
        if (floor := each.floor) and floor.floor and each.steady >= thresholds.FAR * floor.floor
    ]
    for won, each, floor in sorted(far, key=lambda one: -one[0])[: thresholds.MOST_FAR]:
        asks = [seen.hint(*option).ask for option in _ALGORITHMS[each.family != "convolution" :]]
        hint = f"Another algorithm: {seen.command(*asks, others=not any(asks))}"
        if each.family not in DENSE:
            hint = f"A backend that fuses it with the layers around it: {seen.command(others=True)}"
        numbers = {"seconds": each.steady, "floor": floor.floor, "flops": floor.flops, "bytes": floor.bytes}
        yield found(
            "{subject} takes {share:percent} of {call} ({seconds:duration} of {run:duration}), "
            "{distance:two} times its floor of {floor:duration}.",
            {**numbers, "distance": each.steady / floor.floor} if floor.floor else numbers,
            subject=each.name, seconds=won, share=seen.share(each.steady), hint=hint, run=seen.profiled,
            call=seen.of_layers,
        )  # fmt: skip


@rule("bandwidth-bound", of="profile")
def bandwidth_bound(seen: Evidence) -> Iterator[Finding]:
    """Depthwise and grouped convolutions, and products with few rows, do little with every byte."""
    if seen.floors is None or seen.floors.ceilings.disturbed:
        return  # a ceiling that is too low makes floors too long, and layers seem close to them that are not
    near = seen.layers(
        each for each in seen.parts
        if each.family in DENSE and each.floor and each.floor.bound == "memory"
        and each.floor.won and (each.floor.distance or 0.0) <= thresholds.NEAR
    )  # fmt: skip
    floors = [each.floor for each in near if each.floor]
    moved, least = sum(each.bytes or 0.0 for each in floors), sum(each.floor or 0.0 for each in floors)
    lower = seen.case.precision == "fp32" and seen.precision == "fp32"
    half = f"--precision {'fp16' if seen.on_gpu else 'bf16'}"
    if moved >= thresholds.LARGER_THAN_CACHES and near.share >= thresholds.LARGE:
        yield found(
            "{layers:#layer} ({kinds}) {layers:is|are} bound by memory: {layers:it takes|they take} {much}, "
            "{times:two} times what moving {layers:its|their} bytes takes{where}.",
            {"floor": least, "bytes": moved}, near,
            seconds=sum(each.won or 0.0 for each in floors), times=near.seconds / least,
            hint=f"Fewer bytes, by a lower precision: {seen.command(half)}" if lower else
            f"A larger batch, which reads the weights once for all of it: {seen.command(larger=True)}",
        )  # fmt: skip


@rule("first-convolution", of="profile")
def first_convolution(seen: Evidence) -> Iterator[Finding]:
    """Few input channels leave units of the hardware empty: the rate of the others shows what could be reached."""
    convolutions = [each for each in seen.parts if each.family == "convolution" and each.steady > 0]
    known = [(each, done) for each in convolutions[1:] if not is_grouped(each) and (done := flops(each))]
    if not known:
        return
    first, mine, channels = convolutions[0], flops(convolutions[0]), channels_of(convolutions[0])
    if not mine or not channels or channels[0] > thresholds.FEW_CHANNELS:
        return
    rate = sum(done for _, done in known) / sum(each.steady for each, _ in known)
    goal = mine / rate
    if first.steady < thresholds.SLOWER * goal or seen.share(first.steady - goal) < thresholds.FIRST_CONVOLUTION:
        return
    pad = f"pad the input channels to {seen.multiple} (zeros in the input and in the weights)"
    fold, order = "fold 2x2 pixels into channels before it", seen.hint("channels_last").ask
    yield found(
        "{subject}, the first convolution, takes {seconds:duration} of {call}; at the rate of the others it "
        "would take {seconds at their rate:duration}.",
        {
            "channels": channels[0], "seconds": first.steady, "flops": mine, "rate of the others": rate,
            "seconds at their rate": goal,
        },
        subject=first.name, seconds=first.steady - goal, share=seen.share(first.steady), call=seen.of_layers,
        hint=sentence([
            pad if channels[0] < seen.multiple else "", fold if seen.multiple else "",
            "use channels-last order" if order else "try another backend",
        ]).removesuffix(".") + f": {seen.command(order, others=not order)}",
    )  # fmt: skip


@rule("reformats", of="profile")
def reformats(seen: Evidence) -> Iterator[Finding]:
    """Layers first: a kernel that reformats is part of a layer where layers are known."""
    layers = seen.layers(each for each in seen.parts if each.family in ("reformat", "cast"))
    kernels = seen.kernels([each for each in seen.launched if each.family == "reformat"])
    own = seen.layers(each for each in layers if each.layer.modules and "inserted" not in each.layer.details)
    if seen.precisions or max(layers.share, kernels.share if not layers else 0.0) < thresholds.LAYOUT:
        return  # of what is quantized the rule ``conversions`` speaks
    families = {each.family for each in seen.parts} | {each.family for each in seen.launched}
    order = seen.hint("channels_last").ask if "convolution" in families else ""  # which is for images
    hint = f"Keep images and weights in channels-last order: {seen.command(order)}" if order else (
        "Feed the model in the memory order and type that the backend computes in, or compare other backends: "
        f"{seen.command(others=True)}"
    )  # fmt: skip
    if own.seconds * 2 > layers.seconds:
        hint = "Permute and cast less in the model: keep one memory order and one type from end to end."
    yield found(
        "{what} only {change} memory order or type: {much}{where}.",
        {"calls": layers.calls, "own": len(own)} if layers else {}, layers or kernels,
        subject=plural(len(layers), "layer") if layers else "", seconds=layers.seconds or kernels.seconds, hint=hint,
        what=plural(len(layers), "layer") if layers else plural(kernels.calls, "kernel call"),
        change="change" if (len(layers) or kernels.calls) > 1 else "changes",
    )  # fmt: skip


@rule("unfused-chains", of="profile")
def unfused_chains(seen: Evidence) -> Iterator[Finding]:
    """Time of the layers that would be gone if each were computed together with what is before it."""
    some = seen.layers(_mergeable(seen.parts)[0])
    if some.share >= thresholds.CHAINS:
        yield found(
            "{layers:#layer} ({kinds}) {layers:is|are} not fused with what is before {layers:it|them}: {much}{where}.",
            {}, some, seconds=some.seconds,
            hint=f"{'A' if seen.by_module else 'Another'} backend that fuses such layers: {seen.command(others=True)}",
        )  # fmt: skip


@rule("batch-norm-not-folded", of="profile")
def batch_norm_not_folded(seen: Evidence) -> Iterator[Finding]:
    """In inference a batch norm is a scale and a shift, which the weights of what is before it can hold."""
    some = seen.layers(_mergeable(seen.parts)[1])
    if some.share >= thresholds.BATCH_NORMS:
        way = seen.hint("freeze").ask or seen.hint("graph_optimization", "all").ask
        with_what = "" if way else ", by PyTorch's fuse_conv_bn_eval or another backend"
        yield found(
            "{layers:#batch norm} {layers:is|are} not folded into the weights before {layers:it|them}: {much}{where}.",
            {}, some, seconds=some.seconds,
            hint=f"Fold them into the weights{with_what}: {seen.command(way, others=not way)}",
        )  # fmt: skip


@rule("fp32-layers", of="profile")
def fp32_layers(seen: Evidence) -> Iterator[Finding]:
    """Layers that do not compute in what was asked for."""
    some = seen.layers(e for e in seen.parts if e.family not in (*MOVING, "normalisation") and _is_single(e))
    if seen.case.precision in ("fp16", "bf16") and some.share >= thresholds.IN_FP32:
        yield found(
            "{layers:,} of {of:#layer} {layers:computes|compute} in fp32, not in {precision} ({kinds}): {much}{where}.",
            {"of": len(seen.layers(seen.parts))}, some, precision=seen.case.precision,
            hint="Look for a cast in the model, or for operators that the backend has in fp32 alone, and others have "
            f"not: {seen.command(others=True)}",
        )  # fmt: skip


@rule("outside-layers", of="profile")
def outside_layers(seen: Evidence) -> Iterator[Finding]:
    """What profiling has added was in no layer: only what layers as profiled leave of a call is claimed."""
    if seen.layered is None or seen.table is None or seen.latency is None or seen.layered.timed != "host":
        return
    account, scale = seen.table.reconciliation, seen.table.runs.scale
    added = max(account.profiled - seen.latency, 0.0)
    left = account.outside.typical / scale - added
    if 0 < left <= seen.latency and seen.share(left) >= thresholds.OUTSIDE:
        yield found(
            "{share:percent} of the call ({left:duration} of {whole:duration}) is outside of all layers.",
            {"outside": account.outside.typical / scale, "added by profiling": added, "whole": seen.latency},
            subject="the run", seconds=left, share=seen.share(left), left=left,
            hint="Look at Python, checks and copies around the layers; a larger batch spreads it over more items: "
            f"{seen.command(larger=True)}",
        )  # fmt: skip


def channels_of(of: TimedLayer) -> tuple[int, ...]:
    """Channels, or features, that go into a layer and come out of it; empty where that is not known."""
    given, made = (each[0].shape if each else () for each in (of.layer.inputs, of.layer.outputs))
    place = 1 if of.family == "convolution" else -1
    fits = len(given) > 1 and len(made) > 1 and (place < 0 or 3 <= len(given) == len(made) <= 5)
    return (given[place], made[place]) if fits and min(given[place], made[place]) > 0 else ()


def flops(of: TimedLayer) -> float | None:
    """Floating-point operations of a convolution in one run, a multiplication and an addition counted as two.

    Every element of the output takes as many multiplications as a filter has weights; where these are not known, it is
    the work of the layer's modules, of a module in several layers this one's share.
    """
    if weights := filters(of):
        return 2.0 * math.prod(of.layer.outputs[0].shape) * math.prod(weights[1:]) * of.layer.calls
    done = of.floor.flops if of.floor else None
    return done if done and 0 < done < math.inf else None


def filters(of: TimedLayer) -> tuple[int, ...]:
    """Shape of a convolution's weights: filters, channels of each, its sizes; empty where that is not known."""
    if len(of.layer.inputs) < 2 or not of.layer.outputs:
        return ()
    image, weights, out = of.layer.inputs[0].shape, of.layer.inputs[1].shape, of.layer.outputs[0].shape
    fits = len(image) == len(weights) == len(out) >= 3 and weights[0] == out[1] and min(*weights, *out) > 0
    return weights if fits and image[1] % weights[1] == 0 else ()


def is_grouped(of: TimedLayer) -> bool:
    """Whether a convolution's filters are known to see a part of the channels alone."""
    weights = filters(of)
    return bool(weights) and weights[1] < of.layer.inputs[0].shape[1]


def _is_single(of: TimedLayer) -> bool:
    """Whether a layer reads and writes no floating-point type but fp32."""
    types = {tensor.dtype.lower() for tensor in (*of.layer.inputs, *of.layer.outputs)}
    return bool(types.intersection(_SINGLES)) and not types.intersection(_HALVES)


def _mergeable(parts: Sequence[TimedLayer]) -> tuple[list[TimedLayer], list[TimedLayer]]:
    """Pointwise layers that could be computed with what is before them, and batch norms that weights could hold.

    Of a chain that follows no convolution or matrix product the longest layer has to stay.
    """
    fusible: list[TimedLayer] = []
    foldable: list[TimedLayer] = []
    for producer, chain in _chains(parts):
        if producer and BATCH_NORM.search(chain[0].layer.kind):
            foldable.append(chain.pop(0))
        if not producer:
            chain.remove(max(chain, key=lambda each: each.seconds))
        fusible += chain
    return fusible, foldable


def _chains(parts: Sequence[TimedLayer]) -> Iterator[tuple[TimedLayer | None, list[TimedLayer]]]:
    """Every run of pointwise layers in the order of execution, with the convolution or matrix product before it.

    Layers without a time are looked through: nothing was executed there.
    """
    before: TimedLayer | None = None
    chain: list[TimedLayer] = []
    for part in parts:
        if part.family in POINTWISE:
            chain += [part] if part.seconds > 0 else []
        elif part.seconds > 0 or part.family in DENSE:
            if chain:
                yield before, chain
            before, chain = (part if part.family in DENSE else None), []
    if chain:
        yield before, chain
