"""Runs a plan: surveys the machine, expands the plan, measures case after case, keeps every record.

:func:`bench` is the same for Python, with the same words as the command line and with a live module in hand.
"""

from __future__ import annotations

import random
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends.base import Absence, Capabilities
from inferlens.conditions import Conditions, conditions
from inferlens.errors import InferlensError
from inferlens.jobs import (
    Answer,
    Began,
    CaseJob,
    Event,
    FindAnswer,
    FindJob,
    ProbeAnswer,
    ProbeJob,
    Progressed,
    Reference,
    ReferenceAnswer,
    ReferenceJob,
)
from inferlens.launch import Outcome, launch
from inferlens.machine import Before
from inferlens.measure import environment
from inferlens.models import resolve
from inferlens.models.model import Found
from inferlens.observer import Observer, Silent
from inferlens.plan import Plan, Planned, backends_named, expand
from inferlens.record import Environment, ModelFacts, Record, Status, Warning
from inferlens.store import LOG, Store
from inferlens.watch.before import IDLE_SECONDS, survey
from inferlens.watch.watch import Watch

SURVEY_TIMEOUT = 300.0


def bench(
    model: Any,
    example_inputs: Any = None,
    *,
    observer: Observer | None = None,
    **words: Any,
) -> list[Record]:
    """Measures a model on the backends of this machine.

    Args:
        model: a name, a file, a factory, or a live ``nn.Module``; a list of names for several models.
        example_inputs: for a live module: a tensor, a tuple of tensors, or a dict of tensors by argument name.
        observer: told what happens; by default nothing is shown.
        words: as on the command line: ``backend``, ``precision``, ``batch``, ``device``, ``threads``, ``io``,
            ``cold``, ``rotate``, ``depth``, ``option``, ``input``, ``weights``, ``trust``, ``rebuild``, ``seed``,
            ``repeats``, ``mode``, ``warmup``, ``iterations``, ``seconds``, ``stop``, ``half_width``, ``max_time``,
            ``timeout``, ``output``; single values, lists, or texts with commas.

    Returns:
        One record per case, in the order they ran, failed cases included. They are on disk too, under ``output``.

    Raises:
        InferlensError: if the model or the words mean nothing. A case that fails is a record, not an error.
    """
    with named(model, example_inputs) as (spec, found, live):
        return run(Plan.from_words({**words, "model": spec}), observer or Silent(), found, live)


@contextmanager
def named(model: Any, example_inputs: Any = None) -> Iterator[tuple[Any, list[Found] | None, str | None]]:
    """A model in a plan's words; of a live module also what is known of it, and its file, which is there meanwhile.

    Raises:
        InferlensError: if there are example inputs for a name, or the module cannot be saved.
    """
    if isinstance(model, (str, Path)) or (isinstance(model, (list, tuple)) and model):
        if example_inputs is not None:
            raise InferlensError(
                "Example inputs go with a live module, not with a name.", cure="input=['x=1x3x224x224']"
            )
        yield [str(name) for name in model] if isinstance(model, (list, tuple)) else str(model), None, None
        return
    from inferlens.models.sources import live

    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        path = Path(folder) / "module"
        found = live.save(model, example_inputs, path)
        yield found.spec, [found], str(path)


def run(plan: Plan, observer: Observer, found: Sequence[Found] | None = None, live: str | None = None) -> list[Record]:
    """Measures every case of ``plan``; each record is on disk before the next case starts."""
    observer.doing("looking at models and backends")
    models = list(found) if found else find(plan.model)
    cases = expand(plan, models, probe(backends_named(plan)))
    turns = in_turns(cases, plan.repeats, plan.seed)
    observer.planned([planned for planned, _ in turns])
    with embark(plan, observer, cases, live) as voyage:
        return [voyage.measure(planned, repeat) for planned, repeat in turns]


@contextmanager
def embark(plan: Plan, observer: Observer, cases: Sequence[Planned], live: str | None = None) -> Iterator[Voyage]:
    """What measures ``cases``, once the machine was looked at while nothing ran."""
    uses_gpu = any(planned.case.device == "cuda" and not planned.refusal for planned in cases)
    idle = survey(IDLE_SECONDS) if uses_gpu else Before()
    with tempfile.TemporaryDirectory(prefix="inferlens-") as scratch:
        yield Voyage(plan, observer, Path(scratch), live, environment.collect(), idle)


def in_turns(cases: Sequence[Planned], repeats: int, seed: int) -> list[tuple[Planned, int]]:
    """Each case ``repeats`` times: round after round, and in each round in another order, drawn from ``seed``.

    So a machine that gets slower over a run, by heat for example, is slower for all of them alike. Without repeats the
    order is that of the plan. What cannot run here is said once.
    """
    if repeats == 1:
        return [(planned, 0) for planned in cases]
    turns = []
    shuffle = random.Random(seed)
    for repeat in range(repeats):
        able = [planned for planned in cases if repeat == 0 or not planned.refusal]
        turns += [(planned, repeat) for planned in shuffle.sample(able, len(able))]
    return turns


def cases_of(plan: Plan) -> list[Planned]:
    """The cases of ``plan``, none of them run."""
    return expand(plan, find(plan.model), probe(backends_named(plan)))


def probe(names: Sequence[str]) -> dict[str, Capabilities]:
    """What each backend can do here, asked in a process of its own; one that crashes there takes no other along."""
    outcome = launch(ProbeJob(backends=tuple(names)), timeout=SURVEY_TIMEOUT)
    if outcome.answer:
        return msgspec.json.decode(outcome.answer, type=ProbeAnswer).capabilities
    if len(names) == 1:
        reason = f"Asking it crashed: {outcome.reason}. {' '.join(outcome.tail[-1:])}".strip()
        return {names[0]: Capabilities(formats=(), absent=(Absence("", reason, "reinstall its libraries"),))}
    return {name: capabilities for each in names for name, capabilities in probe([each]).items()}


def find(names: Sequence[str]) -> list[Found]:
    """What each model's name means.

    Raises:
        InferlensError: for the first name that means nothing.
    """
    outcome = launch(FindJob(models=tuple(names)), timeout=SURVEY_TIMEOUT)
    if not outcome.answer:
        tail = "\n".join(outcome.tail)
        raise InferlensError(f"Looking up {', '.join(names)} failed: {outcome.reason}.\n{tail}")
    answer = msgspec.json.decode(outcome.answer, type=FindAnswer)
    for failure in answer.failures:
        if failure:
            raise InferlensError(failure.what, expected=failure.expected, cure=failure.cure)
    return [found for found in answer.found if found]


@dataclass
class Voyage:
    """One run of a plan: what its cases share."""

    plan: Plan
    observer: Observer
    scratch: Path
    live: str | None
    environment: Environment
    idle: Before = field(default_factory=Before)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _references: dict[str, Reference] = field(default_factory=dict)

    def measure(self, planned: Planned, repeat: int = 0) -> Record:
        """Measures one case in a fresh process and keeps its record.

        Where something else on the machine disturbed most of it, it is measured once more, and the second time counts.
        """
        store = Store(Path(self.plan.output))
        folder = store.claim(planned.case, planned.found.name)
        created = datetime.now(timezone.utc)
        try:
            outcome, answer, found = self._ask(planned, folder, again=False)
            if found.repeat:
                self.observer.doing(f"disturbed, so once more: {planned.case.label}")
                outcome, answer, found = self._ask(planned, folder, again=True)
        except BaseException:  # cut short: nothing was learned, so nothing is kept
            _discard(folder)
            raise
        record = Record(
            id=uuid.uuid4().hex,
            run=self.id,
            repeat=repeat,
            created=created.isoformat(timespec="milliseconds"),
            case=planned.case,
            budget=self.plan.budget,
            status=answer.status,
            reason=answer.reason,
            cure=answer.cure,
            output_tail=outcome.tail if answer.status != "ok" or outcome.fault else (),
            model=msgspec.structs.replace(answer.model or ModelFacts(name=""), name=planned.found.name),
            environment=self.environment,
            phases=answer.phases,
            measurements=answer.measurements,
            agreement=answer.agreement,
            memory=found.memory,
            facts=answer.facts,
            artefacts=answer.artefacts,
            warnings=answer.warnings + _faults(outcome),
            machine=found.machine,
            marks=found.marks,
            window_marks=found.window_marks,
            energy=found.energy,
            cpu_energy=found.cpu_energy,
        )
        store.save(folder, record)
        self.observer.done(record, folder)
        return record

    def _ask(self, planned: Planned, folder: Path, again: bool) -> tuple[Outcome, Answer, Conditions]:
        """How the case's process ended; what is known of the case, also if it did not answer; and of the machine."""
        if planned.refusal:
            why = planned.refusal
            reason = f"{why.what} Expected: {why.expected}." if why.expected else why.what
            answer = Answer(status="unsupported", reason=reason, cure=why.cure)
            return Outcome(), answer, Conditions(memory=answer.memory)
        case = planned.case
        job = CaseJob(
            case=case,
            budget=self.plan.budget,
            folder=str(folder.resolve()),
            cache=str(self._cache()),
            reference=self._reference(planned),
            trust=self.plan.trust,
            rebuild=self.plan.rebuild,
            live=self.live,
        )
        self.observer.began(case)
        gpu = case.device == "cuda"
        before = self._before() if gpu else Before()
        outcome = launch(
            job,
            timeout=self.plan.budget.timeout,
            log=folder / LOG,
            on_event=self._tell,
            watch=lambda pid: Watch(pid, gpu=gpu, before=before),
        )
        if outcome.answer:
            answer = msgspec.json.decode(outcome.answer, type=Answer)
        else:
            answer = Answer(status=outcome.status, reason=outcome.reason, cure=_cure(outcome.status))
        return outcome, answer, conditions(case, answer, outcome.machine, repeated=again)

    def _before(self) -> Before:
        """The GPU as it is now, with the power it drew while nothing ran."""
        idle = self.idle
        return msgspec.structs.replace(
            survey(), idle_power=idle.idle_power, idle_seconds=idle.idle_seconds, idle_samples=idle.idle_samples
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

    def _tell(self, event: Event) -> None:
        if isinstance(event, Began):
            self.observer.phase(event.phase)
        elif isinstance(event, Progressed):
            self.observer.progress(event.share)

    def _cache(self) -> Path:
        cache = Path(self.plan.output).resolve() / ".cache"
        cache.mkdir(parents=True, exist_ok=True)
        return cache


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
