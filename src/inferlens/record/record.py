"""The result of a case: a :class:`Record`, one per case and run, and its JSON form.

It holds raw samples; statistics are computed on demand. Times are seconds, sizes are bytes. Readers refuse a
``schema`` they do not know and ignore fields they do not know.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal, cast

import msgspec
from msgspec import field

from inferlens.record.display import Struct
from inferlens.record.files import decode_json
from inferlens.record.machine import Energy, MachineLog, Marks
from inferlens.spec.case import Budget, Case, TensorSpec

SCHEMA = "inferlens.record/1"
AGREEMENT = "agreement"  # the accuracy of samples without labels: the share of answers that equal the reference's
IN_TURNS = "in turns with"  # the fact that names the other of two cases that took turns on the machine
MEMORY_APART = "memory of a process that did not export"  # a fact: another process than the timed one had the memory
KERNEL_FAMILIES = "kernel families"  # the fact with the share of the GPU time per kind of kernel
CUT_SHORT = "cut short"  # the fact of a case of a race that was interrupted before its second round
NEIGHBOUR_EFFECT = "beside others"  # the fact of a case beside other workers that was measured alone as well
VISIBLE = "CUDA_VISIBLE_DEVICES"
EMPTY_KERNEL = "empty kernel"  # the fact with the ``gpu_seconds`` that the clock measures for a kernel without work

Status = Literal["ok", "failed", "timed out", "out of memory", "crashed", "unsupported"]
PhaseName = Literal["load", "export", "quantize", "build", "first inference", "warm-up", "steady state", "accuracy"]
Stage = Literal["H2D time", "compute time", "D2H time"]
Metric = Literal["warm-up", "latency", "enqueue time", "GPU time", Stage, "throughput"]


class Measurement(Struct, frozen=True, kw_only=True):
    """Raw samples of one metric, in the order they were taken.

    Attributes:
        metric: the quantity. ``latency``: host time from the call to its outputs being ready, nothing else in
            flight. ``warm-up``: the same for the calls before the first sample. ``enqueue time``: host time until the
            call returned. ``GPU time``: between two events on the stream around the call. ``H2D time``, ``compute
            time``, ``D2H time``: of the GPU time the copies in, the inference alone and the copies out, where a call
            begins and ends on the host. ``throughput``: calls per second of one window of back-to-back calls.
        samples: the raw samples; ``None`` for a sample that was not a finite number.
        in_flight: calls in flight at a time; ``None`` where calls were enqueued without waiting.
        begins: start times of the samples, as in ``Record.machine``; empty if another metric of these calls has them.
        calls: calls in one sample: 1, or those of a window.
    """

    metric: Metric
    unit: Literal["s", "calls/s"]
    clock: str
    samples: tuple[float | None, ...]
    in_flight: int | None = 1
    begins: tuple[float, ...] = ()
    calls: int = 1

    @property
    def values(self) -> tuple[float, ...]:
        """Return the samples, with NaN for a sample that was not a finite number."""
        if None not in self.samples:
            return cast("tuple[float, ...]", self.samples)
        return tuple(math.nan if value is None else value for value in self.samples)


class Phase(Struct, frozen=True):
    """One phase of a case and how long it took, in seconds of host time."""

    name: PhaseName
    seconds: float
    note: str = ""


# The behavior of a model, with the evidence; empty for a deterministic model.
BehaviorKind = Literal["writes inputs", "keeps state", "random", "not finite"]
Behavior = dict[BehaviorKind, str]
WRITES_INPUTS: BehaviorKind = "writes inputs"
KEEPS_STATE: BehaviorKind = "keeps state"
RANDOM: BehaviorKind = "random"
NOT_FINITE: BehaviorKind = "not finite"


class Agreement(Struct, frozen=True, kw_only=True):
    """The agreement of the outputs with the reference's.

    Attributes:
        rel_l2: Euclidean norm of the difference over that of the reference, the worst output's.
        cosine: cosine of the angle between the two, the worst output's.
        top1: share of rows whose largest element is in the same place; ``None`` where outputs are not classes.
        tolerance: the largest ``rel_l2`` accepted, given the case's precision; ``None`` if nothing was checked, or if
            the accuracy of a quantized model decides.
        agrees: whether the outputs are right; ``None`` where it could not be checked.
        reason: why they are wrong, or could not be checked.
        behavior: evidence from two calls of the reference with the same inputs, a clause by kind; empty for a
            deterministic model.
        state: for a model that keeps state, whether the case's second call shows it (``kept``) or not (``lost``).
    """

    reference: str
    max_abs: float | None = None
    rel_l2: float | None = None
    cosine: float | None = None
    top1: float | None = None
    tolerance: float | None = None
    agrees: bool | None = None
    reason: str = ""
    behavior: Behavior = {}
    state: Literal["", "kept", "lost"] = ""

    @property
    def repeatable(self) -> bool:
        """Return whether any later call with the same inputs gives the same outputs."""
        return not self.behavior.keys() & {RANDOM, KEEPS_STATE}


class Accuracy(Struct, frozen=True, kw_only=True):
    """The accuracy of the answers on real data, and that of the reference in fp32 on the same samples.

    Attributes:
        metric: ``top-1`` where samples have labels; ``agreement`` with the reference's classes where they have none; or
            the name of the user's function.
        values: one per sample, more is better; for ``top-1`` and ``agreement`` 1 for a hit and 0 for a miss. A user's
            function may give a single number.
        reference: the name of the reference; empty if there is none in fp32.
        reference_values: the values of the reference, sample by sample; empty without one, and for ``agreement``.
        top5, reference_top5: shares of samples whose label is among the five largest of more than ten classes.
        commonest: for ``top-1``, the share of samples that have the commonest label.
    """

    data: str
    metric: str = ""
    count: int = 0
    values: tuple[float, ...] = ()
    reference: str = ""
    reference_values: tuple[float, ...] = ()
    top5: float | None = None
    reference_top5: float | None = None
    commonest: float | None = None
    reason: str = ""


class Memory(Struct, frozen=True, kw_only=True):
    """Peak memory of the case's process, in bytes, and the basis of every value.

    Attributes:
        device_peak: of the device, read from outside the process, on the same basis for every backend.
        library_peak: of the device, by the backend's own account; not comparable between backends.
        parts: parts of the device memory by the backend's account, such as ``weights``.
    """

    host_peak: int | None = None
    host_basis: str = ""
    device_peak: int | None = None
    device_basis: str = ""
    library_peak: int | None = None
    library_basis: str = ""
    parts: dict[str, int] = {}


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU of the machine; ``power_limit`` is the driver's limit in watts when the command began."""

    name: str
    memory: int | None = None
    compute_capability: str = ""
    uuid: str = ""
    power_limit: float | None = None


class Environment(Struct, frozen=True, kw_only=True):
    """The place where a record was measured: machine, system, libraries. Unknown fields are empty."""

    cpu: str = ""
    cpu_cores: int | None = None
    cpu_threads: int | None = None
    governor: str = ""
    memory: int | None = None
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda_driver: str = ""
    system: str = ""
    container: str = ""
    python: str = ""
    inferlens: str = ""
    libraries: dict[str, str] = {}
    variables: dict[str, str] = {}
    git_revision: str = ""

    def same_as(self, environment: Environment) -> bool:
        """Return whether nothing differs. The order of the GPUs does not matter."""
        own_gpus, gpus = (sorted(owner.gpus, key=lambda gpu: gpu.uuid) for owner in (self, environment))
        return own_gpus == gpus and msgspec.structs.replace(self, gpus=environment.gpus) == environment


RANDOM_WEIGHTS = "Its weights are random; --weights FILE measures and keeps your own."


class ModelFacts(Struct, frozen=True, kw_only=True):
    """The model as it was run: its actual inputs, and the source and the hash of its weights."""

    name: str
    inputs: tuple[TensorSpec, ...] = ()
    parameters: int | None = None
    weights: str = ""
    weights_sha256: str = ""
    source: str = ""

    @property
    def weights_note(self) -> str:
        """Return a note on random weights; empty if they are not random."""
        return RANDOM_WEIGHTS if self.weights.startswith("random") else ""


class Artefact(Struct, frozen=True):
    """A file that is kept with the record: its path relative to the record's folder, its kind, its size in bytes."""

    path: str
    kind: str
    size: int


class Warning(Struct, frozen=True):
    """A warning to the reader of a number: a stable code, what happened, and what to do about it."""

    code: str
    message: str
    advice: str = ""

    @property
    def sentence(self) -> str:
        return f"{self.message} {self.advice}".strip()


class Record(Struct, frozen=True, kw_only=True):
    """The result of one run of one case.

    Attributes:
        id, run: different for every record, and shared by the records of one command.
        created: UTC time the case started, ISO 8601; ``ended``: when its record was kept, empty in older ones.
        status: how it ended; ``reason`` says why if not ``ok``, ``output_tail`` has the last lines it printed.
        phases: in the order they ran, also those before a failure.
        accuracy: of the first of the run's processes of this case, where it was requested.
        facts: the backend's report of the run, such as the providers of an ONNX graph's nodes.
        repeat: the number of the run's process of this case, from 0.
        repeats: the planned number of processes of this case; 0 in records without it.
        machine: the machine in the steady state, watched from outside the process.
        marks: which latency samples were disturbed by something on the machine; ``window_marks``: which windows of
            throughput were.
        energy, cpu_energy: joules for one item, of the GPU's board and of the CPUs, while latencies were taken.
    """

    schema: str = SCHEMA
    id: str
    run: str = ""
    created: str
    ended: str = ""
    case: Case
    budget: Budget
    status: Status
    reason: str = ""
    hint: str = field(default="", name="cure")
    output_tail: tuple[str, ...] = ()
    model: ModelFacts
    environment: Environment
    phases: tuple[Phase, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    agreement: Agreement | None = None
    accuracy: Accuracy | None = None
    memory: Memory = Memory()
    facts: dict[str, Any] = {}
    artefacts: tuple[Artefact, ...] = ()
    warnings: tuple[Warning, ...] = ()
    repeat: int = 0
    repeats: int = 0
    machine: MachineLog | None = None
    marks: Marks | None = None
    window_marks: Marks | None = None
    energy: Energy | None = None
    cpu_energy: Energy | None = None

    def __post_init__(self) -> None:
        """Move the GPU that the case ran on to the first place in its environment."""
        gpus, used = self.environment.gpus, self.machine.gpu_uuid if self.machine else ""
        if used and gpus and gpus[0].uuid != used:
            gpus = tuple(sorted(gpus, key=lambda gpu: gpu.uuid != used))
            msgspec.structs.force_setattr(self, "environment", msgspec.structs.replace(self.environment, gpus=gpus))

    def __repr__(self) -> str:
        """Return the case in a line, instead of thousands of numbers."""
        return f"<Record of {self.model.name}, {self.case.label}: {self.reason or self.status}>"

    def measurement(self, metric: Metric) -> Measurement | None:
        """Return the measurement of ``metric``; ``None`` if it was not measured."""
        return next((measurement for measurement in self.measurements if measurement.metric == metric), None)

    def samples(self, metric: Metric) -> tuple[float, ...]:
        """Return the raw samples of ``metric``, NaN where one was not finite; empty if it was not measured."""
        measurement = self.measurement(metric)
        return measurement.values if measurement else ()

    def phase_seconds(self, name: PhaseName) -> float | None:
        """Return the seconds of all phases called ``name``; ``None`` if there was none."""
        durations = [phase.seconds for phase in self.phases if phase.name == name]
        return sum(durations) if durations else None

    @property
    def batch(self) -> int | None:
        """Return the items in one call: the first dimension of the first input."""
        if self.model.inputs and self.model.inputs[0].shape:
            return self.model.inputs[0].shape[0]
        return self.case.batch

    @property
    def ranked(self) -> bool:
        """Return whether this record may win: it ran to its end and no check shows wrong outputs."""
        return self.status == "ok" and not (self.agreement and self.agreement.agrees is False)


def encode(record: Record) -> bytes:
    """Return a record as indented JSON, UTF-8, ending in a newline. Numbers that are not finite become null."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def decode(data: bytes) -> Record:
    """Return a record from its JSON form. Raises InferlensError for other data or an unknown schema."""
    return decode_json(data, Record, SCHEMA, "record")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a record."""
    schema: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(Record)))
    for part in schema["$defs"].values():  # Python 3.13 strips docstrings of their indentation, older ones do not
        if "description" in part:
            part["description"] = inspect.cleandoc(part["description"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}


def machine_name(environment: Environment) -> str:
    """Return the name of a machine: CPU, usable threads, GPUs, the card in use (two of one kind differ), driver."""
    threads = f", {environment.cpu_threads} threads" if environment.cpu_threads else ""
    kind = " + ".join([f"{environment.cpu or 'unknown CPU'}{threads}", *(gpu.name for gpu in environment.gpus)])
    driver = f"driver {environment.driver}" if environment.driver else ""
    return ", ".join(filter(None, [kind, card_name(environment), driver]))


def card_name(environment: Environment) -> str:
    """Return the beginning of the UUID of the GPU in use, such as ``GPU-163fb149``; empty if it has none."""
    return environment.gpus[0].uuid[:12] if environment.gpus else ""
