"""Everything that a reader of a number is warned of: a closed list, each with what to do about it.

Some of it only the process that measured could know, and stands in the record. The rest follows from what the record
keeps, samples and the machine's log, and is worked out here, each time anew: ``inferlens bench --check`` prints it for
records of any age.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferlens.disturbance import words
from inferlens.record import Record, Warning
from inferlens.samples import Repeats, Series, finite, latencies
from inferlens.stats.doubts import doubts
from inferlens.stats.intervals import median_interval
from inferlens.stats.quantiles import median
from inferlens.stats.steady import LEAST_SAMPLES, steady

# What each means is in docs/warnings.md, under the same code. An empty advice: the one who warns gives it.
CAUTIONS = {
    # of the samples
    "few-samples": "More --iterations, or a longer --max-time.",
    "few-independent-samples": "A longer --max-time, or --repeats 5: several processes tell more than one.",
    "warm-up": "More --warmup.",
    "drifting": "More --warmup; if it is heat, let the machine cool down first; --repeats 5 shows how far runs differ.",
    "cycling": "See what else runs on the machine at intervals; --repeats 5 shows how far runs differ.",
    "never-steady": "More --warmup or --max-time; --repeats 5 shows how far runs differ.",
    "two-modes": "Look at the samples: one median is no good description of two speeds.",
    "outliers": "Judge by p95 and p99 as well: the median hides them.",
    "quantised": "A larger --batch: calls are too short for the clock.",
    "not-narrow-enough": "A longer --max-time, or a quieter machine.",
    "unsteady-warm-up": "A longer --max-time, or more --warmup.",
    "repeat-failed": "The record of the process that failed says why.",
    # of what a call waits for
    "host-bound": "A CUDA graph (BACKEND.cuda_graph=true, torch_compile:reduce-overhead), or a larger --batch.",
    "copy-bound": "Keep inputs and outputs on the GPU (--io device) where the application can, or make them smaller.",
    # of the machine, see inferlens.disturbance
    "disturbed": "",
    "samples-left-out": "",
    "power-cap": "",
    "cpu-quota": "",
    # of the case, from the process that measured
    "bad-exit": "",
    "export-fallback": "",
    "graph-breaks": "",
    "lower-precision": "",
    "moved-optimum": "",
    "no-cuda-graph": "",
    "no-effect": "",
    "no-engines": "",
    "provider-fallback": "",
    "static-shape": "",
    "unknown-origin": "",
}
HOST_BOUND = 0.9  # share of the latency that enqueueing takes: the GPU has done its work when the last kernel arrives
COPY_BOUND = 0.5  # share of the GPU time that copies take


def cautions(repeats: Repeats) -> tuple[Warning, ...]:
    """All warnings of one case's records, each once; those of the process first."""
    found = [warning for record in repeats.records for warning in record.warnings]
    for record in repeats.ran:
        found += of_record(record)
    failed = len(repeats.records) - len(repeats.ran)
    if repeats.ran and failed:
        reason = next(record.reason for record in repeats.records if record.status != "ok")
        found.append(_caution("repeat-failed", f"{failed} of {len(repeats.records)} processes failed: {reason}"))
    return _once(found)


def of_record(record: Record) -> list[Warning]:
    """What follows from one record's samples and log."""
    series = latencies(record)
    found = [warning for marks in (record.marks, record.window_marks) if marks for warning in words.warnings(marks)]
    if series.samples:
        found += _of_samples(record, series)
    found += _of_warm_up(record)
    bound = bound_by(record)
    if bound == "host":
        found.append(_caution("host-bound", "Bound by the host: the GPU waits for calls to be enqueued."))
    if bound == "copies":
        found.append(_caution("copy-bound", "Bound by copies between host and GPU."))
    return found


def bound_by(record: Record) -> str:
    """What a call on a GPU waits for most: ``host``, ``copies`` or ``GPU``; empty where that was not measured."""
    latency, enqueue, gpu = (finite(record, metric) for metric in ("latency", "enqueue time", "GPU time"))
    if not (latency and enqueue and gpu):
        return ""
    copies = [finite(record, metric) for metric in ("H2D time", "D2H time")]
    if all(copies) and sum(median(each) for each in copies) >= COPY_BOUND * median(gpu):
        return "copies"
    return "host" if median(enqueue) >= HOST_BOUND * median(latency) else "GPU"


def _of_samples(record: Record, series: Series) -> Iterator[Warning]:
    for doubt in doubts(series.samples):
        if doubt.code == "warm-up":
            continue  # it was cut off already; what is left may begin a little higher
        if doubt.against == "interval" or doubt.code == "two-modes":
            yield _caution(doubt.code, doubt.message)
    budget = record.budget
    if budget.iterations is None and budget.seconds is None and budget.stop == "half-width":
        interval, middle = median_interval(series.samples), median(series.samples)
        if interval is None or middle <= 0:
            return  # one of the doubts says why
        width = max(interval.high - middle, middle - interval.low) / middle
        if width > budget.half_width:
            wanted = f"{budget.half_width:.2g}".rstrip("0").rstrip(".")
            yield _caution(
                "not-narrow-enough",
                f"The median is known to {width:.1%} to either side only; {float(wanted):.1%} was wanted.",
            )


def _of_warm_up(record: Record) -> Iterator[Warning]:
    calls = finite(record, "warm-up")
    if record.budget.warmup is None and len(calls) >= LEAST_SAMPLES and not steady(calls).steady:
        yield _caution("unsteady-warm-up", "The calls before the first sample had not become steady.")


def _caution(code: str, message: str) -> Warning:
    return Warning(code, message, CAUTIONS[code])


def _once(found: Sequence[Warning]) -> tuple[Warning, ...]:
    """Each warning once; of those with figures in them, which differ from process to process, the first."""
    kept: dict[tuple[str, str], Warning] = {}
    for warning in found:
        computed = bool(CAUTIONS.get(warning.code)) or warning.code in ("disturbed", "samples-left-out")
        kept.setdefault((warning.code, "" if computed else warning.message), warning)
    return tuple(kept.values())
