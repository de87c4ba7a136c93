"""The thread that watches the machine while a case runs in another process, or several in turns.

It has the lowest priority the system knows and wakes up every :data:`INTERVAL`. Only NVML and files of ``/proc`` and
``/sys`` are read. What that costs the case is measured by ``python -m benchmarks watch_cost``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from msgspec.structs import replace

from inferlens.backends.availability import open_nvml
from inferlens.measure.monitor.cpu import Cpus, Reading, Value, reason_of
from inferlens.measure.monitor.gpu import Neighbours, WatchedGpu
from inferlens.record.machine import NOT_USED, Before, CpuSamples, GpuProcesses, GpuSamples, MachineLog

INTERVAL = 0.1  # seconds; about as often as NVML has a new power reading and a new count of energy
CPU_EVERY = 5  # ticks; times in /proc come in steps of 10 ms, which are 2 % of half a second
PROCESSES_EVERY = 5  # ticks; listing processes is the dearest question to NVML
PATIENCE = 2.0  # seconds to wait for the thread at the end; a driver that hangs must not hang the run
LOWEST_PRIORITY = 19
MOST_SHARE = 0.05  # of a processor that a reading may take
MOST_ROWS = 20_000  # at ten rows a second more than half an hour: what comes before the steady state may take hours


class Monitor:
    """Watches the machine while its context lasts; never raises."""

    def __init__(
        self,
        started: Callable[[], Sequence[int]],  # the processes, as far as they have begun
        *,
        gpu: bool = False,  # whether to watch the GPU that CUDA calls the first
        before: Before | None = None,  # that GPU before there were any
        nvml: Any = None,  # stands in for nvidia-ml-py
        cpus: Cpus | None = None,  # stands in for this machine's CPUs
        clock: Callable[[], float] = time.perf_counter,  # of the samples that the log is held against
        wait: Callable[[float], bool] | None = None,  # says whether to stop; None: at the end of the context
    ) -> None:
        self._cpus, self._nvml = cpus or Cpus(started), nvml
        self._wants_gpu, self._before, self._clock = gpu, before or Before(), clock
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._absent: dict[str, str] = {} if gpu else {"gpu": NOT_USED}
        self._gpu: WatchedGpu | None = None
        self._neighbours: Neighbours | None = None
        self._tables: dict[str, SampledColumns] = {}
        self._thread = threading.Thread(target=self._run, name="inferlens-watch", daemon=True)

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._absent["watch"] = f"hung: it did not end within {PATIENCE:g} s"

    def log(self) -> MachineLog:
        """What was seen so far; complete after the context."""
        tables = dict(self._tables)
        absent = self._absent | (self._neighbours.absent if self._neighbours else {})
        for table in tables.values():
            absent |= table.absent
        columns = {name: table.as_columns() for name, table in tables.items() if table.taken}
        peaks = {name: peak for table in tables.values() for name, peak in table.peaks.items()}
        return MachineLog(
            interval=INTERVAL,
            gpu=GpuSamples(**columns["gpu"]) if "gpu" in columns else None,
            processes=GpuProcesses(**columns["processes"]) if "processes" in columns else None,
            cpu=CpuSamples(**columns["cpu"]) if "cpu" in columns else None,
            gpu_uuid=self._gpu.uuid if self._gpu else "",
            cpus=len(self._cpus.usable),
            before=self._before,
            peak_memory_used=_whole(peaks.get("memory_used")),
            peak_case_memory=_whole(peaks.get("case_memory")),
            absent=absent,
        )

    def log_of(self, process: int | None) -> MachineLog:
        """The log of one of several processes: its memory of the GPU is its own."""
        peaks = self._neighbours.peaks if self._neighbours else {}
        return replace(self.log(), peak_case_memory=peaks.get(process or 0))

    def _run(self) -> None:
        if sys.platform == "linux":  # there, priorities are those of threads: setpriority(2), notes
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        try:
            with ExitStack() as stack:
                every = self._opened(stack)
                tick, step = 0, min(ticks for _, ticks in every)  # without a GPU there is less to wake up for
                while True:
                    for table, ticks in every:
                        if tick % ticks == 0:
                            table.take()
                    tick += step
                    if self._wait(step * INTERVAL):
                        break
                for table, _ in every:  # the end of what lasts until here
                    table.take()
        except BaseException as error:  # a watch that fails is less known, and no more than that
            self._absent["watch"] = f"{type(error).__name__}: {error}"

    def _opened(self, stack: ExitStack) -> list[tuple[SampledColumns, int]]:
        """The columns to fill, and every how many ticks; the ``stack`` lets go of NVML."""
        try:
            gpu = self._gpu = WatchedGpu(stack.enter_context(open_nvml(self._nvml))) if self._wants_gpu else None
        except Exception as error:
            gpu, self._absent["gpu"] = None, reason_of(error)
        asked = []
        if gpu:
            neighbours = self._neighbours = Neighbours(gpu, self._cpus.tree.pids, self._before.processes or ())
            asked += [("gpu", gpu.readings(), 1), ("processes", neighbours.readings(), PROCESSES_EVERY)]
        asked.append(("cpu", self._cpus.readings(), CPU_EVERY))
        self._tables = {name: SampledColumns(readings, self._clock) for name, readings, _ in asked}
        return [(self._tables[name], ticks) for name, _, ticks in asked]


class SampledColumns:
    """Readings asked in turn, whose answers are a row; the rows become columns under one column of times.

    One that has never answered and fails is left out from then on, and why is kept; one that fails later leaves a hole.
    One that takes long is asked less often. Of more than ``most`` rows the oldest go.
    """

    def __init__(self, readings: Mapping[str, Reading], clock: Callable[[], float], most: int = MOST_ROWS) -> None:
        self._readings = dict(readings)
        self._clock = clock
        self._rows: deque[tuple[float, dict[str, Value]]] = deque(maxlen=most)
        self._rests: dict[str, float] = {}
        self.taken = 0
        self.absent: dict[str, str] = {}
        self.peaks: dict[str, float | int] = {}

    def take(self) -> None:
        """Adds a row, stamped with the time before the first reading."""
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
        """The columns and their times as tuples, without columns that have no value at all."""
        rows = list(self._rows)
        names = dict.fromkeys(name for _, row in rows for name, value in row.items() if value is not None)
        times = tuple(time for time, _ in rows)
        return {"times": times, **{name: tuple(row.get(name) for _, row in rows) for name in names}}

    def _ask(self, name: str, now: float) -> Mapping[str, Value]:
        begin = self._clock()
        try:
            values = self._readings[name](now)
        except Exception as error:  # whatever a driver or a file system comes up with is no error of the case
            if name not in self._rests:
                self.absent[name] = reason_of(error)
                del self._readings[name]
            return {}
        self._rests[name] = begin + (self._clock() - begin) / MOST_SHARE
        return values


def _whole(peak: float | None) -> int | None:
    return None if peak is None else int(peak)
