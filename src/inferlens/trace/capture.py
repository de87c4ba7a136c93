"""Writes a trace of calls with torch.profiler: for ``inferlens trace``, TensorBoard's plugin and Perfetto alike.

The calls are of anything that runs in this process. Each is a step, with a named span around it, and ends when the
device has done its work. Timing and profiling never share a run: what is measured here is slower than it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from inferlens.errors import InferlensError, MissingLibrary

SPAN = "inferlens"
# What TensorBoard's plugin looks for in a log folder: worker, a number that grows, this.
SUFFIX = ".pt.trace.json.gz"


class Capture(Struct, frozen=True, kw_only=True):
    """What is recorded.

    Attributes:
        wait, warmup, active: calls that are not recorded, that the profiler warms up with, and that are recorded.
        repeat: how often; a trace is written each time.
        stacks: call stacks of Python and modules too.
        memory: allocations too.
        shapes: shapes of the operators' inputs too.
    """

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1
    stacks: bool = False
    memory: bool = False
    shapes: bool = False

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 1)):
            if getattr(self, name) < least:
                raise InferlensError(f"{name} is {getattr(self, name)}.", expected=f"{least} at least")


def capture(
    call: Callable[[], object],
    folder: Path,
    *,
    synchronize: Callable[[], object] = lambda: None,
    worker: str = SPAN,
    what: Capture | None = None,
) -> list[Path]:
    """Calls, and writes a trace for each repetition.

    Args:
        call: what is profiled.
        folder: where the traces go; it is made if it is not there. TensorBoard shows each folder as a run.
        synchronize: waits until what was called is done.
        worker: the beginning of the files' names.
        what: what is recorded.

    Returns:
        The files, in the order of the repetitions.

    Raises:
        InferlensError: if PyTorch is not installed, or nothing can be written there.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingLibrary("PyTorch", extra="torch") from error
    what = what or Capture()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InferlensError(f"{folder} cannot be made: {error.strerror}.") from error
    written: list[Path] = []

    def write(profiler: Any) -> None:
        path = folder / f"{worker}.{time.time_ns()}{SUFFIX}"
        profiler.export_chrome_trace(str(path))
        written.append(path)

    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    schedule = torch.profiler.schedule(wait=what.wait, warmup=what.warmup, active=what.active, repeat=what.repeat)
    with torch.profiler.profile(
        activities=activities,
        schedule=schedule,
        on_trace_ready=write,
        record_shapes=what.shapes,
        profile_memory=what.memory,
        with_stack=what.stacks,
    ) as profiler:
        for _ in range((what.wait + what.warmup + what.active) * what.repeat):
            with torch.profiler.record_function(SPAN):
                call()
                synchronize()
            profiler.step()
    return written
