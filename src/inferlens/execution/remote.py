"""Runs on other workers: GPUs of this machine, one process per GPU, or workers of a third-party launcher.

This is an outer program over the same runs: it divides a plan into parts, starts them on workers, and copies the
records back. Cases that do the same work are a *race*, and stay on one worker: cases that are compared ran on the same
device. Records are on disk here as soon as a worker reports them. If a worker is lost, another one does the rest.

A launcher is a class of the entry-point group ``inferlens.launchers``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import shutil
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.samples import latencies
from inferlens.analysis.tuning import TuningReport
from inferlens.backends.availability import open_nvml
from inferlens.errors import InferlensError, Unsupported, check_choice
from inferlens.execution import child
from inferlens.execution.cases import Environments, ModelHandle, cases_of, live_files, race_plan
from inferlens.execution.profile import check_repeats, profile_cases, profiles_of
from inferlens.execution.protocol import Job, Observer, PlannedCase, RemoteObserver, ResultCollector, Value
from inferlens.execution.race import races, references_of
from inferlens.execution.resume import ON, RunState, grouped, mark_if_cut_short, profile_file, reuse_earlier, same_place
from inferlens.execution.run import CaseResults, alone_in_folders, measure_cases, measuring_order
from inferlens.execution.scheduler import open_scheduler
from inferlens.execution.tasks import TaskContext
from inferlens.execution.tuning.space import SearchSelection, SearchSpace, explore
from inferlens.execution.tuning.tune import TuningRequest, narrowed, parts_of, size_folder, tune_one
from inferlens.measure.monitor import usable_cpus, visible
from inferlens.record.profile import Level, Profile
from inferlens.record.record import NEIGHBOUR_EFFECT, VISIBLE, Record
from inferlens.record.store import BEST, TRIALS, TUNING, Store, safe_name
from inferlens.registry import Registry
from inferlens.spec.plan import LOCAL, Plan, Where
from inferlens.stats.samples import median
from inferlens.units import plural, ratio

RACES_A_PART = 5  # at most
MOST_LOST = 3  # workers that a part may take along before nothing more of it is tried
ALL = "all"
TOPOLOGY = "/sys/devices/system/cpu"

# The jobs of workers.


class RemoteJob(Job, frozen=True, kw_only=True, tag=True):
    """A part of a plan; ``live`` has the files of live modules, by their full names."""

    plan: Plan
    state: RunState = msgspec.field(default_factory=RunState)
    live: Mapping[str, str] = {}

    @property
    def kind(self) -> str:
        """The kind of worker that the part is for."""
        return self.state.facts.get(ON, "")

    @property
    def gpu(self) -> str:
        """The GPU that an earlier worker of the part had."""
        return ""

    def run(self, observer: Observer) -> Any:
        """Do the part on this machine, and return its value."""
        raise NotImplementedError

    def incomplete(self, records: Sequence[Record], folders: Mapping[str, Path]) -> list[Record]:  # noqa: ARG002
        """Return the records of the part that lack something; ``folders`` are by record id."""
        return []

    def updated(self, records: Sequence[Record]) -> RemoteJob:  # noqa: ARG002 - for others
        """Return the job with the records so far."""
        return self


J = TypeVar("J", bound=RemoteJob)


class ListJob(RemoteJob, frozen=True, kw_only=True):
    """List the cases of the plan by ``cases_of``; ``model`` is the plan's live model."""

    model: ModelHandle | None = None
    listed: bool = False

    def run(self, observer: Observer) -> list[PlannedCase]:  # noqa: ARG002 - nothing happens
        return cases_of(self.plan, self.model, listed=self.listed)


class CasesJob(RemoteJob, frozen=True, kw_only=True):
    """Measure cases, and hold their rounds; with ``levels`` profile them in ``runs`` calls instead of rounds.

    ``given_up``: why cases without a record do not run, if they do not.
    """

    cases: tuple[PlannedCase, ...]
    levels: tuple[Level, ...] = ()
    runs: int = 0
    given_up: str = ""

    @property
    def gpu(self) -> str:
        return self.state.records[0].environment.variables.get(VISIBLE, "") if self.state.records else ""

    def records_of_cases(self, records: Sequence[Record]) -> list[Record]:
        """Return the records of the cases on this kind of worker."""
        digests = {planned.case.digest for planned in self.cases}
        return [record for record in records if record.case.digest in digests and record.facts.get(ON, "") == self.kind]

    def incomplete(self, records: Sequence[Record], folders: Mapping[str, Path]) -> list[Record]:
        files = {record.id: [profile_file(folders[record.id], level) for level in self.levels] for record in records}
        results = self.records_of_cases(records)
        return [record for record in results if not all(file.exists() for file in files[record.id])]

    def updated(self, records: Sequence[Record]) -> CasesJob:
        return replace(self, state=replace(self.state, records=tuple(self.records_of_cases(records))))

    def run(self, observer: Observer) -> None:
        environments, records, cases = Environments(), self.state.records, self.cases
        if self.given_up:
            refusal = Unsupported(self.given_up)
            cases = tuple(dataclasses.replace(planned, refusal=planned.refusal or refusal) for planned in cases)
        else:  # records of another device or other versions do not count
            records = tuple(record for record in records if same_place(record, environments.of(record.case)))
            stale = [record for record in self.state.records if record not in records]
            of_this_run = [record for record in stale if record.run == self.state.run]
            if of_this_run:
                observer.discarded(of_this_run)
            if len(of_this_run) < len(stale):
                observer.unused([record for record in stale if record.run != self.state.run])
        state = replace(self.state, records=records)
        with open_scheduler(self.plan, observer, cases, self.live, state, environments=environments) as scheduler:
            if self.levels:
                profile_cases(scheduler, cases, self.levels, self.runs)
            elif self.given_up:
                CaseResults(scheduler).measure([(planned, 0) for planned in cases])
            else:
                measure_cases(scheduler, cases)


class AloneJob(RemoteJob, frozen=True, kw_only=True):
    """Measure a case while nothing else runs; its record is not kept."""

    planned: PlannedCase

    def run(self, observer: Observer) -> Record:  # noqa: ARG002 - the case is over for the observer
        with open_scheduler(self.plan, Observer(), [self.planned], self.live) as scheduler:
            record, folder = scheduler.measure(self.planned)
        shutil.rmtree(folder, ignore_errors=True)
        return record


class ExploreJob(RemoteJob, frozen=True, kw_only=True):
    """Find the search space of a plan; ``model`` is its live model."""

    selection: SearchSelection
    model: ModelHandle | None = None

    def run(self, observer: Observer) -> SearchSpace:  # noqa: ARG002 - nothing happens
        return explore(self.plan, self.selection, self.model)


class TuneJob(RemoteJob, frozen=True, kw_only=True):
    """Tune one model at one batch size, in a folder ``home`` below that of the plan; ``log`` has its rounds so far."""

    request: TuningRequest
    selection: SearchSelection
    space: SearchSpace
    home: str
    seconds: float
    model: ModelHandle | None
    log: bytes = b""

    @property
    def folder(self) -> Path:
        return Path(self.plan.output) / self.home

    def updated(self, records: Sequence[Record]) -> TuneJob:  # noqa: ARG002 - it has its own
        file = self.folder / TUNING / TRIALS
        return replace(self, log=file.read_bytes() if file.exists() else b"")

    def run(self, observer: Observer) -> TuningReport:
        file = self.folder / TUNING / TRIALS
        if self.log and not file.exists():
            file.parent.mkdir(parents=True)
            file.write_bytes(self.log)
        request = replace(self.request, plan=self.plan)
        observer = ResultCollector(observer, ("done", "discarded"))  # records are kept with the rounds alone
        return tune_one(request, self.selection, self.space, self.folder, observer, self.model, self.seconds)


Part = ListJob | CasesJob | AloneJob | ExploreJob | TuneJob


def run_part(job: Part, context: TaskContext) -> Any:
    """Do a part of a plan in the process of a worker on this machine."""
    return job.run(RemoteObserver(context.send))


# Launchers and workers.


class WorkerLost(Exception):
    """A worker ended before its part was done; the text says how."""


class Worker(ABC):
    """A worker that does parts of a plan, one at a time, in a thread of its own.

    Attributes:
        kind: the kind of device, such as ``H200``: every kind measures the whole plan. Empty: there is only one kind.
        gpu: ``CUDA_VISIBLE_DEVICES`` in its processes, if it has one GPU: its UUID.
    """

    kind = ""
    gpu = ""

    @abstractmethod
    def do(self, job: RemoteJob, returns: type[Value], observer: Observer) -> Value:
        """Return the value of ``job.run(observer)``. Raises WorkerLost if the worker came to an end.

        Results that it reported until then count; another worker does the rest.
        """


class Launcher(ABC):
    """A launcher that offers workers for a plan until the end of its context."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.where = plan.where

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - many have nothing to let go of
        """Let go of everything that it has begun."""

    @abstractmethod
    def workers(self, most: int) -> Sequence[Worker]:
        """Return the workers that may work at the same time: at least one, and at most ``most`` of a kind."""

    def stop(self) -> None:  # noqa: B027 - nor anything to end
        """End the running parts, from another thread: the user has interrupted the run."""


LAUNCHERS: Registry[Launcher] = Registry("inferlens.launchers", "launcher")


def launcher_of(plan: Plan) -> Launcher:
    """Return the launcher that a plan names. Raises InferlensError if it is missing or cannot do what the plan says."""
    if plan.where.launcher == LOCAL:  # by no entry point, which a checkout may lack until it is installed again
        return GpuLauncher(plan)
    make: Any = LAUNCHERS.get(plan.where.launcher)
    launcher: Launcher = make(plan)
    return launcher


class GpuCard(Struct, frozen=True):
    """A GPU. ``near_cpus`` are the CPUs that are near to it; empty if the system does not say."""

    name: str
    uuid: str
    near_cpus: frozenset[int] = frozenset()


class GpuLauncher(Launcher):
    """A launcher with a worker per GPU of this machine that the plan names."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._stopping = threading.Event()
        self._running: set[int] = set()
        all_cards = gpu_cards()
        cards = [all_cards[index] for index in chosen_cards(plan.where.on, all_cards)]
        cores = core_shares(cards, sorted(usable_cpus()))
        several_kinds = len({card.name for card in cards}) > 1
        self._workers = [
            GpuWorker(card, cpus, card.name if several_kinds else "", self)
            for card, cpus in zip(cards, cores, strict=True)
        ]

    def workers(self, most: int) -> Sequence[Worker]:
        groups = grouped(self._workers, lambda worker: worker.kind)
        return [worker for group in groups for worker in group[:most]]

    @contextmanager
    def running(self, pids: list[int]) -> Iterator[Callable[[int], None]]:
        """Yield a function that registers the process of a worker; it is forgotten at the end of the context."""

        def started(pid: int) -> None:
            pids.append(pid)
            self._running.add(pid)
            if self._stopping.is_set():
                _interrupt(pid)

        try:
            yield started
        finally:
            self._running.difference_update(pids)

    def stop(self) -> None:
        """See :class:`Launcher`: as by Ctrl-C, so that workers end what they have started."""
        self._stopping.set()
        for pid in list(self._running):
            _interrupt(pid)


def _interrupt(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)


class GpuWorker(Worker):
    """A worker with a process per part, which sees one GPU by UUID from its start, and has some of the cores.

    Because workers share no cores, nothing is timed while another worker's build runs on the same cores.
    """

    def __init__(self, card: GpuCard, cpus: Sequence[int], kind: str, launcher: GpuLauncher) -> None:
        self.card, self.cpus, self.kind, self._launcher = card, cpus, kind, launcher
        self.gpu = card.uuid

    def do(self, job: RemoteJob, returns: type[Value], observer: Observer) -> Value:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cpus)  # of this thread, and so of all that it starts
        with self._launcher.running([]) as started:
            variables = {VISIBLE: self.gpu}
            outcome = child.launch(
                "part", job, returns, timeout=math.inf, on_event=observer.heard, variables=variables, started=started
            )
        if not outcome.answered:
            raise WorkerLost(" ".join([outcome.result.reason, *outcome.tail[-1:]]))
        return outcome.value(f"What runs on {self.card.name} failed")


def gpu_cards() -> list[GpuCard]:
    """Return the GPUs of this machine that may be used, in the order of nvidia-smi or ``CUDA_VISIBLE_DEVICES``."""
    with suppress(Exception), open_nvml() as nvml:  # a missing library and a missing driver mean the same
        return [
            GpuCard(str(nvml.nvmlDeviceGetName(handle)), str(nvml.nvmlDeviceGetUUID(handle)), _near(nvml, handle))
            for handle in visible(nvml)
        ]
    return []


def _near(nvml: Any, handle: Any) -> frozenset[int]:
    words = (max(os.cpu_count() or 1, max(usable_cpus()) + 1) + 63) // 64
    with suppress(Exception):  # not every system tells
        masks = nvml.nvmlDeviceGetCpuAffinity(handle, words)
        return frozenset(64 * word + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1)
    return frozenset()


def chosen_cards(names: Sequence[str], cards: Sequence[GpuCard]) -> list[int]:
    """Return the places of GPUs by name: ``cuda:1``, or ``all``. Raises InferlensError for another name."""
    if not cards:
        raise InferlensError(
            "There is no NVIDIA GPU here for --devices.", hint="without --devices; nvidia-smi lists them"
        )
    places = {f"cuda:{index}": index for index in range(len(cards))}
    for name in names:
        check_choice("device", name, (ALL, *places))
    return list(places.values()) if ALL in names else list(dict.fromkeys(places[name] for name in names))


def core_shares(cards: Sequence[GpuCard], cpus: Sequence[int], topology: Path = Path(TOPOLOGY)) -> list[list[int]]:
    """Return whole cores per card, near to it where possible. Raises InferlensError for fewer cores than cards."""
    near = [card.near_cpus & set(cpus) or frozenset(cpus) for card in cards]
    groups = list(dict.fromkeys(near))
    if any(a & b for place, a in enumerate(groups) for b in groups[:place]):  # groups overlap: all cards share all CPUs
        near, groups = [frozenset(cpus)] * len(cards), [frozenset(cpus)]
    parts: dict[int, list[int]] = {}
    for group in groups:
        members = [index for index, near_cpus in enumerate(near) if near_cpus == group]
        cores = list(dict.fromkeys(_siblings(cpu, topology) & group for cpu in sorted(group)))
        if len(cores) < len(members):
            raise InferlensError(
                f"{len(members)} devices share {len(cores)} CPU core{'s' * (len(cores) != 1)}, and each needs one.",
                hint="--devices with fewer",
            )
        for place, index in enumerate(members):
            share = cores[place * len(cores) // len(members) : (place + 1) * len(cores) // len(members)]
            parts[index] = sorted(cpu for core in share for cpu in core)
    return [parts[index] for index in range(len(cards))]


def _siblings(cpu: int, topology: Path) -> frozenset[int]:
    with suppress(OSError, ValueError):
        text = (topology / f"cpu{cpu}/topology/thread_siblings_list").read_text("utf-8")
        ranges = [part.split("-") for part in text.strip().split(",")]
        return frozenset(cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1))
    return frozenset((cpu,))


# The parent: a plan on the workers of its launcher.


class RemoteRun:
    """A plan on the workers of a launcher; ``run`` is the number of its records."""

    def __init__(self, plan: Plan, launcher: Launcher, observer: Observer, model: ModelHandle | None) -> None:
        self.plan, self.launcher, self.model = replace(plan, where=Where()), launcher, model
        self.results = ResultCollector(observer)
        self.run = RunState().run

    def job(self, form: type[J], kind: str = "", **fields: Any) -> J:
        """Return the job of a part for a kind of worker."""
        state = RunState(run=self.run, facts=self.facts(kind))
        return form(**{"plan": self.plan, "state": state, "live": live_files(self.model), **fields})

    def values_by_kind(self, form: type[J], returns: type[Value], **fields: Any) -> dict[str, Value]:
        """Return the values of a job by kind of worker."""
        kinds = [worker.kind for worker in self.launcher.workers(1)]
        values = self.do([self.job(form, kind, **fields) for kind in kinds], returns)
        return dict(zip(kinds, values, strict=True))

    def cases(self, *, listed: bool = False) -> dict[str, list[PlannedCase]]:
        """Return the cases of the plan by kind of worker; with ``listed`` also if none of them can run."""
        return self.values_by_kind(ListJob, list[PlannedCase], model=self.model, listed=listed)

    def do(self, jobs: Sequence[J], returns: type[Value]) -> list[Value]:
        """Return the values of jobs, in their order, done by workers of their kinds."""
        queue = _WorkQueue(self, jobs, returns)
        workers = self.launcher.workers(len(jobs))
        with ThreadPoolExecutor(len(workers), "inferlens-parts") as pool:
            futures = [pool.submit(queue.work, worker) for worker in workers]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                for future in futures:
                    if future.done():
                        future.result()
            except BaseException:
                queue.stop()
                raise
        return [queue.values[index] for index in range(len(jobs))]

    def divided(
        self, cases: Mapping[str, Sequence[PlannedCase]]
    ) -> Iterator[tuple[str, tuple[PlannedCase, ...], float]]:
        """Yield the parts of a plan: kind, cases, and share of the time for rounds.

        A part is a race. GPUs of this machine have several races in a part, which load concurrently. If a run goes on,
        they have one, because its races began on one GPU or another.
        """
        for kind, planned in cases.items():
            groups = races(planned)
            workers = [worker for worker in self.launcher.workers(len(groups)) if worker.kind == kind]
            if len(workers) == 1:
                yield kind, tuple(planned), 1.0
                continue
            count = len(groups)
            if workers and all(worker.gpu for worker in workers) and not self.results.records:
                count = min(count, len(workers) * math.ceil(count / (len(workers) * RACES_A_PART)))
            parts = [tuple(itertools.chain.from_iterable(groups[place::count])) for place in range(count)]
            busy = sum(any(not entry.refusal for entry in part) for part in parts)
            for part in parts:
                yield kind, part, min(1.0, len(workers) / max(1, busy))

    def race_jobs(
        self, command: str, cases: Mapping[str, Sequence[PlannedCase]], levels: Sequence[Level] = (), runs: int = 0
    ) -> list[CasesJob]:
        """Return the jobs of the parts of a command, with the records of earlier runs."""
        states = {}
        for kind, planned in cases.items():
            state = RunState(run=self.run, facts=self.facts(kind))
            states[kind] = reuse_earlier(
                state, command, self.plan, planned, self.model, None, self.results, levels, runs
            )
        jobs = []
        for kind, part, share in self.divided(cases):
            plan = replace(self.plan, within=share * self.plan.within)
            fields = {"cases": part, "state": states[kind], "levels": tuple(levels), "runs": runs}
            jobs.append(self.now(self.job(CasesJob, kind, plan=plan, **fields)))
        return jobs

    def facts(self, kind: str) -> dict[str, str]:
        """Return the facts of records on a kind of worker."""
        return {ON: kind} if kind else {}

    def now(self, job: J) -> J:
        """Return a job with the records so far; records without all that belongs to them are discarded."""
        with self.results.lock:
            if incomplete := job.incomplete(self.results.records, self.results.folders):
                self.results.discarded(incomplete)
            return cast("J", job.updated(self.results.records[:]))


class _WorkQueue(Generic[J, Value]):
    """Jobs that workers take one after the other; ``values`` has the results by place."""

    def __init__(self, remote: RemoteRun, jobs: Sequence[J], returns: type[Value]) -> None:
        self.remote, self.returns = remote, returns
        self.pending = list(enumerate(jobs))
        self.values: dict[int, Value] = {}
        self.stopped = False

    def work(self, worker: Worker) -> None:
        while entry := self._next(worker):
            index, job = entry
            self.values[index] = self._do(worker, job)

    def stop(self) -> None:
        """Begin no more jobs, and end the running ones."""
        self.stopped = True
        self.remote.launcher.stop()

    def _next(self, worker: Worker) -> tuple[int, J] | None:
        """Return the next job for a worker, first those that its GPU has begun, and last those of other GPUs."""
        with self.remote.results.lock:
            pending = [(index, job) for index, job in self.pending if job.kind == worker.kind]
            if self.stopped or not pending:
                return None
            entry = min(pending, key=lambda pair: {worker.gpu: 0, "": 1}.get(pair[1].gpu, 2))
            self.pending.remove(entry)
            return entry

    def _do(self, worker: Worker, job: J) -> Value:
        """Return the value of a job; if its worker is lost, the same worker or another one does the rest."""
        results = self.remote.results
        for lost in itertools.count(1):
            try:
                return worker.do(job, self.returns, results)
            except WorkerLost as error:
                if self.stopped:
                    raise
                job = self.remote.now(job)
                if lost < MOST_LOST:
                    results.remark(f"A worker was lost, and what it had not done is done elsewhere: {error}")
                    continue
                reason = f"{lost} workers were lost with it, the last one like this: {error}"
                if not isinstance(job, CasesJob):
                    raise InferlensError(f"{job.plan.model[0]} was given up: {reason}") from error
                return cast("Value", replace(job, given_up=reason).run(results))
        raise AssertionError


@contextmanager
def remote_run(plan: Plan, observer: Observer, model: ModelHandle | None) -> Iterator[RemoteRun]:
    """Yield a plan on the workers that it names."""
    with launcher_of(plan) as launcher:
        yield RemoteRun(plan, launcher, observer, model)


def bench(plan: Plan, observer: Observer, model: ModelHandle | None = None) -> list[Record]:
    """Measure every case of ``plan`` on the workers that it names, as ``run.run`` does on this machine."""
    observer.doing("looking at models and backends")
    with remote_run(race_plan(plan), observer, model) as remote:
        plan, results, cases = remote.plan, remote.results, remote.cases()
        orders = [measuring_order(planned, plan.repeats, plan.seed) for planned in cases.values()]
        results.planned([planned for order in orders for planned, _ in order])
        all_cases = list(itertools.chain.from_iterable(cases.values()))
        with alone_in_folders(plan, all_cases), mark_if_cut_short(plan, results):
            jobs = remote.race_jobs("bench", cases)
            remote.do(jobs, type(None))
            if len(jobs) > 1 and plan.repeats != 1:  # with one repeat the run should be short
                compare_alone(remote, jobs)
        return results.records


def compare_alone(remote: RemoteRun, jobs: Sequence[CasesJob]) -> None:
    """Measure the reference of a GPU's race once more while nothing else runs, and keep the ratio of both times.

    The ratio is a note of that case. It shows whether workers disturb one another: GPUs of one machine share memory,
    power and the bus.
    """
    plan, results = remote.plan, remote.results
    first = remote.launcher.workers(1)[0]
    job = next((job for job in map(remote.now, jobs) if first.gpu and job.gpu == first.gpu), None)
    if job is None:
        return
    references = references_of(job.cases, plan.reference)
    shared = next((record for record in job.state.records if record.case in references and record.ranked), None)
    planned = next((planned for planned in job.cases if shared and planned.case == shared.case), None)
    if shared is None or planned is None:
        return
    results.doing("the reference alone")
    words = {"plan": replace(plan, accuracy="", wait=0.0), "planned": planned}
    try:
        (record,) = remote.do([remote.job(AloneJob, first.kind, **words)], Record)
    except InferlensError:  # the plan is measured, and this was an addition
        return
    times = latencies(shared).samples, latencies(record).samples
    if not all(times):
        return
    factor = median(times[0]) / median(times[1])
    others = len(remote.launcher.workers(len(jobs))) - 1
    fact = {NEIGHBOUR_EFFECT: {"others": others, "ratio": factor}}
    Store.save(results.folders[shared.id], replace(shared, facts={**shared.facts, **fact}))
    more = ": they disturb each other" if abs(factor - 1) > plan.budget.threshold else ""
    number = plural(others, "other worker")
    results.remark(f"{shared.case.label} took {ratio(factor)} as long beside {number} as alone{more}.")


def profile(
    plan: Plan, levels: Sequence[Level], runs: int, observer: Observer, model: ModelHandle | None = None
) -> list[tuple[Profile, Path]]:
    """Profile every case of ``plan`` on the workers that it names, as ``profile.run`` does on this machine."""
    check_repeats(plan)
    observer.doing("looking at models and backends")
    with remote_run(plan, observer, model) as remote:
        cases = remote.cases()
        remote.results.planned(list(itertools.chain.from_iterable(cases.values())))
        remote.do(remote.race_jobs("profile", cases, levels, runs), type(None))
        return profiles_of(remote.results, levels)


def tune(
    request: TuningRequest, selection: SearchSelection, observer: Observer, model: ModelHandle | None = None
) -> list[TuningReport]:
    """Tune all models at all batch sizes on the workers of the plan, several at the same time."""
    observer.doing("looking at models and backends")
    with remote_run(request.plan, observer, model) as remote:
        jobs: list[TuneJob] = []
        spaces = remote.values_by_kind(ExploreJob, SearchSpace, selection=selection, model=model)
        for kind, space in spaces.items():
            parts = parts_of(space)
            workers = sum(worker.kind == kind for worker in remote.launcher.workers(len(parts)))
            for part in parts:
                folder = "-".join(filter(None, (kind, size_folder(part, parts))))
                job = remote.job(
                    TuneJob, kind, request=request, selection=selection, space=part, model=model,
                    plan=narrowed(remote.plan, part.families[0].case),
                    home=str(Path(safe_name(part.families[0].model.name)) / folder),
                    seconds=request.budget * min(1.0, workers / len(parts)),
                )  # fmt: skip
                jobs.append(remote.now(job))
        return [
            replace(tuned, folder=tuned.folder and str(job.folder / BEST))
            for job, tuned in zip(jobs, remote.do(jobs, TuningReport), strict=True)
        ]
