"""Kernels and layers of traced runs, and the origins of kernels in a CUDA graph.

A replay calls no operators and no modules, but runs the kernels of its capture in their order. A run without the graph
launches the same kernels, each from an operator or a module. Both sequences are aligned by name, and each kernel of the
replay gets the origin of its counterpart. If the sequences differ by more than a few kernels, none gets an origin.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median_high
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.profile_table import kernel_family
from inferlens.backends.base import GpuLaunch, KernelOrigin, KernelSources, KernelTracer, LayerProfiler, Runner
from inferlens.backends.profiling.runs import (
    GPU_CLOCK,
    HOST_CLOCK,
    KERNEL,
    NO_RUNS,
    SPAN_PREFIX,
    LayerTimes,
    Runnable,
    TracedEvent,
    TracedOperator,
    TracedRun,
    profiler,
    trace_runs,
    trace_single_run,
)
from inferlens.errors import LateModule, Unsupported
from inferlens.models.work import module_hooks
from inferlens.record.profile import GpuLimits, Kernel, Kernels, Layer, Layers
from inferlens.trace import kernels

torch: Any = LateModule("torch")

MIN_ALIGNED = 0.9  # share of either sequence; below it, pairs may belong to different layers


class MatchedKernels(Struct, frozen=True):
    """The kernels, copies and fills of a run without a CUDA graph, in order, with their origins."""

    kernels: list[tuple[GpuLaunch, KernelOrigin]]
    absent: dict[str, str] = {}  # reasons for unknown origins
    layers: tuple[Layer, ...] = ()  # the layers of the origins, without times


def sources_by_match(launched: Sequence[GpuLaunch], matched: MatchedKernels) -> KernelSources:
    """Return for each kernel of a replay the origin of its counterpart.

    A kernel whose name the other run lacks, such as a copy of an input, only belongs to the replay and has no origin.
    """
    names = [kernel.name for kernel, _ in matched.kernels]
    common = [index for index, launch in enumerate(launched) if launch.name in names]
    pairs = longest_common_pairs([launched[index].name for index in common], names)
    origins = [KernelOrigin()] * len(launched)
    if len(pairs) < MIN_ALIGNED * max(len(common), len(names)) or not (names or matched.absent):
        counts = f"the call without a CUDA graph launched {len(names)}, a run {len(launched)}"
        return KernelSources(tuple(origins), {"modules": f"unknown: {counts}, not the same in the same order."})
    for position, counterpart in pairs:
        origins[common[position]] = matched.kernels[counterpart][1]
    unmatched = len(common) - len(pairs)
    why = f"unknown for {unmatched} of {len(common)} kernels, which the call without a CUDA graph did not launch."
    return KernelSources(tuple(origins), ({"modules": why} if unmatched else {}) | matched.absent)


def longest_common_pairs(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of positions at which two sequences are equal, as many as their order allows.

    This is the longest common subsequence by Hunt and Szymanski (1977): of all pairs of equal names, the longest chain
    in which both positions rise. Of several chains it is the one with the earliest positions in ``second``.
    """
    positions: dict[str, list[int]] = {}
    for position, name in enumerate(second):
        positions.setdefault(name, []).append(position)
    ends: list[int] = []  # last position in ``second`` of the best chain of each length
    pairs: list[tuple[int, int, int]] = []  # both positions and the previous pair, for every pair that was ever best
    last_pairs: list[int] = []  # index in ``pairs`` of the last pair of the best chain of each length
    for position, name in enumerate(first):
        for end in reversed(positions.get(name, ())):
            length = bisect_left(ends, end)
            if length == len(ends) or ends[length] != end:
                pairs.append((position, end, last_pairs[length - 1] if length else -1))
                ends[length : length + 1] = [end]
                last_pairs[length : length + 1] = [len(pairs) - 1]
    chain = []
    pair = last_pairs[-1] if last_pairs else -1
    while pair >= 0:
        position, end, pair = pairs[pair]
        chain.append((position, end))
    return chain[::-1]


# Kernels, copies and fills of traced runs, with their times and origins.
#
# In eager PyTorch every call of a module is a scope of the trace, and the innermost module around a kernel's launch is
# its origin. A replayed CUDA graph and compiled code call no modules; a ``MatchingTracer`` finds their origins. Tracing
# does not slow kernels down, so the layers of a GPU are timed by their kernels.

SCOPE = f"{SPAN_PREFIX}module "


def trace_kernels(runner: Runner, feed: Any, runs: int, label: str = "the backend") -> Kernels:
    """Trace ``runs`` calls of ``runner.infer(feed)`` on CUDA; the runner is entered and warm.

    Kernels get their origins if the runner is a KernelTracer; ``label`` names the backend. Raises Unsupported if the
    profiler cannot see kernels here.
    """
    check_profiler()
    tracer = runner if isinstance(runner, KernelTracer) else None
    with profiler(on_gpu=True):  # starting CUPTI takes long
        runner.infer(feed)
        runner.synchronize()
    timed_runs = NO_RUNS
    traced_runs: list[TracedRun] = []
    for timed, traced in trace_runs(runner, feed, runs, on_gpu=True, scopes=tracer.scopes() if tracer else None):
        timed_runs += timed
        traced_runs += traced
    if not any(run.events for run in traced_runs):
        message = f"torch.profiler saw nothing run on the GPU in {runs} runs."
        raise Unsupported(message, hint="no other profiler in this process, and a PyTorch built with CUPTI")
    return kernels_of_runs(traced_runs, gpu_limits(), tracer, label=label, started=timed_runs.started)


def check_profiler() -> None:
    """Raise Unsupported where torch.profiler cannot see a GPU's kernels."""
    message = "Kernels are traced by torch.profiler, and"
    try:
        import torch
        from torch.profiler import ProfilerActivity, supported_activities
    except ImportError as error:
        raise Unsupported(f"{message} PyTorch is missing.", hint="install PyTorch") from error
    if not torch.cuda.is_available() or ProfilerActivity.CUDA not in supported_activities():
        raise Unsupported(f"{message} this PyTorch sees no GPU.", hint="a PyTorch built for CUDA")


def gpu_limits() -> GpuLimits:
    """Return the limits of the current CUDA device."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return GpuLimits(
        name=properties.name,
        multiprocessors=properties.multi_processor_count,
        threads_per_multiprocessor=getattr(properties, "max_threads_per_multi_processor", 0),
        registers_per_multiprocessor=getattr(properties, "regs_per_multiprocessor", 0),
        shared_memory_per_multiprocessor=getattr(properties, "shared_memory_per_multiprocessor", 0),
        compute_capability=f"{properties.major}.{properties.minor}",
    )


def kernels_of_runs(
    runs: Sequence[TracedRun],
    gpu: GpuLimits,
    tracer: KernelTracer | None,
    *,
    label: str = "the backend",
    started: str = "",
) -> Kernels:
    """Return one kernel for each launch of a run. Equal launches of a run are told apart by their number.

    Launches are equal if they have the same name and origin.
    """
    absent = {} if tracer else {"origins": f"unknown: {label} does not report the layers and modules of kernels."}
    if len({tuple(event.gpu_launch.name for event in run.events) for run in runs}) > 1:
        absent["order"] = "not all runs launched the same: a kernel that a run did not launch takes no time there."
    sources: dict[tuple[GpuLaunch, ...], KernelSources] = {}  # by launches, once for equal runs
    events_by_key: dict[tuple[str, KernelOrigin, int], list[TracedEvent | None]] = {}
    for run_number, run in enumerate(runs):
        launched = tuple(event.gpu_launch for event in run.events)
        if tracer and launched not in sources:
            sources[launched] = tracer.kernel_sources(launched)
            absent |= sources[launched].absent
        origins = sources[launched].origins if tracer else (KernelOrigin(),) * len(launched)
        count: Counter[tuple[str, KernelOrigin]] = Counter()
        for event, origin in zip(run.events, origins, strict=True):
            name = event.gpu_launch.name
            events_by_key.setdefault((name, origin, count[name, origin]), [None] * len(runs))[run_number] = event
            count[name, origin] += 1
    return Kernels(
        kernels=tuple(_kernel(events, origin, gpu) for (_, origin, _), events in events_by_key.items()),
        whole=tuple(run.whole for run in runs),
        busy=tuple(run.busy for run in runs),
        launches=median_high([run.launches for run in runs]),
        gpu=gpu,
        clock=GPU_CLOCK,
        absent=absent,
        begun=tuple((run.begin - runs[0].begin) / 1e9 for run in runs),
        started=started,
    )


def _kernel(events: Sequence[TracedEvent | None], origin: KernelOrigin, gpu: GpuLimits) -> Kernel:
    """Return one kernel from its event in every run, ``None`` where it was not launched; the first gives its shape."""
    launches = [event for event in events if event is not None]
    event = launches[0]
    launched = event.gpu_launch
    is_kernel = launched.kind == KERNEL
    shape = (launched.block, event.registers, event.shared_memory)
    occupancy = kernels.achieved(gpu, launched.grid, *shape) if is_kernel else None
    begins = tuple(max(event.begin, 0) / 1e9 for event in launches)
    return Kernel(
        name=launched.name,
        kind=launched.kind,
        layer=origin.layer,
        operator=launched.operator,
        modules=origin.modules,
        times=tuple(event.time / 1e9 if event else 0.0 for event in events),
        begins=begins if len(launches) == len(events) else (),
        grid=launched.grid,
        block=launched.block,
        registers=event.registers,
        shared_memory=event.shared_memory,
        occupancy=kernels.theoretical(gpu, *shape) if is_kernel else None,
        achieved=event.occupancy if occupancy is None else occupancy,
        tensor_cores=is_kernel and kernels.uses_tensor_cores(launched.name),
        stream=launched.stream,
    )


class CallRunner:
    """A callable in the form of a runner."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def infer(self, feed: Sequence[Any]) -> Any:
        return self._call(*feed)

    def synchronize(self) -> None:
        torch.cuda.synchronize()


@contextmanager
def module_scopes(module: Any) -> Iterator[None]:
    """Make every call of ``module`` and its modules a scope of the trace, named by the module's path.

    A module with several paths has the first one. Paths are quoted as in URLs, because the profiler changes quotes in
    names and loses scopes with line breaks or letters beyond ASCII.
    """
    paths = {id(part): quote(path) for path, part in module.named_modules()}
    entered: list[tuple[int, Any]] = []

    def enter(part: Any, _: Any) -> None:
        path = paths.get(id(part))
        if path is not None:
            scope = torch.profiler.record_function(SCOPE + path)
            scope.__enter__()
            entered.append((id(part), scope))

    def leave(part: Any, *_: Any) -> None:
        # This is called after a failed forward too, but there is no scope if ``enter`` failed.
        if entered and entered[-1][0] == id(part):
            entered.pop()[1].__exit__(None, None, None)

    with module_hooks(enter, leave):
        yield


def sources_by_scope(launched: Sequence[GpuLaunch]) -> KernelSources:
    """Return the innermost module around each launch of a run that was traced with :func:`module_scopes`."""
    origins = []
    for launch in launched:
        paths = [unquote(name.removeprefix(SCOPE)) for name in launch.scopes if name.startswith(SCOPE)]
        origins.append(KernelOrigin(paths[-1], (paths[-1],)) if paths else KernelOrigin())
    count = sum(not origin.modules for origin in origins)
    why = f"unknown for {count} of {len(origins)} kernels, copies and fills, which no module launched."
    return KernelSources(tuple(origins), {"modules": why} if count else {})


def eager_kernels(module: Any, call: Callable[..., Any], feed: Sequence[Any]) -> MatchedKernels:
    """Return the kernels of one eager call with their modules; ``call`` calls ``module``."""
    run = trace_single_run(CallRunner(call), feed, on_gpu=True, scopes=module_scopes(module))
    launched = [event.gpu_launch for event in run.events]
    sources = sources_by_scope(launched)
    return MatchedKernels(list(zip(launched, sources.origins, strict=True)), sources.absent)


def layers_of_kernels(kernels: Kernels, layers: Iterable[Layer]) -> Layers:
    """Return ``layers`` with the times of their kernels, in the order of their begins.

    Kernels without a layer become layers by the name of their operator or by their own name. A layer without kernels
    takes no time, and begins with the layer before it.
    """
    by_layer: dict[tuple[str, bool], list[Kernel]] = {}
    for kernel in kernels.kernels:
        has_layer = bool(kernel.layer or kernel.modules)
        name = kernel.layer if has_layer else kernel.operator or kernel.name
        by_layer.setdefault((name, has_layer), []).append(kernel)
    pairs = [(layer, by_layer.pop((layer.name, True), [])) for layer in layers]
    for (name, _), group in by_layer.items():
        calls = sum(kernel.calls for kernel in group)
        pairs.append((Layer(name=name, kind=group[0].kind, modules=group[0].modules, calls=calls), group))
    timed: list[tuple[float, Layer]] = []
    begin, begins = 0.0, (0.0,) * len(kernels.whole)
    for layer, group in pairs:
        if group:
            has_begins = all(kernel.begins for kernel in group)
            begins = tuple(map(min, zip(*(kernel.begins for kernel in group), strict=True))) if has_begins else ()
            begin = begins[0] if begins else begin
        names = list(dict.fromkeys(kernel.name for kernel in group))
        times = tuple(sum((kernel.times[run] for kernel in group), 0.0) for run in range(len(kernels.whole)))
        details = layer.details | ({"kernels": names} if names else {})
        timed.append((begin, replace(layer, times=times, begins=begins, details=details)))
    timed.sort(key=lambda pair: pair[0])
    return Layers(
        layers=tuple(layer for _, layer in timed),
        whole=kernels.whole,
        timed="GPU",
        clock=kernels.clock,
        absent=kernels.absent,
        begun=kernels.begun,
        started=kernels.started,
    )


def kernel_families(runner: Runner, feed: Any) -> dict[str, float]:
    """Return the share of the GPU time of one call by family of kernels (``analysis.profile_table.kernel_family``)."""
    check_profiler()
    seconds: dict[str, float] = {}
    for event in trace_single_run(runner, feed, on_gpu=True).events:
        family = kernel_family(event.gpu_launch.name)
        seconds[family] = seconds.get(family, 0.0) + event.time
    total = sum(seconds.values())
    return {family: round(time / total, 4) for family, time in seconds.items()} if total else {}


class MatchingTracer(Runner, LayerProfiler, KernelTracer):
    """A runner whose kernels have the origins of the same kernels in another call, which is traced once."""

    _matched: MatchedKernels | None = None

    @abstractmethod
    def matched_kernels(self) -> MatchedKernels:
        """Return the kernels of one untimed call without a CUDA graph, with their origins."""

    def kernel_sources(self, launched: Sequence[GpuLaunch]) -> KernelSources:
        if self._matched is None:
            self._matched = self.matched_kernels()
        return sources_by_match(launched, self._matched)

    def matched_layers(self, feed: Any, runs: int, label: str = "the backend") -> Layers:
        """Return the layers of the origins, timed by their kernels in ``runs`` calls; ``label`` names the backend."""
        kernels = trace_kernels(self, feed, runs, label)
        return layers_of_kernels(kernels, self._matched.layers if self._matched else ())


# Layers of compiled code inside PyTorch. An ``OperatorNames`` selects the operators that are layers. A layer's time is
# the host's time of the call; on a GPU it is the time of the kernels that the layer launched.

# A call in a run: its name, and the number of earlier calls with that name.
Call = tuple[str, int]


class OperatorNames(ABC):
    """The names and the modules of the operators in a compiler's code."""

    unknown_reason: str  # the reason why operators have no module

    @abstractmethod
    def calls(self, root: TracedOperator) -> list[tuple[Call, TracedOperator]]:
        """Return the operators of a run that are layers."""

    @abstractmethod
    def name_layers(self, times: Mapping[Call, LayerTimes]) -> dict[Call, Layer]:
        """Return the layer of each call, without times, in execution order; names are unique."""

    def absent(self) -> dict[str, str]:
        """Return what else is unknown, and why; called after :meth:`name_layers`."""
        return {}

    def absences(self, count: int, noun: str) -> dict[str, str]:
        """Return all that is unknown; ``count`` of the things called ``noun`` have no module."""
        return ({"modules": f"unknown for {count} {noun}: {self.unknown_reason}"} if count else {}) | self.absent()


def trace_layers(runner: Runnable, names: OperatorNames, feed: Any, runs: int, *, on_gpu: bool) -> Layers:
    """Time the layers in ``runs`` calls of ``runner.infer(feed)``; on a GPU those that launch kernels."""
    timed_runs = NO_RUNS
    times: dict[Call, LayerTimes] = {}
    for timed, traced in trace_runs(runner, feed, runs, on_gpu=on_gpu):
        for number, run in enumerate(traced, start=len(timed_runs.whole)):
            _add_run(times, names, run.root, number, on_gpu=on_gpu)
        timed_runs += timed
    layers = []
    for call, layer in names.name_layers(times).items():
        kernels = list(times[call].kernels)
        layers.append(replace(layer, details={"kernels": kernels} if kernels else {}, **times[call].timing(runs)))
    return timed_runs.layers(
        layers,
        clock=GPU_CLOCK if on_gpu else HOST_CLOCK,
        absent=names.absences(sum(not layer.modules for layer in layers), "operators"),
        on_gpu=on_gpu,
    )


def kernels_below(root: TracedOperator, names: OperatorNames) -> MatchedKernels:
    """Return the kernels below a traced operator with their layers, in the order in which the GPU ran them."""
    times: dict[Call, LayerTimes] = {}
    operators = _add_run(times, names, root, 0, on_gpu=True)
    named = names.name_layers(times)
    events = [(event, named[call]) for call, operator in operators for event in operator.all_kernels()]
    events.sort(key=lambda pair: pair[0].begin)
    absent = names.absences(sum(not layer.modules for _, layer in events), f"of {len(events)} kernels")
    absent.pop("tensors", None)  # kernels have no tensors
    calls = Counter(named[call].name for call, _ in operators)
    layers = {layer.name: replace(layer, calls=calls[layer.name]) for _, layer in events}
    kernels = [(event.gpu_launch, KernelOrigin(layer.name, layer.modules)) for event, layer in events]
    return MatchedKernels(kernels, absent, tuple(layers.values()))


def _add_run(
    times: dict[Call, LayerTimes], names: OperatorNames, root: TracedOperator, run: int, *, on_gpu: bool
) -> list[tuple[Call, TracedOperator]]:
    """Add the times of a run's layers, and return their operators; on a GPU only those that launch kernels."""
    calls = [(call, operator) for call, operator in names.calls(root) if not on_gpu or any(operator.all_kernels())]
    for call, operator in calls:
        layer_times = times.setdefault(call, LayerTimes())
        if on_gpu:
            events = list(operator.all_kernels())
            begin = max(min(event.begin for event in events), 0) / 1e9
            layer_times.add(run, sum(event.time for event in events) / 1e9, begin)
            layer_times.kernels.update(dict.fromkeys(event.gpu_launch.name for event in events))
        else:
            layer_times.add(run, operator.time, operator.begin)
    return calls


def outermost_operators(root: TracedOperator, is_layer: Callable[[str], bool]) -> list[TracedOperator]:
    """Return the outermost operators below ``root`` whose names satisfy ``is_layer``.

    A kernel that no such operator launched, such as one of a CUDA graph, becomes an operator.
    """
    operators = [TracedOperator(event.gpu_launch.name, kernels=[event]) for event in root.kernels]
    for operator in root.children:
        operators += [operator] if is_layer(operator.name) else outermost_operators(operator, is_layer)
    return operators


def number_calls(
    operators: Iterable[TracedOperator], name: Callable[[str], str] = str
) -> list[tuple[Call, TracedOperator]]:
    """Return each operator with its call: its name, changed by ``name``, and its number among equal names."""
    count: Counter[str] = Counter()
    calls = []
    for operator in operators:
        call_name = name(operator.name)
        calls.append(((call_name, count[call_name]), operator))
        count[call_name] += 1
    return calls
