"""How full the multiprocessors were while each kernel ran: the profiler's estimate, and ours where it has none.

Kineto writes 0 for kernels with more than 48 KiB of shared memory a block, which is what a block may have without
asking for more: it computes as if no block could run. Most kernels that use Hopper's tensor cores have more.
"""

from __future__ import annotations

import numpy as np

from inferlens.trace.forms import DeviceProperties
from inferlens.trace.trace import Floats, Trace

UNASKED = 48 * 1024  # bytes


def occupancy_of(trace: Trace) -> Floats:
    """For each GPU event the estimated achieved occupancy in per cent; NaN where it is not known.

    Where the profiler has none it is computed as of :func:`inferlens.trace.multiprocessors.achieved`, from the launch
    and the properties of the GPU, as far as the trace tells both.
    """
    gpu = trace.gpu
    lost = np.flatnonzero((gpu.occupancy == 0) & (gpu.shared_memory > UNASKED))
    if not len(lost):
        return gpu.occupancy
    launches = np.column_stack(
        [gpu.device[lost], gpu.registers[lost], gpu.shared_memory[lost], gpu.grid[lost], gpu.block[lost]]
    )
    alike, place = np.unique(launches, axis=0, return_inverse=True)
    devices = {device.id: device for device in trace.about.devices}
    known = np.array([_computed(devices.get(device), *launch) for device, *launch in alike.tolist()])
    found = gpu.occupancy.copy()
    found[lost] = known[place.reshape(-1)]
    return found


def _computed(device: DeviceProperties | None, registers: int, shared_memory: int, *threads: int) -> float:
    """In per cent; ``threads`` are the grid's blocks and then the block's threads, by dimension."""
    from inferlens.record.kernel_profile import GpuLimits
    from inferlens.trace.multiprocessors import achieved

    if device is None:
        return np.nan
    gpu = GpuLimits(
        name=device.name,
        multiprocessors=device.multiprocessors,
        threads_per_multiprocessor=device.threads_per_multiprocessor,
        registers_per_multiprocessor=device.registers_per_multiprocessor,
        shared_memory_per_multiprocessor=device.shared_memory_per_multiprocessor,
        compute_capability=device.compute_capability,
    )
    share = achieved(gpu, threads[:3], threads[3:], None if registers < 0 else registers, shared_memory)
    return np.nan if share is None else 100 * share
