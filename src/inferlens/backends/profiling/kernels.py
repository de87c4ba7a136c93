"""Owners of the kernels that a CUDA graph replays: those of the same kernels in a run without the graph.

A replay calls no operators and no modules, but it runs the kernels of its capture, in their order. A run without the
graph launches the same kernels, each from an operator or a module. Both sequences are aligned by name and shape, so
that each kernel of the replay gets the owner of its counterpart. Where the sequences differ by more than a few kernels,
no kernel gets one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median_high
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.profile_table import kernel_family
from inferlens.backends.base import KernelOrigin, KernelOrigins, Launched, Origins, Runner
from inferlens.backends.profiling.layers import NO_RUNS, Runnable, Taken
from inferlens.backends.profiling.traces import (
    GPU_CLOCK,
    HOST_CLOCK,
    KERNEL,
    OURS,
    TracedEvent,
    TracedOperator,
    TracedRun,
    one_run,
    profiler,
    trace_runs,
)
from inferlens.errors import Unsupported
from inferlens.models.work.torch_module import hooked
from inferlens.record.layer_profile import GpuLimits, Kernel, Kernels, Layer, Layers
from inferlens.trace import occupancy, tensor_cores

LEAST_ALIGNED = 0.9  # of the kernels of either sequence; below, a pair may be of different layers
DIFFERENT_LAUNCHES = (
    "not known: the call that shows where kernels came from launched {}, a run {}, not the same in the same order."
)
UNPAIRED = "not known for {} of {} kernels, which the call that shows where kernels came from did not launch."
SHAPES: tuple[Callable[[Launched], Hashable], ...] = (
    lambda kernel: (kernel.name, kernel.grid, kernel.block),
    lambda kernel: kernel.name,  # autotuning may choose another grid
)


class MatchedKernels(Struct, frozen=True):
    """The kernels, copies and fills of a run without a CUDA graph, in order, with their origins."""

    kernels: list[tuple[Launched, KernelOrigin]]
    absent: dict[str, str] = {}  # what is not known of the origins, and why
    layers: tuple[Layer, ...] = ()  # the layers that the origins name, without times


def origins_by_match(launched: Sequence[Launched], matched: MatchedKernels) -> Origins:
    """Return for each kernel of a replay the origin of its counterpart, or for none where the sequences differ.

    A kernel, copy or fill whose name the other run does not have has no origin: it is the replay's alone, such as what
    copies the inputs of the graph.
    """
    there = [kernel for kernel, _ in matched.kernels]
    names = {kernel.name for kernel in there}
    places = [place for place, item in enumerate(launched) if item.name in names]
    pairs = aligned([launched[place] for place in places], there)
    origins = [KernelOrigin()] * len(launched)
    if len(pairs) < LEAST_ALIGNED * max(len(places), len(there)) or not (there or matched.absent):
        return Origins(tuple(origins), {"modules": DIFFERENT_LAUNCHES.format(len(there), len(launched))})
    for place, index in pairs:
        origins[places[place]] = matched.kernels[index][1]
    lost = len(places) - len(pairs)
    return Origins(tuple(origins), ({"modules": UNPAIRED.format(lost, len(places))} if lost else {}) | matched.absent)


def aligned(here: Sequence[Launched], there: Sequence[Launched]) -> list[tuple[int, int]]:
    """Return pairs of places in two sequences of kernels, in the order of both: by shape first, then by name alone."""
    pairs: list[tuple[int, int]] = []
    for shape in SHAPES:
        ends = pairwise([(-1, -1), *pairs, (len(here), len(there))])
        pairs = sorted([*pairs, *(
            (place + 1 + i, index + 1 + j)
            for (place, index), (next_place, next_index) in ends
            for i, j in common(
                [shape(launched) for launched in here[place + 1 : next_place]],
                [shape(launched) for launched in there[index + 1 : next_index]],
            )
        )])  # fmt: skip
    return pairs


def common(here: Sequence[Hashable], there: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of places at which two sequences are the same, as many as the order of both allows.

    That is the longest common subsequence, by Hunt and Szymanski (1977): of all pairs that fit, the longest chain in
    which both places rise. Of several it is the one with the earliest places in ``there``.
    """
    places: dict[Hashable, list[int]] = {}
    for index, name in enumerate(there):
        places.setdefault(name, []).append(index)
    ends: list[int] = []  # of the best chain of each length, the last place in ``there``
    best: list[tuple[int, int, int]] = []  # both places, and the pair before it, of every pair ever best
    at: list[int] = []  # for each length the last pair, in ``best``
    for place, name in enumerate(here):
        for index in reversed(places.get(name, ())):
            length = bisect_left(ends, index)
            if length < len(ends) and ends[length] == index:
                continue
            best.append((place, index, at[length - 1] if length else -1))
            ends[length : length + 1], at[length : length + 1] = [index], [len(best) - 1]
    chain = []
    last = at[-1] if at else -1
    while last >= 0:
        place, index, last = best[last]
        chain.append((place, index))
    return chain[::-1]


# Kernels, copies and fills of traced runs, with their times and origins.
#
# In eager PyTorch every call of a module is a scope of the trace, and the innermost module around a kernel's launch is
# its origin. A replayed CUDA graph and compiled code call no modules: see ``origins_by_match``. Tracing does not slow
# kernels down, so the layers of a GPU are timed by their kernels.

SCOPE = f"{OURS}module "
NO_ORIGINS = "which layers and modules kernels came from: {} does not report."
OUTSIDE = "not known for {} of {} kernels, copies and fills, which no module launched."
DIFFERENT_RUNS = (
    "not all runs launched the same: kernels of one name, shape and origin are one, with the most calls of a run."
)


def kernels_of(runner: Runner, feed: Any, runs: int, label: str = "the backend") -> Kernels:
    """Traces ``runs`` calls of ``runner.infer(feed)``, one after the other; the runner is entered and warm, on CUDA.

    If it can tell the origins of kernels, they are told; ``label`` is what to call the backend. Raises Unsupported if
    the profiler cannot see kernels here.
    """
    check()
    origins = runner if isinstance(runner, KernelOrigins) else None
    with profiler(on_gpu=True):  # CUPTI takes long to start
        runner.infer(feed)
        runner.synchronize()
    clocked = NO_RUNS
    found: list[TracedRun] = []
    for several, traced in trace_runs(runner, feed, runs, on_gpu=True, scopes=origins.scopes() if origins else None):
        clocked += several
        found += traced
    if not any(run.events for run in found):
        raise Unsupported(
            f"torch.profiler saw nothing run on the GPU in {runs} runs.",
            hint="no other profiler in this process, and a PyTorch built with CUPTI",
        )
    return kernels_from(found, gpu(), origins, label=label, started=clocked.started)


def check() -> None:
    """Refuses where torch.profiler cannot see a GPU's kernels, with what would help."""
    by = "Kernels are traced by torch.profiler"
    try:
        import torch
        from torch.profiler import ProfilerActivity, supported_activities
    except ImportError as error:
        raise Unsupported(f"{by}, and PyTorch is missing.", hint="install PyTorch") from error
    if not torch.cuda.is_available() or ProfilerActivity.CUDA not in supported_activities():
        raise Unsupported(f"{by}, and this PyTorch sees no GPU.", hint="a PyTorch built for CUDA")


def gpu() -> GpuLimits:
    """The current CUDA device."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return GpuLimits(
        name=properties.name,
        multiprocessors=properties.multi_processor_count,
        threads_per_multiprocessor=getattr(properties, "max_threads_per_multi_processor", 0),
        registers_per_multiprocessor=getattr(properties, "regs_per_multiprocessor", 0),
        shared_memory_per_multiprocessor=getattr(properties, "shared_memory_per_multiprocessor", 0),
        compute_capability=f"{properties.major}.{properties.minor}",
    )


def kernels_from(
    runs: Sequence[TracedRun],
    gpu: GpuLimits,
    kernel_origins: KernelOrigins | None,
    *,
    label: str = "the backend",
    started: str = "",
) -> Kernels:
    """Kernels of traced runs: one for each place where all runs launched the same, else one for each that is alike."""
    absent = {} if kernel_origins else {"origins": NO_ORIGINS.format(label)}
    same = len({tuple(event.launched.name for event in run.events) for run in runs}) == 1
    if not same:
        absent["order"] = DIFFERENT_RUNS
    asked: dict[tuple[Launched, ...], Origins] = {}  # once for runs that are alike
    found: dict[Any, tuple[KernelOrigin, list[list[TracedEvent]]]] = {}
    for number, run in enumerate(runs):
        launched = tuple(event.launched for event in run.events)
        if kernel_origins and launched not in asked:
            asked[launched] = kernel_origins.origins(launched)
            absent |= asked[launched].absent
        origins = asked[launched].of if kernel_origins else (KernelOrigin(),) * len(launched)
        for place, (event, item, origin) in enumerate(zip(run.events, launched, origins, strict=True)):
            key = place if same else (item.name, item.grid, item.block, item.operator, origin)
            found.setdefault(key, (origin, [[] for _ in runs]))[1][number].append(event)
    kernels = list(found.values())
    if not same:
        kernels.sort(key=lambda kernel: min(event.begin for events in kernel[1] for event in events))
    return Kernels(
        kernels=tuple(_kernel(events, origin, gpu) for origin, events in kernels),
        whole=tuple(run.whole for run in runs),
        busy=tuple(run.busy for run in runs),
        launches=median_high([run.launches for run in runs]),
        gpu=gpu,
        clock=GPU_CLOCK,
        absent=absent,
        begun=tuple((run.begin - runs[0].begin) / 1e9 for run in runs),
        started=started,
    )


def _kernel(each: Sequence[Sequence[TracedEvent]], origin: KernelOrigin, gpu: GpuLimits) -> Kernel:
    """One kernel from its events in every run; the first of them stands for its shape."""
    event = next(events[0] for events in each if events)
    launched = event.launched
    is_kernel = launched.kind == KERNEL
    shape = (launched.block, event.registers, event.shared_memory)
    known = occupancy.achieved(gpu, launched.grid, *shape) if is_kernel else None
    begins = tuple(max(min(event.begin for event in events), 0) / 1e9 for events in each if events)
    return Kernel(
        name=launched.name,
        kind=launched.kind,
        layer=origin.layer,
        operator=launched.operator,
        modules=origin.modules,
        times=tuple(sum(event.time for event in events) / 1e9 for events in each),
        begins=begins if all(each) else (),
        calls=max(map(len, each)),
        grid=launched.grid,
        block=launched.block,
        registers=event.registers,
        shared_memory=event.shared_memory,
        occupancy=occupancy.theoretical(gpu, *shape) if is_kernel else None,
        achieved=event.occupancy if known is None else known,
        tensor_cores=is_kernel and tensor_cores.uses_tensor_cores(launched.name),
        stream=launched.stream,
    )


class Called:
    """A call as something that runs."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def infer(self, feed: Sequence[Any]) -> Any:
        return self._call(*feed)

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()


@contextmanager
def module_scopes(module: Any) -> Iterator[None]:
    """Has every call of ``module`` and of the modules in it be a scope of the trace, named by the module's path.

    A module that has several paths goes by its first, as among the layers. Paths are quoted as in addresses: the
    profiler changes quotes in names, and loses scopes with line breaks or letters beyond ASCII.
    """
    import torch

    paths = {id(part): quote(path) for path, part in module.named_modules()}
    open_: list[tuple[int, Any]] = []

    def entering(part: Any, _: Any) -> None:
        path = paths.get(id(part))
        if path is not None:
            scope = torch.profiler.record_function(SCOPE + path)
            scope.__enter__()
            open_.append((id(part), scope))

    def leaving(part: Any, *_: Any) -> None:
        # Also called where the forward failed; a module whose own entering failed has opened nothing.
        if open_ and open_[-1][0] == id(part):
            open_.pop()[1].__exit__(None, None, None)

    with hooked(entering, leaving):
        yield


def origins_by_scope(launched: Sequence[Launched]) -> Origins:
    """The innermost module around each launch of a run that was traced with :func:`module_scopes`: its layer too."""
    found = []
    for item in launched:
        paths = [unquote(name.removeprefix(SCOPE)) for name in item.around if name.startswith(SCOPE)]
        found.append(KernelOrigin(paths[-1], (paths[-1],)) if paths else KernelOrigin())
    outside = sum(not kernel_origin.modules for kernel_origin in found)
    return Origins(tuple(found), {"modules": OUTSIDE.format(outside, len(found))} if outside else {})


def eager_kernels(module: Any, call: Callable[..., Any], feed: Sequence[Any]) -> MatchedKernels:
    """The kernels of one eager call, with the modules around them; ``call`` calls ``module``."""
    run = one_run(Called(call), feed, on_gpu=True, scopes=module_scopes(module))
    launched = [event.launched for event in run.events]
    origins = origins_by_scope(launched)
    return MatchedKernels(list(zip(launched, origins.of, strict=True)), origins.absent)


def layers_of_kernels(kernels: Kernels, layers: Iterable[Layer]) -> Layers:
    """Return ``layers`` with the times of the kernels that came from them, in the order of their begins.

    A kernel of no layer becomes a layer of its own, without modules. A layer without kernels takes no time, and begins
    with the one before it.
    """
    parts: dict[tuple[str, bool], list[Kernel]] = {}
    for kernel in kernels.kernels:
        owned = bool(kernel.layer or kernel.modules)
        parts.setdefault((kernel.layer if owned else kernel.operator or kernel.name, owned), []).append(kernel)
    found = [(layer, parts.pop((layer.name, True), [])) for layer in layers]
    for (name, _), own in parts.items():
        calls = sum(kernel.calls for kernel in own)
        found.append((Layer(name=name, kind=own[0].kind, modules=own[0].modules, calls=calls), own))
    timed: list[tuple[float, Layer]] = []
    begin, begins = 0.0, (0.0,) * len(kernels.whole)
    for layer, own in found:
        if own:
            every = zip(*(kernel.begins for kernel in own), strict=True) if all(kernel.begins for kernel in own) else ()
            begins = tuple(map(min, every))
            begin = begins[0] if begins else begin
        names = list(dict.fromkeys(kernel.name for kernel in own))
        layer = replace(
            layer,
            times=tuple(sum((kernel.times[run] for kernel in own), 0.0) for run in range(len(kernels.whole))),
            begins=begins,
            details=layer.details | ({"kernels": names} if names else {}),
        )
        timed.append((begin, layer))
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
    """Return the share of the GPU time of one call by family of kernels; see :func:`.kernel_family`."""
    check()
    seconds: dict[str, float] = {}
    for event in one_run(runner, feed, on_gpu=True).events:
        family = kernel_family(event.launched.name)
        seconds[family] = seconds.get(family, 0.0) + event.time
    whole = sum(seconds.values())
    return {family: round(time / whole, 4) for family, time in seconds.items()} if whole else {}


# Layers of compiled code inside PyTorch. An ``OperatorNames`` selects the operators that are layers. A layer's time is
# the host's time of the call; on a GPU it is the time of the kernels that it launched.

# What is called in a run: its name, and how many of that name were called before it in the same run.
Call = tuple[str, int]


class OperatorNames(ABC):
    """What a compiler tells of its code."""

    why_unknown: str  # why some operators have no module

    @abstractmethod
    def calls(self, root: TracedOperator) -> list[tuple[Call, TracedOperator]]:
        """The operators of a run that are layers."""

    @abstractmethod
    def named(self, taken: Mapping[Call, Taken]) -> dict[Call, Layer]:
        """What each call is, without times, in the order of execution; calls of one name are one layer."""

    def absent(self) -> dict[str, str]:
        """What else is not known, and why; asked after :meth:`named`. Here: nothing."""
        return {}

    def missing(self, unknown: int, what: str) -> dict[str, str]:
        """All that is not known, where so many have no module."""
        return ({"modules": f"not known for {unknown} {what}: {self.why_unknown}"} if unknown else {}) | self.absent()


def layers_of(runner: Runnable, names: OperatorNames, feed: Any, runs: int, *, on_gpu: bool) -> Layers:
    """Times the layers in ``runs`` calls of ``runner.infer(feed)``; on a GPU only what launches kernels."""
    clocked = NO_RUNS
    taken: dict[Call, Taken] = {}
    for several, traced in trace_runs(runner, feed, runs, on_gpu=on_gpu):
        for number, run in enumerate(traced, start=len(clocked.whole)):
            _take(taken, names, run.root, number, on_gpu=on_gpu)
        clocked += several
    together: dict[str, tuple[Layer, Taken]] = {}
    for call, layer in names.named(taken).items():
        if layer.name in together:
            together[layer.name][1].join(taken[call])
        else:
            together[layer.name] = layer, taken[call]
    layers = [
        replace(layer, details={"kernels": list(item.kernels)} if item.kernels else {}, **item.timing(runs))
        for layer, item in together.values()
    ]
    return clocked.layers(
        layers,
        clock=GPU_CLOCK if on_gpu else HOST_CLOCK,
        absent=names.missing(sum(not layer.modules for layer in layers), "operators"),
        on_gpu=on_gpu,
    )


def matched_kernels(runner: Runnable, names: OperatorNames, feed: Any) -> MatchedKernels:
    """The kernels of one call, in the order in which a GPU ran them, with their layers."""
    return kernels_beneath(one_run(runner, feed, on_gpu=True).root, names)


def kernels_beneath(root: TracedOperator, names: OperatorNames) -> MatchedKernels:
    """As :func:`matched_kernels`, of a run that was traced."""
    taken: dict[Call, Taken] = {}
    operators = _take(taken, names, root, 0, on_gpu=True)
    known = names.named(taken)
    found = [(event, known[call]) for call, operator in operators for event in operator.launched()]
    found.sort(key=lambda item: item[0].begin)
    absent = names.missing(sum(not layer.modules for _, layer in found), f"of {len(found)} kernels")
    absent.pop("tensors", None)  # kernels have none
    calls = Counter(known[call].name for call, _ in operators)
    layers = {layer.name: replace(layer, calls=calls[layer.name]) for _, layer in found}
    kernels = [(event.launched, KernelOrigin(layer.name, layer.modules)) for event, layer in found]
    return MatchedKernels(kernels, absent, tuple(layers.values()))


def _take(
    taken: dict[Call, Taken], names: OperatorNames, root: TracedOperator, run: int, *, on_gpu: bool
) -> list[tuple[Call, TracedOperator]]:
    """Adds what the layers of a run took; on a GPU they are those that launch kernels."""
    calls = [call for call in names.calls(root) if not on_gpu or any(call[1].launched())]
    for call, operator in calls:
        each = taken.setdefault(call, Taken())
        kernels = list(operator.launched()) if on_gpu else []
        begin = max(min(event.begin for event in kernels), 0) / 1e9 if on_gpu else operator.begin
        each.add(run, sum(event.time for event in kernels) / 1e9 if on_gpu else operator.time, begin)
        each.kernels.update(dict.fromkeys(event.launched.name for event in kernels))
    return calls


def outermost(root: TracedOperator, is_layer: Callable[[TracedOperator], bool]) -> list[TracedOperator]:
    """The outermost operators beneath ``root`` that are layers.

    Kernels that no layer launched, such as those of a CUDA graph, are each as an operator that did nothing else.
    """
    found = [TracedOperator(event.launched.name, kernels=[event]) for event in root.kernels]
    for operator in root.inside:
        found += [operator] if is_layer(operator) else outermost(operator, is_layer)
    return found


def numbered(
    operators: Iterable[TracedOperator], name: Callable[[str], str] = str
) -> list[tuple[Call, TracedOperator]]:
    """Each operator with its call: its name, as ``name`` changes it, and how many of that name are before it."""
    count: Counter[str] = Counter()
    found = []
    for operator in operators:
        called = name(operator.name)
        found.append(((called, count[called]), operator))
        count[called] += 1
    return found
