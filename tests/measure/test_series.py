"""Series of samples on a fake clock: exact counts, exact times, nothing lost between chunks."""

from __future__ import annotations

import gc
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from inferlens.backends.base import Preparation, Runner
from inferlens.backends.clocks import threaded_window
from inferlens.backends.fake import Fake
from inferlens.measure import series
from inferlens.measure.series import FixedCount, FixedTime, HalfWidth, StoppingRule
from inferlens.models.model import Model
from inferlens.spec.case import Case, TensorSpec


def runner(tmp_path: Path, variant: str = "steady", **options: Any) -> Runner:
    case = Case(model="fake:demo", backend="fake", variant=variant, options=options)
    model = Model("fake:demo", "demo", "fake", (TensorSpec("x", (1, 3)),))
    return Fake().prepare(model, case, Preparation(tmp_path, tmp_path))


def taken(fake: Runner, rule: StoppingRule, progress: Any = lambda _: None) -> Any:
    return series.latency(fake, itertools.repeat({}), rule, progress)


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_a_fixed_count_takes_exactly_as_many(tmp_path: Path, count: int) -> None:
    found = taken(runner(tmp_path), FixedCount(count))
    assert [(item.metric, item.clock, item.samples) for item in found] == [
        ("latency", "fake", (0.004,) * count) for _ in range(bool(count))
    ]


def test_samples_come_with_the_time_when_they_began(tmp_path: Path) -> None:
    (latency,) = taken(runner(tmp_path, "noisy"), FixedCount(500))
    sums = [0.0, *itertools.accumulate(latency.samples)][:-1]
    assert latency.begins == pytest.approx(sums, abs=1e-6)


@pytest.mark.parametrize("rule", [FixedCount(40), FixedTime(0.1, 10, 50), HalfWidth(0.01, 9.0)])
def test_progress_grows_to_one(tmp_path: Path, rule: StoppingRule) -> None:
    shares: list[float] = []
    taken(runner(tmp_path, "noisy"), rule, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_throughput_is_calls_over_time_in_windows(tmp_path: Path) -> None:
    measured = series.throughput(runner(tmp_path, latency=2.0), itertools.repeat({}), 0.002, 1.0, lambda _: None)
    assert measured.unit == "calls/s"
    assert (measured.in_flight, measured.calls) == (1, 50)
    assert len(measured.samples) == len(measured.begins) == series.WINDOWS
    assert measured.samples == pytest.approx([500.0] * series.WINDOWS)
    assert measured.begins == pytest.approx([0.1 * window for window in range(series.WINDOWS)])


def test_a_window_has_several_calls_for_each_place_in_flight_and_each_stream(tmp_path: Path) -> None:
    fake, feeds = runner(tmp_path), itertools.repeat({})
    fake.clock.asynchronous = True
    assert series.throughput(fake, feeds, 0.004, 0.001, lambda _: None, depth=16).calls == 16 * series.LEAST_PER_PLACE
    fake.clock.lanes = 3
    assert series.throughput(fake, feeds, 0.004, 0.001, lambda _: None).calls == 3 * series.LEAST_PER_PLACE


@pytest.mark.parametrize(("typical", "calls", "windows"), [(0.004, 25, 10), (0.4, 1, 5), (1.5, 1, 1), (60.0, 1, 1)])
def test_windows_end_in_time(tmp_path: Path, typical: float, calls: int, windows: int) -> None:
    slow = runner(tmp_path, latency=1e3 * typical)
    measured = series.throughput(slow, itertools.repeat({}), typical, 1.0, lambda _: None, max_time=2.0)
    assert (measured.calls, len(measured.samples)) == (calls, windows)


def test_chunks_are_short_also_where_much_happens_between_calls(tmp_path: Path) -> None:
    fake = runner(tmp_path, latency=0.1)

    def slowly() -> Any:
        while True:
            fake.clock._now += 0.1  # type: ignore[attr-defined]
            yield {}

    rule = FixedTime(1.0, 1, 10_000)
    series.latency(fake, slowly(), rule, lambda _: None)
    assert rule.spent < 1.5


def test_the_collector_is_off_while_calls_are_timed_and_on_again_afterwards(tmp_path: Path) -> None:
    fake = runner(tmp_path)
    seen: list[bool] = []
    fake.infer = lambda feed: seen.append(gc.isenabled())  # type: ignore[method-assign]
    taken(fake, FixedCount(3))
    assert seen == [False] * 3
    assert gc.isenabled()


def test_threads_share_the_calls_of_a_window_each_with_its_own_feed(tmp_path: Path) -> None:
    calls: list[str] = []
    together, number = threading.Barrier(2), itertools.count()

    def infer(feed: str) -> None:
        if next(number) < 2:
            together.wait(10)  # gets through only if two calls are in flight
        calls.append(feed)

    fake = runner(tmp_path)
    callers = [(infer, "a"), (infer, "b")]
    measured = series.throughput(fake, itertools.repeat({}), 0.01, 0.001, lambda _: None, 2, callers)
    assert (measured.in_flight, measured.calls) == (2, 16)
    assert len(calls) == 16 * series.WINDOWS
    assert set(calls) == {"a", "b"}


def test_a_call_that_fails_in_a_thread_fails_the_window() -> None:
    def infer(_: Any) -> None:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        threaded_window([(infer, None), (infer, None)], 4)
