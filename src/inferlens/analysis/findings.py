"""Findings about one profiled case: the rules about its layers and kernels, and their ranking.

A rule reports only what its evidence shows, and only above a threshold. A saving is always an upper bound. The
thresholds are explained in ``docs/findings.md``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from inferlens.analysis.evidence import (
    FIRST_CAPABILITY,
    LAUNCH_LESS,
    NEGLIGIBLE,
    Evidence,
    Finding,
    Findings,
    PartGroup,
    TimedKernel,
    TimedLayer,
    enqueue_bound_finding,
    list_few,
    make_finding,
    module_label,
    rule,
    shorten,
)
from inferlens.analysis.profile_table import BATCH_NORM, DENSE, MOVING, POINTWISE, could_use_tensor_cores, kernels_alone
from inferlens.analysis.samples import latencies
from inferlens.errors import InferlensError
from inferlens.record.builds import Partition, partition_in
from inferlens.record.profile import Profile
from inferlens.record.record import Record
from inferlens.spec.case import Option
from inferlens.stats.samples import median
from inferlens.units import listing, percent, plural

# Thresholds about layers; shares are of a run unless a comment names another base.
LARGE = 0.1  # for a layer to matter
FAR = 5.0  # times its floor
MOST_FAR = 3  # layers to report
NEAR = 2.0  # times its floor: about as close as bytes allow
LARGER_THAN_CACHES = 64 * 2**20  # bytes
FIRST_CONVOLUTION = 0.02
FEW_CHANNELS = 4
SLOWER = 2.0  # times the time that it would take at the rate of other convolutions
LAYOUT = 0.02
CHAINS = 0.05
BATCH_NORMS = 0.02
IN_FP32 = 0.05
OUTSIDE = 0.05
NOT_QUANTIZED = 0.05  # in layers with multiply-adds
CONVERSIONS = 0.05
LITTLE_GAIN = 1.05  # latency in fp32 over the quantized one: less is no gain
MOSTLY_KNOWN = 0.9  # in layers with a floor
NEAR_CEILING = 0.25  # above the floors: libraries seldom come closer
# Thresholds about kernels; shares are of the time in which the GPU is busy.
NO_TENSOR_CORES = 0.02
TF32 = 0.2
FEW_LAUNCHES = 20
TINY = 5e-6  # seconds of a kernel
TINY_SHARE = 0.2
FEW_BLOCKS = 0.2
# Thresholds about the profile itself.
COST, FASTER = 1.3, 0.77  # profiled calls over unprofiled ones
GPU_COST = 1.1  # time of the busy GPU over an unprofiled call
RUN_SPREAD = 1.5  # 95th percentile over the median

UNKNOWN_SHARE = 0.1  # of a run, for findings without a known cost: a fallback or a graph break must not come last
_HOST_CODES = {"host-bound", "outside-layers"}  # codes about a waiting GPU; all others are about its work
# Options that select another algorithm, by the names that most backends use.
_ALGORITHMS: tuple[tuple[str, Option], ...] = (
    ("channels_last", True), ("cudnn_benchmark", True), ("cudnn_conv_algo_search", "EXHAUSTIVE"),
    ("max_autotune", True), ("optimization_level", 5),
)  # fmt: skip
_HALF_TYPES = ("float16", "half", "fp16", "bfloat16", "bf16")
_SINGLE_TYPES = ("float32", "float", "fp32", "f32")
_HOST_COPY = re.compile(r"HtoD|DtoH|Host ?To ?Device|Device ?To ?Host", re.IGNORECASE)
_TRADE = "A trade of accuracy for time, so check the outputs"


def findings(
    profiles: Profile | Sequence[Profile],
    record: Record | None = None,
    fp32_record: Record | None = None,
    alternatives: Mapping[str, float | None] | None = None,
) -> Findings:
    """Return the findings about the profiles of one case, most important first.

    Findings about time come first, ordered by the share of a run that could be saved, or else that they are about; an
    unknown share counts as a tenth. Findings about the reliability of the profile follow. If no saving is large, the
    first finding tells the remaining options.

    Args:
        profiles: of one case; several are its levels.
        record: of the same case, timed without profiling; rules that need the duration of a call are silent without it.
        fp32_record: of a quantized case, the record of the same in fp32.
        alternatives: names of other backends that were measured, and their seconds if they ran. They are not
            recommended again.

    Raises InferlensError if the profiles are of different cases, or if there are none.
    """
    evidence = evidence_of(profiles, record)
    evidence = dataclasses.replace(evidence, fp32_record=fp32_record, alternatives=alternatives or {})
    results = [_of_a_call(finding, evidence) for rule in PROFILE_RULES for finding in rule(evidence)]
    savings = [importance(finding) for finding in results if finding.about == "time"]
    if savings and max(savings) <= NEGLIGIBLE:
        results.append(
            make_finding(
                "No change of a layer or kernel could win more than {most:percent} of the call.",
                {"most": max(savings)}, code="near-ceiling", subject="the run", share=1 - max(savings),
                hint=evidence.last_resort,
            )
        )  # fmt: skip
    return Findings(sorted(results, key=lambda finding: (finding.about != "time", -importance(finding))))


def evidence_of(profiles: Profile | Sequence[Profile], record: Record | None = None) -> Evidence:
    """Return the evidence of the rules; accepts and rejects the same profiles as :func:`findings`."""
    levels = (profiles,) if isinstance(profiles, Profile) else tuple(profiles)
    if len({profile.case.digest for profile in levels}) != 1:
        raise InferlensError("Findings are for one case at a time.", expected="one profile, or several levels of it")
    return Evidence(levels, record)


def missing_evidence(evidence: Evidence) -> list[str]:
    """Return the kinds of evidence that the rules lacked, a few words for each."""
    has_layers = bool(evidence.timed_layers)
    missing = {
        "layers (no profile of them)": not has_layers,
        "kernels (no profile of them)": evidence.on_gpu and not evidence.timed_kernels,
        "floors (the model's work or the device's ceilings are not known)": has_layers and evidence.floors is None,
        "unprofiled calls (no record beside the profile)": evidence.latency is None,
    }
    return [words for words, is_missing in missing.items() if is_missing]


def _of_a_call(finding: Finding, evidence: Evidence) -> Finding:
    unprofiled = None not in (finding.seconds, finding.whole) and finding.whole == evidence.latency
    whole = None if finding.seconds is None else finding.whole or evidence.layer_call
    return replace(finding, whole=whole, unprofiled=unprofiled)


def importance(finding: Finding) -> float:
    """Return the share of a run that could be saved, or that the finding is about, or a default."""
    return next(share for share in (finding.saving, finding.share, UNKNOWN_SHARE) if share is not None)


def gain(finding: Finding, findings: Sequence[Finding]) -> float | None:
    """Return the share of a call that could be saved; ``None`` if unknown, given all findings of the case.

    A time that was scaled from a much longer profiled call only shows where to look. While a call waits for the host,
    faster layers and kernels save nothing.
    """
    codes = {finding.code for finding in findings}
    waits = "host-bound" in codes and finding.code not in _HOST_CODES
    return None if waits or ("doubtful-profile" in codes and not finding.unprofiled) else finding.saving


# The profile itself


@rule("doubtful-profile", about="trust", hint="Shares say where to look, not what can be won.")
def doubtful_profile(evidence: Evidence) -> Iterator[Finding]:
    table, profile = evidence.table, evidence.layer_profile
    account = table.reconciliation if table and profile and not kernels_alone(profile) else None
    if account and account.cost is not None:
        slower = min(account.cost, account.cost_low or account.cost) >= COST
        if slower or max(account.cost, account.cost_high or account.cost) <= FASTER:
            yield make_finding(
                "Layer times are doubtful: a profiled call takes {profiled:duration}, {cost:ratio} an unprofiled one.",
                {"cost": account.cost, "profiled": account.profiled, "untouched": account.unprofiled},
                subject="the layers",
            )
    if evidence.latency and evidence.busy >= GPU_COST * evidence.latency:
        yield make_finding(
            "Kernel times are doubtful: the GPU works {busy:duration} of a profiled call, an unprofiled call takes "
            "{latency:duration}.",
            {"busy": evidence.busy, "latency": evidence.latency},
            subject="the kernels",
        )


@rule("unstable", about="trust", hint="Look for what else runs on the machine; more --runs.")
def unstable(evidence: Evidence) -> Iterator[Finding]:
    whole = evidence.table.reconciliation.whole if evidence.table else None
    if evidence.table and whole and whole.p95 is not None and 0 < RUN_SPREAD * whole.median <= whole.p95:
        scale = evidence.table.runs.whole_scale
        yield make_finding(
            "Profiled runs vary: their 95th percentile is {p95:duration}, {times:ratio} their median.",
            {"p95": whole.p95 / scale, "median": whole.median / scale},
            subject="the runs", times=whole.p95 / whole.median,
        )  # fmt: skip


@rule("host-bound")
def host_bound(evidence: Evidence) -> Iterator[Finding]:
    """Report a GPU that waits for the host, or without kernels, calls that take no longer than enqueueing them."""

    def hint() -> str:
        graph = evidence.hint("cuda_graph")
        if graph.asked:
            return f"A larger batch: {evidence.command(larger=True)}"
        if graph.ask:
            return f"A CUDA graph: {evidence.command(graph.ask)}"
        return evidence.advice(others="another backend with a CUDA graph")

    idle, call = evidence.host_wait, evidence.latency
    if idle and call and evidence.waits_for_host:
        kernels = evidence.kernel_group(lambda part: part.kind == "kernel")
        yield make_finding(
            "Bound by the host: the GPU waits for {share:percent} of {whole:duration}, and has {kernels:#kernel} of "
            "{mean kernel:duration} to run.",
            {
                "busy": evidence.busy, "latency": call, "launches": evidence.launches, "kernels": kernels.calls,
                "mean kernel": kernels.seconds / max(kernels.calls, 1),
            },
            subject="the run", seconds=idle, whole=call, share=idle / call, hint=hint() or LAUNCH_LESS,
        )  # fmt: skip
    elif idle is None and evidence.record:
        yield from enqueue_bound_finding(evidence.record, hint)


# Layers


@rule("far-above-floor")
def far_above_floor(evidence: Evidence) -> Iterator[Finding]:
    mergeable = {id(timed_layer) for chain in _mergeable(evidence.timed_layers) for timed_layer in chain}
    # Without a rate, floors are of memory alone.
    unknown = DENSE if evidence.floors and evidence.floors.rate is None else ()
    far = [
        (timed_layer.robust_seconds - floor.floor, timed_layer, floor)
        for timed_layer in evidence.timed_layers
        if timed_layer.family not in (*MOVING, *unknown)
        and id(timed_layer) not in mergeable
        and evidence.call_share(timed_layer.robust_seconds) >= LARGE
        and (floor := timed_layer.floor) and floor.floor and timed_layer.robust_seconds >= FAR * floor.floor
    ]  # fmt: skip
    for saving, timed_layer, floor in sorted(far, key=lambda item: -item[0])[:MOST_FAR]:
        dense, seconds = timed_layer.family in DENSE, timed_layer.robust_seconds
        algorithms = _ALGORITHMS[timed_layer.family != "convolution" :] if dense else ()
        options = [evidence.hint(*option).ask for option in algorithms]
        others = "another algorithm" if dense else "a backend that fuses it with the layers around it"
        hint = evidence.advice(others if any(options) else "", options=options, others=others)
        yield make_finding(
            "{subject} takes {share:percent} of {call} ({seconds:duration} of {run:duration}), "
            "{distance:two} times its floor of {floor:duration}.",
            {
                "seconds": seconds, "floor": floor.floor, "flops": floor.flops, "bytes": floor.bytes,
                "distance": seconds / (floor.floor or math.inf),
            },
            subject=timed_layer.name, seconds=saving, share=evidence.call_share(seconds), hint=hint,
            run=evidence.layer_call, call=evidence.layer_base,
        )  # fmt: skip


@rule("near-ceiling")
def near_ceiling(evidence: Evidence) -> Iterator[Finding]:
    floors = evidence.floors
    if floors is None or floors.won is None or floors.bound or not floors.time or floors.ceilings.disturbed:
        return
    if floors.floored_time >= MOSTLY_KNOWN * floors.time and floors.won <= NEAR_CEILING * floors.time:
        yield make_finding(
            "The call is near its ceiling: faster layers could win {won:duration} of {time:duration} at most.",
            {"won": floors.won, "time": floors.time, "floor": floors.floor},
            subject="the run", share=1 - floors.won / floors.time, hint=evidence.last_resort,
        )  # fmt: skip


@rule("bandwidth-bound")
def bandwidth_bound(evidence: Evidence) -> Iterator[Finding]:
    """Report depthwise and grouped convolutions, and products with few rows, which do little with every byte."""
    if evidence.floors is None or evidence.floors.ceilings.disturbed:
        return  # a ceiling that is too low makes floors too long, and layers seem close to them
    near = evidence.layer_group(
        timed_layer for timed_layer in evidence.timed_layers
        if timed_layer.family in DENSE and (floor := timed_layer.floor) and floor.bound == "memory"
        and floor.won and (floor.distance or 0.0) <= NEAR
    )  # fmt: skip
    floors = [timed_layer.floor for timed_layer in near if timed_layer.floor]
    moved, least = sum(floor.bytes or 0.0 for floor in floors), sum(floor.floor or 0.0 for floor in floors)
    can_lower = evidence.case.precision == "fp32" and evidence.precision == "fp32"
    lower = f"--precision {'fp16' if evidence.on_gpu else 'bf16'}"
    if moved >= LARGER_THAN_CACHES and near.share >= LARGE:
        yield make_finding(
            "{layers:#layer} ({kinds}) {layers:is|are} bound by memory: {layers:it takes|they take} {cost}, "
            "{times:two} times what moving {layers:its|their} bytes takes{location}.",
            {"floor": least, "bytes": moved}, near,
            seconds=sum(floor.won or 0.0 for floor in floors), times=near.seconds / least,
            hint=f"Fewer bytes, by a lower precision: {evidence.command(lower)}" if can_lower else
            f"A larger batch, which reads the weights once for all of it: {evidence.command(larger=True)}",
        )  # fmt: skip


@rule("first-convolution")
def first_convolution(evidence: Evidence) -> Iterator[Finding]:
    """Report a first convolution whose few input channels leave units of the hardware empty.

    The rate of the other convolutions shows what it could reach.
    """
    layers = evidence.timed_layers
    convolutions = [layer for layer in layers if layer.family == "convolution" and layer.robust_seconds > 0]
    rates = [(layer, flops) for layer in convolutions[1:] if not is_grouped(layer) and (flops := layer_flops(layer))]
    if not rates:
        return
    first, own_flops, channels = convolutions[0], layer_flops(convolutions[0]), channels_of(convolutions[0])
    if not own_flops or not channels or channels[0] > FEW_CHANNELS:
        return
    rate = sum(flops for _, flops in rates) / sum(layer.robust_seconds for layer, _ in rates)
    goal, seconds = own_flops / rate, first.robust_seconds
    if seconds < SLOWER * goal or evidence.call_share(seconds - goal) < FIRST_CONVOLUTION:
        return
    pad = f"pad the input channels to {evidence.multiple} (zeros in the input and in the weights)"
    fold, order = "fold 2x2 pixels into channels before it", evidence.hint("channels_last").ask
    yield make_finding(
        "{subject}, the first convolution, takes {seconds:duration} of {call}; at the rate of the others it "
        "would take {seconds at their rate:duration}.",
        {
            "channels": channels[0], "seconds": seconds, "flops": own_flops, "rate of the others": rate,
            "seconds at their rate": goal,
        },
        subject=first.name, seconds=seconds - goal, share=evidence.call_share(seconds), call=evidence.layer_base,
        hint=evidence.advice(
            pad if channels[0] < evidence.multiple else "", fold if evidence.multiple else "",
            "use channels-last order" if order else "", options=[order], others="try another backend",
        ),
    )  # fmt: skip


@rule("reformats")
def reformats(evidence: Evidence) -> Iterator[Finding]:
    """Report changes of memory order or type: layers if known, as a kernel that reformats is a part of one."""
    layers = evidence.layer_group(layer for layer in evidence.timed_layers if layer.family in ("reformat", "cast"))
    kernels = evidence.kernel_group(lambda kernel: kernel.family == "reformat")
    if evidence.precisions or max(layers.share, kernels.share if not layers else 0.0) < LAYOUT:
        return  # ``conversions`` is about quantized models
    own = evidence.layer_group(
        timed_layer for timed_layer in layers
        if timed_layer.layer.modules and "inserted" not in timed_layer.layer.details
    )  # fmt: skip
    families = {layer.family for layer in evidence.timed_layers} | {kernel.family for kernel in evidence.timed_kernels}
    order = evidence.hint("channels_last").ask if "convolution" in families else ""  # which is for images
    feed = "feed the model in the memory order and type that the backend computes in"
    hint = evidence.advice(
        "keep images and weights in channels-last order" if order else feed, options=[order],
        others="compare other backends",
    )  # fmt: skip
    if own.seconds * 2 > layers.seconds:
        hint = "Permute and cast less in the model: keep one memory order and one type from end to end."
    number = plural(len(layers), "layer") if layers else plural(kernels.calls, "kernel call")
    yield make_finding(
        "{number} only {change} memory order or type: {cost}{location}.",
        {"calls": layers.calls, "own": len(own)} if layers else {}, layers or kernels,
        subject=number if layers else "", seconds=layers.seconds or kernels.seconds, hint=hint, number=number,
        change="change" if (len(layers) or kernels.calls) > 1 else "changes",
    )  # fmt: skip


@rule("unfused-chains")
def unfused_chains(evidence: Evidence) -> Iterator[Finding]:
    layers = evidence.layer_group(_mergeable(evidence.timed_layers)[0])
    if layers.share >= CHAINS:
        # In eager PyTorch every layer is one module, so that nothing has compiled the model.
        eager = all(part.layer.modules == (part.layer.name,) for part in evidence.timed_layers)
        backend = f"{'a' if eager else 'another'} backend that fuses such layers"
        yield make_finding(
            "{layers:#layer} ({kinds}) {layers:is|are} not fused with what is before {layers:it|them}: "
            "{cost}{location}.",
            {}, layers, seconds=layers.seconds, hint=evidence.advice(others=backend),
        )  # fmt: skip


@rule("batch-norm-not-folded")
def batch_norm_not_folded(evidence: Evidence) -> Iterator[Finding]:
    """Report batch norms that the weights before them could hold: in inference they are a scale and a shift."""
    layers = evidence.layer_group(_mergeable(evidence.timed_layers)[1])
    if layers.share >= BATCH_NORMS:
        option = evidence.hint("freeze").ask or evidence.hint("graph_optimization", "all").ask
        action = f"fold them into the weights{'' if option else ' by PyTorch' + chr(39) + 's fuse_conv_bn_eval'}"
        yield make_finding(
            "{layers:#batch norm} {layers:is|are} not folded into the weights before {layers:it|them}: "
            "{cost}{location}.",
            {}, layers, seconds=layers.seconds,
            hint=evidence.advice(action, options=[option], others="take another backend"),
        )  # fmt: skip


@rule("fp32-layers")
def fp32_layers(evidence: Evidence) -> Iterator[Finding]:
    layers = evidence.layer_group(
        layer for layer in evidence.timed_layers
        if layer.family not in (*MOVING, "normalisation") and _is_single(layer)
    )  # fmt: skip
    if evidence.case.precision in ("fp16", "bf16") and layers.share >= IN_FP32:
        others = "for operators that others have in lower precisions"
        yield make_finding(
            "{layers:,} of {of:#layer} {layers:computes|compute} in fp32, not in {precision} ({kinds}): "
            "{cost}{location}.",
            {"of": len(evidence.layer_group(evidence.timed_layers))}, layers, precision=evidence.case.precision,
            hint=evidence.advice("look for a cast in the model", others=others),
        )  # fmt: skip


@rule("outside-layers")
def outside_layers(evidence: Evidence) -> Iterator[Finding]:
    """Report time outside of all layers, less what profiling may have added to it."""
    if not (evidence.table and evidence.latency and evidence.layer_profile and evidence.layer_profile.timed == "host"):
        return
    account, scale = evidence.table.reconciliation, evidence.table.runs.scale
    added = max(account.profiled - evidence.latency, 0.0)
    outside = account.outside.typical / scale
    rest = outside - added
    if 0 < rest <= evidence.latency and evidence.call_share(rest) >= OUTSIDE:
        yield make_finding(
            "{share:percent} of the call ({rest:duration} of {whole:duration}) is outside of all layers.",
            {"outside": outside, "added by profiling": added, "whole": evidence.latency},
            subject="the run", seconds=rest, share=evidence.call_share(rest), rest=rest,
            hint="Look at Python, checks and copies around the layers; a larger batch spreads it over more items: "
            f"{evidence.command(larger=True)}",
        )  # fmt: skip


def channels_of(timed_layer: TimedLayer) -> tuple[int, ...]:
    """Return the channels, or features, of the input and the output of a layer; empty if unknown."""
    inputs, outputs = (
        tensors[0].shape if tensors else () for tensors in (timed_layer.layer.inputs, timed_layer.layer.outputs)
    )
    place = 1 if timed_layer.family == "convolution" else -1
    fits = len(inputs) > 1 and len(outputs) > 1 and (place < 0 or 3 <= len(inputs) == len(outputs) <= 5)
    return (inputs[place], outputs[place]) if fits and min(inputs[place], outputs[place]) > 0 else ()


def layer_flops(timed_layer: TimedLayer) -> float | None:
    """Return the floating-point operations of a convolution in one run, a multiply-add counted as two.

    Every element of the output takes as many multiplications as a filter has weights. Without their shape, return the
    counted work of the layer.
    """
    if weights := filters(timed_layer):
        layer = timed_layer.layer
        return 2.0 * math.prod(layer.outputs[0].shape) * math.prod(weights[1:]) * layer.calls
    flops = timed_layer.floor.flops if timed_layer.floor else None
    return flops if flops and 0 < flops < math.inf else None


def filters(timed_layer: TimedLayer) -> tuple[int, ...]:
    """Return the shape of a convolution's weights: filters, channels of each, and its sizes; empty if unknown."""
    layer = timed_layer.layer
    if len(layer.inputs) < 2 or not layer.outputs:
        return ()
    image, weights, output = layer.inputs[0].shape, layer.inputs[1].shape, layer.outputs[0].shape
    fits = len(image) == len(weights) == len(output) >= 3 and weights[0] == output[1] and min(*weights, *output) > 0
    return weights if fits and image[1] % weights[1] == 0 else ()


def is_grouped(timed_layer: TimedLayer) -> bool:
    """Return whether the filters of a convolution are known to read only a part of the channels."""
    weights = filters(timed_layer)
    return bool(weights) and weights[1] < timed_layer.layer.inputs[0].shape[1]


def _is_single(timed_layer: TimedLayer) -> bool:
    """Return whether a layer reads and writes fp32, and no smaller floating-point type."""
    types = {tensor.dtype.lower() for tensor in (*timed_layer.layer.inputs, *timed_layer.layer.outputs)}
    return bool(types.intersection(_SINGLE_TYPES)) and not types.intersection(_HALF_TYPES)


def _mergeable(layers: Sequence[TimedLayer]) -> tuple[list[TimedLayer], list[TimedLayer]]:
    """Return pointwise layers that could be computed with the layer before, and batch norms that weights could hold.

    Of a chain that follows no convolution or matrix product the longest layer has to stay.
    """
    fusible: list[TimedLayer] = []
    foldable: list[TimedLayer] = []
    for producer, chain in _chains(layers):
        if producer and BATCH_NORM.search(chain[0].layer.kind):
            foldable.append(chain.pop(0))
        if not producer:
            chain.remove(max(chain, key=lambda timed_layer: timed_layer.seconds))
        fusible += chain
    return fusible, foldable


def _chains(layers: Sequence[TimedLayer]) -> Iterator[tuple[TimedLayer | None, list[TimedLayer]]]:
    """Yield runs of pointwise layers, with the convolution or matrix product before each; skip layers without time."""
    producer: TimedLayer | None = None
    chain: list[TimedLayer] = []
    for timed_layer in layers:
        if timed_layer.family in POINTWISE:
            chain += [timed_layer] if timed_layer.seconds > 0 else []
        elif timed_layer.seconds > 0 or timed_layer.family in DENSE:
            if chain:
                yield producer, chain
            producer, chain = (timed_layer if timed_layer.family in DENSE else None), []
    if chain:
        yield producer, chain


# Models that run in several parts


@rule("fallback")
def fallback(evidence: Evidence) -> Iterator[Finding]:
    partition = partition_in(evidence.facts)
    if partition and partition.breaks:
        yield _outside_engines(evidence, partition)
    on_cpu = [
        timed_layer for timed_layer in evidence.timed_layers
        if str(timed_layer.layer.details.get("provider", "")).startswith("CPU")
    ]  # fmt: skip
    layers = evidence.layer_group(on_cpu)
    if evidence.on_gpu and layers:
        yield make_finding(
            "{layers:#layer} {layers:runs|run} on the CPU ({kinds}) and {layers:takes|take} {cost}, without the copies "
            "to and fro{location}.",
            {"layers": len(on_cpu)}, layers, seconds=layers.seconds,
            hint=evidence.advice(
                "replace these operators in the model", others="run it with a backend that has them on the GPU"
            ),
        )  # fmt: skip


def _outside_engines(evidence: Evidence, partition: Partition) -> Finding:
    outside = {graph_break.segment for graph_break in partition.breaks}
    paths: dict[bool, set[str | None]] = {True: set(), False: set()}
    for number, segment in enumerate(partition.segments):
        paths[number in outside] |= {operator.module for operator in segment.operators}
    excluded = paths[True] - paths[False]  # modules without an operator in any engine
    layers = evidence.layer_group(
        timed_layer for timed_layer in evidence.timed_layers
        if timed_layer.layer.modules and excluded.issuperset(timed_layer.layer.modules)
    )  # fmt: skip
    names = (module_label(path) for graph_break in partition.breaks for path in graph_break.modules if path)
    complete = None not in partition.engines  # some front ends do not tell the contents of an engine
    return make_finding(
        "{in PyTorch:#operator} {in PyTorch:runs|run} outside of engines, in {subject}{time}.",
        {
            "operators": partition.operators if complete else None,
            "in PyTorch": sum(sum(graph_break.operators.values()) for graph_break in partition.breaks),
            "segments": len(partition.segments),
            "engines": len(partition.engines),
            "seconds": layers.seconds if layers else None,
        },
        subject=list_few(names) or "the model", share=layers.share if layers else None,
        time=f": at least {layers.cost}" if layers else "",
        hint="See each operator's reason: " + (evidence.command(name="partition") or 'profile.facts["partition"]'),
    )  # fmt: skip


@rule("graph-breaks", hint="Take what breaks it out of forward.")
def graph_breaks(evidence: Evidence) -> Iterator[Finding]:
    count, reasons = _breaks(evidence.facts)
    graphs = evidence.facts.get("graphs")
    if count > 0:
        option = evidence.hint("fullgraph").ask
        yield make_finding(
            "{breaks:#graph break} {breaks:splits|split} the compiled model{why}.",
            {"breaks": count, "graphs": graphs if isinstance(graphs, int) else None},
            subject="the compiled graph", why=f": {list_few(map(shorten, reasons))}" if reasons else "",
            hint=f"Take what breaks it out of forward, from the first on: {evidence.command(option)}" if option else "",
        )  # fmt: skip


def _breaks(facts: dict[str, Any]) -> tuple[int, list[str]]:
    breaks = facts.get("graph_breaks")
    if isinstance(breaks, dict) and isinstance(breaks.get("count"), int):
        reasons = breaks.get("reasons")
        return breaks["count"], [str(reason) for reason in reasons] if isinstance(reasons, list) else []
    partition = partition_in(facts)
    reasons = list(partition.graph_breaks) if partition else []
    return len(reasons), reasons


# Quantized models


@rule("stayed-in-fp32")
def stayed_in_fp32(evidence: Evidence) -> Iterator[Finding]:
    layers = _layers_at(evidence, "stayed")
    if layers.share >= NOT_QUANTIZED:
        precision = evidence.case.precision
        yield make_finding(
            "{layers:#layer} with multiply-adds {layers:is|are} in {types}, not in {precision}: {cost}{location}.",
            {}, layers, types=listing(list(dict.fromkeys(layer.layer.precision for layer in layers))),
            precision=precision, hint=evidence.advice(others=f"see whether another backend has it in {precision}"),
        )  # fmt: skip


@rule("conversions")
def conversions(evidence: Evidence) -> Iterator[Finding]:
    """Report layers that quantize, dequantize, or change the memory order for it, and were not fused."""
    layers = _layers_at(evidence, "conversions")
    if layers.share >= CONVERSIONS:
        yield make_finding(
            "{layers:#layer} ({kinds}) only {layers:converts|convert} to and from {precision}: {cost}{location}.",
            {}, layers, seconds=layers.seconds, precision=evidence.case.precision,
            hint=evidence.advice(others="another backend, which may fuse them or need fewer"),
        )  # fmt: skip


@rule("int8-not-faster")
def int8_not_faster(evidence: Evidence) -> Iterator[Finding]:
    """Report a quantized case that is as slow as the same in fp32, with the reason that the profile shows."""
    samples = latencies(evidence.fp32_record).for_median if evidence.fp32_record else ()
    if not evidence.latency or not samples or median(samples) >= LITTLE_GAIN * evidence.latency:
        return
    precisions, precision, before = evidence.precisions, evidence.case.precision, median(samples)
    stayed = _layers_at(evidence, "stayed")
    work = precisions.work.get(precision) if precisions else None
    if precisions and precisions.converting >= CONVERSIONS:
        why = f": conversions take {percent(precisions.converting)} of it"
    elif stayed.share >= NOT_QUANTIZED:
        why = f": layers that stayed as they were take {percent(stayed.share)} of it"
    else:
        why = f": {percent(work)} of its multiply-adds are in {precision}" if work else ""
    yield make_finding(
        "A call takes {seconds:duration} in {precision} and {before:duration} in fp32{why}.",
        {"seconds": evidence.latency, "before": before}, subject="the run", precision=precision, why=why,
        seconds=max(evidence.latency - before, 0.0), whole=evidence.latency,
        hint=f"Measure both in turns, then keep the faster: {evidence.command(f'--precision fp32,{precision}')}",
    )  # fmt: skip


def _layers_at(evidence: Evidence, name: Literal["stayed", "conversions"]) -> PartGroup[TimedLayer]:
    """Return the layers in a field of :class:`Precisions`."""
    return evidence.layer_group(evidence.timed_layers[place] for place in getattr(evidence.precisions, name, ()))


# Kernels


@rule("tensor-cores-unused")
def tensor_cores_unused(evidence: Evidence) -> Iterator[Finding]:
    """Report unused tensor cores; shapes alone only tell that they may be used badly."""
    multiple = evidence.multiple
    odd = evidence.layer_group(layer for layer in evidence.timed_layers if multiple and _is_odd(layer, multiple))
    kernels = _without_tensor_cores(evidence)
    parts: PartGroup[Any] = kernels if evidence.timed_kernels else odd
    if not multiple or not parts or parts.share < NO_TENSOR_CORES:
        return
    start = "{layers:#layer} may use tensor cores badly, or not at all"
    if evidence.timed_kernels:
        start = "{calls:#kernel call} of convolutions and matrix products {calls:uses|use} no tensor cores"
        paths = {path for timed_kernel in kernels for path in timed_kernel.kernel.modules}
        odd = evidence.layer_group(layer for layer in odd if paths.intersection(layer.layer.modules))
    sizes = list_few((f"{layer.name} ({' to '.join(map(str, channels_of(layer)))})" for layer in odd), 1)
    pad = f"make channels and features multiples of {multiple} by padding" if odd else ""
    order = evidence.hint("channels_last").ask if any(part.family == "convolution" for part in parts) else ""
    yield make_finding(
        start + ": {cost}{location}" + ("; channels of {sizes} are no multiples of {multiple}." if odd else "."),
        {"multiple": multiple}, parts, sizes=sizes,
        hint=evidence.advice(
            pad, "try channels-last order" if order else "", options=[order], others="try another backend"
        ),
    )  # fmt: skip


def _without_tensor_cores(evidence: Evidence) -> PartGroup[TimedKernel]:
    def lacks(part: TimedKernel) -> bool:
        kernel = part.kernel
        return part.family in DENSE and kernel.tensor_cores is False and could_use_tensor_cores(kernel.name)

    return evidence.kernel_group(lacks)


def _is_odd(timed_layer: TimedLayer, multiple: int) -> bool:
    """Return whether the channels of a layer do not fit tensor cores; grouped and first convolutions never do."""
    channels = channels_of(timed_layer) if timed_layer.family in DENSE and not is_grouped(timed_layer) else ()
    is_first = timed_layer.family == "convolution" and channels[:1] <= (FEW_CHANNELS,)
    return not is_first and any(size % multiple for size in channels)


@rule("tf32-off", hint=f"TF32 (of an engine, when it is built). {_TRADE}.")
def tf32_off(evidence: Evidence) -> Iterator[Finding]:
    """Report full fp32 on a GPU that has TF32, which trades accuracy for time."""
    hint, old = evidence.hint("tf32"), evidence.capability < FIRST_CAPABILITY["tf32"]
    if not evidence.on_gpu or hint.asked or evidence.precision != "fp32" or old:
        return
    dense = evidence.layer_group(layer for layer in evidence.timed_layers if layer.family in DENSE)
    parts: PartGroup[Any] = _without_tensor_cores(evidence) if evidence.timed_kernels else dense
    if parts.share < TF32:
        return
    rates = next((profile.ceilings.rates for profile in evidence.profiles if profile.ceilings), {})
    slow, fast = rates.get("fp32"), rates.get("tf32")
    faster = fast / slow if slow and fast and 0 < slow < fast else None
    yield make_finding(
        "Convolutions and matrix products take {cost} in full fp32, although this GPU has TF32{gain}.",
        {"seconds": parts.seconds, "fp32 rate": slow, "tf32 rate": fast},
        subject="convolutions and matrix products", seconds=parts.seconds * (1 - 1 / faster) if faster else None,
        whole=parts.call_seconds, share=parts.share, cost=parts.cost,
        gain=f", {faster:.1f} times as fast" if faster else "",
        hint=f"{_TRADE}: {evidence.command(hint.ask)}" if hint.ask else "",
    )  # fmt: skip


@rule("host-copies", hint="Keep constants in buffers of the model; call neither .item() nor .cpu() in forward.")
def host_copies(evidence: Evidence) -> Iterator[Finding]:
    """Report copies between host and GPU: the profiler's ``Memcpy HtoD``, or a backend's copying layers."""
    copies = evidence.kernel_group(lambda part: part.kind == "copy" and _HOST_COPY.search(part.kernel.name))
    layers = evidence.layer_group(layer for layer in evidence.timed_layers if layer.family == "copy")
    base_name = "the call" if evidence.latency else "the profiled call"
    copies = dataclasses.replace(copies, base=evidence.kernel_call or 0.0, base_name=base_name)
    parts: PartGroup[Any] = copies or layers
    if evidence.on_gpu and evidence.case.io != "host" and parts.share >= LAYOUT:
        yield make_finding(
            "{copies:,} {copies:copy|copies} between host and GPU {copies:takes|take} {cost}{location}.",
            {"copies": parts.calls, "seconds": parts.seconds},
            subject=parts.names, seconds=parts.seconds, whole=parts.call_seconds, share=parts.share,
            cost=parts.cost, location=parts.location,
        )  # fmt: skip


@rule("tiny-kernels")
def tiny_kernels(evidence: Evidence) -> Iterator[Finding]:
    """Report kernels of a few microseconds, which mostly start and end."""
    kernels = evidence.kernel_group(lambda part: part.kind == "kernel")
    tiny = evidence.kernel_group(
        lambda part: part.kind == "kernel" and 0 < part.seconds / max(part.kernel.calls, 1) < TINY
    )
    if tiny.calls >= FEW_LAUNCHES and tiny.share >= TINY_SHARE:
        yield make_finding(
            "{tiny:,} of {calls:#kernel call} last {mean:duration} on average, and take {cost}.",
            {"tiny": tiny.calls, "calls": kernels.calls, "mean": tiny.seconds / tiny.calls}, tiny,
            subject=plural(tiny.calls, "kernel call"),
            hint=evidence.advice(others="a backend that fuses more of them"),
        )  # fmt: skip


@rule("few-blocks")
def few_blocks(evidence: Evidence) -> Iterator[Finding]:
    processors = evidence.multiprocessors
    kernels = evidence.kernel_group(lambda part: part.kind == "kernel" and 0 < part.blocks < processors)
    if kernels.share >= FEW_BLOCKS:
        advice = "For latency, another backend may split the work further; a larger batch fills it"
        advice = "A larger batch fills it" if evidence.alternatives else advice
        idle = sum(part.seconds * (1 - part.blocks / processors) for part in kernels)
        yield make_finding(
            "{calls:#kernel call} {calls:has|have} too few blocks for {multiprocessors} multiprocessors: {cost}, with "
            "{empty:percent} of the GPU empty.",
            {"idle": idle, "multiprocessors": processors}, kernels, seconds=idle, empty=idle / kernels.seconds,
            hint=f"{advice}: {evidence.command(larger=True)}",
        )  # fmt: skip


PROFILE_RULES = (
    tensor_cores_unused, tf32_off, host_copies, tiny_kernels, few_blocks, far_above_floor, near_ceiling,
    bandwidth_bound, first_convolution, reformats, unfused_chains, batch_norm_not_folded, fp32_layers, outside_layers,
    fallback, graph_breaks, stayed_in_fp32, conversions, int8_not_faster, doubtful_profile, unstable, host_bound,
)  # fmt: skip
