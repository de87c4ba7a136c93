"""What went on when: every step, what its time went to and whether it stands out; and equal slices of the time."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import SECOND, Columns
from inferlens.trace.gpu_use import levels
from inferlens.trace.intervals import Intervals
from inferlens.trace.shares import PARTS, shares_of
from inferlens.trace.trace import Category, Ints

MOST_SLICES = 100
# Tukey's fences: a step is an outlier this many interquartile ranges beyond the middle half, from so many steps on.
FENCE = 1.5
LEAST_STEPS = 5
CUT_OFF, SLOW, FAST = "cut off by the profiler", "slower than the others", "faster than the others"


def stepping(analysis: Analysis) -> Columns:
    """A row for each step, in order of time; seconds, ``begin`` since the first one began."""
    steps = analysis.steps if analysis.step is None else analysis.counted
    length = steps.end - steps.begin
    kernels = analysis.trace.rows(Category.KERNEL)
    busy = Intervals.of(analysis.trace, kernels)
    used = busy.covered(steps.begin, steps.end) / np.maximum(length, 1)
    shares = shares_of(analysis.parts, steps)
    columns: dict[str, Any] = {
        "step": list(steps.names),
        "begin": (steps.begin - steps.begin[:1]) / SECOND,
        "time": length / SECOND,
        "utilization": used if len(kernels) else np.full(len(steps), np.nan),
        "launched": steps.launched,
    }
    columns |= {name: shares[name] / SECOND for name in PARTS}
    columns["note"] = _notes(length, steps.kept)
    return Columns(columns)


def trend(table: Columns) -> float | None:
    """By how much a step grows on the next, in seconds: the slope of the line through the steps; ``None``: too few."""
    times = np.asarray(table.columns["time"], dtype=np.float64)
    times = times[[note != CUT_OFF for note in table.columns["note"]]]
    if len(times) < LEAST_STEPS:
        return None
    return float(np.polyfit(np.arange(len(times)), times, 1)[0])


def _notes(length: Any, kept: Any) -> list[str]:
    low, high = np.quantile(length[kept], [0.25, 0.75]) if kept.sum() >= LEAST_STEPS else (-np.inf, np.inf)
    reach = FENCE * (high - low)
    out = np.where(length > high + reach, SLOW, np.where(length < low - reach, FAST, ""))
    notes: list[str] = np.where(kept, out, CUT_OFF).tolist()
    return notes


def timeline(analysis: Analysis) -> Columns:
    """A row for each slice, of which there are 11 to 100, a power of ten of microseconds long, as torch-tb-profiler's.

    Columns are shares of the slice: in which a ``kernel``, a ``copy`` (or fill) ran on any GPU, in which the host was
    in an ``operator`` or a call of the ``runtime``, and the estimated ``sm_efficiency`` (the mean over GPUs).
    """
    trace, steps = analysis.trace, analysis.counted
    if not len(steps):
        return Columns({name: [] for name in ("begin", "length")})
    low, high = _span(analysis)
    edges = _edges(low, high)
    begin, end = edges[:-1], edges[1:]
    length = np.maximum(end - begin, 1)
    rows = {
        "kernel": trace.rows(Category.KERNEL),
        "copy": trace.rows(Category.MEMCPY, Category.MEMSET),
        "operator": trace.rows(Category.OPERATOR),
        "runtime": trace.calls.row,
    }
    columns: dict[str, Any] = {"begin": (begin - low) / SECOND, "length": length / SECOND}
    for name, each in rows.items():
        columns[name] = Intervals.of(trace, each).covered(begin, end) / length
    columns["sm_efficiency"] = _efficiency(analysis, edges) / length
    return Columns(columns)


def _span(analysis: Analysis) -> tuple[int, int]:
    trace = analysis.trace
    if analysis.step is not None:
        return int(analysis.counted.begin[0]), int(analysis.counted.end[-1])
    rows = trace.rows(*(each for each in Category if each not in (Category.SPAN, Category.OVERHEAD)))
    return int(trace.begin[rows].min()), int(trace.ends(rows).max())


def _edges(low: int, high: int) -> Ints:
    size = 1000
    while (high - low) / size > MOST_SLICES:
        size *= 10
    count = max(int((high - low) / size), 1)
    edges = low + size * np.arange(count + 1, dtype=np.int64)
    edges[-1] = max(high, low + 1)  # the last slice takes what is left
    return edges


def _efficiency(analysis: Analysis, edges: Ints) -> Any:
    """Nanoseconds of each slice, weighted by the share of multiprocessors at work; NaN where nothing tells it."""
    trace = analysis.trace
    told = trace.gpu.blocks_per_sm > 0
    devices = np.unique(trace.gpu.device[told]).tolist()
    if not devices:
        return np.full(len(edges) - 1, np.nan)
    total = np.zeros(len(edges) - 1)
    for device in devices:
        here = np.flatnonzero(told & (trace.gpu.device == device))
        moments, level = levels(trace, here, trace.gpu.blocks_per_sm[here])
        sums = np.concatenate([[0.0], np.cumsum(np.minimum(level[:-1], 1.0) * np.diff(moments))])
        total += np.diff(np.interp(edges, moments, sums)) / len(devices)
    return total
