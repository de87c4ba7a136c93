"""How far a profile can be trusted: what profiling cost, what is not attributed, what varies, what is not told."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.finding import Finding, rule
from inferlens.analysis.findings.words import longest, of_run, part, short, verb, where
from inferlens.analysis.profile.layers import Reconciliation
from inferlens.units import duration, percent, plural, ratio

COST = 1.3
FASTER = 0.77
GPU_COST = 1.1
UNKNOWN = 0.1
RUN_SPREAD = 1.5
LAYER_SPREAD = 2.0
LAYER_LOSS = 0.02
MANY = 0.3
OVERLAP = 0.02
MACHINE = "Look for what else runs on the machine; more --runs."


@rule(
    "doubtful-profile",
    needs="layers or kernels, and untouched calls",
    speaks=f"profiled calls take {ratio(COST)} as long as untouched ones or more, or {ratio(FASTER)} or less; in "
    f"kernels: the GPU works {ratio(GPU_COST)} as long as a whole untouched call, or longer",
    silent="where profiling costs the host alone: the times of kernels stay right. The 95 % interval has to lie beyond "
    "the threshold as well, where there is one",
    advice="Judge by shares rather than by times, and by differences that are larger than this one; more --runs on a "
    "quieter machine narrow it.",
    about="trust",
)
def doubtful_profile(seen: Evidence) -> Iterator[Finding]:
    """What was profiled is not quite what runs untouched."""
    account = seen.table.reconciliation if seen.table else None
    if account and account.cost is not None and account.unprofiled:
        if account.cost >= COST and (account.cost_low or account.cost) >= COST:
            yield _doubtful(account, "Profiling takes time itself, or the machine was busier.")
        elif account.cost <= FASTER and (account.cost_high or account.cost) <= FASTER:
            yield _doubtful(account, "Profiling speeds nothing up: something else slowed the untouched calls down.")
    if seen.latency and seen.busy >= GPU_COST * seen.latency:
        yield Finding(
            subject="the kernels",
            sentence=f"The kernels' profile is doubtful: the GPU works {duration(seen.busy)} in a profiled run, and a "
            f"whole untouched call takes {duration(seen.latency)}.",
            evidence={"busy": seen.busy, "latency": seen.latency},
        )


def _doubtful(account: Reconciliation, why: str) -> Finding:
    return Finding(
        subject="the layers",
        sentence=f"The layers' profile is doubtful: a profiled call takes {ratio(account.cost)} as long as an "
        f"untouched one ({duration(account.whole.median)} and {duration(account.unprofiled)}). {why}",
        evidence={"cost": account.cost, "profiled": account.whole.median, "untouched": account.unprofiled},
    )


@rule(
    "not-attributed",
    needs="layers",
    speaks=f"layers of no known module take {percent(UNKNOWN)} of a run together",
    silent="for layers that the backend inserted itself, and for those that only change memory order or type: these "
    "are no module's",
    advice="Look at them by name with inferlens layers; the notes beneath its table say why their modules are not "
    "known.",
    about="trust",
)
def not_attributed(seen: Evidence) -> Iterator[Finding]:
    """Time of which the table of modules cannot say whose it is."""
    found = [
        each
        for each in seen.parts
        if not each.layer.modules and not each.inserted and each.family not in ("reformat", "cast", "copy")
    ]
    total = sum(each.seconds for each in found)
    if found and seen.share(total) >= UNKNOWN:
        layers = seen.layered.layers if seen.layered else None
        why = short(layers.absent["modules"]).rstrip(".") if layers and "modules" in layers.absent else ""
        yield Finding(
            subject=longest(found),
            sentence=f"{plural(len(found), 'layer')} of no known module {verb(len(found))} "
            f"{of_run(total, seen.share(total))}{where(found)}.{f' ({why}.)' if why else ''}",
            share=seen.share(total),
            evidence={"layers": len(found), "seconds": total},
        )


@rule(
    "unstable",
    needs="layers, in at least 20 runs",
    speaks=f"the 95th percentile of the whole run is {ratio(RUN_SPREAD)} its median or more; or, in runs that are "
    f"steady, that of a layer is {ratio(LAYER_SPREAD)} its median, and the difference {percent(LAYER_LOSS)} of a run",
    silent="for single layers where the whole run varies: then it is the machine",
    advice="Profile it again on a quiet machine; if it still varies, its time may depend on the data, or on memory "
    "that it allocates.",
    about="trust",
)
def unstable(seen: Evidence) -> Iterator[Finding]:
    """Runs that differ, or layers that do."""
    if seen.table is None:
        return
    whole = seen.table.reconciliation.whole
    if whole.p95 is None or whole.median <= 0:
        return
    if whole.p95 >= RUN_SPREAD * whole.median:
        yield Finding(
            subject="the runs",
            sentence=f"Profiled runs vary: their 95th percentile is {duration(whole.p95)}, "
            f"{ratio(whole.p95 / whole.median)} their median of {duration(whole.median)}.",
            evidence={"p95": whole.p95, "median": whole.median},
            advice=MACHINE,
        )
        return
    found = [(spread, each) for each in seen.parts if (spread := _spread(each, LAYER_LOSS * whole.median))]
    if not found:
        return
    (p95, middle), worst = max(found, key=lambda pair: pair[0][0] - pair[0][1])
    share = seen.share(sum(each.seconds for _, each in found))
    count = len(found)
    said = f"{plural(count, 'layer')} {verb(count, 'varies', 'vary')} and {verb(count)} {percent(share)} of a run"
    yield Finding(
        subject=part(worst),
        sentence=f"{said}: the 95th percentile of {part(worst)} is {duration(p95)}, {ratio(p95 / middle)} its median "
        f"of {duration(middle)}.",
        share=share,
        evidence={"p95": p95, "median": middle, "layers": len(found)},
        advice=MACHINE if share >= MANY else "",
    )


def _spread(of: Part, least: float) -> tuple[float, float] | None:
    """95th percentile and median of a layer that is unstable by at least so many seconds; ``None`` for others."""
    times = of.row.times
    if times is None or times.p95 is None or times.median <= 0:
        return None
    far = times.p95 >= LAYER_SPREAD * times.median and times.p95 - times.median >= least
    return (times.p95, times.median) if far else None


@rule(
    "overlap",
    needs="layers; kernels with their streams",
    speaks=f"layers add up to {percent(OVERLAP)} more than the run, or kernels on several streams to "
    f"{percent(OVERLAP)} more than the time in which the GPU was busy",
    silent="where layers run one after the other, and the sum is off by the clock's rounding",
    advice="Read shares with care: they add up to more than 100 %, and what one takes less need not make the run "
    "shorter.",
    about="trust",
)
def overlap(seen: Evidence) -> Iterator[Finding]:
    """Layers or kernels at the same time."""
    if seen.table and seen.table.reconciliation.overlaps:
        account = seen.table.reconciliation
        over = -account.outside.typical
        if seen.share(over) >= OVERLAP:
            yield Finding(
                subject="the layers",
                sentence=f"Layers overlap: they add up to {duration(account.layers.typical)} in a run of "
                f"{duration(account.whole.typical)}.",
                share=seen.share(over),
                evidence={"layers": account.layers.typical, "whole": account.whole.typical},
            )
    total = sum(each.seconds for each in seen.launched)
    streams = {each.kernel.stream for each in seen.launched if each.kernel.stream is not None}
    if len(streams) > 1 and seen.share_of_gpu(total) >= 1 + OVERLAP:
        yield Finding(
            subject="the kernels",
            sentence=f"Kernels overlap on {plural(len(streams), 'stream')}: they add up to {duration(total)} while "
            f"the GPU is busy for {duration(seen.busy)}.",
            share=seen.share_of_gpu(total) - 1,
            evidence={"kernels": total, "busy": seen.busy, "streams": len(streams)},
        )


@rule(
    "names-only",
    needs="layers",
    speaks="the backend tells no kind, no tensors and no details of any layer",
    silent="where a few of them are told",
    advice="If it is an engine of TensorRT, build it with tensorrt.profiling_verbosity=detailed, as inferlens build "
    "does by itself; rules that need shapes and types are silent until then.",
    about="trust",
)
def names_only(seen: Evidence) -> Iterator[Finding]:
    """As of an engine that keeps the names of its layers alone."""
    parts = [each.layer for each in seen.parts]
    if parts and not any(each.inputs or each.outputs or each.kind or each.details for each in parts):
        yield Finding(
            subject="the layers",
            sentence=f"Only names and times are known of {plural(len(parts), 'layer')}: no kinds, shapes or types.",
            evidence={"layers": len(parts)},
        )
