"""What a GPU ran in each of some runs: every kernel, copy and fill, its shape, its times and where it came from.

In eager PyTorch every module's call is made a scope of the trace, and the innermost module around a kernel's launch is
where it came from: an addition or ``F.relu`` in a block's forward is the block's, as among the layers. A replayed CUDA
graph, or compiled code, calls nothing that would tell: see :mod:`.kernel_matching`.

Kernels do not take longer for being traced, so on a GPU the layers of eager PyTorch, of engines and of CUDA graphs are
timed by their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median_high
from typing import Any
from urllib.parse import quote, unquote

from msgspec.structs import replace

from inferlens.analysis.profile_table import kernel_family
from inferlens.backends.abilities import KernelOrigin, KernelOrigins, Launched, Origins
from inferlens.backends.base import Runner
from inferlens.backends.profiling.kernel_matching import MatchedKernels
from inferlens.backends.profiling.layer_runs import NO_RUNS
from inferlens.backends.profiling.traced_runs import (
    GPU_CLOCK,
    KERNEL,
    OURS,
    TracedEvent,
    TracedRun,
    one_run,
    profiler,
    trace_runs,
)
from inferlens.errors import Unsupported
from inferlens.models.work.torch_module import hooked
from inferlens.record.layer_profile import GpuLimits, Kernel, Kernels, Layer, Layers
from inferlens.trace import occupancy, tensor_cores

SCOPE = f"{OURS}module "
NO_ORIGINS = "which layers and modules kernels came from: {} does not report."
OUTSIDE = "not known for {} of {} kernels, copies and fills, which no module launched."
DIFFERENT = (
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
        absent["order"] = DIFFERENT
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
    """Return the share of the GPU time of one call by family of kernels, as in ``analysis.profile.families``."""
    check()
    seconds: dict[str, float] = {}
    for event in one_run(runner, feed, on_gpu=True).events:
        family = kernel_family(event.launched.name)
        seconds[family] = seconds.get(family, 0.0) + event.time
    whole = sum(seconds.values())
    return {family: round(time / whole, 4) for family, time in seconds.items()} if whole else {}
