"""Wait for a quiet machine before anything is measured, and say which programs are waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psutil

from inferlens.analysis.interference import FOREIGN_ACTIVE, OTHERS_BUSY
from inferlens.backends.availability import open_nvml
from inferlens.measure.monitor.cpu import Cpus
from inferlens.measure.monitor.gpu import WatchedGpu
from inferlens.units import duration, percent

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

    ``remark`` is given a line at the beginning and at the end, ``doing`` what is waited for at each ``look``.
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
    """Return what other programs use in some seconds, such as ``python uses 0.9 of 2 CPUs``; empty if nothing."""
    cpus, before = Cpus(lambda: [os.getpid()]), _cpu_seconds()
    with suppress(OSError):
        cpus.load(time.perf_counter())
        time.sleep(seconds)
        others = cpus.load(time.perf_counter())["others"] or 0.0
        if others > OTHERS_BUSY:
            own, after = set(cpus.tree.pids()), _cpu_seconds()
            used = {pid: after[pid][0] - before.get(pid, (0.0,))[0] for pid in after.keys() - own}
            first = max(used, key=lambda pid: used[pid], default=0)
            most = used.get(first, 0.0) / seconds  # processes of other containers cannot be seen
            who, load = (f"{after[first][1]} uses", most) if 2 * most > others else ("other programs use", others)
            return f"{who} {load:.1f} of {len(cpus.usable)} CPUs"
    if gpu:
        with suppress(Exception), open_nvml() as nvml:  # whatever the driver comes up with
            share = nvml.nvmlDeviceGetUtilizationRates(WatchedGpu(nvml).handle).gpu / 100
            if share > FOREIGN_ACTIVE:
                return f"other processes use {percent(share)} of the GPU's time"
    return ""


def _cpu_seconds() -> dict[int, tuple[float, str]]:
    """Return the CPU seconds and the name of every process that can be seen, by its number."""
    every = [process.info for process in psutil.process_iter(["pid", "name", "cpu_times"])]
    return {
        one["pid"]: (one["cpu_times"].user + one["cpu_times"].system, one["name"]) for one in every if one["cpu_times"]
    }
