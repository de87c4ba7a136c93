"""Waiting for a quiet machine: what is said, and when it ends."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from inferlens.measure import monitor
from inferlens.measure.monitor import other_programs, wait_for_quiet

BUSY = "python uses 0.9 of 2 CPUs"


def said(looks: list[str], limit: float) -> tuple[list[str], list[str]]:
    """The remarks, and what was shown as under way; a look takes two seconds."""
    remarks: list[str] = []
    doing: list[str] = []
    ticks = itertools.count(0, 2)
    left = iter(looks)
    wait_for_quiet(limit, remarks.append, doing.append, look=lambda: next(left), clock=lambda: float(next(ticks)))
    return remarks, doing


def test_a_quiet_machine_is_not_waited_for() -> None:
    assert said([""], 600) == ([], [])


def test_it_says_what_it_waits_for_and_that_the_machine_is_quiet() -> None:
    remarks, doing = said([BUSY, BUSY, ""], 600)
    assert remarks == [f"Waiting up to 10 min 00 s for a quiet machine: {BUSY}.", "The machine is quiet after 6.00 s."]
    assert doing == [f"waiting for a quiet machine: {BUSY}"] * 2


def test_when_the_time_is_over_it_is_measured_all_the_same() -> None:
    remarks, _ = said([BUSY] * 9, 4)
    assert remarks[1:] == [f"Still busy after 4.00 s, measured as it is: {BUSY}."]


@pytest.mark.parametrize(
    ("others", "python", "expected"),
    [
        (0.2, 0.2, ""),
        (0.9, 0.9, "python uses 0.9 of 2 CPUs"),
        (1.5, 0.8, "python uses 0.8 of 2 CPUs"),
        (1.5, 0.1, "other programs use 1.5 of 2 CPUs"),
    ],
)
def test_the_program_that_uses_most_is_named(
    monkeypatch: pytest.MonkeyPatch, others: float, python: float, expected: str
) -> None:
    loads: Any = iter([{"others": None}, {"others": others}])
    seconds: Any = iter([{7: (1.0, "python")}, {7: (1.0 + 2 * python, "python")}])
    monkeypatch.setattr(monitor.Cpus, "load", lambda *_: next(loads))
    monkeypatch.setattr(monitor, "_cpu_seconds", lambda: next(seconds))
    monkeypatch.setattr(monitor.time, "sleep", lambda _: None)
    monkeypatch.setattr("inferlens.measure.monitor.usable_cpus", lambda: (0, 1))
    assert other_programs(2.0) == expected
