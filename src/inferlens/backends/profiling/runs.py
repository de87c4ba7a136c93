"""Runs of a prepared model: timed as a whole, by hooks on its modules, or traced by torch.profiler.

A runner that was prepared to be timed refuses to be profiled: no timing is instrumented.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.base import GpuLaunch, Preparation, Runner
from inferlens.backends.clocks import nvtx_push_pop
from inferlens.errors import LateModule, Unsupported
from inferlens.models.work import module_hooks
from inferlens.record.profile import Layer, Layers, Tensor
from inferlens.trace.analysis import Intervals
from inferlens.trace.model import NONE, UNKNOWN, Category, LaunchLinks, Trace
from inferlens.trace.read import read_trace

torch: Any = LateModule("torch")


def check_level(preparation: Preparation, *, replays: bool = False) -> None:
    """Refuse to profile a runner that was prepared to be timed, or that ``replays`` a CUDA graph."""
    if preparation.level not in ("layer", "kernel"):
        message = "The runner was prepared to be timed, not to be profiled."
        raise Unsupported(message, expected="the level 'layer' or 'kernel'")
    if replays:
        raise Unsupported("A CUDA graph replays kernels and has no layers.", hint="without cuda_graph")


class LayerTimes(Struct):
    """The seconds, first begin and calls of a layer in each run, and the names of its kernels."""

    times: dict[int, float] = {}
    begins: dict[int, float] = {}
    calls: dict[int, int] = {}
    kernels: dict[str, None] = {}

    def add(self, run: int, time: float, begin: float) -> None:
        self.times[run] = self.times.get(run, 0.0) + time
        self.begins.setdefault(run, begin)
        self.calls[run] = self.calls.get(run, 0) + 1

    def timing(self, runs: int) -> dict[str, Any]:
        return {
            "times": tuple(self.times.get(run, 0.0) for run in range(runs)),
            "begins": tuple(self.begins.get(run, 0.0) for run in range(runs)),
            "calls": max(self.calls.values()),
        }


class Runnable(Protocol):
    """Something that can be run: a runner, or any object with these two methods."""

    def infer(self, feed: Any) -> Any:
        """One call."""

    def synchronize(self) -> None:
        """Wait until the outputs are ready."""


class TimedRuns(Struct, frozen=True):
    """The times of some runs on the host's clock."""

    whole: tuple[float, ...]  # seconds from the call until its outputs are ready
    starts: tuple[float, ...]  # begins, in seconds of time.perf_counter()
    started: str  # UTC time of the first begin, ISO 8601

    @property
    def begins(self) -> tuple[float, ...]:
        """The begin of each run, in seconds since the first one began."""
        return tuple(moment - self.starts[0] for moment in self.starts)

    def __add__(self, later: TimedRuns) -> TimedRuns:
        return TimedRuns(self.whole + later.whole, self.starts + later.starts, self.started or later.started)

    def layers(
        self, layers: Iterable[Layer], *, clock: str, absent: dict[str, str] | None = None, on_gpu: bool = False
    ) -> Layers:
        return Layers(
            layers=tuple(layers),
            whole=self.whole,
            timed="GPU" if on_gpu else "host",
            clock=clock,
            absent=absent or {},
            begun=self.begins,
            started=self.started,
        )


NO_RUNS = TimedRuns((), (), "")


def time_runs(runner: Runnable, feed: Any, runs: int, after: Callable[[], None] = lambda: None) -> TimedRuns:
    """Time ``runs`` calls of ``runner``, each until its outputs are ready.

    ``after`` is called between the runs, outside of their times.
    """
    now, whole, moments = time.perf_counter_ns, [], []
    started = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    for _ in range(runs):
        begin = now()
        runner.infer(feed)
        runner.synchronize()
        whole.append((now() - begin) / 1e9)
        moments.append(begin / 1e9)
        after()
    return TimedRuns(tuple(whole), tuple(moments), started)


# The layers of a PyTorch module, timed by forward hooks. A layer's time is that of its module without the modules that
# it calls. It includes Python and the hooks between two modules, so the times of all layers add up to that of the run.
# A hook only stores a mark: a moment, or on a GPU a CUDA event that is read after the run.

HOOK_CLOCK = "time.perf_counter_ns in forward hooks"
HOOK_GPU_CLOCK = "CUDA events in forward hooks; where the host does not keep up, a layer's time holds the wait for it"
EXPORTED_CHECK = "_guards_fn"
NO_MODULES = "the model calls no modules: it is one graph, with one layer. Profile the nn.Module that it came from."


class HostMarks:
    """Times on the host's clock, in nanoseconds."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self.take: Callable[[], None] = lambda: self._times.append(time.perf_counter_ns())

    def read(self) -> list[float]:
        """Return the seconds from the first mark to each, and forget them."""
        times, self._times = self._times, []
        return [(moment - times[0]) / 1e9 for moment in times]


class GpuMarks:
    """Times on the current CUDA stream, as events that every run uses again."""

    def __init__(self, expected: int) -> None:
        self._event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True)
        self._events = [self._event() for _ in range(expected)]
        self._used = 0

    def take(self) -> None:
        if self._used == len(self._events):
            self._events.append(self._event())
        self._events[self._used].record()
        self._used += 1

    def read(self) -> list[float]:
        """Wait until the GPU has reached the last mark, return the seconds from the first to each, and forget them."""
        events, self._used = self._events[: self._used], 0
        events[-1].synchronize()
        return [events[0].elapsed_time(event) / 1e3 for event in events]


def time_modules(runner: Runner, module: Any, feed: Any, runs: int, *, on_gpu: bool = False) -> Layers:
    """Time the modules of ``module`` in ``runs`` calls of ``runner.infer(feed)``, after an untimed one.

    Each call of a module is an NVTX range with its path, too.
    """
    layers, absent = module_layers(runner, module, feed)
    paths, modules = zip(*module.named_modules(), strict=True)  # a module with several paths has the first
    numbers = {id(part): index for index, part in enumerate(modules)}
    moments = GpuMarks(2 * len(modules) + 1) if on_gpu else HostMarks()
    marks: list[int] = []
    times: dict[int, LayerTimes] = {}
    run = itertools.count()
    begin_range, end_range = nvtx_push_pop()

    def enter(part: Any, _: Any) -> None:
        index = numbers.get(id(part))
        if index is not None:
            marks.append(index)
            begin_range(f"module: {paths[index]}")
            moments.take()

    def leave(part: Any, *_: Any) -> None:  # also called if a call fails and the model continues
        index = numbers.get(id(part))
        if index is not None:
            moments.take()
            end_range()
            marks.append(~index)

    def after() -> None:
        add_own_times(times, next(run), marks, moments.read()[1:])
        marks.clear()
        moments.take()

    with module_hooks(enter, leave):
        moments.take()
        timed_runs = time_runs(runner, feed, runs, after)
    timings = {paths[index]: layer_times.timing(runs) for index, layer_times in times.items()}
    layers = [replace(layer, **timings[layer.name]) for layer in layers if layer.name in timings]
    return timed_runs.layers(layers, clock=HOOK_GPU_CLOCK if on_gpu else HOOK_CLOCK, absent=absent, on_gpu=on_gpu)


def module_layers(runner: Runnable, module: Any, feed: Any) -> tuple[list[Layer], dict[str, str]]:
    """Return the modules that one untimed call calls, in order, and what is unknown of them."""
    paths = {id(part): path for path, part in module.named_modules()}
    layers: dict[str, Layer] = {}

    def enter(part: Any, _: Any) -> None:
        path = paths.get(id(part))
        if path is not None:
            layer = layers.get(path, Layer(name=path, kind=type(part).__name__, modules=(path,), calls=0))
            layers[path] = replace(layer, calls=layer.calls + 1)

    def leave(part: Any, arguments: Any, named: Any, result: Any = None) -> None:
        path = paths.get(id(part))
        layer = None if path is None else layers.get(path)
        if layer is not None and not (layer.inputs or layer.outputs):
            tensors = {"inputs": value_tensors((arguments, named)), "outputs": value_tensors(result)}
            layers[layer.name] = replace(layer, **tensors)

    with module_hooks(enter, leave):
        runner.infer(feed)
        runner.synchronize()
    # An exported program calls no module except its own check.
    is_flat = len(paths) > 1 and len(layers.keys() - {EXPORTED_CHECK}) < 2
    return [*layers.values()], {"modules": NO_MODULES} if is_flat else {}


def add_own_times(times: dict[int, LayerTimes], run: int, marks: list[int], moments: list[float]) -> None:
    """Add the times of modules in one run, without the modules that they called, by the module's number.

    ``marks`` has the number of a module when it was entered, and ``~number`` when it was left, in order. ``moments``
    has the seconds since the run began.
    """
    entered: list[list[float]] = []  # for each open module its begin, and the time of the modules that it called
    for mark, moment in zip(marks, moments, strict=True):
        if mark >= 0:
            entered.append([moment, 0.0])
            continue
        begin, inner_time = entered.pop()
        own_time = max(moment - begin - inner_time, 0.0)  # rounding can make it negative
        times.setdefault(~mark, LayerTimes()).add(run, own_time, begin)
        if entered:
            entered[-1][1] += moment - begin


def value_tensors(value: Any) -> tuple[Tensor, ...]:
    """Return the tensors in ``value``, any nesting flattened in order."""
    return tuple(
        Tensor(shape=tuple(leaf.shape), dtype=str(leaf.dtype).removeprefix("torch."))
        for leaf in torch.utils._pytree.tree_leaves(value)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    )


# Traces of torch.profiler, with the host's calls and the GPU's events. Each run, from the call until its outputs are
# ready, is a span of the trace. A GPU event belongs to the run in which any library launched it. Runs are traced a few
# at a time, so that memory does not grow with their number. A discarded call comes first, because the profiler needs
# time to start.
#
# Traces of steps are files as PyTorch writes them for TensorBoard. A step is one call until its outputs are ready, in a
# span with its number, and within PyTorch's ``ProfilerStep#N``.

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
def profiler(*, on_gpu: bool, **settings: Any) -> Iterator[Any]:
    """Run torch.profiler for the host and, with ``on_gpu``, the GPU, without its expected warnings."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
        with profile(activities=activities, **settings) as running:
            yield running


def trace_runs(
    runner: Runnable,
    feed: Any,
    runs: int,
    *,
    on_gpu: bool,
    scopes: AbstractContextManager[Any] | None = None,
    **settings: Any,
) -> Iterator[tuple[TimedRuns, list[TracedRun]]]:
    """Trace ``runs`` calls of ``runner.infer(feed)``, a few at a time; the runner is warm.

    ``scopes`` is entered around all calls, and ``settings`` are those of torch.profiler. Raises Unsupported if the
    profiler lost a run.
    """
    with TemporaryDirectory(prefix="inferlens-") as folder, scopes or nullcontext():
        file = Path(folder, "trace.json")
        while runs > 0:
            with profiler(on_gpu=on_gpu, **settings) as profile:
                runner.infer(feed)
                runner.synchronize()
                timed = time_runs(SpannedRunner(runner), feed, min(RUNS_PER_TRACE, runs))
            profile.export_chrome_trace(str(file))
            del profile
            traced = read_runs(read_trace(file))
            if len(traced) != len(timed.whole):
                message = f"torch.profiler kept {len(traced)} of {len(timed.whole)} runs."
                raise Unsupported(message, hint="fewer --runs")
            runs -= len(traced)
            yield timed, traced


def trace_single_run(runner: Runnable, feed: Any, *, on_gpu: bool, **settings: Any) -> TracedRun:
    """Trace one untimed run."""
    ((_, (run,)),) = trace_runs(runner, feed, 1, on_gpu=on_gpu, **settings)
    return run


def read_runs(trace: Trace) -> list[TracedRun]:
    """Return the runs of a trace in order, each with the calls and launches during its span.

    An event without a known launch belongs to the run in which it began.
    """
    links = LaunchLinks(trace)
    launch = links.launch
    has_launch = launch != NONE
    launch_times = trace.begin[trace.gpu.row]
    launch_times[has_launch] = trace.begin[trace.calls.row[launch[has_launch]]]
    innermost = np.array(links.operator)  # the scope around the launch of each event
    innermost[has_launch] = links.around_calls()[launch[has_launch]]
    order = np.lexsort((trace.begin[trace.gpu.row], launch_times))
    scope_begin = trace.begin[trace.scopes.row]
    scope_order = np.argsort(scope_begin, kind="stable")  # outer scopes first
    annotations = map(int, trace.rows(Category.ANNOTATION))
    spans = (row for row in annotations if trace.name_of(row).split(" ")[:2] == RUN_SPAN.split())
    runs = []
    for span in sorted(spans, key=lambda row: int(trace.begin[row])):
        begin, end = int(trace.begin[span]), int(trace.begin[span] + trace.duration[span])
        indices = order[(launch_times[order] >= begin) & (launch_times[order] < end)]
        calls = launch[indices]
        scopes = scope_order[(scope_begin[scope_order] >= begin) & (scope_begin[scope_order] <= end)]
        operators = {NONE: TracedOperator(RUN_SPAN)}  # by index of the scope; the root holds those without a parent
        for scope in scopes[trace.scopes.row[scopes] != span].tolist():
            row = int(trace.scopes.row[scope])
            scope_time = int(trace.duration[row]) / 1e9
            operators[scope] = TracedOperator(trace.name_of(row), (int(trace.begin[row]) - begin) / 1e9, scope_time)
            operators.get(int(links.nest.parent[scope]), operators[NONE]).children.append(operators[scope])
        events = []
        for index in indices.tolist():
            scope, launch_time = int(innermost[index]), int(launch_times[index])
            scope_rows = [int(trace.scopes.row[outer]) for outer in links.scopes_around(scope, launch_time)]
            events.append(_event(trace, index, scope_rows, begin, launch_time - begin))
            operators.get(scope, operators[NONE]).kernels.append(events[-1])
        runs.append(
            TracedRun(
                begin=trace.about.base + begin,
                whole=(end - begin) / 1e9,
                busy=Intervals.of_events(trace, trace.gpu.row[indices]).total / 1e9,
                launches=len(np.unique(calls[calls != NONE])),
                events=tuple(events),
                root=operators[NONE],
            )
        )
    return runs


def _innermost_operator(trace: Trace, scope_rows: Sequence[int]) -> str:
    """Return the innermost operator, such as ``aten::add``; names of compilers do not count."""
    for row in reversed(scope_rows):
        name = trace.name_of(row)
        if trace.category[row] == Category.OPERATOR and "::" in name and not name.startswith("#"):
            return name
    return ""


def _event(trace: Trace, index: int, scope_rows: Sequence[int], begin: int, launch_time: int) -> TracedEvent:
    """Return a GPU event; ``scope_rows`` are the rows of the scopes around its launch, outermost first."""
    gpu = trace.gpu
    row = int(gpu.row[index])
    kind = KINDS[Category(int(trace.category[row]))]
    grid, block = tuple(map(int, gpu.grid[index])), tuple(map(int, gpu.block[index]))
    stream, registers, shared_memory = (
        None if int(column[index]) == UNKNOWN else int(column[index])
        for column in (gpu.stream, gpu.registers, gpu.shared_memory)
    )
    estimate = float(gpu.occupancy[index])
    is_kernel = kind == KERNEL
    return TracedEvent(
        gpu_launch=GpuLaunch(
            name=trace.name_of(row),
            kind=kind,
            operator=_innermost_operator(trace, scope_rows),
            scopes=tuple(name for name in map(trace.name_of, scope_rows) if not name.startswith(RUN_SPAN)),
            grid=grid if any(grid) else (),
            block=block if any(block) else (),
            stream=stream,
        ),
        begin=int(trace.begin[row]) - begin,
        launch_time=launch_time,
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
