"""What the time of steps went to: each moment counts once, for what stands first among what went on in it.

Names and order are torch-tb-profiler's: a kernel goes before a copy, and what the host does counts while no GPU works.
"""

from __future__ import annotations

import numpy as np

from inferlens.trace.category import CALLS, Category
from inferlens.trace.intervals import Intervals
from inferlens.trace.launch_links import LaunchLinks
from inferlens.trace.steps import Steps
from inferlens.trace.trace import Bools, Ints, Trace

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
    own = np.array(["nccl" in name.lower() for name in trace.strings], dtype=bool)
    kernels = trace.category[trace.gpu.row] == Category.KERNEL
    found = own[trace.name[trace.gpu.row]]
    launched = launch_links.operator >= 0
    if launched.any():
        found[launched] |= _named(trace, trace.scopes.row[launch_links.operator[launched]], ("nccl:",))
    which: Bools = found & kernels
    return which


def _named(trace: Trace, rows: Ints, prefixes: tuple[str, ...]) -> Bools:
    fits = np.array([name.startswith(prefixes) for name in trace.strings], dtype=bool)
    found: Bools = fits[trace.name[rows]] if len(rows) else np.zeros(0, bool)
    return found
