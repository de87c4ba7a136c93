"""Series of samples on a fake clock: exact counts, exact times, nothing lost between chunks."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from inferlens.backends.base import Preparation, Runner
from inferlens.backends.fake import Fake, FakeClock
from inferlens.case import Budget, Case, TensorSpec
from inferlens.clocks import HostClock
from inferlens.measure import series
from inferlens.measure.stopping import FixedCount, FixedTime, StoppingRule, sampling_rule, warmup_rule
from inferlens.models.model import Model


def runner(tmp_path: Path, **options: Any) -> Runner:
    case = Case(model="fake:demo", backend="fake", variant="steady", options=options)
    model = Model("fake:demo", "demo", "fake", (TensorSpec("x", (1, 3)),))
    return Fake().prepare(model, case, Preparation(tmp_path, tmp_path))


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_fixed_count_takes_exactly_as_many(tmp_path: Path, count: int) -> None:
    (latency,) = series.latency(runner(tmp_path), {}, FixedCount(count), lambda _: None)
    assert latency.samples == (0.004,) * count
    assert latency.clock == "fake"


def test_no_warmup_takes_no_sample(tmp_path: Path) -> None:
    assert series.latency(runner(tmp_path), {}, FixedCount(0), lambda _: None) == ()


@pytest.mark.parametrize(
    ("milliseconds", "count"),
    [(1, 1000), (10, 500), (400, 20), (2000, 20)],
)
def test_the_default_budget_is_time_with_a_least_and_a_most(tmp_path: Path, milliseconds: float, count: int) -> None:
    slow = runner(tmp_path, latency=milliseconds)
    (latency,) = series.latency(slow, {}, sampling_rule(Budget()), lambda _: None)
    assert count <= len(latency.samples) <= count + 200 / milliseconds + 1


def test_warmup_is_ten_calls_at_least_and_counts_are_kept_when_said() -> None:
    assert isinstance(warmup_rule(Budget(warmup=3)), FixedCount)
    rule = warmup_rule(Budget())
    for _ in range(9):
        rule.add(5.0)
    assert not rule.finished
    rule.add(5.0)
    assert rule.finished


@pytest.mark.parametrize("rule", [FixedCount(40), FixedTime(0.1, 10, 50)])
def test_progress_grows_to_one(tmp_path: Path, rule: StoppingRule) -> None:
    shares: list[float] = []
    series.latency(runner(tmp_path), {}, rule, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_throughput_is_calls_over_time_in_windows(tmp_path: Path) -> None:
    measured = series.throughput(runner(tmp_path, latency=2.0), {}, 0.002, 1.0, lambda _: None)
    assert measured.unit == "calls/s"
    assert measured.in_flight == 1
    assert len(measured.samples) == series.WINDOWS
    assert measured.samples == pytest.approx([500.0] * series.WINDOWS)


def test_the_collector_is_off_while_calls_are_timed_and_on_again_afterwards(tmp_path: Path) -> None:
    fake = runner(tmp_path)
    seen: list[bool] = []
    fake.infer = lambda feed: seen.append(gc.isenabled())  # type: ignore[method-assign]
    series.latency(fake, {}, FixedCount(3), lambda _: None)
    assert seen == [False] * 3
    assert gc.isenabled()


def test_the_host_clock_times_each_call() -> None:
    calls: list[int] = []
    timings = HostClock().time(calls.append, 1, 100)
    assert len(timings.latency) == len(calls) == 100
    assert all(seconds > 0 for seconds in timings.latency)
    assert timings.enqueue == timings.gpu == []


def test_scripted_times_come_back_in_order() -> None:
    script = [0.003, 0.001, 0.002]
    clock = FakeClock(lambda index: script[index])
    assert clock.time(lambda _: None, None, 2).latency == script[:2]
    assert clock.time(lambda _: None, None, 1).latency == script[2:]
