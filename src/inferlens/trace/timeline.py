"""What went on when: every step, what its time went to and whether it stands out; and equal slices of the time."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferlens.trace.analysis import Analysis, filling
from inferlens.trace.columns import SECOND, Columns
from inferlens.trace.intervals import Intervals
from inferlens.trace.steps import PARTS, shares_of
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
    used = Intervals.of(analysis.trace, kernels).covered(steps.begin, steps.end) / np.maximum(length, 1)
    shares = shares_of(analysis.parts, steps)
    return Columns(
        {
            "step": list(steps.names),
            "begin": (steps.begin - steps.begin[:1]) / SECOND,
            "time": length / SECOND,
            "utilization": used if len(kernels) else np.full(len(steps), np.nan),
            "launched": steps.launched,
            **{name: shares[name] / SECOND for name in PARTS},
            "note": _notes(length, steps.kept),
        }
    )


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
    if analysis.step is not None:
        low, high = int(steps.begin[0]), int(steps.end[-1])
    else:
        every = trace.rows(*(each for each in Category if each not in (Category.SPAN, Category.OVERHEAD)))
        low, high = int(trace.begin[every].min()), int(trace.ends(every).max())
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
    columns |= {name: Intervals.of(trace, each).covered(begin, end) / length for name, each in rows.items()}
    return Columns({**columns, "sm_efficiency": _efficiency(analysis, edges) / length})


def _edges(low: int, high: int) -> Ints:
    size = 1000
    while (high - low) / size > MOST_SLICES:
        size *= 10
    count = max(int((high - low) / size), 1)
    edges = low + size * np.arange(count + 1, dtype=np.int64)
    edges[-1] = max(high, low + 1)  # the last slice takes what is left
    return edges


def _efficiency(analysis: Analysis, edges: Ints) -> Any:
    """Nanoseconds of each slice, weighted by the share of multiprocessors at work; NaN where nothing says it."""
    gpu = analysis.trace.gpu
    devices = np.unique(gpu.device[gpu.blocks_per_sm > 0]).tolist()
    total = np.zeros(len(edges) - 1) if devices else np.full(len(edges) - 1, np.nan)
    for device in devices:
        moments, filled = filling(analysis.trace, np.flatnonzero(gpu.device == device))
        sums = np.concatenate([[0.0], np.cumsum(filled * np.diff(moments))])
        total += np.diff(np.interp(edges, moments, sums)) / len(devices)
    return total
