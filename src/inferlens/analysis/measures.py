"""The measures of one case over all of its processes: latency, throughput, energy, memory, build, accuracy.

A value is the value in tables. Over several processes it is the geometric mean for latencies and rates, the mean for
energy, and the worst for memory, build and error. Accuracy comes from the values that a record keeps for each sample:
hits and misses are a share, and a drop is the difference of two shares. Another metric may have any unit, so its drop
is relative to the value of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from statistics import fmean
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.interference import mean_load, record_load
from inferlens.analysis.samples import CaseRuns, steady_samples
from inferlens.record.machine import Energy
from inferlens.record.record import AGREEMENT, KERNEL_FAMILIES, MEMORY_APART, Accuracy, Metric, Record
from inferlens.spec.objective import Constraint
from inferlens.stats.comparison import estimate, interval_over_processes
from inferlens.stats.intervals import (
    Interval,
    difference_of_means,
    difference_of_shares,
    ends,
    mean_interval,
    quantile_interval,
    share_interval,
)
from inferlens.stats.samples import enqueueing_is_bottleneck, geometric_mean, median
from inferlens.units import ratio

COPY_BOUND = 0.5  # of the GPU time, in copies
MEMORY_BOUND = 0.5  # of the GPU time, in kernels that are neither convolutions nor matrix products
LAYOUT_BOUND = 0.05  # of the GPU time, in conversions of the memory layout
BOTTLENECKS = {
    "host": "calls of {} waited for the host",
    "layout": "{} converted memory layouts",
    "memory": "{} was bound by memory",
}
_DENSE = ("convolution", "matrix product")
_PART_METRICS: dict[str, Metric] = {
    "gpu_time": "GPU time", "enqueue": "enqueue time", "h2d": "H2D time", "compute": "compute time", "d2h": "D2H time",
}  # fmt: skip


class AccuracyScore(Struct, frozen=True):
    """A score and its drop below the reference: positive is worse, ``None`` without a reference."""

    value: float
    interval: Interval | None
    is_share: bool
    drop: float | None = None
    drop_interval: Interval | None = None


class AccuracyPair(Struct, frozen=True, kw_only=True):
    """The scores of A and of B in ``metric``, and the drop from A to B on the same samples."""

    metric: str
    count: int
    share: bool
    a: float
    b: float
    drop: float | None = None
    drop_interval: Interval | None = None


def accuracy_of(runs: CaseRuns) -> Accuracy | None:
    """Return the accuracy of the first process that has one."""
    return next((record.accuracy for record in runs.records if record.accuracy), None)


def measured_drop(accuracy: Accuracy | None) -> float | None:
    """Return the drop below the reference; ``None`` without labels, where only agreement is known."""
    score = score_accuracy(accuracy)
    return score.drop if score and accuracy and accuracy.metric != AGREEMENT else None


def accuracy_pair(a: Accuracy | None, b: Accuracy | None) -> AccuracyPair | None:
    """Return the scores of both; ``None`` if one is unknown, or in another metric."""
    if not a or not b or a.metric != b.metric or not (a.values and b.values):
        return None
    score = score_accuracy(replace(b, reference_values=a.values))
    assert score
    return AccuracyPair(
        metric=b.metric, count=b.count, share=score.is_share, a=fmean(a.values), b=score.value, drop=score.drop,
        drop_interval=score.drop_interval,
    )  # fmt: skip


@lru_cache(maxsize=256)
def score_accuracy(accuracy: Accuracy | None) -> AccuracyScore | None:
    """Return the score of an accuracy; ``None`` without values. Without labels every difference from fp32 is a drop."""
    if not accuracy or not accuracy.values:
        return None
    values, reference = accuracy.values, accuracy.reference_values
    value, count, hits = fmean(values), len(values), sum(values)
    is_share = count > 1 and {*values, *reference} <= {0.0, 1.0}
    interval = share_interval(hits, count) if is_share else difference_of_means(values, [0.0] * count)
    score = AccuracyScore(value, interval, is_share)
    if accuracy.metric == AGREEMENT and not reference:
        return replace(score, drop=1 - value, drop_interval=share_interval(count - hits, count))
    if len(reference) != count:
        return score
    expected = fmean(reference)
    if is_share:
        return replace(score, drop=expected - value, drop_interval=difference_of_shares(reference, values))
    scale, difference = abs(expected), difference_of_means(reference, values)
    if not scale:
        return score
    relative = Interval(difference.low / scale, difference.high / scale) if difference else None
    return replace(score, drop=(expected - value) / scale, drop_interval=relative)


def bound_by(record: Record) -> str:
    """Return the bottleneck of a call on a GPU: ``host``, ``copies`` or ``GPU``; empty if it was not measured."""
    if not record.measurement("enqueue time"):
        return ""
    metrics: tuple[Metric, ...] = ("latency", "enqueue time", "GPU time", "H2D time", "D2H time")
    latency, enqueue, gpu, *copies = (steady_samples(record, metric).for_median for metric in metrics)
    if not (latency and enqueue and gpu):
        return ""
    if all(copies) and sum(map(median, copies)) >= COPY_BOUND * median(gpu):
        return "copies"
    return "host" if enqueueing_is_bottleneck(median(enqueue), median(latency)) else "GPU"


def bottleneck(record: Record) -> str:
    """Return the key of a call's bottleneck in :data:`BOTTLENECKS`; empty if it is another one, or unknown."""
    if bound_by(record) == "host":
        return "host"
    shares = record.facts.get(KERNEL_FAMILIES)
    if not isinstance(shares, dict) or not shares:
        return ""
    if shares.get("reformat", 0.0) >= LAYOUT_BOUND:
        return "layout"
    return "memory" if 1 - sum(shares.get(name, 0.0) for name in _DENSE) >= MEMORY_BOUND else ""


class Violation(Struct, frozen=True):
    """A constraint that is not met: the value, ``None`` if unknown, and its factor beyond the limit."""

    constraint: Constraint
    value: float | None
    factor: float

    @property
    def sentence(self) -> str:
        measure = self.constraint.measure
        title, limit = measure.title, measure.show(self.constraint.limit)
        if self.value is None:
            return f"The {title} is not known, so that nothing says whether it keeps the limit of {limit}."
        return f"The {title} is {measure.show(self.value)}, beyond the limit of {limit} by {ratio(self.factor)}."


def measure_value(case: CaseRuns | Record, name: str) -> float | None:
    """Return the value of a measure in its unit; ``None`` if it is unknown, or if nothing ran to its end."""
    runs = CaseRuns((case,)) if isinstance(case, Record) else case
    value = _MEASURES[name](runs) if runs.ran and name in _MEASURES else None
    return value if value is not None and math.isfinite(value) else None


def violations(case: CaseRuns | Record, constraints: Iterable[Constraint]) -> list[Violation]:
    """Return the violated constraints, the worst first; an unknown value violates its constraint."""
    results = []
    for constraint in constraints:
        value = measure_value(case, constraint.name)
        if not (factor := constraint.factor(value)) <= 1:
            results.append(Violation(constraint, value, factor))
    return sorted(results, key=lambda violation: -violation.factor)


def violation_factors(case: CaseRuns | Record, constraints: Iterable[Constraint]) -> tuple[float, ...]:
    """Return the factors of all violations, the worst first; cases sort by them, and ``()`` violates none."""
    return tuple(violation.factor for violation in violations(case, constraints))


def build_seconds(record: Record) -> float | None:
    """Return the seconds of export and build together, as they were: hardly any if a cache had the result."""
    phases = [seconds for name in ("export", "build") if (seconds := record.phase_seconds(name)) is not None]
    return sum(phases) if phases else None


def includes_export(record: Record) -> bool:
    """Return whether its memory is of a process that exported or quantized the model, which takes more than a call."""
    exported = any(phase.name in ("export", "quantize") and phase.note != "cached" for phase in record.phases)
    return exported and MEMORY_APART not in record.facts


def host_peak(runs: CaseRuns) -> int | None:
    """Return the peak bytes of host memory of the processes that did not export; ``None`` if all did."""
    records = [record for record in runs.records if not includes_export(record)]
    return max((record.memory.host_peak or 0 for record in records), default=0) or None


def device_peak(runs: CaseRuns) -> int | None:
    """Return the peak bytes of device memory as NVML reports it, the only basis that all backends share.

    Processes that exported count only if all did.
    """
    records = [record for record in runs.records if record.memory.device_basis.startswith("NVML")]
    records = [record for record in records if not includes_export(record)] or records
    return max((record.memory.device_peak or 0 for record in records), default=0) or None


def _energies(runs: CaseRuns) -> list[Energy]:
    return [energy for record in runs.ran for energy in (record.energy, record.cpu_energy) if energy and energy.joules]


def _throughput(runs: CaseRuns) -> float | None:
    """Return items per second; a call without a batch is one item."""
    rate = estimate(runs.windows)
    return rate.median * (runs.first.batch or 1) if rate else None


def _energy(runs: CaseRuns) -> float | None:
    joules = [energy.joules or 0.0 for energy in _energies(runs)]
    return sum(joules) / len(joules) if joules else None


_MEASURES: Mapping[str, Callable[[CaseRuns], float | None]] = {
    "latency": lambda runs: latency.median if (latency := estimate(runs.processes)) else runs.latency("median"),
    "latency.p95": partial(CaseRuns.latency, name="p95"),
    "latency.p99": partial(CaseRuns.latency, name="p99"),
    "throughput": _throughput,
    "energy": _energy,
    "memory": lambda runs: host_peak(runs) if runs.first.case.device == "cpu" else device_peak(runs),
    "build": lambda runs: max(
        (time for record in runs.ran if (time := build_seconds(record)) is not None), default=None
    ),
    "error": lambda runs: getattr(runs.worst_agreement, "rel_l2", None),
    "accuracy-drop": lambda runs: getattr(score_accuracy(accuracy_of(runs)), "drop", None),
}


# All numbers of a case; ``NAME_low`` and ``NAME_high`` are the 95 % interval of ``NAME``


def case_numbers(runs: CaseRuns, batch: int | None) -> dict[str, Any]:
    """Return the known numbers of a case by name; ``batch`` is the number of items in a call."""
    return {
        **_latency_numbers(runs), **_rate_numbers(runs, batch), **_energy_numbers(runs), **_accuracy_numbers(runs),
        "machine_load": mean_load(map(record_load, runs.timed)),
    }  # fmt: skip


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = ends(interval)
    return {f"{name}_low": low, f"{name}_high": high}


def _latency_numbers(runs: CaseRuns) -> dict[str, Any]:
    """Return statistics over the processes, with intervals over several, or over the samples of a single one."""
    summaries = runs.summaries
    if not summaries:
        return {}
    latency = estimate(runs.processes)
    series = [series.samples for series in runs.series if series.samples]
    values: dict[str, Any] = {
        "samples": sum(summary.count for summary in summaries),
        "left_out": sum(series.disturbed + series.unsteady for series in runs.series),
        "warmup": len(runs.first.samples("warm-up")) or None,
        "between": latency is not None and latency.replicated,
        "median": latency.median if latency else summaries[0].median,
        "minimum": min(summary.minimum for summary in summaries),
        "maximum": max(summary.maximum for summary in summaries),
        **_ends("median", latency.interval if latency else None),
    }
    for name in ("mean", "p5", "p95", "p99", "deviation"):
        values[name] = runs.latency(name)
    for name, share in (("mean", 0.0), ("p95", 0.95), ("p99", 0.99)):
        if len(series) == 1:
            interval = quantile_interval(series[0], share) if share else mean_interval(series[0])
        else:
            interval = interval_over_processes([getattr(summary, name) for summary in summaries])
        values |= _ends(name, interval)
    return values


def _rate_numbers(runs: CaseRuns, batch: int | None) -> dict[str, Any]:
    """Return rates of the windows, and medians of the parts of a call."""
    rate = estimate(runs.windows)
    values: dict[str, Any] = {"in_flight": getattr(runs.first.measurement("throughput"), "in_flight", None)}
    for name, metric in _PART_METRICS.items():
        series = (steady_samples(record, metric).for_median for record in runs.timed)
        values[name] = geometric_mean([median(samples) for samples in series if samples])
    if rate:
        values |= {"iterations_per_second": rate.median, **_ends("iterations", rate.interval)}
        values["items_per_second"] = None if batch is None else rate.median * batch
        values["separate_rate"] = runs.separate_rate
        if not runs.processes:
            values["between"] = rate.replicated
    return values


def _energy_numbers(runs: CaseRuns) -> dict[str, Any]:
    """Return the mean over the processes, and the widest bounds."""
    energies = _energies(runs)
    if not energies:
        return {}
    return {
        "energy": _energy(runs),
        "energy_low": min(energy.low or 0.0 for energy in energies),
        "energy_high": max(energy.high or 0.0 for energy in energies),
    }


def _accuracy_numbers(runs: CaseRuns) -> dict[str, Any]:
    accuracy = accuracy_of(runs)
    score = score_accuracy(accuracy)
    if not accuracy or not score:
        return {}
    return {
        "metric": accuracy.metric, "accuracy": score.value, "accuracy_share": score.is_share, "top5": accuracy.top5,
        "drop": score.drop, **_ends("accuracy", score.interval), **_ends("drop", score.drop_interval),
    }  # fmt: skip
