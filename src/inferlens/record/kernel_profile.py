"""The kernels that a GPU ran for a case: frozen data, times in seconds, sizes in bytes."""

from __future__ import annotations

from msgspec import Struct


class GpuLimits(Struct, frozen=True, kw_only=True):
    """What occupancy is computed from: a GPU's multiprocessors and what each of them holds."""

    name: str = ""
    multiprocessors: int = 0
    threads_per_multiprocessor: int = 0
    registers_per_multiprocessor: int = 0
    shared_memory_per_multiprocessor: int = 0
    compute_capability: str = ""


class Kernel(Struct, frozen=True, kw_only=True):
    """Something that the GPU ran: a kernel, a copy or a fill.

    Attributes:
        name: as the profiler names it, demangled.
        kind: ``kernel``, ``copy`` or ``fill``.
        layer: the layer that it belongs to, as the backend names it; empty where that is not known.
        operator: the ATen operator that launched it; empty where none did, or that is not known.
        modules: paths of the modules that it came from, as of a layer.
        times: seconds in each run, in order: of all its calls in that run.
        begins: when the first of them began in each run, in seconds since the run began.
        calls: how often it was launched in one run.
        grid, block: blocks of a grid, threads of a block; empty for what is no kernel.
        registers: of each thread.
        shared_memory: of each block, in bytes.
        occupancy: share of a multiprocessor's threads that the kernel's blocks can take, 0 to 1 (theoretical).
        achieved: an estimate of that share while it ran, which no kernel with few blocks reaches.
        tensor_cores: whether it used them, as its name tells; ``None`` where the name does not tell.
        stream: number of the CUDA stream.
    """

    name: str
    kind: str = "kernel"
    layer: str = ""
    operator: str = ""
    modules: tuple[str, ...] = ()
    times: tuple[float, ...] = ()
    begins: tuple[float, ...] = ()
    calls: int = 1
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_memory: int | None = None
    occupancy: float | None = None
    achieved: float | None = None
    tensor_cores: bool | None = None
    stream: int | None = None


class Kernels(Struct, frozen=True, kw_only=True):
    """The kernels of one case.

    Attributes:
        kernels: in the order of execution.
        whole: seconds of each profiled run on the host, from the call to its outputs being ready.
        busy: seconds of each run in which the GPU ran at least one of them.
        launches: calls of the runtime that launched something, in one run; a CUDA graph is one.
        gpu: what they ran on.
        clock: what timed them.
        absent: what is not known of them, and why.
        begun: when each run began, in seconds since the first of them began; empty where that is not told.
        started: UTC time at which the first run began, ISO 8601; empty where that is not told.
    """

    kernels: tuple[Kernel, ...]
    whole: tuple[float, ...]
    busy: tuple[float, ...]
    launches: int
    gpu: GpuLimits = GpuLimits()
    clock: str = ""
    absent: dict[str, str] = {}
    begun: tuple[float, ...] = ()
    started: str = ""
