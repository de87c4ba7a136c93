"""Findings about one profiled case: the rules about its layers and kernels, and their ranking.

A rule reports only what its evidence shows, and only above a threshold. A saving is always an upper bound. The
thresholds are explained in ``docs/findings.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

from msgspec.structs import replace

from inferlens.analysis.evidence import (
    FIRST_CAPABILITY,
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
    part_name,
    rule,
    shorten,
)
from inferlens.analysis.graph import layer_precision
from inferlens.analysis.profile_table import (
    DENSE,
    MOVING,
    POINTWISE,
    Family,
    could_use_tensor_cores,
    kernel_family,
    kernels_alone,
    layer_family,
    short_kernel_name,
)
from inferlens.analysis.roofline import Floor
from inferlens.errors import InferlensError
from inferlens.record.builds import partition_in
from inferlens.record.profile import Profile
from inferlens.record.record import Record
from inferlens.spec.case import QUANTIZED, Option
from inferlens.units import plural

# Thresholds about layers; shares are of a run unless a comment names another base.
LARGE = 0.04  # for a layer to matter
FAR = 5.0  # times its floor
MOST_FAR = 3  # layers to report
FEW_CHANNELS = 4
NEAR = 2.0  # times its floor: about as close as bytes allow
MOVING_BYTES = 0.1  # in layers that are bound by memory
LARGER_THAN_CACHES = 64 * 2**20  # bytes
MOSTLY_KNOWN = 0.9  # in layers with a floor
NEAR_CEILING = 0.25  # above the floors: libraries seldom come closer
OUTSIDE = 0.05
LAYOUT = 0.02
CHAINS = 0.05
IN_FP32 = 0.05
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
_HOST_COPY = re.compile(r"HtoD|DtoH|Host ?To ?Device|Device ?To ?Host", re.IGNORECASE)
_BATCH_NORM = re.compile(r"batch_?norm", re.IGNORECASE)
_TRADE = "A trade of accuracy for time, so check the outputs"


def findings(
    profiles: Profile | Sequence[Profile],
    record: Record | None = None,
    alternatives: Mapping[str, float | None] | None = None,
) -> Findings:
    """Return the findings about the profiles of one case, most important first.

    Findings about time come first, ordered by the share of a run that could be saved, or else that they are about; an
    unknown share counts as a tenth. Findings about the reliability of the profile follow. If no saving is large, the
    first finding names the remaining options.

    Args:
        profiles: of one case; several are its levels.
        record: of the same case, timed without profiling; rules that need the duration of a call are silent without it.
        alternatives: names of other backends that were measured, and their seconds if they ran. They are not
            recommended again; the fastest of them is, by its name, if it is faster than this case.

    Raises InferlensError if the profiles are of different cases, or if there are none.
    """
    levels = (profiles,) if isinstance(profiles, Profile) else tuple(profiles)
    if len({profile.case.digest for profile in levels}) != 1:
        raise InferlensError("Findings are for one case at a time.", expected="one profile, or several levels of it")
    evidence = Evidence(levels, record, alternatives or {})
    results = []
    for finding in chain.from_iterable(check(evidence) for check in PROFILE_RULES):
        unprofiled = None not in (finding.seconds, finding.whole) and finding.whole == evidence.latency
        whole = None if finding.seconds is None else finding.whole or evidence.layer_call
        results.append(replace(finding, whole=whole, unprofiled=unprofiled))
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


def importance(finding: Finding) -> float:
    """Return the share of a run that could be saved, or that the finding is about, or a default."""
    return next(share for share in (finding.saving, finding.share, UNKNOWN_SHARE) if share is not None)


def gain(finding: Finding, findings: Sequence[Finding]) -> float | None:
    """Return the share of a call that could be saved, given all findings of the case; ``None`` if it is unknown.

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
    idle, call = evidence.host_wait, evidence.latency
    if idle and call and evidence.waits_for_host:
        kernels = evidence.kernel_group(lambda part: part.kernel.kind == "kernel")
        yield make_finding(
            "Bound by the host: the GPU waits for {share:percent} of {whole:duration}, and has {kernels:#kernel} of "
            "{mean kernel:duration} to run.",
            {
                "busy": evidence.busy, "latency": call, "launches": evidence.launches, "kernels": kernels.calls,
                "mean kernel": kernels.seconds / max(kernels.calls, 1),
            },
            subject="the run", seconds=idle, whole=call, share=idle / call, hint=_launch_less(evidence),
        )  # fmt: skip
    elif idle is None and evidence.record:
        for finding in enqueue_bound_finding(evidence.record):
            yield replace(finding, hint=_launch_less(evidence))


def _launch_less(evidence: Evidence) -> str:
    graph = evidence.hint("cuda_graph")
    if graph.asked:
        return f"A larger batch: {evidence.command(larger=True)}"
    return evidence.advice(
        "a CUDA graph" if graph.ask else "", options=[graph.ask], others="another backend with a CUDA graph"
    )


# Layers and kernels against their floors


@rule("far-above-floor")
def far_above_floor(evidence: Evidence) -> Iterator[Finding]:
    """Report the layers, or else the kernels, that lose most time above their floors.

    Pointwise layers are left to ``unfused-chains``. While the call waits for the host, no layer matters.
    """
    floors = evidence.floors
    if floors is None or floors.bound == "host":
        return
    # Without a rate, floors are of memory alone.
    silent = (*MOVING, *POINTWISE, *(() if floors.rate else DENSE))
    far = [
        row for row in floors.ranked
        if (row.share or 0.0) >= LARGE and (row.distance or 0.0) >= FAR and _family(evidence, row) not in silent
    ]  # fmt: skip
    for row in far[:MOST_FAR]:
        yield make_finding(
            "{subject} takes {share:percent} of {call} ({seconds:duration} of {run:duration}), {distance:two} times "
            "its floor of {floor:duration}.",
            {"seconds": row.time, "floor": row.floor, "flops": row.flops, "bytes": row.bytes, "distance": row.distance},
            subject=_row_name(row, floors.timed), seconds=row.above, share=row.share, run=floors.time,
            whole=evidence.kernel_call if floors.timed == "kernel" else None, call=evidence.call_name,
            hint=_closer_to_floor(evidence, row),
        )  # fmt: skip


def _closer_to_floor(evidence: Evidence, row: Floor) -> str:
    family = _family(evidence, row)
    channels = _image_channels(evidence, row) if family == "convolution" else 0
    if 0 < channels <= FEW_CHANNELS and channels < evidence.multiple:
        pad = f"pad the {channels} input channels to {evidence.multiple}"
        return evidence.advice(pad, "fold 2x2 pixels into channels before it", others="try another backend")
    if family not in DENSE:
        return evidence.advice(others="a backend that fuses it with the layers around it")
    algorithms = _ALGORITHMS if family == "convolution" else _ALGORITHMS[1:]
    options = [evidence.hint(*option).ask for option in algorithms]
    return evidence.advice("another algorithm" if any(options) else "", options=options, others="another algorithm")


def _image_channels(evidence: Evidence, row: Floor) -> int:
    """Return the channels of the model's images if the convolution is the first one; else 0."""
    rows = evidence.floors.rows if evidence.floors else ()
    first = next((floor for floor in rows if _family(evidence, floor) == "convolution"), row)
    inputs = evidence.profiles[0].model.inputs
    shape = inputs[0].shape if inputs else ()
    is_first = row is first or first.modules[:1] == row.modules[:1] != ()  # a kernel may prepare its input
    return shape[1] if is_first and len(shape) >= 3 else 0


def _family(evidence: Evidence, row: Floor) -> Family:
    """Return the family of a layer; of a kernel, that of its first module, or else of its name."""
    if evidence.floors and evidence.floors.timed == "layer":
        return layer_family(row.kind, row.name)
    kind = evidence.module_kinds.get(row.modules[0], "") if row.modules else ""
    return layer_family(kind, "") or kernel_family(row.name)


def _row_name(row: Floor, timed: str) -> str:
    return part_name(row.modules, short_kernel_name(row.name) if timed == "kernel" else row.name)


@rule("near-ceiling")
def near_ceiling(evidence: Evidence) -> Iterator[Finding]:
    floors = evidence.floors
    if floors is None or floors.won is None or not floors.time or floors.ceilings.disturbed:
        return
    if floors.floored_time >= MOSTLY_KNOWN * floors.time and floors.won <= NEAR_CEILING * floors.time:
        yield make_finding(
            f"The call is near its ceiling: faster {floors.timed}s could win {{won:duration}} of {{time:duration}} at "
            "most.",
            {"won": floors.won, "time": floors.time, "floor": floors.floor},
            subject="the run", share=1 - floors.won / floors.time, hint=evidence.last_resort,
        )  # fmt: skip


@rule("bandwidth-bound")
def bandwidth_bound(evidence: Evidence) -> Iterator[Finding]:
    """Report convolutions and products that do little with every byte, as depthwise ones and those with few rows."""
    floors = evidence.floors
    if floors is None or floors.ceilings.disturbed:
        return  # a ceiling that is too low makes floors too long, and layers seem close to them
    near_floor = [
        row for row in floors.rows
        if row.bound == "memory" and row.won and (row.distance or 0.0) <= NEAR and _family(evidence, row) in DENSE
    ]  # fmt: skip
    total = floors.sum_of(near_floor)
    if (total.bytes or 0.0) >= LARGER_THAN_CACHES and (total.share or 0.0) >= MOVING_BYTES:
        yield make_finding(
            f"{{parts:#{floors.timed}}} {{parts:is|are}} bound by memory: {{share:percent}} of {{call}} "
            "({seconds:duration} of {run:duration}), {times:two} times what moving {parts:its|their} bytes takes.",
            {"parts": len(near_floor), "seconds": total.time, "floor": total.floor, "bytes": total.bytes},
            subject=list_few(_row_name(row, floors.timed) for row in near_floor), seconds=total.won, share=total.share,
            whole=evidence.kernel_call if floors.timed == "kernel" else None, call=evidence.call_name,
            times=total.distance, run=floors.time,
            hint=f"Fewer bytes, by a lower precision or a larger batch: {evidence.less_work}",
        )  # fmt: skip


# Layers


@rule("outside-layers")
def outside_layers(evidence: Evidence) -> Iterator[Finding]:
    """Report time outside of all layers, less the time that profiling may have added."""
    profile, table, call = evidence.layer_profile, evidence.table, evidence.latency
    if not (profile and table and call and profile.timed == "host"):
        return
    outside = table.reconciliation.outside.typical / table.runs.scale
    added = max(table.reconciliation.profiled - call, 0.0)
    unexplained = outside - added
    if OUTSIDE * call <= unexplained <= call:
        yield make_finding(
            "{share:percent} of the call ({outside:duration} of {whole:duration}) is outside of all layers.",
            {"outside": outside, "added by profiling": added, "whole": call},
            subject="the run", seconds=unexplained, share=unexplained / call, outside=unexplained,
            hint="Look at Python, checks and copies around the layers; a larger batch spreads it over more items: "
            f"{evidence.command(larger=True)}",
        )  # fmt: skip


@rule("reformats")
def reformats(evidence: Evidence) -> Iterator[Finding]:
    """Report changes of memory order or type: layers if known, as a kernel that reformats is a part of one."""
    moving = ("reformat", "cast", "quantize")
    layers = evidence.layer_group(layer for layer in evidence.timed_layers if layer.family in moving)
    parts: PartGroup[Any] = layers or evidence.kernel_group(lambda kernel: kernel.family == "reformat")
    if parts.share >= LAYOUT:
        families = [layer.family for layer in evidence.timed_layers]
        families += [kernel.family for kernel in evidence.timed_kernels]
        order = evidence.hint("channels_last").ask if "convolution" in families else ""  # which is for images
        yield make_finding(
            f"{{count:#{parts.noun}}} only {{count:changes|change}} memory order or type: {{cost}}{{location}}.",
            {}, parts, seconds=parts.seconds, count=len(layers) or parts.calls,
            hint=evidence.advice(
                "keep one memory order and one type from end to end", options=[order], others="try another backend"
            ),
        )  # fmt: skip


@rule("unfused-chains")
def unfused_chains(evidence: Evidence) -> Iterator[Finding]:
    """Report pointwise layers that could be computed with the layer before; weights can hold a batch norm."""
    layers = evidence.layer_group(_fusible(evidence.timed_layers))
    if layers.share >= CHAINS:
        has_norms = any(_BATCH_NORM.search(part.layer.kind) for part in layers)
        option = (evidence.hint("freeze").ask or evidence.hint("graph_optimization", "all").ask) if has_norms else ""
        yield make_finding(
            "{layers:#layer} {layers:is|are} not fused with what is before {layers:it|them}: {cost}{location}.",
            {}, layers, seconds=layers.seconds,
            hint=evidence.advice(
                "fuse batch norms" if option else "", options=[option], others="a backend that fuses such layers"
            ),
        )  # fmt: skip


@rule("fp32-layers")
def fp32_layers(evidence: Evidence) -> Iterator[Finding]:
    """Report layers that stayed in fp32; of a quantized case, those with multiply-adds in any higher precision."""
    precision, layers = evidence.case.precision, evidence.timed_layers
    if precision in QUANTIZED:
        indices = evidence.precisions.stayed if evidence.precisions else ()
        stayed = evidence.layer_group(layers[index] for index in indices)
    elif precision in ("fp16", "bf16"):
        stayed = evidence.layer_group(
            layer for layer in layers
            if layer.family not in (*MOVING, "normalisation") and layer_precision(layer.layer) == "fp32"
        )  # fmt: skip
    else:
        return
    if stayed.share >= IN_FP32:
        yield make_finding(
            "{layers:#layer} {layers:computes|compute} in a higher precision than {precision}: {cost}{location}.",
            {}, stayed, precision=precision,
            hint=evidence.advice("look for a cast in the model", others="try another backend"),
        )  # fmt: skip


def _fusible(layers: Sequence[TimedLayer]) -> list[TimedLayer]:
    """Return the pointwise layers that could be computed with the layer before.

    In a chain that follows no convolution or matrix product, the longest layer has to stay.
    """
    fusible: list[TimedLayer] = []
    follows_product = False
    for is_pointwise, group in groupby(layers, lambda layer: layer.family in POINTWISE):
        chain = [layer for layer in group if layer.seconds > 0]
        if not is_pointwise:
            follows_product = bool(chain) and chain[-1].family in DENSE
        elif chain and not follows_product:
            chain.remove(max(chain, key=lambda layer: layer.seconds))
        fusible += chain if is_pointwise else []
    return fusible


# Models that run in several parts


@rule("fallback")
def fallback(evidence: Evidence) -> Iterator[Finding]:
    partition = partition_in(evidence.facts)
    if partition and partition.breaks:
        names = (module_label(path) for graph_break in partition.breaks for path in graph_break.modules if path)
        complete = None not in partition.engines  # some front ends do not tell the contents of an engine
        yield make_finding(
            "{in PyTorch:#operator} {in PyTorch:runs|run} outside of engines, in {subject}.",
            {
                "operators": partition.operators if complete else None,
                "in PyTorch": sum(sum(graph_break.operators.values()) for graph_break in partition.breaks),
                "segments": len(partition.segments),
                "engines": len(partition.engines),
            },
            subject=list_few(names) or "the model",
            hint="See each operator's reason: " + (evidence.command(name="partition") or 'profile.facts["partition"]'),
        )  # fmt: skip
    layers = evidence.layer_group(
        timed_layer for timed_layer in evidence.timed_layers
        if str(timed_layer.layer.details.get("provider", "")).startswith("CPU")
    )  # fmt: skip
    if evidence.on_gpu and layers:
        yield make_finding(
            "{layers:#layer} {layers:runs|run} on the CPU and {layers:takes|take} {cost}, without the copies to and "
            "fro{location}.",
            {}, layers, seconds=layers.seconds,
            hint=evidence.advice("replace these operators in the model", others="try another backend"),
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


# Kernels


@rule("tensor-cores-unused")
def tensor_cores_unused(evidence: Evidence) -> Iterator[Finding]:
    kernels = _without_tensor_cores(evidence)
    if evidence.multiple and kernels.share >= NO_TENSOR_CORES:
        paths = {path for part in kernels for path in part.kernel.modules}
        layers = [layer for layer in evidence.timed_layers if paths.intersection(layer.layer.modules)]
        sizes = [(layer, _odd_channels(layer, evidence.multiple)) for layer in layers]
        odd = list_few((f"{layer.name} ({size[0]} to {size[1]})" for layer, size in sizes if size), 1)
        yield make_finding(
            "{calls:#kernel call} of convolutions and matrix products {calls:uses|use} no tensor cores: "
            "{cost}{location}" + ("; channels of {odd} are not multiples of {multiple}." if odd else "."),
            {"multiple": evidence.multiple}, kernels, odd=odd,
            hint=evidence.advice(
                f"make channels and features multiples of {evidence.multiple}", others="try another backend"
            ),
        )  # fmt: skip


def _odd_channels(part: TimedLayer, multiple: int) -> tuple[int, ...]:
    """Return the channels or features, in and out, that do not fit tensor cores; empty if all fit or are unknown.

    Grouped and first convolutions never fit, and are left out.
    """
    image, weights = ([tensor.shape for tensor in part.layer.inputs] + [(), ()])[:2]
    output = part.layer.outputs[0].shape if part.layer.outputs else ()
    convolution = part.family == "convolution"
    if part.family not in DENSE or min(len(image), len(output)) < (3 if convolution else 2):
        return ()
    channels = (image[1], output[1]) if convolution else (image[-1], output[-1])
    grouped = weights[:1] == output[1:2] and weights[1:2] < image[1:2]
    left_out = convolution and (grouped or channels[0] <= FEW_CHANNELS)
    return channels if min(channels) > 0 and not left_out and any(size % multiple for size in channels) else ()


def _without_tensor_cores(evidence: Evidence) -> PartGroup[TimedKernel]:
    def lacks(part: TimedKernel) -> bool:
        kernel = part.kernel
        return part.family in DENSE and kernel.tensor_cores is False and could_use_tensor_cores(kernel.name)

    return evidence.kernel_group(lacks)


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
    yield make_finding(
        "Convolutions and matrix products take {cost} in full fp32, although this GPU has TF32.", {}, parts,
        subject="convolutions and matrix products",
        hint=f"{_TRADE}: {evidence.command(hint.ask)}" if hint.ask else "",
    )  # fmt: skip


@rule("host-copies", hint="Keep constants in buffers of the model; call neither .item() nor .cpu() in forward.")
def host_copies(evidence: Evidence) -> Iterator[Finding]:
    """Report copies between host and GPU: the profiler's ``Memcpy HtoD``, or a backend's copying layers."""
    copies = evidence.kernel_group(lambda part: part.kernel.kind == "copy" and _HOST_COPY.search(part.kernel.name))
    layers = evidence.layer_group(layer for layer in evidence.timed_layers if layer.family == "copy")
    parts: PartGroup[Any] = copies or layers
    if evidence.on_gpu and evidence.case.io != "host" and parts.share >= LAYOUT:
        yield make_finding(
            "{copies:,} {copies:copy|copies} between host and GPU {copies:takes|take} {cost}{location}.",
            {"copies": parts.calls}, parts, seconds=parts.seconds,
        )  # fmt: skip


@rule("tiny-kernels")
def tiny_kernels(evidence: Evidence) -> Iterator[Finding]:
    """Report kernels of a few microseconds, which mostly start and end."""
    kernels = evidence.kernel_group(lambda part: part.kernel.kind == "kernel")
    tiny = evidence.kernel_group(
        lambda part: part.kernel.kind == "kernel" and 0 < part.seconds / max(part.kernel.calls, 1) < TINY
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
    kernels = evidence.kernel_group(lambda part: part.kernel.kind == "kernel" and 0 < part.blocks < processors)
    if kernels.share >= FEW_BLOCKS:
        idle = sum(part.seconds * (1 - part.blocks / processors) for part in kernels)
        yield make_finding(
            "{calls:#kernel call} {calls:has|have} too few blocks for {multiprocessors} multiprocessors: {cost}, with "
            "{empty:percent} of the GPU empty.",
            {"idle": idle, "multiprocessors": processors}, kernels, seconds=idle, empty=idle / kernels.seconds,
            hint=f"A larger batch fills it: {evidence.command(larger=True)}",
        )  # fmt: skip


PROFILE_RULES = (
    tensor_cores_unused, tf32_off, host_copies, tiny_kernels, few_blocks, far_above_floor, near_ceiling,
    bandwidth_bound, reformats, unfused_chains, fp32_layers, outside_layers, fallback, graph_breaks, doubtful_profile,
    unstable, host_bound,
)  # fmt: skip
