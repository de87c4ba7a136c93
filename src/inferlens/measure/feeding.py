"""What calls are fed with, and what happens between two of them: the same feed again, another one, a flushed cache.

A clock takes the next feed before it starts, so nothing here is in a sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from inferlens.backends.base import Inputs, Preparation, Runner
from inferlens.measure.series import Caller
from inferlens.models import inputs
from inferlens.models.inputs import flatten
from inferlens.models.model import Model
from inferlens.spec.case import Case
from inferlens.units import percent

TIMES_CACHE = 2  # caches are not strictly least-recently-used; nvbench flushes as much of a GPU's L2
MOST_FEEDS = 4096
HALF = ("fp16", "bf16")
ASSUMED_CACHE = 64 << 20  # bytes, where the system does not tell
CPUS = Path("/sys/devices/system/cpu")
SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30}  # of a cache's size, such as 32768K


class Feeding:
    """The feeds of one case, ``latency`` and ``throughput`` without end; ``first`` is what outputs are compared of."""

    def __init__(
        self,
        runner: Runner,
        model: Model,
        case: Case,
        arrays: Inputs,
        preparation: Preparation,
        *,
        renews: bool = False,
    ) -> None:
        self.first = runner.place(arrays)
        self._all = [self.first]
        self._arrays = arrays
        self._runner = runner
        cache = (cache_bytes(case.device) or ASSUMED_CACHE) if case.one_at_a_time else 0
        if case.rotate:
            size = max(1, sum(array.nbytes for array in arrays.values()))
            size = size // 2 if case.precision in HALF else size  # as they lie on the device
            count = min(max(2, -(-TIMES_CACHE * cache // max(1, size))), MOST_FEEDS)
            self._all += [runner.place(inputs.make_inputs(model, case.seed + number)) for number in range(1, count)]
            preparation.facts["rotating inputs"] = {"feeds": count, "bytes": count * size, "cache_bytes": cache}
            if count * size < cache:
                preparation.warn(
                    "rotating-fits-cache",
                    f"{count} inputs in turn are {percent(count * size / cache)} of the cache: they stay in it.",
                    "--cold, or a larger --batch.",
                )
        # Copies of the feeds of a model that writes into its inputs, which is given them anew for each call.
        self._copies = [[tensor.clone() for tensor in flatten(feed)] for feed in self._all] if renews else []
        self.caller: Caller = Renewing(runner, self) if any(self._copies) else runner
        self.throughput = itertools.repeat(self.first)
        self.latency = self._bound() if case.rotate or any(self._copies) else self.throughput
        if case.cold:
            preparation.facts["flushed_bytes"] = TIMES_CACHE * cache
            self.latency = _flushed(self.latency, flusher(case.device, TIMES_CACHE * cache))

    def callers(self, depth: int | None) -> list[tuple[Callable[[Any], Any], Any]]:
        """So many calls, each with a feed of its own, that threads make; none where there is a queue, or no overlap."""
        if self._runner.clock.asynchronous or (depth or 1) < 2:
            return []
        if any(self._copies):  # a copy for each thread would be needed, too
            return []
        calls = [self._runner.thread_caller() for _ in range(depth or 1)]
        return [(call, self._runner.place(self._arrays)) for call in calls if call is not None]

    def renewed(self, feed: Any) -> Any:
        """Return ``feed`` with the values that it was placed with, where calls write into it."""
        if any(self._copies):
            place = next(index for index, item in enumerate(self._all) if item is feed)
            for tensor, copy in zip(flatten(feed), self._copies[place], strict=True):
                tensor.copy_(copy)
            self._runner.bind(feed)
        return feed

    def _bound(self) -> Iterator[Any]:
        """The feeds in turn, each made ready before the call that reads it."""
        for feed in itertools.cycle(self._all):
            self._runner.bind(self.renewed(feed))
            self._runner.synchronize()  # what bind enqueued would be in the latency, not in the GPU time
            yield feed


class Renewing:
    """A runner whose calls begin with renewing their inputs, for series in which nothing can happen between calls."""

    def __init__(self, runner: Runner, feeding: Feeding) -> None:
        self.clock = runner.clock
        self._runner = runner
        self._feeding = feeding

    def infer(self, feed: Any) -> Any:
        """One call, with a feed that is renewed first."""
        return self._runner.infer(self._feeding.renewed(feed))


def _flushed(feeds: Iterator[Any], flush: Callable[[], None]) -> Iterator[Any]:
    for feed in feeds:
        flush()
        yield feed


def cache_bytes(device: str) -> int:
    """Size of the device's last cache: a GPU's L2, or all last-level caches of the CPUs; 0 where it is not known."""
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    found: dict[tuple[int, str], int] = {}  # by level and CPUs that share one
    for index in CPUS.glob("cpu[0-9]*/cache/index[0-9]*"):
        with suppress(OSError, ValueError, KeyError):
            level, shared, size = (
                (index / name).read_text("utf-8").strip() for name in ("level", "shared_cpu_list", "size")
            )
            found[int(level), shared] = int(size.rstrip("KMG")) << SHIFTS[size.lstrip("0123456789")]
    last = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == last)


def flusher(device: str, size: int) -> Callable[[], None]:
    """What writes ``size`` bytes on the device and returns when that is done."""
    if device == "cuda":
        import torch

        memory = torch.empty(size, dtype=torch.uint8, device="cuda")

        def on_gpu() -> None:
            memory.zero_()
            torch.cuda.current_stream().synchronize()

        return on_gpu
    buffer = np.zeros(size, dtype=np.uint8)
    values = itertools.cycle(range(256))
    return lambda: buffer.fill(next(values))
