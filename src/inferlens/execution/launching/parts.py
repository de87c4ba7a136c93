"""A plan on the workers of its launcher: what the parts are, who does which, and what becomes of those that are lost.

Cases that do the same work are a *race*, and stay on one worker: what is compared ran on the same card. One worker
alone is given everything in one part. Records are on disk here as soon as a worker tells of them; what a
worker that is lost has not told of is done again, by another one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any, Generic, cast
from uuid import uuid4

from msgspec.structs import replace

from inferlens.errors import InferlensError, Unsupported
from inferlens.execution.expand import Planned
from inferlens.execution.launching.launcher import Launcher, P, Part, Worker, WorkerLost, launcher_of
from inferlens.execution.protocol import Found, Observer, PartJob
from inferlens.execution.scheduler import Scheduler, scheduled
from inferlens.execution.survey import Named, cases_of, live_files
from inferlens.record.record import VISIBLE, Record
from inferlens.record.store import PROFILE, RECORD
from inferlens.spec.plan import Plan, Where

RACES_A_PART = 5  # at most, where all take as long
MOST_LOST = 3  # workers that a part may take along without any progress before nothing more of it is tried
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
            for folder in (self.folders.pop(name) for name in gone & self.folders.keys()):
                for file in (folder / RECORD, *folder.glob(f"{PROFILE}*")):
                    file.unlink(missing_ok=True)
            self.inner.discarded(records)


class CasesJob(PartJob, frozen=True, kw_only=True):
    """Do something with each of some cases; ``given_up``: why those without a record are not run; empty: they are."""

    cases: tuple[Planned, ...]
    known: tuple[Record, ...] = ()
    given_up: str = ""

    @property
    def progress(self) -> int:
        """See :class:`PartJob`."""
        return len(self.known)

    @property
    def gpu(self) -> str:
        """That of the worker which has begun it."""
        return self.known[0].environment.variables.get(VISIBLE, "") if self.known else ""

    def again(self, records: Sequence[Record], folders: Mapping[str, Path]) -> CasesJob:  # noqa: ARG002 - for others
        """See :class:`PartJob`."""
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
    return scheduled(job.plan, observer, cases, job.live, facts=job.facts, id=job.run)


def still_known(job: CasesJob, scheduler: Scheduler) -> list[Record]:
    """The records of a job that count here: what another card or library measured is discarded, and measured again."""
    if job.given_up:
        return [*job.known]
    fit = [each for each in job.known if each.environment.same_as(scheduler.environment_for(each.case))]
    if stale := [each for each in job.known if each not in fit]:
        scheduler.observer.discarded(stale)
    return fit


class SurveyJob(PartJob, frozen=True, kw_only=True):
    """Find out what can be run; ``model`` is the plan's, where it is a live one; the rest as of ``cases_of``."""

    model: Named | None = None
    listed: bool = False


def survey(job: SurveyJob, observer: Observer) -> list[Planned]:  # noqa: ARG001 - nothing happens
    """The cases of the plan on this machine."""
    return cases_of(job.plan, job.model, listed=job.listed)


class UnderWay:
    """A plan under way; ``run`` is that of its records."""

    def __init__(self, plan: Plan, launcher: Launcher, observer: Observer, model: Named | None) -> None:
        self.plan, self.launcher, self.model = replace(plan, where=Where()), launcher, model
        self.gathered = Gathered(observer)
        self.run = uuid4().hex

    @property
    def apart(self) -> bool:
        """Whether parts run somewhere else than in this process."""
        return self.launcher.apart

    def job(self, form: type[P], kind: str = "", **words: Any) -> P:
        """The job of a part on a kind of worker."""
        shared = {"run": self.run, "live": live_files(self.model), "facts": {ON: kind} if kind else {}}
        return form(**{"plan": self.plan, **shared, **words})

    def of_each_kind(self, part: Part[P, Found], form: type[P], **words: Any) -> dict[str, Found]:
        """What a part finds on each kind of worker."""
        kinds = [worker.kind for worker in self.launcher.workers(1)]
        found = self.do(part, [self.job(form, kind, **words) for kind in kinds])
        return dict(zip(kinds, found, strict=True))

    def cases(self, *, listed: bool = False) -> dict[str, list[Planned]]:
        """The cases of each kind of worker, as ``cases_of`` has them."""
        return self.of_each_kind(survey, SurveyJob, model=self.model, listed=listed)

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
        """The parts of a plan: their kind, cases, and share of the time for rounds; what takes longest comes first.

        A part is a race. GPUs of this machine have several in a part, which load side by side; but not where a run goes
        on, whose races are begun on one GPU or another.
        """
        from inferlens.execution.launching.estimate import estimator

        for kind, planned in cases.items():
            every = races(planned)
            workers = [worker for worker in self.launcher.workers(len(every)) if worker.kind == kind]
            if len(workers) == 1:
                yield kind, tuple(planned), 1.0
                continue
            seconds = estimator([each.found.name for each in planned], self.plan)
            took = [sum(seconds(each.case) for each in race if not each.refusal) for race in every]
            count = len(every)
            if workers and all(worker.gpu for worker in workers) and not self.gathered.records:
                count = len(workers) * math.ceil(count / (len(workers) * RACES_A_PART))
            parts = [tuple(each for place in places for each in every[place]) for places in balanced(took, count)]
            busy = sum(any(not each.refusal for each in part) for part in parts)
            for part in parts:
                yield kind, part, min(1.0, len(workers) / max(1, busy))

    def race_jobs(self, form: type[P], cases: dict[str, list[Planned]], **words: Any) -> list[P]:
        """The jobs of the parts."""
        found = []
        for kind, part, share in self.divided(cases):
            plan = replace(self.plan, within=share * self.plan.within)
            found.append(self.now(self.job(form, kind, **{"plan": plan, "cases": part, **words})))
        return found

    def now(self, job: P) -> P:
        """A job, with what is known by now."""
        with self.gathered.lock:
            found: Any = job.again(self.gathered.records[:], self.gathered.folders)
        return cast("P", found)


class _Doing(Generic[P, Found]):
    """Jobs that workers take one after the other."""

    def __init__(self, launched: UnderWay, part: Part[P, Found], jobs: Sequence[P]) -> None:
        self.launched, self.part = launched, part
        self.left = list(enumerate(jobs))
        self.found: dict[int, Found] = {}
        self.stopped = False

    def work(self, worker: Worker) -> None:
        while taken := self._next(worker):
            index, job = taken
            self.found[index] = self._done(worker, job)

    def stop(self) -> None:
        """Has nothing more be begun, and ends what is under way."""
        self.stopped = True
        self.launched.launcher.stop()

    def _next(self, worker: Worker) -> tuple[int, P] | None:
        """The next job for a worker: one that its GPU has begun, or nobody has; one of another GPU would begin anew."""
        with self.launched.gathered.lock:
            mine = [each for each in self.left if each[1].facts.get(ON, "") == worker.kind]
            if self.stopped or not mine:
                return None
            taken = min(mine, key=lambda each: {worker.gpu: 0, "": 1}.get(getattr(each[1], "gpu", ""), 2))
            self.left.remove(taken)
            return taken

    def _done(self, worker: Worker, job: P) -> Found:
        """What the part finds; workers that are lost are told of, and another one does what they have not done."""
        gathered, lost, most = self.launched.gathered, 0, job.progress
        while True:
            try:
                return worker.do(self.part, job, gathered)
            except WorkerLost as error:
                if self.stopped:
                    raise
                job = self.launched.now(job)
                lost, most = (1, job.progress) if job.progress > most else (lost + 1, most)
                if lost < MOST_LOST:
                    gathered.remark(f"A worker was lost, and what it had not done is done elsewhere: {error}")
                    continue
                reason = f"{lost} workers were lost with it, the last one like this: {error}"
                if not isinstance(job, CasesJob):
                    raise InferlensError(f"{job.plan.model[0]} was given up: {reason}") from error
                here = replace(job, given_up=reason)
                return self.part(here, gathered)


def balanced(seconds: Sequence[float], count: int) -> list[list[int]]:
    """Return places in groups that take about equally long, the longest first: each goes to the one that has least."""
    groups: list[list[int]] = [[] for _ in range(count)]

    def took(group: list[int]) -> float:
        return sum(seconds[place] for place in group)

    for place in sorted(range(len(seconds)), key=lambda place: -seconds[place]):
        min(groups, key=took).append(place)
    return [sorted(group) for group in sorted(groups, key=took, reverse=True) if group]


def races(cases: Iterable[Planned]) -> list[list[Planned]]:
    """The cases that do the same work, and so race each other, together."""
    found: dict[Hashable, list[Planned]] = {}
    for planned in cases:
        found.setdefault(planned.case.work, []).append(planned)
    return list(found.values())


@contextmanager
def launched(plan: Plan, observer: Observer, model: Named | None) -> Iterator[UnderWay]:
    """A plan on the workers that it names."""
    with launcher_of(plan) as launcher:
        yield UnderWay(plan, launcher, observer, model)
