"""A watch whose time passes by hand: each wait is one step of a script, and nobody sleeps."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from unittest import mock

from inferlens.measure.monitor import gpu
from inferlens.measure.monitor.cpu import Cpus
from inferlens.measure.monitor.monitor import Monitor
from inferlens.record.machine import Before, MachineLog
from tests.measure.monitor.fake_nvml import FakeNvml

PID = 4242


class Crew(Cpus):
    """CPUs of an empty machine, on which the case's processes are those given."""

    def __init__(self, root: Path, pids: Collection[int] = (PID,)) -> None:
        super().__init__(PID, usable=(0, 1), root=root)
        self.tree.pids = lambda: list(pids)  # type: ignore[method-assign]


def watched(
    nvml: Any,
    root: Path,
    *,
    ticks: int = 20,
    at: dict[int, Callable[[], None]] | None = None,
    pids: Collection[int] = (PID,),
    before: Before | None = None,
    first_namespace: bool = True,
    environ: dict[str, str] | None = None,
) -> MachineLog:
    """The log of a watch of ``ticks`` waits of a tenth of a second; ``at`` has what happens in some of them."""
    now, steps = [100.0], itertools.count(1)

    def wait(seconds: float) -> bool:
        step = next(steps)
        now[0] += seconds
        (at or {}).get(step, lambda: None)()
        for device in nvml.devices if isinstance(nvml, FakeNvml) else ():
            device.millijoules += round(device.milliwatts * seconds)
        return step >= ticks

    with (
        mock.patch.object(gpu, "in_first_namespace", return_value=first_namespace),
        mock.patch.dict(os.environ, environ or {"HOME": "/"}, clear=True),
        Monitor(
            PID, gpu=True, before=before, nvml=nvml, cpus=Crew(root, pids), clock=lambda: now[0], wait=wait
        ) as watch,
    ):
        watch._thread.join(10)
    return watch.log()
