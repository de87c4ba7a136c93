"""What the time of steps went to, and why GPUs were idle.

Each moment of a step counts once, for what stands first among what went on in it. Names and order are
torch-tb-profiler's: a kernel goes before a copy, and what the host does counts while no GPU works.

For every gap between the events of a device: up to the end of the call that launched the next event the device waited
*for the host*, or, where the host was in a call that waits for the device at that moment, for its *synchronising*.
After that the work was there already, and the gap is what the device takes *between kernels*. What is after the last
event of a step is the host's.
"""

from __future__ import annotations

import numpy as np

from inferlens.trace.intervals import Intervals
from inferlens.trace.launch_links import LaunchLinks
from inferlens.trace.steps import Steps
from inferlens.trace.trace import CALLS, Bools, Category, Ints, Trace

CAUSES = HOST, SYNCHRONISING, BETWEEN = "waiting for the host", "synchronising", "between kernels"
PARTS = ("kernel", "copy", "fill", "communication", "runtime", "data loader", "CPU", "other")
_COMMUNICATION = ("nccl:", "gloo:")
# Annotations that PyTorch itself makes around work of the host; older traces have them among the operators.
_OPTIMIZER = ("Optimizer.",)
_LOADER = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")


def parts_of(trace: Trace, launch_links: LaunchLinks) -> dict[str, Intervals]:
    """When each of :data:`PARTS` went on, in the whole trace, but ``other``."""
    communicates = communication(trace, launch_links)
    kernels = trace.category[trace.gpu.row] == Category.KERNEL
    scopes = trace.scopes.row
    operators = trace.category[scopes] == Category.OPERATOR
    loads = _named(trace, scopes, _LOADER)
    talks = _named(trace, scopes, _COMMUNICATION)
    rows = {
        "kernel": trace.gpu.row[kernels & ~communicates],
        "copy": trace.rows(Category.MEMCPY),
        "fill": trace.rows(Category.MEMSET),
        "communication": np.concatenate([trace.gpu.row[communicates], scopes[talks]]),
        "runtime": trace.rows(*CALLS),
        "data loader": scopes[loads],
        "CPU": scopes[(operators | _named(trace, scopes, _OPTIMIZER)) & ~talks & ~loads],
    }
    return {name: Intervals.of(trace, each) for name, each in rows.items()}


def shares_of(parts: dict[str, Intervals], steps: Steps) -> dict[str, Ints]:
    """Nanoseconds of each step that went to each of :data:`PARTS`; they add up to the step."""
    left = Intervals.union(steps.begin, steps.end)
    found: dict[str, Ints] = {}
    for name, part in parts.items():
        mine = part.both(left)
        found[name] = mine.covered(steps.begin, steps.end)
        left = left.without(mine)
    found["other"] = left.covered(steps.begin, steps.end)
    return found


def communication(trace: Trace, launch_links: LaunchLinks) -> Bools:
    """Which GPU events exchange data between GPUs: NCCL's kernels, and kernels that its operators launch."""
    kernels = trace.category[trace.gpu.row] == Category.KERNEL
    found = trace.named(trace.gpu.row, lambda name: "nccl" in name.lower())
    launched = launch_links.operator >= 0
    found[launched] |= _named(trace, trace.scopes.row[launch_links.operator[launched]], ("nccl:",))
    which: Bools = found & kernels
    return which


def _named(trace: Trace, rows: Ints, prefixes: tuple[str, ...]) -> Bools:
    return trace.named(rows, lambda name: name.startswith(prefixes))


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
    rows = trace.calls.row
    found: Ints = rows[trace.named(rows, lambda name: "Synchronize" in name)]
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
