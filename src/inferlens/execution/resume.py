"""Resume a run: the same command continues with the results of earlier runs in the output folder.

There is one rule for ``bench``, ``profile`` and ``tune``. A result is used again if the case, the rest of the request,
the content of the model's files, the machine with its devices, and the versions of the libraries are the same, and the
case ran. Everything else is measured. With ``--rerun`` nothing is used.

``bench`` and ``profile`` keep a hash of the request as a fact of a record. :func:`reuse_earlier` reads these records
before anything is measured, and cases with a record are skipped. A tuning or a study keeps its rounds in a
:class:`TrialLog`, and takes them from there in place of measuring.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.tuning import Trial
from inferlens.errors import InferlensError
from inferlens.execution.cases import ModelHandle
from inferlens.execution.protocol import Observer, PlannedCase, remove_results
from inferlens.models import factories
from inferlens.models.resolve import files_of, runs_code
from inferlens.models.samples import is_code
from inferlens.record.files import make_folder, sha256
from inferlens.record.record import CUT_SHORT, Environment, Record
from inferlens.record.store import LoadedRecords, Store, load_records, safe_name
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan
from inferlens.units import plural

WORK = "work"  # in the folder of rounds, what their processes build
REQUEST = "request"  # the fact of a record: a hash of the request without the case
T = TypeVar("T")
ON = "on"  # the fact that names the kind of machine, where a run uses several kinds


class RunState(Struct, frozen=True, kw_only=True):
    """The identity of a run, and the records of earlier runs that it uses again.

    Attributes:
        run: the id of this run, which its records have.
        facts: facts that all records of this run have.
        requests: the hash of the request by model, see :func:`request_hash`.
        records: records of earlier runs that are used again; their cases are not measured.
        continued: the id of the earlier run of the newest one of ``records``; empty without one.
    """

    run: str = msgspec.field(default_factory=lambda: uuid4().hex)
    facts: dict[str, str] = {}
    requests: dict[str, str] = {}
    records: tuple[Record, ...] = msgspec.field(default=(), name="known")
    continued: str = ""

    def run_of(self, case: Case) -> str:
        """Return the id of the run that new records of a case belong to.

        It is the run of the earlier records in the same race; without any, the run that is ``continued``, or this one.
        """
        races = {record.case.work: record.run for record in self.records}
        return races.get(case.work) or self.continued or self.run

    def candidate_facts(self, case: Case) -> dict[str, str]:
        request = self.requests.get(case.model)
        return {**self.facts, **({REQUEST: request} if request else {})}


def request_hash(command: str, plan: Plan, model: str, handle: ModelHandle | None, *more: object) -> str:
    """Return a hash of the request without the case, and of the files that its words name.

    The time for rounds is no part of it: with more time a race goes on.
    """
    budget = replace(plan.budget, within=None)
    live = [sha256(Path(handle.live))] if handle and handle.live else content_of(model, plan)
    return sha256(as_text([command, budget, plan.repeats, plan.rebuild, plan.accuracy, live, *more]))[:12]


def requests_of(
    command: str, plan: Plan, cases: Sequence[PlannedCase], model: ModelHandle | None, *more: object
) -> dict[str, str]:
    names = {planned.case.model for planned in cases}
    return {name: request_hash(command, plan, name, model, *more) for name in names}


def as_text(value: object) -> bytes:
    """Return a value as JSON that is the same for equal values."""
    return msgspec.json.encode(value, order="deterministic")


def reuse_earlier(
    state: RunState,
    plan: Plan,
    cases: Sequence[PlannedCase],
    environment_of: Callable[[Case], Environment] | None,
    observer: Observer,
    complete: Callable[[Path], bool] = lambda _: True,
) -> RunState:
    """Return ``state`` with the records of earlier runs that are used again, and remove those that are replaced.

    Only records of the same request, cases and environment count. Each race uses the records of one earlier run: the
    run with the most cases, or the latest of several such runs. A record of that run is used if its case ran, or still
    cannot run here, and if its folder is complete. The other records of that run are removed from the disk, so that
    their cases are measured again. With ``plan.rerun`` no record is used, and none is removed.

    Args:
        state: the run that begins.
        cases: the cases of the plan.
        environment_of: returns the environment of a case here; ``None`` to use records of any environment.
        observer: hears which records are used.
        complete: returns whether a record's folder has all files that the command needs.
    """
    if plan.rerun:
        return state
    planned = {one.case.digest: one for one in cases}
    records: list[Record] = []
    folders: dict[str, Path] = {}
    for name in sorted({safe_name(one.model.name) for one in cases}):
        loaded = _loaded(Path(plan.output) / name)
        same = [record for record in loaded.records if _is_same_request(record, planned, state)]
        same = [one for one in same if not environment_of or same_place(one, environment_of(one.case))]
        for race in grouped(same, lambda record: record.case.work):
            runs = grouped(race, lambda record: record.run)
            run = max(runs, key=lambda run: (len({record.case.digest for record in run}), run[-1].created))
            good = [one for one in run if _ended_well(one, planned) and complete(loaded.folders[one.id])]
            for record in run:
                if record not in good:
                    remove_results(loaded.folders[record.id])
                elif record.facts.pop(CUT_SHORT, None):
                    Store.save(loaded.folders[record.id], record)
            records += good
            folders |= {record.id: loaded.folders[record.id] for record in good}
    if records:
        observer.reused(records, folders)
        number = len({record.case.digest for record in records})
        observer.remark(f"{number} of {plural(len(planned), 'case')} measured before; --rerun measures all again.")
    return replace(
        state, records=tuple(records), continued=max(records, key=lambda one: one.created).run if records else ""
    )


def _loaded(folder: Path) -> LoadedRecords:
    """Return the records in a folder; none if there are none."""
    with suppress(InferlensError):
        return load_records(folder, profiled=True)
    return LoadedRecords([], {}, [])


def _is_same_request(record: Record, planned: dict[str, PlannedCase], state: RunState) -> bool:
    facts, request = record.facts, state.requests.get(record.case.model)
    same_kind = facts.get(ON, "") == state.facts.get(ON, "")
    return record.case.digest in planned and same_kind and request is not None and facts.get(REQUEST) == request


def _ended_well(record: Record, planned: dict[str, PlannedCase]) -> bool:
    """Return whether a case ran, or still cannot run."""
    return record.status == "ok" or (record.status == "unsupported" and bool(planned[record.case.digest].refusal))


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Return items in groups of the same key, in the order of their first ones."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def same_place(record: Record, environment: Environment) -> bool:
    """Return whether a record was measured in an environment; a change of code counts if the model is code."""
    return place_of(record.environment, record.case).same_as(place_of(environment, record.case))


def place_of(environment: Environment, case: Case) -> Environment:
    """Return the machine and libraries of a case; with the revision of code only if the model is code."""
    return environment if case.checkout or runs_code(case.model) else replace(environment, git_revision="")


def content_of(model: str, plan: Plan) -> list[str]:
    """Return hashes of the files that a model's full name, and names of data, stand for; they may change.

    Of code they are of all Python files in its folder; of a folder of data, of names, sizes and times.
    """
    code, data = [factories.place(model)] if runs_code(model) else [], files_of(model)
    for name in filter(None, (plan.weights, plan.calibration, plan.accuracy)):
        if is_code(name):
            code.append(factories.place(f"factory:{name}"))
        else:
            data.append(Path(name))
    return [*(sha256(*_python(place)) for place in code if place), *(_hash(place) for place in data if place.exists())]


def _python(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py") if place.is_dir() else place.parent.glob("*.py"))


def _hash(place: Path) -> str:
    if not place.is_dir():
        return sha256(place)
    stats = [(path, path.stat()) for path in sorted(place.rglob("*")) if path.is_file()]
    return sha256(*(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode() for path, stat in stats))


class TrialLog:
    """The rounds of a tuning or a study, written as soon as they are over.

    Args:
        about: what makes rounds comparable: the request, the machine, the libraries, the content of the model's files.
        budget: seconds; with another budget rounds go on, but those of a tuning's finals are held again.
        rerun: whether to begin anew. Then, and if the log is about something else, its folder is renamed.
    """

    def __init__(
        self,
        path: Path,
        about: Sequence[object],
        budget: float,
        model: ModelHandle | None,
        observer: Observer,
        *,
        rerun: bool = False,
    ) -> None:
        live = [sha256(Path(model.live))] if model and model.live else []
        first = as_text([*about, *live])
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        if (rerun or lines[0:1] != [first]) and any(lines[1:]):
            shutil.rmtree(path.parent / WORK, ignore_errors=True)  # what a stopped run has left
            names = (path.parent.with_name(f"{path.parent.name}-{number}") for number in count(1))
            aside = path.parent.rename(next(name for name in names if not name.exists()))
            lines = []
            observer.remark(f"The rounds of an earlier request are in {aside} now.")
        make_folder(path.parent)
        self.trials: list[Trial] = []
        with suppress(msgspec.MsgspecError):  # a round that cannot be read, and those after it, are measured again
            for line in lines[1:] if lines[:1] == [first] else ():
                self.trials.append(msgspec.json.decode(line, type=Trial))
        self.trials = [trial for trial in self.trials if not trial.final or trial.budget == budget]
        self._path, self._budget, self._observer = path, budget, observer
        fresh = path.with_suffix(".new")
        fresh.write_bytes(b"".join(line + b"\n" for line in (first, *map(msgspec.json.encode, self.trials))))
        fresh.replace(path)

    @property
    def seconds(self) -> float:
        """Seconds that the rounds took."""
        return sum(trial.seconds for trial in self.trials)

    def add(self, trial: Trial) -> None:
        """Write a round."""
        trial = replace(trial, budget=self._budget)
        self.trials.append(trial)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(trial) + b"\n")
        self._observer.kept(self._path)


def folders_of(path: Path) -> dict[str, Path]:
    """Return the folders of the records under a path by record id; none if there is no record."""
    return _loaded(path).folders


def clear(work: Path, log: TrialLog) -> None:
    """Remove what a stopped run has left, except for the builds of finalists."""
    finals = {record.id for trial in log.trials if trial.final for record in trial.records}
    needed = {folder for record, folder in folders_of(work).items() if record in finals}
    for folder in set(work.glob("*")) - needed:
        shutil.rmtree(folder, ignore_errors=True)
