"""A quick look at what a GPU does in a call, after the timing: the share of each kind of kernel in the GPU time."""

from __future__ import annotations

from typing import Any

from inferlens.analysis.profile.families import of_kernel
from inferlens.backends.base import Runner
from inferlens.backends.profiling.kernel_runs import check
from inferlens.backends.profiling.traced_runs import one_run


def kernel_families(runner: Runner, feed: Any) -> dict[str, float]:
    """Return the share of the GPU time of one call by family of kernels, as in ``analysis.profile.families``.

    The runner is entered and warm, on CUDA. Raises Unsupported if the profiler cannot see kernels here.
    """
    check()
    seconds: dict[str, float] = {}
    for event in one_run(runner, feed, on_gpu=True).events:
        family = of_kernel(event.launched.name)
        seconds[family] = seconds.get(family, 0.0) + event.time
    whole = sum(seconds.values())
    return {family: round(time / whole, 4) for family, time in seconds.items()} if whole else {}
