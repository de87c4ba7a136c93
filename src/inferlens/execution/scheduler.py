"""The scheduler measures the cases of a run in fresh, monitored processes. A record is on disk before the next case.

:class:`Scheduler` measures a case by itself, or several in turns. What differs between commands is an argument: see
:class:`MeasureOptions`. :class:`Interference` holds the monitor's log of the machine against the samples.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.interference import energy_per_item, mark_samples
from inferlens.backends import BACKENDS
from inferlens.execution import child
from inferlens.execution.cases import PREPARATION, Environments
from inferlens.execution.child import Outcome
from inferlens.execution.protocol import Job, Observer, PlannedCase, TaskResult, Value, refused, remove_results
from inferlens.execution.resume import RunState
from inferlens.execution.tasks import BenchmarkJob, BenchmarkResult, Reference, ReferenceJob, ReferenceRun
from inferlens.execution.turns import Slot, Turns
from inferlens.limits import memory_left
from inferlens.measure.monitor import Monitor, gpu_before, usable_cpus, wait_for_quiet
from inferlens.measure.output_check import Evaluation, accuracy_of, apply_quantized_verdict, by_accuracy
from inferlens.models import resolve
from inferlens.record.machine import Before, Energy, MachineLog, Marks, peak_device_memory
from inferlens.record.record import IN_TURNS, Accuracy, Measurement, Memory, Metric, ModelFacts, Record, Warning
from inferlens.record.store import LOG, Store, cache_in, discard_if_interrupted
from inferlens.spec.case import Budget, Case
from inferlens.spec.plan import Plan

MOST_LOADING = 8  # concurrent processes that are measured one by one
TYPICAL_MEMORY = 1.5e9  # bytes of a process, before the first measurement
SPARE = 1.25  # the memory of concurrent processes, as a multiple of their memory one at a time
LEAST_WINDOWS = 5  # windows of throughput, for which interference is computed
NO_ENERGY = "another case was measured in turns with it, and took energy of its own"
Process = tuple[PlannedCase, int]  # a case, and its repeat or round


@dataclass(frozen=True)
class MeasureOptions:
    """The options for measuring a case.

    Attributes:
        budget: what to measure; ``None``: the budget of the plan.
        rebuild: whether to build from scratch, whatever the plan asks for.
        only_right: whether a process in turns ends before it is timed if its first outputs are wrong.
        kernels: whether to record the kinds of kernels after the timing, on a GPU.
        accuracy_in_all: whether all records of a case have its accuracy, not only that of the evaluating process.
        patience: returns the seconds that a process of a case may take now, if fewer than the plan's timeout.
    """

    budget: Budget | None = None
    rebuild: bool = False
    only_right: bool = False
    kernels: bool = False
    accuracy_in_all: bool = False
    patience: Callable[[Case], float] = lambda _: math.inf


DEFAULTS = MeasureOptions()


@dataclass
class Attempt:
    """One process of a case, and how it ended."""

    planned: PlannedCase
    repeat: int
    folder: Path
    created: datetime
    outcome: Outcome[BenchmarkResult]
    options: MeasureOptions
    others: str = ""  # the cases that it was measured in turns with
    record: Record | None = None  # once it is on disk

    @cached_property
    def interference(self) -> Interference:
        """The interference with the process, computed once; ``others`` and the machine's log must be set before."""
        case, outcome = self.planned.case, self.outcome
        return interference_of(case, outcome.result, outcome.machine, in_turns=bool(self.others))

    @property
    def marks(self) -> Marks | None:
        """The disturbed samples of calls, or else of windows."""
        return self.interference.marks or self.interference.window_marks


@dataclass
class References:
    """The references of a run's cases.

    Attributes:
        evaluations: the evaluations of references on the plan's data, by ``PlannedCase.evaluated_as``.
    """

    scheduler: Scheduler
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    _by_key: dict[str, Reference] = field(default_factory=dict)

    def of(self, planned: PlannedCase) -> Reference:
        """Return the reference of a case, the same for all cases that share model, inputs and weights.

        It is computed by the first interpreter of ``--python`` that can, because new versions are compared with old
        ones; if none can, by this interpreter.
        """
        case, plan = planned.reference, self.scheduler.plan
        if case is None:
            return Reference(name="", missing="what the file was compiled from is not known")
        if planned.model.origin and resolve.runs_code(case.model) and not plan.trust:
            reason = f"the file says that it was compiled from {case.model}, which would be run; --trust does so"
            return Reference(name="", missing=reason)
        for python in dict.fromkeys((*plan.python, "", planned.case.python)):
            reference = self._computed(planned, replace(case, python=python))
            if not reference.missing:
                break
        return reference

    def _computed(self, planned: PlannedCase, case: Case) -> Reference:
        """Return the outputs of ``case``, the reference of a planned case, or the reason why there are none."""
        seed, scheduler = planned.case.seed, self.scheduler
        key = f"{case.digest}-{seed}"
        if key in self._by_key:
            return self._by_key[key]
        scheduler.observer.doing(f"reference outputs: {case.label}")
        path = str(scheduler.scratch / f"{key}.npz")
        name = f"{case.backend_label} {case.precision} on {case.device}"
        with tempfile.TemporaryDirectory() as folder:
            fields = {**scheduler.job_fields(case, Path(folder)), "cache": folder, "rebuild": False}
            data = scheduler.plan.accuracy if planned.evaluated_as not in self.evaluations else ""
            job = ReferenceJob(**fields, path=path, inputs_seed=seed, accuracy=data)
            result = scheduler.launch("reference", job, ReferenceRun, on_event=lambda _: None).result
        if value := result.value:
            reference = Reference(
                name=name,
                path=path,
                inputs=result.model.inputs if result.model else (),
                memory=result.memory.host_peak or 0,
                **{**msgspec.structs.asdict(value), "evaluation": None},
            )
            if value.evaluation:
                if value.evaluation.problem:  # all cases would have it
                    raise value.evaluation.problem
                self.evaluations[planned.evaluated_as] = value.evaluation
        else:
            reference = Reference(name=name, missing=f"the reference failed: {result.reason}")
        self._by_key[key] = reference
        return reference


@dataclass
class Scheduler:
    """A scheduler that measures the cases of one run of a plan.

    Attributes:
        scratch: a folder for the run.
        live: files of live modules, by their full names.
        state: the number of the run, and the facts of its records.
        accuracies: the accuracies of cases, by digest. A case is evaluated once.
    """

    plan: Plan
    observer: Observer = field(default_factory=Observer)
    scratch: Path = Path()
    live: Mapping[str, str] = field(default_factory=dict)
    environments: Environments = field(default_factory=Environments)
    state: RunState = field(default_factory=RunState)
    accuracies: dict[str, Accuracy] = field(default_factory=dict)
    _folders: dict[str, Path] = field(default_factory=dict)  # of records, by their ids
    _built: set[str] = field(default_factory=set)  # digests of the cases that have run
    _exports: dict[str, tuple[str, ModelFacts | None]] = field(default_factory=dict)  # first exports
    _stays_busy: bool = False  # whether a second attempt was disturbed, too: then no other case gets one

    @cached_property
    def references(self) -> References:
        return References(self)

    @cached_property
    def cache(self) -> Path:
        return cache_in(Path(self.plan.output))

    def _cache_of(self, case: Case) -> Path:
        """Return the cache of the case's interpreter; other versions of libraries have another one."""
        if not case.python:
            return self.cache
        environment = self.environments.of(case)
        versions = msgspec.json.encode([environment.python, environment.libraries], order="sorted")
        return self.cache / f"environment-{hashlib.sha256(versions).hexdigest()[:12]}"

    def job_fields(self, case: Case, folder: Path) -> dict[str, Any]:
        """Return the fields of a ``CaseJob`` that all jobs on a case share."""
        return {
            "case": case,
            "folder": str(folder.resolve()),
            "cache": str(self._cache_of(case)),
            "live": self.live.get(case.model),
            "trust": self.plan.trust,
            "rebuild": self.plan.rebuild,
        }

    def exported(self, case: Case) -> list[Path]:
        """Return the files that an earlier process of this run exported the case's model to."""
        folder, _ = self._exports.get(_export_key(case), ("", None))
        return sorted(Path(folder).glob("model.onnx*")) if folder else []

    def launch(self, task: str, job: Job, returns: type[Value], **options: Any) -> Outcome[Value]:
        """Run a task in a fresh process, with the plan's deadline; ``options`` are those of ``child.launch``."""
        options = {"on_event": self.observer.heard, "timeout": self.plan.budget.timeout, **options}
        return child.launch(task, job, returns, **options)

    def measure(self, planned: PlannedCase, repeat: int = 0, options: MeasureOptions = DEFAULTS) -> tuple[Record, Path]:
        """Measure one case in a fresh process; return its record and the folder that it is kept in.

        A case that was disturbed for a short time is measured once more, and the second attempt counts.
        """
        folder = Store(Path(self.plan.output)).claim(planned.case, planned.model.name)
        with discard_if_interrupted(folder):
            return self._finish(self._attempt(planned, repeat, folder, options)), folder

    def measure_one_by_one(self, processes: Sequence[Process], options: MeasureOptions = DEFAULTS) -> list[Record]:
        """Measure cases, with their repeats, one by one. Some processes are concurrent, because loading takes long.

        Each of these has two CPUs, and as much memory as the reference took.
        """
        records: list[Record] = []
        waiting = list(processes)
        while waiting:
            group = waiting[: max(1, min(MOST_LOADING, len(usable_cpus()) // 2))]
            if len(group) > 1:
                peaks = [self.references.of(planned).memory for planned, _ in group if not planned.refusal]
                group = group[: max(1, fitting_processes(peaks))]
            waiting = waiting[len(group) :]
            if len(group) == 1:
                records.append(self.measure(*group[0], options)[0])
                continue
            before, turns = self._before([planned for planned, _ in group]), Turns(len(group), in_turns=False)
            attempts = self._run_concurrently(group, options, turns, before)
            records += [attempt.record for attempt in attempts if attempt.record]
        return records

    def measure_in_turns(self, processes: Sequence[Process], options: MeasureOptions) -> list[Record]:
        """Measure cases that can run, with their repeats, in concurrent fresh processes in turns."""
        cases = [planned for planned, _ in processes]
        for planned in cases:
            self.references.of(planned)  # not while one of them is measured
        before = self._before(cases)  # before one of them is on the GPU
        labels = [planned.case.label for planned in cases]
        turns = Turns(len(cases), in_turns=True)
        with self._monitor(cases, turns.pids, before) as monitor:
            attempts = self._run_concurrently(processes, options, turns, before)
        records = []
        for place, (attempt, slot) in enumerate(zip(attempts, turns.slots, strict=True)):
            attempt.others = ", ".join(dict.fromkeys(labels[:place] + labels[place + 1 :]))
            attempt.outcome.machine = monitor.log_of(slot.pid)
            records.append(self._keep(attempt))
        return records

    def discard(self, records: Sequence[Record]) -> None:
        """Forget records and remove their folders, except for exported models that other processes may need."""
        self.observer.discarded(records)
        needed = {folder for folder, _ in self._exports.values()}
        for folder in (self._folders[record.id].resolve() for record in records):
            remove_results(folder)
            if str(folder) not in needed:
                shutil.rmtree(folder, ignore_errors=True)

    def _run_concurrently(
        self, processes: Sequence[Process], options: MeasureOptions, turns: Turns, before: Before
    ) -> list[Attempt]:
        """Run concurrent processes and return their attempts. One by one, a record is written as its process ends.

        In turns the caller writes the records, because the monitor has to end first.
        """
        store, begin = Store(Path(self.plan.output)), datetime.now(timezone.utc)
        folders = [store.claim(planned.case, planned.model.name) for planned, _ in processes]

        def run_process(place: int, slot: Slot) -> Attempt:
            planned, repeat = processes[place]
            attempt = self._attempt(planned, repeat, folders[place], options, slot=slot, before=before)
            attempt.created = begin + timedelta(milliseconds=place)  # records are in the order of the processes
            if not (turns.in_turns or turns.stopped or self._gets_second(attempt)):
                attempt.record = self._keep(attempt)
            return attempt

        with discard_if_interrupted(*folders):
            attempts = turns.run([partial(run_process, place) for place in range(len(processes))])
            for attempt in () if turns.in_turns else attempts:
                attempt.record = attempt.record or self._finish(attempt)
            return attempts

    def _gets_second(self, attempt: Attempt) -> bool:
        return bool(not self._stays_busy and (marks := attempt.marks) and marks.short)

    def _finish(self, attempt: Attempt) -> Record:
        """Write the record of an attempt, or of a second one after a short disturbance."""
        try:
            if self._gets_second(attempt):
                attempt = self._second_attempt(attempt)
        finally:  # the first attempt is kept also if the second one is interrupted
            record = self._keep(attempt)
        return record

    def _second_attempt(self, first: Attempt) -> Attempt:
        """Return a second attempt with the preparation of the first; or the first, if the second does not run."""
        planned, before = first.planned, first.outcome.result
        self.observer.remark(f"{planned.case.label}: measuring again after a short disturbance")
        value = before.value or BenchmarkResult()
        self._accuracy(planned, value, before.model, in_all=False)  # so that it is not evaluated again
        second = self._attempt(planned, first.repeat, first.folder, first.options)
        result, marks = second.outcome.result, second.marks
        self._stays_busy = result.status != "ok" or (marks is not None and not marks.clean)
        if result.status != "ok":
            return first
        prepared = [phase for phase in before.phases if phase.name in PREPARATION]  # the second may use the cache
        second.outcome.result = replace(
            result,
            phases=(*prepared, *(phase for phase in result.phases if phase.name not in PREPARATION)),
            value=replace(result.value or BenchmarkResult(), evaluation=value.evaluation),
            artefacts=result.artefacts or before.artefacts,
        )
        return second

    def _monitor(self, cases: Sequence[PlannedCase], pids: Callable[[], Sequence[int]], before: Before) -> Monitor:
        return Monitor(pids, gpu=any(planned.case.device == "cuda" for planned in cases), before=before)

    def _attempt(
        self,
        planned: PlannedCase,
        repeat: int,
        folder: Path,
        options: MeasureOptions,
        *,
        slot: Slot | None = None,
        before: Before | None = None,
    ) -> Attempt:
        """Run one process of the case; a case that cannot run here gets its reason."""
        case, created = planned.case, datetime.now(timezone.utc)
        if planned.refusal:
            return Attempt(planned, repeat, folder, created, Outcome(refused(planned)), options)
        job = self._benchmark_job(planned, repeat, folder, options, slot)
        before = before or self._before([planned])
        if not slot:
            self.observer.began(case)
        in_turns = slot is not None and slot.turns.in_turns  # then the processes share a monitor
        outcome = self.launch(
            "benchmark",
            job,
            BenchmarkResult,
            log=folder / LOG,
            on_event=partial(self.observer.heard, concurrent=case) if slot else self.observer.heard,
            monitor=None if in_turns else lambda pid: self._monitor([planned], lambda: [pid], before),
            slot=slot,
            variables=loading_threads(case, len(slot.turns.slots)) if slot else {},
            timeout=min(options.patience(case), self.plan.budget.timeout),
        )
        return Attempt(planned, repeat, folder, created, outcome, options)

    def _benchmark_job(
        self, planned: PlannedCase, repeat: int, folder: Path, options: MeasureOptions, slot: Slot | None
    ) -> BenchmarkJob:
        case, rebuild = planned.case, options.rebuild or self.plan.rebuild
        fields = {**self.job_fields(case, folder), "rebuild": rebuild}
        if repeat and not self.plan.rebuild:  # a new build starts from the same export
            exported, model_facts = self._exports.get(_export_key(case), ("", None))
            fields |= {"exported": exported, "exported_model": model_facts}
            fields["built"] = case.digest in self._built and not rebuild
        if slot and not rebuild:
            fields["export_by"] = str(self.scratch.resolve() / f"export-{_export_key(case)}")
        ends_if_wrong = slot is not None and slot.turns.in_turns and options.only_right
        accuracy = self.accuracies.get(case.digest)
        return BenchmarkJob(
            **fields,
            budget=options.budget or self.plan.budget,
            reference=self.references.of(planned),
            only_right=ends_if_wrong and not by_accuracy(case, accuracy, self.plan.accuracy),
            accuracy="" if accuracy else self.plan.accuracy,
            kernels=options.kernels and case.device == "cuda",
        )

    def _keep(self, attempt: Attempt) -> Record:
        """Write the record of an attempt, remember what later processes need of it, and report it."""
        planned, outcome, result = attempt.planned, attempt.outcome, attempt.outcome.result
        value = result.value or BenchmarkResult()
        accuracy = self._accuracy(planned, value, result.model, in_all=attempt.options.accuracy_in_all)
        facts = result.facts | self.state.facts_of(planned.case)
        if attempt.others:
            facts[IN_TURNS] = attempt.others
        warnings = [*result.warnings]
        if planned.note:
            warnings.append(Warning("plain-way", planned.note))
        if outcome.fault:
            fault = f"After its last sample {outcome.fault}."
            warnings.append(Warning("bad-exit", fault, "The numbers are complete; inferlens show --log has more."))
        record = Record(
            id=uuid.uuid4().hex,
            run=self.state.run_of(planned.case),
            repeat=attempt.repeat,
            repeats=min(self.plan.repeats, 1) if planned.refusal else self.plan.repeats,  # a refusal has one record
            created=attempt.created.isoformat(timespec="milliseconds"),
            ended=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            case=planned.case,
            budget=attempt.options.budget or self.plan.budget,
            status=result.status,
            reason=result.reason,
            hint=result.hint,
            output_tail=outcome.tail,
            model=replace(result.model or ModelFacts(name=""), name=planned.model.name),
            environment=self.environments.of(planned.case),
            phases=result.phases,
            measurements=value.measurements,
            agreement=apply_quantized_verdict(value.agreement, planned.case, self.accuracies.get(planned.case.digest)),
            accuracy=accuracy,
            facts=facts,
            artefacts=result.artefacts,
            warnings=tuple(warnings),
            **msgspec.structs.asdict(attempt.interference),
        )
        Store.save(attempt.folder, record)
        self._folders[record.id] = attempt.folder
        if record.status == "ok":
            self._built.add(record.case.digest)
            if any(artefact.kind == "onnx" for artefact in record.artefacts):
                model_facts = record.model if resolve.inputs_are_drawn(record.case) else None
                self._exports.setdefault(_export_key(record.case), (str(attempt.folder.resolve()), model_facts))
        self.observer.done(record, attempt.folder)
        return record

    def _accuracy(
        self, planned: PlannedCase, value: BenchmarkResult, model: ModelFacts | None, *, in_all: bool
    ) -> Accuracy | None:
        """Return the accuracy of a case for the record of the process that evaluated it, or ``in_all`` records."""
        digest = planned.case.digest
        if value.evaluation:
            reference = self.references.of(planned)
            is_fp32 = planned.reference is not None and planned.reference.precision == "fp32"
            same_weights = model is not None and model.weights_sha256 == reference.weights_sha256
            target = self.references.evaluations.get(planned.evaluated_as) if is_fp32 and same_weights else None
            self.accuracies[digest] = accuracy_of(self.plan.accuracy, value.evaluation, reference.name, target)
        return self.accuracies.get(digest) if value.evaluation or in_all else None

    def _before(self, cases: Sequence[PlannedCase]) -> Before:
        """Return the state of the GPU now; nothing if no case uses it."""
        return gpu_before() if any(planned.case.device == "cuda" for planned in cases) else Before()


def fitting_processes(peaks: Iterable[float]) -> int:
    """Return how many concurrent processes fit into memory, by the bytes that some of them took."""
    return int(memory_left() / (SPARE * max([TYPICAL_MEMORY, *peaks])))


def loading_threads(case: Case, processes: int) -> dict[str, str]:
    """Return the variables by which concurrent processes that load for a GPU share the CPUs.

    If every process starts a thread per CPU, loading takes several times as long.
    """
    if case.device == "cpu" or case.threads or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(usable_cpus()) // processes))}


def _export_key(case: Case) -> str:
    """Return a key that cases share if their models are exported to the same file, by whatever backend."""
    plain = replace(case, options={}, threads=None)
    if precision := BACKENDS.get(case.backend)().exports(case):
        plain = replace(plain, backend="onnx", variant="", device="", precision=precision)
    return plain.digest


@contextmanager
def open_scheduler(
    plan: Plan,
    observer: Observer,
    cases: Sequence[PlannedCase],
    live: Mapping[str, str] | None = None,
    state: RunState | None = None,
    environments: Environments | None = None,
) -> Iterator[Scheduler]:
    """Yield a scheduler for ``cases``, once the machine is quiet or the plan's time to wait for that is over."""
    uses_gpu = any(planned.case.device == "cuda" and not planned.refusal for planned in cases)
    if plan.wait:
        wait_for_quiet(plan.wait, observer.remark, observer.doing, gpu=uses_gpu)
    with tempfile.TemporaryDirectory(prefix="inferlens-") as scratch:
        environments, state = environments or Environments(), state or RunState()
        accuracies = {record.case.digest: record.accuracy for record in state.records if record.accuracy}
        yield Scheduler(plan, observer, Path(scratch), live or {}, environments, state, accuracies)


# The interference of the machine: the monitor's log, compared with the samples.


class Interference(Struct, frozen=True, kw_only=True):
    """The part of a record that the case's own process cannot know; names as in the record."""

    memory: Memory
    machine: MachineLog | None = None
    marks: Marks | None = None
    window_marks: Marks | None = None
    energy: Energy | None = None
    cpu_energy: Energy | None = None


def interference_of(
    case: Case, result: TaskResult[BenchmarkResult], log: MachineLog | None, *, in_turns: bool = False
) -> Interference:
    """Return the interference by the ``log`` of the machine; without a log, the memory alone.

    For a case that was measured in turns, memory of the whole GPU and energy belong to several cases.
    """
    memory = result.memory
    device = peak_device_memory(log, shared=in_turns) if log and case.device == "cuda" else None
    if device:
        memory = replace(memory, device_peak=device[0], device_basis=device[1])
    calls, windows = _timed(result, "latency"), _timed(result, "throughput")
    timed = [measurement for measurement in (calls, windows) if measurement]
    if log is None or not timed:
        return Interference(memory=memory)
    marks = mark_samples(calls.begins, calls.values, log) if calls else None
    window_marks = None
    if windows:
        seconds = [windows.calls / rate for rate in windows.values]
        window_marks = mark_samples(windows.begins, seconds, log, least=LEAST_WINDOWS)
    energy = Energy(reason=NO_ENERGY) if in_turns else _energy(case, result, timed[0], log)
    return Interference(
        memory=memory,
        machine=log.between(timed[0].begins[0], _end(timed[-1])),
        marks=marks,
        window_marks=window_marks,
        energy=energy if case.device == "cuda" else None,
        cpu_energy=energy if case.device == "cpu" else None,
    )


def _timed(result: TaskResult[BenchmarkResult], metric: Metric) -> Measurement | None:
    """Return the measurement of a metric, if it has the times of its samples."""
    for measurement in result.value.measurements if result.value else ():
        if measurement.metric == metric and measurement.samples:
            return measurement if len(measurement.begins) == len(measurement.samples) else None
    return None


def _end(measurement: Measurement) -> float:
    last = measurement.values[-1]
    return measurement.begins[-1] + (measurement.calls / last if measurement.unit == "calls/s" else last)


def _energy(case: Case, result: TaskResult[BenchmarkResult], measurement: Measurement, log: MachineLog) -> Energy:
    if case.cold:
        return Energy(reason="the caches were flushed between calls, which takes energy of its own")
    inputs = result.model.inputs if result.model else ()
    batch = inputs[0].shape[0] if inputs and inputs[0].shape else 1
    items = batch * measurement.calls * len(measurement.samples)
    return energy_per_item(log, case.device, measurement.begins[0], _end(measurement), items)
