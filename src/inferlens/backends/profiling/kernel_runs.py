"""What a GPU ran in each of some runs, as torch.profiler's trace (CUPTI) tells: every kernel, copy and fill.

It does not matter which library launched them, as CUPTI sees the whole process: TensorRT's kernels are told as
PyTorch's are. Each run, from the call to its outputs being ready, is a span of the trace, by which kernels are told
apart: those whose launch lies in it. Runs are traced a few at a time, so that memory does not grow with their number,
and each time after a call that is not looked at, in which the profiler sets itself up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median_high
from tempfile import TemporaryDirectory
from typing import Any

from inferlens.backends.abilities import KernelOrigins, Launched, Origin, Origins
from inferlens.backends.base import Runner
from inferlens.backends.profiling.kernel_trace import TracedEvent, TracedRun, traced_runs
from inferlens.backends.profiling.layer_runs import Runs
from inferlens.backends.profiling.operator_runs import GPU_CLOCK, Spanned, profiler
from inferlens.errors import Unsupported
from inferlens.record.kernel_profile import GpuLimits, Kernel, Kernels
from inferlens.trace import occupancy, read, tensor_cores

AT_ONCE = 10  # runs in one trace
NO_ORIGINS = "which layers and modules kernels came from: {} does not tell."
DIFFERENT = (
    "not all runs launched the same: kernels of one name, shape and origin are one, with the most calls of a run."
)
NOTHING_SEEN = "torch.profiler saw nothing run on the GPU in {} runs."
LOST = "torch.profiler kept {} of {} runs."


def kernels_of(runner: Runner, feed: Any, runs: int, label: str = "the backend") -> Kernels:
    """Traces ``runs`` calls of ``runner.infer(feed)``, one after the other; the runner is entered and warm.

    Args:
        runner: on CUDA. If it can tell the origins of kernels, they are told.
        label: what to call the backend.

    Raises:
        Unsupported: if the profiler cannot see kernels here.
    """
    check()
    teller = runner if isinstance(runner, KernelOrigins) else None
    found: list[TracedRun] = []
    started = ""
    with TemporaryDirectory(prefix="inferlens-") as folder:
        with profiler(on_gpu=True):  # CUPTI takes long to start
            runner.infer(feed)
            runner.synchronize()
        while len(found) < runs:
            moment, several = traced(runner, teller, feed, min(AT_ONCE, runs - len(found)), Path(folder))
            started = started or moment
            found += several
    if not any(run.events for run in found):
        hint = "no other profiler in this process, and a PyTorch built with CUPTI"
        raise Unsupported(NOTHING_SEEN.format(runs), hint=hint)
    return kernels_from(found, gpu(), teller, label=label, started=started)


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
    teller: KernelOrigins | None,
    *,
    label: str = "the backend",
    started: str = "",
) -> Kernels:
    """Kernels of traced runs: one for each place where all runs launched the same, else one for each that is alike."""
    origins, absent = _origins(runs, teller)
    if teller is None:
        absent["origins"] = NO_ORIGINS.format(label)
    same = len({tuple(event.launched.name for event in run.events) for run in runs}) == 1
    if not same:
        absent["order"] = DIFFERENT
    kernels = list(_by_place(runs, origins, gpu) if same else _by_likeness(runs, origins, gpu))
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


def traced(
    runner: Runs, teller: KernelOrigins | None, feed: Any, runs: int, folder: Path
) -> tuple[str, list[TracedRun]]:
    """``runs`` calls in one trace, which is in ``folder`` meanwhile, and the UTC time at which the first began."""
    spanned = Spanned(runner)
    with (teller or _Nothing()).scopes(), profiler(on_gpu=True) as profile:
        runner.infer(feed)
        runner.synchronize()
        moment = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        for _ in range(runs):
            spanned.infer(feed)
            spanned.synchronize()
    file = folder / "trace.json"
    profile.export_chrome_trace(str(file))
    del profile
    found = traced_runs(read(file))
    file.unlink()
    if len(found) != runs:
        raise Unsupported(LOST.format(len(found), runs), hint="fewer --runs")
    return moment, found


class _Nothing(KernelOrigins):
    """Stands for a runner that cannot tell where kernels come from."""

    def origins(self, launched: Sequence[Launched]) -> Origins:
        return Origins((Origin(),) * len(launched))


def _origins(
    runs: Sequence[TracedRun], teller: KernelOrigins | None
) -> tuple[list[tuple[Origin, ...]], dict[str, str]]:
    """The origins of every run's kernels, asked for once for runs that are alike, and what is not known of them."""
    told: dict[tuple[Launched, ...], Origins] = {}
    absent: dict[str, str] = {}
    found = []
    for run in runs:
        launched = tuple(event.launched for event in run.events)
        if launched not in told:
            told[launched] = (teller or _Nothing()).origins(launched)
            absent |= told[launched].absent
        found.append(told[launched].of)
    return found, absent


def _by_place(runs: Sequence[TracedRun], origins: Sequence[tuple[Origin, ...]], gpu: GpuLimits) -> Iterator[Kernel]:
    """All runs launched the same: a kernel for each place, with its time in every run."""
    for place in range(len(runs[0].events)):
        each = [[run.events[place]] for run in runs]
        yield _kernel(each, [run.begin for run in runs], origins[0][place], gpu)


def _by_likeness(runs: Sequence[TracedRun], origins: Sequence[tuple[Origin, ...]], gpu: GpuLimits) -> list[Kernel]:
    """Runs differ: kernels of one name, shape and origin together, in the order of their first begins."""
    alike: dict[Any, list[list[TracedEvent]]] = {}
    for number, run in enumerate(runs):
        for event, origin in zip(run.events, origins[number], strict=True):
            launched = event.launched
            key = (launched.name, launched.grid, launched.block, launched.operator, origin)
            alike.setdefault(key, [[] for _ in runs])[number].append(event)
    starts = [run.begin for run in runs]

    def first(each: list[list[TracedEvent]]) -> int:
        return min(event.begin - start for events, start in zip(each, starts, strict=True) for event in events)

    ordered = sorted(alike.items(), key=lambda item: first(item[1]))
    return [_kernel(each, starts, key[-1], gpu) for key, each in ordered]


def _kernel(each: Sequence[Sequence[TracedEvent]], starts: Sequence[int], origin: Origin, gpu: GpuLimits) -> Kernel:
    """One kernel from its events in every run; the first of them stands for its shape."""
    event = next(events[0] for events in each if events)
    launched = event.launched
    is_kernel = launched.kind == "kernel"
    shape = (launched.block, event.registers, event.shared_memory)
    known = occupancy.achieved(gpu, launched.grid, *shape) if is_kernel else None
    return Kernel(
        name=launched.name,
        kind=launched.kind,
        layer=origin.layer,
        operator=launched.operator,
        modules=origin.modules,
        times=tuple(sum(event.time for event in events) / 1e9 for events in each),
        begins=_begins(each, starts),
        calls=max(map(len, each)),
        grid=launched.grid,
        block=launched.block,
        registers=event.registers,
        shared_memory=event.shared_memory,
        occupancy=occupancy.theoretical(gpu, *shape) if is_kernel else None,
        achieved=event.occupancy if known is None else known,
        tensor_cores=tensor_cores.told(launched.name) if launched.kind == "kernel" else False,
        stream=launched.stream,
    )


def _begins(each: Sequence[Sequence[TracedEvent]], starts: Sequence[int]) -> tuple[float, ...]:
    """When the first began in each run; nothing if there is a run without. The GPU's clock is fitted to the host's."""
    if not all(each):
        return ()
    firsts = (min(event.begin for event in events) for events in each)
    return tuple(max(first - start, 0) / 1e9 for first, start in zip(firsts, starts, strict=True))
