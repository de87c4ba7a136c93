"""Runs a plan: surveys the machine, expands the plan, measures case after case, keeps every record.

:func:`bench` is the same for Python, with the same words as the command line and with a live module in hand.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import msgspec

from inferlens.backends import BACKENDS
from inferlens.backends.base import Absence, Capabilities
from inferlens.case import Case
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
from inferlens.measure import environment
from inferlens.models import resolve
from inferlens.models.model import Found
from inferlens.plan import Plan, Planned, expand
from inferlens.record import Environment, ModelFacts, PhaseName, Record, Status, Warning
from inferlens.store import LOG, Store

SURVEY_TIMEOUT = 300.0


class Observer(Protocol):
    """Told what happens while a plan runs; shows it, or does nothing."""

    def planned(self, cases: Sequence[Planned]) -> None:
        """The cases are known and will run in this order."""

    def doing(self, what: str) -> None:
        """Something other than a case is under way, such as the reference."""

    def began(self, case: Case) -> None:
        """A case begins."""

    def phase(self, name: PhaseName) -> None:
        """The case entered a phase."""

    def progress(self, share: float) -> None:
        """The share of the case's steady state that is done."""

    def done(self, record: Record, folder: Path) -> None:
        """A case is over and its record is on disk."""


class Silent:
    """Shows nothing."""

    def planned(self, cases: Sequence[Planned]) -> None: ...  # noqa: D102
    def doing(self, what: str) -> None: ...  # noqa: D102
    def began(self, case: Case) -> None: ...  # noqa: D102
    def phase(self, name: PhaseName) -> None: ...  # noqa: D102
    def progress(self, share: float) -> None: ...  # noqa: D102
    def done(self, record: Record, folder: Path) -> None: ...  # noqa: D102


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
            ``option``, ``input``, ``weights``, ``trust``, ``rebuild``, ``seed``, ``warmup``, ``iterations``,
            ``seconds``, ``timeout``, ``output``; single values, lists, or texts with commas.

    Returns:
        One record per case, in the order they ran, failed cases included. They are on disk too, under ``output``.

    Raises:
        InferlensError: if the model or the words mean nothing. A case that fails is a record, not an error.
    """
    observer = observer or Silent()
    if isinstance(model, (str, Path)) or (isinstance(model, (list, tuple)) and model):
        if example_inputs is not None:
            raise InferlensError(
                "Example inputs go with a live module, not with a name.", cure="input=['x=1x3x224x224']"
            )
        names = [str(name) for name in model] if isinstance(model, (list, tuple)) else str(model)
        return run(Plan.from_words({**words, "model": names}), observer)
    return _bench_live(model, example_inputs, observer, words)


def _bench_live(model: Any, example_inputs: Any, observer: Observer, words: Mapping[str, Any]) -> list[Record]:
    from inferlens.models.sources import live

    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        path = Path(folder) / "module"
        found = live.save(model, example_inputs, path)
        plan = Plan.from_words({**words, "model": found.spec})
        return run(plan, observer, found=[found], live=str(path))


def run(plan: Plan, observer: Observer, found: Sequence[Found] | None = None, live: str | None = None) -> list[Record]:
    """Measures every case of ``plan``; each record is on disk before the next case starts."""
    observer.doing("looking at models and backends")
    models = list(found) if found else find(plan.model)
    cases = expand(plan, models, probe(BACKENDS.names()))
    observer.planned(cases)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inferlens-")))
        voyage = Voyage(plan, observer, scratch, live, environment.collect())
        return [voyage.measure(planned) for planned in cases]


def cases_of(plan: Plan) -> list[Planned]:
    """The cases of ``plan``, none of them run."""
    return expand(plan, find(plan.model), probe(BACKENDS.names()))


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
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _references: dict[str, Reference] = field(default_factory=dict)

    def measure(self, planned: Planned) -> Record:
        """Measures one case in a fresh process and keeps its record."""
        store = Store(Path(self.plan.output))
        folder = store.claim(planned.case, planned.found.name)
        created = datetime.now(timezone.utc)
        try:
            outcome, answer = self._ask(planned, folder)
        except BaseException:  # cut short: nothing was learned, so nothing is kept
            _discard(folder)
            raise
        record = Record(
            id=uuid.uuid4().hex,
            run=self.id,
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
            memory=answer.memory,
            facts=answer.facts,
            artefacts=answer.artefacts,
            warnings=answer.warnings + _faults(outcome),
        )
        store.save(folder, record)
        self.observer.done(record, folder)
        return record

    def _ask(self, planned: Planned, folder: Path) -> tuple[Outcome, Answer]:
        """The outcome of the case's process, and what is known of the case, also if it gave no answer."""
        if planned.refusal:
            why = planned.refusal
            reason = f"{why.what} Expected: {why.expected}." if why.expected else why.what
            return Outcome(), Answer(status="unsupported", reason=reason, cure=why.cure)
        job = CaseJob(
            case=planned.case,
            budget=self.plan.budget,
            folder=str(folder.resolve()),
            cache=str(self._cache()),
            reference=self._reference(planned),
            trust=self.plan.trust,
            rebuild=self.plan.rebuild,
            live=self.live,
        )
        self.observer.began(planned.case)
        outcome = launch(job, timeout=self.plan.budget.timeout, log=folder / LOG, on_event=self._tell)
        if outcome.answer:
            return outcome, msgspec.json.decode(outcome.answer, type=Answer)
        return outcome, Answer(status=outcome.status, reason=outcome.reason, cure=_cure(outcome.status))

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
