from __future__ import annotations

from collections.abc import Mapping

from inferlens.measure.monitor.table import PATIENCE, Table, Value


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_columns_are_as_long_as_the_times_whenever_they_begin_to_answer() -> None:
    clock = Clock()

    def late(now: float) -> Mapping[str, Value]:
        return {"late": now} if now >= 2 else {}

    table = Table({"always": lambda now: {"always": now}, "late": late}, clock)
    for clock.now in (0.0, 1.0, 2.0, 3.0):
        table.take()
    assert table.as_columns() == {"times": (0, 1, 2, 3), "always": (0, 1, 2, 3), "late": (None, None, 2, 3)}
    assert table.peaks == {"always": 3.0, "late": 3.0}


def test_a_reading_that_fails_for_long_is_given_up() -> None:
    calls = []

    def failing(now: float) -> Mapping[str, Value]:
        calls.append(now)
        if len(calls) > 1:
            raise OSError("gone")
        return {"value": 1.0}

    table = Table({"failing": failing}, Clock())
    for _ in range(3 * PATIENCE):
        table.take()
    assert len(calls) == 1 + PATIENCE
    assert "gone" in table.absent["failing"]
    assert len(table.as_columns()["value"]) == 3 * PATIENCE


def test_the_oldest_rows_go_when_there_are_too_many_but_peaks_stay() -> None:
    clock = Clock()
    table = Table({"load": lambda now: {"load": 9.0 if now == 0 else 1.0}}, clock, most=10)
    for clock.now in map(float, range(14)):
        table.take()
    columns = table.as_columns()
    assert columns["times"][-1] == 13.0
    assert len(columns["times"]) == len(columns["load"]) <= 10
    assert table.forgotten + len(columns["times"]) == 14
    assert table.peaks["load"] == 9.0


def test_a_reading_that_takes_long_is_asked_less_often() -> None:
    clock = Clock()

    def slow(now: float) -> Mapping[str, Value]:
        clock.now += 1 / 128  # at most 5 % of the time: once in 0.156 s
        return {"slow": 1}

    table = Table({"slow": slow, "quick": lambda now: {"quick": 2}}, clock)
    for tick in range(9):
        clock.now = tick * 0.125
        table.take()
    columns = table.as_columns()
    assert columns["slow"] == (1, None) * 4 + (1,)
    assert columns["quick"] == (2,) * 9
