"""Taking series of samples from a runner: latency one call at a time, throughput in windows of calls.

Calls are timed in chunks, so that the stopping rule and the progress are looked after between chunks and never between
two samples of one chunk. The garbage collector is off while a chunk runs.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from inferlens.backends.base import Runner
from inferlens.clocks import threaded_window
from inferlens.measure.stopping import StoppingRule
from inferlens.record import Measurement, Metric

CHUNK_SECONDS = 0.2
MOST_IN_CHUNK = 1000
WINDOWS = 10
MOST_IN_WINDOW = 10_000
LEAST_OF_THREAD = 8  # calls: at a window's end some threads wait for the last one, for half a call on average
Progress = Callable[[float], None]


def latency(
    runner: Runner, feeds: Iterator[Any], rule: StoppingRule, progress: Progress, metric: Metric = "latency"
) -> tuple[Measurement, ...]:
    """Latency samples until ``rule`` is satisfied; enqueue and GPU times and their parts where the clock tells them."""
    clock = runner.clock
    begins: list[float] = []
    series: dict[Metric, list[float]] = {}
    chunk = 1
    with collector_off():
        while not rule.finished:
            timings = clock.time(runner.infer, feeds, min(chunk, rule.most))
            rule.add(timings.begins, timings.latency)
            begins += timings.begins
            parts: dict[Any, list[float]] = {"enqueue time": timings.enqueue, "GPU time": timings.gpu, **timings.stages}
            for name, seconds in {metric: timings.latency, **parts}.items():
                series.setdefault(name, []).extend(seconds)
            chunk = _chunk(timings.latency)
            progress(rule.progress)
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
    runner: Runner,
    feeds: Iterator[Any],
    typical: float,
    seconds: float,
    progress: Progress,
    depth: int | None = None,
    callers: Sequence[tuple[Callable[[Any], Any], Any]] = (),
) -> Measurement:
    """Calls per second of :data:`WINDOWS` windows of back-to-back calls.

    Args:
        runner: what to call.
        feeds: what to call it with.
        typical: latency of one call in seconds, from which the number of calls in a window is set.
        seconds: host time to spend, roughly.
        progress: told the share done.
        depth: calls in flight at a time; ``None``: no limit but the queue's.
        callers: what threads call at the same time, with what, where calls in flight together need threads.
    """
    clock = runner.clock
    count = max(1, round(seconds / WINDOWS / max(typical, 1e-9)))
    count = len(callers) * max(count, LEAST_OF_THREAD) if callers else max(count, depth or 1)
    count = min(count, MOST_IN_WINDOW)
    rates, begins = [], []
    with collector_off():
        for window in range(WINDOWS):
            begins.append(round(clock.now(), 6))
            took = threaded_window(callers, count) if callers else clock.window(runner.infer, feeds, count, depth)
            rates.append(count / took)
            progress((window + 1) / WINDOWS)
    return Measurement(
        metric="throughput",
        unit="calls/s",
        clock=clock.name,
        samples=tuple(rates),
        in_flight=depth if clock.asynchronous else max(1, len(callers)),
        begins=tuple(begins),
        calls=count,
    )


def typical_latency(runner: Runner, feeds: Iterator[Any], samples: int = 5) -> float:
    """About how long a call takes, in seconds: the shortest of a few."""
    return min(runner.clock.time(runner.infer, itertools.islice(feeds, samples), samples).latency)


def _chunk(latencies: list[float]) -> int:
    """How many calls like the last ones fit into :data:`CHUNK_SECONDS`."""
    mean = sum(latencies) / len(latencies)
    return max(1, min(MOST_IN_CHUNK, int(CHUNK_SECONDS / max(mean, 1e-9))))


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
