from __future__ import annotations

import pytest

from inferlens.measure.monitor.before import survey
from tests.measure.monitor.fake_nvml import NOT_SUPPORTED, Device, FakeNvml


def test_what_is_on_the_gpu_before_a_case() -> None:
    nvml = FakeNvml(Device(compute={9: 1}, graphics={3: 2}, memory_used=77))
    before = survey(nvml=nvml, environ={})
    assert (before.memory_used, before.processes, before.idle_power) == (77, (3, 9), None)
    assert before.absent == {}
    assert nvml.open == 0


def test_idle_power_is_the_median_of_readings_while_nothing_runs() -> None:
    nvml = FakeNvml(Device(milliwatts=80_000))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        nvml.devices[0].milliwatts = 80_000 if len(waits) > 2 else 500_000

    before = survey(1.0, nvml=nvml, environ={}, wait=wait)
    assert before.idle_power == 80.0
    assert sum(waits) == pytest.approx(1.0)
    assert (before.idle_seconds, before.idle_samples) == (1.0, 10)


def test_a_gpu_that_works_has_no_idle_power() -> None:
    before = survey(1.0, nvml=FakeNvml(Device(utilisation=3)), environ={}, wait=lambda _: None)
    assert before.idle_power is None
    assert "not idle" in before.absent["idle_power"]


def test_what_is_not_told_has_a_reason() -> None:
    nvml = FakeNvml()
    nvml.refuse["nvmlDeviceGetComputeRunningProcesses"] = NOT_SUPPORTED
    before = survey(nvml=nvml, environ={})
    assert before.processes is None
    assert "Not Supported" in before.absent["processes"]
    nvml.refuse["nvmlInit"] = 12
    assert "NVML" in survey(nvml=nvml, environ={}).absent["gpu"]
