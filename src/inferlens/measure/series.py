"""Series of samples from a runner: latency one call at a time, throughput in windows of calls.

Calls are timed in chunks, so that the stopping rule and the progress run between chunks and never between two samples
of one chunk. The garbage collector is off while a chunk runs.
"""

from __future__ import annotations

import gc
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from inferlens.backends.base import Inputs, Preparation, Runner
from inferlens.backends.clocks import Clock, nvtx_range, threaded_window
from inferlens.models import inputs
from inferlens.models.inputs import flatten
from inferlens.models.model import Model
from inferlens.record.record import Measurement, Metric
from inferlens.spec.case import MAX_TIME, Budget, Case
from inferlens.stats.intervals import half_width
from inferlens.stats.steady import LEAST_SAMPLES as LEAST_TO_JUDGE
from inferlens.stats.steady import steady
from inferlens.units import duration, percent, plural

MOST_IN_CHUNK = 1000
WINDOWS = 10
MOST_IN_WINDOW = 10_000
LEAST_PER_PLACE = 8  # calls per place in flight: at a window's end some wait for the last, for half a call on average
Progress = Callable[[float], None]


class Caller(Protocol):
    """The object that is called and timed: a runner, or one whose calls do more."""

    clock: Clock

    def infer(self, feed: Any) -> Any:
        """Make one call."""


class Turn:
    """The turns of a process on the machine, see ``execution.turns``. This process has the machine for itself."""

    chunk_seconds = 0.2  # seconds of calls between two checks of the stopping rule and the turn
    chunk_calls = 1  # and how many calls at least
    lead = 0.0  # seconds of calls, and one call at least, that a turn begins with and that are no samples; 0 for none
    chunks_a_report = 1  # after how many chunks the progress is shown, which takes the machine, too
    in_turns = False  # whether other processes are measured in turns with this one
    others_finished = True  # whether they have enough samples, too, or have ended
    seconds_waited = 0.0

    def ready(self, *, gpu: bool) -> None:
        """Register that everything is loaded; ``gpu`` says that this thread calls a GPU."""

    def wait(self, *, enough: bool = False) -> None:
        """Let the others go on, and wait for the own turn; ``enough`` says that there are enough samples."""


def latency(
    runner: Caller,
    feeds: Iterator[Any],
    rule: StoppingRule,
    progress: Progress,
    metric: Metric = "latency",
    turn: Turn | None = None,
) -> tuple[Measurement, ...]:
    """Time single calls of ``runner`` until ``rule`` has enough samples, and return the samples in seconds.

    Calls are timed in chunks of about ``turn.chunk_seconds``. In turns, each turn has one chunk. The process goes on
    taking samples until the others have enough, too. If one of its calls is longer than a chunk, it only waits instead,
    because its calls would delay the others. The rule does not count the time spent waiting.

    Args:
        feeds: the inputs of calls, without end.
        progress: called with a number from 0 to 1 after every ``turn.chunks_a_report`` chunks.
        metric: the metric of the latencies.
        turn: the turns of the process; ``None`` if it has the machine for itself.

    Returns:
        The latencies with the times at which they began. Then the enqueue times, the GPU times and the times of
        stages, if the clock measures them.
    """
    clock, turn = runner.clock, turn or Turn()
    waited = turn.seconds_waited
    begins: list[float] = []
    series: dict[Metric, list[float]] = {}
    chunk, seconds_per_call = 1, 0.0
    with nvtx_range(f"series: {metric}"), collector_off():
        for number in itertools.count():
            if rule.finished and turn.others_finished:
                break
            if rule.most and not (rule.finished and seconds_per_call > turn.chunk_seconds):
                _lead_in(runner, feeds, turn.lead)
                before = clock.now()
                timings = clock.time(runner.infer, feeds, min(chunk, rule.most))
                # What happens between calls is included.
                seconds_per_call = max((clock.now() - before) / len(timings.latency), 1e-9)
                rule.add([begin - turn.seconds_waited + waited for begin in timings.begins], timings.latency)
                begins += timings.begins
                parts: dict[Any, list[float]] = {"enqueue time": timings.enqueue, "GPU time": timings.gpu}
                for name, seconds in {metric: timings.latency, **parts, **timings.stages}.items():
                    series.setdefault(name, []).extend(seconds)
                chunk = max(turn.chunk_calls, min(MOST_IN_CHUNK, int(turn.chunk_seconds / seconds_per_call)))
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
    """Return the calls per second of windows of back-to-back calls, :data:`WINDOWS` of them if the time suffices.

    Args:
        typical: latency of one call in seconds, from which the number of calls in a window is set.
        seconds: host time to spend, roughly; at most ``max_time``, even if several calls in flight are not faster.
        depth: calls in flight at a time; ``None``: no limit but the queue's.
        callers: the calls that threads make at the same time, with their inputs, if calls in flight need threads.
        turn: waited for after every window but the last.
    """
    clock, turn = runner.clock, turn or Turn()
    typical = max(typical, 1e-9)
    in_flight = max(len(callers), clock.lanes, min(depth or 1, MOST_IN_WINDOW) if clock.asynchronous else 1)
    count = max(round(seconds / WINDOWS / typical), 1)
    count = max(count, LEAST_PER_PLACE) * in_flight if in_flight > 1 else count
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
    """Make calls for some seconds, at least one; none for 0."""
    clock = runner.clock
    end = clock.now() + seconds
    while seconds:
        clock.time(runner.infer, feeds, 1)
        if clock.now() >= end:
            return


def typical_latency(runner: Caller, feeds: Iterator[Any], samples: int = 5) -> float:
    """Return a typical latency in seconds: the shortest of a few calls."""
    return min(runner.clock.time(runner.infer, itertools.islice(feeds, samples), samples).latency)


@contextmanager
def collector_off() -> Iterator[None]:
    """Turn the garbage collector off until the end of the context."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# A :class:`StoppingRule` receives the samples and decides when there are enough. It stops at ``max_time`` at the
# latest.

LEAST_WARMUP = 10
LEAST_SAMPLES = 30
MOST_SAMPLES = 20_000  # memory, and the record's size; by then the interval is narrower than what matters
MOST_WARMUP = 2_000_000  # memory alone: very short calls need many to fill a second
LEAST_SECONDS = 0.5  # whatever disturbs a machine for a moment lasts longer than a few short calls
GROWTH = 1.1  # the check of all samples takes time, so it is repeated after this growth of their number
LEVEL = 0.95


class StoppingRule(ABC):
    """A rule that decides when a series of ``least`` to ``most`` samples is long enough.

    ``max_time`` is in seconds, what happens between samples included; ``expected`` when it will probably end.
    """

    growth = GROWTH
    asked = False  # whether the user asked for this number of samples, or this time

    def __init__(self, least: int, most: int, max_time: float, expected: float = math.inf) -> None:
        self.samples: list[float] = []
        self._expected = max(min(expected, max_time), 1e-9)
        self._least, self._limit, self._max_time = least, most, max_time
        self._first = self._last = 0.0
        self._sample_count = 0
        self.reached = False

    def add(self, begins: Sequence[float], samples: Sequence[float]) -> None:
        """Add samples with the times when they began, in seconds."""
        if not samples:
            return
        if not self.samples:
            self._first = begins[0]
        self.samples += samples
        self._last = begins[-1] + samples[-1]
        if not self.reached and (
            len(self.samples) >= max(self._least, self.growth * self._sample_count) or not self.most
        ):
            self._sample_count = len(self.samples)
            self.reached = self._enough()

    @abstractmethod
    def _enough(self) -> bool:
        """Return whether the goal of the rule is reached; called now and then, after ``least`` samples."""

    @property
    def spent(self) -> float:
        """The seconds from the begin of the first sample to the end of the last."""
        return self._last - self._first

    @property
    def finished(self) -> bool:
        return self.reached or self.most == 0 or self.spent >= self._max_time

    @property
    def missed(self) -> str:
        """The goal that was missed; empty if it was reached, or if the samples show it."""
        taken = f"{plural(len(self.samples), 'sample')} were taken in {duration(self.spent)}"
        return f"{taken}, less than was asked for." if self.asked and not self.reached else ""

    @property
    def most(self) -> int:
        """The number of samples that may be taken before the next check."""
        return max(0, self._limit - len(self.samples))

    @property
    def progress(self) -> float:
        """The progress of the series, 0 to 1. The series may end earlier."""
        return 1.0 if self.finished else min(1.0, max(self.spent / self._expected, len(self.samples) / self._limit))


class FixedCount(StoppingRule):
    """A rule for exactly ``count`` samples, or fewer if the time is up."""

    asked = True

    def __init__(self, count: int, max_time: float = math.inf) -> None:
        super().__init__(count, count, max_time)

    def _enough(self) -> bool:
        return True


class FixedTime(StoppingRule):
    """A rule for samples during ``seconds``, at least ``least`` and at most ``most``."""

    asked = True
    growth = 0.0  # checks every time, because that costs nothing here

    def __init__(self, seconds: float, least: int, most: int, max_time: float = math.inf) -> None:
        super().__init__(least, most, max_time, seconds)
        self._seconds = seconds

    def _enough(self) -> bool:
        return self.spent >= self._seconds


class HalfWidth(StoppingRule):
    """A rule that stops when the interval of the median is at most ``width`` to either side of it, as a share of it.

    The interval is that of ``stats.intervals``, at 95 %, and of the steady part alone. A rule that stops at a
    narrow interval selects intervals that are narrow by luck. So it checks only after a fifth more samples, and needs
    two narrow intervals in succession. ``python -m benchmarks.early_stops`` measures the remaining bias.
    """

    growth = 1.2
    LOOKS = 2

    def __init__(self, width: float, max_time: float) -> None:
        super().__init__(LEAST_SAMPLES, MOST_SAMPLES, max_time)
        self._width = width
        self._narrow = 0  # narrow intervals in succession

    def _enough(self) -> bool:
        samples = self.samples[steady(self.samples).start :]
        self._narrow = self._narrow + 1 if half_width(samples, LEVEL) <= self._width else 0
        return self._narrow >= self.LOOKS and self.spent >= LEAST_SECONDS


class SteadyState(StoppingRule):
    """A rule for warm-up until a steady state, for at least ``seconds`` and :data:`LEAST_WARMUP` calls.

    The test needs 30 calls. Slow calls end after :data:`PATIENCE` times ``seconds``.
    """

    PATIENCE = 3

    def __init__(self, seconds: float, max_time: float) -> None:
        super().__init__(LEAST_WARMUP, MOST_WARMUP, max_time)
        self._seconds = seconds

    def _enough(self) -> bool:
        if self.spent < self._seconds:
            self._sample_count = 0  # a check costs nothing before there are enough samples
            return False
        if len(self.samples) < LEAST_TO_JUDGE:
            self._sample_count = 0
            return self.spent >= self.PATIENCE * self._seconds
        return steady(self.samples).steady


def warmup_rule(budget: Budget) -> StoppingRule:
    """Return the rule for the calls before the first sample."""
    if budget.warmup is not None:
        return FixedCount(budget.warmup)
    return SteadyState(budget.warmup_seconds, max(budget.max_time or MAX_TIME, budget.warmup_seconds))


def sampling_rule(budget: Budget) -> StoppingRule:
    """Return the rule for the latency samples."""
    limit, most = budget.max_time or math.inf, budget.max_time or MAX_TIME
    if budget.iterations is not None:
        return FixedCount(budget.iterations, limit)
    if budget.seconds is not None:
        return FixedTime(budget.seconds, LEAST_SAMPLES, MOST_SAMPLES, limit)
    return HalfWidth(budget.half_width, most)


# A feed gives the inputs of a call: the same, rotating ones, or the same after a flush of the cache. A clock takes
# the next feed before it starts, so no sample contains it.

TIMES_CACHE = 2  # caches are not strictly least-recently-used; nvbench flushes as much of a GPU's L2
MOST_FEEDS = 4096
HALF = ("fp16", "bf16")
ASSUMED_CACHE = 64 << 20  # bytes, where the system does not tell
CPUS = Path("/sys/devices/system/cpu")
SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30}  # of a cache's size, such as 32768K


class Feeding:
    """The feeds of a case, endless ``latency`` and ``throughput``; the outputs of ``checked_feed`` are compared."""

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
        self.checked_feed = runner.place(arrays)
        self._all = [self.checked_feed]
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
        # Copies of the feeds of a model that writes into its inputs. They are restored before every call.
        self._copies = [[tensor.clone() for tensor in flatten(feed)] for feed in self._all] if renews else []
        self.caller: Caller = Renewing(runner, self) if any(self._copies) else runner
        self.throughput = itertools.repeat(self.checked_feed)
        self.latency = self._bound() if case.rotate or any(self._copies) else self.throughput
        if case.cold:
            preparation.facts["flushed_bytes"] = TIMES_CACHE * cache
            self.latency = _flushed(self.latency, flusher(case.device, TIMES_CACHE * cache))

    def callers(self, depth: int | None) -> list[tuple[Callable[[Any], Any], Any]]:
        """Return calls with feeds of their own for threads; none if there is a queue, or no overlap."""
        if self._runner.clock.asynchronous or (depth or 1) < 2:
            return []
        if any(self._copies):  # every thread would need a copy, too
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
        """Yield the feeds in turn, bound before the call that reads them."""
        for feed in itertools.cycle(self._all):
            self._runner.bind(self.renewed(feed))
            self._runner.synchronize()  # what bind enqueued would be in the latency, not in the GPU time
            yield feed


class Renewing:
    """A runner whose calls begin with renewing their inputs, for series in which calls are back to back."""

    def __init__(self, runner: Runner, feeding: Feeding) -> None:
        self.clock = runner.clock
        self._runner = runner
        self._feeding = feeding

    def infer(self, feed: Any) -> Any:
        """Make one call, with a feed that is renewed first."""
        return self._runner.infer(self._feeding.renewed(feed))


def _flushed(feeds: Iterator[Any], flush: Callable[[], None]) -> Iterator[Any]:
    for feed in feeds:
        flush()
        yield feed


def cache_bytes(device: str) -> int:
    """Return the size of the device's last cache: a GPU's L2, or all last-level caches of the CPUs; 0 if unknown."""
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    caches: dict[tuple[int, str], int] = {}  # by level and CPUs that share one
    for index in CPUS.glob("cpu[0-9]*/cache/index[0-9]*"):
        with suppress(OSError, ValueError, KeyError):
            level, shared, size = (
                (index / name).read_text("utf-8").strip() for name in ("level", "shared_cpu_list", "size")
            )
            caches[int(level), shared] = int(size.rstrip("KMG")) << SHIFTS[size.lstrip("0123456789")]
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last)


def flusher(device: str, size: int) -> Callable[[], None]:
    """Return a function that writes ``size`` bytes on the device and returns when that is done."""
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
