"""The reader of torch.profiler: traced runs with the host's calls and the GPU's events.

Each run, from the call to its outputs being ready, is a span of the trace. A GPU event belongs to the run in which it
was launched, by whatever library. Runs are traced a few at a time, so that memory does not grow with their number, and
each time after a call in which the profiler sets itself up.

Traces of steps are files as PyTorch writes them for TensorBoard. A step is one call until its outputs are ready, in a
span with its number, and within PyTorch's ``ProfilerStep#N``.
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

from inferlens.backends.base import GpuLaunch
from inferlens.backends.profiling.layers import Runnable, TimedRuns, time_runs
from inferlens.errors import LateModule, Unsupported
from inferlens.trace.analysis import Intervals
from inferlens.trace.model import NONE, UNKNOWN, Category, LaunchLinks, Trace
from inferlens.trace.read import read_trace

torch: Any = LateModule("torch")

HOST_CLOCK = "torch.profiler, operators on the host"
GPU_CLOCK = "torch.profiler (CUPTI), kernels on the GPU"
SPAN_PREFIX = "inferlens "  # prefix of all our spans
RUN_SPAN = f"{SPAN_PREFIX}run"
STEP_SPAN = f"{SPAN_PREFIX}step "
SUFFIX = ".pt.trace.json.gz"  # the suffix that TensorBoard's plugin expects
METADATA_KEY = "inferlens"  # key of our description in the trace file
RUNS_PER_TRACE = 10
KERNEL = "kernel"
KINDS = {Category.KERNEL: KERNEL, Category.MEMCPY: "copy", Category.MEMSET: "fill"}


class TracedEvent(Struct, frozen=True, kw_only=True):
    """A kernel, copy or fill; times in nanoseconds; ``None`` is unknown."""

    gpu_launch: GpuLaunch
    begin: int  # since the run began; may be slightly negative, because the GPU's clock is fitted to the host's
    launch_time: int = 0  # on the host, since the run began
    time: int
    registers: int | None = None  # per thread
    shared_memory: int | None = None  # per block, static and dynamic, in bytes
    occupancy: float | None = None  # estimated by the profiler, 0 to 1


class TracedOperator(Struct):
    """A call on the host; seconds since the run began."""

    name: str
    begin: float = 0.0
    time: float = 0.0
    kernels: list[TracedEvent] = []  # launched directly
    children: list[TracedOperator] = []  # called operators

    def all_kernels(self) -> Iterator[TracedEvent]:
        """Yield the kernels of the operator and of all that it called."""
        yield from self.kernels
        for operator in self.children:
            yield from operator.all_kernels()

    def walk(self) -> Iterator[TracedOperator]:
        """Yield the operator and all that it called, in the order of their begins."""
        yield self
        for operator in self.children:
            yield from operator.walk()


class TracedRun(Struct, frozen=True, kw_only=True):
    """A run of a trace."""

    begin: int  # nanoseconds on the trace's clock, which is the host's
    whole: float  # seconds from the call until its outputs are ready
    busy: float  # seconds in which the GPU ran at least one event
    launches: int  # launching calls of the runtime; a CUDA graph is one
    events: tuple[TracedEvent, ...]  # in launch order; events of one call in order of their begins
    root: TracedOperator  # the run, with the host's calls; kernels without an operator are its own


class SpannedRunner:
    """A runner each of whose runs, from the call to its outputs, is a span."""

    def __init__(self, runner: Runnable) -> None:
        self._runner = runner
        self._span: Any = None

    def infer(self, feed: Any) -> Any:
        self._span = torch.profiler.record_function(RUN_SPAN)
        self._span.__enter__()
        return self._runner.infer(feed)

    def synchronize(self) -> None:
        self._runner.synchronize()
        self._span.__exit__(None, None, None)


@contextmanager
def profiler(*, on_gpu: bool, **more: Any) -> Iterator[Any]:
    """Run torch.profiler for the host and, if asked, the GPU, without its expected warnings."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
        with profile(activities=activities, **more) as running:
            yield running


def trace_runs(
    runner: Runnable,
    feed: Any,
    runs: int,
    *,
    on_gpu: bool,
    scopes: AbstractContextManager[Any] | None = None,
    **more: Any,
) -> Iterator[tuple[TimedRuns, list[TracedRun]]]:
    """Trace ``runs`` calls of ``runner.infer(feed)``, some at a time; the runner is warm.

    ``scopes`` are entered around all of them. Raises Unsupported if the profiler lost a run.
    """
    with TemporaryDirectory(prefix="inferlens-") as folder, scopes or nullcontext():
        file = Path(folder, "trace.json")
        while runs > 0:
            with profiler(on_gpu=on_gpu, **more) as profile:
                runner.infer(feed)
                runner.synchronize()
                clocked = time_runs(SpannedRunner(runner), feed, min(RUNS_PER_TRACE, runs))
            profile.export_chrome_trace(str(file))
            del profile
            traced = read_runs(read_trace(file))
            if len(traced) != len(clocked.whole):
                raise Unsupported(
                    f"torch.profiler kept {len(traced)} of {len(clocked.whole)} runs.", hint="fewer --runs"
                )
            runs -= len(traced)
            yield clocked, traced


def trace_single_run(runner: Runnable, feed: Any, *, on_gpu: bool, **more: Any) -> TracedRun:
    """Trace one untimed run."""
    ((_, (run,)),) = trace_runs(runner, feed, 1, on_gpu=on_gpu, **more)
    return run


def read_runs(trace: Trace) -> list[TracedRun]:
    """Return the runs of a trace in order, each with the calls and launches during its span.

    An event without a known launch belongs to the run in which it began.
    """
    links = LaunchLinks(trace)
    launch = links.launch
    moment = trace.begin[trace.gpu.row]
    moment[launch != NONE] = trace.begin[trace.calls.row[launch[launch != NONE]]]
    order = np.lexsort((trace.begin[trace.gpu.row], moment))
    scope_begin = trace.begin[trace.scopes.row]
    scope_order = np.argsort(scope_begin, kind="stable")  # outer scopes first
    launchers = _LaunchScopes(trace, links)
    annotations = map(int, trace.rows(Category.ANNOTATION))
    spans = (row for row in annotations if trace.name_of(row).split(" ")[:2] == RUN_SPAN.split())
    runs = []
    for span in sorted(spans, key=lambda row: int(trace.begin[row])):
        begin, end = int(trace.begin[span]), int(trace.begin[span] + trace.duration[span])
        places = order[(moment[order] >= begin) & (moment[order] < end)]
        calls = launch[places]
        scopes = scope_order[(scope_begin[scope_order] >= begin) & (scope_begin[scope_order] <= end)]
        operators = {NONE: TracedOperator(RUN_SPAN)}  # by index of the scope; the root holds those without a parent
        for scope in scopes[trace.scopes.row[scopes] != span].tolist():
            row = int(trace.scopes.row[scope])
            since, time = (int(trace.begin[row]) - begin) / 1e9, int(trace.duration[row]) / 1e9
            operators[scope] = TracedOperator(trace.name_of(row), since, time)
            operators.get(int(links.nest.parent[scope]), operators[NONE]).children.append(operators[scope])
        events = []
        for place in places.tolist():
            events.append(_event(trace, place, launchers, begin, int(moment[place]) - begin))
            operators.get(launchers.innermost(place), operators[NONE]).kernels.append(events[-1])
        runs.append(
            TracedRun(
                begin=trace.about.base + begin,
                whole=(end - begin) / 1e9,
                busy=Intervals.of_events(trace, trace.gpu.row[places]).total / 1e9,
                launches=len(np.unique(calls[calls != NONE])),
                events=tuple(events),
                root=operators[NONE],
            )
        )
    return runs


class _LaunchScopes:
    """The scopes around launches, read once per call: a CUDA graph launches all of its kernels in one."""

    def __init__(self, trace: Trace, links: LaunchLinks) -> None:
        self._trace, self._links, self._launch = trace, links, links.launch
        self._around_calls = links.around_calls()
        self._by_call: dict[int, tuple[str, tuple[str, ...]]] = {}

    def innermost(self, place: int) -> int:
        """Return the index of the innermost scope around the launch of a GPU event, or -1."""
        call = int(self._launch[place])
        return int(self._links.operator[place] if call == NONE else self._around_calls[call])

    def operator_and_scopes(self, place: int) -> tuple[str, tuple[str, ...]]:
        """Return the innermost operator around a launch, and all scopes within the run."""
        call = int(self._launch[place])
        if call == NONE:
            return self._operator([self.innermost(place)]), ()
        if call not in self._by_call:
            row = int(self._trace.calls.row[call])
            scopes = self._links.scopes_around(int(self._around_calls[call]), int(self._trace.begin[row]))
            names = (self._trace.name_of(int(self._trace.scopes.row[scope])) for scope in scopes)
            inside = tuple(name for name in names if not name.startswith(RUN_SPAN))
            self._by_call[call] = self._operator(list(scopes)), inside
        return self._by_call[call]

    def _operator(self, scopes: list[int]) -> str:
        """Return the innermost operator, such as ``aten::add``; names of compilers do not count."""
        for row in (int(self._trace.scopes.row[scope]) for scope in reversed(scopes) if scope != NONE):
            name = self._trace.name_of(row)
            if self._trace.category[row] == Category.OPERATOR and "::" in name and not name.startswith("#"):
                return name
        return ""


def _event(trace: Trace, place: int, launchers: _LaunchScopes, begin: int, launch: int) -> TracedEvent:
    gpu = trace.gpu
    row = int(gpu.row[place])
    kind = KINDS[Category(int(trace.category[row]))]
    operator, around = launchers.operator_and_scopes(place)
    grid, block = (tuple(map(int, sizes[place])) for sizes in (gpu.grid, gpu.block))
    stream, registers, shared_memory = (
        None if int(column[place]) == UNKNOWN else int(column[place])
        for column in (gpu.stream, gpu.registers, gpu.shared_memory)
    )
    estimate = float(gpu.occupancy[place])
    is_kernel = kind == KERNEL
    return TracedEvent(
        gpu_launch=GpuLaunch(
            name=trace.name_of(row),
            kind=kind,
            operator=operator,
            scopes=around,
            grid=grid if any(grid) else (),
            block=block if any(block) else (),
            stream=stream,
        ),
        begin=int(trace.begin[row]) - begin,
        launch_time=launch,
        time=int(trace.duration[row]),
        registers=registers if is_kernel else None,
        shared_memory=shared_memory if is_kernel else None,
        occupancy=min(max(estimate / 100, 0.0), 1.0) if np.isfinite(estimate) and is_kernel else None,
    )


class Tracing(Struct, frozen=True, kw_only=True):
    """The traced steps and their content, as :func:`torch.profiler.schedule` takes them."""

    wait: int = 1  # skipped steps at the begin of a cycle
    warmup: int = 1  # steps whose trace is discarded, while the profiler sets itself up
    active: int = 3  # traced steps
    repeat: int = 1  # cycles, one file per cycle
    stacks: bool = False  # Python stacks of operators, and calls of modules
    memory: bool = False  # allocations
    shapes: bool = False  # shapes of operators' inputs

    @property
    def steps(self) -> int:
        """The number of all steps, discarded ones included."""
        return (self.wait + self.warmup + self.active) * self.repeat


def write_steps(runner: Runnable, feed: Any, tracing: Tracing, folder: Path, *, on_gpu: bool, about: str) -> list[Path]:
    """Trace steps of a warm runner into one file per cycle in ``folder``, and return the files in order.

    ``about`` is JSON that is kept in each file, as :data:`METADATA_KEY`.
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
            with record_function(f"{STEP_SPAN}{number}"):
                runner.infer(feed)
                runner.synchronize()
            if profile.current_action is ProfilerAction.RECORD_AND_SAVE:
                profile.add_metadata_json(METADATA_KEY, about)
            profile.step()
    return sorted(folder.glob(f"*{SUFFIX}"))
