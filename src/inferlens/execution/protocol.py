"""What crosses between the parent process and a worker: an order one way, events and a result the other. Only data.

A task is a function ``task(job, child) -> found`` of a module that the worker can import: an order names it. What it
finds lies in a :class:`TaskResult`, also if it ends badly on the way. An :class:`Observer` is told of all that happens.
A part of a plan is a task too, ``task(job, observer) -> found``: what its observer is told crosses as :class:`Told`.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError
from inferlens.execution.expand import Planned
from inferlens.models.model import Problem
from inferlens.record.record import Artefact, Memory, ModelFacts, Phase, PhaseName, Record, Status, Warning
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan

Found = TypeVar("Found")
J = TypeVar("J", bound="Job")
Task = Callable[[J, Any], Found]


def as_json(value: Any) -> bytes:
    """A value as JSON, with the paths and errors in it."""
    return msgspec.json.encode(value, enc_hook=_plain)


_ONE_BY_ONE = threading.Lock()  # msgspec crashes where two threads use a type for the first time


def from_json(data: bytes | msgspec.Raw, form: Any) -> Any:
    """A value of this form from its JSON; also in several threads."""
    with _ONE_BY_ONE:
        return msgspec.json.decode(data, type=form, dec_hook=_made)


def _plain(value: Any) -> Any:
    if isinstance(value, InferlensError):
        return Problem.of(value)
    return tuple(value) if isinstance(value, Sequence) else str(value)


def _made(kind: Any, value: Any) -> Any:
    if issubclass(kind, InferlensError):
        return kind(value["what"], expected=value["expected"], hint=value["hint"])
    return kind(value)


class Order(Struct, frozen=True):
    """A task by its name, and the job that it is given."""

    task: str
    job: msgspec.Raw

    @staticmethod
    def of(task: Task[J, Found], job: J) -> Order:
        """The order to do ``job``."""
        return Order(f"{task.__module__}:{task.__qualname__}", msgspec.Raw(as_json(job)))

    def opened(self) -> tuple[Task[Any, Any], Job]:
        """The task and its job."""
        module, _, name = self.task.partition(":")
        task = getattr(importlib.import_module(module), name)
        return task, from_json(self.job, get_type_hints(task)["job"])


class Job(Struct, frozen=True, kw_only=True):
    """What a task is given: here nothing, for tasks that are about no case."""

    @property
    def place(self) -> str:
        """The checkout that it is done in; empty: the working directory."""
        return ""

    @property
    def interpreter(self) -> str:
        """The interpreter that does it; empty: the one of this process."""
        return ""


class CaseJob(Job, frozen=True, kw_only=True):
    """What every task on a case is given."""

    case: Case
    folder: str  # where artefacts go
    cache: str  # where to keep what is worth keeping between cases
    trust: bool = False  # whether files that can run code may be opened
    exported: str = ""  # the folder in which a process of this run exported the model, for this backend and precision
    export_by: str = ""  # the file by which processes of this run that are alive at once export the model once
    known: ModelFacts | None = None  # what that one learned of the model, if what it exported is all that is needed
    built: bool = False  # whether an earlier process of the case in this run has built it
    rebuild: bool = False  # whether to make anew what is in the cache
    live: str | None = None  # the file of a live module
    level: str = ""  # what the runner is to be profiled for; empty: nothing

    @property
    def place(self) -> str:
        """See :class:`Job`."""
        return self.case.checkout

    @property
    def interpreter(self) -> str:
        """See :class:`Job`."""
        return self.case.python


class PartJob(Job, frozen=True, kw_only=True):
    """What a task on a part of a plan is given; those parts may run anywhere."""

    plan: Plan
    run: str = ""  # of which its records are
    live: Mapping[str, str] = {}  # files of live modules, by the full name of each
    facts: dict[str, str] = {}  # of all its records

    @property
    def progress(self) -> int:
        """How much of it is done; what is lost again and again without any is given up."""
        return 0

    def again(self, records: Sequence[Record], folders: Mapping[str, Path]) -> PartJob:  # noqa: ARG002 - for others
        """The job with what is known now, of all records; their ``folders`` are given by their ids."""
        return self


class TaskResult(Struct, Generic[Found], frozen=True, kw_only=True):
    """How a task ended, and what was learned on the way, named as in a record.

    ``found`` is what the task is for; where it ended badly, what of it was known until then. ``problem`` is the error
    in its parts, if it is one that a user can act on.
    """

    status: Status = "ok"
    reason: str = ""
    hint: str = ""
    problem: Problem | None = None
    model: ModelFacts | None = None
    phases: tuple[Phase, ...] = ()
    warnings: tuple[Warning, ...] = ()
    facts: dict[str, Any] = {}
    artefacts: tuple[Artefact, ...] = ()
    memory: Memory = Memory()
    found: Found | None = None


def result_of(task: Task[J, Found], data: bytes) -> TaskResult[Found]:
    """The result of a task from its JSON."""
    found: TaskResult[Found] = from_json(data, TaskResult[get_type_hints(task)["return"]])  # type: ignore[misc]
    return found


def refused(planned: Planned) -> TaskResult[Any]:
    """The result of a case that is known not to run here."""
    why = planned.refusal
    assert why
    return TaskResult(status="unsupported", reason=why.sentence, hint=why.hint)


class Began(Struct, frozen=True, tag="began"):
    """A phase began."""

    phase: PhaseName


class Progressed(Struct, frozen=True, tag="progressed"):
    """The share of the steady state that is done."""

    share: float


class Waits(Struct, frozen=True, tag="waits"):
    """The process waits for its turn; ``enough`` says that it has enough samples."""

    enough: bool


class Answered(Struct, frozen=True, tag="answered"):
    """The result; nothing comes after it."""

    result: msgspec.Raw


class Told(Struct, frozen=True, tag="told"):
    """The observer of a part was told something: the name of its method, and the arguments."""

    what: str
    arguments: tuple[msgspec.Raw, ...]

    def opened(self) -> list[Any]:
        """The arguments."""
        forms = get_type_hints(getattr(Observer, self.what)).values()
        pairs = zip(self.arguments, forms, strict=False)  # the last form is that of what it returns
        return [from_json(data, form) for data, form in pairs]


Event = Began | Progressed | Waits | Answered | Told


class Observer:
    """Told what happens while a plan runs; this one shows nothing."""

    def planned(self, cases: Sequence[Planned]) -> None:
        """The cases are known and will run in this order."""

    def doing(self, what: str) -> None:
        """Something other than a case is under way, such as the reference."""

    def part(self, name: str) -> None:
        """A part of what is asked for begins, such as one of several models that are tuned."""

    def began(self, case: Case) -> None:
        """A case begins."""

    def phase(self, name: PhaseName) -> None:
        """The case entered a phase."""

    def progress(self, share: float) -> None:
        """The share of the case's steady state that is done."""

    def again(self, case: Case) -> None:
        """A case is measured once more, because something disturbed it for a short time."""

    def done(self, record: Record, folder: Path) -> None:
        """A case is over and its record is on disk."""

    def discarded(self, records: Sequence[Record]) -> None:
        """Records that were told of do not count, and their folders are gone: their cases are measured again."""

    def kept(self, path: Path) -> None:
        """A file or folder below the folder of all records was written that is no record."""

    def remark(self, text: str) -> None:
        """Something about the run as a whole is worth a line."""

    def round(self, number: int, contenders: Sequence[Case], standing: str, finals: int = 0) -> None:
        """A round is over in which the ``contenders`` met, all of them measured before; ``standing`` says how it is.

        Of the rounds that prove a tuning's winner, ``finals`` says how many there are at least.
        """

    def heard(self, event: Event) -> None:
        """A case's process said something."""
        if isinstance(event, Began):
            self.phase(event.phase)
        elif isinstance(event, Progressed):
            self.progress(event.share)


TELLS = ("doing", "part", "began", "again", "done", "discarded", "kept", "remark", "round")  # of a part, to elsewhere


class Telling(Observer):
    """The observer of a part that runs elsewhere: passes on what it is told, but for what changes all the time."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self.send = send

    def __getattribute__(self, name: str) -> Any:
        if name not in TELLS:
            return super().__getattribute__(name)
        return lambda *arguments: self.send(Told(name, tuple(msgspec.Raw(as_json(each)) for each in arguments)))
