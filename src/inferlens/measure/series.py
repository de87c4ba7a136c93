"""Taking series of samples from a runner: latency one call at a time, throughput in windows of calls.

Calls are timed in chunks, so that the stopping rule and the progress are looked after between chunks and never between
two samples of one chunk. The garbage collector is off while a chunk runs.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from inferlens.backends.clocks import Clock, nvtx_range, threaded_window
from inferlens.measure.stopping import StoppingRule
from inferlens.record.record import Measurement, Metric

MOST_IN_CHUNK = 1000
WINDOWS = 10
MOST_IN_WINDOW = 10_000
LEAST_EACH = 8  # calls of each place in flight: at a window's end some wait for the last, for half a call on average
Progress = Callable[[float], None]


class Caller(Protocol):
    """What is called and timed: a runner, or one whose calls do more."""

    clock: Clock

    def infer(self, feed: Any) -> Any:
        """One call."""


class Turn:
    """Whose turn it is to use the machine: here, of a process that has it for itself, always its own."""

    chunk_seconds = 0.2  # how long calls are timed between two looks at the stopping rule and at whose turn it is
    chunk_calls = 1  # and how many calls at least
    lead = 0.0  # seconds of calls, and one call at least, that a turn begins with and that are no samples; 0 for none
    chunks_a_report = 1  # after how many chunks the progress is shown, which takes the machine, too
    shared = False  # whether another process takes turns with this one
    over = True  # whether the other one, if there is one, has enough samples, too, or has ended
    waited = 0.0  # seconds spent waiting so far

    def ready(self, *, gpu: bool) -> None:
        """All is there that will be called; ``gpu`` says that this thread calls one."""

    def wait(self, *, enough: bool = False) -> None:
        """Lets the other one go on, and waits for one's own turn; ``enough`` says that one has enough samples."""


def latency(
    runner: Caller,
    feeds: Iterator[Any],
    rule: StoppingRule,
    progress: Progress,
    metric: Metric = "latency",
    turn: Turn | None = None,
) -> tuple[Measurement, ...]:
    """Latency samples until ``rule`` is satisfied; enqueue and GPU times and their parts where the clock tells them.

    With another process that has its ``turn`` after each chunk: until that has enough, too, but for calls that are
    longer than a chunk is meant to be, for which the other would only wait. The rule is told of time without that
    spent waiting.
    """
    clock, turn = runner.clock, turn or Turn()
    waited = turn.waited
    begins: list[float] = []
    series: dict[Metric, list[float]] = {}
    chunk, each = 1, 0.0
    with nvtx_range(f"series: {metric}"), collector_off():
        for number in itertools.count():
            if rule.finished and turn.over:
                break
            if rule.most and not (rule.finished and each > turn.chunk_seconds):
                _lead_in(runner, feeds, turn.lead)
                before = clock.now()
                timings = clock.time(runner.infer, feeds, min(chunk, rule.most))
                each = max((clock.now() - before) / len(timings.latency), 1e-9)  # what happens between calls included
                rule.add([begin - turn.waited + waited for begin in timings.begins], timings.latency)
                begins += timings.begins
                parts: dict[Any, list[float]] = {"enqueue time": timings.enqueue, "GPU time": timings.gpu}
                for name, seconds in {metric: timings.latency, **parts, **timings.stages}.items():
                    series.setdefault(name, []).extend(seconds)
                chunk = max(turn.chunk_calls, min(MOST_IN_CHUNK, int(turn.chunk_seconds / each)))
                if number % turn.chunks_a_report == 0:
                    progress(rule.progress)
            turn.wait(enough=rule.finished)
    return tuple(
        Measurement(
            metric=name,
            unit="s",
            clock=clock.name,
            samples=tuple(samples),
            begins=tuple(round(begin, 6) for begin in begins) if name == metric else (),
        )
        for name, samples in series.items()
        if samples
    )


def throughput(
    runner: Caller,
    feeds: Iterator[Any],
    typical: float,
    seconds: float,
    progress: Progress,
    depth: int | None = None,
    callers: Sequence[tuple[Callable[[Any], Any], Any]] = (),
    max_time: float = math.inf,
    turn: Turn | None = None,
) -> Measurement:
    """Calls per second of windows of back-to-back calls, :data:`WINDOWS` of them if the time suffices.

    Args:
        typical: latency of one call in seconds, from which the number of calls in a window is set.
        seconds: host time to spend, roughly; at most ``max_time``, should calls in flight together not be faster.
        depth: calls in flight at a time; ``None``: no limit but the queue's.
        callers: what threads call at the same time, with what, where calls in flight together need threads.
        turn: waited for after each window but the last.
    """
    clock, turn = runner.clock, turn or Turn()
    typical = max(typical, 1e-9)
    together = max(len(callers), clock.lanes, min(depth or 1, MOST_IN_WINDOW) if clock.asynchronous else 1)
    count = max(round(seconds / WINDOWS / typical), 1)
    count = max(count, LEAST_EACH) * together if together > 1 else count
    count = max(1, math.floor(min(count, MOST_IN_WINDOW, max_time / typical)))
    windows = max(1, math.floor(min(WINDOWS, max_time / (count * typical))))
    rates, begins = [], []
    with nvtx_range("series: throughput"), collector_off():
        for window in range(windows):
            if window:
                turn.wait()
            _lead_in(runner, feeds, turn.lead)
            begins.append(round(clock.now(), 6))
            took = threaded_window(callers, count) if callers else clock.window(runner.infer, feeds, count, depth)
            rates.append(count / took)
            progress((window + 1) / windows)
    return Measurement(
        metric="throughput",
        unit="calls/s",
        clock=clock.name,
        samples=tuple(rates),
        in_flight=depth if clock.asynchronous else max(1, len(callers)),
        begins=tuple(begins),
        calls=count,
    )


def rate_of(latency: Measurement) -> Measurement:
    """Return the calls per second of calls that were timed one by one, of groups of them in succession."""
    seconds = latency.values
    count = max(1, len(seconds) // WINDOWS)
    starts = range(0, len(seconds) - count + 1, count)
    return Measurement(
        metric="throughput",
        unit="calls/s",
        clock=latency.clock,
        samples=tuple(count / max(math.fsum(seconds[start : start + count]), 1e-12) for start in starts),
        in_flight=1,
        begins=tuple(latency.begins[start] for start in starts),
        calls=count,
    )


def _lead_in(runner: Caller, feeds: Iterator[Any], seconds: float) -> None:
    """Calls for so many seconds, one at least; none for 0."""
    clock = runner.clock
    end = clock.now() + seconds
    while seconds:
        clock.time(runner.infer, feeds, 1)
        if clock.now() >= end:
            return


def typical_latency(runner: Caller, feeds: Iterator[Any], samples: int = 5) -> float:
    """About how long a call takes, in seconds: the shortest of a few."""
    return min(runner.clock.time(runner.infer, itertools.islice(feeds, samples), samples).latency)


@contextmanager
def collector_off() -> Iterator[None]:
    """The garbage collector off, and as it was afterwards."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
