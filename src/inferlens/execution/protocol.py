"""The data that crosses between processes: jobs and orders one way, events and a result the other.

An order names a task, which ``worker.TASKS`` maps to a function. An :class:`Observer` hears of everything that
happens in a run; calls of the observer of a remote worker cross as a :class:`RemoteEvent`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends import BACKENDS, reference_backend
from inferlens.errors import InferlensError, Unsupported
from inferlens.models.model import ModelInfo
from inferlens.record.record import Artefact, Memory, ModelFacts, Phase, PhaseName, Record, Status, Warning
from inferlens.record.store import PROFILE, RECORD
from inferlens.spec.case import Case

Value = TypeVar("Value")


@dataclass(frozen=True)
class PlannedCase:
    """A case of a plan, its model, and the reason why it cannot run here, if that is clear beforehand.

    ``fallback`` is the plain case to measure if this recommended case fails. ``note`` says why a plain case is here.
    """

    case: Case
    model: ModelInfo
    refusal: Unsupported | None
    note: str = ""
    fallback: PlannedCase | None = None

    @property
    def reference(self) -> Case | None:
        """The case whose outputs this one's are compared with: fp32, on the CPU, same weights and inputs, here.

        An ONNX graph runs in its own precision there too; ``None`` for a compiled model of unknown origin.
        """
        case, origin = self.case, self.model.origin
        if origin is not None:
            case = replace(
                case, model=origin.model, weights=origin.weights, seed=origin.seed, inputs=case.inputs or origin.inputs
            )  # the example inputs of the original model are not in the compiled file
        format = self.model.origin_format or self.model.format
        backend = reference_backend(format)
        if not backend:
            return None
        variant, options = BACKENDS.get(backend).reference_for[format]
        variant = variant or BACKENDS.get(backend).variants[0]
        precision = (origin or self.model).precision if format == "onnx" else "fp32"
        return replace(
            case, backend=backend, variant=variant, precision=precision, device="cpu", threads=None,
            options=dict(options), io="device", keep="", python="",
        )  # fmt: skip

    @property
    def evaluated_as(self) -> str:
        """A key of the accuracy of the reference. The batch does not matter to it."""
        return replace(self.reference, batch=None).digest if self.reference else ""


def as_json(value: Any, *, order: Literal["deterministic"] | None = None) -> bytes:
    """Return a value as JSON, with the paths and errors in it. With ``order``, equal values give equal bytes."""
    return msgspec.json.encode(value, order=order, enc_hook=_encode_other)


_DECODING = threading.Lock()  # msgspec crashes where two threads use a type for the first time


def from_json(data: bytes | msgspec.Raw, type: Any) -> Any:
    """Return a value of a type from its JSON. Several threads may call this."""
    with _DECODING:
        return msgspec.json.decode(data, type=type, dec_hook=_decode_other)


def _encode_other(value: Any) -> Any:
    if isinstance(value, InferlensError):
        return {"what": value.what, "expected": value.expected, "hint": value.hint}
    return str(value)


def _decode_other(type: Any, value: Any) -> Any:
    if issubclass(type, InferlensError):
        return type(value["what"], expected=value["expected"], hint=value["hint"])
    return type(value)


class Job(Struct, frozen=True, kw_only=True):
    """The input of a task; this one is empty, for tasks that need no case."""

    @property
    def place(self) -> str:
        """The checkout in which the task runs; empty: the working directory."""
        return ""

    @property
    def interpreter(self) -> str:
        """The interpreter that runs the task; empty: the one of this process."""
        return ""


class CaseJob(Job, frozen=True, kw_only=True):
    """The input that all tasks on a case share."""

    case: Case
    folder: str  # where artefacts go
    cache: str  # the folder of files that several cases and runs use
    trust: bool = False  # whether files that can run code may be opened
    exported: str = ""  # the folder in which a process of this run exported the model, for this backend and precision
    exported_model: ModelFacts | None = None  # the facts of that model, if its export is all that is needed
    export_by: str = ""  # the file by which concurrent processes of this run export the model once
    built: bool = False  # whether an earlier process of the case in this run has built it
    rebuild: bool = False  # whether to ignore the builds in the cache
    live: str | None = None  # the file of a live module
    level: str = ""  # the level of the profile that the runner is prepared for; empty without one

    @property
    def place(self) -> str:
        return self.case.checkout

    @property
    def interpreter(self) -> str:
        return self.case.python


class Order(Struct, frozen=True):
    """The name of a task, and its job as JSON."""

    task: str
    job: msgspec.Raw

    @staticmethod
    def of(task: str, job: Job) -> Order:
        """Return the order to run a task on a job."""
        return Order(task, msgspec.Raw(as_json(job)))


class TaskResult(Struct, Generic[Value], frozen=True, kw_only=True):
    """The end of a task and the data that it collected, named as in a record.

    ``value`` is the return value of the task, or a part of it if the task failed. ``problem`` has its error,
    if a user can act on that.
    """

    status: Status = "ok"
    reason: str = ""
    hint: str = ""
    problem: InferlensError | None = None
    model: ModelFacts | None = None
    phases: tuple[Phase, ...] = ()
    warnings: tuple[Warning, ...] = ()
    facts: dict[str, Any] = {}
    artefacts: tuple[Artefact, ...] = ()
    memory: Memory = Memory()
    value: Value | None = None


def result_from_json(data: bytes | msgspec.Raw, type: Any) -> TaskResult[Any]:
    """Return the result of a task whose value has the given type."""
    result: TaskResult[Any] = from_json(data, TaskResult[type])
    return result


def refused(planned: PlannedCase) -> TaskResult[Any]:
    """Return the result of a case that cannot run here."""
    refusal = planned.refusal
    assert refusal
    return TaskResult(status="unsupported", reason=refusal.sentence, hint=refusal.hint)


class PhaseStart(Struct, frozen=True, tag="began"):
    """A phase begins."""

    phase: PhaseName


class ProgressReport(Struct, frozen=True, tag="progressed"):
    """The share of the steady state that is over."""

    share: float


class TurnRequest(Struct, frozen=True, tag="waits"):
    """The process waits for its turn; ``enough``: it has enough samples."""

    enough: bool


class TaskAnswer(Struct, frozen=True, tag="answered"):
    """The result of a task; nothing comes after it."""

    result: msgspec.Raw


class RemoteEvent(Struct, frozen=True, tag="told"):
    """A call of an observer's method on a remote worker."""

    method: str
    arguments: tuple[msgspec.Raw, ...]

    def decoded(self) -> list[Any]:
        types = get_type_hints(getattr(Observer, self.method)).values()
        pairs = zip(self.arguments, types, strict=False)  # the last type is that of the return value
        return [from_json(data, type) for data, type in pairs]

    def repeat_for(self, observer: Observer) -> None:
        """Call the same method of another observer."""
        getattr(observer, self.method)(*self.decoded())


Event = PhaseStart | ProgressReport | TurnRequest | TaskAnswer | RemoteEvent


class Observer:
    """An observer of the run of a plan. This one shows nothing."""

    def planned(self, cases: Sequence[PlannedCase]) -> None:
        """Show the cases in the order in which they will run."""

    def doing(self, what: str) -> None:
        """Show work on something other than a case, such as the reference."""

    def part(self, name: str) -> None:
        """Show the begin of a part of the command, such as one of several models to tune."""

    def began(self, case: Case) -> None:
        """Show that a case begins."""

    def phase(self, name: PhaseName) -> None:
        """Show that the case enters a phase."""

    def progress(self, share: float) -> None:
        """Show the share of the case's steady state that is over."""

    def done(self, record: Record, folder: Path) -> None:
        """Show that a case is over and its record is on disk."""

    def discarded(self, records: Sequence[Record]) -> None:
        """Drop records that do not count any more. Their folders are removed and their cases are measured again."""

    def unused(self, records: Sequence[Record]) -> None:
        """Drop records of an earlier run, because a worker differs. They stay on disk."""

    def kept(self, path: Path) -> None:
        """Show a new file or folder that is no record, below the folder of all records."""

    def reused(self, records: Sequence[Record], folders: Mapping[str, Path]) -> None:
        """Show the records of an earlier run that count for this one. Their folders are by record id."""

    def remark(self, text: str) -> None:
        """Show a remark about the run as a whole."""

    def round(self, number: int, contenders: Sequence[Case], standing: str, finals: int = 0) -> None:
        """Show that a round of the ``contenders`` is over. ``standing`` is the state of the race in a few words.

        ``finals`` is the least number of the final rounds of a tuning.
        """

    def heard(self, event: Event, concurrent: Case | None = None) -> None:
        """Handle an event from a process; ``concurrent`` is its case, if others run at the same time."""
        if isinstance(event, PhaseStart):
            if concurrent:
                self.began(concurrent)
            self.phase(event.phase)
        elif isinstance(event, ProgressReport):
            self.progress(event.share)
        elif isinstance(event, RemoteEvent):
            event.repeat_for(self)


class ForwardingObserver(Observer):
    """An observer that forwards every call to :meth:`forward`."""

    def forward(self, method: str, *arguments: Any) -> None:
        """Handle a call of a method of an observer."""
        raise NotImplementedError


def _forwarding(method: str) -> Callable[..., None]:
    return lambda self, *arguments: self.forward(method, *arguments)


for _method in (name for name in vars(Observer) if not name.startswith("_") and name != "heard"):
    setattr(ForwardingObserver, _method, _forwarding(_method))


class ResultCollector(ForwardingObserver):
    """An observer that keeps the records of a run and their folders, and forwards all calls, one at a time.

    Calls of the methods ``without`` are not forwarded.
    """

    def __init__(self, observer: Observer, without: Sequence[str] = ()) -> None:
        self.inner, self.without, self.lock = observer, without, threading.RLock()
        self.records: list[Record] = []
        self.folders: dict[str, Path] = {}

    def forward(self, method: str, *arguments: Any) -> None:
        """Call the same method of the inner observer."""
        with self.lock:
            if method not in self.without:
                getattr(self.inner, method)(*arguments)

    def done(self, record: Record, folder: Path) -> None:
        with self.lock:
            self.records.append(record)
            self.folders[record.id] = folder
            self.forward("done", record, folder)

    def reused(self, records: Sequence[Record], folders: Mapping[str, Path]) -> None:
        with self.lock:
            self.records += records
            self.folders |= folders
            self.forward("reused", records, folders)

    def discarded(self, records: Sequence[Record]) -> None:
        with self.lock:
            for name in {record.id for record in records} & self.folders.keys():
                remove_results(self.folders.pop(name))
            self._drop("discarded", records)

    def unused(self, records: Sequence[Record]) -> None:
        self._drop("unused", records)

    def _drop(self, method: str, records: Sequence[Record]) -> None:
        with self.lock:
            names = {record.id for record in records}
            self.records = [record for record in self.records if record.id not in names]
            self.forward(method, records)


def remove_results(folder: Path) -> None:
    """Remove the record of a case and its profiles; logs and artefacts stay."""
    for file in (folder / RECORD, *folder.glob(f"{PROFILE}*")):
        file.unlink(missing_ok=True)


class RemoteObserver(ForwardingObserver):
    """The observer of a run on a remote worker; it sends calls as events, except for progress."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self.send = send

    def forward(self, method: str, *arguments: Any) -> None:
        """Send a call as an event."""
        if method not in ("planned", "phase", "progress", "reused"):
            self.send(RemoteEvent(method, tuple(msgspec.Raw(as_json(argument)) for argument in arguments)))
