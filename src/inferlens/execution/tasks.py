"""What a backend does with a model other than running it (save it, build an engine, tell its partition), in a process
of its own as a case.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from inferlens.analysis.findings.hints import one_of
from inferlens.backends import BACKENDS
from inferlens.backends.abilities import ABILITIES, Saver
from inferlens.errors import InferlensError, suggestion
from inferlens.execution import run as api
from inferlens.execution.expand import cases_on
from inferlens.execution.protocol import Began, Event, TaskAnswer, TaskJob
from inferlens.execution.subprocess import launch
from inferlens.models.sources.onnx import own_weight_file
from inferlens.record.build_report import BuildReport
from inferlens.record.record import Phase, PhaseName, Warning
from inferlens.record.store import made
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan

T = TypeVar("T")


@dataclass(frozen=True)
class Done(Generic[T]):
    """A task's result, and what the backend said on the way.

    Attributes:
        case: what it was done for.
        result: what the backend returned.
        phases: what took how long.
        facts, warnings: as in a record.
    """

    case: Case
    result: T
    phases: tuple[Phase, ...]
    facts: dict[str, Any]
    warnings: tuple[Warning, ...]


def cases(words: Mapping[str, Any], backend: str, *, device: str = "") -> list[Case]:
    """Every case that ``words`` mean for one model on one backend.

    Whether the case could be measured here is not asked: an engine, for example, can be built without a GPU.

    Args:
        words: as on the command line, ``model`` among them.
        backend: ``name`` or ``name:variant``; without a variant the first that works here, else the first there is.
        device: ``cpu`` or ``cuda``; empty is the CPU if the backend can use it, else ``cuda``, there or not.

    Raises:
        InferlensError: if the words mean nothing, or more than one model.
    """
    plan = Plan.from_words({**words, "backend": backend})
    if len(plan.model) != 1:
        raise InferlensError("This takes one model.", expected="a single name or file")
    (found,) = api.find(plan.model)
    name = backend.partition(":")[0]
    BACKENDS.get(name)  # a name that means nothing is told before it is asked
    return cases_on(plan, found, api.probe([name]), device)


def single(words: Mapping[str, Any], backend: str) -> Case:
    """The one case that ``words`` mean on ``backend``.

    Raises:
        InferlensError: if they mean several, or none.
    """
    found = cases(words, backend)
    if len(found) != 1:
        raise InferlensError(f"This takes one case, not {len(found)}.", expected="single values, no commas")
    return found[0]


def run(
    task: Any,
    case: Case,
    result_type: type[T],
    arguments: Mapping[str, Any] | None = None,
    *,
    trust: bool = False,
    rebuild: bool = False,
    cache: Path = Path("results/.cache"),
    timeout: float = 900.0,
    phase: Callable[[PhaseName], None] = lambda _: None,
) -> Done[T]:
    """Has the backend of ``case`` do ``task`` in a process of its own.

    Args:
        task: ``save``, ``build`` or ``partition``.
        case: what to do it for.
        result_type: what the backend returns; ``type(None)`` for nothing.
        arguments: for the backend's method, by name; only what JSON can hold.
        trust, rebuild: as on the command line.
        cache: for what is worth keeping.
        timeout: seconds after which the process is killed.
        phase: told the name of each phase as it begins.

    Raises:
        InferlensError: if the backend could not do it, with its reason; also if its process crashed or hung.
    """
    if not issubclass(BACKENDS.get(case.backend), ABILITIES[task]):
        able = [f"--backend {name}" for name in BACKENDS.names() if issubclass(BACKENDS.get(name), ABILITIES[task])]
        raise InferlensError(f"The backend '{case.backend}' has no '{task}'.", hint=one_of(able))

    def on_event(event: Event) -> None:
        if isinstance(event, Began):
            phase(event.phase)

    with _cache(cache), tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        job = TaskJob(
            task=task, case=case, folder=folder, cache=str(cache.resolve()), trust=trust, rebuild=rebuild,
            arguments=dict(arguments or {}),
        )  # fmt: skip
        outcome = launch(job, timeout=timeout, on_event=on_event)
    if outcome.status == "timed out":  # where it was is of no use to whoever waited
        raise InferlensError(f"{case.label}: {outcome.reason}.", hint="a longer --timeout")
    if not outcome.answer:
        raise InferlensError(f"{case.label}: {outcome.reason}.\n{_tail(outcome.tail)}".rstrip())
    answer = msgspec.json.decode(outcome.answer, type=TaskAnswer)
    if answer.failure:
        raise InferlensError(answer.failure.what, expected=answer.failure.expected, hint=answer.failure.hint)
    result = msgspec.json.decode(answer.result, type=result_type)
    return Done(case, result, answer.phases, answer.facts, answer.warnings)


def save(path: Path, case: Case, **more: Any) -> Done[Any]:
    """Has the backend of ``case`` write its model to ``path``; what is there already stays if that fails.

    ``more`` is as in :func:`run`. Files that belong to it, its provenance for example, are written beside it;
    the weights that an ONNX graph of that name kept beside it go, unless there are new ones.
    """
    with _written(path):
        before = own_weight_file(path) if path.suffix == ".onnx" else None
        with _folder_of(path):
            done = _beside(path, lambda new: run("save", case, object, {"path": str(new)}, **more))
        if before and own_weight_file(path) != before:
            before.unlink(missing_ok=True)
    return done


def build(path: Path, case: Case, builds: int, **more: Any) -> Done[BuildReport]:
    """Has the backend of ``case`` build an engine ``builds`` times and write one to ``path``, as :func:`save` does."""

    def write(new: Path) -> Done[BuildReport]:
        return run("build", case, BuildReport, {"path": str(new), "builds": builds}, **more)

    with _written(path):
        done = _beside(path.resolve(), write)
    return replace(done, result=msgspec.structs.replace(done.result, path=str(path)))


def saver(path: Path, backend: str | None = None) -> str:
    """The backend that saves models in files with the suffix of ``path``: ``backend``, or else the first there is.

    Raises:
        InferlensError: if there is none, or ``backend`` writes no such files.
    """
    if backend:
        name = backend.partition(":")[0]
        own = _saves(name)
        if path.suffix not in own:
            raise InferlensError(
                f"The backend '{name}' writes no models to files named '{path.suffix or path.name}'.",
                expected=f"one of {', '.join(sorted(own))}" if own else "a backend that writes models to files",
                hint=f"--to {path.stem}{next(iter(sorted(own)))}" if own else "inferlens export without --backend",
            )
        return backend
    known = {suffix: name for name in reversed(BACKENDS.names()) for suffix in _saves(name)}
    if path.suffix not in known:
        raise InferlensError(
            f"Nothing here writes models to files named '{path.suffix or path.name}'.",
            expected=f"one of {', '.join(sorted(known))}",
            hint=suggestion(path.suffix, known),
        )
    return known[path.suffix]


def _saves(name: str) -> dict[str, str]:
    """Suffixes of the files that a backend saves models to, each with its kind."""
    kind = BACKENDS.get(name)
    return kind.saves if issubclass(kind, Saver) else {}


@contextmanager
def _folder_of(path: Path) -> Iterator[None]:
    """Folders that were made meanwhile for ``path`` are gone again where nothing was put into them."""
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        yield
    finally:
        for folder in missing:
            with suppress(OSError):  # it was not made, or there is something in it
                folder.rmdir()


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """The folder of what is worth keeping, there; gone again if nothing was kept and it was not there before."""
    with _folder_of(folder / "kept"):
        made(folder, "another folder to work in")
        yield


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Says which file it was that could not be written."""
    try:
        yield
    except OSError as error:
        raise InferlensError(
            f"{path} cannot be written: {error.strerror}.", hint="another name, or a folder that you may write to"
        ) from error


def _beside(path: Path, write: Callable[[Path], Done[T]]) -> Done[T]:
    """Writes into a folder beside ``path`` and, once all is there, moves it to its place.

    The folder is this process's own: it goes also where the one that writes into it was killed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".inferlens-") as folder:
        done = write(Path(folder) / path.name)
        for written in sorted(Path(folder).iterdir(), reverse=True):
            os.replace(written, path.parent / written.name)
    return done


def _tail(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in lines[-5:])
