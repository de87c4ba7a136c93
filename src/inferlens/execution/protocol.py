"""What crosses between the parent process and a worker: jobs one way, events and an answer the other. Only data."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from inferlens.backends.base import Capabilities
from inferlens.backends.profiling.step_traces import Tracing
from inferlens.models.model import ModelInfo
from inferlens.record.kernel_profile import Kernels
from inferlens.record.layer_profile import Layers, Level
from inferlens.record.record import (
    Agreement,
    Artefact,
    Measurement,
    Memory,
    ModelFacts,
    Phase,
    PhaseName,
    Status,
    Warning,
)
from inferlens.record.work import Ceilings, Work
from inferlens.spec.case import Budget, Case


class Reference(Struct, frozen=True, kw_only=True):
    """Where the reference's outputs are kept for this run, or why there are none."""

    name: str
    path: str = ""
    weights_sha256: str = ""
    missing: str = ""


class ProbeJob(Struct, frozen=True, kw_only=True, tag="probe"):
    """Find out what the backends can do here."""

    backends: tuple[str, ...]


class FindJob(Struct, frozen=True, kw_only=True, tag="find"):
    """Find out what models' names mean."""

    models: tuple[str, ...]


class ReferenceJob(Struct, frozen=True, kw_only=True, tag="reference"):
    """Write the outputs of ``case`` to ``path`` (.npz), for inputs drawn from ``inputs_seed``."""

    case: Case
    path: str
    inputs_seed: int
    trust: bool = False
    live: str | None = None


class JobOnCase(Struct, frozen=True, kw_only=True):
    """What is said of every job that prepares a case.

    Attributes:
        folder: where artefacts go.
        cache: where to keep what is worth keeping between cases.
        rebuild: whether to make anew what is in the cache.
    """

    case: Case
    folder: str
    cache: str
    trust: bool = False
    rebuild: bool = False


class CaseJob(JobOnCase, frozen=True, kw_only=True, tag="case"):
    """Measure ``case``."""

    budget: Budget
    reference: Reference
    live: str | None = None


class TaskJob(JobOnCase, frozen=True, kw_only=True, tag="task"):
    """Have the backend of ``case`` do something with its model other than run it: ``save`` it, for example.

    Attributes:
        task: name of the backend's method.
        arguments: of the method, by name; ``path`` is a file's.
    """

    task: Literal["save", "build", "partition"]
    arguments: dict[str, Any] = {}


class ProfileJob(JobOnCase, frozen=True, kw_only=True, tag="profile"):
    """Profile ``case`` at a level, in ``runs`` calls after ``warmup`` others."""

    level: Level
    runs: int
    warmup: int
    live: str | None = None


class TraceJob(JobOnCase, frozen=True, kw_only=True, tag="trace"):
    """Trace steps of ``case`` with torch.profiler, after ``untraced`` calls without it; files go to ``folder``."""

    tracing: Tracing
    untraced: int
    live: str | None = None


class CeilingsJob(Struct, frozen=True, kw_only=True, tag="ceilings"):
    """Measure what ``device`` reaches at best; ``name`` is what it is called, ``threads`` are those of the CPU."""

    device: str
    name: str
    threads: int | None = None


Job = ProbeJob | FindJob | ReferenceJob | CaseJob | ProfileJob | TraceJob | TaskJob | CeilingsJob


class Ended(Struct, frozen=True, kw_only=True):
    """How the job on a case ended, and what was learned on the way."""

    status: Status
    reason: str = ""
    hint: str = ""
    model: ModelFacts | None = None
    phases: tuple[Phase, ...] = ()
    warnings: tuple[Warning, ...] = ()


class Answer(Ended, frozen=True, kw_only=True):
    """A worker's answer to a :class:`CaseJob`: the part of the record that it knows."""

    measurements: tuple[Measurement, ...] = ()
    agreement: Agreement | None = None
    memory: Memory = Memory()
    facts: dict[str, Any] = {}
    artefacts: tuple[Artefact, ...] = ()


class ProfileAnswer(Ended, frozen=True, kw_only=True):
    """A worker's answer to a :class:`ProfileJob`: the part of the profile that it knows."""

    layers: Layers | None = None
    kernels: Kernels | None = None
    work: Work | None = None
    facts: dict[str, Any] = {}


class Shown(Struct, frozen=True, kw_only=True):
    """What a trace file shows.

    Attributes:
        steps: seconds of each.
        operators, gpu: the share of their time in which an operator of PyTorch was called, or a GPU was at work.
        events: how many there are.
        notes: what was amiss when it was read, a sentence each.
    """

    steps: tuple[float, ...] = ()
    operators: float = 0.0
    gpu: float = 0.0
    events: int = 0
    notes: tuple[str, ...] = ()


class TraceAnswer(Ended, frozen=True, kw_only=True):
    """A worker's answer to a :class:`TraceJob`.

    Attributes:
        files: names of the trace files, one for each cycle.
        shown: what is in each.
        before: seconds of the calls without a profiler.
    """

    files: tuple[str, ...] = ()
    shown: tuple[Shown, ...] = ()
    before: tuple[float, ...] = ()


class Failure(Struct, frozen=True, kw_only=True):
    """An error a user can act on, crossing the process border."""

    what: str
    expected: str = ""
    hint: str = ""


class TaskAnswer(Struct, frozen=True, kw_only=True):
    """A worker's answer to a :class:`TaskJob`: what the method returned, as JSON, or why it did not."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None
    phases: tuple[Phase, ...] = ()
    facts: dict[str, Any] = {}
    warnings: tuple[Warning, ...] = ()


class CeilingsAnswer(Struct, frozen=True, kw_only=True):
    """A worker's answer to a :class:`CeilingsJob`: the ceilings, or why they could not be measured."""

    ceilings: Ceilings | None = None
    reason: str = ""


class ProbeAnswer(Struct, frozen=True):
    """Capabilities by backend."""

    capabilities: dict[str, Capabilities]


class FindAnswer(Struct, frozen=True):
    """What was found, in the order asked; a failure where a name means nothing."""

    found: tuple[ModelInfo | None, ...]
    failures: tuple[Failure | None, ...]


class ReferenceAnswer(Struct, frozen=True):
    """Hash of the weights the reference ran with."""

    weights_sha256: str


class Began(Struct, frozen=True, tag="began"):
    """A phase began."""

    phase: PhaseName


class Progressed(Struct, frozen=True, tag="progressed"):
    """The share of the steady state that is done."""

    share: float


class Waits(Struct, frozen=True, tag="waits"):
    """The process waits for its turn; ``enough`` says that it has enough samples."""

    enough: bool


class Learned(Struct, frozen=True, tag="learned"):
    """What would be the answer if the deadline came now: complete but for what is yet to be measured."""

    answer: msgspec.Raw


class Answered(Struct, frozen=True, tag="answered"):
    """The answer, encoded for the job's own answer type."""

    answer: msgspec.Raw


Event = Began | Progressed | Waits | Learned | Answered
