"""How far a profile can be trusted: what profiling cost, what is not attributed, what varies, what is not told."""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.names import longest, part, short, where
from inferlens.analysis.findings.rule import Finding, found, rule

_MACHINE = "Look for what else runs on the machine; more --runs."


@rule(
    "doubtful-profile",
    of="profile",
    about="trust",
    hint="Judge by shares rather than by times, and by differences that are larger than this one; more --runs on a "
    "quieter machine narrow it.",
)
def doubtful_profile(seen: Evidence) -> Iterator[Finding]:
    """What was profiled is not quite what runs unprofiled."""
    account = seen.table.reconciliation if seen.table else None
    if account and account.cost is not None and account.unprofiled:
        why = ""
        if account.cost >= thresholds.COST and (account.cost_low or account.cost) >= thresholds.COST:
            why = "Profiling takes time itself, or the machine was busier."
        elif account.cost <= thresholds.FASTER and (account.cost_high or account.cost) <= thresholds.FASTER:
            why = "Profiling speeds nothing up: something else slowed the unprofiled calls down."
        if why:
            yield found(
                "The layers' profile is doubtful: a profiled call takes {cost:ratio} as long as an unprofiled one "
                f"({{profiled:duration}} and {{untouched:duration}}). {why}",
                {"cost": account.cost, "profiled": account.whole.median, "untouched": account.unprofiled},
                subject="the layers",
            )
    if seen.latency and seen.busy >= thresholds.GPU_COST * seen.latency:
        yield found(
            "The kernels' profile is doubtful: the GPU works {busy:duration} in a profiled run, and a whole unprofiled "
            "call takes {latency:duration}.",
            {"busy": seen.busy, "latency": seen.latency},
            subject="the kernels",
        )


@rule(
    "not-attributed",
    of="profile",
    about="trust",
    hint="Look at them by name with inferlens layers; the notes beneath its table say why their modules are not known.",
)
def not_attributed(seen: Evidence) -> Iterator[Finding]:
    """Time of which the table of modules cannot say whose it is."""
    parts = [
        each
        for each in seen.parts
        if not each.layer.modules and not each.inserted and each.family not in ("reformat", "cast", "copy")
    ]
    total, share = seen.together(parts)
    if parts and share >= thresholds.UNKNOWN:
        layers = seen.layered.layers if seen.layered else None
        why = short(layers.absent["modules"]).rstrip(".") if layers and "modules" in layers.absent else ""
        yield found(
            "{layers:#layer} of no known module {layers:takes|take} {run}{where}.{why}",
            {"layers": len(parts), "seconds": total},
            subject=longest(parts), share=share, where=where(parts), why=f" ({why}.)" if why else "",
        )  # fmt: skip


@rule(
    "unstable",
    of="profile",
    about="trust",
    hint="Profile it again on a quiet machine; if it still varies, its time may depend on the data, or on memory that "
    "it allocates.",
)
def unstable(seen: Evidence) -> Iterator[Finding]:
    """Runs that differ, or layers that do."""
    whole = seen.table.reconciliation.whole if seen.table else None
    if whole is None or whole.p95 is None or whole.median <= 0:
        return
    if whole.p95 >= thresholds.RUN_SPREAD * whole.median:
        yield found(
            "Profiled runs vary: their 95th percentile is {p95:duration}, {times:ratio} their median of "
            "{median:duration}.",
            {"p95": whole.p95, "median": whole.median},
            subject="the runs", hint=_MACHINE, times=whole.p95 / whole.median,
        )  # fmt: skip
        return
    varying = [(spread, each) for each in seen.parts if (spread := _spread(each, thresholds.LAYER_LOSS * whole.median))]
    if not varying:
        return
    (p95, middle), worst = max(varying, key=lambda pair: pair[0][0] - pair[0][1])
    share = seen.together([each for _, each in varying])[1]
    yield found(
        "{layers:#layer} {layers:varies|vary} and {layers:takes|take} {share:percent} of a run: the 95th percentile of "
        "{name} is {p95:duration}, {times:ratio} its median of {median:duration}.",
        {"p95": p95, "median": middle, "layers": len(varying)},
        subject=part(worst), share=share, hint=_MACHINE if share >= thresholds.MANY else "",
        name=part(worst), times=p95 / middle,
    )  # fmt: skip


def _spread(of: Part, least: float) -> tuple[float, float] | None:
    """95th percentile and median of a layer that is unstable by at least so many seconds; ``None`` for others."""
    times = of.row.times
    if times is None or times.p95 is None or times.median <= 0:
        return None
    far = times.p95 >= thresholds.LAYER_SPREAD * times.median and times.p95 - times.median >= least
    return (times.p95, times.median) if far else None


@rule(
    "overlap",
    of="profile",
    about="trust",
    hint="Read shares with care: they add up to more than 100 %, and what one takes less need not make the run "
    "shorter.",
)
def overlap(seen: Evidence) -> Iterator[Finding]:
    """Layers or kernels at the same time."""
    if seen.table and seen.table.reconciliation.overlaps:
        account = seen.table.reconciliation
        over = seen.share(-account.outside.typical)
        if over >= thresholds.OVERLAP:
            yield found(
                "Layers overlap: they add up to {layers:duration} in a run of {whole:duration}.",
                {"layers": account.layers.typical, "whole": account.whole.typical},
                subject="the layers", share=over,
            )  # fmt: skip
    total, share, _ = seen.on_the_gpu(seen.launched)
    streams = {each.kernel.stream for each in seen.launched if each.kernel.stream is not None}
    if len(streams) > 1 and share >= 1 + thresholds.OVERLAP:
        yield found(
            "Kernels overlap on {streams:#stream}: they add up to {kernels:duration} while the GPU is busy for "
            "{busy:duration}.",
            {"kernels": total, "busy": seen.busy, "streams": len(streams)},
            subject="the kernels", share=share - 1,
        )  # fmt: skip


@rule("names-only", of="profile", about="trust")
def names_only(seen: Evidence) -> Iterator[Finding]:
    """As of an engine that keeps the names of its layers alone."""
    parts = [each.layer for each in seen.parts]
    if parts and not any(each.inputs or each.outputs or each.kind or each.details for each in parts):
        detailed = seen.hint("profiling_verbosity", "detailed").ask
        yield found(
            "Only names and times are known of {layers:#layer}: no kinds, shapes or types.",
            {"layers": len(parts)},
            subject="the layers",
            hint=f"Build an engine with {detailed or 'all it tells of its layers'}, as inferlens build does by itself; "
            "rules that need shapes and types are silent until then.",
        )
