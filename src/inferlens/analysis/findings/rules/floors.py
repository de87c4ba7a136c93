"""Layers against the least time that their work takes on this device: see ``inferlens.analysis.profile.roofline``."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.families import DENSE
from inferlens.analysis.findings.hints import one_of
from inferlens.analysis.findings.names import kinds, longest, part, where
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.findings.rules.fusion import avoidable
from inferlens.analysis.profile.roofline import Floor
from inferlens.spec.case import QUANTIZED, Option
from inferlens.units import plural

# Options, by the names that most backends have for them, with which a library searches for algorithms.
_SEARCHES: tuple[tuple[str, Option], ...] = (("max_autotune", True), ("optimization_level", 5))
_OF_CONVOLUTIONS: tuple[tuple[str, Option], ...] = (("cudnn_benchmark", True), ("cudnn_conv_algo_search", "EXHAUSTIVE"))
_BOUND = {"compute": " (bound by arithmetic)", "memory": " (bound by memory)"}
_ANY = (
    "Compare it with other backends (inferlens modules), which may have another algorithm for it; try a larger "
    "--batch and another number of --threads."
)
_ANY_ON_GPU = "Compare it with other backends (inferlens modules), which may fuse it; try a larger --batch."
_MEMORY = "Have it fused with the layers around it, or computed in fewer bytes: its floor is made by memory."
_FEWER_BYTES = (
    "Move fewer bytes, for more FLOPs a second win nothing here: {lower}fusion with the layers around, and for "
    "products with few rows a larger --batch, which reads the weights once for all of it."
)


@rule("far-above-floor", of="profile", hint=_ANY)
def far_above_floor(seen: Evidence) -> Iterator[Finding]:
    """Layers that take much, and far more than they have to."""
    if seen.floors is None:
        return
    others = avoidable(seen.parts)
    far = [
        (each.steady - floor.floor, each, floor)
        for each in seen.parts
        if each.family not in ("reformat", "cast", "copy") and each.row.place not in others
        if seen.share(each.steady) >= thresholds.LARGE
        if (floor := seen.floor_of(each)) and floor.floor and each.steady >= thresholds.FAR * floor.floor
    ]
    out = len(seen.floors.unplaced)
    caveat = f" Floors may be too low: the work of {plural(out, 'module')} is in no layer." if out else ""
    for won, each, floor in sorted(far, key=lambda one: -one[0])[: thresholds.MOST_FAR]:
        name = f"What {part(each)} does outside of the modules in it" if _contains(seen, each) else part(each)
        distance = each.steady / floor.floor if floor.floor else None
        yield found(
            "{name} takes {run}, {distance:two} times its floor of {floor:duration}{bound}.{caveat}",
            {
                "seconds": each.steady, "floor": floor.floor, "distance": distance, "flops": floor.flops,
                "bytes": floor.bytes,
            },
            subject=part(each), seconds=won, share=seen.share(each.steady), hint=_hint(seen, each, floor),
            name=name, bound=_BOUND.get(floor.bound, ""), caveat=caveat,
        )  # fmt: skip


def _hint(seen: Evidence, of: Part, floor: Floor) -> str:
    """What fits the layer better than what the rule says to all."""
    if of.family not in DENSE and floor.bound == "memory":
        return _MEMORY
    if not seen.on_gpu:
        return ""
    if of.family not in DENSE:
        return _ANY_ON_GPU
    images = of.family == "convolution"
    order = seen.hint("channels_last").ask if images else ""
    options = (*_OF_CONVOLUTIONS, *_SEARCHES) if images else _SEARCHES
    searches = [hint.ask for hint in (seen.hint(*each) for each in options) if hint.ask]
    tries = [f"channels-last order ({order})"] if order else []
    tries += [f"the library's own search ({', '.join(searches)})"] if searches else []
    return f"Another algorithm for it: {one_of([*tries, 'another backend', 'a larger --batch'])}."


def _contains(seen: Evidence, of: Part) -> bool:
    """Whether a layer is a module with others in it, so that its time is of its own operators alone."""
    inside = f"{of.name}." if of.name else ""
    return seen.by_module and any(each.name.startswith(inside) and each is not of for each in seen.parts)


@rule(
    "dominating",
    of="profile",
    hint="Look at it first: its shape, precision and memory order, and how long another backend takes for the same "
    "module (inferlens modules).",
)
def dominating(seen: Evidence) -> Iterator[Finding]:
    """Without floors: one layer that takes most of the time, or more than its work lets expect."""
    timed = [each for each in seen.parts if each.seconds > 0]
    if len(timed) < thresholds.LEAST_LAYERS or seen.floors is not None:
        return
    first = max(timed, key=lambda each: each.steady)
    share, work = seen.share(first.steady), _work_share(seen, first)
    if work is not None and share >= thresholds.LARGE_FOR_ITS_WORK and share >= thresholds.OUT_OF_PROPORTION * work:
        more = " and does {share of FLOPs:percent} of the model's FLOPs"
    elif work is None and share >= thresholds.DOMINATING:
        more = ", more than the other {others:,} layers together"
    else:
        return
    numbers = {"seconds": first.steady, "share": share, "share of FLOPs": work}
    template = f"{{name}} takes {{run}}{more}."
    yield found(template, numbers, subject=part(first), share=share, name=part(first), others=len(timed) - 1)


def _work_share(seen: Evidence, of: Part) -> float | None:
    """A layer's part of the model's FLOPs, if it is of modules that have any."""
    flops = {each.module: each.flops for each in seen.work.modules} if seen.work else {}
    mine, total = sum(flops.get(path, 0.0) for path in dict.fromkeys(of.layer.modules)), sum(flops.values())
    return mine / total if mine > 0 and total > 0 else None


@rule("bandwidth-bound", of="profile")
def bandwidth_bound(seen: Evidence) -> Iterator[Finding]:
    """Depthwise and grouped convolutions, and products with few rows, do little with every byte."""
    if seen.ceilings and seen.ceilings.disturbed:
        return  # a ceiling that is too low makes floors too long, and layers seem close to them that are not
    near = [
        (each, floor)
        for each in seen.parts
        if each.family in DENSE
        and each.seconds > 0
        and (floor := seen.floor_of(each))
        and floor.bound == "memory"
        and floor.distance is not None
        and thresholds.BELOW <= floor.distance <= thresholds.NEAR
    ]
    parts = [each for each, _ in near]
    total, share = seen.together(parts)
    moved = sum(floor.bytes or 0.0 for _, floor in near)
    if moved < thresholds.LARGER_THAN_CACHES or share < thresholds.LARGE:
        return
    least = sum(floor.floor or 0.0 for _, floor in near)
    yield found(
        "{layers:#layer} ({kinds}) {layers:is|are} bound by memory and close to {layers:its|their} floor: "
        "{layers:it takes|they take} {run}, {times:two} times what moving {layers:its|their} bytes takes{where}.",
        {"layers": len(near), "seconds": total, "floor": least, "bytes": moved},
        subject=longest(parts), seconds=sum(floor.won or 0.0 for _, floor in near), share=share,
        hint=_FEWER_BYTES.format(lower="" if seen.precision in QUANTIZED else "lower precision, "),
        kinds=kinds(parts), times=total / least, where=where(parts),
    )  # fmt: skip
