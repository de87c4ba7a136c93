"""Layers against the least time that their work takes on this device: see ``insight.roofline``."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.analysis.findings import fusion
from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.families import DENSE
from inferlens.analysis.findings.finding import Finding, rule
from inferlens.analysis.findings.hints import one_of
from inferlens.analysis.findings.words import kinds, longest, of_run, part, verb, where
from inferlens.analysis.profile.roofline import Floor, Roofline
from inferlens.spec.case import QUANTIZED, Option
from inferlens.units import byte_count, duration, percent, plural, significant

LARGE = 0.1
FAR = 5.0
MOST = 3
DOMINATING = 0.5
LEAST_LAYERS = 5
OUT_OF_PROPORTION = 3.0
LARGE_FOR_ITS_WORK = 0.2
NEAR = 2.0
# Options, by the names that most backends have for them, with which a library searches for algorithms.
_SEARCHES: tuple[tuple[str, Option], ...] = (("max_autotune", True), ("optimization_level", 5))
_OF_CONVOLUTIONS: tuple[tuple[str, Option], ...] = (("cudnn_benchmark", True), ("cudnn_conv_algo_search", "EXHAUSTIVE"))
_ANY_ON_GPU = "Compare it with other backends (inferlens modules), which may fuse it; try a larger --batch."
_MEMORY = "Have it fused with the layers around it, or computed in fewer bytes: its floor is made by memory."
_LOWEST = (
    "Move fewer bytes, for more FLOPs a second win nothing here: fusion with the layers around, and for products with "
    "few rows a larger --batch, which reads the weights once for all of it."
)
LARGER_THAN_CACHES = 64 * 2**20
BELOW = 0.9


@rule(
    "far-above-floor",
    needs="layers, the model's work and the device's ceilings",
    speaks=f"a layer takes {percent(LARGE)} of a run and at least {FAR:.0f} times its floor; of several the {MOST} in "
    "which most could be won",
    silent="where a layer's modules are not known, so that it has no floor; for layers that could be fused or folded "
    "away, or only change memory order or type, which have rules of their own. A floor is no goal: it is of "
    "large matrix products and copies, and small ones do not reach it",
    advice="Compare it with other backends (inferlens modules), which may have another algorithm for it; try a larger "
    "--batch and another number of --threads.",
)
def far_above_floor(seen: Evidence) -> Iterator[Finding]:
    """Layers that take much, and far more than they have to."""
    if seen.floors is None:
        return
    avoidable = fusion.avoidable(seen.parts)
    far = [
        (each.steady - floor.floor, each, floor)
        for each in seen.parts
        if each.family not in ("reformat", "cast", "copy") and each.row.place not in avoidable
        if seen.share(each.steady) >= LARGE
        if (floor := seen.floor_of(each)) and floor.floor and each.steady >= FAR * floor.floor
    ]
    for won, each, floor in sorted(far, key=lambda found: -found[0])[:MOST]:
        name = f"What {part(each)} does outside of the modules in it" if _contains(seen, each) else part(each)
        distance = each.steady / floor.floor if floor.floor else None
        yield Finding(
            subject=part(each),
            sentence=f"{name} takes {of_run(each.steady, seen.share(each.steady))}, "
            f"{significant(distance or 0.0, 2)} times its floor of {duration(floor.floor)}{_bound(floor.bound)}."
            f"{_caveat(seen.floors)}",
            seconds=won,
            share=seen.share(each.steady),
            evidence={
                "seconds": each.steady, "floor": floor.floor, "distance": distance, "flops": floor.flops,
                "bytes": floor.bytes,
            },
            advice=_advice(seen, each, floor),
        )  # fmt: skip


def _advice(seen: Evidence, of: Part, floor: Floor) -> str:
    """What fits the layer better than what the rule says to all."""
    if of.family not in DENSE and floor.bound == "memory":
        return _MEMORY
    if not seen.on_gpu:
        return ""
    return f"Another algorithm for it: {_algorithms(seen, of)}." if of.family in DENSE else _ANY_ON_GPU


def _algorithms(seen: Evidence, of: Part) -> str:
    """How the backend may come by another algorithm for a convolution or a matrix product."""
    order = seen.hint("channels_last").ask if of.family == "convolution" else ""
    options = (*_OF_CONVOLUTIONS, *_SEARCHES) if of.family == "convolution" else _SEARCHES
    searches = [found.ask for found in (seen.hint(*each) for each in options) if found.ask]
    tries = [f"channels-last order ({order})"] if order else []
    tries += [f"the library's own search ({', '.join(searches)})"] if searches else []
    return one_of([*tries, "another backend", "a larger --batch"])


def _contains(seen: Evidence, of: Part) -> bool:
    """Whether a layer is a module with others in it, so that its time is of its own operators alone."""
    inside = f"{of.name}." if of.name else ""
    return seen.by_module and any(each.name.startswith(inside) and each is not of for each in seen.parts)


def _bound(bound: str) -> str:
    return {"compute": " (bound by arithmetic)", "memory": " (bound by memory)"}.get(bound, "")


def _caveat(line: Roofline) -> str:
    """Work that is in no layer makes floors too low."""
    out = len(line.unplaced)
    return f" Floors may be too low: the work of {plural(out, 'module')} is in no layer." if out else ""


@rule(
    "dominating",
    needs="layers; the model's work tells more",
    speaks=f"without floors: a layer takes {percent(LARGE_FOR_ITS_WORK)} of a run and {OUT_OF_PROPORTION:.0f} times "
    f"its share of the model's FLOPs; without its work: one of at least {LEAST_LAYERS} layers takes "
    f"{percent(DOMINATING)} of a run",
    silent="where the layer has a floor, which says more; a layer that takes much because it does much is no finding",
    advice="Look at it first: its shape, precision and memory order, and how long another backend takes for the same "
    "module (inferlens modules).",
)
def dominating(seen: Evidence) -> Iterator[Finding]:
    """One layer that takes most of the time, or more than its work lets expect."""
    timed = [each for each in seen.parts if each.seconds > 0]
    if len(timed) < LEAST_LAYERS or seen.floors is not None:
        return
    first = max(timed, key=lambda each: each.steady)
    share, work = seen.share(first.steady), _work_share(seen, first)
    if work is not None and share >= LARGE_FOR_ITS_WORK and share >= OUT_OF_PROPORTION * work:
        said = f" and does {percent(work)} of the model's FLOPs"
    elif work is None and share >= DOMINATING:
        said = f", more than the other {len(timed) - 1:,} layers together"
    else:
        return
    yield Finding(
        subject=part(first),
        sentence=f"{part(first)} takes {of_run(first.steady, share)}{said}.",
        share=share,
        evidence={"seconds": first.steady, "share": share, "share of FLOPs": work},
    )


def _work_share(seen: Evidence, of: Part) -> float | None:
    """A layer's part of the model's FLOPs, if it is of modules that have any."""
    flops = {each.module: each.flops for each in seen.work.modules} if seen.work else {}
    mine, total = sum(flops.get(path, 0.0) for path in dict.fromkeys(of.layer.modules)), sum(flops.values())
    return mine / total if mine > 0 and total > 0 else None


@rule(
    "bandwidth-bound",
    needs="layers, the model's work and the device's ceilings",
    speaks=f"convolutions and matrix products whose floor is made by memory, and that take at most {NEAR:.0f} times "
    f"that floor, take {percent(LARGE)} of a run together and move {byte_count(LARGER_THAN_CACHES)}",
    silent="where something else interrupted what measured the ceilings; for other layers, of which nobody expects a "
    "high rate; for layers faster than their floor, whose data come from a cache; what is further from its floor than "
    "that has something else to be won",
    advice="Move fewer bytes, for more FLOPs a second win nothing here: lower precision, fusion with the layers "
    "around, and for products with few rows a larger --batch, which reads the weights once for all of it.",
)
def bandwidth_bound(seen: Evidence) -> Iterator[Finding]:
    """Depthwise and grouped convolutions, and products with few rows, do little with every byte."""
    if seen.ceilings and seen.ceilings.disturbed:
        return  # a ceiling that is too low makes floors too long, and layers seem close to them that are not
    found = [
        (each, floor)
        for each in seen.parts
        if each.family in DENSE
        and each.seconds > 0
        and (floor := seen.floor_of(each))
        and floor.bound == "memory"
        and floor.distance is not None
        and BELOW <= floor.distance <= NEAR
    ]
    parts, total = [each for each, _ in found], sum(each.seconds for each, _ in found)
    moved = sum(floor.bytes or 0.0 for _, floor in found)
    if moved >= LARGER_THAN_CACHES and seen.share(total) >= LARGE:
        least = sum(floor.floor or 0.0 for _, floor in found)
        count = len(found)
        yield Finding(
            subject=longest(parts),
            sentence=f"{plural(count, 'layer')} ({kinds(parts)}) {verb(count, 'is', 'are')} bound by memory and close "
            f"to {verb(count, 'its', 'their')} floor: {verb(count, 'it takes', 'they take')} "
            f"{of_run(total, seen.share(total))}, {significant(total / least, 2)} times what moving "
            f"{verb(count, 'its', 'their')} bytes takes{where(parts)}.",
            seconds=sum(floor.won or 0.0 for _, floor in found),
            share=seen.share(total),
            evidence={"layers": count, "seconds": total, "floor": least, "bytes": moved},
            advice=_LOWEST if seen.precision in QUANTIZED else "",
        )
