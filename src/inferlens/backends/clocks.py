"""Clocks that time a series of calls.

A clock belongs to a device. Its timed loop is straight-line code: no callback, no logging, no allocation but the
numbers themselves. Host times come from ``time.perf_counter_ns``, GPU times from CUDA events on the current stream.

What a call is fed with comes from an iterator, and the next feed is taken before the clock starts: whatever has to
happen between two calls, such as another feed or a flushed cache, is the iterator's business and in no sample.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

FLOOR_CALLS = 200  # of each length: some 20 ms in all
FLOOR_CYCLES = 50_000  # of the GPU's clock: some 25 µs


@dataclass(frozen=True)
class Timings:
    """Times of consecutive calls, in seconds.

    ``begins`` are those of ``time.perf_counter()``, with which times of other processes can be compared. ``enqueue``
    and ``gpu`` are empty where the device has no queue; ``stages`` has the parts of the GPU time by name, where a call
    has parts.
    """

    latency: list[float]
    enqueue: list[float]
    gpu: list[float]
    stages: dict[str, list[float]] = field(default_factory=dict)
    begins: list[float] = field(default_factory=list)


class Clock(ABC):
    """Times calls on one kind of device.

    Attributes:
        asynchronous: whether the device has a queue.
        lanes: streams that calls of a window go round.
    """

    name: str
    asynchronous = False
    lanes = 1

    def now(self) -> float:
        """Seconds of the clock that ``Timings.begins`` are of."""
        return time.perf_counter()

    @abstractmethod
    def time(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int) -> Timings:
        """Calls ``infer`` ``count`` times, each with the next feed, one in flight at a time, and times each of them."""

    @abstractmethod
    def window(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int, depth: int | None = None) -> float:
        """Seconds for ``count`` back-to-back calls, until the last is done.

        At most ``depth`` calls are in flight at a time; ``None``: as many as the device's queue takes.
        """

    def floor(self) -> float | None:
        """GPU time that the clock tells beyond what a kernel lasts, in seconds; ``None`` where it tells none."""
        return None


class HostClock(Clock):
    """For devices whose calls return when their outputs are ready."""

    name = "host: time.perf_counter_ns"

    def time(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int) -> Timings:
        """See :class:`Clock`."""
        now = time.perf_counter_ns
        nanoseconds, begins = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        for index in range(count):
            feed = next(feeds)
            begin = now()
            infer(feed)
            nanoseconds[index] = now() - begin
            begins[index] = begin
        return Timings(_seconds(nanoseconds), [], [], begins=_seconds(begins))

    def window(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int, depth: int | None = None) -> float:  # noqa: ARG002 - one call is in flight, whatever the depth
        """See :class:`Clock`."""
        begin = time.perf_counter_ns()
        for feed in itertools.islice(feeds, count):
            infer(feed)
        return (time.perf_counter_ns() - begin) * 1e-9


def threaded_window(callers: Sequence[tuple[Callable[[Any], Any], Any]], count: int) -> float:
    """Seconds for ``count`` calls by as many threads as there are callers, each of which has a feed of its own.

    For devices whose calls return when their outputs are ready: so many calls are in flight at a time. A thread that is
    done with its call takes the next one.
    """
    left = iter(range(count))  # to take the next number from a range is one step, for all threads
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


class CudaClock(Clock):
    """For CUDA streams: host clock around call and synchronisation, CUDA events around the call.

    The first event is recorded while the stream is idle and before the host clock starts, so the GPU time contains the
    launch of the first kernel; recording the second event is inside the latency (about a microsecond).
    """

    name = "host: time.perf_counter_ns; GPU: CUDA events"
    asynchronous = True

    def time(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int) -> Timings:
        """See :class:`Clock`."""
        import torch

        now = time.perf_counter_ns
        stream = torch.cuda.current_stream()
        synchronize = stream.synchronize
        latency, enqueue, begins = (array("q", bytes(8 * count)) for _ in range(3))
        before = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        after = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        for event in before + after:  # CUDA creates an event when it is first recorded
            event.record(stream)
        synchronize()
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
        gpu = [start.elapsed_time(end) * 1e-3 for start, end in zip(before, after, strict=True)]
        return Timings(_seconds(latency), _seconds(enqueue), gpu, begins=_seconds(begins))

    def window(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int, depth: int | None = None) -> float:
        """See :class:`Clock`."""
        import torch

        stream = torch.cuda.current_stream()
        lane = Lane(infer, stream)
        return _window(itertools.repeat(lane), feeds, count, depth, stream.synchronize)

    def floor(self) -> float | None:
        """What the GPU time of a kernel is beyond the kernel, where nothing launches it faster: as a CUDA graph.

        Twice the GPU time of a kernel that lasts some cycles, less that of one that lasts twice as many: the line
        through both, at none. One that ended at once would tell too much, for the second event would come late.
        ``None`` where nothing can be captured.
        """
        import torch

        torch.cuda.synchronize()
        try:
            replays = [_captured(partial(torch.cuda._sleep, times * FLOOR_CYCLES)) for times in (1, 2)]
        except RuntimeError:
            return None
        turns, plain = itertools.cycle(replays), CudaClock()
        plain.time(_call, turns, FLOOR_CALLS // 2)
        gpu = plain.time(_call, turns, 2 * FLOOR_CALLS).gpu
        return max(0.0, 2 * statistics.median(gpu[::2]) - statistics.median(gpu[1::2]))


def _captured(enqueue: Callable[[], Any]) -> Callable[[], Any]:
    """The replay of a CUDA graph of what is enqueued; other threads may go on meanwhile."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(capture_error_mode="thread_local")
        enqueue()
        graph.capture_end()
    return cast("Callable[[], Any]", graph.replay)


def _call(replay: Callable[[], Any]) -> None:
    replay()


class Lane(NamedTuple):
    """A way to call the model, and the stream on which it enqueues its calls."""

    infer: Callable[[Any], Any]
    stream: Any


class LanesClock(CudaClock):
    """As :class:`CudaClock`; windows go round several lanes, each of which enqueues on a stream of its own.

    A lane reads what it is bound to, whatever it is fed with. Latency is still that of one call with nothing else in
    flight.
    """

    def __init__(self, lanes: list[Lane]) -> None:
        self._lanes = lanes
        self.lanes = max(1, len(lanes))

    def window(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int, depth: int | None = None) -> float:
        """See :class:`Clock`."""
        if len(self._lanes) < 2:
            return super().window(infer, feeds, count, depth)
        import torch

        return _window(itertools.cycle(self._lanes), feeds, count, depth, torch.cuda.synchronize)


def _window(
    lanes: Iterator[Lane], feeds: Iterator[Any], count: int, depth: int | None, synchronize: Callable[[], None]
) -> float:
    """Seconds for ``count`` calls, one lane after the other, with at most ``depth`` of them in flight."""
    import torch

    ring = [torch.cuda.Event() for _ in range(min(depth or 0, count))]
    calls = list(zip(itertools.islice(lanes, count), itertools.islice(feeds, count), strict=True))
    synchronize()
    begin = time.perf_counter_ns()
    if not ring:
        for lane, feed in calls:
            lane.infer(feed)
    else:
        for (lane, feed), done in zip(calls, itertools.cycle(ring), strict=False):
            done.synchronize()  # of the call that was so many calls ago; at once where it was never recorded
            lane.infer(feed)
            done.record(lane.stream)
    synchronize()
    return (time.perf_counter_ns() - begin) * 1e-9


class StagedClock(CudaClock):
    """As :class:`CudaClock`, for a call that is several stages in a row: an event between any two of them, too.

    The stages are given by name and called in order with the feed; together they are what ``infer`` does.
    """

    def __init__(self, stages: dict[str, Callable[[Any], Any]]) -> None:
        self._stages = stages

    def time(self, infer: Callable[[Any], Any], feeds: Iterator[Any], count: int) -> Timings:  # noqa: ARG002 - the stages are it
        """See :class:`Clock`."""
        import torch

        now = time.perf_counter_ns
        stream = torch.cuda.current_stream()
        synchronize = stream.synchronize
        stages = tuple(self._stages.values())
        latency, enqueue, begins = (array("q", bytes(8 * count)) for _ in range(3))
        events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(len(stages) + 1)) for _ in range(count)]
        for event in (event for row in events for event in row):  # CUDA creates an event when it is first recorded
            event.record(stream)
        synchronize()
        for index in range(count):
            first, *rest = events[index]
            steps = tuple(zip(stages, rest, strict=True))
            feed = next(feeds)
            first.record(stream)
            begin = now()
            for stage, after in steps:
                stage(feed)
                after.record(stream)
            enqueue[index] = now() - begin
            synchronize()
            latency[index] = now() - begin
            begins[index] = begin
        gpu = [row[0].elapsed_time(row[-1]) * 1e-3 for row in events]
        parts = {
            name: [row[place].elapsed_time(row[place + 1]) * 1e-3 for row in events]
            for place, name in enumerate(self._stages)
        }
        return Timings(_seconds(latency), _seconds(enqueue), gpu, parts, _seconds(begins))


def _seconds(nanoseconds: array[int]) -> list[float]:
    return [count * 1e-9 for count in nanoseconds]
