"""Everything that follows from what a record keeps, samples and the machine's log, worked out anew each time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from inferlens.analysis.accuracy import measured_drop, worth
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.findings.rules.waiting import bound_by
from inferlens.analysis.findings.thresholds import AT_CHANCE, GPU_FLOOR, LESS_ACCURATE, PARTLY, SLOW_RATE, UNEVEN
from inferlens.analysis.interference import mark
from inferlens.analysis.interference.load import record_load
from inferlens.analysis.interference.samples import Series, latencies, steady_samples
from inferlens.record.record import EMPTY_KERNEL, IN_TURNS, Record
from inferlens.spec.case import Budget
from inferlens.stats.diagnostics import LEAST_SAMPLES, diagnostics
from inferlens.stats.intervals import half_width
from inferlens.stats.quantiles import median
from inferlens.stats.shares import share_interval

WAIT = "--wait 10m waits for a quiet machine before it measures."
UNSTEADY = ("drifting", "cycling", "never-steady")  # in turns that is the machine, and the median is of the fast turns
# Of the codes of inferlens.stats.diagnostics: what is said of them, and what to do. Outliers are seen in p95 and p99;
# how far samples depend on each other matters less than how far processes differ, which is measured.
OF_THE_SERIES = {
    "few-samples": (
        "few-samples",
        "More --iterations, --seconds or --max-time.",
        "There are {value:.0f} samples only.",
    ),
    "two-modes": ("two-modes", "Judge by p95 as well.", "There are two typical speeds, {value:.2f} times apart."),
    **dict.fromkeys(
        UNSTEADY,
        ("unsteady", "More --warmup, and a longer --max-time.", "Latencies were still changing at the end."),
    ),
}


@dataclass(frozen=True)
class RecordEvidence:
    """One record, with the series of its latencies worked out once."""

    record: Record
    host_wait = None  # nobody saw the GPU wait

    @cached_property
    def series(self) -> Series:
        """The latencies that statistics are of."""
        return latencies(self.record)


@rule("", of="record")
def machine(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """Report what disturbed the samples, in the words of :mod:`inferlens.analysis.interference`."""
    if cause := record_load(record_evidence.record).cause:
        yield found("{message}", message=cause, hint=WAIT, code="busy")
    for marks in (record_evidence.record.marks, record_evidence.record.window_marks):
        for warning in mark.warnings(marks) if marks else ():
            yield found("{message}", message=warning.message, hint=warning.advice, code=warning.code)


@rule("not-finite", of="record", hint="See the log beside the record: the clock is not to be trusted.")
def not_finite(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """Samples that are no times."""
    count = record_evidence.series.not_finite
    if count:
        yield found("{samples:#sample} {samples:is|are} negative or not finite, and left out.", {"samples": count})


@rule("", of="record")
def series(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """What speaks against the interval of the median, or the median itself."""
    samples, for_median = record_evidence.series.samples, record_evidence.series.for_median
    for diagnostic in diagnostics(for_median if len(for_median) >= LEAST_SAMPLES else samples) if samples else ():
        if diagnostic.code in OF_THE_SERIES and not (
            IN_TURNS in record_evidence.record.facts and diagnostic.code in UNSTEADY
        ):
            code, hint, template = OF_THE_SERIES[diagnostic.code]
            yield found(template, {"value": diagnostic.value}, hint=hint, code=code)


@rule("not-reached", of="record", hint="A longer --max-time, or a quieter machine.")
def not_reached(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """The time was up before the median was known as well as was asked for; by default nobody asked."""
    budget, samples = record_evidence.record.budget, record_evidence.series.samples
    if not samples or budget.iterations is not None or budget.seconds is not None:
        return
    width = half_width(samples)
    if Budget().half_width != budget.half_width < width < math.inf:
        yield found(
            "The median is known to {width:percent} only; {wanted:percent} was wanted.",
            {"width": width, "wanted": budget.half_width},
        )


@rule("uneven-throughput", of="record", hint="Measure it again on a quieter machine.")
def uneven_throughput(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """How far the median of the windows of throughput may be off; of few windows, how far they differ from it."""
    rates = steady_samples(record_evidence.record, "throughput").for_median
    middle = median(rates) if rates else 0.0
    if middle > 0 and IN_TURNS not in record_evidence.record.facts:  # there it is of the same calls as the latency
        width = half_width(rates)
        if math.isinf(width):  # too few for an interval
            width = max(max(rates) - middle, middle - min(rates)) / middle
        if width > UNEVEN:
            known = ": it may be {width:percent} higher or lower" if width < 0.5 else " too much to be known"
            yield found(f"Throughput varied{known}.", {"width": width})


@rule("slow-throughput", of="record", hint="Measure again, with --mode throughput; until then trust the latency.")
def slow_throughput(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """Calls back to back cannot take longer than one after another, but for a disturbance or a wrong clock."""
    rates, latency = steady_samples(record_evidence.record, "throughput").for_median, record_evidence.series.for_median
    if rates and latency:
        share = median(rates) * median(latency)
        if share < SLOW_RATE:
            yield found("Throughput is only {share:percent} of what one call after another gives.", share=share)


def share_if_partly(record: Record) -> float | None:
    """The share of the multiply-adds of a record that are quantized, where it is less than half of them."""
    share = record.facts.get("quantized_share")
    return share if isinstance(share, int | float) and share < PARTLY else None


@rule("partly-quantized", of="record", hint="inferlens profile shows which layers stayed as they were.")
def partly_quantized(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """A model that was quantized here, of which most is computed as before."""
    share = share_if_partly(record_evidence.record)
    if share is not None:
        yield found("Only {share:percent} of the multiply-adds are quantized.", share=share)


@rule("less-accurate", of="record", hint="More calibration data, other ranges, or --keep for the layers that lose it.")
def less_accurate(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """Answers that are worth less than those of fp32, by more than chance."""
    accuracy, known = record_evidence.record.accuracy, worth(record_evidence.record.accuracy)
    sure = known and known.drop_interval and known.drop_interval.low > 0
    drop = measured_drop(accuracy) or 0.0
    if accuracy and sure and drop > LESS_ACCURATE:
        yield found("{metric} is {drop:percent} below fp32.", metric=accuracy.metric, drop=drop)


@rule("at-chance", of="record", hint="Are weights random, or labels numbered otherwise?")
def at_chance(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """fp32 itself is seldom right, and no more often than who always answers the commonest label."""
    accuracy = record_evidence.record.accuracy
    if accuracy and accuracy.commonest and (hits := accuracy.reference_values):
        interval = share_interval(sum(hits), len(hits))
        if interval.low <= accuracy.commonest and interval.high < AT_CHANCE:
            yield found("fp32's {metric} is chance.", metric=accuracy.metric)


@rule("random-calibration", of="record", hint="Give real data to --calibration.")
def random_calibration(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """Ranges that were found with noise fit no data."""
    facts = record_evidence.record.facts
    if record_evidence.record.case.calibration == "random" and facts.get("calibrated", "quantized_share" in facts):
        yield found("Calibrated with noise, not with data.")


@rule(
    "copy-bound",
    of="record",
    hint="Keep inputs and outputs on the GPU (--io device) where the application can, or make them smaller.",
)
def copy_bound(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """Copies take as long as the inference."""
    if bound_by(record_evidence.record) == "copies":
        yield found("Bound by copies between host and GPU.")


@rule("gpu-floor", of="record", hint="Compare it with other GPU times alone; inferlens profile has the kernels' own.")
def gpu_floor(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """How much of a short GPU time is launch and events; older records do not know."""
    kernel, gpu = (
        record_evidence.record.facts.get(EMPTY_KERNEL),
        steady_samples(record_evidence.record, "GPU time").for_median,
    )
    floor = kernel.get("gpu_seconds") if isinstance(kernel, dict) else None
    if isinstance(floor, float) and gpu and floor >= GPU_FLOOR * median(gpu) > 0:
        yield found(
            "Of {whole:duration} of GPU time {floor:duration} are launch and timing.",
            {"whole": median(gpu), "floor": floor},
        )


@rule("weights-unwrapped", of="record")
def weights_unwrapped(record_evidence: RecordEvidence) -> Iterator[Finding]:
    """Report how weights were taken out of a checkpoint; :class:`ModelFacts` has it in parentheses."""
    weights = record_evidence.record.model.weights if record_evidence.record.model else ""
    if weights.endswith(")"):
        yield found("Weights came from the {weights}.", weights=weights.replace(" (", ", ").removesuffix(")"))
