"""A GPU made of attributes, behind the functions of nvidia-ml-py that are used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({3: "Not Supported", 6: "Not Found", 15: "GPU is lost"}.get(value, f"error {value}"))
        self.value = value


NOT_SUPPORTED, NOT_FOUND, LOST = 3, 6, 15


@dataclass
class Device:
    uuid: str = "GPU-11111111-aaaa"
    name: str = "NVIDIA Fake"
    millijoules: int = 5_000_000
    milliwatts: int = 100_000
    sm_clock: int = 1980  # MHz
    temperature: int = 40
    reasons: int = 0
    utilisation: int = 0
    memory_used: int = 1000
    mig: int | None = None
    compute: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    activity: list[tuple[int, int, int]] = field(default_factory=list)  # pid, stamp in microseconds, percent


class FakeNvml:
    NVML_SUCCESS, NVML_ERROR_NOT_FOUND = 0, NOT_FOUND
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_TEMPERATURE_GPU = 0
    NVMLError = NVMLError

    def __init__(self, *devices: Device) -> None:
        self.devices = list(devices) or [Device()]
        self.open = 0
        self.refuse: dict[str, int] = {}  # function names and the errors they raise
        self.calls: dict[str, int] = {}
        for name, read in self._functions().items():
            setattr(self, name, self._guarded(name, read))

    def _guarded(self, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            if name in self.refuse:
                raise NVMLError(self.refuse[name])
            return read(*arguments)

        return function

    def _functions(self) -> dict[str, Callable[..., Any]]:
        return {
            "nvmlInit": lambda: self._open(1), "nvmlShutdown": lambda: self._open(-1),
            "nvmlDeviceGetCount": lambda: len(self.devices),
            "nvmlDeviceGetHandleByIndex": lambda index: self.devices[index],
            "nvmlDeviceGetUUID": lambda device: device.uuid, "nvmlDeviceGetName": lambda device: device.name,
            "nvmlDeviceGetMigMode": self._mig, "nvmlDeviceGetTotalEnergyConsumption": lambda device: device.millijoules,
            "nvmlDeviceGetClockInfo": lambda device, _: device.sm_clock,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda device: device.reasons,
            "nvmlDeviceGetUtilizationRates": lambda device: SimpleNamespace(gpu=device.utilisation),
            "nvmlDeviceGetTemperature": lambda device, _: device.temperature,
            "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(used=device.memory_used),
            "nvmlDeviceGetComputeRunningProcesses": lambda device: _processes(device.compute),
            "nvmlDeviceGetGraphicsRunningProcesses": lambda device: _processes(device.graphics),
            "nvmlDeviceGetProcessUtilization": self._activity,
        }  # fmt: skip

    def _open(self, step: int) -> None:
        self.open += step

    def _mig(self, device: Device) -> tuple[int, int]:
        if device.mig is None:
            raise NVMLError(NOT_SUPPORTED)
        return device.mig, device.mig

    def _activity(self, device: Device, since: int) -> list[Any]:
        found = [SimpleNamespace(pid=p, timeStamp=t, smUtil=u) for p, t, u in device.activity if t > since]
        if not found:
            raise NVMLError(NOT_FOUND)
        return found


def _processes(held: dict[int, int | None]) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in held.items()]
