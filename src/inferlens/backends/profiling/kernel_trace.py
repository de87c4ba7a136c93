"""From a trace to its runs: of each, when it was, and what the GPU ran because of it, in the order of the launches."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from inferlens.backends.abilities import Launched
from inferlens.backends.profiling.operator_runs import SPAN
from inferlens.trace import NONE, UNKNOWN, Category, LaunchLinks, Trace
from inferlens.trace.intervals import Intervals

KINDS = {Category.KERNEL: "kernel", Category.MEMCPY: "copy", Category.MEMSET: "fill"}


class TracedEvent(Struct, frozen=True, kw_only=True):
    """A kernel, a copy or a fill, once; begin and time in nanoseconds.

    Attributes:
        registers: of each thread; ``None`` where that is not told, as what follows.
        shared_memory: of each block, static and dynamic, in bytes.
        occupancy: estimated by the profiler, 0 to 1.
    """

    launched: Launched
    begin: int
    time: int
    registers: int | None = None
    shared_memory: int | None = None
    occupancy: float | None = None


class TracedRun(Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        begin: in nanoseconds of the trace's clock, the host's.
        whole: seconds from the call to its outputs being ready.
        busy: seconds in which the GPU ran at least one of its events.
        launches: calls of the runtime that launched something; a CUDA graph is one.
        events: what the GPU ran, in the order of the launches; what one call launched, in the order of the begins.
    """

    begin: int
    whole: float
    busy: float
    launches: int
    events: tuple[TracedEvent, ...]


def traced_runs(trace: Trace) -> list[TracedRun]:
    """The runs of a trace, in order: its spans of that name, each with what was launched while it was open.

    What was launched by nobody that is known belongs to the run in which it began.
    """
    launch_links = LaunchLinks(trace)
    launch = launch_links.launch
    known = launch != NONE
    moment = trace.begin[trace.gpu.row]
    moment[known] = trace.begin[trace.calls.row[launch[known]]]
    order = np.lexsort((trace.begin[trace.gpu.row], moment))
    around = _Around(trace, launch_links)
    found = []
    for row in _spans(trace):
        begin, end = int(trace.begin[row]), int(trace.begin[row] + trace.duration[row])
        places = order[(moment[order] >= begin) & (moment[order] < end)]
        rows = trace.gpu.row[places]
        calls = launch[places]
        found.append(
            TracedRun(
                begin=trace.about.base + begin,
                whole=(end - begin) / 1e9,
                busy=Intervals.of(trace, rows).total / 1e9,
                launches=len(np.unique(calls[calls != NONE])),
                events=tuple(_event(trace, int(place), around, trace.about.base) for place in places),
            )
        )
    return found


def _spans(trace: Trace) -> list[int]:
    """Rows of the runs' spans, in order."""
    rows = [int(row) for row in trace.rows(Category.ANNOTATION) if trace.name_of(row).split(" ")[:2] == SPAN.split()]
    return sorted(rows, key=lambda row: int(trace.begin[row]))


class _Around:
    """What was around launches, each call looked at once: a CUDA graph launches all of its kernels in one."""

    def __init__(self, trace: Trace, launch_links: LaunchLinks) -> None:
        self.trace, self.launch_links = trace, launch_links
        self.launch = launch_links.launch
        self.innermost = launch_links.around_calls()
        self._told: dict[int, tuple[str, str, tuple[str, ...]]] = {}

    def of(self, place: int) -> tuple[str, str, tuple[str, ...]]:
        """Launching call, innermost operator, and all scopes around it within the run, of a GPU event."""
        call = int(self.launch[place])
        if call == NONE:
            return "", self._operator([int(self.launch_links.operator[place])]), ()
        if call not in self._told:
            row = int(self.trace.calls.row[call])
            scopes = self.launch_links.scopes_around(int(self.innermost[call]), int(self.trace.begin[row]))
            names = (self.trace.name_of(int(self.trace.scopes.row[each])) for each in scopes)
            inside = tuple(name for name in names if not name.startswith(SPAN))
            self._told[call] = self.trace.name_of(row), self._operator(list(scopes)), inside
        return self._told[call]

    def _operator(self, scopes: list[int]) -> str:
        """The innermost operator, ``aten::add``; what compilers call by other names are none."""
        for each in reversed(scopes):
            if each == NONE:
                continue
            row = int(self.trace.scopes.row[each])
            name = self.trace.name_of(row)
            if self.trace.category[row] == Category.OPERATOR and "::" in name and not name.startswith("#"):
                return name
        return ""


def _event(trace: Trace, place: int, around: _Around, base: int) -> TracedEvent:
    gpu = trace.gpu
    row = int(gpu.row[place])
    kind = KINDS[Category(int(trace.category[row]))]
    launch, operator, scopes = around.of(place)
    launched = Launched(
        name=trace.name_of(row),
        kind=kind,
        operator=operator,
        around=scopes,
        launch=launch,
        grid=_sizes(gpu.grid[place]),
        block=_sizes(gpu.block[place]),
        stream=_known(gpu.stream[place]),
    )
    estimate = float(gpu.occupancy[place])
    return TracedEvent(
        launched=launched,
        begin=base + int(trace.begin[row]),
        time=int(trace.duration[row]),
        registers=_known(gpu.registers[place]) if kind == "kernel" else None,
        shared_memory=_known(gpu.shared_memory[place]) if kind == "kernel" else None,
        occupancy=min(max(estimate / 100, 0.0), 1.0) if np.isfinite(estimate) and kind == "kernel" else None,
    )


def _sizes(values: Any) -> tuple[int, ...]:
    sizes = tuple(int(value) for value in values)
    return sizes if any(sizes) else ()


def _known(value: Any) -> int | None:
    return None if int(value) == UNKNOWN else int(value)
