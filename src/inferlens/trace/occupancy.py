"""Occupancy: how many of a multiprocessor's threads a kernel's blocks take, as NVIDIA's calculator computes it.

The *theoretical* occupancy says how many blocks fit into one multiprocessor at a time. The *achieved* one is an
estimate: no more blocks are on a multiprocessor than its even share of the grid. That is Kineto's estimate as well, but
Kineto writes 0 for kernels with more than 48 KiB of shared memory a block, which most of Hopper's tensor-core kernels
have.

Source of the formula and of its constants: ``cuda_occupancy.h`` of the CUDA Toolkit 13.0
(``cudaOccMaxActiveBlocksPerMultiprocessor``), and the CUDA C++ Programming Guide, technical specifications by compute
capability.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import TYPE_CHECKING

import numpy as np

from inferlens.trace.forms import DeviceProperties
from inferlens.trace.trace import Floats, Trace

if TYPE_CHECKING:
    from inferlens.record.layer_profile import GpuLimits

    _Multiprocessors = GpuLimits | DeviceProperties

WARP = 32
REGISTER_UNIT = 256  # registers are given to warps in such units
# Multiprocessors by compute capability: the most blocks of one, 32 where it is not named here.
MOST_BLOCKS = {"7.5": 16, "8.0": 32, "8.9": 24, "10.1": 24, "11.0": 24}
MOST_BLOCKS_OF_MAJOR = {3: 16, 8: 16, 12: 24}
KNOWN = range(5, 13)  # major numbers
SHARED_UNITS = {True: 128, False: 256}  # bytes, since 8.0 and before
RESERVED = 1024  # bytes of shared memory that the driver takes of each block, since 8.0
_UNASKED = 48 * 1024  # bytes of shared memory that a block may have without asking


def blocks_that_fit(
    gpu: _Multiprocessors, block: Sequence[int], registers: int | None, shared_memory: int | None
) -> int | None:
    """How many blocks one multiprocessor holds at a time; ``None`` where that cannot be known.

    ``registers`` are of each thread, ``shared_memory`` is of each block, static and dynamic, in bytes.
    """
    digits = gpu.compute_capability.partition(".")[0]
    major = int(digits) if digits.isdecimal() else 0
    warps = -(-prod(block) // WARP) if block else 0
    if major not in KNOWN or warps < 1 or not gpu.threads_per_multiprocessor:
        return None
    if registers is None or shared_memory is None:
        return None
    most = MOST_BLOCKS.get(gpu.compute_capability, MOST_BLOCKS_OF_MAJOR.get(major, 32))
    limits = [most, gpu.threads_per_multiprocessor // WARP // warps]
    if registers:
        parts = 2 if gpu.compute_capability == "6.0" else 4
        of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        limits.append(gpu.registers_per_multiprocessor // parts // of_warp * parts // warps)
    unit = SHARED_UNITS[major >= 8]
    units = -(-(shared_memory + (RESERVED if major >= 8 else 0)) // unit)
    if units:
        limits.append(gpu.shared_memory_per_multiprocessor // (units * unit))
    return min(limits) or None  # it did run, so that none fits is no answer


def theoretical(
    gpu: _Multiprocessors, block: Sequence[int], registers: int | None, shared_memory: int | None, most: float = inf
) -> float | None:
    """Share of a multiprocessor's threads that are taken when as many blocks as fit, or ``most``, are on it, 0 to 1."""
    fitting = blocks_that_fit(gpu, block, registers, shared_memory)
    return None if fitting is None else min(min(fitting, most) * prod(block) / gpu.threads_per_multiprocessor, 1.0)


def achieved(
    gpu: _Multiprocessors, grid: Sequence[int], block: Sequence[int], registers: int | None, shared_memory: int | None
) -> float | None:
    """The same with no more blocks than a multiprocessor's even share of the grid: an estimate."""
    if not grid or not gpu.multiprocessors:
        return None
    return theoretical(gpu, block, registers, shared_memory, prod(grid) / gpu.multiprocessors)


def occupancy_of(trace: Trace) -> Floats:
    """For each GPU event the estimated achieved occupancy in per cent; NaN where it is not known.

    It is the profiler's, or ours where the profiler has none, as far as the launch and the GPU are known.
    """
    gpu = trace.gpu
    lost = np.flatnonzero((gpu.occupancy == 0) & (gpu.shared_memory > _UNASKED))
    if not len(lost):
        return gpu.occupancy
    columns = (gpu.device, gpu.registers, gpu.shared_memory, gpu.grid, gpu.block)
    alike, place = np.unique(np.column_stack([column[lost] for column in columns]), axis=0, return_inverse=True)
    devices = {device.id: device for device in trace.about.devices}
    known = np.full(len(alike), np.nan)
    for number, (device, registers, shared_memory, *threads) in enumerate(alike.tolist()):
        if device in devices and registers >= 0:
            share = achieved(devices[device], threads[:3], threads[3:], registers, shared_memory)
            known[number] = np.nan if share is None else 100 * share
    found = gpu.occupancy.copy()
    found[lost] = known[place.reshape(-1)]
    return found
