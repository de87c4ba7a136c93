from __future__ import annotations

import pytest

from inferlens.analysis.interference import MOST_RELATIVE, SENSOR_ERROR, UPDATE, cpu_energy_per_item, energy_per_item
from inferlens.record.machine import MachineLog
from tests.analysis.interference.logs import cpu_log, during, gpu_log


def test_energy_of_the_counter() -> None:
    log = gpu_log(energy=lambda time: 300 * time)
    energy = energy_per_item(log, 2.0, 8.0, 600)
    assert energy.joules == pytest.approx(3.0)
    assert energy.low is not None
    assert energy.high is not None
    assert energy.high - 3.0 == pytest.approx(3.0 - energy.low) == pytest.approx(3.0 * (UPDATE / 6 + SENSOR_ERROR))
    assert energy.basis.startswith("NVML: counter")
    assert (energy.seconds, energy.items, energy.reason) == (6.0, 600, "")


@pytest.mark.parametrize("late", [0.0, 0.03, 0.07, 0.0999])
def test_a_counter_that_is_updated_late_is_within_the_bounds(late: float) -> None:
    """The counter jumps every 100 ms, and what it shows is up to 100 ms old."""
    log = gpu_log(energy=lambda time: 300 * ((time - late) // UPDATE) * UPDATE)
    energy = energy_per_item(log, 2.03, 4.04, 201)
    assert (energy.low or 9.0) <= 3.0 <= (energy.high or 0.0)


@pytest.mark.parametrize(
    ("begin", "end", "items", "words"),
    [
        (2.0, 2.9, 90, "too few"),
        (2.0, 8.0, 0, "too few"),
        (8.0, 14.0, 600, "did not cover"),
        (-5.0, 5.0, 600, "did not cover"),
        (20.0, 30.0, 600, "too few"),
    ],
)
def test_no_value_is_made_up(begin: float, end: float, items: int, words: str) -> None:
    energy = energy_per_item(gpu_log(energy=lambda time: 300 * time), begin, end, items)
    assert (energy.joules, energy.low, energy.high) == (None, None, None)
    assert words in energy.reason


def test_what_has_no_counter_or_a_strange_one_has_no_value() -> None:
    log = gpu_log(energy=lambda time: 300 * time if time < 5 else 300 * time - 1500)
    assert "went back" in energy_per_item(log, 2.0, 8.0, 600).reason
    assert energy_per_item(MachineLog(interval=0.1, absent={"gpu": "no driver"}), 0, 5, 5).reason == "no driver"
    assert cpu_energy_per_item(MachineLog(interval=0.1), 0, 5, 5).reason == "the CPUs were not watched"
    assert "no counter" in energy_per_item(gpu_log(), 2.0, 8.0, 600).reason


def test_energy_of_the_cpus() -> None:
    energy = cpu_energy_per_item(cpu_log(energy=lambda time: 40 * time), 1.0, 9.0, 80)
    assert energy.joules == pytest.approx(4.0)
    assert energy.high is not None
    assert energy.high / 4.0 - 1 < SENSOR_ERROR + 0.001 < MOST_RELATIVE


def test_what_others_used_is_not_called_ours() -> None:
    shared = gpu_log(energy=lambda time: 300 * time, processes={"foreign_utilisation": during(4.0, 5.0, 0.5, 0.0)})
    assert "another process" in energy_per_item(shared, 2.0, 8.0, 600).reason
    assert energy_per_item(shared, 6.0, 9.0, 300).joules == pytest.approx(3.0)
    busy = cpu_log(2, energy=lambda time: 40 * time, busy=2.0, others=1.0)
    assert "other processes" in cpu_energy_per_item(busy, 2.0, 8.0, 600).reason
