"""One trace with everything that is derived from it, each part made once and only when it is asked for."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from inferlens.stats.host_bound import gpu_waits
from inferlens.trace.columns import SECOND, Columns
from inferlens.trace.costs import Costs
from inferlens.trace.gpu_use import GpuUse, gpu_use
from inferlens.trace.intervals import Intervals
from inferlens.trace.launch_links import LaunchLinks
from inferlens.trace.shares import HOST, SYNCHRONISING, idle_of, parts_of, shares_of
from inferlens.trace.steps import Steps, steps_of
from inferlens.trace.tables import kernels, operators
from inferlens.trace.trace import Bools, Ints, Trace


class Overview(Struct, frozen=True, kw_only=True):
    """Means over the steps that count; seconds.

    Attributes:
        steps: those that count; ``left_out`` were cut off by the profiler's end.
        step_time: of one step.
        parts: of one step, by what it went to; they add up to it.
        idle: of one step, by cause; the mean over GPUs.
        bound: ``GPU``, ``host``, ``both`` or ``CPU only``.
        gpus: each that ran a kernel.
        notes: what was skipped while reading.
    """

    steps: int
    left_out: int
    step_time: float
    parts: dict[str, float]
    idle: dict[str, float]
    bound: str
    gpus: tuple[GpuUse, ...]
    notes: tuple[str, ...] = ()

    @property
    def waiting(self) -> float:
        """Seconds of one step in which the GPU waited for the host, synchronising included."""
        return self.idle[HOST] + self.idle[SYNCHRONISING]


class Analysis:
    """A trace, looked at as a whole or one step of it.

    Args:
        trace: what was read.
        step: number of the step to look at; ``None``: all.

    Raises:
        InferlensError: if there is no such step.
    """

    def __init__(self, trace: Trace, step: int | str | None = None) -> None:
        self.trace, self.launch_links = trace, LaunchLinks(trace)
        self.step = None if step is None else str(step)
        if self.step is not None:
            self.steps.only(self.step)

    @cached_property
    def steps(self) -> Steps:
        """All steps of the trace."""
        return steps_of(self.trace, self.launch_links)

    @cached_property
    def counted(self) -> Steps:
        """The steps that means are over: the one that was chosen, or all that the profiler did not cut off."""
        return self.steps.counted() if self.step is None else self.steps.only(self.step)

    @cached_property
    def costs(self) -> Costs:
        """What each call of an operator cost."""
        return Costs(self.trace, self.launch_links)

    @cached_property
    def parts(self) -> dict[str, Intervals]:
        """When kernels, copies and so on ran."""
        return parts_of(self.trace, self.launch_links)

    @cached_property
    def gpu_use(self) -> tuple[GpuUse, ...]:
        """How much of each GPU was used."""
        return gpu_use(self.costs, self.counted)

    @cached_property
    def overview(self) -> Overview:
        """What the trace, or the step that was chosen, comes to."""
        steps = self.counted
        count = max(len(steps), 1)
        length = float((steps.end - steps.begin).sum()) / count / SECOND
        parts = {name: float(np.sum(times)) / count / SECOND for name, times in shares_of(self.parts, steps).items()}
        idle = {why: time / count / SECOND for why, time in idle_of(self.trace, self.launch_links, steps).items()}
        return Overview(
            steps=len(steps),
            left_out=len(self.steps) - len(steps) if self.step is None else 0,
            step_time=length,
            parts=parts,
            idle=idle,
            bound=_bound(length, idle) if self.gpu_use and length else "CPU only",
            gpus=self.gpu_use,
            notes=self.trace.notes,
        )

    def operators(self, *by: str) -> Columns:
        """Operators, told apart by name, and by ``shapes`` or ``stack`` too where that is asked for."""
        return operators(self.costs, self.scopes_within, by)

    def kernels(self, *, by_operator: bool = False) -> Columns:
        """Kernels, copies and fills, told apart by name, or by what launched them too."""
        return kernels(self.costs, self.gpu_within, by_operator=by_operator)

    def within(self, moments: Ints) -> Bools:
        """Which moments of the host are in the chosen step; all if none was chosen."""
        if self.step is None:
            return np.ones(len(moments), bool)
        found: Bools = (moments >= self.counted.host_begin[0]) & (moments < self.counted.host_end[0])
        return found

    @cached_property
    def scopes_within(self) -> Bools:
        """Which scopes begin in the chosen step."""
        return self.within(self.trace.begin[self.trace.scopes.row])

    @cached_property
    def gpu_within(self) -> Bools:
        """Which GPU events were launched in the chosen step; those that nobody launched begin in it."""
        trace, launch = self.trace, self.launch_links.launch
        moment = trace.begin[trace.gpu.row]
        known = launch >= 0
        began = np.ones(len(moment), bool)
        if self.step is not None:
            began = (moment >= self.counted.host_begin[0]) & (moment < self.counted.end[0])
        began[known] = self.within(trace.begin[trace.calls.row[launch[known]]])
        return began


def _bound(length: float, idle: dict[str, float]) -> str:
    if not gpu_waits(sum(idle.values()), length):
        return "GPU"
    return "host" if gpu_waits(idle[HOST] + idle[SYNCHRONISING], length) else "both"
