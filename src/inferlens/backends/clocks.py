"""Clocks that time a series of calls, and NVTX ranges.

A clock belongs to a kind of device and has a timed loop of its own: host, CUDA, and CUDA with copies in and out. The
loops are straight-line code: no callback, no logging, no allocation but the numbers. Host times come from
``time.perf_counter_ns``, GPU times from CUDA events on the current stream.

Feeds come from an iterator. ``time`` takes the next feed before each reading of the clock, so work between two calls,
such as flushing a cache, is in no sample. ``window`` times calls back to back as a whole.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inferlens.errors import LateModule, library

torch: Any = LateModule("torch")

FLOOR_CALLS = 200  # of each length, in about 20 ms
FLOOR_CYCLES = 50_000  # about 25 µs


@dataclass(frozen=True)
class Timings:
    """Times of consecutive calls in seconds; ``enqueue`` and ``gpu`` are empty where the device has no queue."""

    latency: list[float]
    enqueue: list[float] = field(default_factory=list)
    gpu: list[float] = field(default_factory=list)
    stages: dict[str, list[float]] = field(default_factory=dict)  # parts of the GPU time by name, if any
    begins: list[float] = field(default_factory=list)  # of time.perf_counter(), comparable across processes


class Clock(ABC):
    """A clock for one kind of device."""

    name: str
    asynchronous = False  # whether the device has a queue
    lanes = 1  # streams that the calls of a window use in turn

    def now(self) -> float:
        """Return the time in seconds on the clock of ``Timings.begins``."""
        return time.perf_counter()

    @abstractmethod
    def time(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int) -> Timings:
        """Call ``infer`` ``count`` times, one call in flight at a time, and time each call."""

    @abstractmethod
    def window(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int, depth: int | None = None) -> float:
        """Return the seconds of ``count`` back-to-back calls, with at most ``depth`` calls in flight.

        With ``None`` the device's queue is the limit.
        """

    def floor(self) -> float | None:
        """Return the GPU time in seconds that the clock adds to a kernel; ``None`` if it has no GPU time."""
        return None


class HostClock(Clock):
    """A clock for devices whose calls return when their outputs are ready."""

    name = "host: time.perf_counter_ns"

    def time(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int) -> Timings:
        now = time.perf_counter_ns
        nanoseconds, begins = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        for index in range(count):
            feed = next(feeds)
            begin = now()
            infer(feed)
            nanoseconds[index] = now() - begin
            begins[index] = begin
        return Timings(_seconds(nanoseconds), begins=_seconds(begins))

    def window(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int, depth: int | None = None) -> float:  # noqa: ARG002 - one call is in flight, whatever the depth
        begin = time.perf_counter_ns()
        for feed in itertools.islice(feeds, count):
            infer(feed)
        return (time.perf_counter_ns() - begin) * 1e-9


def threaded_window(callers: Sequence[tuple[Callable[[Any], Any], Any]], count: int) -> float:
    """Return the seconds of ``count`` calls by one thread for each caller, which has its own feed.

    A thread that has finished its call takes the next one. For devices whose calls return when outputs are ready.
    """
    left = iter(range(count))  # taking the next number is atomic
    ready = threading.Barrier(len(callers) + 1)
    failed: list[BaseException] = []

    def work(infer: Callable[[Any], Any], feed: Any) -> None:
        ready.wait()
        try:
            for _ in left:
                infer(feed)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=caller, daemon=True) for caller in callers]
    for thread in threads:
        thread.start()
    ready.wait()
    begin = time.perf_counter_ns()
    for thread in threads:
        thread.join()
    elapsed = (time.perf_counter_ns() - begin) * 1e-9
    if failed:
        raise failed[0]
    return elapsed


class Lane(NamedTuple):
    """A call of the model, and the stream on which it enqueues."""

    infer: Callable[[Any], Any]
    stream: Any


class CudaClock(Clock):
    """A clock for CUDA streams: host clock around call and synchronization, CUDA events around the call.

    The first event is recorded while the stream is idle, before the host clock starts, so the GPU time contains the
    launch of the first kernel. Recording the second event is inside the latency (about a microsecond).

    With several lanes, windows go round them; a lane enqueues on its own stream and reads its bound inputs, not the
    feed. Latency is still that of one call with nothing else in flight.
    """

    name = "host: time.perf_counter_ns; GPU: CUDA events"
    asynchronous = True

    def __init__(self, lanes: Sequence[Lane] = ()) -> None:
        self._lanes = lanes
        self.lanes = max(1, len(lanes))

    def time(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int) -> Timings:
        now = time.perf_counter_ns
        stream = torch.cuda.current_stream()
        synchronize = stream.synchronize
        latency, enqueue, begins = (array("q", bytes(8 * count)) for _ in range(3))
        before, after = _events(count, stream), _events(count, stream)
        for index in range(count):
            feed = next(feeds)
            before[index].record(stream)
            begin = now()
            infer(feed)
            returned = now()
            after[index].record(stream)
            synchronize()
            latency[index] = now() - begin
            enqueue[index] = returned - begin
            begins[index] = begin
        return Timings(_seconds(latency), _seconds(enqueue), _elapsed(before, after), begins=_seconds(begins))

    def window(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int, depth: int | None = None) -> float:
        stream = torch.cuda.current_stream()
        several = len(self._lanes) > 1
        lanes = itertools.cycle(self._lanes) if several else itertools.repeat(Lane(infer, stream))
        synchronize = torch.cuda.synchronize if several else stream.synchronize
        ring = [torch.cuda.Event() for _ in range(min(depth or 0, count))]
        calls = list(zip(itertools.islice(lanes, count), itertools.islice(feeds, count), strict=True))
        synchronize()
        begin = time.perf_counter_ns()
        if not ring:
            for lane, feed in calls:
                lane.infer(feed)
        else:
            for (lane, feed), item in zip(calls, itertools.cycle(ring), strict=False):
                item.synchronize()  # waits for the call ``depth`` calls ago; returns at once if never recorded
                lane.infer(feed)
                item.record(lane.stream)
        synchronize()
        return (time.perf_counter_ns() - begin) * 1e-9

    def floor(self) -> float | None:
        """Return the GPU time of a kernel in a CUDA graph beyond the kernel itself; ``None`` if capture fails.

        It is extrapolated to zero cycles: twice the time of a kernel minus that of one with twice the cycles. A kernel
        that ends at once would give too much, because the second event would come late.
        """
        torch.cuda.synchronize()
        replays = []
        try:
            for times in (1, 2):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.stream(torch.cuda.Stream()):
                    graph.capture_begin(capture_error_mode="thread_local")  # other threads may continue
                    torch.cuda._sleep(times * FLOOR_CYCLES)
                    graph.capture_end()
                replays.append(graph.replay)
        except RuntimeError:
            return None
        turns, plain = itertools.cycle(replays), CudaClock()
        plain.time(_replay, turns, FLOOR_CALLS // 2)
        gpu = plain.time(_replay, turns, 2 * FLOOR_CALLS).gpu
        return max(0.0, 2 * statistics.median(gpu[::2]) - statistics.median(gpu[1::2]))


class StagedClock(CudaClock):
    """A CUDA clock for a call of several stages, with an event between them.

    The stages are called in order with the feed; together they are what ``infer`` does.
    """

    def __init__(self, stages: dict[str, Callable[[Any], Any]]) -> None:
        super().__init__()
        self._stages = stages

    def time(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int) -> Timings:  # noqa: ARG002 - the stages are it
        now = time.perf_counter_ns
        stream = torch.cuda.current_stream()
        synchronize = stream.synchronize
        latency, enqueue, begins = (array("q", bytes(8 * count)) for _ in range(3))
        first, *rest = (_events(count, stream) for _ in range(len(self._stages) + 1))
        for index in range(count):
            steps = tuple((stage, after[index]) for stage, after in zip(self._stages.values(), rest, strict=True))
            feed = next(feeds)
            first[index].record(stream)
            begin = now()
            for stage, after in steps:
                stage(feed)
                after.record(stream)
            enqueue[index] = now() - begin
            synchronize()
            latency[index] = now() - begin
            begins[index] = begin
        parts = dict(zip(self._stages, map(_elapsed, (first, *rest), rest), strict=True))
        return Timings(_seconds(latency), _seconds(enqueue), _elapsed(first, rest[-1]), parts, _seconds(begins))


def _replay(replay: Callable[[], Any]) -> None:
    replay()


def _events(count: int, stream: Any) -> list[Any]:
    """Return events on a stream, each recorded once, which is when CUDA creates it."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    for event in events:
        event.record(stream)
    stream.synchronize()
    return events


def _elapsed(before: Sequence[Any], after: Sequence[Any]) -> list[float]:
    return [start.elapsed_time(end) * 1e-3 for start, end in zip(before, after, strict=True)]


def _seconds(nanoseconds: array[int]) -> list[float]:
    return [count * 1e-9 for count in nanoseconds]


# NVTX ranges for NVIDIA's profilers, around phases, series of samples and calls of profiled modules. An environment
# variable, which child processes inherit, turns them on. No range is inside a timed loop.

NVTX_VARIABLE = "INFERLENS_NVTX"
NVTX_DOMAIN = "inferlens"


def enable_nvtx() -> None:
    """Set ranges in this process and in those that it starts. Raise MissingLibrary without the package nvtx."""
    library("nvtx", extra="nvtx")
    os.environ[NVTX_VARIABLE] = "1"


def nvtx_enabled() -> bool:
    """Return whether ranges are set."""
    return bool(os.environ.get(NVTX_VARIABLE))


def nvtx_range(name: str) -> AbstractContextManager[Any]:
    """Return a range around the body, or nothing where ranges are off."""
    if not nvtx_enabled():
        return nullcontext()
    annotation: AbstractContextManager[Any] = library("nvtx", extra="nvtx").annotate(name, domain=NVTX_DOMAIN)
    return annotation


def nvtx_push_pop() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """Return a function that begins a named range and one that ends the last range, for use in hooks."""
    if not nvtx_enabled():
        return lambda _: None, lambda: None
    nvtx = library("nvtx", extra="nvtx")
    return lambda name: nvtx.push_range(name, domain=NVTX_DOMAIN), lambda: nvtx.pop_range(domain=NVTX_DOMAIN)
