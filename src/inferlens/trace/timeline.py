"""What went on when: the trace's time in equal slices, and how much of each slice the GPU and the host were at work."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferlens.trace.analysis import Analysis
from inferlens.trace.category import Category
from inferlens.trace.gpu_use import levels
from inferlens.trace.intervals import Intervals
from inferlens.trace.table import SECOND, Table
from inferlens.trace.trace import Ints

MOST_SLICES = 100


def timeline(analysis: Analysis) -> Table:
    """A row for each slice, of which there are 11 to 100, a power of ten of microseconds long, as torch-tb-profiler's.

    Columns are shares of the slice: in which a ``kernel``, a ``copy`` (or fill) ran on any GPU, in which the host was
    in an ``operator`` or a call of the ``runtime``, and the estimated ``sm_efficiency`` (the mean over GPUs).
    """
    trace, steps = analysis.trace, analysis.counted
    if not len(steps):
        return Table({name: [] for name in ("begin", "length")})
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
    return Table(columns)


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
