"""A quantized model: what is not computed in int8, what only converts to it and back, and what was won."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import Evidence, Pieces, TimedLayer
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.interference.samples import latencies
from inferlens.stats.quantiles import median
from inferlens.units import listing, percent


@rule("stayed-in-fp32", of="profile")
def stayed_in_fp32(seen: Evidence) -> Iterator[Finding]:
    """Layers with multiply-adds that are computed as before."""
    stayed = _stayed(seen)
    if stayed and stayed.share >= thresholds.STAYED:
        names = dict.fromkeys(each.layer.precision for each in stayed)
        yield found(
            "{layers:#layer} with multiply-adds {layers:is|are} in {types}, not in {precision}: {much}{where}.",
            {}, stayed, types=listing(list(names)), precision=seen.case.precision,
            hint=f"See whether another backend has it in {seen.case.precision}: {seen.command(others=True)}",
        )  # fmt: skip


@rule("conversions", of="profile")
def conversions(seen: Evidence) -> Iterator[Finding]:
    """Layers that quantize, dequantize, or change the memory order for it, and were not fused."""
    some = _at(seen, seen.precisions.conversions if seen.precisions else ())
    if some and some.share >= thresholds.CONVERSIONS:
        yield found(
            "{layers:#layer} ({kinds}) only {layers:converts|convert} to and from {precision}: {much}{where}.",
            {}, some, seconds=some.seconds, precision=seen.case.precision,
            hint=f"Another backend may fuse them, or need fewer: {seen.command(others=True)}",
        )  # fmt: skip


@rule("int8-not-faster", of="profile")
def int8_not_faster(seen: Evidence) -> Iterator[Finding]:
    """A quantized case that is as slow as the same in fp32, and what the profile shows of the reason."""
    before = latencies(seen.plain).for_median if seen.plain else ()
    if not seen.latency or not before or median(before) >= thresholds.LITTLE_WON * seen.latency:
        return
    told = seen.precisions
    stayed, converting = _stayed(seen), told.converting if told else 0.0
    work = told.work.get(seen.case.precision) if told else None
    if converting >= thresholds.CONVERSIONS:
        why = f"conversions take {percent(converting)} of it"
    elif stayed and stayed.share >= thresholds.STAYED:
        why = f"layers that stayed as they were take {percent(stayed.share)} of it"
    else:
        why = f"{percent(work)} of its multiply-adds are in {seen.case.precision}" if work else ""
    yield found(
        "A call takes {seconds:duration} in {precision} and {before:duration} in fp32{why}.",
        {"seconds": seen.latency, "before": median(before)},
        subject="the run", precision=seen.case.precision, why=f": {why}" if why else "",
        seconds=max(seen.latency - median(before), 0.0), whole=seen.latency,
        hint=f"Measure both in turns, then keep the faster: {seen.command(f'--precision fp32,{seen.case.precision}')}",
    )  # fmt: skip


def _stayed(seen: Evidence) -> Pieces[TimedLayer] | None:
    return _at(seen, seen.precisions.stayed if seen.precisions else ())


def _at(seen: Evidence, places: Iterable[int]) -> Pieces[TimedLayer] | None:
    """The layers at these places; ``None`` if there are none."""
    return seen.layers([seen.parts[place] for place in places]) or None
