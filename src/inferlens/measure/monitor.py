"""The thread that watches the machine while a case runs in another process, or several in turns.

It has the lowest priority the system knows and wakes up every :data:`INTERVAL`. It reads only NVML
and files of ``/proc`` and ``/sys``. ``python -m benchmarks watch_cost`` measures its cost for the case.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace

from inferlens.analysis.interference import FOREIGN_ACTIVE, OTHERS_BUSY
from inferlens.backends.availability import open_nvml
from inferlens.limits import control_group, cpu_quota
from inferlens.record.machine import NOT_USED, Before, CpuSamples, GpuProcesses, GpuSamples, MachineLog
from inferlens.units import duration, percent

INTERVAL = 0.1  # seconds; about as often as NVML has a new power reading and a new count of energy
CPU_EVERY = 5  # ticks; times in /proc come in steps of 10 ms, which are 2 % of half a second
PROCESSES_EVERY = 5  # ticks; listing processes is NVML's slowest query
PATIENCE = 2.0  # seconds to wait for the thread at the end; a driver that hangs must not hang the run
LOWEST_PRIORITY = 19
MOST_SHARE = 0.05  # of a processor that a reading may take
MOST_ROWS = 20_000  # half an hour at ten rows a second; phases before the steady state may take hours


class Monitor:
    """Watches the machine while its context lasts; never raises."""

    def __init__(
        self,
        started: Callable[[], Sequence[int]],  # the processes, as far as they have begun
        *,
        gpu: bool = False,  # whether to watch the GPU that CUDA calls the first
        before: Before | None = None,  # that GPU before there were any
        cpus: Cpus | None = None,  # stands in for this machine's CPUs
        clock: Callable[[], float] = time.perf_counter,  # of the samples that the log is held against
        wait: Callable[[float], bool] | None = None,  # says whether to stop; None: at the end of the context
    ) -> None:
        self._cpus = cpus or Cpus(started)
        self._wants_gpu, self._before, self._clock = gpu, before or Before(), clock
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._absent: dict[str, str] = {} if gpu else {"gpu": NOT_USED}
        self._gpu: WatchedGpu | None = None
        self._neighbours: Neighbours | None = None
        self._tables: dict[str, SampledColumns] = {}
        self._thread = threading.Thread(target=self._run, name="inferlens-watch", daemon=True)

    def start(self) -> None:
        """Start watching, unless this monitor has already started."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Stop watching, if this monitor has started."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._absent["watch"] = f"hung: it did not end within {PATIENCE:g} s"

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log(self) -> MachineLog:
        """The log so far, which is complete after the context."""
        tables = dict(self._tables)
        absent = self._absent | (self._neighbours.absent if self._neighbours else {})
        for table in tables.values():
            absent |= table.absent
        kinds: dict[str, Any] = {"gpu": GpuSamples, "processes": GpuProcesses, "cpu": CpuSamples}
        samples = {name: kinds[name](**table.as_columns()) for name, table in tables.items() if table.taken}
        peaks = {name: peak for table in tables.values() for name, peak in table.peaks.items()}
        return MachineLog(
            interval=INTERVAL,
            **samples,
            gpu_uuid=self._gpu.uuid if self._gpu else "",
            cpus=len(self._cpus.usable),
            before=self._before,
            peak_memory_used=peaks.get("memory_used"),
            peak_case_memory=peaks.get("case_memory"),
            absent=absent,
        )

    def log_of(self, process: int | None) -> MachineLog:
        """Return the log of one of several processes, with its own GPU memory."""
        peaks = self._neighbours.peaks if self._neighbours else {}
        return replace(self.log(), peak_case_memory=peaks.get(process or 0))

    def _run(self) -> None:
        if sys.platform == "linux":  # there, priorities are those of threads: setpriority(2), notes
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        try:
            with ExitStack() as stack:
                tables = self._opened(stack)
                tick, step = 0, min(ticks for _, ticks in tables)  # without a GPU there is less to wake up for
                while True:
                    for table, ticks in tables:
                        if tick % ticks == 0:
                            table.take()
                    tick += step
                    if self._wait(step * INTERVAL):
                        break
                for table, _ in tables:  # a last row, because values hold until the next row
                    table.take()
        except BaseException as error:  # a monitor that fails must not stop the run
            self._absent["watch"] = f"{type(error).__name__}: {error}"

    def _opened(self, stack: ExitStack) -> list[tuple[SampledColumns, int]]:
        """Return the columns to fill and their intervals in ticks. The ``stack`` closes NVML."""
        try:
            gpu = self._gpu = WatchedGpu(stack.enter_context(open_nvml())) if self._wants_gpu else None
        except Exception as error:
            gpu, self._absent["gpu"] = None, reason_of(error)
        tables = []
        if gpu:
            neighbours = self._neighbours = Neighbours(gpu, self._cpus.tree.pids, self._before.processes or ())
            tables += [("gpu", gpu.readings(), 1), ("processes", neighbours.readings(), PROCESSES_EVERY)]
        tables.append(("cpu", self._cpus.readings(), CPU_EVERY))
        self._tables = {name: SampledColumns(readings, self._clock) for name, readings, _ in tables}
        return [(self._tables[name], ticks) for name, _, ticks in tables]


class SampledColumns:
    """A table of readings: a row per tick, a column per reading, and a column of times.

    A reading that fails before its first value is left out, with the reason. One that fails later leaves a hole. A slow
    reading is taken less often. The oldest rows are dropped if there are more than ``most``.
    """

    def __init__(self, readings: Mapping[str, Reading], clock: Callable[[], float], most: int = MOST_ROWS) -> None:
        self._readings = dict(readings)
        self._clock = clock
        self._rows: deque[tuple[float, dict[str, Value]]] = deque(maxlen=most)
        self._rests: dict[str, float] = {}
        self.taken = 0
        self.absent: dict[str, str] = {}
        self.peaks: dict[str, Any] = {}

    def take(self) -> None:
        """Add a row, stamped with the time before the first reading."""
        now = self._clock()
        row: dict[str, Value] = {}
        for name in list(self._readings):
            if now >= self._rests.get(name, now):
                row.update(self._ask(name, now))
        self._rows.append((round(now, 4), row))
        self.taken += 1
        for name, value in row.items():
            if value is not None:
                self.peaks[name] = max(value, self.peaks.get(name, value))

    def as_columns(self) -> dict[str, Any]:
        """Return the columns and their times as tuples, without empty columns."""
        rows = list(self._rows)
        names = dict.fromkeys(name for _, row in rows for name, value in row.items() if value is not None)
        times = tuple(time for time, _ in rows)
        return {"times": times, **{name: tuple(row.get(name) for _, row in rows) for name in names}}

    def _ask(self, name: str, now: float) -> Mapping[str, Value]:
        begin = self._clock()
        try:
            values = self._readings[name](now)
        except Exception as error:  # an error of a driver or a file system is no error of the case
            if name not in self._rests:
                self.absent[name] = reason_of(error)
                del self._readings[name]
            return {}
        self._rests[name] = begin + (self._clock() - begin) / MOST_SHARE
        return values


# CPU readings come from ``/proc`` and ``/sys`` alone. psutil reads every process of the machine to find the children of
# one, which costs too much during a measurement. Times there are ticks of 10 ms, so loads need half a second or more.

Value = float | int | None
Reading = Callable[[float], Mapping[str, Value]]  # values by column name, given the time
LOADS = ("busy", "case", "others", "steal")
LEAST_SECONDS = 0.2  # shorter intervals have no load: one tick of 10 ms would be more than 5 % of a processor
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS")
TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds; the unit of times in /proc


class NotProvided(Exception):
    """A value that the machine does not provide. The text says why."""


def reason_of(error: Exception) -> str:
    """Return the reason for a missing value, in words for a record."""
    return str(error) if isinstance(error, (NotProvided, OSError)) else f"{type(error).__name__}: {error}"


class Cpus:
    """The CPUs a process may use."""

    def __init__(
        self,
        started: Callable[[], Sequence[int]],  # see Tree
        usable: Iterable[int] | None = None,  # numbers of the CPUs; None asks the system
        root: Path = Path("/"),  # where /proc and /sys are
    ) -> None:
        self._proc, self._sys = root / "proc", root / "sys"
        self._cpus = self._sys / "devices/system/cpu"
        self.usable = frozenset(usable_cpus() if usable is None else usable)
        self.tree = Tree(started, self._proc)
        self._group = control_group("cpu.stat", root=root)
        self._last: tuple[float, tuple[float, float], float | None] | None = None
        self._joules = Packages(self._sys / "class/powercap")

    def readings(self) -> dict[str, Reading]:
        return {
            "cpu_load": self.load,
            "cpu_energy": lambda _: {"energy": self._joules.read()},
            "throttle_events": lambda _: {"throttle_events": self.throttle_events()},
            "quota_wait": lambda _: {"quota_wait": _throttled(self._group / "cpu.stat")},
        }

    def load(self, now: float) -> Mapping[str, Value]:
        """Return mean loads since the last call, in processors; ``None`` the first time.

        Once the case's process has ended, the load of others cannot be separated from its load.
        """
        if self._last and now - self._last[0] < LEAST_SECONDS:
            return dict.fromkeys(LOADS)
        times = cpu_times((self._proc / "stat").read_text("utf-8"), self.usable)
        case = self.tree.seconds()
        last, self._last = self._last, (now, times, case)
        if last is None:
            return dict.fromkeys(LOADS)
        seconds = now - last[0]
        busy, steal = ((after - before) / seconds for after, before in zip(times, last[1], strict=True))
        loads: dict[str, float | None] = {**dict.fromkeys(LOADS), "busy": busy, "steal": max(0.0, steal)}
        if case is not None and last[2] is not None and case >= last[2]:  # less: one of several has ended
            own_load = (case - last[2]) / seconds
            loads |= {"case": own_load, "others": max(0.0, busy - own_load)}
        return {name: None if load is None else round(load, 3) for name, load in loads.items()}

    def throttle_events(self) -> int:
        """Return how often cores and packages were throttled for heat, summed over the CPUs."""
        files = [
            self._cpus / f"cpu{cpu}/thermal_throttle/{kind}_throttle_count"
            for kind in ("core", "package")
            for cpu in self.usable
        ]
        counts = [int(text) for text in map(text_of, files) if text.isdigit()]
        if not counts:
            raise NotProvided("the system does not count thermal throttling (thermal_throttle in /sys)")
        return sum(counts)


class Tree:
    """The processes that were ``started`` for the cases that are measured, and all processes that these started.

    From proc(5). Processes that outlive their parent are left out.
    """

    def __init__(self, started: Callable[[], Sequence[int]], proc: Path = Path("/proc")) -> None:
        self._started, self._proc = started, proc

    def pids(self) -> list[int]:
        """Return the numbers of all processes that are alive, without the children of those that have ended."""
        numbers: list[int] = []
        waiting = list(self._started())
        while waiting:
            pid = waiting.pop()
            if pid not in numbers and (self._proc / str(pid)).exists():
                numbers.append(pid)
                # Children of all threads. The file is there with CONFIG_PROC_CHILDREN, which distributions set.
                for file in (self._proc / str(pid) / "task").glob("*/children"):
                    waiting += map(int, text_of(file).split())
        return numbers

    def seconds(self) -> float | None:
        """Return the CPU seconds of all of them and of their reaped children; ``None`` if none is alive.

        User and system times are fields 14 to 17 of ``stat``.
        """
        # A process's name may hold anything, also spaces and brackets.
        fields = {pid: text_of(self._proc / str(pid) / "stat").rpartition(")")[2].split() for pid in self.pids()}
        if not any(fields.values()):
            return None
        return sum(int(ticks) for field in fields.values() for ticks in field[11:15]) * TICK


class Packages:
    """Energy of all CPU packages, from RAPL's counters, which begin again at ``max_energy_range_uj``.

    The kernel's documentation of powercap; the counters are readable by root alone since CVE-2020-8694.
    """

    def __init__(self, powercap: Path) -> None:
        self._zones = sorted(zone for zone in powercap.glob("intel-rapl:*") if zone.name.count(":") == 1)
        self._last: dict[Path, int] = {}
        self._joules = 0.0

    def read(self) -> float:
        """Return the joules since the first reading."""
        if not self._zones:
            raise NotProvided("the system has no RAPL counters (/sys/class/powercap/intel-rapl:*)")
        for zone in self._zones:
            now = int((zone / "energy_uj").read_text("utf-8"))
            used = now - self._last.get(zone, now)
            if used < 0:
                used += int((zone / "max_energy_range_uj").read_text("utf-8"))
            self._last[zone] = now
            self._joules += used / 1e6
        return round(self._joules, 6)


def cpu_times(stat: str, cpus: Iterable[int]) -> tuple[float, float]:
    """Return the busy and the stolen seconds of ``cpus`` from the text of ``/proc/stat``.

    Busy is user, nice, system, irq and softirq (proc_stat(5)); time of guests is part of user already.
    """
    wanted = {f"cpu{cpu}" for cpu in cpus}
    busy = steal = 0
    for line in stat.splitlines():
        name, *ticks = line.split()
        if name in wanted:
            user, nice, system, _, _, irq, softirq, *rest = map(int, ticks)
            busy += user + nice + system + irq + softirq
            steal += rest[0] if rest else 0
        elif not name.startswith("cpu"):
            break  # the long lines of interrupts come after those of the CPUs
    return busy * TICK, steal * TICK


def usable_cpus() -> Collection[int]:
    """Return the logical processors that this process may use. Containers and ``taskset`` limit them."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that the usable CPUs belong to: two of them may share one."""
    siblings = root / "sys/devices/system/cpu"
    return len({text_of(siblings / f"cpu{cpu}/topology/thread_siblings_list") or cpu for cpu in usable_cpus()})


def default_threads(root: Path = Path("/")) -> tuple[int, str]:
    """Return the default number of CPU threads of a case, and the cause of its limit; empty without a limit.

    It is the smallest number that the environment sets for any library, or else one per usable core, as far as
    the CPU quota allows.
    """
    cores, quota = usable_cores(root), cpu_quota(root)
    texts = {name: os.environ.get(name, "").partition(",")[0].strip() for name in THREAD_VARIABLES}
    numbers = {name: int(text) for name, text in texts.items() if text.isdecimal() and int(text) > 0}
    if numbers:
        name = min(numbers, key=lambda name: numbers[name])
        return numbers[name], f"{name}={numbers[name]} is set" * (numbers[name] != cores)
    if quota < cores:
        return max(1, int(quota)), f"The CPU quota is {quota:.3g} CPUs"
    return cores, ""


def _throttled(stat: Path) -> float:
    """Return the seconds that a control group had to wait for its quota: version 1 counts nanoseconds."""
    match = re.search(r"^throttled_(usec|time) (\d+)$", stat.read_text("utf-8"), re.MULTILINE)
    if not match:
        raise NotProvided(f"{stat} does not report it")
    return int(match[2]) / (1e6 if match[1] == "usec" else 1e9)


def text_of(path: Path) -> str:
    """Return the text of a small file; empty if there is none."""
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


# GPU readings come from NVML. A missing library or driver, or an ambiguous GPU, is an answer with its reason.

FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h
UNNAMED = "NVML did not name the case's process by its number here, as in a container"
HIDDEN = "in a container, processes of other containers may be hidden; none was seen"
SLICED = "NVML does not report this for a slice of a GPU (MIG)"


class WatchedGpu:
    """The GPU that CUDA calls the first. Raises ``NotProvided`` if it cannot be identified."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.handle = handle = first_visible(nvml)
        self.uuid = str(nvml.nvmlDeviceGetUUID(handle))
        self._first_energy: int | None = None

    def readings(self) -> dict[str, Reading]:
        """Return the readings of every tick by name; the energy first, because its time matters most."""
        nvml, handle = self.nvml, self.handle
        # The reasons of the clocks. The function was renamed with driver 535.
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
        """Return the bytes in use on the device, by any process."""
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used)

    def processes(self) -> dict[int, int | None]:
        """Return the device memory of processes in bytes, by process number; ``None`` if NVML does not say."""
        listed = list(self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle))
        with suppress(self.nvml.NVMLError):  # GPUs without graphics raise here; the other list is still valid
            listed += self.nvml.nvmlDeviceGetGraphicsRunningProcesses(self.handle)
        # One that computes and draws is in both lists, with the same memory.
        return {process.pid: process.usedGpuMemory for process in listed}

    def utilisation_since(self, stamp: int) -> tuple[dict[int, float], int]:
        """Return the processes' mean shares of SM time since NVML's ``stamp`` in microseconds, and the newest stamp."""
        try:
            samples = self.nvml.nvmlDeviceGetProcessUtilization(self.handle, stamp)
        except self.nvml.NVMLError as error:
            # No sample since then, or (an oddity of nvidia-ml-py) a list of none.
            if getattr(error, "value", None) in (self.nvml.NVML_ERROR_NOT_FOUND, self.nvml.NVML_SUCCESS):
                return {}, stamp
            raise
        shares: dict[int, list[float]] = {}
        for sample in samples:
            if sample.timeStamp > stamp:  # the driver may return a sample twice
                shares.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
        newest = max([stamp, *(int(sample.timeStamp) for sample in samples)])
        return {pid: sum(values) / len(values) for pid, values in shares.items()}, newest

    def _joules(self) -> float:
        now = self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)
        self._first_energy = now if self._first_energy is None else self._first_energy
        return float(now - self._first_energy) / 1000


class Neighbours:
    """The processes on a GPU, divided into the case's own and foreign ones; ``before`` were there before the case.

    NVML always names processes by numbers of the system's first PID namespace (NVIDIA/nvidia-docker issue 1483).
    In a container these are not the numbers of its own ``/proc``, and processes of other containers may be hidden. So:

    * once NVML has named one of the case's own processes, its numbers are ours, and every other one is foreign;
    * the absence of foreign processes is reported only in the first namespace, where nothing is hidden;
    * processes that were on the GPU before the case's process are foreign, whatever their numbers;
    * otherwise nothing is reported.
    """

    def __init__(self, gpu: WatchedGpu, tree: Callable[[], Collection[int]], before: Collection[int]) -> None:
        self._gpu, self._tree, self._first = gpu, tree, in_first_namespace()
        self._before = frozenset(before)
        self._case: set[int] = set()
        self._process_ids = False
        self.peaks: dict[int, int] = {}  # bytes by the case's processes
        self._stamp = int(time.time() * 1e6)  # NVML stamps utilisation by the system's clock

    @property
    def absent(self) -> dict[str, str]:
        """Return the missing values with their reasons."""
        if not self._process_ids:
            return {"case_memory": UNNAMED, "foreign": UNNAMED}
        return {} if self._first else {"foreign": HIDDEN}

    def readings(self) -> dict[str, Reading]:
        return {"processes": self.read_memory, "process utilisation": self.active}

    def read_memory(self, _: float) -> Mapping[str, Value]:
        """Return the memory of the case's processes, and the number of others."""
        listed = self._gpu.processes()
        own_ids = self._own_processes(listed)
        self._process_ids = self._process_ids or bool(own_ids)
        others = len(self._foreign(listed))
        memory = [listed[pid] for pid in own_ids]
        self.peaks |= {pid: max(listed[pid] or 0, self.peaks.get(pid, 0)) for pid in own_ids}
        complete = self._process_ids and None not in memory
        return {
            "case_memory": sum(used or 0 for used in memory) if complete else None,
            "foreign": others if others or (self._first and self._process_ids) else None,
        }

    def active(self, _: float) -> Mapping[str, Value]:
        """Return the share of the multiprocessors' time that others used since the last call."""
        shares, self._stamp = self._gpu.utilisation_since(self._stamp)
        self._own_processes(shares)
        foreign = self._foreign(shares)
        if not foreign and not (self._first and self._process_ids):
            return {"foreign_utilisation": None}
        return {"foreign_utilisation": round(min(1.0, sum(shares[pid] for pid in foreign)), 3)}

    def _own_processes(self, listed: Collection[int]) -> set[int]:
        """Return the processes of the case, including ended ones that NVML still lists."""
        self._case |= set(self._tree())
        self._case -= self._before
        return self._case & set(listed)

    def _foreign(self, listed: Collection[int]) -> set[int]:
        """Return the processes that are surely not the case's."""
        others = set(listed) - self._case
        if self._process_ids or (self._first and all(map(psutil.pid_exists, others))):
            return others
        return others & self._before


def in_first_namespace() -> bool:
    """Return whether this is the system's first PID namespace."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE
    return False


def gpu_before() -> Before:
    """Look at the GPU that CUDA calls the first, while none of our cases runs. Never fails."""
    try:
        with open_nvml() as nvml:
            gpu = WatchedGpu(nvml)
            before = Before(memory_used=gpu.memory_used())
            with suppress(nvml.NVMLError):  # not every system lists them
                before = replace(before, processes=tuple(sorted(gpu.processes())))
            return before
    except Exception as error:  # an error of the driver is no error of the case
        return Before(absent={"gpu": reason_of(error)})


def visible(nvml: Any) -> list[Any]:
    """Return NVML's handles of the GPUs of ``CUDA_VISIBLE_DEVICES``, in its order.

    If it is not set, or names a slice of a GPU, return all by PCI bus.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    words = os.environ.get("CUDA_VISIBLE_DEVICES")
    if words is None or words.upper().startswith("MIG-"):
        return handles
    uuids = [str(nvml.nvmlDeviceGetUUID(handle)).lower() for handle in handles]
    selected: list[Any] = []
    for word in (part.strip() for part in words.lower().split(",")):
        if word.isdigit():
            named = handles[int(word) :][:1]
        else:  # CUDA takes the beginning of a UUID, NVML does not
            named = [handle for handle, uuid in zip(handles, uuids, strict=True) if word and uuid.startswith(word)]
        if not named:  # CUDA ignores all names after an unknown one
            break
        selected += named[:1]
    return selected


def first_visible(nvml: Any) -> Any:
    """Return NVML's handle of the GPU that CUDA calls device 0.

    NVML counts by PCI bus, and so does CUDA in child processes, by ``CUDA_DEVICE_ORDER``. Raises NotProvided if there
    is none or it cannot be identified.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "").upper().startswith("MIG-"):
        raise NotProvided(SLICED)
    handles = visible(nvml)
    if not handles:
        raise NotProvided("NVML knows no GPU that is visible to CUDA")
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handles[0])[0]:
            raise NotProvided(SLICED)
    return handles[0]


LOOK = 2.0  # seconds that a look at the machine takes


def wait_for_quiet(
    limit: float,
    remark: Callable[[str], object],
    doing: Callable[[str], object],
    *,
    gpu: bool = False,
    look: Callable[[], str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when other programs leave the machine alone, or after ``limit`` seconds; with ``gpu`` also the GPU.

    ``remark`` gets a line at the beginning and at the end, ``doing`` the cause of the wait every ``look``.
    """
    look, begin, waiting = look or partial(other_programs, gpu=gpu), clock(), False
    while busy := look():
        if clock() - begin >= limit:
            remark(f"Still busy after {duration(limit)}, measured as it is: {busy}.")
            return
        if not waiting:
            remark(f"Waiting up to {duration(limit)} for a quiet machine: {busy}.")
            waiting = True
        doing(f"waiting for a quiet machine: {busy}")
    if waiting:
        remark(f"The machine is quiet after {duration(clock() - begin)}.")


def other_programs(seconds: float = LOOK, *, gpu: bool = False) -> str:
    """Return the use of the machine by others, such as ``other programs use 0.9 of 2 CPUs``; empty if there is none."""
    cpus = Cpus(lambda: [os.getpid()])
    with suppress(OSError):
        cpus.load(time.perf_counter())
        time.sleep(seconds)
        others = cpus.load(time.perf_counter())["others"] or 0.0
        if others > OTHERS_BUSY:
            return f"other programs use {others:.1f} of {len(cpus.usable)} CPUs"
    if gpu:
        with suppress(Exception), open_nvml() as nvml:  # errors of the driver do not matter here
            share = nvml.nvmlDeviceGetUtilizationRates(WatchedGpu(nvml).handle).gpu / 100
            if share > FOREIGN_ACTIVE:
                return f"other processes use {percent(share)} of the GPU's time"
    return ""
