"""The ceilings of a device: the highest rates of copies within its memory, of matrix products and of convolutions.

A few sizes run in a few rounds, and the best one counts. On a GPU the rate of a size is the sustained one: the median
of several repeats. On a CPU it is the fastest repeat, because other programs take cores away, and a median would show
how busy they were. A CPU also gets short products, which may run undisturbed, convolutions, which some libraries
compute faster than products, and copies that stay in the caches, as a layer's data may. Matrices hold normal random
numbers: a GPU that multiplies zeros draws less power and clocks higher than with a model's numbers.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from itertools import cycle
from typing import Any

from inferlens.backends.availability import torch_settings
from inferlens.errors import is_short_of_memory, library
from inferlens.limits import memory_left
from inferlens.measure.series import cache_bytes
from inferlens.record.profile import Ceilings
from inferlens.units import plural

MIB = 1 << 20
ROUNDS = 2
LEAST, MOST = 5, 200  # repeats of a size in a round
SECONDS = 0.15  # for them, unless the least of them take longer
LONGEST = {"cpu": 0.02, "cuda": 0.1}  # seconds; a size whose single call takes longer is not tried
DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
MATRICES = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (2048, 4096, 8192, 16384)}
IMAGES = ((64, 56), (128, 28), (256, 14))  # channels of a convolution, and both sizes of its image
CACHED = (MIB // 2, 2 * MIB)  # bytes of copies that stay in the caches of a CPU's cores
WINDOW = 16 * MIB  # bytes of a larger buffer that a CPU copies at a time: a short copy may run without interruption
INTERRUPTED = "Other programs ran while the ceilings were measured, so they may be too low."
SLOW = "the CPU has no instructions for it: it is computed in another precision"

Timer = Callable[[Callable[[], Any]], tuple[float, bool]]
Rates = list[tuple[float, bool]]  # by size: the work per second, and whether nothing disturbed it; the largest counts


def measure(device: str, name: str, threads: int | None = None) -> Ceilings:
    """Measure the ceilings of ``device``, ``cpu`` or ``cuda``; ``threads``: ``None`` is PyTorch's choice."""
    torch = library("torch", extra="torch")
    gpu = device == "cuda"
    timer = gpu_timer if gpu else host_timer
    absent = {precision: why for precision in DTYPES if (why := lacking(precision, gpu=gpu))}
    bandwidth: Rates = []
    cached: Rates = []
    rates: dict[str, Rates] = {precision: [] for precision in DTYPES if precision not in absent}
    with torch.inference_mode(), torch_settings(threads=threads, tf32=False):
        used = torch.get_num_threads()
        for _ in range(ROUNDS):
            copies(device, copy_sizes(device), timer, bandwidth)
            if not gpu:
                copies(device, CACHED, timer, cached)
            for precision, precision_rates in rates.items():
                with torch_settings(threads=threads, tf32=precision == "tf32"):
                    products(device, DTYPES[precision], timer, precision_rates)
                    if not gpu:
                        convolutions(DTYPES[precision], timer, precision_rates)
    work = "copies and matrix products" if gpu else "copies, matrix products and convolutions"
    basis = f"{work} of PyTorch {torch.__version__.partition('+')[0]}"
    best, undisturbed = max(bandwidth, default=(0.0, False))
    fastest = {precision: max(precision_rates) for precision, precision_rates in rates.items() if precision_rates}
    return Ceilings(
        device=name,
        bandwidth=best,
        cached=max(cached, default=(0.0, False))[0],
        cache=cache_bytes(device),
        rates={precision: rate for precision, (rate, _) in fastest.items()},
        measured=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        basis=basis if gpu else f"{basis}, {plural(used, 'thread')}",
        absent=absent,
        disturbed="" if undisturbed and all(calm for _, calm in fastest.values()) else INTERRUPTED,
    )


def lacking(precision: str, *, gpu: bool) -> str:
    """Return why a device has no rate in a precision; empty if it has one."""
    import torch

    if gpu:
        tf32 = precision != "tf32" or torch.cuda.get_device_capability()[0] >= 8
        bf16 = precision != "bf16" or torch.cuda.is_bf16_supported(including_emulation=False)
        return "" if tf32 and bf16 else f"the GPU has no {'TF32' if precision == 'tf32' else 'bf16'}"
    if precision == "tf32":
        return "no CPU has TF32"
    if precision == "fp32":
        return ""
    return "" if getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported")() else SLOW


def copies(device: str, sizes: Sequence[int], timer: Timer, rates: Rates) -> None:
    """Add the rates of copies. The work is the sum of bytes read and written.

    On a CPU a large copy goes window by window through the buffer, so that a window has left the caches before it is
    copied again.
    """
    import torch

    for size in sizes:
        with as_memory_allows():
            window = (size if device == "cuda" else min(size, WINDOW)) // 4
            source = torch.ones(size // 4 // window * window, device=device)
            turns = cycle(zip(torch.zeros_like(source).split(window), source.split(window), strict=True))
            seconds, calm = sustained(lambda turns=turns: torch.Tensor.copy_(*next(turns)), timer)  # type: ignore[misc]
            rates.append((2 * 4 * window / seconds, calm))


def products(device: str, dtype: str, timer: Timer, rates: Rates) -> None:
    """Add the rates of products of square matrices of a few sizes. The work is their FLOPs."""
    import torch

    seconds = 0.0
    for size in MATRICES[device]:
        if 8 * seconds > LONGEST[device]:  # so much more work has a matrix of twice the size
            break
        with as_memory_allows():
            left, right = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
            seconds, calm = sustained(partial(torch.mm, left, right, out=torch.empty_like(left)), timer)
            rates.append((2 * size**3 / seconds, calm))


def convolutions(dtype: str, timer: Timer, rates: Rates) -> None:
    """Add the rates of convolutions of a few sizes, with filters of 3 by 3, in the channels-last format."""
    import torch

    for channels, size in IMAGES:
        image, weights = (
            torch.randn(channels if edge == 3 else 1, channels, edge, edge)
            .to(getattr(torch, dtype))
            .to(memory_format=torch.channels_last)
            for edge in (size, 3)
        )
        seconds, calm = sustained(partial(torch.conv2d, image, weights, padding=1), timer)
        rates.append((2 * 9 * (channels * size) ** 2 / seconds, calm))


def sustained(call: Callable[[], Any], timer: Timer) -> tuple[float, bool]:
    """Return the seconds of a call, and whether nothing disturbed it: the median of repeats, on a CPU the shortest.

    The first calls are dropped, because memory is mapped, code is chosen and clocks rise.
    """
    begin = time.perf_counter()
    timer(call)
    while time.perf_counter() - begin < SECONDS / 3:
        timer(call)
    taken: list[tuple[float, bool]] = []
    begin = time.perf_counter()
    while len(taken) < LEAST or (len(taken) < MOST and time.perf_counter() - begin < SECONDS):
        taken.append(timer(call))
    if timer is host_timer:
        seconds, interrupted = min(taken)
        return seconds, not interrupted
    return statistics.median(seconds for seconds, _ in taken), True


def host_timer(call: Callable[[], Any]) -> tuple[float, bool]:
    """Return the seconds of one call on the host's clock, and whether a thread lost its CPU meanwhile."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    begin = time.perf_counter()
    call()
    seconds = time.perf_counter() - begin
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw > before


def gpu_timer(call: Callable[[], Any]) -> tuple[float, bool]:
    """Return the seconds of one call on the GPU, between two events. Disturbances of a GPU are not detected.

    One more is enqueued before the first event, so that the GPU is busy when it comes and no launch is timed.
    """
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    begin.record()
    call()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 2e3, False


def copy_sizes(device: str) -> Sequence[int]:
    """Return the bytes of buffers: several times the last cache, if the memory allows it. A CPU copies one of them."""
    if device == "cuda":
        import torch

        free = int(torch.cuda.mem_get_info()[0])
    else:
        free = memory_left()
    least = max(128 * MIB, 4 * cache_bytes(device))
    most = max(free // 8, 16 * MIB)
    return sorted({min(size, most) for size in (least, 2 * least)[: 1 if device == "cpu" else 2]})


@contextmanager
def as_memory_allows() -> Iterator[None]:
    """Leave out a size that does not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_short_of_memory(error):
            raise
