"""A watch whose time passes by hand: each wait is one step of a script, and nobody sleeps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from inferlens.measure.monitor.cpu import Cpus
from inferlens.measure.monitor.monitor import Monitor
from inferlens.record.machine import Before, MachineLog
from tests.measure.monitor.fake_nvml import FakeNvml

PID = 4242


class Clock:
    """Seconds that only pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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
    clock, steps = Clock(), itertools.count(1)

    def wait(seconds: float) -> bool:
        step = next(steps)
        clock.now += seconds
        for each in (at or {}).get(step, lambda: None), lambda: _work(nvml, seconds):
            each()
        return step >= ticks

    watch = Monitor(
        PID, gpu=True, before=before, nvml=nvml, environ=environ or {}, cpus=Crew(root, pids), clock=clock, wait=wait,
        first_namespace=first_namespace,
    )  # fmt: skip
    with watch:
        watch._thread.join(10)
    return watch.log()


def _work(nvml: Any, seconds: float) -> None:
    if isinstance(nvml, FakeNvml):
        for device in nvml.devices:
            device.millijoules += round(device.milliwatts * seconds)
