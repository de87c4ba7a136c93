"""What a tuning is asked for in words, and a tuning of each model at each batch size that they name.

Each is a tuning of its own, with its share of the time, and a folder of its own: ``OUTPUT/MODEL``, or in it
``batch-8`` or ``batch-1-sequence_length-32`` where the model has several sizes. Time that one leaves is for those
that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from inferlens.analysis.tuning import TuningReport
from inferlens.errors import InferlensError
from inferlens.execution.expand import refuse_if_none_runs
from inferlens.execution.launching.parts import UnderWay, launched
from inferlens.execution.protocol import TELLS, Observer, PartJob
from inferlens.execution.survey import Named, named
from inferlens.execution.tuning.space import Space, Tried, explore, tried
from inferlens.execution.tuning.tune import Request, run
from inferlens.record.record import Record
from inferlens.record.store import BEST, TRIALS, TUNING, safe_name
from inferlens.spec.case import Case
from inferlens.spec.objective import Constraint, Objective
from inferlens.spec.plan import Duration, Plan, Texts, Where, texts
from inferlens.units import parse_duration


def requested(plan: Plan, objective: str, within: Texts, budget: Duration) -> Request:
    """What is asked for in words: what is to be best, its limits, and seconds or a text such as ``10m``.

    Raises InferlensError if one of them means nothing.
    """
    constraints = Constraint.parse_all(texts(within))
    for each in constraints:
        if (needs := each.measure.needs) and not getattr(plan, needs):
            raise InferlensError(f"{each.name} is not known without data to evaluate.", hint=f"--{needs} DATA")
    seconds = parse_duration(str(budget))
    if not seconds:
        raise InferlensError("--budget must be longer than 0 seconds.", expected="a --budget such as 10m")
    return Request(plan=plan, objective=Objective.parse(objective), constraints=constraints, budget=seconds)


def tuned(model: Any, example_inputs: Any, words: Mapping[str, Any], observer: Observer) -> list[TuningReport]:
    """Tunes what :func:`inferlens.tune` is given; ``words`` are its keywords."""
    left = dict(words)
    asked = [left.pop(name) for name in ("objective", "within", "budget")]
    space, only, without = (left.pop(name) for name in ("space", "only", "without"))
    with named(model, example_inputs) as model:
        plan = Plan.from_words({**left, "model": model.spec})
        request = requested(plan, *asked)
        return run_each(request, tried(space, only, without, request.measures), observer, model)


def run_each(request: Request, what: Tried, observer: Observer, model: Named | None = None) -> list[TuningReport]:
    """Tunes each model of the plan at each of its batch sizes.

    Raises InferlensError if nothing of one of them can run here; before the first of them is begun.
    """
    observer.doing("looking at models and backends")
    if request.plan.where != Where():
        with launched(request.plan, observer, model) as under_way:
            if under_way.apart:
                return _run_apart(under_way, request, what, model)
    parts = list(_parts(explore(request.plan, what, model)))
    found: list[TuningReport] = []

    def tune(place: int, seconds: float) -> TuningReport:
        part, one = parts[place], request
        case, name = part.families[0].case, part.families[0].found.name
        home = Path(request.plan.output) / safe_name(name)
        if sum(each.families[0].case.model == case.model for each in parts) > 1:
            home /= _folder(case)
        if len(parts) > 1:
            one = msgspec.structs.replace(request, plan=_narrowed(request.plan, case))
            observer.part(f"{name}, {case.sizes_label}" if one.plan.batch or case.sizes else name)
        return run(one, what, part, home, observer, model, seconds)

    for place in range(len(parts)):
        unused = request.budget - sum(each.seconds for each in found)
        found.append(tune(place, max(request.budget / len(parts), unused / (len(parts) - place))))
    return found


class ExploreJob(PartJob, frozen=True, kw_only=True):
    """Find the space of a plan; ``model`` is its model, where that is a live one."""

    what: Tried
    model: Named | None


def explored(job: ExploreJob, observer: Observer) -> Space:  # noqa: ARG001 - nothing happens
    """The space on this machine."""
    return explore(job.plan, job.what, job.model)


def spaces(plan: Plan, what: Tried) -> dict[str, Space]:
    """The space of a plan on each kind of worker that it names."""
    with launched(plan, Observer(), None) as under_way:
        return under_way.of_each_kind(explored, ExploreJob, what=what, model=None)


class TuneJob(PartJob, frozen=True, kw_only=True):
    """Tune one model at one batch size, in a folder ``home`` below that of the plan; ``kept`` are its rounds so far."""

    request: Request
    what: Tried
    space: Space
    home: str
    seconds: float
    model: Named | None
    kept: bytes = b""

    @property
    def folder(self) -> Path:
        """The folder."""
        return Path(self.plan.output) / self.home

    @property
    def progress(self) -> int:
        """See :class:`PartJob`."""
        return len(self.kept)

    def again(self, records: Sequence[Record], folders: Mapping[str, Path]) -> TuneJob:  # noqa: ARG002 - has its own
        """The job with the rounds that are kept by now."""
        file = self.folder / TUNING / TRIALS
        return msgspec.structs.replace(self, kept=file.read_bytes() if file.exists() else b"")


def tune_part(job: TuneJob, observer: Observer) -> TuningReport:
    """Tunes it; records of the search are kept with its rounds, and nowhere else."""
    file = job.folder / TUNING / TRIALS
    if job.kept and not file.exists():
        file.parent.mkdir(parents=True)
        file.write_bytes(job.kept)
    request = msgspec.structs.replace(job.request, plan=job.plan)
    return run(request, job.what, job.space, job.folder, _OfRounds(observer), job.model, job.seconds)


class _OfRounds(Observer):
    """Tells of all but records."""

    def __init__(self, observer: Observer) -> None:
        for name in (each for each in TELLS if each not in ("done", "discarded")):
            setattr(self, name, getattr(observer, name))


def _run_apart(under_way: UnderWay, request: Request, what: Tried, model: Named | None) -> list[TuningReport]:
    """The same by workers that are elsewhere: each tuning on one of them, several at the same time."""
    jobs: list[TuneJob] = []
    found = under_way.of_each_kind(explored, ExploreJob, what=what, model=model)
    for kind, space in found.items():
        parts = list(_parts(space))
        workers = sum(worker.kind == kind for worker in under_way.launcher.workers(len(parts)))
        for part in parts:
            case, name = part.families[0].case, part.families[0].found.name
            several = sum(each.families[0].case.model == case.model for each in parts) > 1
            words = ([kind] if kind else []) + ([_folder(case)] if several else [])
            more = {
                "plan": _narrowed(under_way.plan, case),
                "home": str(Path(safe_name(name)) / "-".join(words)),
                "seconds": request.budget * min(1.0, workers / len(parts)),
            }
            job = under_way.job(TuneJob, kind, request=request, what=what, space=part, model=model, **more)
            jobs.append(under_way.now(job))
    return [
        msgspec.structs.replace(tuned, folder=tuned.folder and str(job.folder / BEST))
        for job, tuned in zip(jobs, under_way.do(tune_part, jobs), strict=True)
    ]


def _parts(space: Space) -> Iterator[Space]:
    """The space of each model at each batch size and with each set of inputs."""
    every = (*space.families, *space.refused)
    for key in dict.fromkeys((each.case.model, each.case.batch, each.case.inputs) for each in every):
        families, refused = (
            tuple(each for each in some if (each.case.model, each.case.batch, each.case.inputs) == key)
            for some in (space.families, space.refused)
        )
        refuse_if_none_runs([*families, *refused])
        yield replace(space, families=families, refused=refused)


def _narrowed(plan: Plan, case: Case) -> Plan:
    """The plan, of the model, the batch and the inputs of a case alone."""
    batch = plan.batch and (case.batch,)
    return msgspec.structs.replace(plan, model=(case.model,), batch=batch, input=(case.inputs,), dim=((),))


def _folder(case: Case) -> str:
    return safe_name(case.sizes_label.replace(", ", "-").replace(" ", "-"))
