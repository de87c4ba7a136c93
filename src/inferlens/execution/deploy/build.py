"""``inferlens export``, ``build`` and ``partition``, each in a process of its own; who can is asked by type."""

from __future__ import annotations

import os
import tempfile
from abc import ABC
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from inferlens.backends import BACKENDS
from inferlens.backends.base import Builder, Deployer, Partitioner, Saver
from inferlens.errors import InferlensError, suggestion, unwritable
from inferlens.execution import child_process
from inferlens.execution.expand import cases_on
from inferlens.execution.protocol import Began, CaseJob, Event, Found, J, Task, TaskResult
from inferlens.execution.survey import find, probe
from inferlens.execution.worker import Child
from inferlens.record.build_report import BuildReport
from inferlens.record.partition import Partition
from inferlens.record.record import PhaseName
from inferlens.record.store import made
from inferlens.spec.case import Case
from inferlens.spec.hints import one_of
from inferlens.spec.plan import Plan

CACHE = Path("results/.cache")
TIMEOUT = 900.0


# The tasks: what the process does.


class FileJob(CaseJob, frozen=True, kw_only=True):
    """Write the case's model to the new file ``path``; of engines, build ``builds``."""

    path: str
    builds: int = 1


def save_model(job: FileJob, child: Child) -> None:
    """Writes the model as the backend runs it."""
    cast("Saver", child.backend).save(child.load(), job.case, child.preparation, Path(job.path))


def build_engines(job: FileJob, child: Child) -> BuildReport:
    """Builds engines and writes one."""
    return cast("Builder", child.backend).build(child.load(), job.case, child.preparation, Path(job.path), job.builds)


def deploy_model(job: FileJob, child: Child) -> None:
    """Writes what the backend's script loads; what was measured, unless it is to be built anew."""
    child.preparation.kept_only = not job.rebuild
    cast("Deployer", child.backend).deploy(child.load(), job.case, child.preparation, Path(job.path))


def partition_model(job: CaseJob, child: Child) -> Partition:
    """Says which operators would be compiled."""
    return cast("Partitioner", child.backend).partition(child.load(), job.case, child.preparation)


# The parents.


def cases(words: Mapping[str, Any], backend: str) -> list[Case]:
    """Return the cases that ``words`` mean for one model on ``backend``, whether they can be measured here or not."""
    plan = Plan.from_words({**words, "backend": backend})
    if len(plan.model) != 1:
        raise InferlensError("This command takes one model.", expected="a single name or file")
    (found,) = find(plan.model, plan=plan)
    name = backend.partition(":")[0]
    BACKENDS.get(name)  # a name that means nothing is told before it is asked
    return cases_on(plan, found, probe([name]))


def single(words: Mapping[str, Any], backend: str) -> Case:
    """The one case that ``words`` mean on ``backend``; an ``InferlensError`` if they mean several, or none."""
    found = cases(words, backend)
    if len(found) != 1:
        raise InferlensError(f"This command takes one case, not {len(found)}.", expected="single values, no commas")
    return found[0]


def save(path: Path, case: Case, **more: Any) -> TaskResult[None]:
    """Has the backend of ``case`` write its model to ``path``; what is there already stays if that fails.

    ``more`` is as in :func:`partition`. Files that belong to it, its provenance for example, are written beside it.
    """
    return written(path, save_model, Saver, case, **more)


def build(path: Path, case: Case, builds: int, **more: Any) -> TaskResult[BuildReport]:
    """Has the backend of ``case`` build an engine ``builds`` times and write one to ``path``, as :func:`save` does."""
    done = written(path, build_engines, Builder, case, builds=builds, **more)
    assert done.found
    return replace(done, found=replace(done.found, path=str(path)))


def partition(case: Case, **more: Any) -> TaskResult[Partition]:
    """Has the backend of ``case`` say which operators it would compile; an ``InferlensError`` if it could not.

    ``more``: ``trust`` and ``rebuild`` as on the command line; ``cache``, the folder of what is worth keeping;
    ``timeout``, seconds after which the process is killed; ``phase``, told the name of each phase as it begins.
    """
    return run_task(partition_model, CaseJob, Partitioner, case, **more)


def able(ability: type[ABC]) -> list[str]:
    """Names of the backends that have an ability, such as :class:`inferlens.backends.base.Builder`."""
    return [name for name in BACKENDS.names() if issubclass(BACKENDS.get(name), ability)]


def saver(path: Path, backend: str | None = None) -> str:
    """The backend that writes files with the suffix of ``path``: ``backend``, or else the first that does."""
    names = [backend.partition(":")[0]] if backend else BACKENDS.names()
    kinds = [(name, BACKENDS.get(name)) for name in reversed(names)]
    known = {suffix: name for name, kind in kinds if issubclass(kind, Saver) for suffix in kind.saves}
    if path.suffix not in known:
        raise InferlensError(
            f"{f'{names[0]} writes no models' if backend else 'Nothing writes models'} to files named "
            f"'{path.suffix or path.name}'.",
            expected=f"one of {', '.join(sorted(known))}" if known else "a backend that writes models to files",
            hint=suggestion(path.suffix, known) or ("inferlens export without --backend" if backend else ""),
        )
    return backend or known[path.suffix]


def run_task(
    task: Task[J, Found],
    kind: type[J],
    ability: type[ABC],
    case: Case,
    *,
    cache: Path = CACHE,
    timeout: float = TIMEOUT,
    phase: Callable[[PhaseName], None] = lambda _: None,
    **fields: Any,
) -> TaskResult[Found]:
    """The result of a task that ended well; ``kind`` is the job it is given, with ``fields`` beside the case."""
    if case.backend not in able(ability):
        hint = one_of([f"--backend {each}" for each in able(ability)])
        raise InferlensError(f"The backend '{case.backend}' cannot do that.", hint=hint)

    def heard(event: Event) -> None:
        if isinstance(event, Began):
            phase(event.phase)

    new = [each for each in (cache, *cache.parents) if not each.exists()]
    made(cache, "another folder to work in")
    try:
        with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
            job = kind(case=case, folder=folder, cache=str(cache.resolve()), **fields)
            outcome = child_process.launch(task, job, timeout=timeout, on_event=heard)
    finally:
        for each in new:  # where nothing was kept
            with suppress(OSError):
                each.rmdir()
    outcome.found(case.label)
    return outcome.result


def written(
    path: Path, task: Task[Any, Found], ability: type[ABC], case: Case, kind: type[FileJob] = FileJob, **more: Any
) -> TaskResult[Found]:
    """Has a task write into a folder beside ``path`` and, once all is there, moves it to its place.

    The folder is this process's own: it goes also where the one that writes into it was killed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".inferlens-") as folder:
            new = Path(folder).resolve() / path.name
            done = run_task(task, kind, ability, case, path=str(new), **more)
            for written in sorted(Path(folder).iterdir(), reverse=True):
                os.replace(written, path.parent / written.name)
        return done
    except OSError as error:
        raise unwritable(path, error, "another name, or a folder that you may write to") from error
