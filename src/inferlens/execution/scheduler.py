"""One run of a plan: each case measured in a fresh process, watched, and its record kept before the next one starts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import msgspec

from inferlens.execution.expand import Planned
from inferlens.execution.interference import Conditions, conditions
from inferlens.execution.interleaver import Slot, both
from inferlens.execution.observer import Observer
from inferlens.execution.protocol import (
    Answer,
    Began,
    CaseJob,
    Event,
    Progressed,
    Reference,
    ReferenceAnswer,
    ReferenceJob,
)
from inferlens.execution.subprocess import Outcome, launch
from inferlens.measure.monitor.before import surveyed
from inferlens.measure.monitor.monitor import Monitor
from inferlens.models import resolve
from inferlens.record.machine import Before
from inferlens.record.record import IN_TURNS, Environment, ModelFacts, PhaseName, Record, Status, Warning
from inferlens.record.store import LOG, Store, cache_in
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan

FUTILE = 2  # after so many second attempts that were disturbed, too, there are no more of them
PREPARING: tuple[PhaseName, ...] = ("load", "export", "build", "first inference")


@dataclass(frozen=True)
class Attempt:
    """One process of a case: how it ended, what it answered, and what the machine did to it."""

    case: Case
    outcome: Outcome
    answer: Answer
    found: Conditions
    beside: str = ""  # the case that it took turns with

    def as_it_is(self) -> Attempt:
        """The same, with its disturbed samples kept: there is no better one."""
        log = self.outcome.machine
        return replace(self, found=conditions(self.case, self.answer, log, last=True, in_turns=bool(self.beside)))


@dataclass(frozen=True)
class Waiting:
    """A case that was disturbed: its record is kept, and its second time comes when all others are done."""

    planned: Planned
    repeat: int
    folder: Path
    first: Attempt
    record: Record


@dataclass
class Scheduler:
    """One run of a plan: what its cases share."""

    plan: Plan
    observer: Observer
    scratch: Path
    live: str | None
    environment: Environment
    idle: Before = field(default_factory=Before)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _references: dict[str, Reference] = field(default_factory=dict)
    _futile: int = 0  # cases in a row whose second attempt was disturbed, too
    _waiting: list[Waiting] = field(default_factory=list)

    def measure(self, planned: Planned, repeat: int = 0, *, later: bool = False) -> Record:
        """Measures one case in a fresh process and keeps its record."""
        return self.measure_in(planned, repeat, later=later)[0]

    def measure_in(self, planned: Planned, repeat: int = 0, *, later: bool = False) -> tuple[Record, Path]:
        """As :meth:`measure`; also the folder that the record is in.

        Where something else on the machine disturbed most of it, it is measured once more, and the second time counts:
        at once, or ``later``, by :meth:`second_times`, when what disturbed it may be over.
        """
        folder = Store(Path(self.plan.output)).claim(planned.case, planned.found.name)
        created = datetime.now(timezone.utc)
        try:
            attempt = self._ask(planned, folder, again=False)
        except BaseException:  # cut short: nothing was learned, so nothing is kept
            _discard(folder)
            raise
        cut_short: BaseException | None = None
        if attempt.found.repeat and later:
            record = self._keep(planned, repeat, folder, attempt.as_it_is(), created)
            self._waiting.append(Waiting(planned, repeat, folder, attempt, record))
            return record, folder
        if not attempt.found.repeat:
            self._futile = 0
        elif self._futile >= FUTILE:
            attempt = attempt.as_it_is()
        else:
            self.observer.doing(f"disturbed, so once more: {planned.case.label}")
            try:
                attempt = self._better(attempt, self._ask(planned, folder, again=True))
            except KeyboardInterrupt as interrupt:  # what was learned first is kept
                attempt, cut_short = attempt.as_it_is(), interrupt
        record = self._keep(planned, repeat, folder, attempt, created)
        self.observer.done(record, folder)
        if cut_short:
            raise cut_short
        return record, folder

    def measure_in_turns(self, pair: Sequence[Planned], repeat: int = 0) -> list[Record]:
        """Measures two cases that can run, each in a fresh process, the two at once, in turns; keeps their records.

        There are no second times: what disturbs one of the two disturbs the other as well, and their ratio is what
        counts.
        """
        store = Store(Path(self.plan.output))
        folders = [store.claim(planned.case, planned.found.name) for planned in pair]
        others = [planned.case.label for planned in reversed(pair)]
        try:
            for planned in pair:
                self._reference(planned)  # not while one of them is measured
            begun = datetime.now(timezone.utc)
            before = self._before(*(planned.case for planned in pair))  # before either of them is on the GPU
            asked = [
                partial(self._ask, planned, folder, False, before=before, beside=other)
                for planned, folder, other in zip(pair, folders, others, strict=True)
            ]
            attempts = both(*asked)
        except BaseException:
            for folder in folders:
                _discard(folder)
            raise
        records = []
        for place, (planned, folder, attempt) in enumerate(zip(pair, folders, attempts, strict=True)):
            created = begun + timedelta(milliseconds=place)  # records are read in the order in which they were begun
            record = self._keep(planned, repeat, folder, attempt.as_it_is(), created)
            self.observer.done(record, folder)
            records.append(record)
        return records

    def second_times(self) -> dict[str, Record]:
        """Measures what was put off, and gives the records that count now, by the ids of those that they replace."""
        found = {}
        while self._waiting:
            one = self._waiting.pop(0)
            record = one.record
            if self._futile < FUTILE:
                self.observer.doing(f"disturbed, so once more: {one.planned.case.label}")
                created = datetime.now(timezone.utc)
                attempt = self._better(one.first, self._ask(one.planned, one.folder, again=True))
                if attempt.outcome is not one.first.outcome:
                    record = self._keep(one.planned, one.repeat, one.folder, attempt, created)
            found[one.record.id] = record
            self.observer.done(record, one.folder)
        return found

    def _keep(self, planned: Planned, repeat: int, folder: Path, attempt: Attempt, created: datetime) -> Record:
        """The record of an attempt, on disk."""
        outcome, answer, found = attempt.outcome, attempt.answer, attempt.found
        record = Record(
            id=uuid.uuid4().hex,
            run=self.id,
            repeat=repeat,
            repeats=1 if planned.refusal else self.plan.repeats,  # what cannot run is said once
            created=created.isoformat(timespec="milliseconds"),
            case=planned.case,
            budget=self.plan.budget,
            status=answer.status,
            reason=answer.reason,
            hint=answer.hint,
            output_tail=outcome.tail if answer.status != "ok" or outcome.fault else (),
            model=msgspec.structs.replace(answer.model or ModelFacts(name=""), name=planned.found.name),
            environment=self.environment,
            phases=answer.phases,
            measurements=answer.measurements,
            agreement=answer.agreement,
            memory=found.memory,
            facts=answer.facts | ({IN_TURNS: attempt.beside} if attempt.beside else {}),
            artefacts=answer.artefacts,
            warnings=answer.warnings + _faults(outcome),
            machine=found.machine,
            marks=found.marks,
            window_marks=found.window_marks,
            energy=found.energy,
            cpu_energy=found.cpu_energy,
        )
        Store.save(folder, record)
        return record

    def _better(self, first: Attempt, second: Attempt) -> Attempt:
        """The second attempt if it ran; its preparation may have found things in the cache, so the first's is kept."""
        disturbed = second.answer.status != "ok" or bool(second.found.marks and not second.found.marks.clean)
        self._futile = self._futile + 1 if disturbed else 0
        if second.answer.status != "ok" or second.outcome.status != "ok":
            return first.as_it_is()
        phases = (
            *(phase for phase in first.answer.phases if phase.name in PREPARING),
            *(phase for phase in second.answer.phases if phase.name not in PREPARING),
        )
        return replace(second, answer=msgspec.structs.replace(second.answer, phases=phases))

    def _ask(
        self,
        planned: Planned,
        folder: Path,
        again: bool,
        slot: Slot | None = None,
        *,
        beside: str = "",
        before: Before | None = None,
    ) -> Attempt:
        """How the case's process ended; what is known of the case, also if it did not answer; and of the machine."""
        if planned.refusal:
            why = planned.refusal
            reason = f"{why.what} Expected: {why.expected}." if why.expected else why.what
            answer = Answer(status="unsupported", reason=reason, hint=why.hint)
            return Attempt(planned.case, Outcome(), answer, Conditions(memory=answer.memory))
        case = planned.case
        job = CaseJob(
            case=case,
            budget=self.plan.budget,
            folder=str(folder.resolve()),
            cache=str(self.cache()),
            reference=self._reference(planned),
            trust=self.plan.trust,
            rebuild=self.plan.rebuild,
            live=self.live,
        )
        if slot is None:
            self.observer.began(case)
        gpu = case.device == "cuda"
        before = before or self._before(case)
        outcome = launch(
            job,
            timeout=self.plan.budget.timeout,
            log=folder / LOG,
            on_event=partial(self._tell, in_turns=case if slot else None),
            watch=lambda pid: Monitor(pid, gpu=gpu, before=before, beside=slot.neighbour if slot else lambda: None),
            slot=slot,
        )
        answer = _answer(outcome)
        if beside and answer.status == "out of memory":  # two models were there
            answer = msgspec.structs.replace(answer, hint=f"--interleave processes, {answer.hint}")
        found = conditions(case, answer, outcome.machine, repeated=again, in_turns=bool(beside))
        return Attempt(case, outcome, answer, found, beside)

    def _before(self, *cases: Case) -> Before:
        """The GPU as it is now, with the power it drew while nothing ran; nothing, where no case uses it."""
        if all(case.device != "cuda" for case in cases):
            return Before()
        idle = self.idle
        return msgspec.structs.replace(
            surveyed(), idle_power=idle.idle_power, idle_seconds=idle.idle_seconds, idle_samples=idle.idle_samples
        )

    def _reference(self, planned: Planned) -> Reference:
        """The reference's outputs for this case, computed once for all cases that share model, inputs and weights."""
        case = planned.reference
        if case is None:
            return Reference(name="", missing="nothing tells what the file was compiled from")
        if planned.found.origin and resolve.runs_code(case.model) and not self.plan.trust:
            reason = f"the file says that it was compiled from {case.model}, which would be run; --trust does so"
            return Reference(name="", missing=reason)
        seed = planned.case.seed
        key = f"{case.digest}-{seed}"
        if key not in self._references:
            self.observer.doing(f"reference outputs: {case.label}")
            path = self.scratch / f"{key}.npz"
            job = ReferenceJob(case=case, path=str(path), inputs_seed=seed, trust=self.plan.trust, live=self.live)
            outcome = launch(job, timeout=self.plan.budget.timeout)
            name = f"{case.backend_label} {case.precision} on {case.device}"
            if outcome.answer:
                weights = msgspec.json.decode(outcome.answer, type=ReferenceAnswer).weights_sha256
                self._references[key] = Reference(name=name, path=str(path), weights_sha256=weights)
            else:
                why = outcome.tail[-1] if outcome.tail else outcome.reason
                self._references[key] = Reference(name=name, missing=f"the reference failed: {why}")
        return self._references[key]

    def _tell(self, event: Event, in_turns: Case | None = None) -> None:
        """Tells the observer; of two cases in turns, the one that entered a phase last has begun last."""
        if isinstance(event, Began):
            if in_turns:
                self.observer.began(in_turns)
            self.observer.phase(event.phase)
        elif isinstance(event, Progressed):
            self.observer.progress(event.share)

    def cache(self) -> Path:
        """The folder of what is worth keeping between cases."""
        return cache_in(Path(self.plan.output))


def _answer(outcome: Outcome) -> Answer:
    """What the process answered; of one that ran into its deadline what it had measured whole; else how it ended."""
    if outcome.answer:
        return msgspec.json.decode(outcome.answer, type=Answer)
    if outcome.learned:
        known = msgspec.json.decode(outcome.learned, type=Answer)
        message = f"Throughput is missing: {outcome.reason}. Latencies had been taken."
        missing = Warning("throughput-missing", message, f"{_cure(outcome.status)}, or --mode latency")
        return msgspec.structs.replace(known, warnings=(*known.warnings, missing))
    return Answer(status=outcome.status, reason=outcome.reason, hint=_cure(outcome.status))


def _faults(outcome: Outcome) -> tuple[Warning, ...]:
    if not outcome.fault:
        return ()
    message = f"after its last sample {outcome.fault}"
    return (Warning("bad-exit", message, "the numbers are complete; the log beside the record has more"),)


def _cure(status: Status) -> str:
    cures: dict[Status, str] = {
        "timed out": "--timeout with more seconds",
        "out of memory": "a smaller --batch, or a smaller --precision",
        "crashed": "the log beside the record",
    }
    return cures.get(status, "")


def _discard(folder: Path) -> None:
    """Removes the folder of a case that was cut short, with what the case left in it."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
