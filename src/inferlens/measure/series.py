"""Taking series of samples from a runner: latency one call at a time, throughput in windows of calls.

Calls are timed in chunks, so that the stopping rule and the progress are looked after between chunks and never between
two samples of one chunk. The garbage collector is off while a chunk runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from inferlens.backends.base import Runner
from inferlens.measure.stopping import StoppingRule
from inferlens.record import Measurement

CHUNK_SECONDS = 0.2
WINDOWS = 10
Progress = Callable[[float], None]


def latency(runner: Runner, feed: Any, rule: StoppingRule, progress: Progress) -> tuple[Measurement, ...]:
    """Latency samples until ``rule`` is satisfied; enqueue and GPU times and their parts where the clock tells them."""
    clock = runner.clock
    host: list[float] = []
    enqueue: list[float] = []
    gpu: list[float] = []
    stages: dict[str, list[float]] = {}
    chunk = 1
    with collector_off():
        while not rule.finished:
            timings = clock.time(runner.infer, feed, min(chunk, rule.most))
            for sample in timings.latency:
                rule.add(sample)
            host += timings.latency
            enqueue += timings.enqueue
            gpu += timings.gpu
            for name, seconds in timings.stages.items():
                stages.setdefault(name, []).extend(seconds)
            chunk = _chunk(timings.latency)
            progress(rule.progress)
    series: tuple[tuple[Any, list[float]], ...] = (
        ("latency", host), ("enqueue time", enqueue), ("GPU time", gpu), *stages.items(),
    )  # fmt: skip
    return tuple(
        Measurement(metric=metric, unit="s", clock=clock.name, samples=tuple(samples))
        for metric, samples in series
        if samples
    )


def throughput(runner: Runner, feed: Any, typical: float, seconds: float, progress: Progress) -> Measurement:
    """Calls per second of :data:`WINDOWS` windows of back-to-back calls.

    Args:
        runner: what to call.
        feed: what to call it with.
        typical: latency of one call in seconds, from which the number of calls in a window is set.
        seconds: host time to spend, roughly.
        progress: told the share done.
    """
    clock = runner.clock
    count = max(1, round(seconds / WINDOWS / max(typical, 1e-9)))
    count = min(count, 10_000)
    rates = []
    with collector_off():
        for window in range(WINDOWS):
            rates.append(count / clock.window(runner.infer, feed, count))
            progress((window + 1) / WINDOWS)
    in_flight = None if clock.asynchronous else 1
    return Measurement(metric="throughput", unit="calls/s", clock=clock.name, samples=tuple(rates), in_flight=in_flight)


def _chunk(latencies: list[float]) -> int:
    """How many calls like the last ones fit into :data:`CHUNK_SECONDS`."""
    mean = sum(latencies) / len(latencies)
    return max(1, min(1000, int(CHUNK_SECONDS / max(mean, 1e-9))))


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
