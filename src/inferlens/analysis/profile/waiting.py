"""Whether a profiled case's call waits for the host, so that faster layers and kernels win nothing of it.

Of kernels it is known how long the GPU works; of layers the record of unprofiled calls tells how long enqueueing takes.
"""

from __future__ import annotations

from inferlens.analysis.interference.samples import steady_samples
from inferlens.analysis.profile.layers import Runs, busy_of, kernels_alone
from inferlens.record.layer_profile import Profile
from inferlens.record.record import Record
from inferlens.stats.host_bound import enqueueing_takes_all, gpu_waits
from inferlens.stats.quantiles import median


def gpu_works(profile: Profile, runs: Runs) -> float | None:
    """Typical seconds of a call in which a kernel runs; ``None`` where nobody timed kernels alone.

    ``runs`` are of the profile.
    """
    if not kernels_alone(profile):
        return None
    busy = busy_of(profile.kernels, runs) if profile.kernels else runs.sums
    return None if busy is None else runs.typical(busy)


def waits_for_host(profile: Profile, runs: Runs, record: Record | None) -> bool:
    """Whether unprofiled calls of a case on a GPU are bound by the host; ``runs`` are scaled to them."""
    latency = steady_samples(record, "latency").samples if record else ()
    if not (record and latency) or profile.case.device == "cpu":
        return False
    works, call = gpu_works(profile, runs), median(latency)
    if works is not None:
        return gpu_waits(call - works, call)
    enqueue = steady_samples(record, "enqueue time").samples
    return bool(enqueue) and enqueueing_takes_all(median(enqueue), call)
