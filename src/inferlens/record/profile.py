"""The distribution of a case's time: a :class:`Profile`, one for a case and level, and its JSON form.

A profile is data, frozen, and holds the times of every run; sums, shares and intervals are computed on demand.
Times are seconds, sizes are bytes. Timing and profiling never share a run: ``whole`` has the times of instrumented
calls, and the record that ``record`` names has the latencies of calls without profiling.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import field

from inferlens.record.display import Struct
from inferlens.record.files import decode_json
from inferlens.record.record import Environment, ModelFacts, Phase, Status, Warning
from inferlens.spec.case import Case

SCHEMA = "inferlens.profile/1"

Level = Literal["layer", "kernel"]
Timed = Literal["host", "GPU"]


class Tensor(Struct, frozen=True, kw_only=True):
    """An input or an output of a layer; unknown fields are empty."""

    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    format: str = ""


class TimedPart(Struct, frozen=True, kw_only=True):
    """A layer or a kernel, with its times.

    Attributes:
        name: as the backend names it, or the profiler, demangled.
        kind: its kind in the backend's words, such as ``Conv`` or ``Reorder``; ``kernel``, ``copy`` or ``fill``.
        modules: paths of the modules that it came from, in the order of execution; several where modules were fused,
            none if unknown. The model itself is the empty path.
        times: seconds per run, in order: of all its calls in that run, without the layers that it contains.
        begins: start of its first call in every run, in seconds since the run began; empty if unknown.
    """

    name: str
    kind: str = ""
    modules: tuple[str, ...] = ()
    times: tuple[float, ...] = ()
    begins: tuple[float, ...] = ()
    calls: int = 1


class Layer(TimedPart, frozen=True, kw_only=True):
    """A layer that a backend executes and names.

    Attributes:
        operators: the ATen or ONNX operators that it came from, by name.
        precision: the type it computes in, such as ``int8`` or ``fp32``; empty if unknown.
        details: other facts from the backend, such as tactic, kernel, filter, stride, weights.
    """

    operators: tuple[str, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    precision: str = ""
    details: dict[str, Any] = {}


class Kernel(TimedPart, frozen=True, kw_only=True):
    """An operation that the GPU ran: a kernel, a copy or a fill.

    Attributes:
        layer: the layer that it belongs to; ``operator``: the ATen operator that launched it; empty if unknown.
        grid, block: blocks of a grid, threads of a block; empty for copies and fills.
        registers: per thread; ``shared_memory``: per block, in bytes.
        occupancy: share of a multiprocessor's threads that the kernel's blocks can take, 0 to 1 (theoretical).
        achieved: an estimate of that share while it ran, which no kernel with few blocks reaches.
        tensor_cores: whether it used them, by its name; ``None`` if the name does not say.
    """

    kind: str = "kernel"
    layer: str = ""
    operator: str = ""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_memory: int | None = None
    occupancy: float | None = None
    achieved: float | None = None
    tensor_cores: bool | None = None
    stream: int | None = None


class GpuLimits(Struct, frozen=True, kw_only=True):
    """The limits of a GPU's multiprocessors, from which occupancy is computed."""

    name: str = ""
    multiprocessors: int = 0
    threads_per_multiprocessor: int = 0
    registers_per_multiprocessor: int = 0
    shared_memory_per_multiprocessor: int = 0
    compute_capability: str = ""


class ProfiledRuns(Struct, frozen=True, kw_only=True):
    """The instrumented runs of one case.

    Attributes:
        whole: seconds per run on the host, from the call to its outputs being ready.
        clock: the clock that timed the layers or kernels.
        absent: the missing values, and why they are missing.
        begun: start of every run, in seconds since the first of them began; empty if unknown.
        started: UTC time at which the first run began, ISO 8601; empty if unknown.
    """

    whole: tuple[float, ...]
    clock: str = ""
    absent: dict[str, str] = {}
    begun: tuple[float, ...] = ()
    started: str = ""


class Layers(ProfiledRuns, frozen=True, kw_only=True):
    """The layers of one case in the order of execution; their times are of the ``host`` or of the ``GPU``."""

    layers: tuple[Layer, ...]
    timed: Timed


class Kernels(ProfiledRuns, frozen=True, kw_only=True):
    """The kernels of one case.

    Attributes:
        busy: seconds per run in which the GPU ran at least one of them.
        launches: calls of the runtime that launched something, in one run; a CUDA graph is one.
    """

    kernels: tuple[Kernel, ...]
    busy: tuple[float, ...]
    launches: int
    gpu: GpuLimits = GpuLimits()


class Profile(Struct, frozen=True, kw_only=True):
    """The profile of one case at one level.

    Attributes:
        record: id of the record of the same case that was timed unprofiled, in the same command.
        status: how it ended; ``reason`` says why if not ``ok``.
        layers, kernels: of the level of that name; ``None`` if it did not get that far.
        work: the work of the model in one call on any backend; ``None`` where it was not counted.
        ceilings: the measured limits of the device; ``None`` where they were not measured.
    """

    schema: str = SCHEMA
    id: str
    record: str = ""
    created: str
    case: Case
    level: Level
    runs: int
    status: Status
    reason: str = ""
    hint: str = field(default="", name="cure")
    output_tail: tuple[str, ...] = ()
    model: ModelFacts
    environment: Environment
    phases: tuple[Phase, ...] = ()
    layers: Layers | None = None
    kernels: Kernels | None = None
    work: Work | None = None
    ceilings: Ceilings | None = None
    facts: dict[str, Any] = {}
    warnings: tuple[Warning, ...] = ()

    def __repr__(self) -> str:
        """Return the case in a line, instead of thousands of numbers."""
        return f"<Profile of {self.model.name}, {self.case.label}: {len(self.parts)} {self.level}s, {self.status}>"

    @property
    def timed_runs(self) -> Layers | Kernels | None:
        return self.layers or self.kernels

    @property
    def parts(self) -> tuple[Layer, ...] | tuple[Kernel, ...]:
        """Return the layers, or the kernels."""
        return self.layers.layers if self.layers else self.kernels.kernels if self.kernels else ()

    @property
    def timed(self) -> Timed | None:
        """Return whether the times of its parts are of the host or of the GPU. Kernels have times of the GPU."""
        return self.layers.timed if self.layers else "GPU" if self.kernels else None

    @property
    def clock(self) -> str:
        """Return the clock of its parts; empty without any."""
        return self.timed_runs.clock if self.timed_runs else ""


def encode_profile(profile: Profile) -> bytes:
    """Return a profile as JSON on one line, UTF-8, ending in a newline."""
    return msgspec.json.encode(profile) + b"\n"


def decode_profile(data: bytes) -> Profile:
    """Return a profile from its JSON form. Raises InferlensError for other data or an unknown schema."""
    return decode_json(data, Profile, SCHEMA, "profile")


# Work is counted for every module without its submodules, so that the sum over modules is the model's. A multiplication
# and an addition are two FLOPs. Sizes are bytes, rates are per second.


class ModuleWork(Struct, frozen=True, kw_only=True):
    """The work of one module without its submodules in one call of the model.

    Tensors are counted where they cross its border.

    Attributes:
        module: its path; the model itself is the empty one.
        flops: floating-point operations of all calls, in matrix products, convolutions and attention.
        weights: bytes of the parameters and buffers that its own operators read, once in a call.
        inputs, outputs: bytes of the activations that go into its operators from outside of it, and come out of it.
        sources: of ``inputs``, the bytes from other modules, by their paths; the rest are the model's inputs.
        returned: of ``outputs``, the bytes that the model returns.
        operators: the number of calls of its operators, by name.
    """

    module: str
    kind: str = ""
    calls: int = 1
    flops: float = 0.0
    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    sources: dict[str, int] = {}
    returned: int = 0
    operators: dict[str, int] = {}


class OperatorWork(Struct, frozen=True, kw_only=True):
    """The work of one call of an operator. A tensor counts once as read and once as written.

    Attributes:
        module: the path of the module whose own operator it is.
        operator: its name, such as ``aten.addmm``.
        flops: as for a module; ``weights``: bytes of the parameters and buffers that it reads.
        inputs: bytes of the activations that it reads; ``outputs``: of those that it writes and others read.
        sources: of ``inputs``, the bytes from other operators, by their indices among all operators.
        returned: of ``outputs``, the bytes that the model returns.
    """

    module: str
    operator: str
    flops: float = 0.0
    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    sources: dict[int, int] = {}
    returned: int = 0


class Work(Struct, frozen=True, kw_only=True):
    """The work of a model in one call.

    Attributes:
        modules: in the order in which they are first called, also those whose operators are all in modules inside.
        operators: all calls of operators, in the order of execution; none in profiles of earlier versions.
        uncovered: operators without a formula for FLOPs, with their numbers of calls; not those whose bytes are
            their work.
        note: the way it was counted, or the reason why it was not.
    """

    modules: tuple[ModuleWork, ...] = ()
    operators: tuple[OperatorWork, ...] = ()
    uncovered: dict[str, int] = {}
    note: str = ""


class Ceilings(Struct, frozen=True, kw_only=True):
    """The measured limits of a device.

    Attributes:
        bandwidth: bytes per second that a copy within its memory reads and writes together.
        cached: the same for a copy that stays in its caches; 0 if it was not measured.
        cache: bytes of its last cache; 0 if unknown.
        rates: floating-point operations per second of matrix products and convolutions, by precision (``tf32`` too).
        basis: the measured operation and its library.
        absent: why a precision has no rate.
        disturbed: the reason why they may be too low; such ceilings are not kept for later.
    """

    device: str
    bandwidth: float
    rates: dict[str, float]
    cached: float = 0.0
    cache: int = 0
    measured: str = ""
    basis: str = ""
    absent: dict[str, str] = {}
    disturbed: str = ""
