"""Profiles and records made by hand, of which rules speak: layers and kernels with exact times."""

from typing import Any

import msgspec

from inferlens.analysis.evidence import Finding
from inferlens.analysis.findings import findings
from inferlens.record.profile import (
    Ceilings,
    GpuLimits,
    Kernel,
    Kernels,
    Layer,
    Layers,
    ModuleWork,
    Profile,
    Tensor,
    Work,
)
from inferlens.record.record import Environment, Gpu, Measurement, Record
from inferlens.spec.case import Case
from tests.views.samples import case, facts, record

RUNS = 40
MS = 1e-3
ON_GPU = case(device="cuda", precision="fp16")
H200 = Environment(gpus=(Gpu(name="NVIDIA H200", compute_capability="9.0"),))
PROCESSORS = GpuLimits(name="NVIDIA H200", multiprocessors=132, compute_capability="9.0")


def tensor(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(shape=shape, dtype=dtype)


def layer(name: str, ms: float, kind: str = "Conv", *modules: str, **fields: Any) -> Layer:
    """A layer that takes as many milliseconds in every run."""
    given: dict[str, Any] = {"inputs": (tensor(1, 64, 56, 56),), "outputs": (tensor(1, 64, 56, 56),)}
    return Layer(name=name, kind=kind, modules=modules or (name,), times=(ms * MS,) * RUNS, **{**given, **fields})


def layered(*layers: Layer, of: Case | None = None, whole: float | None = None, **fields: Any) -> Profile:
    """A profile of layers; the whole run takes what they add up to, or so many milliseconds."""
    taken = sum(layer.times[0] for layer in layers if layer.times) if whole is None else whole * MS
    timed = fields.pop("timed", "host")
    return _profile(of or case(), "layer", layers=Layers(layers=layers, whole=(taken,) * RUNS, timed=timed), **fields)


def kernel(name: str, us: float, calls: int = 1, **fields: Any) -> Kernel:
    """A kernel whose every call takes as many microseconds."""
    given: dict[str, Any] = {"grid": (1024, 1, 1), "block": (256, 1, 1), "occupancy": 0.5}
    return Kernel(name=name, calls=calls, times=(us * calls * 1e-6,) * RUNS, **{**given, **fields})


def launched(*kernels: Kernel, of: Case = ON_GPU, busy: float | None = None) -> Profile:
    """A profile of kernels, one after the other; the host takes twice as long."""
    busy = sum(kernel.times[0] for kernel in kernels) if busy is None else busy
    count = sum(kernel.calls for kernel in kernels)
    made = Kernels(kernels=kernels, whole=(2 * busy,) * RUNS, busy=(busy,) * RUNS, launches=count, gpu=PROCESSORS)
    return _profile(of, "kernel", kernels=made)


def _profile(of: Case, level: str, **fields: Any) -> Profile:
    given: dict[str, Any] = {
        "id": f"{level} of {of.digest}", "record": f"{of.digest}-1", "created": "2026-05-04T10:00:01Z", "case": of,
        "level": level, "runs": RUNS, "status": "ok", "model": facts(of),
        "environment": H200 if of.device == "cuda" else Environment(cpu="a CPU"),
    }  # fmt: skip
    return Profile(**{**given, **fields})


def unprofiled(
    of: Profile, ms: float, *, enqueue: float | None = None, gpu: float | None = None, **fields: Any
) -> Record:
    """The record of calls that take exactly so many milliseconds."""
    made = record(of.case, samples=(ms * MS,) * 60, id=of.record, **fields)
    clock = {"unit": "s", "clock": "a clock"}
    more = [("enqueue time", enqueue), ("GPU time", gpu)]
    measured = [Measurement(metric=name, samples=(item * MS,) * 60, **clock) for name, item in more if item]
    return msgspec.structs.replace(made, measurements=(*made.measurements, *measured))


def work(**flops: float) -> Work:
    """What modules do, by name, double underscores for dots."""
    return Work(modules=tuple(ModuleWork(module=name.replace("__", "."), flops=item) for name, item in flops.items()))


def ceilings(**rates: float) -> Ceilings:
    """A device that moves 1 TB/s and computes at these rates."""
    return Ceilings(device="a device", bandwidth=1e12, rates=rates)


def of_rule(name: str, *profiles: Profile, record: Record | None = None, plain: Record | None = None) -> list[Finding]:
    """What one rule finds."""
    return [finding for finding in findings(profiles, record, plain) if finding.code == name]


def the(name: str, *profiles: Profile, record: Record | None = None, plain: Record | None = None) -> Finding:
    """The one thing that a rule finds."""
    (finding,) = of_rule(name, *profiles, record=record, plain=plain)
    return finding
