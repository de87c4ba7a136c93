"""Cases of a run, each measured in a fresh process, watched, and its record kept before the next one starts.

Every parent uses the :class:`Scheduler`, which is given case after case, to measure it or do another task with it.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends import BACKENDS
from inferlens.execution import child_process
from inferlens.execution.child_process import Outcome
from inferlens.execution.expand import Planned
from inferlens.execution.interference import Attempt, Interference, interference
from inferlens.execution.interleaver import Interleaver, Slot
from inferlens.execution.measure_case import (
    BenchmarkJob,
    Measured,
    Reference,
    ReferenceJob,
    ReferenceOrigin,
    benchmark,
    reference,
)
from inferlens.execution.protocol import Began, Event, Found, J, Observer, Task, refused
from inferlens.execution.survey import environment_by
from inferlens.limits import memory_left
from inferlens.measure import environment
from inferlens.measure.monitor import Monitor, gpu_before, usable_cpus, wait_for_quiet
from inferlens.measure.output_check import Evaluation, accuracy_of, apply_quantized_verdict, by_accuracy
from inferlens.models import resolve
from inferlens.record.machine import Before
from inferlens.record.record import IN_TURNS, Accuracy, Environment, ModelFacts, PhaseName, Record, Warning
from inferlens.record.store import LOG, Store, cache_in, discard_if_interrupted
from inferlens.spec.case import Budget, Case
from inferlens.spec.plan import Plan

MOST_LOADING = 8  # processes that load side by side before each is measured
TYPICAL_MEMORY = 1.5e9  # bytes of a process, before one has told
SPARE = 1.25  # times the memory that processes took alone is what they are given room for together
PREPARING: tuple[PhaseName, ...] = ("load", "export", "quantize", "build", "first inference")


@dataclass
class References:
    """The references of a run's cases, and what they are worth on real data; ``do``, ``given``: of ``Scheduler``."""

    plan: Plan
    observer: Observer
    scratch: Path
    do: Callable[..., Outcome[Any]]
    given: Callable[[Case, Path], dict[str, Any]]
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    _known: dict[str, Reference] = field(default_factory=dict)

    def of(self, planned: Planned) -> Reference:
        """The reference of this case, the same for all cases that share model, inputs and weights.

        By the first of ``--python`` that can, for what is new is compared with what was; else by this interpreter.
        """
        case = planned.reference
        if case is None:
            return Reference(name="", missing="what the file was compiled from is not known")
        if planned.found.origin and resolve.runs_code(case.model) and not self.plan.trust:
            reason = f"the file says that it was compiled from {case.model}, which would be run; --trust does so"
            return Reference(name="", missing=reason)
        for python in dict.fromkeys((*self.plan.python, "", planned.case.python)):
            made = self._outputs(planned, msgspec.structs.replace(case, python=python))
            if not made.missing:
                break
        return made

    def _outputs(self, planned: Planned, case: Case) -> Reference:
        """What ``case``, the reference of another, computes; or why nothing."""
        seed = planned.case.seed
        key = f"{case.digest}-{seed}"
        if key not in self._known:
            self.observer.doing(f"reference outputs: {case.label}")
            path = str(self.scratch / f"{key}.npz")
            name = f"{case.backend_label} {case.precision} on {case.device}"
            with tempfile.TemporaryDirectory() as folder:
                words = {**self.given(case, Path(folder)), "cache": folder, "rebuild": False}
                wanted = self.plan.accuracy if planned.evaluated_as not in self.evaluations else ""
                job = ReferenceJob(**words, path=path, inputs_seed=seed, accuracy=wanted)
                result = self.do(reference, job, on_event=lambda _: None).result
            if found := result.found:
                hashes = {each: getattr(found, each) for each in ReferenceOrigin.__struct_fields__}
                inputs, memory = result.model.inputs if result.model else (), result.memory.host_peak or 0
                made = Reference(name=name, path=path, inputs=inputs, memory=memory, **hashes)
                if found.evaluation:
                    if found.evaluation.problem:  # it would be every case's
                        raise found.evaluation.problem.error()
                    self.evaluations[planned.evaluated_as] = found.evaluation
            else:
                made = Reference(name=name, missing=f"the reference failed: {result.reason}")
            self._known[key] = made
        return self._known[key]


@dataclass
class Scheduler:
    """One run of a plan: what its cases share."""

    plan: Plan
    observer: Observer = field(default_factory=Observer)
    scratch: Path = Path()
    live: Mapping[str, str] = field(default_factory=dict)  # files of live modules, by the full name of each
    collected: Callable[[], Environment] = environment.collect
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    records: list[Record] = field(default_factory=list)  # in the order in which their cases ended
    kept: dict[str, Path] = field(default_factory=dict)  # the folder of each record, by its id
    builds_anew: bool = False  # whether processes do, whatever the plan says
    round_budget: Budget | None = None  # what a process of a round measures, if not what is usual
    one_at_a_time: bool = False  # whether rounds are: energy, and in containers memory of a GPU, is not known of turns
    looks_at_kernels: bool = False  # whether the kinds of kernels are looked at after the timing, on a GPU
    patience: Callable[[Case], float] = lambda _: math.inf  # seconds that a case may take, if less than the plan's
    accuracies: dict[str, Accuracy] = field(default_factory=dict)  # of cases, by digest: each is evaluated once
    facts: Mapping[str, str] = field(default_factory=dict)  # of all records
    tells_all: bool = False  # whether all records of a case have it, not its first alone
    _told: set[str] = field(default_factory=set)  # cases of which a record has it
    _built: set[str] = field(default_factory=set)  # cases of which a process has run
    _exports: dict[str, tuple[str, ModelFacts | None]] = field(default_factory=dict)  # where each was exported first
    _environments: dict[str, Environment] = field(default_factory=dict)  # of other interpreters
    _stays_busy: bool = False  # whether a second attempt was disturbed, too: then no other case gets one

    @cached_property
    def environment(self) -> Environment:
        """The machine and its libraries."""
        return self.collected()

    def environment_for(self, case: Case) -> Environment:
        """The same, as the case's interpreter tells it, with the revision of the case's checkout."""
        if case.python and case.python not in self._environments:
            self._environments[case.python] = environment_by(case.python)
        found = self._environments.get(case.python) or self.environment
        if not case.checkout:
            return found
        return msgspec.structs.replace(found, git_revision=environment.git_revision(case.checkout))

    @cached_property
    def references(self) -> References:
        """What outputs are held against."""
        return References(self.plan, self.observer, self.scratch, self.do, self.given)

    @cached_property
    def cache(self) -> Path:
        """The folder of what is worth keeping between cases."""
        return cache_in(Path(self.plan.output))

    def _cache_of(self, case: Case) -> Path:
        """The same; of another interpreter one for its versions: what other libraries made is none of theirs."""
        if not case.python:
            return self.cache
        here = self.environment_for(case)
        made_by = msgspec.json.encode([here.python, here.libraries], order="sorted")
        return self.cache / f"environment-{hashlib.sha256(made_by).hexdigest()[:12]}"

    def given(self, case: Case, folder: Path) -> dict[str, Any]:
        """What every job on a case is given: the fields of ``protocol.CaseJob``."""
        own = {name: getattr(self.plan, name) for name in ("trust", "rebuild")}
        return {
            **own,
            "case": case,
            "folder": str(folder.resolve()),
            "cache": str(self._cache_of(case)),
            "live": self.live.get(case.model),
        }

    def exported(self, case: Case) -> list[Path]:
        """The files that the case's model was exported to by an earlier process of this run."""
        folder, _ = self._exports.get(_exported_as(case), ("", None))
        return sorted(Path(folder).glob("model.onnx*")) if folder else []

    def do(self, task: Task[J, Found], job: J, **words: Any) -> Outcome[Found]:
        """Does a task in a fresh process, with the plan's deadline; ``words`` are those of ``launch``."""
        words = {"on_event": self.observer.heard, "timeout": self.plan.budget.timeout, **words}
        return child_process.launch(task, job, **words)

    def measure(self, planned: Planned, repeat: int = 0, budget: Budget | None = None) -> tuple[Record, Path]:
        """Measures one case in a fresh process; its record, and the folder that it is kept in.

        Where something disturbed it for a short time, it is measured once more, and the second attempt counts.
        """
        folder = Store(Path(self.plan.output)).claim(planned.case, planned.found.name)
        with discard_if_interrupted(folder):
            first = self._attempt(planned, repeat, folder, budget=budget)
        return self._counted(first, budget), folder

    def _counted(self, first: Attempt, budget: Budget | None = None) -> Record:
        """The record that counts of a first attempt, which is told of."""
        record = self._keep(first)
        try:
            if first.found.repeat and not self._stays_busy:
                record = self._second_attempt(first, budget) or record
        finally:  # also where it is interrupted: what was learned first is kept
            self._done(record, first.folder)
        return record

    def measure_each(self, processes: Sequence[tuple[Planned, int]], budget: Budget | None = None) -> list[Record]:
        """Measure cases, with their repeats, one after the other, each by itself; some load and build side by side.

        As many as have two CPUs each, and as much memory as the reference took: loading is most of a short case's time.
        """
        found: list[Record] = []
        left = list(processes)
        while left:
            few = left[: max(1, min(MOST_LOADING, len(usable_cpus()) // 2))]
            if len(few) > 1:
                peaks = [self.references.of(planned).memory for planned, _ in few if not planned.refusal]
                few = few[: max(1, int(memory_left() / (SPARE * max([TYPICAL_MEMORY, *peaks]))))]
            left = left[len(few) :]
            found += self._measure_loaded(few, budget) if len(few) > 1 else [self.measure(*few[0], budget)[0]]
        return found

    def _measure_loaded(self, processes: Sequence[tuple[Planned, int]], budget: Budget | None) -> list[Record]:
        """Measure cases one after the other that have loaded and built side by side."""
        before = self._before(*(planned.case for planned, _ in processes))
        with self._claimed(processes) as attempts:

            def measured(attempt: Callable[..., Attempt], slot: Slot) -> Attempt | Record:
                first = attempt(slot=slot, before=before, budget=budget)
                return first if slot.stopped or first.found.repeat else self._counted(first, budget)

            every = [partial(measured, attempt) for attempt in attempts]
            ended = Interleaver(len(every), one_turn=True).run(every)
            return [self._counted(one, budget) if isinstance(one, Attempt) else one for one in ended]

    @contextmanager
    def _claimed(self, processes: Sequence[tuple[Planned, int]]) -> Iterator[list[Callable[..., Attempt]]]:
        """What makes the attempt of each, in a folder that is claimed here; they count as begun in this order."""
        store, begun = Store(Path(self.plan.output)), datetime.now(timezone.utc)
        folders = [store.claim(planned.case, planned.found.name) for planned, _ in processes]

        def attempt(place: int, **words: Any) -> Attempt:
            made = self._attempt(*processes[place], folders[place], **words)
            return replace(made, created=begun + timedelta(milliseconds=place))

        with discard_if_interrupted(*folders):
            yield [partial(attempt, place) for place in range(len(processes))]

    def measure_interleaved(
        self, processes: Sequence[tuple[Planned, int]], budget: Budget, *, only_right: bool = True
    ) -> list[Record]:
        """Measures cases that can run, with their repeats, each in a fresh process, all at once, in turns; keeps them.

        There are no second attempts: what disturbs one of them disturbs the others as well. With ``only_right`` a
        process whose first outputs are wrong ends before it is timed.
        """
        cases = [planned for planned, _ in processes]
        for planned in cases:
            self.references.of(planned)  # not while one of them is measured
        before = self._before(*(planned.case for planned in cases))  # before one of them is on the GPU
        labels = [planned.case.label for planned in cases]
        with self._claimed(processes) as attempts:

            def measured(place: int, slot: Slot) -> Attempt:
                beside = ", ".join(dict.fromkeys(labels[:place] + labels[place + 1 :]))
                return attempts[place](slot=slot, budget=budget, before=before, beside=beside, only_right=only_right)

            turns = Interleaver(len(attempts))
            with self._monitor(cases, turns.pids, before) as monitor:
                ended = turns.run([partial(measured, place) for place in range(len(attempts))])
            logs = [monitor.log_of(slot.pid) for slot in turns.slots]
        records = []
        for one, log in zip(ended, logs, strict=True):
            records.append(self._keep(one.watched(log)))
            self._done(records[-1], one.folder)
        return records

    def _monitor(self, cases: Sequence[Planned], started: Callable[[], Sequence[int]], before: Before) -> Monitor:
        return Monitor(started, gpu=any(planned.case.device == "cuda" for planned in cases), before=before)

    def _done(self, record: Record, folder: Path) -> None:
        self.records.append(record)
        self.kept[record.id] = folder
        if record.status == "ok":
            self._built.add(record.case.digest)
            if any(artefact.kind == "onnx" for artefact in record.artefacts):
                known = record.model if resolve.inputs_are_drawn(record.case) else None
                self._exports.setdefault(_exported_as(record.case), (str(folder.resolve()), known))
        self.observer.done(record, folder)

    def discard(self, records: Iterable[Record]) -> None:
        """Forgets records and removes their folders, but for what other processes may want: exported models."""
        records, wanted = list(records), {folder for folder, _ in self._exports.values()}
        self.records = [record for record in self.records if record not in records]
        self.observer.discarded(records)
        for folder in (self.kept[record.id].resolve() for record in records):
            if str(folder) not in wanted:
                shutil.rmtree(folder, ignore_errors=True)

    def _second_attempt(self, first: Attempt, budget: Budget | None) -> Record | None:
        """Return the record of a second attempt; ``None`` if it did not run."""
        planned = first.planned
        self.observer.again(planned.case)
        second = self._attempt(planned, first.repeat, first.folder, budget=budget)
        result, marks = second.outcome.result, second.found.marks
        ran = result.status == "ok"
        self._stays_busy = not ran or (marks is not None and not marks.clean)
        # With the first one's preparation: the second may have found things in the cache.
        prepared = [phase for phase in first.outcome.result.phases if phase.name in PREPARING]
        phases = (*prepared, *(phase for phase in result.phases if phase.name not in PREPARING))
        measured = msgspec.structs.replace(result.found or Measured(), evaluation=None)
        if first.outcome.result.found:  # the accuracy, which nothing disturbed
            measured = msgspec.structs.replace(measured, evaluation=first.outcome.result.found.evaluation)
        outcome = replace(second.outcome, result=msgspec.structs.replace(result, phases=phases, found=measured))
        return self._keep(replace(second, outcome=outcome)) if ran else None

    def _attempt(
        self,
        planned: Planned,
        repeat: int,
        folder: Path,
        *,
        budget: Budget | None = None,
        slot: Slot | None = None,
        beside: str = "",
        before: Before | None = None,
        only_right: bool = False,
    ) -> Attempt:
        """One process of the case, and what the machine did to it; of a case that cannot run here, why."""
        case, created = planned.case, datetime.now(timezone.utc)
        if planned.refusal:
            outcome: Outcome[Measured] = Outcome(refused(planned))
            return Attempt(planned, repeat, folder, created, outcome, Interference(memory=outcome.result.memory))
        rebuild = self.builds_anew or self.plan.rebuild
        given = {**self.given(case, folder), "rebuild": rebuild}
        if repeat and not self.plan.rebuild:  # a build that is made anew is made from the same export
            exported, known = self._exports.get(_exported_as(case), ("", None))
            given |= {"exported": exported, "known": known, "built": case.digest in self._built and not rebuild}
        if slot and not rebuild:
            given["export_by"] = str(self.scratch.resolve() / f"export-{_exported_as(case)}")
        job = BenchmarkJob(
            **given, budget=budget or self.plan.budget, reference=self.references.of(planned),
            only_right=only_right and not by_accuracy(case, self.accuracies.get(case.digest), self.plan.accuracy),
            one_turn=bool(slot and slot.one_turn),
            accuracy="" if case.digest in self.accuracies else self.plan.accuracy,
            kernels=self.looks_at_kernels and case.device == "cuda",
        )  # fmt: skip
        before = before or self._before(case)
        if not slot:
            self.observer.began(case)
        outcome = self.do(
            benchmark,
            job,
            log=folder / LOG,
            on_event=partial(self._heard_interleaved, case) if slot else self.observer.heard,
            # All that take turns have one in common.
            monitor=None if slot and not slot.one_turn else lambda pid: self._monitor([planned], lambda: [pid], before),
            slot=slot,
            variables=loading_threads(case, slot.processes) if slot else {},
            timeout=min(self.patience(case), self.plan.budget.timeout),
        )
        found = interference(case, outcome.result, outcome.machine, interleaved=bool(accuracy_of))
        return Attempt(planned, repeat, folder, created, outcome, found, beside, budget)

    def _heard_interleaved(self, case: Case, event: Event) -> None:
        """Of cases in turns, the one that entered a phase last has begun last."""
        if isinstance(event, Began):
            self.observer.began(case)
        self.observer.heard(event)

    def _keep(self, attempt: Attempt) -> Record:
        planned, outcome, found, result = attempt.planned, attempt.outcome, attempt.found, attempt.outcome.result
        measured = result.found or Measured()
        accuracy = self._accuracy(planned, measured, result.model)
        fault = f"After its last sample {outcome.fault}."
        plain = [Warning("plain-way", planned.note)] if planned.note else []
        ending = (Warning("bad-exit", fault, "The numbers are complete; inferlens show --log has more."),)
        record = Record(
            id=uuid.uuid4().hex,
            run=self.id,
            repeat=attempt.repeat,
            repeats=min(self.plan.repeats, 1) if planned.refusal else self.plan.repeats,  # what cannot run is said once
            created=attempt.created.isoformat(timespec="milliseconds"),
            ended=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            case=planned.case,
            budget=attempt.budget or self.plan.budget,
            status=result.status,
            reason=result.reason,
            hint=result.hint,
            output_tail=outcome.tail,
            model=msgspec.structs.replace(result.model or ModelFacts(name=""), name=planned.found.name),
            environment=self.environment_for(planned.case),
            phases=result.phases,
            measurements=measured.measurements,
            agreement=apply_quantized_verdict(
                measured.agreement, planned.case, self.accuracies.get(planned.case.digest)
            ),
            accuracy=accuracy,
            facts=result.facts | {**self.facts} | ({IN_TURNS: attempt.beside} if attempt.beside else {}),
            artefacts=result.artefacts,
            warnings=(*result.warnings, *plain, *(ending if outcome.fault else ())),
            **{name: getattr(found, name) for name in found.__struct_fields__},
        )
        Store.save(attempt.folder, record)
        return record

    def _accuracy(self, planned: Planned, measured: Measured, model: ModelFacts | None) -> Accuracy | None:
        """The accuracy of a case's first process that has it; of another one none, as the case has one record of it."""
        digest = planned.case.digest
        if own := measured.evaluation:
            reference, case = self.references.of(planned), planned.reference
            fp32 = case is not None and case.precision == "fp32"
            same = model is not None and model.weights_sha256 == reference.weights_sha256
            theirs = self.references.evaluations.get(planned.evaluated_as) if fp32 and same else None
            self.accuracies[digest] = accuracy_of(self.plan.accuracy, own, reference.name, theirs)
        elif digest in self._told and not self.tells_all:
            return None
        self._told.add(digest)
        return self.accuracies.get(digest)

    def _before(self, *cases: Case) -> Before:
        """Return the GPU as it is now; nothing where no case uses it."""
        return gpu_before() if any(case.device == "cuda" for case in cases) else Before()


def loading_threads(case: Case, processes: int) -> dict[str, str]:
    """Return the variables by which processes that load side by side for a GPU share the CPUs.

    If each starts a thread for every CPU, loading takes several times as long.
    """
    if case.device == "cpu" or case.threads or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(usable_cpus()) // processes))}


def _exported_as(case: Case) -> str:
    """Cases that share this are exported to the same file, by whatever backend."""
    plain = msgspec.structs.replace(case, options={}, threads=None)
    if precision := BACKENDS.get(case.backend)().exports(case):
        plain = msgspec.structs.replace(plain, backend="onnx", variant="", device="", precision=precision)
    return plain.digest


@contextmanager
def scheduled(
    plan: Plan, observer: Observer, cases: Sequence[Planned], live: Mapping[str, str] | None = None, **more: Any
) -> Iterator[Scheduler]:
    """What measures ``cases``, once the machine is quiet or the plan's time to wait for that is over.

    Files of ``live`` modules are given by the full name of each; ``more`` are other fields of it.
    """
    uses_gpu = any(planned.case.device == "cuda" and not planned.refusal for planned in cases)
    if plan.wait:
        wait_for_quiet(plan.wait, observer.remark, observer.doing, gpu=uses_gpu)
    with tempfile.TemporaryDirectory(prefix="inferlens-") as scratch, ThreadPoolExecutor(1) as aside:
        known = aside.submit(environment.collect)
        yield Scheduler(plan, observer, Path(scratch), live or {}, known.result, **more)
