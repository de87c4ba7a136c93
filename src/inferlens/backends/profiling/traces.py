"""The one reader of torch.profiler: runs that it traced, with what the host called in each, and what a GPU ran.

Each run, from the call to its outputs being ready, is a span of the trace; what a GPU ran is of the run in which it was
launched, by whatever library. Runs are traced a few at a time, so that memory does not grow with their number, and each
time after a call that is not looked at, in which the profiler sets itself up.

Traces of single steps are files as PyTorch writes them for TensorBoard: a step is one call until its outputs are ready,
in a span that says which, and around it PyTorch's ``ProfilerStep#N``. It is traced as it is timed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec import Struct

from inferlens.backends.base import Launched
from inferlens.backends.profiling.layers import Clocked, Runnable, clocked_runs
from inferlens.errors import Unsupported
from inferlens.trace import NONE, UNKNOWN, Category, LaunchLinks, Trace, read
from inferlens.trace.steps import Intervals

HOST_CLOCK = "torch.profiler, operators on the host"
GPU_CLOCK = "torch.profiler (CUPTI), kernels on the GPU"
OURS = "inferlens "  # how the names of all our spans begin
SPAN = f"{OURS}run"
STEP = f"{OURS}step "
SUFFIX = ".pt.trace.json.gz"  # by which TensorBoard's plugin knows a trace
ABOUT = "inferlens"  # what stands beside the events and says what was traced
AT_ONCE = 10  # runs in one trace
KERNEL = "kernel"
KINDS = {Category.KERNEL: KERNEL, Category.MEMCPY: "copy", Category.MEMSET: "fill"}


class TracedEvent(Struct, frozen=True, kw_only=True):
    """A kernel, a copy or a fill, once; times in nanoseconds; ``None`` is not known."""

    launched: Launched
    begin: int  # since the run began; the GPU's clock is fitted to the host's, so it may be a little less than nothing
    launch: int = 0  # when the host launched it, since the run began
    time: int
    registers: int | None = None  # of each thread
    shared_memory: int | None = None  # of each block, static and dynamic, in bytes
    occupancy: float | None = None  # estimated by the profiler, 0 to 1


class TracedOperator(Struct):
    """What the host called; seconds since the run began."""

    name: str
    begin: float = 0.0
    time: float = 0.0
    kernels: list[TracedEvent] = []  # what it launched itself
    inside: list[TracedOperator] = []  # what it called

    def launched(self) -> Iterator[TracedEvent]:
        """The kernels of it and of all that it called."""
        yield from self.kernels
        for operator in self.inside:
            yield from operator.launched()

    def every(self) -> Iterator[TracedOperator]:
        """It and all that it called, in the order of their begins."""
        yield self
        for operator in self.inside:
            yield from operator.every()


class TracedRun(Struct, frozen=True, kw_only=True):
    """One run."""

    begin: int  # in nanoseconds of the trace's clock, the host's
    whole: float  # seconds from the call to its outputs being ready
    busy: float  # seconds in which the GPU ran at least one of its events
    launches: int  # calls of the runtime that launched something; a CUDA graph is one
    events: tuple[TracedEvent, ...]  # in the order of the launches; what one call launched, in the order of the begins
    root: TracedOperator  # the run itself, with what the host called; kernels that no operator launched are its own


class Spanned:
    """A runner each of whose runs, from the call to its outputs, is in a span."""

    def __init__(self, runner: Runnable) -> None:
        self._runner = runner
        self._span: Any = None

    def infer(self, feed: Any) -> Any:
        import torch

        self._span = torch.profiler.record_function(SPAN)
        self._span.__enter__()
        return self._runner.infer(feed)

    def synchronize(self) -> None:
        self._runner.synchronize()
        self._span.__exit__(None, None, None)


@contextmanager
def profiler(*, on_gpu: bool, **more: Any) -> Iterator[Any]:
    """torch.profiler for the host and, where asked, the GPU; without its notices on what is done here on purpose."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
        with profile(activities=activities, **more) as made:
            yield made


def trace_runs(
    runner: Runnable,
    feed: Any,
    runs: int,
    *,
    on_gpu: bool,
    scopes: AbstractContextManager[Any] | None = None,
    **more: Any,
) -> Iterator[tuple[Clocked, list[TracedRun]]]:
    """Traces ``runs`` calls of ``runner.infer(feed)``, one after the other, some at a time; the runner is warm.

    ``scopes`` are entered around all of them; refuses if the profiler lost some.
    """
    with TemporaryDirectory(prefix="inferlens-") as folder, scopes or nullcontext():
        file = Path(folder, "trace.json")
        while runs > 0:
            with profiler(on_gpu=on_gpu, **more) as profile:
                runner.infer(feed)
                runner.synchronize()
                clocked = clocked_runs(Spanned(runner), feed, min(AT_ONCE, runs))
            profile.export_chrome_trace(str(file))
            del profile
            found = traced_runs(read(file))
            if len(found) != len(clocked.whole):
                raise Unsupported(
                    f"torch.profiler kept {len(found)} of {len(clocked.whole)} runs.", hint="fewer --runs"
                )
            runs -= len(found)
            yield clocked, found


def one_run(runner: Runnable, feed: Any, *, on_gpu: bool, **more: Any) -> TracedRun:
    """One run that is looked at and not timed."""
    ((_, (run,)),) = trace_runs(runner, feed, 1, on_gpu=on_gpu, **more)
    return run


def traced_runs(trace: Trace) -> list[TracedRun]:
    """The runs of a trace, in order: its spans of that name, each with what was called and launched while it was open.

    What was launched by nobody that is known belongs to the run in which it began.
    """
    links = LaunchLinks(trace)
    launch = links.launch
    moment = trace.begin[trace.gpu.row]
    moment[launch != NONE] = trace.begin[trace.calls.row[launch[launch != NONE]]]
    order = np.lexsort((trace.begin[trace.gpu.row], moment))
    scope_begin = trace.begin[trace.scopes.row]
    scope_order = np.argsort(scope_begin, kind="stable")  # of those that begin together the outer ones are first
    launchers = _Launchers(trace, links)
    spans = [int(row) for row in trace.rows(Category.ANNOTATION) if trace.name_of(row).split(" ")[:2] == SPAN.split()]
    found = []
    for span in sorted(spans, key=lambda row: int(trace.begin[row])):
        begin, end = int(trace.begin[span]), int(trace.begin[span] + trace.duration[span])
        places = order[(moment[order] >= begin) & (moment[order] < end)]
        calls = launch[places]
        scopes = scope_order[(scope_begin[scope_order] >= begin) & (scope_begin[scope_order] <= end)]
        operators = {NONE: TracedOperator(SPAN)}  # by place among the scopes; what nothing called is inside of the root
        for scope in scopes[trace.scopes.row[scopes] != span].tolist():
            row = int(trace.scopes.row[scope])
            since, time = (int(trace.begin[row]) - begin) / 1e9, int(trace.duration[row]) / 1e9
            operators[scope] = TracedOperator(trace.name_of(row), since, time)
            operators.get(int(links.nest.parent[scope]), operators[NONE]).inside.append(operators[scope])
        events = []
        for place in places.tolist():
            events.append(_event(trace, place, launchers, begin, int(moment[place]) - begin))
            operators.get(launchers.innermost(place), operators[NONE]).kernels.append(events[-1])
        found.append(
            TracedRun(
                begin=trace.about.base + begin,
                whole=(end - begin) / 1e9,
                busy=Intervals.of(trace, trace.gpu.row[places]).total / 1e9,
                launches=len(np.unique(calls[calls != NONE])),
                events=tuple(events),
                root=operators[NONE],
            )
        )
    return found


class _Launchers:
    """What was around launches, each call looked at once: a CUDA graph launches all of its kernels in one."""

    def __init__(self, trace: Trace, links: LaunchLinks) -> None:
        self._trace, self._links, self._launch = trace, links, links.launch
        self._around_calls = links.around_calls()
        self._known: dict[int, tuple[str, tuple[str, ...]]] = {}

    def innermost(self, place: int) -> int:
        """The place, among the scopes, of the innermost one around the launch of a GPU event; -1 without one."""
        call = int(self._launch[place])
        return int(self._links.operator[place] if call == NONE else self._around_calls[call])

    def of(self, place: int) -> tuple[str, tuple[str, ...]]:
        """The innermost operator around the launch of a GPU event, and all scopes within the run."""
        call = int(self._launch[place])
        if call == NONE:
            return self._operator([self.innermost(place)]), ()
        if call not in self._known:
            row = int(self._trace.calls.row[call])
            scopes = self._links.scopes_around(int(self._around_calls[call]), int(self._trace.begin[row]))
            names = (self._trace.name_of(int(self._trace.scopes.row[scope])) for scope in scopes)
            inside = tuple(name for name in names if not name.startswith(SPAN))
            self._known[call] = self._operator(list(scopes)), inside
        return self._known[call]

    def _operator(self, scopes: list[int]) -> str:
        """The innermost operator, ``aten::add``; what compilers call by other names are none."""
        for row in (int(self._trace.scopes.row[scope]) for scope in reversed(scopes) if scope != NONE):
            name = self._trace.name_of(row)
            if self._trace.category[row] == Category.OPERATOR and "::" in name and not name.startswith("#"):
                return name
        return ""


def _event(trace: Trace, place: int, launchers: _Launchers, begin: int, launch: int) -> TracedEvent:
    gpu = trace.gpu
    row = int(gpu.row[place])
    kind = KINDS[Category(int(trace.category[row]))]
    operator, around = launchers.of(place)
    grid, block = (tuple(map(int, sizes[place])) for sizes in (gpu.grid, gpu.block))
    stream, registers, shared_memory = (
        None if int(column[place]) == UNKNOWN else int(column[place])
        for column in (gpu.stream, gpu.registers, gpu.shared_memory)
    )
    estimate = float(gpu.occupancy[place])
    is_kernel = kind == KERNEL
    return TracedEvent(
        launched=Launched(
            name=trace.name_of(row),
            kind=kind,
            operator=operator,
            around=around,
            grid=grid if any(grid) else (),
            block=block if any(block) else (),
            stream=stream,
        ),
        begin=int(trace.begin[row]) - begin,
        launch=launch,
        time=int(trace.duration[row]),
        registers=registers if is_kernel else None,
        shared_memory=shared_memory if is_kernel else None,
        occupancy=min(max(estimate / 100, 0.0), 1.0) if np.isfinite(estimate) and is_kernel else None,
    )


class Tracing(Struct, frozen=True, kw_only=True):
    """Which steps are traced, and what is kept of each, as :func:`torch.profiler.schedule` has it."""

    wait: int = 1  # steps that are let pass, at the begin of each cycle
    warmup: int = 1  # steps after them that are traced and thrown away, in which the profiler sets itself up
    active: int = 3  # steps after these that are kept
    repeat: int = 1  # cycles; each is a file of its own
    stacks: bool = False  # the Python stack of each operator, and the calls of modules
    memory: bool = False  # what was allocated
    shapes: bool = False  # of the operators' inputs

    @property
    def steps(self) -> int:
        """All steps, those that are not kept included."""
        return (self.wait + self.warmup + self.active) * self.repeat


def write_steps(runner: Runnable, feed: Any, tracing: Tracing, folder: Path, *, on_gpu: bool, about: str) -> list[Path]:
    """Trace steps of a warm runner into files in ``folder``, one for each cycle, which are returned in order.

    ``about`` is JSON that is kept in each file, as :data:`ABOUT`.
    """
    from torch.profiler import ProfilerAction, record_function, schedule, tensorboard_trace_handler

    with profiler(
        on_gpu=on_gpu,
        schedule=schedule(wait=tracing.wait, warmup=tracing.warmup, active=tracing.active, repeat=tracing.repeat),
        on_trace_ready=tensorboard_trace_handler(str(folder), use_gzip=True),
        with_stack=tracing.stacks,
        profile_memory=tracing.memory,
        record_shapes=tracing.shapes,
    ) as profile:
        for number in range(tracing.steps):
            with record_function(f"{STEP}{number}"):
                runner.infer(feed)
                runner.synchronize()
            if profile.current_action is ProfilerAction.RECORD_AND_SAVE:
                profile.add_metadata_json(ABOUT, about)
            profile.step()
    return sorted(folder.glob(f"*{SUFFIX}"))
