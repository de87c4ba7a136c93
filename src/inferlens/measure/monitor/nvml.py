"""The GPU through NVML: which one, and the readings that are taken of it. NVML is asked and never told anything.

nvidia-ml-py is imported when a GPU is opened. No library, no driver, or a GPU that cannot be told from the others is an
answer, :class:`~inferlens.measure.monitor.table.Untold`, with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from inferlens.measure.monitor.table import Reading, Untold

# NVML's documentation of nvmlDeviceGetPowerUsage: from Ampere on (except GA100) an average over one second, before that
# instantaneous. The field "instant" is newer and tells the same on all; its own window is not documented: Yang et al.,
# "Part-time Power Measurements: nvidia-smi's Lack of Attention" (arXiv 2312.02741), found updates every 100 ms.
INSTANT = "NVML_FI_DEV_POWER_INSTANT"
INSTANT_WINDOW = 0.1
AVERAGE_WINDOW = 1.0


class Gpu:
    """One GPU, open for reading; a context manager that lets go of NVML at its end.

    ``nvmlInit`` counts its callers, so each of them shuts down what it opened and no one else's.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        self.power_basis, self.power_window, self._power = _power(nvml, handle)
        self._first_energy: int | None = None

    @staticmethod
    def open(nvml: Any = None, environ: Mapping[str, str] = os.environ) -> Gpu:
        """The GPU that CUDA calls the first in ``environ``.

        Raises:
            Untold: if there is none, or it cannot be told which it is.
        """
        if nvml is None:
            try:
                import pynvml

                nvml = pynvml
            except ImportError as error:
                raise Untold("nvidia-ml-py is not installed") from error
        try:
            nvml.nvmlInit()
        except Exception as error:
            raise Untold(f"NVML: {error}") from error
        try:
            return Gpu(nvml, first_visible(nvml, environ))
        except BaseException as error:
            with suppress(Exception):
                nvml.nvmlShutdown()
            if isinstance(error, (Untold, KeyboardInterrupt, SystemExit)):
                raise
            raise Untold(f"NVML: {error}") from error

    def __enter__(self) -> Gpu:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Exception):
            self.nvml.nvmlShutdown()

    def readings(self) -> dict[str, Reading]:
        """What is read in every tick, by name; the energy first, for its time matters most."""
        nvml, handle = self.nvml, self.handle
        return {
            "energy": lambda _: {"energy": self._joules(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))},
            "power": lambda _: {"power": self.power()},
            "clocks": lambda _: {
                "sm_clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1_000_000,
                "memory_clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1_000_000,
            },
            "reasons": lambda _: {"reasons": _reasons(nvml)(handle)},
            "utilisation": lambda _: {"utilisation": nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100},
            "temperature": lambda _: {
                "temperature": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            },
            "memory_used": lambda _: {"memory_used": self.memory_used()},
        }

    def power(self) -> float:
        """Watts of the whole board; :attr:`power_basis` says of what time."""
        return self._power()

    def memory_used(self) -> int:
        """Bytes in use on the device, by whomever."""
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used)

    def processes(self) -> dict[int, int | None]:
        """Bytes that each process on the device holds, by process number; ``None`` where NVML does not tell."""
        found: dict[int, int | None] = {}
        listed = [
            *self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle),
            *self._graphics(),
        ]
        for process in listed:  # one that computes and draws is in both lists, with the same memory
            held = process.usedGpuMemory
            known = found.get(process.pid)
            found[process.pid] = known if held is None else max(int(held), known or 0)
        return found

    def utilisation_since(self, stamp: int) -> tuple[dict[int, float], int]:
        """Share of SM time of each process since NVML's own ``stamp`` in microseconds, and the newest stamp.

        The mean of NVML's samples by process; processes without samples are not in it.
        """
        try:
            samples = self.nvml.nvmlDeviceGetProcessUtilization(self.handle, stamp)
        except self.nvml.NVMLError as error:
            # No sample since then, or (an oddity of nvidia-ml-py) a list of none.
            if getattr(error, "value", None) in (self.nvml.NVML_ERROR_NOT_FOUND, self.nvml.NVML_SUCCESS):
                return {}, stamp
            raise
        shares: dict[int, list[float]] = {}
        for sample in samples:
            if sample.timeStamp > stamp:  # what the driver hands out twice counts once
                shares.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
        newest = max([stamp, *(int(sample.timeStamp) for sample in samples)])
        return {pid: sum(values) / len(values) for pid, values in shares.items()}, newest

    def _graphics(self) -> list[Any]:
        with suppress(self.nvml.NVMLError):  # GPUs without graphics say so; that is no reason to know nothing
            return list(self.nvml.nvmlDeviceGetGraphicsRunningProcesses(self.handle))
        return []

    def _joules(self, millijoules: int) -> float:
        if self._first_energy is None:
            self._first_energy = millijoules
        return (millijoules - self._first_energy) / 1000


def first_visible(nvml: Any, environ: Mapping[str, str]) -> Any:
    """NVML's handle of the GPU that CUDA calls device 0.

    CUDA counts the GPUs of ``CUDA_VISIBLE_DEVICES``, by default the fastest first; NVML counts by PCI bus. The two
    agree where all GPUs are of one kind or ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID`` (CUDA C++ Programming Guide,
    environment variables).

    Raises:
        Untold: if there is none, or it cannot be told which it is.
    """
    count = nvml.nvmlDeviceGetCount()
    first = environ.get("CUDA_VISIBLE_DEVICES", "0" if count else "").split(",")[0].strip()
    if first.upper().startswith("MIG-"):
        raise Untold("a slice of a GPU (MIG) was used, of which NVML does not tell these things")
    if first.upper().startswith("GPU-"):
        handle = _by_uuid(nvml, first, count)
    elif first.isdigit() and int(first) < count:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        kinds = {_text(nvml.nvmlDeviceGetName(handle)) for handle in handles}
        if len(kinds) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            raise Untold(
                "the GPUs differ, so that CUDA's order is not NVML's; CUDA_DEVICE_ORDER=PCI_BUS_ID makes it so"
            )
        handle = handles[int(first)]
    else:
        raise Untold("no GPU is visible to CUDA")
    if _is_sliced(nvml, handle):
        raise Untold("the GPU is cut into slices (MIG), of which NVML does not tell these things")
    return handle


def _by_uuid(nvml: Any, start: str, count: int) -> Any:
    """The GPU whose UUID begins with ``start``: CUDA takes abbreviations, NVML does not."""
    for index in range(count):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if _text(nvml.nvmlDeviceGetUUID(handle)).lower().startswith(start.lower()):
            return handle
    raise Untold(f"CUDA_VISIBLE_DEVICES names {start}, which NVML does not know")


def _is_sliced(nvml: Any, handle: Any) -> bool:
    with suppress(nvml.NVMLError):
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
        return bool(current)
    return False


def _power(nvml: Any, handle: Any) -> tuple[str, float, Callable[[], float]]:
    """What power is read, over how many seconds it is averaged, and the function that reads it, in watts."""

    def instant() -> float:
        field = nvml.nvmlDeviceGetFieldValues(handle, [getattr(nvml, INSTANT)])[0]
        if field.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(field.nvmlReturn)
        return float(field.value.uiVal) / 1000

    try:
        if instant() > 0:
            return INSTANT, INSTANT_WINDOW, instant
    except Exception:  # an older driver or library, or a GPU that has no such field
        pass
    basis = "nvmlDeviceGetPowerUsage, which averages over up to a second"
    return basis, AVERAGE_WINDOW, lambda: float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1000


def _reasons(nvml: Any) -> Any:
    """NVML's question for why the clocks are what they are, which was renamed with driver 535."""
    return getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or (
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
