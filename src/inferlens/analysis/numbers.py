"""The numbers of one case, over all of its processes: latencies, rates, energy, accuracy, each with its interval.

``NAME_low`` and ``NAME_high`` are the 95 % interval of what is called ``NAME``.
"""

from __future__ import annotations

from typing import Any

from inferlens.analysis.accuracy import accuracy_of, worth
from inferlens.analysis.interference.load import mean_load, record_load
from inferlens.analysis.interference.samples import steady_samples
from inferlens.analysis.objective import energies
from inferlens.analysis.runs import CaseRuns
from inferlens.record.record import Metric
from inferlens.stats.comparison import estimate, interval_over_processes
from inferlens.stats.intervals import Interval, ends, mean_interval, quantile_interval
from inferlens.stats.quantiles import geometric_mean, median

_PARTS: dict[str, Metric] = {
    "gpu_time": "GPU time", "enqueue": "enqueue time", "h2d": "H2D time", "compute": "compute time", "d2h": "D2H time",
}  # fmt: skip


def numbers(run: CaseRuns, batch: int | None) -> dict[str, Any]:
    """All of them that are known, by name; ``batch`` is the number of items in a call."""
    load = {"machine_load": mean_load(map(record_load, run.timed))}
    return {**_latencies(run), **_rates(run, batch), **_energy(run), **_accuracy(run), **load}


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = ends(interval)
    return {f"{name}_low": low, f"{name}_high": high}


def _latencies(run: CaseRuns) -> dict[str, Any]:
    """Statistics over the processes, and their intervals: of the samples of a single process, or over several."""
    summaries = run.summaries
    if not summaries:
        return {}
    found, taken = estimate(run.processes), [series.samples for series in run.series if series.samples]
    alone = taken[0] if len(taken) == 1 else None
    values: dict[str, Any] = {
        "samples": sum(summary.count for summary in summaries),
        "left_out": sum(series.disturbed + series.unsteady for series in run.series),
        "warmup": len(run.first.samples("warm-up")) or None,
        "between": found is not None and found.replicated,
        "median": found.median if found else summaries[0].median,
        "minimum": min(summary.minimum for summary in summaries),
        "maximum": max(summary.maximum for summary in summaries),
        **_ends("median", found.interval if found else None),
    }
    for name in ("mean", "p5", "p95", "p99", "deviation"):
        values[name] = run.latency(name)
    for name, share in (("mean", 0.0), ("p95", 0.95), ("p99", 0.99)):
        every = interval_over_processes([getattr(summary, name) for summary in summaries])
        if alone is not None:
            every = quantile_interval(alone, share) if share else mean_interval(alone)
        values |= _ends(name, every)
    return values


def _rates(run: CaseRuns, batch: int | None) -> dict[str, Any]:
    """Rates of the windows, and medians of the parts of a call, which are the geometric means of the processes'."""
    found = estimate(run.windows)
    values: dict[str, Any] = {"in_flight": getattr(run.first.measurement("throughput"), "in_flight", None)}
    for name, metric in _PARTS.items():
        every = (steady_samples(record, metric).for_median for record in run.timed)
        values[name] = geometric_mean([median(samples) for samples in every if samples])
    if found:
        values |= {"iterations_per_second": found.median, **_ends("iterations", found.interval)}
        values["items_per_second"] = None if batch is None else found.median * batch
        values["separate_rate"] = run.separate_rate
        if not run.processes:
            values["between"] = found.replicated
    return values


def _energy(run: CaseRuns) -> dict[str, Any]:
    """The mean of the processes that know it, and the widest bounds."""
    found = energies(run)
    if not found:
        return {}
    return {
        "energy": sum(energy.joules or 0.0 for energy in found) / len(found),
        "energy_low": min(energy.low or 0.0 for energy in found),
        "energy_high": max(energy.high or 0.0 for energy in found),
    }


def _accuracy(run: CaseRuns) -> dict[str, Any]:
    accuracy = accuracy_of(run)
    known = worth(accuracy)
    if not accuracy or not known:
        return {}
    values = {"metric": accuracy.metric, "accuracy": known.value, "accuracy_share": known.share, "top5": accuracy.top5}
    return {
        **values, "drop": known.drop, **_ends("accuracy", known.interval), **_ends("drop", known.drop_interval)
    }  # fmt: skip
