"""What a GPU ran in each of some runs: every kernel, copy and fill, its shape, its times and where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_high
from typing import Any

from inferlens.backends.abilities import KernelOrigins, Launched, Origin, Origins
from inferlens.backends.base import Runner
from inferlens.backends.profiling.layer_runs import NO_RUNS
from inferlens.backends.profiling.traced_runs import GPU_CLOCK, KERNEL, TracedEvent, TracedRun, profiler, trace_runs
from inferlens.errors import Unsupported
from inferlens.record.layer_profile import GpuLimits, Kernel, Kernels
from inferlens.trace import occupancy, tensor_cores

NO_ORIGINS = "which layers and modules kernels came from: {} does not tell."
DIFFERENT = (
    "not all runs launched the same: kernels of one name, shape and origin are one, with the most calls of a run."
)
NOTHING_SEEN = "torch.profiler saw nothing run on the GPU in {} runs."


def kernels_of(runner: Runner, feed: Any, runs: int, label: str = "the backend") -> Kernels:
    """Traces ``runs`` calls of ``runner.infer(feed)``, one after the other; the runner is entered and warm.

    Args:
        runner: on CUDA. If it can tell the origins of kernels, they are told.
        label: what to call the backend.

    Raises:
        Unsupported: if the profiler cannot see kernels here.
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
        hint = "no other profiler in this process, and a PyTorch built with CUPTI"
        raise Unsupported(NOTHING_SEEN.format(runs), hint=hint)
    return kernels_from(found, gpu(), origins, label=label, started=clocked.started)


def check() -> None:
    """Refuses where torch.profiler cannot see a GPU's kernels.

    Raises:
        Unsupported: with what would help.
    """
    try:
        import torch
        from torch.profiler import ProfilerActivity, supported_activities
    except ImportError as error:
        raise Unsupported(
            "Kernels are traced by torch.profiler, and PyTorch is missing.", hint="install PyTorch"
        ) from error
    if not torch.cuda.is_available() or ProfilerActivity.CUDA not in supported_activities():
        raise Unsupported(
            "Kernels are traced by torch.profiler, and this PyTorch sees no GPU.", hint="a PyTorch built for CUDA"
        )


def gpu() -> GpuLimits:
    """The current CUDA device."""
    import torch

    return gpu_from(torch.cuda.get_device_properties(torch.cuda.current_device()))


def gpu_from(properties: Any) -> GpuLimits:
    """A GPU from the properties that PyTorch gives."""
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
    known: KernelOrigins | None,
    *,
    label: str = "the backend",
    started: str = "",
) -> Kernels:
    """Kernels of traced runs: one for each place where all runs launched the same, else one for each that is alike."""
    origins, absent = _origins(runs, known)
    if known is None:
        absent["origins"] = NO_ORIGINS.format(label)
    if len({tuple(event.launched.name for event in run.events) for run in runs}) == 1:
        places = zip(*(run.events for run in runs), strict=True)
        each = zip(origins[0], ([[event] for event in events] for events in places), strict=True)
        kernels = [_kernel(events, origin, gpu) for origin, events in each]
    else:
        absent["order"] = DIFFERENT
        kernels = [_kernel(events, origin, gpu) for origin, events in _alike(runs, origins)]
    return Kernels(
        kernels=tuple(kernels),
        whole=tuple(run.whole for run in runs),
        busy=tuple(run.busy for run in runs),
        launches=median_high([run.launches for run in runs]),
        gpu=gpu,
        clock=GPU_CLOCK,
        absent=absent,
        begun=tuple((run.begin - runs[0].begin) / 1e9 for run in runs),
        started=started,
    )


def _origins(runs: Sequence[TracedRun], known: KernelOrigins | None) -> tuple[list[tuple[Origin, ...]], dict[str, str]]:
    """The origins of every run's kernels, asked for once for runs that are alike, and what is not known of them."""
    if known is None:
        return [(Origin(),) * len(run.events) for run in runs], {}
    asked: dict[tuple[Launched, ...], Origins] = {}
    absent: dict[str, str] = {}
    found = []
    for run in runs:
        launched = tuple(event.launched for event in run.events)
        if launched not in asked:
            asked[launched] = known.origins(launched)
            absent |= asked[launched].absent
        found.append(asked[launched].of)
    return found, absent


def _alike(
    runs: Sequence[TracedRun], origins: Sequence[tuple[Origin, ...]]
) -> Iterable[tuple[Origin, list[list[TracedEvent]]]]:
    """Runs differ: the events of one name, shape and origin together, by run, in the order of their first begins."""
    alike: dict[Any, list[list[TracedEvent]]] = {}
    for number, run in enumerate(runs):
        for event, origin in zip(run.events, origins[number], strict=True):
            launched = event.launched
            key = (launched.name, launched.grid, launched.block, launched.operator, origin)
            alike.setdefault(key, [[] for _ in runs])[number].append(event)
    ordered = sorted(alike.items(), key=lambda item: min(event.begin for events in item[1] for event in events))
    return ((key[-1], each) for key, each in ordered)


def _kernel(each: Sequence[Sequence[TracedEvent]], origin: Origin, gpu: GpuLimits) -> Kernel:
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
        tensor_cores=is_kernel and tensor_cores.told(launched.name),
        stream=launched.stream,
    )
