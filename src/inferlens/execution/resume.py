"""Resume a run: the same command continues with the results of earlier runs in the output folder.

There is one rule for ``bench``, ``profile`` and ``tune``. A result is used again if the case, the rest of the request,
the content of the model's files, the machine with its devices, and the versions of the libraries are the same, and the
case ran. Everything else is measured. With ``--rerun`` nothing is used.

``bench`` and ``profile`` resume in these steps:

1. ``run.run``, ``profile.run`` and ``RemoteRun.race_jobs`` call :func:`reuse_earlier` before anything is measured. It
   hashes the request, reads the records below ``<output>/<model>/``, and returns a :class:`RunState` with those that
   are used again. It removes the records that are replaced.
2. ``run.CaseResults`` and ``profile.profile_cases`` begin with these records. Cases that have one are not measured.
3. ``race.hold_rounds`` goes on after the last round: :meth:`RunState.later_rounds` has the rounds of a case. Their time
   counts, too (:attr:`RunState.round_seconds`).
4. ``Scheduler._keep`` writes new records with :meth:`RunState.run_of` and :meth:`RunState.facts_of`. So they belong to
   the same run, and have the hash by which the next command finds them.
5. A run that is interrupted keeps its records. :func:`mark_if_cut_short` marks them if they look complete.

A worker on another device discards records that were measured elsewhere (``CasesJob.run`` in ``remote``).

A tuning (``tuning/tune.py``) writes its rounds into a :class:`TrialLog` as they end. It reads the log when
it begins: the search learns the rounds in it, and the rounds of finals are taken from it in place of measuring.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.tuning import Trial
from inferlens.errors import InferlensError
from inferlens.execution.cases import Environments, ModelHandle
from inferlens.execution.protocol import Observer, PlannedCase, ResultCollector, as_json, remove_results
from inferlens.models import factories
from inferlens.models.resolve import files_of, runs_code
from inferlens.models.samples import is_code
from inferlens.record.files import make_folder, sha256
from inferlens.record.profile import Level, decode_profile
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
    records: tuple[Record, ...] = ()
    continued: str = ""

    @property
    def run_by_work(self) -> dict[Hashable, str]:
        """The ids of the earlier runs whose races go on, by the work of the race."""
        return {record.case.work: record.run for record in self.records}

    def run_of(self, case: Case) -> str:
        """Return the id of the run that new records of a case belong to.

        It is the run of the earlier records in the same race. Without any, it is the run that is ``continued``, or this
        one.
        """
        return self.run_by_work.get(case.work) or self.continued or self.run

    def facts_of(self, case: Case) -> dict[str, str]:
        """Return the facts of new records of a case."""
        request = self.requests.get(case.model)
        return {**self.facts, REQUEST: request} if request else self.facts

    def later_rounds(self, case: Case, first: Record) -> list[Record]:
        """Return the earlier records of a case in rounds after its ``first`` record."""
        records = [record for record in self.records if record.case == case and record.repeat > first.repeat]
        return sorted(records, key=lambda record: record.repeat)

    @property
    def round_seconds(self) -> float:
        """The seconds in which any process of an earlier round was measured."""
        total, latest = 0.0, -math.inf
        texts = [(record.created, record.ended) for record in self.records if record.repeat]
        for begin, end in sorted([datetime.fromisoformat(text).timestamp() for text in pair] for pair in texts):
            total += max(end - max(begin, latest), 0.0)
            latest = max(latest, end)
        return total


def request_hash(command: str, plan: Plan, model: str, handle: ModelHandle | None, *options: object) -> str:
    """Return a hash of the request without the case, and of the files that its words name.

    The time for rounds is no part of it: with more time a race goes on. ``options`` are those of the command.
    """
    budget = replace(plan.budget, within=None)
    content = [sha256(Path(handle.live))] if handle and handle.live else content_of(model, plan)
    request = [command, budget, plan.repeats, plan.rebuild, plan.accuracy, content, *options]
    return sha256(as_json(request, order="deterministic"))[:12]


def reuse_earlier(
    state: RunState,
    command: str,
    plan: Plan,
    cases: Sequence[PlannedCase],
    model: ModelHandle | None,
    environments: Environments | None,
    observer: Observer,
    levels: Sequence[Level] = (),
    runs: int = 0,
) -> RunState:
    """Return ``state`` with the request and the records of earlier runs that are used again.

    Each race uses the records of one earlier run: the run with the most cases, or the latest of several such runs.
    A record of that run is used if its case ran, or still cannot run here, and if its folder has all profiles. The
    other records of that run are removed from the disk, so that their cases are measured again. With ``plan.rerun`` no
    record is used, and none is removed.

    Args:
        model: the live model of the plan.
        environments: the environments of cases here; ``None`` to use records of any environment.
        levels: the levels of profiles that a record needs, of ``runs`` calls each.
    """
    options = (levels, runs) if levels else ()
    names = {planned.case.model for planned in cases}
    state = replace(state, requests={name: request_hash(command, plan, name, model, *options) for name in names})
    if plan.rerun:
        return state
    planned_by_digest = {planned.case.digest: planned for planned in cases}
    earlier = _load_if_there(*sorted({Path(plan.output) / safe_name(planned.model.name) for planned in cases}))
    records = sorted(earlier.records, key=lambda record: safe_name(record.model.name))  # by model, then by time
    comparable = [
        record
        for record in records
        if record.case.digest in planned_by_digest
        and _is_same_request(record, state)
        and (environments is None or same_place(record, environments.of(record.case)))
    ]
    reused: list[Record] = []
    races = grouped(comparable, lambda record: record.case.work)
    for record in itertools.chain.from_iterable(map(_fullest_run, races)):
        folder = earlier.folders[record.id]
        if _is_complete(record, planned_by_digest[record.case.digest], folder, levels):
            reused.append(_without_mark(record, folder))
        else:
            remove_results(folder)
    if not reused:
        return state
    observer.reused(reused, {record.id: earlier.folders[record.id] for record in reused})
    count = len({record.case.digest for record in reused})
    total = plural(len(planned_by_digest), "case")
    observer.remark(f"{count} of {total} measured before; --rerun measures all again.")
    return replace(state, records=tuple(reused), continued=max(reused, key=lambda record: record.created).run)


def _load_if_there(*folders: Path) -> LoadedRecords:
    """Return the records in folders, which may be missing or without records."""
    with suppress(InferlensError):
        return load_records(*(folder for folder in folders if folder.exists()), profiled=True)
    return LoadedRecords([], {}, [])


def _is_same_request(record: Record, state: RunState) -> bool:
    """Return whether a record is of the run's request, on the run's kind of machine."""
    facts = state.facts_of(record.case)
    return all(record.facts.get(name) == facts.get(name) for name in (REQUEST, ON))


def _fullest_run(records: Sequence[Record]) -> list[Record]:
    """Return the records of the run with the most cases, or the latest of several such runs."""
    runs = grouped(records, lambda record: record.run)
    return max(runs, key=lambda run: (len({record.case.digest for record in run}), run[-1].created))


def _is_complete(record: Record, planned: PlannedCase, folder: Path, levels: Sequence[Level]) -> bool:
    """Return whether a case ran, or still cannot run, and was profiled at all levels, or cannot be profiled there."""
    if record.status != "ok" and not (record.status == "unsupported" and planned.refusal):
        return False
    with suppress(OSError, InferlensError):
        profiles = [decode_profile(profile_file(folder, level).read_bytes()) for level in levels]
        return all(profile.status in ("ok", "unsupported") for profile in profiles)
    return False


@contextmanager
def mark_if_cut_short(plan: Plan, results: ResultCollector) -> Iterator[None]:
    """Mark the records of a race that was interrupted before its second round, because they look complete."""
    try:
        yield
    except BaseException:
        if not plan.repeats and not any(record.repeat > 1 for record in results.records):
            for record in results.records:
                Store.save(results.folders[record.id], replace(record, facts={**record.facts, CUT_SHORT: True}))
        raise


def _without_mark(record: Record, folder: Path) -> Record:
    """Return a record without the mark of a run that was cut short, because that run goes on."""
    if CUT_SHORT not in record.facts:
        return record
    unmarked = replace(record, facts={name: value for name, value in record.facts.items() if name != CUT_SHORT})
    Store.save(folder, unmarked)
    return unmarked


def profile_file(folder: Path, level: Level) -> Path:
    return folder / f"profile-{level}.json"


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
    """Return an environment, with the revision of code only if the model of the case is code."""
    return environment if case.checkout or runs_code(case.model) else replace(environment, git_revision="")


def content_of(model: str, plan: Plan) -> list[str]:
    """Return hashes of the files of the model and of the plan's data, because they may change under the same names.

    A hash of code covers all Python files in its folder. A hash of a folder of data covers names, sizes and times.
    """
    code, data = [factories.place(model)] if runs_code(model) else [], files_of(model)
    for name in filter(None, (plan.weights, plan.calibration, plan.accuracy)):
        if is_code(name):
            code.append(factories.place(f"factory:{name}"))
        else:
            data.append(Path(name))
    return [*(_hash_code(path) for path in code if path), *(_hash_data(path) for path in data if path.exists())]


def _hash_code(path: Path) -> str:
    return sha256(*sorted(path.rglob("*.py") if path.is_dir() else path.parent.glob("*.py")))


def _hash_data(path: Path) -> str:
    if not path.is_dir():
        return sha256(path)
    stats = [(file, file.stat()) for file in sorted(path.rglob("*")) if file.is_file()]
    return sha256(*(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode() for file, stat in stats))


class TrialLog:
    """The rounds of a tuning, written as soon as they are over.

    Args:
        path: the file of the log. Its first line is ``key`` as JSON; each other line is a round.
        key: what makes rounds comparable: the request, the machine, the libraries, the content of the model's files.
        budget: seconds. With another budget the rounds go on, but those of the finals are held again.
        rerun: whether to begin anew. Then, and if the log has another key, its folder is renamed.
    """

    def __init__(
        self,
        path: Path,
        key: Sequence[object],
        budget: float,
        model: ModelHandle | None,
        observer: Observer,
        *,
        rerun: bool = False,
    ) -> None:
        live = [sha256(Path(model.live))] if model and model.live else []
        first_line = as_json([*key, *live], order="deterministic")
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        if (rerun or lines[0] != first_line) and any(lines[1:]):
            shutil.rmtree(path.parent / WORK, ignore_errors=True)  # files of a run that was stopped
            names = (path.parent.with_name(f"{path.parent.name}-{number}") for number in itertools.count(1))
            renamed = path.parent.rename(next(name for name in names if not name.exists()))
            lines = [b""]
            observer.remark(f"The rounds of an earlier request are in {renamed} now.")
        make_folder(path.parent)
        self.trials: list[Trial] = []
        with suppress(msgspec.MsgspecError):  # a round that cannot be read, and those after it, are measured again
            for line in lines[1:]:
                self.trials.append(msgspec.json.decode(line, type=Trial))
        self.trials = [trial for trial in self.trials if not trial.final or trial.budget == budget]
        self._path, self._budget, self._observer = path, budget, observer
        fresh = path.with_suffix(".new")
        fresh.write_bytes(b"".join(line + b"\n" for line in (first_line, *map(msgspec.json.encode, self.trials))))
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
    return _load_if_there(path).folders


def clear(work: Path, log: TrialLog) -> None:
    """Remove the files that a stopped run has left, except for the builds of finalists."""
    finals = {record.id for trial in log.trials if trial.final for record in trial.records}
    needed = {folder for record, folder in folders_of(work).items() if record in finals}
    for folder in set(work.glob("*")) - needed:
        shutil.rmtree(folder, ignore_errors=True)
