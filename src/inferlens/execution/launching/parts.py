"""A plan on the workers of its launcher: what the parts are, who does which, and what becomes of those that are lost.

Cases that do the same work are a *race*, and stay on one worker: what is compared ran on the same card. Where there
is one worker it is given everything in one part. Records are on disk here as soon as a worker tells of them; what a
worker that is lost, or a run that was cut short, has not told of is done again, by another one or by the same command.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any, Generic
from uuid import uuid4

import msgspec
from msgspec.structs import replace

import inferlens
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution.expand import Planned
from inferlens.execution.launching.launcher import Found, Launcher, P, Part, Worker, WorkerLost, launcher_of
from inferlens.execution.protocol import Observer, PartJob
from inferlens.execution.scheduler import Scheduler, scheduled
from inferlens.execution.survey import Named, cases_of
from inferlens.record.files import sha256, write_whole
from inferlens.record.record import CUT_SHORT, Record
from inferlens.record.store import RECORD, Store, load_records, made
from inferlens.spec.plan import Plan
from inferlens.spec.where import Where
from inferlens.units import plural

MOST_LOST = 3  # workers in a row that a part may take along before nothing more of it is tried
ON = "on"  # the fact that names the kind of machine, where there are several


class Gathered(Observer):
    """Passes on what it is told, one thing at a time, and keeps the records and where they are."""

    def __init__(self, observer: Observer) -> None:
        self.inner, self.lock = observer, threading.RLock()
        self.records: list[Record] = []
        self.folders: dict[str, Path] = {}

    def __getattribute__(self, name: str) -> Any:
        if name in ("done", "discarded") or name.startswith("_") or name not in vars(Observer):
            return super().__getattribute__(name)
        told = getattr(self.inner, name)

        def one_by_one(*arguments: Any, **words: Any) -> None:
            with self.lock:
                told(*arguments, **words)

        return one_by_one

    def done(self, record: Record, folder: Path) -> None:
        """See :class:`Observer`."""
        with self.lock:
            self.records.append(record)
            self.folders[record.id] = folder
            self.inner.done(record, folder)

    def discarded(self, records: Sequence[Record]) -> None:
        """See :class:`Observer`."""
        with self.lock:
            gone = {record.id for record in records}
            self.records = [record for record in self.records if record.id not in gone]
            for name in gone & self.folders.keys():
                (self.folders.pop(name) / RECORD).unlink(missing_ok=True)
            self.inner.discarded(records)


class CasesJob(PartJob, frozen=True, kw_only=True):
    """Do something with each of some cases.

    Attributes:
        known: records that there are of them already.
        given_up: why those without a record are not run; empty: they are.
    """

    cases: tuple[Planned, ...]
    known: tuple[Record, ...] = ()
    given_up: str = ""

    def again(self, records: Iterable[Record], folders: Mapping[str, Path]) -> CasesJob:  # noqa: ARG002 - for others
        """The job with what is known now of all records, whose ``folders`` are given by their ids."""
        mine = {each.case.digest for each in self.cases}, self.facts.get(ON, "")
        known = [each for each in records if each.case.digest in mine[0] and each.facts.get(ON, "") == mine[1]]
        return replace(self, known=tuple(known))

    def planned(self) -> tuple[Planned, ...]:
        """The cases; with the reason, if they are given up."""
        if not self.given_up:
            return self.cases
        return tuple(with_fields(each, refusal=each.refusal or Unsupported(self.given_up)) for each in self.cases)


def scheduled_part(job: PartJob, observer: Observer, cases: Sequence[Planned]) -> AbstractContextManager[Scheduler]:
    """What measures cases of a part."""
    run: dict[str, Any] = {"id": job.run} if job.run else {}
    return scheduled(job.plan, observer, cases, live=job.live, facts=job.facts, **run)


class SurveyJob(PartJob, frozen=True, kw_only=True):
    """Find out what can be run; ``model`` is the plan's, where it is a live one."""

    model: Named | None = None


def survey(job: SurveyJob, observer: Observer) -> list[Planned]:  # noqa: ARG001 - nothing happens
    """The cases of the plan on this machine."""
    return cases_of(job.plan, job.model)


class UnderWay:
    """A plan under way; ``run`` is that of its records, empty where each part has one of its own."""

    def __init__(self, plan: Plan, launcher: Launcher, observer: Observer, model: Named | None) -> None:
        self.plan, self.launcher, self.model = replace(plan, where=Where()), launcher, model
        self.gathered = Gathered(observer)
        self.run = ""
        self.first: dict[Worker, CasesJob] = {}  # what each worker did first

    @property
    def apart(self) -> bool:
        """Whether parts run somewhere else than in this process."""
        return self.launcher.apart

    def job(self, form: type[P], kind: str = "", **words: Any) -> P:
        """The job of a part on a kind of worker."""
        shared = {"run": self.run, "live": self.model.files if self.model else {}, "facts": {ON: kind} if kind else {}}
        return form(**{"plan": self.plan, **shared, **words})

    def of_each_kind(self, part: Part[P, Found], form: type[P], **words: Any) -> dict[str, Found]:
        """What a part finds on each kind of worker."""
        kinds = [worker.kind for worker in self.launcher.workers(1)]
        found = self.do(part, [self.job(form, kind, **words) for kind in kinds])
        return dict(zip(kinds, found, strict=True))

    def cases(self) -> dict[str, list[Planned]]:
        """The cases of each kind of worker."""
        return self.of_each_kind(survey, SurveyJob, model=self.model)

    def do(self, part: Part[P, Found], jobs: Sequence[P]) -> list[Found]:
        """What a part finds with each of some jobs, in their order, each done by a worker of its kind."""
        if not self.apart:
            (worker,) = self.launcher.workers(1)
            return [worker.do(part, job, self.gathered) for job in jobs]
        doing = _Doing(self, part, jobs)
        workers = self.launcher.workers(len(jobs))
        with ThreadPoolExecutor(len(workers), "inferlens-parts") as pool:
            every = [pool.submit(doing.work, worker) for worker in workers]
            try:
                wait(every, return_when=FIRST_EXCEPTION)
                for each in every:
                    if each.done():
                        each.result()
            except BaseException:
                doing.stop()
                raise
        return [doing.found[index] for index in range(len(jobs))]

    def divided(self, cases: dict[str, list[Planned]]) -> Iterator[tuple[str, tuple[Planned, ...], float]]:
        """The parts of a plan: their kind, cases, and share of the time for rounds; what takes longest comes first."""
        from inferlens.execution.launching.estimate import estimator

        for kind, planned in cases.items():
            parts = races(planned)
            workers = sum(worker.kind == kind for worker in self.launcher.workers(len(parts)))
            if workers == 1:
                yield kind, tuple(planned), 1.0
                continue
            seconds = estimator([each.found.name for each in planned], self.plan)
            able = {id(part): sum(seconds(each.case) for each in part if not each.refusal) for part in parts}
            for part in sorted(parts, key=lambda part: -able[id(part)]):
                yield kind, tuple(part), min(1.0, workers / len(parts))

    def race_jobs(self, form: type[P], cases: dict[str, list[Planned]], **words: Any) -> list[P]:
        """The jobs of the parts."""
        found = []
        for kind, part, share in self.divided(cases):
            plan = replace(self.plan, within=share * self.plan.within)
            found.append(self.now(self.job(form, kind, **{"plan": plan, "cases": part, **words})))
        return found

    def now(self, job: P) -> P:
        """A job, with what is known by now."""
        again: Any = getattr(job, "again", None)
        with self.gathered.lock:
            found: P = again(self.gathered.records[:], self.gathered.folders) if again else job
        return found


class _Doing(Generic[P, Found]):
    """Jobs that workers take one after the other."""

    def __init__(self, launched: UnderWay, part: Part[P, Found], jobs: Sequence[P]) -> None:
        self.launched, self.part = launched, part
        self.left = list(enumerate(jobs))
        self.found: dict[int, Found] = {}
        self.stopped = False

    def work(self, worker: Worker) -> None:
        """Does what is there for a worker until nothing is."""
        while taken := self._next(worker.kind):
            index, job = taken
            if isinstance(job, CasesJob):
                self.launched.first.setdefault(worker, job)
            self.found[index] = self._done(worker, job)

    def stop(self) -> None:
        """Has nothing more be begun, and ends what is under way."""
        self.stopped = True
        self.launched.launcher.stop()

    def _next(self, kind: str) -> tuple[int, P] | None:
        with self.launched.gathered.lock:
            mine = (each for each in self.left if each[1].facts.get(ON, "") == kind)
            if self.stopped or not (taken := next(mine, None)):
                return None
            self.left.remove(taken)
            return taken

    def _done(self, worker: Worker, job: P) -> Found:
        """What the part finds; workers that are lost are told of, and another one does what they have not done."""
        gathered, lost, before = self.launched.gathered, 0, -1
        while True:
            try:
                return worker.do(self.part, job, gathered)
            except WorkerLost as error:
                if self.stopped:
                    raise
                lost = 1 if len(gathered.records) > before else lost + 1
                if isinstance(job, CasesJob):
                    take_up(self.launched, {each.case.digest for each in job.cases}, job.facts.get(ON, ""))
                before = len(gathered.records)
                job = self.launched.now(job)
                if lost < MOST_LOST:
                    gathered.remark(f"A worker was lost, and what it had not done is done elsewhere: {error}")
                    continue
                reason = f"{lost} workers were lost with it, the last one like this: {error}"
                if not isinstance(job, CasesJob):
                    raise InferlensError(f"{job.plan.model[0]} was given up: {reason}") from error
                here = replace(job, given_up=reason)
                return self.part(here, gathered)


def races(cases: Iterable[Planned]) -> list[list[Planned]]:
    """The cases that do the same work, and so race each other, together."""
    found: dict[Hashable, list[Planned]] = {}
    for planned in cases:
        case = planned.case
        found.setdefault((case.model, case.batch, case.inputs, case.io, case.cold, case.rotate), []).append(planned)
    return list(found.values())


@contextmanager
def launched(plan: Plan, observer: Observer, model: Named | None) -> Iterator[UnderWay]:
    """A plan on the workers that it names."""
    with launcher_of(plan) as launcher:
        yield UnderWay(plan, launcher, observer, model)


@contextmanager
def resumable(under_way: UnderWay, what: Sequence[object] = ()) -> Iterator[None]:
    """Keeps the number of a run on disk until it is over: the same command goes on with what its records lack.

    Of workers elsewhere alone. ``what`` is done with the plan makes it another one.
    """
    if not under_way.apart:
        yield
        return
    plan, model = under_way.plan, under_way.model
    live = [sha256(Path(model.live))] if model and model.live else []
    data = msgspec.json.encode([inferlens.__version__, plan, *what, *live], order="deterministic")
    output = made(Path(plan.output))
    file = output / f".unfinished-{sha256(data)[:12]}.json"
    if file.exists():
        under_way.run = msgspec.json.decode(file.read_bytes(), type=dict[str, str])["run"]
        if found := take_up(under_way):
            text = f"Going on with a run that was cut short: {plural(found, 'record')} of it are kept."
            under_way.gathered.remark(text)
    else:
        under_way.run = uuid4().hex
        write_whole(file, msgspec.json.encode({"run": under_way.run}) + b"\n")
    yield
    file.unlink(missing_ok=True)


def take_up(under_way: UnderWay, wanted: Collection[str] | None = None, kind: str | None = None) -> int:
    """Tells of records of the run on disk that nobody has told of, and says how many these are.

    Args:
        wanted: digests of the cases whose records; by default of all.
        kind: of worker.
    """
    try:
        loaded = load_records(under_way.plan.output, profiled=True)
    except InferlensError:  # there is none
        return 0
    gathered, count = under_way.gathered, 0
    for record in loaded.records:
        here = record.run == under_way.run and record.id not in gathered.folders
        if here and (wanted is None or (record.case.digest in wanted and record.facts.get(ON, "") == kind)):
            folder = loaded.folders[record.id]
            if record.facts.pop(CUT_SHORT, None):
                Store.save(folder, record)
            gathered.done(record, folder)
            count += 1
    return count
