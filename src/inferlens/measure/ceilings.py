"""What a device reaches at best: how fast it copies within its memory, and how fast it multiplies large matrices.

Both are what is sustained: the median of several repeats, and of those the largest, of a few sizes in a few rounds, so
that what disturbs one round is in no ceiling. Copies are larger than the caches, so that the memory is measured.
Matrices hold normal random numbers: a GPU that multiplies zeros draws less power and clocks higher than it can with a
model's numbers. All of it takes a few seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from inferlens.backends.torch_settings import torch_settings
from inferlens.errors import MissingLibrary, is_short_of_memory
from inferlens.measure.environment import usable_threads
from inferlens.units import plural
from inferlens.work import Ceilings

MIB = 1 << 20
ROUNDS = 2
LEAST, MOST = 5, 30  # repeats of a size in a round
SECONDS = 0.15  # for them, unless the least of them take longer
BUSY = 0.2  # CPUs that others may keep busy
LONGEST = 0.1  # seconds; a size whose single call takes longer is not tried
DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
MATRICES = {"cpu": (512, 1024, 2048, 4096), "cuda": (2048, 4096, 8192, 16384)}
SLOW = "the CPU has no instructions for it: it is computed in another precision"

Timer = Callable[[Callable[[], Any]], float]


def measure(device: str, name: str, threads: int | None = None) -> Ceilings:
    """The ceilings of ``device``.

    Args:
        device: ``cpu`` or ``cuda``.
        name: what it is called.
        threads: of the CPU; ``None``: PyTorch's own choice.

    Raises:
        MissingLibrary: without PyTorch.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingLibrary("torch", extra="torch") from error
    gpu = device == "cuda"
    timer = gpu_timer if gpu else host_timer
    absent = {precision: why for precision in DTYPES if (why := lacking(precision, gpu=gpu))}
    rates = {precision: 0.0 for precision in DTYPES if precision not in absent}
    bandwidth, others = 0.0, Others()
    with torch.inference_mode(), torch_settings(threads=threads, tf32=False):
        used = torch.get_num_threads()
        for _ in range(ROUNDS):
            bandwidth = max(bandwidth, copy_bandwidth(device, timer))
            for precision, known in rates.items():
                with torch_settings(threads=threads, tf32=precision == "tf32"):
                    rates[precision] = max(known, matrix_rate(device, DTYPES[precision], timer))
    basis = f"copies and matrix products of PyTorch {torch.__version__.partition('+')[0]}"
    return Ceilings(
        device=name,
        bandwidth=bandwidth,
        rates=rates,
        measured=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        basis=basis if gpu else f"{basis}, {plural(used, 'thread')}",
        absent=absent,
        disturbed="" if gpu else others.disturb(used),
    )


def lacking(precision: str, *, gpu: bool) -> str:
    """Why a device has no rate in a precision; empty if it has."""
    import torch

    if gpu:
        if precision == "tf32" and torch.cuda.get_device_capability()[0] < 8:
            return "the GPU has no TF32"
        if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return "the GPU has no bf16"
        return ""
    if precision == "tf32":
        return "no CPU has TF32"
    if precision == "bf16":
        return "" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else SLOW
    if precision == "fp16":
        return "" if torch.ops.mkldnn._is_mkldnn_fp16_supported() else SLOW
    return ""


def copy_bandwidth(device: str, timer: Timer) -> float:
    """Bytes per second that copies read and write together."""
    import torch

    best = 0.0
    for size in copy_sizes(device):
        with as_memory_allows():
            source = torch.ones(size // 4, device=device)
            copy = partial(torch.zeros_like(source).copy_, source)
            best = max(best, 2 * size / median_seconds(copy, timer))
            del source, copy
    return best


def matrix_rate(device: str, dtype: str, timer: Timer) -> float:
    """FLOPs per second of square matrix products."""
    import torch

    best, last = 0.0, 0.0
    for size in MATRICES[device]:
        if 8 * last > LONGEST:  # so much more work has a matrix of twice the size
            break
        with as_memory_allows():
            left, right = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
            product = partial(torch.mm, left, right, out=torch.empty_like(left))
            last = median_seconds(product, timer)
            best = max(best, 2 * size**3 / last)
            del left, right, product
    return best


def median_seconds(call: Callable[[], Any], timer: Timer) -> float:
    """The median of repeats, after some that are not kept: memory is mapped, code is chosen, clocks rise."""
    begin = time.perf_counter()
    first = timer(call)
    while time.perf_counter() - begin < SECONDS / 3:
        first = timer(call)
    repeats = min(max(LEAST, round(SECONDS / max(first, 1e-9))), MOST)
    return statistics.median(timer(call) for _ in range(repeats))


def host_timer(call: Callable[[], Any]) -> float:
    """Seconds of one call on the host's clock."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def gpu_timer(call: Callable[[], Any]) -> float:
    """Seconds of one call on the GPU, between two events.

    A few calls are enqueued before the first event, so that the GPU is busy when it comes and no launch is timed.
    """
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    begin.record()
    call()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 2e3


def copy_sizes(device: str) -> Sequence[int]:
    """Bytes of buffers: several times the last cache, as far as the memory allows."""
    if device == "cuda":
        import torch

        cache = int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0))
        free = int(torch.cuda.mem_get_info()[0])
    else:
        cache, free = last_cache(), int(psutil.virtual_memory().available)
    least = max(128 * MIB, 4 * cache)
    most = max(free // 8, 16 * MIB)
    return sorted({min(size, most) for size in (least, 2 * least, 4 * least)})


def last_cache(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Bytes of all last-level caches of the CPU together; 0 where the system does not tell."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for folder in root.glob("cpu[0-9]*/cache/index3"):
            size = (folder / "size").read_text().strip()
            found[(folder / "shared_cpu_list").read_text()] = int(size.removesuffix("K")) << 10
    return sum(found.values())


class Others:
    """What other processes do on the CPUs, from when this is made."""

    def __init__(self) -> None:
        self._begin = self._read()

    def disturb(self, threads: int) -> str:
        """A sentence if they have left too few CPUs for so many threads; else empty."""
        seconds, busy, mine = (now - then for now, then in zip(self._read(), self._begin, strict=True))
        others = max(busy - mine, 0.0) / max(seconds, 1e-9)
        usable = usable_threads() or threads
        if others + min(threads, usable) <= usable + BUSY:
            return ""
        return f"Other processes kept {others:.1f} of {plural(usable, 'CPU')} busy while the ceilings were measured."

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Now, and the processors' seconds of all processes and of this one."""
        total, mine = psutil.cpu_times(), psutil.Process().cpu_times()
        return time.perf_counter(), total.user + total.system, mine.user + mine.system


@contextmanager
def as_memory_allows() -> Iterator[None]:
    """Leaves a size out that the memory does not hold."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_short_of_memory(error):
            raise
