"""Everything that a reader of a number is warned of: a closed list, each with what to do about it.

Some of it only the process that measured could know, and stands in the record. The rest follows from what the record
keeps, samples and the machine's log, and is worked out here, each time anew: ``inferlens bench --check`` prints it for
records of any age.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from inferlens.analysis.findings import hints as cures
from inferlens.analysis.interference import mark
from inferlens.analysis.interference.samples import CaseRuns, Series, finite, latencies, steady_samples
from inferlens.record.record import EMPTY_KERNEL, IN_TURNS, Record, Warning
from inferlens.stats.diagnostics import doubts
from inferlens.stats.intervals import median_interval
from inferlens.stats.quantiles import median
from inferlens.stats.steady import LEAST_SAMPLES, steady
from inferlens.units import duration, percent

# What follows from a record's samples, and what to do about it. What each means is in docs/warnings.md.
ADVICE = {
    "not-finite": "See the log beside the record: a clock that gives such numbers is not to be trusted for the others.",
    "few-samples": "A longer --max-time.",
    "few-independent-samples": "--repeats 5, or a longer --max-time.",
    "drifting": "More --warmup; if it is heat, let the machine cool down; --repeats 5 shows how far runs differ.",
    "cycling": "Look for what runs on the machine at intervals; --repeats 5 shows how far runs differ.",
    "never-steady": "More --warmup or a longer --max-time; --repeats 5 shows how far runs differ.",
    "two-modes": "Judge by p95 as well: one median does not describe two speeds.",
    "quantised": "A larger --batch: calls are too short for the clock.",
    "not-narrow-enough": "A longer --max-time, or a quieter machine.",
    "unsteady-warm-up": "More --warmup, or a longer --max-time.",
    "beginning-left-out": "More --warmup; --repeats 5 shows whether it is so each time.",
    "uneven-throughput": "--repeats 5, or a quieter machine.",
    "waves": "inferlens ab, which measures the two in turns.",
    "other-card": "Measure both on one machine.",
    "repeat-failed": "Its record says why; the median is of the others.",
    "cut-short": "The same command again, to its end.",
    "in-turns": "Compare it with the other one, or with what was measured in turns as well.",
    "copy-bound": "Keep inputs and outputs on the GPU (--io device) where the application can, or make them smaller.",
    "gpu-floor": "Compare it with other GPU times alone; a profile at the level kernel tells the kernels' own.",
}
# Instead, where several processes were asked for already.
OF_SEVERAL = {
    "few-independent-samples": "A longer --max-time.",
    "drifting": "More --warmup; if it is heat, let the machine cool down.",
    "cycling": "Look for what runs on the machine at intervals.",
    "never-steady": "More --warmup or a longer --max-time.",
    "beginning-left-out": "More --warmup.",
    "uneven-throughput": "A quieter machine.",
}
# Cured by a longer series, of which the advice says by which word.
OF_THE_LENGTH = ("few-samples", "few-independent-samples", "drifting", "never-steady")
# What follows from a record, and of which the backend knows what to do about it: see inferlens.analysis.findings.hints.
OF_THE_BACKEND = ("host-bound",)
# What follows from the machine's log; the advice depends on what disturbed: see inferlens.analysis.interference.mark.
OF_THE_MACHINE = ("disturbed", "samples-left-out", "power-cap", "cpu-quota")
# What only the process could know that measured; the advice stands beside the place where it is said.
OF_THE_CASE = (
    "bad-exit", "export-fallback", "graph-breaks", "lower-precision", "moved-optimum", "no-cuda-graph", "no-effect",
    "no-engines", "not-reached", "one-in-flight", "provider-fallback", "rotating-fits-cache", "static-shape",
    "throughput-missing", "unknown-origin",
)  # fmt: skip
# All there is, each with its advice; an empty one is given where it is said.
CAUTIONS = {**ADVICE, **dict.fromkeys((*OF_THE_BACKEND, *OF_THE_MACHINE, *OF_THE_CASE), "")}
NOT_REACHED = "not-reached"
HOST_BOUND = 0.9  # share of the latency that enqueueing takes: the GPU has done its work when the last kernel arrives
COPY_BOUND = 0.5  # share of the GPU time that copies take
LEFT_OUT = 0.25  # share of the samples that was not steady yet, from which on it is said
UNEVEN = 0.1  # half-width of the median of the throughput windows, as a share of it, from which on it is said
FLOOR = 0.05  # share of the GPU time that is told of a kernel that does nothing


def cautions(repeats: CaseRuns) -> tuple[Warning, ...]:
    """All warnings of one case's records, each once; those of the process first."""
    found = [warning for record in repeats.records for warning in record.warnings]
    for record in repeats.ran:
        found += of_record(record)
    failed = len(repeats.records) - len(repeats.ran)
    if repeats.ran and failed:
        reason = next(record.reason for record in repeats.records if record.status != "ok")
        found.append(
            _caution("repeat-failed", f"{failed} of {len(repeats.records)} processes failed: {reason.rstrip('.')}.")
        )
    found += _of_the_run(repeats)
    return _once(found)


def _of_the_run(repeats: CaseRuns) -> Iterator[Warning]:
    if repeats.later:
        begun, wanted = len(repeats.later), repeats.later[0].repeats
        said = (
            f"A later run was cut short, {begun} of {wanted} processes; this is the one before it, which is complete."
        )
        yield _caution("cut-short", said)
    elif repeats.cut_short:
        begun, wanted = len(repeats.records), repeats.records[0].repeats
        yield _caution("cut-short", f"The run was cut short: {begun} of {wanted} processes were measured.")


def of_record(record: Record) -> list[Warning]:
    """What follows from one record's samples and log."""
    series = latencies(record)
    found = list(mark.warnings(record.marks, series.late)) if record.marks else []
    found += mark.warnings(record.window_marks) if record.window_marks else ()
    if series.not_finite:
        left = "1 sample is" if series.not_finite == 1 else f"{series.not_finite:,} samples are"
        found.append(_caution("not-finite", f"{left} negative or not finite, and left out."))
    if series.samples:
        found += _of_samples(record, series)
    found += _of_warm_up(record)
    found += _of_throughput(record)
    bound = bound_by(record)
    if bound == "host":
        message = "Bound by the host: enqueueing a call takes about as long as the call."
        found.append(Warning("host-bound", message, cures.of_the_host(record.case, record.facts)))
    if bound == "copies":
        found.append(_caution("copy-bound", "Bound by copies between host and GPU."))
    found += _of_the_floor(record)
    other = record.facts.get(IN_TURNS)
    if isinstance(other, str):
        found.append(_caution("in-turns", f"Measured in turns with {other}: both were there at once."))
    return [msgspec.structs.replace(each, advice=_fitting(record, each)) for each in found]


def has_figures(warning: Warning) -> bool:
    """Whether the message has figures in it, which differ from process to process and from case to case."""
    return warning.code in ADVICE or warning.code in OF_THE_MACHINE or warning.code == NOT_REACHED


def _of_the_floor(record: Record) -> Iterator[Warning]:
    """How much of a short GPU time is launch and events; older records do not know."""
    kernel, gpu = record.facts.get(EMPTY_KERNEL), steady_samples(record, "GPU time").samples
    floor = kernel.get("gpu_seconds") if isinstance(kernel, dict) else None
    if isinstance(floor, float) and gpu and floor >= FLOOR * median(gpu) > 0:
        known, whole = duration(floor), duration(median(gpu))
        message = f"Of {whole} of GPU time {known} are launch and timing: a kernel that does nothing reads that much."
        yield _caution("gpu-floor", message)


def bound_by(record: Record) -> str:
    """What a call on a GPU waits for most: ``host``, ``copies`` or ``GPU``; empty where that was not measured."""
    latency, enqueue, gpu = (
        steady_samples(record, metric).samples for metric in ("latency", "enqueue time", "GPU time")
    )
    if not (latency and enqueue and gpu):
        return ""
    copies = [steady_samples(record, metric).samples for metric in ("H2D time", "D2H time")]
    if all(copies) and sum(median(each) for each in copies) >= COPY_BOUND * median(gpu):
        return "copies"
    return "host" if median(enqueue) >= HOST_BOUND * median(latency) else "GPU"


def _of_samples(record: Record, series: Series) -> Iterator[Warning]:
    """No doubts of a warm-up, which was cut off already, or of outliers, which p95 and p99 show."""
    budget = record.budget
    for doubt in doubts(series.samples):
        if doubt.code in ADVICE:
            yield _caution(doubt.code, doubt.message)
    if series.unsteady > LEFT_OUT * (series.unsteady + len(series.samples)):
        whole = f"{series.unsteady + len(series.samples):,} samples"
        message = f"The first {series.unsteady:,} of {whole} were not steady yet, and are left out."
        yield _caution("beginning-left-out", message)
    if budget.iterations is None and budget.seconds is None and budget.stop == "half-width":
        interval, middle = median_interval(series.samples), median(series.samples)
        if interval is None or middle <= 0:
            return  # one of the doubts says why
        width = max(interval.high - middle, middle - interval.low) / middle
        if width > budget.half_width:
            known, wanted = percent(width), percent(budget.half_width)
            yield _caution("not-narrow-enough", f"The median is known to {known} only; {wanted} was wanted.")


def _fitting(record: Record, warning: Warning) -> str:
    """The advice without what was asked for already, and with the word that makes this series longer."""
    advice = OF_SEVERAL.get(warning.code, warning.advice) if record.repeats > 1 else warning.advice
    cut_short = any(each.code == NOT_REACHED for each in record.warnings)
    if warning.code not in OF_THE_LENGTH or cut_short:
        return advice
    if record.budget.iterations is not None:
        more = advice.replace("a longer --max-time", "more --iterations")
        return more.replace("A longer --max-time", "More --iterations")
    return advice if record.budget.seconds is None else advice.replace("--max-time", "--seconds")


def _of_throughput(record: Record) -> Iterator[Warning]:
    """How far the windows of throughput differ, where that is much."""
    rates = steady_samples(record, "throughput").samples
    middle = median(rates) if rates else 0.0
    if middle <= 0:
        return
    interval = median_interval(rates)
    low, high = (interval.low, interval.high) if interval else (min(rates), max(rates))
    width = max(high - middle, middle - low) / middle
    if width > UNEVEN:
        known = f"The median of the throughput windows is known to {percent(width)} only."
        few = f"Throughput windows differ from their median by {percent(width)}."
        yield _caution("uneven-throughput", known if interval else few)


def in_waves() -> Warning:
    """Of a case that was compared with another: see :attr:`inferlens.stats.compare.Comparison.resemblance`."""
    message = (
        "Against the reference it was faster and slower in waves: processes resemble those before them, and the "
        "interval of the speed-up is wider for that."
    )
    return _caution("waves", message)


def on_other_card() -> Warning:
    """Of a case that was compared with another, where the two ran on different GPUs of one name."""
    message = (
        "The reference was measured on another GPU of the same name: how far such GPUs and their hosts differ is in no "
        "interval."
    )
    return _caution("other-card", message)


def _of_warm_up(record: Record) -> Iterator[Warning]:
    calls = finite(record, "warm-up")
    if record.budget.warmup is None and len(calls) >= LEAST_SAMPLES and not steady(calls).steady:
        yield _caution("unsteady-warm-up", "The calls before the first sample had not become steady.")


def _caution(code: str, message: str) -> Warning:
    return Warning(code, message, ADVICE[code])


def _once(found: Sequence[Warning]) -> tuple[Warning, ...]:
    """Each warning once; of those with figures in them, which differ from process to process, the first."""
    kept: dict[tuple[str, str], Warning] = {}
    for warning in found:
        kept.setdefault((warning.code, "" if has_figures(warning) else warning.message), warning)
    return tuple(kept.values())
