"""The GPU through NVML: which one, the readings that are taken of it, who else is on it, and how it was before a case.

No library, no driver, or a GPU that cannot be told from the others is an answer, with its reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil

from inferlens.backends.availability import open_nvml
from inferlens.measure.monitor.cpu import Reading, Untold, Value, reason_of
from inferlens.record.machine import Before

FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h
UNNAMED = "NVML did not name the case's process by its number here, as in a container"
HIDDEN = "in a container, processes of other containers may be hidden; none was seen"
SLICED = "NVML does not report this for a slice of a GPU (MIG)"


class WatchedGpu:
    """The GPU that CUDA calls the first. ``Untold`` is raised if it cannot be told which that is."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.handle = handle = first_visible(nvml)
        self.uuid = str(nvml.nvmlDeviceGetUUID(handle))
        self._first_energy: int | None = None

    def readings(self) -> dict[str, Reading]:
        """What is read in every tick, by name; the energy first, for its time matters most."""
        nvml, handle = self.nvml, self.handle
        # Why the clocks are what they are; the question was renamed with driver 535.
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or (
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        )
        return {
            "energy": lambda _: {"energy": self._joules()},
            "clocks": lambda _: {"sm_clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1_000_000},
            "reasons": lambda _: {"reasons": reasons(handle)},
            "utilisation": lambda _: {"utilisation": nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100},
            "temperature": lambda _: {"temperature": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)},
            "memory_used": lambda _: {"memory_used": self.memory_used()},
        }

    def memory_used(self) -> int:
        """Bytes in use on the device, by whomever."""
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used)

    def processes(self) -> dict[int, int | None]:
        """Bytes that each process on the device holds, by process number; ``None`` where NVML does not say."""
        listed = list(self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle))
        with suppress(self.nvml.NVMLError):  # GPUs without graphics say so; that is no reason to know nothing
            listed += self.nvml.nvmlDeviceGetGraphicsRunningProcesses(self.handle)
        # One that computes and draws is in both lists, with the same memory.
        return {process.pid: process.usedGpuMemory for process in listed}

    def utilisation_since(self, stamp: int) -> tuple[dict[int, float], int]:
        """Mean share of SM time of each process since NVML's own ``stamp`` in microseconds, and the newest stamp."""
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

    def _joules(self) -> float:
        now = self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)
        self._first_energy = now if self._first_energy is None else self._first_energy
        return float(now - self._first_energy) / 1000


class Neighbours:
    """Says which processes on a GPU are the case's, and which are surely not; ``before`` were there before the case.

    NVML names processes by numbers of the system's first PID namespace, whoever asks (NVIDIA/nvidia-docker issue 1483).
    In a container these are not the numbers of its own ``/proc``, and processes of other containers may be hidden. So:

    * once NVML has named one of the case's own processes, its numbers are ours, and every other one is foreign;
    * none but the case's is said only in the first namespace, where nobody is hidden;
    * what was on the GPU before the case's process existed is foreign, whatever its number means;
    * otherwise nothing is said.
    """

    def __init__(self, gpu: WatchedGpu, tree: Callable[[], Collection[int]], before: Collection[int]) -> None:
        self._gpu, self._tree, self._first = gpu, tree, in_first_namespace()
        self._before = frozenset(before)
        self._case: set[int] = set()
        self._seen = False
        self.peaks: dict[int, int] = {}  # bytes, of each of the case's processes
        self._stamp = int(time.time() * 1e6)  # NVML stamps utilisation by the system's clock

    @property
    def absent(self) -> dict[str, str]:
        """What cannot be said, and why."""
        if not self._seen:
            return {"case_memory": UNNAMED, "foreign": UNNAMED}
        return {} if self._first else {"foreign": HIDDEN}

    def readings(self) -> dict[str, Reading]:
        """What is read, by name."""
        return {"processes": self.held, "process utilisation": self.active}

    def held(self, _: float) -> Mapping[str, Value]:
        """Memory of the case's processes, and the number of others."""
        listed = self._gpu.processes()
        mine = self._mine(listed)
        self._seen = self._seen or bool(mine)
        others = len(self._foreign(listed))
        memory = [listed[pid] for pid in mine]
        self.peaks |= {pid: max(listed[pid] or 0, self.peaks.get(pid, 0)) for pid in mine}
        known = self._seen and None not in memory
        return {
            "case_memory": sum(item or 0 for item in memory) if known else None,
            "foreign": others if others or (self._first and self._seen) else None,
        }

    def active(self, _: float) -> Mapping[str, Value]:
        """Share of the multiprocessors' time that others used since the last time."""
        shares, self._stamp = self._gpu.utilisation_since(self._stamp)
        self._mine(shares)
        foreign = self._foreign(shares)
        if not foreign and not (self._first and self._seen):
            return {"foreign_utilisation": None}
        return {"foreign_utilisation": round(min(1.0, sum(shares[pid] for pid in foreign)), 3)}

    def _mine(self, listed: Collection[int]) -> set[int]:
        """Those of the case, also those that have ended since and that NVML still lists."""
        self._case |= set(self._tree())
        self._case -= self._before
        return self._case & set(listed)

    def _foreign(self, listed: Collection[int]) -> set[int]:
        """Those that are surely not the case's."""
        others = set(listed) - self._case
        if self._seen or (self._first and all(map(psutil.pid_exists, others))):
            return others
        return others & self._before


def in_first_namespace() -> bool:
    """Whether process numbers here are the system's own."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE
    return False


def gpu_before(nvml: Any = None) -> Before:
    """Look at the GPU that CUDA calls the first, while none of our cases runs. Never fails."""
    absent: dict[str, str] = {}

    def told(name: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:  # whatever the driver comes up with is no error of the case
            absent[name] = reason_of(error)
            return None

    try:
        with open_nvml(nvml) as opened:
            gpu = WatchedGpu(opened)
            memory, processes = told("memory_used", gpu.memory_used), told("processes", gpu.processes)
    except Exception as error:
        return Before(absent={"gpu": reason_of(error)})
    return Before(memory_used=memory, processes=None if processes is None else tuple(sorted(processes)), absent=absent)


def visible(nvml: Any) -> list[Any]:
    """NVML's handles of the GPUs of ``CUDA_VISIBLE_DEVICES``, in its order.

    Of all, by PCI bus, where it is not set, or it cannot be told which it means: see :func:`first_visible`.
    """
    handles = _handles(nvml)
    words = os.environ.get("CUDA_VISIBLE_DEVICES")
    if words is None or words.upper().startswith("MIG-") or (words[:1].isdigit() and _differ(nvml, handles)):
        return handles
    uuids = [str(nvml.nvmlDeviceGetUUID(handle)).lower() for handle in handles]
    found: list[Any] = []
    for word in (part.strip() for part in words.lower().split(",")):
        if word.isdigit():
            named = handles[int(word) :][:1]
        else:  # CUDA takes the beginning of a UUID, NVML does not
            named = [item for item, uuid in zip(handles, uuids, strict=True) if word and uuid.startswith(word)]
        if not named:  # what comes after a name that there is not is not visible to CUDA either
            break
        found += named[:1]
    return found


def _handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _differ(nvml: Any, handles: Sequence[Any]) -> bool:
    """Whether GPUs differ and CUDA counts them in an order of its own."""
    kinds = {str(nvml.nvmlDeviceGetName(handle)) for handle in handles}
    return len(kinds) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def first_visible(nvml: Any) -> Any:
    """NVML's handle of the GPU that CUDA calls device 0.

    CUDA counts the GPUs of ``CUDA_VISIBLE_DEVICES``, by default the fastest first; NVML counts by PCI bus. The two
    agree where all GPUs are of one kind or ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID`` (CUDA C++ Programming Guide,
    environment variables). Raises Untold if there is none, or it cannot be told which it is.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.upper().startswith("MIG-"):
        raise Untold(SLICED)
    found = visible(nvml)
    if first.isdigit() and _differ(nvml, _handles(nvml)):
        raise Untold("the GPUs differ, so that CUDA's order is not NVML's: set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    if not found:
        raise Untold("NVML knows no GPU that is visible to CUDA")
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(found[0])[0]:
            raise Untold(SLICED)
    return found[0]
