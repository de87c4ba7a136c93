"""Every step of a trace: how long, what its time went to, and whether it stands out."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferlens.trace.analysis import Analysis
from inferlens.trace.category import Category
from inferlens.trace.intervals import Intervals
from inferlens.trace.shares import PARTS, shares_of
from inferlens.trace.table import SECOND, Table

# Tukey's fences: a step is an outlier this many interquartile ranges beyond the middle half, from so many steps on.
FENCE = 1.5
LEAST_STEPS = 5
CUT_OFF, SLOW, FAST = "cut off by the profiler", "slower than the others", "faster than the others"


def stepping(analysis: Analysis) -> Table:
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
    return Table(columns)


def trend(table: Table) -> float | None:
    """By how much a step grows on the next, in seconds: the slope of the line through the steps; ``None``: too few."""
    times = np.asarray(table.columns["time"], dtype=np.float64)
    times = times[[note != CUT_OFF for note in table.columns["note"]]]
    if len(times) < LEAST_STEPS:
        return None
    return float(np.polyfit(np.arange(len(times)), times, 1)[0])


def _notes(length: Any, kept: Any) -> list[str]:
    notes = ["" if counts else CUT_OFF for counts in kept.tolist()]
    counted = length[kept]
    if len(counted) < LEAST_STEPS:
        return notes
    low, high = np.quantile(counted, [0.25, 0.75])
    reach = FENCE * (high - low)
    for place in np.flatnonzero(kept).tolist():
        if length[place] > high + reach:
            notes[place] = SLOW
        elif length[place] < low - reach:
            notes[place] = FAST
    return notes
