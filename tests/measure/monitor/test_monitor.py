"""A watch whose time passes by hand: each wait is one step of a script, and nobody sleeps."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from inferlens.analysis.interference import all_spans, energy_per_item
from inferlens.measure.monitor import gpu, monitor
from inferlens.measure.monitor.cpu import Cpus, Value
from inferlens.measure.monitor.gpu import gpu_before, visible
from inferlens.measure.monitor.monitor import Monitor, SampledColumns
from inferlens.record.machine import NOT_USED, Before, MachineLog, peak_device_memory
from tests.measure.monitor.fake_nvml import LOST, NOT_SUPPORTED, Device, FakeNvml

PID = 4242


def watched(nvml: Any, root: Path, **words: Any) -> MachineLog:
    """The log of a :func:`watcher`."""
    return watcher(nvml, root, **words).log()


def watcher(
    nvml: Any,
    root: Path,
    *,
    ticks: int = 20,
    at: dict[int, Callable[[], Any]] | None = None,
    pids: Collection[int] = (PID,),
    first_namespace: bool = True,
    environ: dict[str, str] | None = None,
    **words: Any,
) -> Monitor:
    """A watch that has seen ``ticks`` waits of a tenth of a second; ``at`` has what happens in some of them.

    The machine in the folder ``root`` has two CPUs and the case's processes ``pids``.
    """
    now, steps = [100.0], itertools.count(1)

    def wait(seconds: float) -> bool:
        step = next(steps)
        now[0] += seconds
        (at or {}).get(step, lambda: None)()
        for device in nvml.devices if isinstance(nvml, FakeNvml) else ():
            device.millijoules += round(device.milliwatts * seconds)
        return step >= ticks

    cpus = Cpus(lambda: [PID], usable=(0, 1), root=root)
    cpus.tree.pids = lambda: list(pids)  # type: ignore[method-assign]
    with (
        mock.patch.object(gpu, "in_first_namespace", return_value=first_namespace),
        mock.patch.dict(os.environ, environ or {"HOME": "/"}, clear=True),
        Monitor(
            lambda: [PID], **{"gpu": True, **words}, nvml=nvml, cpus=cpus, clock=lambda: now[0], wait=wait
        ) as watch,
    ):
        watch._thread.join(10)
    return watch


def kinds(log: MachineLog) -> dict[str, tuple[float, float]]:
    return {span.kind: (span.begin, span.end) for span in all_spans(log, 100.0, 102.0)}


def test_everything_a_gpu_tells_becomes_a_column(tmp_path: Path) -> None:
    nvml = FakeNvml(Device(compute={PID: 700}, utilisation=90, reasons=2))
    log = watched(nvml, tmp_path)
    assert log.gpu.times[:3] == (100.0, 100.1, 100.2)
    assert len(log.gpu.times) == 21
    assert log.gpu.energy[:3] == (0.0, 10.0, 20.0)
    assert set(log.gpu.sm_clock) == {1_980_000_000}
    assert (log.gpu.temperature[0], log.gpu.reasons[0], log.gpu.utilisation[0]) == (40, 2, 0.9)
    assert (set(log.processes.case_memory), set(log.processes.foreign)) == ({700}, {0})
    assert (log.gpu_uuid, kinds(log), nvml.open) == ("GPU-11111111-aaaa", {}, 0)
    assert msgspec.json.decode(msgspec.json.encode(log), type=MachineLog) == log


def test_of_several_in_turns_each_has_the_largest_sample_of_its_own_memory(tmp_path: Path) -> None:
    device = Device(compute={PID: 700, 4243: 5, 77: 9})
    step = {7: lambda: device.compute.update({PID: 300, 4243: 800}), 12: lambda: device.compute.pop(4243)}
    watch = watcher(FakeNvml(device), tmp_path, at=step, pids=(PID, 4243))
    assert [watch.log_of(pid).peak_case_memory for pid in (PID, 4243, 77, None)] == [700, 800, None, None]
    assert watch.log().peak_case_memory == 1100


def test_what_is_not_supported_is_absent_with_its_reason_and_asked_once(tmp_path: Path) -> None:
    nvml = FakeNvml()
    nvml.refuse = {"nvmlDeviceGetTotalEnergyConsumption": NOT_SUPPORTED}
    log = watched(nvml, tmp_path)
    assert log.gpu.energy == ()
    assert "Not Supported" in log.absent["energy"]
    assert nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 1
    assert energy_per_item(log, 100.0, 102.0, 10).reason == log.absent["energy"]


def test_a_gpu_that_is_lost_leaves_holes(tmp_path: Path) -> None:
    nvml = FakeNvml()
    log = watched(nvml, tmp_path, ticks=30, at={5: lambda: nvml.refuse.update({"nvmlDeviceGetTemperature": LOST})})
    assert (log.gpu.temperature[4], set(log.gpu.temperature[5:])) == (40, {None})
    assert len(log.gpu.temperature) == len(log.gpu.times)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (
            {5: {"reasons": 0x40}, 8: {"reasons": 0x04}, 10: {"reasons": 0}},
            {"throttled": (100.4, 100.8), "power cap": (100.7, 101.0)},
        ),
        ({12: {"sm_clock": 1500}, 15: {"sm_clock": 1950}}, {"clock change": (101.1, 101.5)}),
        ({15: {"sm_clock": 345, "reasons": 1, "utilisation": 0}}, {}),
    ],
    ids=["throttled", "slower while busy", "idle"],
)
def test_what_becomes_of_the_clocks_is_found_where_it_was(steps: Any, found: Any, tmp_path: Path) -> None:
    device = Device(compute={PID: 1}, utilisation=99)
    at = {step: lambda fields=fields: vars(device).update(fields) for step, fields in steps.items()}
    assert kinds(watched(FakeNvml(device), tmp_path, at=at)) == found


def test_a_newcomer_on_the_gpu_is_found(tmp_path: Path) -> None:
    nvml = FakeNvml(Device(compute={PID: 1, 77: 5}))  # 77 was there and does nothing
    nvml.refuse["nvmlDeviceGetProcessUtilization"] = NOT_SUPPORTED
    log = watched(nvml, tmp_path, at={7: lambda: nvml.devices[0].graphics.update({78: 5})})
    assert log.processes.foreign == (1, 1, 2, 2, 2)
    assert kinds(log) == {"foreign process": (100.5, 102.0)}


def test_a_neighbour_that_wakes_up_is_found(tmp_path: Path) -> None:
    device, far = Device(compute={PID: 1, 77: 5}), 10**18
    steps = {7: lambda: device.activity.append((77, far, 50)), 11: lambda: device.activity.append((PID, far + 1, 90))}
    log = watched(FakeNvml(device), tmp_path, at=steps)
    assert log.processes.foreign_utilisation == (0.0, 0.0, 0.5, 0.0, 0.0)
    assert kinds(log) == {"foreign process": (100.5, 101.5)}


ABROAD: dict[str, Any] = {"first_namespace": False}  # as in a container


@pytest.mark.parametrize(
    ("compute", "words", "memory", "foreign", "absent"),
    [
        ({PID: 3, 4243: 4}, {"pids": (PID, 4243)}, {7}, {0}, ""),
        ({2**30: 600}, {}, set(), set(), ""),
        ({2_000_000: 600}, {**ABROAD, "before": Before(processes=(), memory_used=400)}, set(), set(), "container"),
        ({2_000_000: 600, 9: 5}, {**ABROAD, "before": Before(processes=(9,))}, set(), {1}, ""),
        ({PID: 600}, ABROAD, {600}, set(), "hidden"),
    ],
    ids=["its tree", "no process here", "others' numbers", "there before", "nobody seen"],
)
def test_who_is_on_the_gpu_is_said_as_far_as_it_is_known(
    compute: dict[int, int], words: dict[str, Any], memory: set[int], foreign: set[int], absent: str, tmp_path: Path
) -> None:
    log = watched(FakeNvml(Device(compute=compute, memory_used=1000)), tmp_path, **words)
    assert (set(log.processes.case_memory), set(log.processes.foreign)) == (memory, foreign)
    assert absent in log.absent.get("foreign", "")
    if absent:  # its own memory, or what is used of the whole device but not before
        assert peak_device_memory(log).bytes == 600


ALIKE, UNLIKE = ("One", "One"), ("One", "Other")


@pytest.mark.parametrize(
    ("names", "environ", "expected"),
    [
        (ALIKE, {}, "GPU-1"),
        (ALIKE, {"CUDA_VISIBLE_DEVICES": "1"}, "GPU-2"),
        (ALIKE, {"CUDA_VISIBLE_DEVICES": "gpu-2,0"}, "GPU-2"),
        *[(ALIKE, {"CUDA_VISIBLE_DEVICES": none}, "no GPU that is visible") for none in ("", "-1", "7", "GPU-9")],
        (ALIKE, {"CUDA_VISIBLE_DEVICES": "MIG-1"}, "slice"),
        (UNLIKE, {}, "CUDA_DEVICE_ORDER"),
        (UNLIKE, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "GPU-1"),
    ],
)
def test_the_gpu_is_the_one_that_cuda_calls_the_first(
    tmp_path: Path, names: tuple[str, str], environ: dict[str, str], expected: str
) -> None:
    nvml = FakeNvml(*(Device(f"GPU-{number}", name=name) for number, name in enumerate(names, 1)))
    log = watched(nvml, tmp_path, environ=environ)
    assert expected in (log.gpu_uuid or log.absent["gpu"])
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("names", "variable", "expected"),
    [(ALIKE, "1", ["GPU-2"]), (ALIKE, "MIG-1", ["GPU-1", "GPU-2"]), (UNLIKE, "1", ["GPU-1", "GPU-2"]),
     (UNLIKE, "gpu-2", ["GPU-2"])],
)  # fmt: skip
def test_all_gpus_are_listed_where_it_is_not_known_which_cuda_means(
    names: tuple[str, str], variable: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    nvml = FakeNvml(*(Device(f"GPU-{number}", name=name) for number, name in enumerate(names, 1)))
    assert [device.uuid for device in visible(nvml)] == expected


@pytest.mark.parametrize(("mig", "refused", "absent"), [(1, {}, "MIG"), (0, {"nvmlInit": 12}, "error 12"), (0, {}, "")])
def test_a_gpu_that_cannot_be_watched_is_an_absence(mig: int, refused: Any, absent: str, tmp_path: Path) -> None:
    nvml = FakeNvml(Device(mig=mig))
    nvml.refuse = refused
    log = watched(nvml, tmp_path)
    assert (log.gpu is None, nvml.open) == (bool(absent), 0)
    assert absent in log.absent.get("gpu", "")


def test_a_thread_that_hangs_does_not_hang_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "PATIENCE", 0.05)
    entered, released = threading.Event(), threading.Event()

    def hang(seconds: float) -> bool:
        entered.set()
        return released.wait(60)

    with Monitor(lambda: [PID], gpu=True, nvml=FakeNvml(), wait=hang) as watch:
        entered.wait(60)
    assert "hung" in watch.log().absent["watch"]
    released.set()
    watch._thread.join(10)
    assert not watch._thread.is_alive()


def test_without_a_gpu_there_is_less_to_wake_up_for(tmp_path: Path) -> None:
    nvml = FakeNvml()
    log = watched(nvml, tmp_path, ticks=4, gpu=False)
    assert (nvml.calls, log.absent["gpu"], log.cpus) == ({}, NOT_USED, 2)


def test_a_real_watch_ends_promptly_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    monkeypatch.setattr(monitor, "INTERVAL", 60.0)
    with Monitor(lambda: [os.getpid()]) as watch:
        pass
    assert threading.active_count() == before
    log = watch.log()
    assert ("watch" in log.absent, log.cpus) == (False, len(os.sched_getaffinity(0)))


def test_the_fake_has_no_function_that_nvml_lacks() -> None:
    real = pytest.importorskip("pynvml")
    for name in [*FakeNvml()._functions(), *(name for name in vars(FakeNvml) if name.startswith("NVML"))]:
        assert hasattr(real, name), name
    assert real.NVMLError(NOT_SUPPORTED).value == NOT_SUPPORTED


def test_the_gpu_before_a_case_and_what_is_not_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = FakeNvml(Device(compute={9: 1}, graphics={3: 2}, memory_used=77))
    before = gpu_before(nvml)
    assert (before.memory_used, before.processes, before.absent, nvml.open) == (77, (3, 9), {}, 0)
    nvml.refuse["nvmlDeviceGetComputeRunningProcesses"] = NOT_SUPPORTED
    before = gpu_before(nvml)
    assert (before.processes, "Not Supported" in before.absent["processes"]) == (None, True)
    nvml.refuse["nvmlInit"] = 12
    assert "NVML" in gpu_before(nvml=nvml).absent["gpu"]


def sampled(readings: dict[str, Callable[[float], Mapping[str, Value]]], times: list[float], **words: Any) -> Any:
    """The readings taken at these times, on a clock that stands in between."""
    clock = iter(times)
    now = [0.0]
    table = SampledColumns(readings, lambda: now[0], **words)
    for now[0] in clock:
        table.take()
    return table


def test_columns_are_as_long_as_the_times_whenever_they_begin_to_answer() -> None:
    late = {"always": lambda now: {"always": now}, "late": lambda now: {"late": now} if now >= 2 else {}}
    table = sampled(late, [0, 1, 2, 3])
    assert table.as_columns() == {"times": (0, 1, 2, 3), "always": (0, 1, 2, 3), "late": (None, None, 2, 3)}
    assert table.peaks == {"always": 3.0, "late": 3.0}


def test_the_oldest_rows_go_when_there_are_too_many_but_peaks_stay() -> None:
    table = sampled({"load": lambda now: {"load": 9.0 if now == 0 else 1.0}}, list(range(14)), most=10)
    columns = table.as_columns()
    assert columns["times"][-1] == 13.0
    assert len(columns["times"]) == len(columns["load"]) <= 10
    assert table.peaks == {"load": 9.0}


def test_a_reading_that_takes_long_is_asked_less_often() -> None:
    now = [0.0]

    def slow(_: float) -> Mapping[str, Value]:
        now[0] += 1 / 128  # at most 5 % of the time: once in 0.156 s
        return {"slow": 1}

    table = SampledColumns({"slow": slow, "quick": lambda _: {"quick": 2}}, lambda: now[0])
    for tick in range(9):
        now[0] = tick * 0.125
        table.take()
    columns = table.as_columns()
    assert (columns["slow"], columns["quick"]) == ((1, None) * 4 + (1,), (2,) * 9)
