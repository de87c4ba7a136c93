"""Wait for a quiet machine before anything is measured, and say which programs are waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psutil

from inferlens.analysis.interference.spans import FOREIGN_ACTIVE, OTHERS_BUSY
from inferlens.backends.availability import nvml_open
from inferlens.measure.monitor.cpu import Cpus
from inferlens.measure.monitor.gpu import WatchedGpu
from inferlens.units import duration, percent

LOOK = 2.0  # seconds that a look at the machine takes
MOST_OF_IT = 0.8  # share of the load from which on one program is named alone


def wait_for_quiet(
    limit: float,
    remark: Callable[[str], object],
    doing: Callable[[str], object],
    *,
    gpu: bool = False,
    look: Callable[[], str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when other programs leave the machine alone, or after ``limit`` seconds.

    Args:
        remark: is given a line at the beginning and at the end of the waiting.
        doing: is given what is waited for, again and again.
        gpu: whether the GPU has to be quiet, too.
        look: returns what other programs use, and nothing on a quiet machine; takes some time itself.
    """
    look, begin, waiting = look or partial(other_programs, gpu=gpu), clock(), False
    while busy := look():
        if clock() - begin >= limit:
            remark(f"Still busy after {duration(limit)}, so it is measured as it is: {busy}.")
            return
        if not waiting:
            remark(f"Waiting for other programs, for {duration(limit)} at most: {busy}.")
            waiting = True
        doing(f"waiting for other programs: {busy}")
    if waiting:
        remark(f"The machine is quiet after {duration(clock() - begin)}.")


def other_programs(seconds: float = LOOK, *, gpu: bool = False) -> str:
    """Return what other programs use, such as ``python uses 0.9 of 2 CPUs``; empty if they use next to nothing.

    It looks for so many ``seconds``. What the machine does not tell counts as quiet.
    """
    cpus, before = Cpus(lambda: [os.getpid()]), _cpu_seconds()
    with suppress(OSError):
        cpus.load(time.perf_counter())
        time.sleep(seconds)
        others = cpus.load(time.perf_counter())["others"] or 0.0
        if others > OTHERS_BUSY:
            own, after = set(cpus.tree.pids()), _cpu_seconds()
            used = {key: after[key] - before.get(key, 0.0) for key in after if key[0] not in own}
            first = max(used, key=lambda key: used[key], default=(0, ""))
            several = used.get(first, 0.0) < MOST_OF_IT * others * seconds
            who = f"{first[1] or 'a hidden program'} and others use" if several else f"{first[1]} uses"
            return f"{who} {others:.1f} of {len(cpus.usable)} CPUs"
    if gpu:
        with suppress(Exception), nvml_open() as nvml:  # whatever the driver comes up with
            share = nvml.nvmlDeviceGetUtilizationRates(WatchedGpu(nvml).handle).gpu / 100
            if share > FOREIGN_ACTIVE:
                return f"other processes use {percent(share)} of the GPU's time"
    return ""


def _cpu_seconds() -> dict[tuple[int, str], float]:
    """Return the CPU seconds of every process that can be seen, by its number and name."""
    found = {}
    for process in psutil.process_iter(["pid", "name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times:
            found[process.info["pid"], process.info["name"] or ""] = times.user + times.system
    return found
