"""Layers: those far from their floors, that could be part of others, that only move data, or that fell back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import Evidence, Pieces, TimedLayer, few, module, short
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.interference.samples import latencies
from inferlens.analysis.profile.families import BATCH_NORM, DENSE, MOVING, POINTWISE
from inferlens.record.partition import partition_in
from inferlens.spec.case import Option
from inferlens.stats.quantiles import median
from inferlens.units import listing, percent, plural

# What makes a library take another algorithm, by the names that most backends have for it.
_ALGORITHMS: tuple[tuple[str, Option], ...] = (
    ("channels_last", True), ("cudnn_benchmark", True), ("cudnn_conv_algo_search", "EXHAUSTIVE"),
    ("max_autotune", True), ("optimization_level", 5),
)  # fmt: skip
_HALVES = ("float16", "half", "fp16", "bfloat16", "bf16")
_SINGLES = ("float32", "float", "fp32", "f32")


@rule("far-above-floor", of="profile")
def far_above_floor(evidence: Evidence) -> Iterator[Finding]:
    """Layers that take much, and far more than they have to."""
    others = {id(timed_layer) for chain in _mergeable(evidence.parts) for timed_layer in chain}
    unknown = (
        DENSE if evidence.floors and evidence.floors.rate is None else ()
    )  # floors of memory alone, as there is no rate
    far = [
        (part.steady - floor.floor, part, floor)
        for part in evidence.parts
        if part.family not in (*MOVING, *unknown)
        and id(part) not in others
        and evidence.share(part.steady) >= thresholds.LARGE
        if (floor := part.floor) and floor.floor and part.steady >= thresholds.FAR * floor.floor
    ]
    for won, timed_layer, floor in sorted(far, key=lambda one: -one[0])[: thresholds.MOST_FAR]:
        asks = [evidence.hint(*option).ask for option in _ALGORITHMS[timed_layer.family != "convolution" :]]
        hint = evidence.advice("another algorithm" if any(asks) else "", asks=asks, others="another algorithm")
        if timed_layer.family not in DENSE:
            hint = evidence.advice(others="a backend that fuses it with the layers around it")
        numbers = {"seconds": timed_layer.steady, "floor": floor.floor, "flops": floor.flops, "bytes": floor.bytes}
        yield found(
            "{subject} takes {share:percent} of {call} ({seconds:duration} of {run:duration}), "
            "{distance:two} times its floor of {floor:duration}.",
            {**numbers, "distance": timed_layer.steady / floor.floor} if floor.floor else numbers,
            subject=timed_layer.name, seconds=won, share=evidence.share(timed_layer.steady),
            hint=hint, run=evidence.profiled,
            call=evidence.of_layers,
        )  # fmt: skip


@rule("near-ceiling", of="profile")
def near_ceiling(evidence: Evidence) -> Iterator[Finding]:
    """A call that takes about as long as its arithmetic and its bytes do."""
    floors = evidence.floors
    if floors is None or floors.won is None or floors.bound or not floors.time or floors.ceilings.disturbed:
        return
    if floors.known >= thresholds.MOSTLY_KNOWN * floors.time and floors.won <= thresholds.NEAR_CEILING * floors.time:
        yield found(
            "The call is near its ceiling: faster layers could win {won:duration} of {time:duration} at most.",
            {"won": floors.won, "time": floors.time, "floor": floors.floor},
            subject="the run", share=1 - floors.won / floors.time, hint=evidence.last_resort,
        )  # fmt: skip


@rule("bandwidth-bound", of="profile")
def bandwidth_bound(evidence: Evidence) -> Iterator[Finding]:
    """Depthwise and grouped convolutions, and products with few rows, do little with every byte."""
    if evidence.floors is None or evidence.floors.ceilings.disturbed:
        return  # a ceiling that is too low makes floors too long, and layers seem close to them that are not
    near = evidence.layers(
        part for part in evidence.parts
        if part.family in DENSE and part.floor and part.floor.bound == "memory"
        and part.floor.won and (part.floor.distance or 0.0) <= thresholds.NEAR
    )  # fmt: skip
    floors = [timed_layer.floor for timed_layer in near if timed_layer.floor]
    moved, least = sum(floor.bytes or 0.0 for floor in floors), sum(floor.floor or 0.0 for floor in floors)
    lower = evidence.case.precision == "fp32" and evidence.precision == "fp32"
    half = f"--precision {'fp16' if evidence.on_gpu else 'bf16'}"
    if moved >= thresholds.LARGER_THAN_CACHES and near.share >= thresholds.LARGE:
        yield found(
            "{layers:#layer} ({kinds}) {layers:is|are} bound by memory: {layers:it takes|they take} {much}, "
            "{times:two} times what moving {layers:its|their} bytes takes{where}.",
            {"floor": least, "bytes": moved}, near,
            seconds=sum(floor.won or 0.0 for floor in floors), times=near.seconds / least,
            hint=f"Fewer bytes, by a lower precision: {evidence.command(half)}" if lower else
            f"A larger batch, which reads the weights once for all of it: {evidence.command(larger=True)}",
        )  # fmt: skip


@rule("first-convolution", of="profile")
def first_convolution(evidence: Evidence) -> Iterator[Finding]:
    """Few input channels leave units of the hardware empty: the rate of the others shows what could be reached."""
    convolutions = [part for part in evidence.parts if part.family == "convolution" and part.steady > 0]
    known = [
        (convolution, done)
        for convolution in convolutions[1:]
        if not is_grouped(convolution) and (done := flops(convolution))
    ]
    if not known:
        return
    first, mine, channels = convolutions[0], flops(convolutions[0]), channels_of(convolutions[0])
    if not mine or not channels or channels[0] > thresholds.FEW_CHANNELS:
        return
    rate = sum(item for _, item in known) / sum(timed_layer.steady for timed_layer, _ in known)
    goal = mine / rate
    if first.steady < thresholds.SLOWER * goal or evidence.share(first.steady - goal) < thresholds.FIRST_CONVOLUTION:
        return
    pad = f"pad the input channels to {evidence.multiple} (zeros in the input and in the weights)"
    fold, order = "fold 2x2 pixels into channels before it", evidence.hint("channels_last").ask
    yield found(
        "{subject}, the first convolution, takes {seconds:duration} of {call}; at the rate of the others it "
        "would take {seconds at their rate:duration}.",
        {
            "channels": channels[0], "seconds": first.steady, "flops": mine, "rate of the others": rate,
            "seconds at their rate": goal,
        },
        subject=first.name, seconds=first.steady - goal, share=evidence.share(first.steady), call=evidence.of_layers,
        hint=evidence.advice(
            pad if channels[0] < evidence.multiple else "", fold if evidence.multiple else "",
            "use channels-last order" if order else "", asks=[order], others="try another backend",
        ),
    )  # fmt: skip


@rule("reformats", of="profile")
def reformats(evidence: Evidence) -> Iterator[Finding]:
    """Layers first: a kernel that reformats is part of a layer where layers are known."""
    layers = evidence.layers(part for part in evidence.parts if part.family in ("reformat", "cast"))
    kernels = evidence.kernels(
        [timed_kernel for timed_kernel in evidence.launched if timed_kernel.family == "reformat"]
    )
    own = evidence.layers(layer for layer in layers if layer.layer.modules and "inserted" not in layer.layer.details)
    if evidence.precisions or max(layers.share, kernels.share if not layers else 0.0) < thresholds.LAYOUT:
        return  # of what is quantized the rule ``conversions`` speaks
    families = {part.family for part in evidence.parts} | {timed_layer.family for timed_layer in evidence.launched}
    order = evidence.hint("channels_last").ask if "convolution" in families else ""  # which is for images
    feed = "feed the model in the memory order and type that the backend computes in"
    hint = evidence.advice(
        "keep images and weights in channels-last order" if order else feed, asks=[order],
        others="compare other backends",
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
def unfused_chains(evidence: Evidence) -> Iterator[Finding]:
    """Time of the layers that would be gone if each were computed together with what is before it."""
    some = evidence.layers(_mergeable(evidence.parts)[0])
    if some.share >= thresholds.CHAINS:
        yield found(
            "{layers:#layer} ({kinds}) {layers:is|are} not fused with what is before {layers:it|them}: {much}{where}.",
            {}, some, seconds=some.seconds,
            hint=evidence.advice(others=f"{'a' if evidence.by_module else 'another'} backend that fuses such layers"),
        )  # fmt: skip


@rule("batch-norm-not-folded", of="profile")
def batch_norm_not_folded(evidence: Evidence) -> Iterator[Finding]:
    """In inference a batch norm is a scale and a shift, which the weights of what is before it can hold."""
    some = evidence.layers(_mergeable(evidence.parts)[1])
    if some.share >= thresholds.BATCH_NORMS:
        way = evidence.hint("freeze").ask or evidence.hint("graph_optimization", "all").ask
        with_what = "" if way else " by PyTorch's fuse_conv_bn_eval"
        yield found(
            "{layers:#batch norm} {layers:is|are} not folded into the weights before {layers:it|them}: {much}{where}.",
            {}, some, seconds=some.seconds,
            hint=evidence.advice(f"fold them into the weights{with_what}", asks=[way], others="take another backend"),
        )  # fmt: skip


@rule("fp32-layers", of="profile")
def fp32_layers(evidence: Evidence) -> Iterator[Finding]:
    """Layers that do not compute in what was asked for."""
    some = evidence.layers(e for e in evidence.parts if e.family not in (*MOVING, "normalisation") and _is_single(e))
    if evidence.case.precision in ("fp16", "bf16") and some.share >= thresholds.IN_FP32:
        yield found(
            "{layers:,} of {of:#layer} {layers:computes|compute} in fp32, not in {precision} ({kinds}): {much}{where}.",
            {"of": len(evidence.layers(evidence.parts))}, some, precision=evidence.case.precision,
            hint=evidence.advice(
                "look for a cast in the model", others="for operators that others have in lower precisions"
            ),
        )  # fmt: skip


@rule("outside-layers", of="profile")
def outside_layers(evidence: Evidence) -> Iterator[Finding]:
    """What profiling has added was in no layer: only what layers as profiled leave of a call is claimed."""
    if (
        evidence.layered is None
        or evidence.table is None
        or evidence.latency is None
        or evidence.layered.timed != "host"
    ):
        return
    account, scale = evidence.table.reconciliation, evidence.table.runs.scale
    added = max(account.profiled - evidence.latency, 0.0)
    left = account.outside.typical / scale - added
    if 0 < left <= evidence.latency and evidence.share(left) >= thresholds.OUTSIDE:
        yield found(
            "{share:percent} of the call ({left:duration} of {whole:duration}) is outside of all layers.",
            {"outside": account.outside.typical / scale, "added by profiling": added, "whole": evidence.latency},
            subject="the run", seconds=left, share=evidence.share(left), left=left,
            hint="Look at Python, checks and copies around the layers; a larger batch spreads it over more items: "
            f"{evidence.command(larger=True)}",
        )  # fmt: skip


def channels_of(of: TimedLayer) -> tuple[int, ...]:
    """Channels, or features, that go into a layer and come out of it; empty where that is not known."""
    given, made = (tensors[0].shape if tensors else () for tensors in (of.layer.inputs, of.layer.outputs))
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
            chain.remove(max(chain, key=lambda timed_layer: timed_layer.seconds))
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


# A model that does not run in one piece


@rule("fallback", of="profile")
def fallback(evidence: Evidence) -> Iterator[Finding]:
    """What does not run where the case says."""
    partition = partition_in(evidence.facts)
    if partition and partition.breaks:
        breaks = partition.breaks
        known = None not in partition.engines  # some front ends do not tell what is in an engine
        outside = {item.segment for item in breaks}
        paths: dict[bool, set[str | None]] = {True: set(), False: set()}
        for number, segment in enumerate(partition.segments):
            paths[number in outside] |= {operator.module for operator in segment.operators}
        alone = paths[True] - paths[False]  # modules of which no operator is in an engine
        some = evidence.layers(e for e in evidence.parts if e.layer.modules and alone.issuperset(e.layer.modules))
        subject = few(module(path) for item in breaks for path in item.modules if path) or "the model"
        yield found(
            "{in PyTorch:#operator} {in PyTorch:runs|run} outside of engines, in {subject}{taken}.",
            {
                "operators": partition.operators if known else None,
                "in PyTorch": sum(sum(item.operators.values()) for item in breaks),
                "segments": len(partition.segments),
                "engines": len(partition.engines),
                "seconds": some.seconds if some else None,
            },
            subject=subject, share=some.share if some else None, taken=f": at least {some.much}" if some else "",
            hint="See each operator's reason: " + (evidence.command(what="partition") or 'profile.facts["partition"]'),
        )  # fmt: skip
    on_cpu = [part for part in evidence.parts if str(part.layer.details.get("provider", "")).startswith("CPU")]
    some = evidence.layers(on_cpu)
    if evidence.on_gpu and some:
        yield found(
            "{layers:#layer} {layers:runs|run} on the CPU ({kinds}) and {layers:takes|take} {much}, without the copies "
            "to and fro{where}.",
            {"layers": len(on_cpu)}, some, seconds=some.seconds,
            hint=evidence.advice(
                "replace these operators in the model", others="run it with a backend that has them on the GPU"
            ),
        )  # fmt: skip


@rule("graph-breaks", of="profile", hint="Take what breaks it out of forward.")
def graph_breaks(evidence: Evidence) -> Iterator[Finding]:
    """Why the model was compiled in several pieces."""
    count, reasons = _breaks(evidence.facts)
    graphs = evidence.facts.get("graphs")
    if count > 0:
        ask = evidence.hint("fullgraph").ask
        yield found(
            "{breaks:#graph break} {breaks:splits|split} the compiled model{why}.",
            {"breaks": count, "graphs": graphs if isinstance(graphs, int) else None},
            subject="the compiled graph", why=f": {few(map(short, reasons))}" if reasons else "",
            hint=f"Take what breaks it out of forward, from the first on: {evidence.command(ask)}" if ask else "",
        )  # fmt: skip


def _breaks(facts: dict[str, Any]) -> tuple[int, list[str]]:
    kept = facts.get("graph_breaks")
    if isinstance(kept, dict) and isinstance(kept.get("count"), int):
        reasons = kept.get("reasons")
        return kept["count"], [str(reason) for reason in reasons] if isinstance(reasons, list) else []
    partition = partition_in(facts)
    reasons = list(partition.graph_breaks) if partition else []
    return len(reasons), reasons


# A quantized model


@rule("stayed-in-fp32", of="profile")
def stayed_in_fp32(evidence: Evidence) -> Iterator[Finding]:
    """Layers with multiply-adds that are computed as before."""
    stayed = _stayed(evidence)
    if stayed and stayed.share >= thresholds.STAYED:
        names = dict.fromkeys(timed_layer.layer.precision for timed_layer in stayed)
        yield found(
            "{layers:#layer} with multiply-adds {layers:is|are} in {types}, not in {precision}: {much}{where}.",
            {}, stayed, types=listing(list(names)), precision=evidence.case.precision,
            hint=evidence.advice(others=f"see whether another backend has it in {evidence.case.precision}"),
        )  # fmt: skip


@rule("conversions", of="profile")
def conversions(evidence: Evidence) -> Iterator[Finding]:
    """Layers that quantize, dequantize, or change the memory order for it, and were not fused."""
    some = _at(evidence, evidence.precisions.conversions if evidence.precisions else ())
    if some and some.share >= thresholds.CONVERSIONS:
        yield found(
            "{layers:#layer} ({kinds}) only {layers:converts|convert} to and from {precision}: {much}{where}.",
            {}, some, seconds=some.seconds, precision=evidence.case.precision,
            hint=evidence.advice(others="another backend, which may fuse them or need fewer"),
        )  # fmt: skip


@rule("int8-not-faster", of="profile")
def int8_not_faster(evidence: Evidence) -> Iterator[Finding]:
    """A quantized case that is as slow as the same in fp32, and what the profile shows of the reason."""
    before = latencies(evidence.plain).for_median if evidence.plain else ()
    if not evidence.latency or not before or median(before) >= thresholds.LITTLE_WON * evidence.latency:
        return
    precisions = evidence.precisions
    stayed, converting = _stayed(evidence), precisions.converting if precisions else 0.0
    work = precisions.work.get(evidence.case.precision) if precisions else None
    if converting >= thresholds.CONVERSIONS:
        why = f"conversions take {percent(converting)} of it"
    elif stayed and stayed.share >= thresholds.STAYED:
        why = f"layers that stayed as they were take {percent(stayed.share)} of it"
    else:
        why = f"{percent(work)} of its multiply-adds are in {evidence.case.precision}" if work else ""
    yield found(
        "A call takes {seconds:duration} in {precision} and {before:duration} in fp32{why}.",
        {"seconds": evidence.latency, "before": median(before)},
        subject="the run", precision=evidence.case.precision, why=f": {why}" if why else "",
        seconds=max(evidence.latency - median(before), 0.0), whole=evidence.latency,
        hint="Measure both in turns, then keep the faster: "
        + evidence.command(f"--precision fp32,{evidence.case.precision}"),
    )  # fmt: skip


def _stayed(evidence: Evidence) -> Pieces[TimedLayer] | None:
    return _at(evidence, evidence.precisions.stayed if evidence.precisions else ())


def _at(evidence: Evidence, places: Iterable[int]) -> Pieces[TimedLayer] | None:
    """The layers at these places; ``None`` if there are none."""
    return evidence.layers([evidence.parts[place] for place in places]) or None
