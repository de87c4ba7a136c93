"""Records for tests of everything that looks at records: realistic numbers, no framework, the same every time."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferlens.record.machine import CpuSamples, MachineLog, Marks
from inferlens.record.record import (
    IN_TURNS,
    Agreement,
    Environment,
    Gpu,
    Measurement,
    Memory,
    ModelFacts,
    Phase,
    Record,
    encode,
)
from inferlens.record.store import Store, read_record
from inferlens.spec.case import Budget, Case, TensorSpec
from inferlens.views.records import records_document
from inferlens.views.renderers import render

GOLDEN = Path(__file__).parents[1] / "golden" / "records"
CPU = "Intel(R) Xeon(R) Platinum 8480C"
GPU = "NVIDIA H200"
CPU_MACHINE = Environment(cpu=CPU, cpu_cores=8, cpu_threads=16, system="Linux", python="CPython 3.11.7")
GPU_MACHINE = Environment(cpu=CPU, cpu_cores=8, cpu_threads=16, gpus=(Gpu(name=GPU),), driver="570.86.10")
RIGHT = Agreement(reference="pytorch fp32", rel_l2=3e-7, max_abs=1e-6, cosine=1.0, tolerance=1e-4, agrees=True)
WRONG = Agreement(
    reference="pytorch fp32", rel_l2=0.52, tolerance=1e-4, agrees=False, reason="relative L2 error 0.52 is above 0.0001"
)
UNCHECKED = Agreement(reference="pytorch fp32", reason="the reference did not run")
MEMORY = Memory(host_peak=812 * 2**20, host_basis="ru_maxrss", device_peak=201 * 2**20, device_basis="allocator")


def series(centre: float, count: int = 200, spread: float = 0.03, seed: int = 0) -> tuple[float, ...]:
    """Latencies around ``centre``: never much below, sometimes above."""
    noise = np.random.default_rng([seed, round(centre * 1e7)]).gamma(2.0, spread / 2, count)
    return tuple(float(value) for value in centre * (1 - spread / 2 + noise))


def case(backend: str = "pytorch", **fields: Any) -> Case:
    """A case of resnet18; ``backend`` may name a variant after a colon."""
    name, _, variant = backend.partition(":")
    return Case(**{"model": "torchvision:resnet18", "backend": name, "variant": variant, **fields})


def on_busy_machine(record: Record) -> Record:
    """The record, if a program had kept one of two CPUs busy all the time."""
    count = len(record.samples("latency") or record.samples("throughput"))
    marks = Marks(count=count, disturbed=tuple(range(count)), touched={"cpu busy": count})
    cpu = CpuSamples(times=(0.0, 0.5, 1.0), busy=(None, 2.0, 2.0), others=(None, 0.9, 1.1), steal=(None, 0.0, 0.0))
    return msgspec.structs.replace(record, marks=marks, machine=MachineLog(interval=0.1, cpus=2, cpu=cpu))


def facts(of: Case) -> ModelFacts:
    batch = 1 if of.batch is None else of.batch
    return ModelFacts(name=of.model, inputs=(TensorSpec("input", (batch, 3, 224, 224)),), parameters=11_689_512)


def record(
    of: Case | None = None,
    *,
    median: float | None = 10e-3,
    samples: tuple[float, ...] | None = None,
    rate: float | None = None,
    gpu: float | None = None,
    **fields: Any,
) -> Record:
    """A record that ran; ``samples`` instead of a ``median`` for exact numbers, ``rate`` in calls per second."""
    of = of or case()
    latency = samples if samples is not None else series(median) if median else ()
    clock = "host: time.perf_counter_ns"
    measurements = [Measurement(metric="latency", unit="s", clock=clock, samples=latency)] if latency else []
    if gpu:
        measurements.append(Measurement(metric="GPU time", unit="s", clock="CUDA events", samples=series(gpu)))
    if rate:
        windows = tuple(rate * (1 + 0.01 * step) for step in range(-2, 3))
        measurements.append(Measurement(metric="throughput", unit="calls/s", clock=clock, samples=windows))
    defaults: dict[str, Any] = {
        "id": f"{of.digest}-1", "run": "run-1", "created": "2026-05-04T10:00:00Z", "case": of, "budget": Budget(),
        "status": "ok", "model": facts(of), "environment": CPU_MACHINE if of.device == "cpu" else GPU_MACHINE,
        "phases": (Phase("load", 0.4), Phase("export", 1.2), Phase("build", 3.1), Phase("first inference", 0.08)),
        "measurements": tuple(measurements), "agreement": RIGHT, "memory": MEMORY,
    }  # fmt: skip
    return Record(**{**defaults, **fields})


def in_turns(*turns: Sequence[float], between: float = 0.0, **fields: Any) -> Record:
    """A process that took turns with another one, and let so many seconds pass between two calls of a turn."""
    latency, begins, now = list[float](), list[float](), 0.0
    for turn in turns:
        now += 0.2
        for seconds in turn:
            begins.append(now)
            now += seconds + between
        latency += turn
    measured = Measurement(metric="latency", unit="s", clock="a clock", samples=(*latency,), begins=(*begins,))
    return record(median=None, measurements=(measured,), **{"facts": {IN_TURNS: "another"}, **fields})


def failure(of: Case, status: str = "failed", reason: str = "It broke.", hint: str = "", **fields: Any) -> Record:
    """A record of a case that did not run."""
    bare: dict[str, Any] = {"agreement": None, "memory": Memory(), "phases": (Phase("load", 0.4),)}
    return record(of, median=None, status=status, reason=reason, hint=hint, **{**bare, **fields})


def golden(name: str) -> list[Record]:
    """The records of a folder in tests/golden/records."""
    return [read_record(file) for file in sorted(GOLDEN.glob(f"{name}/*/record.json*"))]


def cpu_records() -> list[Record]:
    """Five ways on a CPU, of which one is wrong and two did not run."""
    return golden("cpu")


def gpu_records(batches: tuple[int, ...] = (1, 8)) -> list[Record]:
    """Six ways on a GPU at several batch sizes, and one that does not run there."""
    return [item for item in golden("gpu") if item.case.batch in batches]


def io_records() -> list[Record]:
    """Two ways on a GPU, whose calls begin and end on the device, and on the host."""
    return golden("io")


def sample_records() -> list[Record]:
    """A bit of everything: two machines, two batch sizes, right, wrong and failed cases."""
    return [*cpu_records(), *gpu_records((1, 8))]


def stored(folder: Path, records: Iterable[Record]) -> Path:
    """Write each record into a folder of its own and return the folder around them."""
    for number, one in enumerate(records):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "record.json").write_bytes(encode(one))
    return folder


def shown(records: Any, format: str = "table", reference: str | None = None, **terminal: Any) -> str:
    """Records as text of a format."""
    return render(records_document(records, reference), format, **terminal)


# One side of a comparison: cases measured in several processes, exactly as fast as they are told.

PROCESSES = 5
# Of each process, around the case's own time: their mean of logarithms is near 0.
FACTORS = (0.998, 0.999, 1.0, 1.001, 1.002)


def ran(
    of: Case | None = None,
    seconds: float = 10e-3,
    *,
    run: str = "base",
    processes: int = PROCESSES,
    rate: float | None = None,
    gpu: float | None = None,
    noise: float = 1.0,
    **fields: Any,
) -> list[Record]:
    """One run of a case, in so many processes; ``noise`` stretches how far these differ."""
    of = of or case()
    found = []
    for repeat in range(processes):
        factor = FACTORS[repeat % len(FACTORS)] ** noise
        measured = [taken("latency", seconds * factor)]
        measured += [taken("GPU time", gpu * factor)] if gpu else []
        measured += [taken("throughput", rate / factor)] if rate else []
        given: dict[str, Any] = {
            "measurements": tuple(measured), "run": run, "repeat": repeat, "repeats": processes,
            "id": f"{of.digest}-{run}-{repeat}",
        }  # fmt: skip
        found.append(record(of, median=None, **{**given, **fields}))
    return found


def taken(metric: Any, middle: float, count: int = 100) -> Measurement:
    """Samples in a narrow band around ``middle``, neither rising nor falling."""
    samples = tuple(middle * (1 + 1e-4 * ((7 * index) % 11 - 5)) for index in range(count))
    unit: Any = "calls/s" if metric == "throughput" else "s"
    return Measurement(metric=metric, unit=unit, clock="a clock", samples=samples)


def broken(of: Case | None = None, status: str = "crashed", reason: str = "It fell.", run: str = "base", **fields: Any):
    """A record of a case that did not run to its end."""
    of = of or case()
    return failure(of, status, reason, **{"run": run, "id": f"{of.digest}-{run}-{status}", **fields})


def saved(root: Path, records: list[Record]) -> Path:
    """The records on disk, as a run leaves them."""
    store = Store(root)
    for item in records:
        store.save(store.claim(item.case, item.case.model), item)
    return root
