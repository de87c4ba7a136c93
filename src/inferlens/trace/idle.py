"""Why GPUs were idle: for every gap between the events of a device, what it was waiting for.

Up to the end of the call that launched the next event the device waited *for the host*, or, where the host was in a
call that waits for the device at that moment, for its *synchronising*. After that the work was there already, and the
gap is what the device takes *between kernels*. What is after the last event of a step is the host's.
"""

from __future__ import annotations

import numpy as np

from inferlens.trace.intervals import Intervals
from inferlens.trace.launch_links import LaunchLinks
from inferlens.trace.steps import Steps
from inferlens.trace.trace import Ints, Trace

CAUSES = ("waiting for the host", "synchronising", "between kernels")
_SYNCHRONISE = "Synchronize"


def idle_of(trace: Trace, launch_links: LaunchLinks, steps: Steps) -> dict[str, float]:
    """Nanoseconds of all steps that a GPU was idle, by cause; the mean over the devices that ran anything."""
    devices = np.unique(trace.gpu.device)
    sums = dict.fromkeys(CAUSES, 0.0)
    window = Intervals.union(steps.begin, steps.end)
    if not len(devices) or not len(window):
        return sums
    calls = synchronising(trace)
    waits = Intervals.of(trace, calls)
    for device in devices.tolist():
        here = np.flatnonzero(trace.gpu.device == device)
        host, between = _gaps(trace, launch_links, here, window)
        synchronised = host.both(waits).total
        for cause, time in zip(CAUSES, (host.total - synchronised, synchronised, between.total), strict=True):
            sums[cause] += time / len(devices)
    return sums


def synchronising(trace: Trace) -> Ints:
    """Rows of calls in which the host waits for the device."""
    waits = np.array([_SYNCHRONISE in name for name in trace.strings], dtype=bool)
    rows = trace.calls.row
    found: Ints = rows[waits[trace.name[rows]]] if len(rows) else rows
    return found


def _gaps(trace: Trace, launch_links: LaunchLinks, here: Ints, window: Intervals) -> tuple[Intervals, Intervals]:
    """When a device waited to be given work within the window, and when it had work and did not run it."""
    rows = trace.gpu.row[here]
    begin, reach = trace.begin[rows], np.maximum.accumulate(trace.ends(rows))
    launch = launch_links.launch[here]
    calls = trace.calls.row[np.maximum(launch, 0)] if len(trace.calls) else np.zeros(len(here), np.int64)
    # What nobody launched, as far as is known, was there from the start.
    given = np.where(launch >= 0, trace.ends(calls), np.iinfo(np.int64).min)
    low, high = int(window.begin[0]), int(window.end[-1])
    start = np.concatenate([[min(low, int(begin[0]))], reach])
    end = np.concatenate([begin, [max(high, int(reach[-1]))]])
    until = np.clip(np.concatenate([given, [high]]), start, np.maximum(start, end))
    host = Intervals.union(start, until).both(window)
    return host, Intervals.union(until, end).both(window)
