"""When a series ends: on scripted samples, so to the sample."""

from __future__ import annotations

import itertools
import random

import pytest

from inferlens.measure import series
from inferlens.measure.series import (
    LEAST_SAMPLES,
    LEAST_SECONDS,
    MOST_SAMPLES,
    FixedCount,
    FixedTime,
    HalfWidth,
    SteadyState,
    StoppingRule,
    sampling_rule,
    warmup_rule,
)
from inferlens.spec.case import Budget
from inferlens.stats.intervals import half_width


def fed(rule: StoppingRule, samples: list[float], chunk: int = 25, pause: float = 0.0) -> int:
    """How many of the samples the rule takes, given to it in chunks, with a pause after each sample."""
    begin = 100.0
    source = iter(samples)
    while not rule.finished:
        some = list(itertools.islice(source, min(chunk, rule.most)))
        assert some, "the rule wants more than there are"
        begins = [begin + place * pause + sum(some[:place]) for place in range(len(some))]
        rule.add(begins, some)
        begin = begins[-1] + some[-1] + pause
    return len(rule.samples)


def noisy(count: int, spread: float, seed: int = 0, middle: float = 0.01) -> list[float]:
    draw = random.Random(seed)
    return [middle * (1 + spread * draw.gauss(0, 1)) for _ in range(count)]


def test_time_is_from_the_first_begin_to_the_last_end() -> None:
    assert fed(FixedTime(1.0, 10, 5000), [0.01] * 5000, chunk=1) == pytest.approx(100, abs=1)
    assert fed(FixedTime(1.0, 10, 5000), [0.01] * 5000, chunk=1, pause=0.01) == pytest.approx(51, abs=1)
    assert fed(FixedTime(1.0, 10, 5000), [0.3] * 5000, chunk=1) == 10
    assert fed(FixedTime(1.0, 10, 50), [0.001] * 5000, chunk=1) == 50


@pytest.mark.parametrize(
    ("rule", "missed"),
    [
        (FixedCount(100), None),
        (FixedCount(100, 0.3), "30 samples were taken in 300 ms; 100 were wanted."),
        (FixedTime(1.0, 10, 5000), None),
        (FixedTime(1.0, 10, 5000, 0.5), "50 samples were taken in 500 ms; 1.00 s and at least 10 samples were wanted."),
        (FixedTime(0.1, 50, 5000, 0.2), "20 samples were taken in 200 ms; 100 ms and at least 50 samples were wanted."),
        (FixedTime(1.0, 10, 50), "50 samples were taken in 500 ms; 1.00 s and at least 10 samples were wanted."),
        (HalfWidth(1e-9, 0.5), ""),  # the samples tell
    ],
)
def test_what_was_not_reached_is_told(rule: StoppingRule, missed: str | None) -> None:
    fed(rule, noisy(5000, 0.0), chunk=1)
    assert (rule.missed, rule.reached) == (missed or "", missed is None)


@pytest.mark.parametrize("spread", [0.02, 0.05, 0.1])
def test_the_half_width_is_reached_and_not_much_exceeded(spread: float) -> None:
    samples = noisy(MOST_SAMPLES, spread)
    count = fed(HalfWidth(0.01, 1000.0), samples)
    assert half_width(samples[:count]) <= 0.0101
    assert count < 4 * max(LEAST_SAMPLES, LEAST_SECONDS / 0.01, (2.5 * spread / 0.01) ** 2)


def test_a_narrow_interval_is_not_believed_before_half_a_second() -> None:
    assert fed(HalfWidth(0.01, 10.0), [0.0001 + 1e-9 * (i % 7) for i in range(MOST_SAMPLES)]) >= LEAST_SECONDS / 0.0001


def test_a_wide_look_between_two_narrow_ones_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = iter([0.005, 0.02, 0.005, 0.005])
    monkeypatch.setattr(series, "half_width", lambda *_: next(widths))
    rule = HalfWidth(0.01, 1000.0)
    for count, reached in ((40, False), (60, False), (90, False), (130, True)):
        rule.add([rule.spent + 0.1 * index for index in range(count)], [0.1] * count)
        assert rule.reached == reached, len(rule.samples)


def test_what_is_not_reached_ends_at_the_time_and_at_the_most() -> None:
    wild = noisy(MOST_SAMPLES + 1, 0.3)
    rule = HalfWidth(0.0001, 3.0)
    assert fed(rule, wild) == pytest.approx(300, abs=30)
    assert not rule.reached
    assert fed(HalfWidth(0.0001, 1e9), wild, chunk=1000) == MOST_SAMPLES
    assert fed(HalfWidth(0.0001, 3.0), wild, chunk=10, pause=0.02) == pytest.approx(100, abs=10), "between samples, too"


def test_warmup_lasts_until_calls_are_steady_or_the_time_is_up() -> None:
    falling = [0.01 + 0.05 * 0.98**index for index in range(3000)]
    count = fed(SteadyState(1.0, 60.0), falling)
    assert count > 200
    assert falling[count] < 0.0102
    rule = SteadyState(1.0, 10.0)
    fed(rule, [0.01 * 1.01**index for index in range(2000)], chunk=5)
    assert not rule.reached
    assert 10.0 <= rule.spent < 15.0


def test_warmup_that_is_steady_takes_a_second_and_ten_calls() -> None:
    assert fed(SteadyState(1.0, 60.0), noisy(500, 0.01), chunk=10) == pytest.approx(100, abs=15)
    assert fed(SteadyState(1.0, 60.0), [5.0] * 50, chunk=1) == 10
    assert fed(SteadyState(1.0, 60.0), noisy(50, 0.01, middle=0.2), chunk=1) == pytest.approx(15, abs=1)


def test_budgets_choose_their_rules() -> None:
    assert isinstance(warmup_rule(Budget(warmup=3)), FixedCount)
    assert isinstance(warmup_rule(Budget()), SteadyState)
    kinds = [type(sampling_rule(budget)) for budget in (Budget(), Budget(iterations=5), Budget(seconds=1.0))]
    assert kinds == [HalfWidth, FixedCount, FixedTime]
