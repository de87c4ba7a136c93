"""Profiles made by hand: a small network on three backends, layers and kernels with exact times, and hostile files.

Most functions take seconds. ``exact_layer`` takes milliseconds and ``exact_kernel`` microseconds, of every run alike.
"""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from inferlens.analysis.evidence import Finding
from inferlens.analysis.findings import findings
from inferlens.analysis.graph import GraphSource
from inferlens.record.profile import (
    Ceilings,
    GpuLimits,
    Kernel,
    Kernels,
    Layer,
    Layers,
    ModuleWork,
    OperatorWork,
    Profile,
    Tensor,
    Work,
)
from inferlens.record.record import Environment, Gpu, Measurement, Record, encode
from inferlens.record.store import save_profile
from inferlens.spec.case import Case
from tests.backends.profiling import samples as kernel_samples
from tests.views.samples import CPU_MACHINE, GPU_MACHINE, case, facts, record

RUNS = 40
MS = 1e-3
MEGA = 1_000_000
NASTY = 'x"y"\n<b>&|`*\x1b[31m\u202e ' + "n" * 3000
ON_GPU = case(device="cuda", precision="fp16")
H200 = Environment(gpus=(Gpu(name="NVIDIA H200", compute_capability="9.0"),))
PROCESSORS = GpuLimits(name="NVIDIA H200", multiprocessors=132, compute_capability="9.0")
TRACED = {
    kernel_samples.EAGER: "pytorch", kernel_samples.GRAPH: "torch_compile:reduce-overhead",
    kernel_samples.ENGINE: "torch_tensorrt:dynamo",
}  # fmt: skip


def times(mean: float, runs: int = RUNS, seed: int = 0) -> tuple[float, ...]:
    """Times around ``mean``, in seconds."""
    noise = np.random.default_rng([seed, round(mean * 1e9)]).normal(0.0, 0.01, runs)
    return tuple(float(value) for value in mean * (1 + np.abs(noise)))


def layer(name: str, mean: float | None, *modules: str, runs: int = RUNS, **fields: Any) -> Layer:
    """A layer that takes ``mean`` seconds, or has no time."""
    shape = Tensor(shape=(1, 64, 56, 56), dtype="float32")
    defaults: dict[str, Any] = {"kind": "Conv", "inputs": (shape,), "outputs": (shape,)}
    taken = () if mean is None else times(mean, runs, seed=len(name))
    return Layer(**{"name": name, "modules": modules, "times": taken, **defaults, **fields})


def profile(of: Case, parts: list[Layer], *, outside: float = 0.2e-3, timed: str = "host", **fields: Any) -> Profile:
    """A profile whose whole is the sum of its parts and ``outside``."""
    time_layers = [layer.times for layer in parts if layer.times]
    runs = len(time_layers[0]) if time_layers else RUNS
    whole = tuple(float(value) + outside for value in np.sum(time_layers or [np.zeros(runs)], axis=0))
    begun, clock = tuple(0.05 * run for run in range(runs)), "host: perf_counter_ns"
    defaults: dict[str, Any] = {
        "id": f"profile {of.digest}", "record": f"{of.digest}-1", "created": "2026-05-04T10:00:01Z", "level": "layer",
        "runs": runs, "status": "ok", "model": facts(of),
        "environment": CPU_MACHINE if of.device == "cpu" else GPU_MACHINE,
        "layers": Layers(layers=tuple(parts), whole=whole, begun=begun, timed=timed, clock=clock),
    }  # fmt: skip
    return Profile(case=of, **{**defaults, **fields})


def failed(of: Case, reason: str = "It broke.") -> Profile:
    """A profile that did not get that far."""
    return replace(profile(of, []), status="failed", reason=reason, layers=None)


def eager() -> Profile:
    """One layer for each module, and one of the model itself."""
    layers = [layer("conv1", 2e-3, "conv1"), layer("bn1", 1e-3, "bn1", kind="BatchNorm2d")]
    for block in ("layer1.0", "layer1.1", "layer2.0"):
        layers += [layer(f"{block}.conv1", 1e-3, f"{block}.conv1"), layer(f"{block}.bn1", 0.5e-3, f"{block}.bn1")]
        layers.append(layer(block, 0.2e-3, block, kind="BasicBlock"))
    return profile(case("pytorch"), [*layers, layer("model", 0.1e-3, "", kind="ResNet")])


def fused() -> Profile:
    """Convolution and batch norm in one layer; one layer of no known module, one without a time."""
    layers = [layer("conv1+bn1", 1.5e-3, "conv1", "bn1")]
    for block in ("layer1.0", "layer1.1", "layer2.0"):
        layers.append(layer(f"{block}/conv+bn", 0.9e-3, f"{block}.conv1", f"{block}.bn1"))
    return profile(case("onnxruntime:cpu"), [*layers, layer("Reorder", 0.1e-3), layer("Gone", None, "dropout")])


def other() -> Profile:
    """Whole blocks in one layer; slower than the reference in layer2."""
    blocks = {"layer1.0": 0.8e-3, "layer1.1": 0.8e-3, "layer2.0": 5e-3}
    layers = [layer("stem", 1e-3, "conv1"), *(layer(f"{n} all", t, n) for n, t in blocks.items())]
    return profile(case("openvino"), layers)


def nasty() -> Profile:
    """Names that break out of whatever they stand in."""
    layers = [layer(NASTY, 1e-3, NASTY, kind=NASTY), layer("", 1e-3, "a..b", ".", "." * 5000)]
    return profile(case("pytorch", model=NASTY), layers)


def unprofiled(of: Profile, median: float) -> Record:
    """The record that a profile names."""
    return record(of.case, median=median, id=of.record)


def saved(folder: Path, *profiles: Profile, median: float | None = 6e-3) -> Path:
    """The profiles in folders of their cases, each beside its record."""
    for number, profile in enumerate(profiles):
        place = folder / f"case{number}"
        place.mkdir(parents=True)
        save_profile(place, profile)
        if median:
            (place / "record.json").write_bytes(encode(unprofiled(profile, median)))
    return folder


# Kernels


def of_kernels(of: str | Case, kernels: Kernels | None, **fields: Any) -> Profile:
    """A profile at the level of kernels, of a case or of a backend in fp16."""
    of = case(of, device="cuda", precision="fp16") if isinstance(of, str) else of
    its = {"id": f"kernels {of.digest}", "created": "2026-05-04T10:00:02Z", "level": "kernel", "kernels": kernels}
    runs = len(kernels.whole) if kernels else 0
    return replace(profile(of, [], **{**its, "runs": runs, **fields}), layers=None)


def traced(name: str = kernel_samples.EAGER) -> Profile:
    """The profile of a real trace of an H200."""
    return of_kernels(TRACED[name], kernel_samples.kernels(name))


def made(*kernels: Kernel, busy: float | None = None, idle: float = 1e-3, **fields: Any) -> Kernels:
    """Kernels made by hand, one after the other; ``busy`` seconds where some of them ran side by side."""
    runs = len(kernels[0].times)
    sums = [sum(kernel.times[run] for kernel in kernels) for run in range(runs)]
    taken = tuple(sums if busy is None else [busy] * runs)
    defaults: dict[str, Any] = {"launches": len(kernels), "clock": "CUPTI"}
    return Kernels(kernels=kernels, whole=tuple(item + idle for item in taken), busy=taken, **{**defaults, **fields})


def kernel(name: str, mean: float, *modules: str, **fields: Any) -> Kernel:
    """A kernel that takes ``mean`` seconds."""
    return Kernel(name=name, modules=modules, times=times(mean, 40, seed=len(name)), **fields)


def nasty_kernels() -> Profile:
    """Kernels whose names break out of whatever they stand in."""
    odd = {"layer": NASTY, "operator": NASTY, "grid": (1, 2, 3), "block": (1,), "shared_memory": 10**18}
    kernels = kernel(NASTY, 1e-4, NASTY, **odd), kernel("", 1e-4, "a..b"), kernel("<" * 999, 1e-5)
    return of_kernels("pytorch", made(*kernels))


# Exact times, of which rules speak


def tensor(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(shape=shape, dtype=dtype)


def exact_layer(name: str, ms: float, kind: str = "Conv", *modules: str, **fields: Any) -> Layer:
    """A layer that takes as many milliseconds in every run."""
    return layer(name, None, *(modules or (name,)), **{"kind": kind, "times": (ms * MS,) * RUNS, **fields})


def layered(
    *layers: Layer, of: Case | None = None, whole: float | None = None, timed: str = "host", **fields: Any
) -> Profile:
    """A profile of layers; the whole run takes what they add up to, or so many milliseconds."""
    taken = sum(layer.times[0] for layer in layers if layer.times) if whole is None else whole * MS
    of, made = of or case(), Layers(layers=layers, whole=(taken,) * RUNS, timed=timed)
    environment = H200 if of.device == "cuda" else Environment(cpu="a CPU")
    return profile(of, [], layers=made, **{"environment": environment, **fields})


def exact_kernel(name: str, us: float, calls: int = 1, **fields: Any) -> Kernel:
    """A kernel whose every call takes as many microseconds."""
    given: dict[str, Any] = {"grid": (1024, 1, 1), "block": (256, 1, 1), "occupancy": 0.5}
    return Kernel(name=name, calls=calls, times=(us * calls * 1e-6,) * RUNS, **{**given, **fields})


def launched(*kernels: Kernel, of: Case = ON_GPU, busy: float | None = None) -> Profile:
    """A profile of kernels, one after the other; the host takes twice as long."""
    busy = sum(kernel.times[0] for kernel in kernels) if busy is None else busy
    count = sum(kernel.calls for kernel in kernels)
    made = Kernels(kernels=kernels, whole=(2 * busy,) * RUNS, busy=(busy,) * RUNS, launches=count, gpu=PROCESSORS)
    return of_kernels(of, made, environment=H200)


def exact_record(
    of: Profile, ms: float, *, enqueue: float | None = None, gpu: float | None = None, **fields: Any
) -> Record:
    """The record of calls that take exactly so many milliseconds."""
    made = record(of.case, samples=(ms * MS,) * 60, id=of.record, **fields)
    clock = {"unit": "s", "clock": "a clock"}
    more = [("enqueue time", enqueue), ("GPU time", gpu)]
    measured = [Measurement(metric=name, samples=(item * MS,) * 60, **clock) for name, item in more if item]
    return replace(made, measurements=(*made.measurements, *measured))


def of_rule(name: str, *profiles: Profile, record: Record | None = None) -> list[Finding]:
    """What one rule finds."""
    return [finding for finding in findings(profiles, record) if finding.code == name]


def the(name: str, *profiles: Profile, record: Record | None = None) -> Finding:
    """The one thing that a rule finds."""
    (finding,) = of_rule(name, *profiles, record=record)
    return finding


# The work of a small network, and ceilings


def ceilings(bandwidth: float = 1e9, **rates: float) -> Ceilings:
    """A device on which a million bytes take a millisecond, and a million FLOPs, unless other rates are told."""
    return Ceilings(device="a device", bandwidth=bandwidth, rates=rates or {"fp32": 1e9}, basis="by hand")


def terabyte_ceilings(**rates: float) -> Ceilings:
    """A device that moves 1 TB/s and computes at these rates."""
    return replace(ceilings(1e12), rates=rates)


def work(**flops: float) -> Work:
    """What modules do."""
    return Work(modules=tuple(ModuleWork(module=name, flops=item) for name, item in flops.items()))


def work_of(*modules: ModuleWork, **fields: Any) -> Work:
    return Work(modules=modules, note="counted", **fields)


def module(path: str, flops: float = 0.0, weights: float = 0, outputs: float = 0, **sources: float) -> ModuleWork:
    """A module in millions; of ``sources``, ``given`` are the model's inputs and ``_`` in a path stands for a dot."""
    given, calls, returned = sources.pop("given", 0), int(sources.pop("calls", 1)), sources.pop("returned", 0)
    return ModuleWork(
        module=path, kind="Module", calls=calls, flops=flops * MEGA, weights=round(weights * MEGA),
        inputs=round((given + sum(sources.values())) * MEGA), outputs=round(outputs * MEGA),
        sources={name.replace("_", "."): round(size * MEGA) for name, size in sources.items()},
        returned=round(returned * MEGA),
    )  # fmt: skip


def operator(
    path: str, name: str, flops: float = 0.0, weights: float = 0, outputs: float = 0, *, given: float = 0,
    made: dict[int, float] | None = None, returned: float = 0,
) -> OperatorWork:  # fmt: skip
    """One call in millions; ``made``: what others made of what it reads, by their places."""
    sources = {place: round(size * MEGA) for place, size in (made or {}).items()}
    return OperatorWork(
        module=path, operator=name, flops=flops * MEGA, weights=round(weights * MEGA),
        inputs=round(given * MEGA) + sum(sources.values()), outputs=round(outputs * MEGA), sources=sources,
        returned=round(returned * MEGA),
    )  # fmt: skip


CHAIN = work_of(
    module("conv", flops=20, weights=1, outputs=2, given=2),
    module("norm", weights=0.5, outputs=2, conv=2),
    module("relu", outputs=2, norm=2),
    module("head", flops=1, weights=4, outputs=1, relu=2, returned=1),
)


def timed(name: str, seconds: float, *modules: str, **fields: Any) -> Layer:
    """A layer that takes so long in each of eight runs."""
    return layer(name, None, *modules, times=(seconds,) * 8, **fields)


def worked(layers: list[Layer], work: Work | None = CHAIN, **fields: Any) -> Profile:
    """A profile with its work and ceilings."""
    known = {"ceilings": ceilings(), "of": case("pytorch"), **fields}
    return profile(known.pop("of"), layers, work=work, **known)


def nasty_work() -> Profile:
    """Work of modules whose names break out of whatever they stand in."""
    work = work_of(module(NASTY, flops=10, weights=1, outputs=1, given=1), module("." * 500, flops=1, outputs=1))
    layers = [timed(NASTY, 10e-3, NASTY, kind=NASTY), timed("", 1e-3, "." * 500), timed("x", 1e-3)]
    return worked(layers, work, of=case(model=NASTY))


# Graphs: layers that read and write tensors by name


def tensors(names: str) -> tuple[Tensor, ...]:
    """``"a b"`` as two tensors."""
    return tuple(Tensor(name=name, shape=(1, 64, 56, 56), dtype="float32") for name in names.split())


def reads(inputs: str, outputs: str, *modules: str, **fields: Any) -> Layer:
    """A layer named after what it writes."""
    named = {"name": outputs, "kind": "Conv", "inputs": tensors(inputs), "outputs": tensors(outputs)}
    return Layer(modules=modules, **{**named, **fields})


def source(*layers: Layer, **fields: Any) -> GraphSource:
    """The layers, of a millisecond each."""
    count = len(layers)
    defaults: dict[str, Any] = {"title": "small", "seconds": (1e-3,) * count, "whole": 1e-3 * count}
    return GraphSource(layers=layers, **{**defaults, "inputs": tensors("x"), **fields})


def residual() -> GraphSource:
    """Two blocks, each with a way around its second convolution; the last layer is fused from three modules."""
    return source(
        reads("x stem.weight", "stem", "stem"), reads("stem w", "a0", "blocks.0.a"),
        reads("a0 w stem", "b0", "blocks.0.b", "blocks.0", "blocks.0.relu", operators=("Conv", "Add", "Relu")),
        reads("b0", "moved", kind="Reorder"), reads("moved w", "a1", "blocks.1.a"),
        reads("a1 w b0", "b1", "blocks.1.b", "blocks.1"), reads("b1 w", "y", "head"),
    )  # fmt: skip


def long_chain(count: int, depth: int) -> GraphSource:
    """A chain with ways around six layers, and modules of forty layers each, unless ``depth`` is 0."""
    made = []
    for index in range(count):
        inputs = f"t{index - 1} w{index}" + (f" t{index - 6}" if index > 6 and index % 6 == 0 else "")
        modules = [f"blocks.{index // 40}.{index % 40}"] if depth else []
        made.append(reads(inputs if index else "x", f"t{index}", *modules))
    return source(*made)


# What each table draws, with names that break out of whatever they stand in.
NASTY_PROFILES = {"layers": nasty(), "modules": nasty(), "kernels": nasty_kernels(), "roofline": nasty_work()}
