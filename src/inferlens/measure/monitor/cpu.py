"""The CPUs a case may use: load, the part of it that others cause, stolen time, throttling, energy.

From ``/proc`` and ``/sys`` alone: psutil looks at every process of the machine to find the children of one, which is
too dear beside a measurement. Times there are counted in ticks of 10 ms, so loads mean something over half a second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from inferlens.limits import control_group, cpu_quota

Value = float | int | None
Reading = Callable[[float], Mapping[str, Value]]  # values by column name, given the time
LOADS = ("busy", "case", "others", "steal")
LEAST_SECONDS = 0.2  # shorter intervals have no load: one tick of 10 ms would be more than 5 % of a processor
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS")
TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds; the unit of times in /proc


class Untold(Exception):
    """The machine does not tell; the text says why."""


def reason_of(error: Exception) -> str:
    """Why something is not told, in words for a record."""
    return str(error) if isinstance(error, (Untold, OSError)) else f"{type(error).__name__}: {error}"


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
        """What is read, by name."""
        return {
            "cpu_load": self.load,
            "cpu_energy": lambda _: {"energy": self._joules.read()},
            "throttle_events": lambda _: {"throttle_events": self.throttle_events()},
            "quota_wait": lambda _: {"quota_wait": _throttled(self._group / "cpu.stat")},
        }

    def load(self, now: float) -> Mapping[str, Value]:
        """Mean loads since the last time, in processors' worth; ``None`` the first time.

        Once the case's process has ended, what others do cannot be told from what it did.
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
            mine = (case - last[2]) / seconds
            loads |= {"case": mine, "others": max(0.0, busy - mine)}
        return {name: None if load is None else round(load, 3) for name, load in loads.items()}

    def throttle_events(self) -> int:
        """Times that a core was throttled for heat, and its package, summed over the CPUs."""
        names = ("core_throttle_count", "package_throttle_count")
        found = [int(text) for name in names for text in self._texts(f"thermal_throttle/{name}") if text.isdigit()]
        if not found:
            raise Untold("the system does not count thermal throttling (thermal_throttle in /sys)")
        return sum(found)

    def _texts(self, file: str) -> Iterator[str]:
        """What a file of each CPU says, empty where there is none."""
        return (text_of(self._cpus / f"cpu{cpu}" / file) for cpu in sorted(self.usable))


class Tree:
    """The processes of what is measured: those that were ``started`` for it, and all that they started.

    From proc(5). Processes that outlive the one that started them are not found.
    """

    def __init__(self, started: Callable[[], Sequence[int]], proc: Path = Path("/proc")) -> None:
        self._started, self._proc = started, proc

    def pids(self) -> list[int]:
        """Numbers of all that are alive; those that have ended take what they have started with them."""
        found: list[int] = []
        waiting = list(self._started())
        while waiting:
            pid = waiting.pop()
            if pid not in found and (self._proc / str(pid)).exists():
                found.append(pid)
                # Children of all threads. The file is there with CONFIG_PROC_CHILDREN, which distributions set.
                for file in (self._proc / str(pid) / "task").glob("*/children"):
                    waiting += map(int, text_of(file).split())
        return found

    def seconds(self) -> float | None:
        """CPU seconds of all of them and of children that were waited for; ``None`` where none is alive.

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
        """Joules since the first reading."""
        if not self._zones:
            raise Untold("the system has no RAPL counters (/sys/class/powercap/intel-rapl:*)")
        for zone in self._zones:
            now = int((zone / "energy_uj").read_text("utf-8"))
            used = now - self._last.get(zone, now)
            if used < 0:
                used += int((zone / "max_energy_range_uj").read_text("utf-8"))
            self._last[zone] = now
            self._joules += used / 1e6
        return round(self._joules, 6)


def cpu_times(stat: str, cpus: Iterable[int]) -> tuple[float, float]:
    """Seconds that ``cpus`` were busy, and had work that waited for the hypervisor, from the text of ``/proc/stat``.

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
    """Logical processors that this process may use, which containers and ``taskset`` make fewer than there are."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that the usable CPUs belong to: two of them may share one."""
    siblings = root / "sys/devices/system/cpu"
    return len({text_of(siblings / f"cpu{cpu}/topology/thread_siblings_list") or cpu for cpu in usable_cpus()})


def default_threads(root: Path = Path("/")) -> tuple[int, str]:
    """Return the CPU threads that every case gets that names none, and what limits them; empty if nothing does.

    It is the smallest number that the environment sets for any library. Else it is one for each usable core, as far as
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
    with suppress(Untold):
        return _seconds(stat, r"^throttled_usec (\d+)$")
    return _seconds(stat, r"^throttled_time (\d+)$") / 1e3


def _seconds(path: Path, pattern: str) -> float:
    """The microseconds that a file tells, in seconds."""
    found = re.search(pattern, path.read_text("utf-8"), re.MULTILINE)
    if not found:
        raise Untold(f"{path} does not report it")
    return int(found[1]) / 1e6


def text_of(path: Path) -> str:
    """What a small file says; empty where there is none."""
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
