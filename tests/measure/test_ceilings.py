"""Ceilings: what is sustained counts, not the best of luck, and not what others took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from inferlens.measure import ceilings  # noqa: E402
from inferlens.measure.ceilings import Best, host_timer, sustained  # noqa: E402


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes and repeats of a moment."""
    monkeypatch.setattr(ceilings, "ROUNDS", 1)
    monkeypatch.setattr(ceilings, "SECONDS", 0.0)
    monkeypatch.setattr(ceilings, "MATRICES", {"cpu": (32, 64)})
    monkeypatch.setattr(ceilings, "copy_sizes", lambda _: (1 << 16, 1 << 18))


@pytest.mark.usefixtures("quick")
def test_a_cpu_has_a_bandwidth_and_a_rate() -> None:
    threads = torch.get_num_threads()
    made = ceilings.measure("cpu", "a processor", threads=1)
    assert made.device == "a processor"
    assert made.bandwidth > 0
    assert made.rates["fp32"] > 0
    assert set(made.rates) | set(made.absent) == {"fp32", "tf32", "fp16", "bf16"}
    assert made.absent["tf32"] == "no CPU has TF32"
    assert made.basis.endswith(", 1 thread")
    assert made.measured
    assert torch.get_num_threads() == threads


def timer(*taken: tuple[float, bool]) -> Callable[[Callable[[], Any]], tuple[float, bool]]:
    """A timer that tells these times, the last one for ever."""
    left = list(taken)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.usefixtures("quick")
def test_what_is_sustained_is_the_median_of_what_was_not_interrupted() -> None:
    warming = (9.0, False)
    lucky = timer(warming, (0.1, False), *[(2.0, False)] * 9)
    assert sustained(lambda: None, lucky) == (2.0, True)
    mixed = [(5.0, True), (2.0, False)]
    assert sustained(lambda: None, timer(warming, *mixed * 9))[0] in (2.0, 5.0)
    assert sustained(lambda: None, timer(warming, (4.0, True))) == (4.0, False)


def test_repeats_that_were_interrupted_are_left_out_if_others_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "SECONDS", 1.0)
    monkeypatch.setattr(ceilings.time, "perf_counter", iter(range(100)).__next__)
    monkeypatch.setattr(ceilings, "PATIENCE", 20)
    taken = timer((9.0, False), *[(5.0, True), (2.0, False)] * 12, (7.0, True))
    assert sustained(lambda: None, taken) == (2.0, True)


def test_the_best_is_the_largest_of_what_was_not_interrupted() -> None:
    best = Best()
    best.add(10, 1.0, False)
    best.add(30, 1.0, False)
    assert (best.rate, best.clean) == (30, False)
    best.add(20, 1.0, True)
    assert (best.rate, best.clean) == (20, True)
    best.add(99, 1.0, False)
    best.add(25, 1.0, True)
    assert (best.rate, best.clean) == (25, True)


@pytest.mark.usefixtures("quick")
def test_ceilings_that_were_interrupted_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "host_timer", lambda call: (host_timer(call)[0], True))
    assert "interrupted" in ceilings.measure("cpu", "a processor", 1).disturbed


@pytest.mark.usefixtures("quick")
def test_a_size_that_the_memory_does_not_hold_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "copy_sizes", lambda _: (1 << 16, 1 << 60))
    assert ceilings.measure("cpu", "a processor", 1).bandwidth > 0


def test_copies_are_no_larger_than_the_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "memory_left", lambda: 2 << 30)
    monkeypatch.setattr(ceilings, "cache_bytes", lambda _: 1 << 30)
    assert max(ceilings.copy_sizes("cpu")) == 256 << 20
