"""The GPU before a case: what was on it and in its memory, and what it draws while nothing runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from inferlens.measure.monitor.nvml import Gpu
from inferlens.measure.monitor.table import Untold, reason_of
from inferlens.record.machine import Before

IDLE_SECONDS = 1.0
IDLE_INTERVAL = 0.1
PATIENCE = 5.0  # seconds; opening NVML takes most of one on machines with many GPUs


def survey(
    seconds: float = 0.0,
    *,
    nvml: Any = None,
    environ: Mapping[str, str] = os.environ,
    wait: Callable[[float], Any] = time.sleep,
) -> Before:
    """Looks at the GPU that CUDA calls the first, while none of our cases runs. Never fails.

    Args:
        seconds: how long to sample idle power, :data:`IDLE_SECONDS` being enough for readings that are themselves
            averages of a second; 0 asks for none. A GPU that has just worked draws more than an idle one for many
            seconds, so this means most before the first case.
        nvml: stands in for nvidia-ml-py.
        environ: where ``CUDA_VISIBLE_DEVICES`` is looked up.
        wait: waits for some seconds.
    """
    absent: dict[str, str] = {}
    try:
        gpu = Gpu.open(nvml, environ)
    except Untold as error:
        return Before(absent={"gpu": str(error)})
    with gpu:
        memory = _try(gpu.memory_used, "memory_used", absent)
        processes = _try(gpu.processes, "processes", absent)
        power = _try(lambda: _idle(gpu, seconds, wait), "idle_power", absent) if seconds > 0 else None
    return Before(
        memory_used=memory,
        processes=None if processes is None else tuple(sorted(processes)),
        idle_power=median(power) if power else None,
        idle_seconds=seconds if power else 0.0,
        idle_samples=len(power or ()),
        absent=absent,
    )


def surveyed(seconds: float = 0.0, patience: float = PATIENCE) -> Before:
    """As :func:`survey`, but without waiting longer than ``patience`` seconds more for a driver that hangs."""
    found: list[Before] = []
    thread = threading.Thread(target=lambda: found.append(survey(seconds)), name="inferlens-survey", daemon=True)
    thread.start()
    thread.join(seconds + patience)
    return found[0] if found else Before(absent={"gpu": f"NVML did not answer within {seconds + patience:g} s"})


def _idle(gpu: Gpu, seconds: float, wait: Callable[[float], Any]) -> list[float]:
    """Power in watts every :data:`IDLE_INTERVAL`.

    Raises:
        Untold: if something ran on the GPU meanwhile.
    """
    watts = []
    for _ in range(max(1, round(seconds / IDLE_INTERVAL))):
        wait(IDLE_INTERVAL)
        watts.append(gpu.power())
        if gpu.nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu > 0:
            raise Untold("the GPU was not idle")
    return watts


def _try(ask: Callable[[], Any], name: str, absent: dict[str, str]) -> Any:
    try:
        return ask()
    except Exception as error:  # whatever the driver comes up with is no error of the case
        absent[name] = reason_of(error)
        return None
