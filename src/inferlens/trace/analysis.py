"""One trace with everything that is derived from it, each part made once and only when it is asked for."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from inferlens.trace.costs import Costs
from inferlens.trace.gpu_use import GpuUse, gpu_use
from inferlens.trace.intervals import Intervals
from inferlens.trace.kernels import kernels
from inferlens.trace.launch_links import LaunchLinks
from inferlens.trace.operators import operators
from inferlens.trace.overview import Overview, overview_of
from inferlens.trace.shares import parts_of
from inferlens.trace.steps import Steps, steps_of
from inferlens.trace.table import Table
from inferlens.trace.trace import Bools, Trace


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
        return overview_of(self)

    def operators(self, *by: str) -> Table:
        """Operators, told apart by name, and by ``shapes`` or ``stack`` too where that is asked for."""
        return operators(self.costs, by=by, within=self.scopes_within)

    def kernels(self, *, by_operator: bool = False) -> Table:
        """Kernels, copies and fills, told apart by name, or by what launched them too."""
        return kernels(self.costs, by_operator=by_operator, within=self.gpu_within)

    @cached_property
    def scopes_within(self) -> Bools | None:
        """Which scopes begin in the chosen step; ``None`` if none was chosen."""
        if self.step is None:
            return None
        begin = self.trace.begin[self.trace.scopes.row]
        within: Bools = (begin >= self.counted.host_begin[0]) & (begin < self.counted.host_end[0])
        return within

    @cached_property
    def gpu_within(self) -> Bools | None:
        """Which GPU events were launched in the chosen step; those that nobody launched, by their begin."""
        if self.step is None:
            return None
        trace, launch = self.trace, self.launch_links.launch
        moment = trace.begin[trace.gpu.row]
        known = launch >= 0
        moment[known] = trace.begin[trace.calls.row[launch[known]]]
        low = self.counted.host_begin[0]
        high = np.where(known, self.counted.host_end[0], self.counted.end[0])
        within: Bools = (moment >= low) & (moment < high)
        return within
