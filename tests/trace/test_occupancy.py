"""Occupancy against NVIDIA's own calculator and against the profiler's estimates in real traces."""

from __future__ import annotations

import pytest

from inferlens.record.layer_profile import GpuLimits
from inferlens.trace.occupancy import achieved, blocks_that_fit, theoretical
from tests.backends.profiling.kernel_samples import H200, NAMES, runs

# Of cudaOccMaxActiveBlocksPerMultiprocessor in cuda_occupancy.h, CUDA 13.0: compute capability, threads and shared
# memory of a multiprocessor; threads of a block, registers, shared memory of a block; and how many blocks fit.
NVIDIAS = {
    ("10.0", 2048, 233472): [(512, 128, 5120, 1), (96, 118, 2112, 5), (192, 128, 16384, 2), (512, 168, 81920, 0)],
    ("12.0", 1536, 102400): [(64, 32, 5120, 16), (192, 64, 2112, 5), (192, 16, 0, 8), (32, 92, 40000, 2)],
    ("7.0", 2048, 98304): [(128, 64, 5120, 8), (768, 168, 2112, 0), (128, 64, 40000, 2), (192, 92, 5120, 3)],
    ("7.5", 1024, 65536): [(256, 53, 2048, 4), (512, 255, 5120, 0), (96, 255, 5120, 2), (32, 168, 5120, 12)],
    ("8.0", 2048, 167936): [(1, 92, 2112, 20), (128, 118, 16384, 4), (64, 32, 2048, 32), (64, 92, 65536, 2)],
    ("8.6", 1536, 102400): [(1, 16, 1024, 16), (96, 168, 2112, 4), (384, 53, 0, 3), (384, 16, 65536, 1)],
    ("8.9", 1536, 102400): [(96, 92, 0, 6), (512, 53, 1024, 2), (96, 53, 2112, 12), (1024, 118, 1024, 0)],
    ("9.0", 2048, 233472): [(768, 64, 2112, 1), (1, 118, 65536, 3), (96, 40, 16384, 13), (256, 118, 2112, 2)],
}  # fmt: skip


@pytest.mark.parametrize(("capability", "threads", "memory"), NVIDIAS)
def test_as_many_blocks_fit_as_nvidia_says(capability: str, threads: int, memory: int) -> None:
    gpu = GpuLimits(
        threads_per_multiprocessor=threads, registers_per_multiprocessor=65536, shared_memory_per_multiprocessor=memory,
        compute_capability=capability,
    )  # fmt: skip
    for block, registers, shared, expected in NVIDIAS[capability, threads, memory]:
        assert (blocks_that_fit(gpu, (block, 1, 1), registers, shared) or 0) == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_estimate_is_the_profilers_where_that_has_one(name: str) -> None:
    """In whole per cents; with more than 48 KiB of shared memory the profiler thinks that nothing fits, and says 0."""
    for event in (event for event in runs(name)[0].events if event.launched.kind == "kernel"):
        own = achieved(H200, event.launched.grid, event.launched.block, event.registers, event.shared_memory)
        lost = event.occupancy == 0 and (event.shared_memory or 0) > 49152
        assert lost or event.occupancy == pytest.approx(own, abs=0.00501)


def test_what_is_not_known_has_no_occupancy() -> None:
    unknown = [(H200, (), 32, 0), (H200, (128,), None, 0), (H200, (128,), 32, None), (GpuLimits(), (128,), 32, 0)]
    unknown += [(H200, (128, 128, 128), 32, 0), (GpuLimits(compute_capability="gfx90a"), (128,), 32, 0)]
    assert [theoretical(*launch) for launch in unknown] == [None] * 6  # type: ignore[arg-type]
    assert achieved(H200, (), (128,), 32, 0) is None


def test_few_blocks_leave_most_of_the_gpu_empty() -> None:
    assert achieved(H200, (66, 1, 1), (1024, 1, 1), 32, 0) == pytest.approx(0.5 * 1024 / 2048)
    assert achieved(H200, (10_000, 1, 1), (1024, 1, 1), 32, 0) == theoretical(H200, (1024, 1, 1), 32, 0) == 1
