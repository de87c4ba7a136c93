"""Clocks that time a series of calls.

A clock belongs to a device. Its timed loop is straight-line code: no callback, no logging, no allocation but the
numbers themselves. Host times come from ``time.perf_counter_ns``, GPU times from CUDA events on the current stream.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Timings:
    """Times of consecutive calls, in seconds.

    ``enqueue`` and ``gpu`` are empty where the device has no queue; ``stages`` has the parts of the GPU time by name,
    where a call has parts.
    """

    latency: list[float]
    enqueue: list[float]
    gpu: list[float]
    stages: dict[str, list[float]] = field(default_factory=dict)


class Clock(Protocol):
    """Times calls on one kind of device."""

    name: str
    asynchronous: bool

    def time(self, infer: Callable[[Any], Any], feed: Any, count: int) -> Timings:
        """Calls ``infer(feed)`` ``count`` times, one in flight at a time, and times each of them."""
        ...

    def window(self, infer: Callable[[Any], Any], feed: Any, count: int) -> float:
        """Seconds for ``count`` back-to-back calls, waiting only for the last."""
        ...


class HostClock:
    """For devices whose calls return when their outputs are ready."""

    name = "host: time.perf_counter_ns"
    asynchronous = False

    def time(self, infer: Callable[[Any], Any], feed: Any, count: int) -> Timings:
        """See :class:`Clock`."""
        now = time.perf_counter_ns
        nanoseconds = array("q", bytes(8 * count))
        for index in range(count):
            begin = now()
            infer(feed)
            nanoseconds[index] = now() - begin
        return Timings([elapsed * 1e-9 for elapsed in nanoseconds], [], [])

    def window(self, infer: Callable[[Any], Any], feed: Any, count: int) -> float:
        """See :class:`Clock`."""
        begin = time.perf_counter_ns()
        for _ in range(count):
            infer(feed)
        return (time.perf_counter_ns() - begin) * 1e-9


class CudaClock:
    """For CUDA streams: host clock around call and synchronisation, CUDA events around the call.

    The first event is recorded while the stream is idle and before the host clock starts, so the GPU time contains the
    launch of the first kernel; recording the second event is inside the latency (about a microsecond).
    """

    name = "host: time.perf_counter_ns; GPU: CUDA events"
    asynchronous = True

    def time(self, infer: Callable[[Any], Any], feed: Any, count: int) -> Timings:
        """See :class:`Clock`."""
        import torch

        now = time.perf_counter_ns
        stream = torch.cuda.current_stream()
        synchronize = stream.synchronize
        latency, enqueue = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        before = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        after = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        for event in before + after:  # CUDA creates an event when it is first recorded
            event.record(stream)
        synchronize()
        for index in range(count):
            before[index].record(stream)
            begin = now()
            infer(feed)
            returned = now()
            after[index].record(stream)
            synchronize()
            latency[index] = now() - begin
            enqueue[index] = returned - begin
        gpu = [start.elapsed_time(end) * 1e-3 for start, end in zip(before, after, strict=True)]
        return Timings([t * 1e-9 for t in latency], [t * 1e-9 for t in enqueue], gpu)

    def window(self, infer: Callable[[Any], Any], feed: Any, count: int) -> float:
        """See :class:`Clock`."""
        import torch

        synchronize = torch.cuda.current_stream().synchronize
        synchronize()
        begin = time.perf_counter_ns()
        for _ in range(count):
            infer(feed)
        synchronize()
        return (time.perf_counter_ns() - begin) * 1e-9


class LanesClock(CudaClock):
    """As :class:`CudaClock`; windows go round several lanes, each of which enqueues on a stream of its own.

    Latency is still that of one call with nothing else in flight.
    """

    def __init__(self, lanes: list[Callable[[], None]]) -> None:
        self._lanes = lanes

    def window(self, infer: Callable[[Any], Any], feed: Any, count: int) -> float:
        """See :class:`Clock`."""
        if len(self._lanes) < 2:
            return super().window(infer, feed, count)
        import torch

        lanes = itertools.islice(itertools.cycle(self._lanes), count)
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for enqueue in lanes:
            enqueue()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - begin) * 1e-9


class StagedClock(CudaClock):
    """As :class:`CudaClock`, for a call that is several stages in a row: an event between any two of them, too.

    The stages are given by name and called in order with the feed; together they are what ``infer`` does.
    """

    def __init__(self, stages: dict[str, Callable[[Any], Any]]) -> None:
        self._stages = stages

    def time(self, infer: Callable[[Any], Any], feed: Any, count: int) -> Timings:  # noqa: ARG002 - the stages are it
        """See :class:`Clock`."""
        import torch

        now = time.perf_counter_ns
        stream = torch.cuda.current_stream()
        synchronize = stream.synchronize
        stages = tuple(self._stages.values())
        latency, enqueue = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(len(stages) + 1)) for _ in range(count)]
        for event in (event for row in events for event in row):  # CUDA creates an event when it is first recorded
            event.record(stream)
        synchronize()
        for index in range(count):
            first, *rest = events[index]
            steps = tuple(zip(stages, rest, strict=True))
            first.record(stream)
            begin = now()
            for stage, after in steps:
                stage(feed)
                after.record(stream)
            enqueue[index] = now() - begin
            synchronize()
            latency[index] = now() - begin
        gpu = [row[0].elapsed_time(row[-1]) * 1e-3 for row in events]
        parts = {
            name: [row[place].elapsed_time(row[place + 1]) * 1e-3 for row in events]
            for place, name in enumerate(self._stages)
        }
        return Timings([t * 1e-9 for t in latency], [t * 1e-9 for t in enqueue], gpu, parts)
