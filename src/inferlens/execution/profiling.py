"""Where the time of cases goes: each is timed untouched first, and then profiled, level by level, in runs of their own.

What a profile says of the cost of profiling is told by the record that lies beside it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from inferlens.errors import InferlensError
from inferlens.execution import run as api
from inferlens.execution.ceilings import Kept
from inferlens.execution.expand import Planned, backends_named, expand
from inferlens.execution.observer import Observer, Silent
from inferlens.execution.protocol import Began, Event, ProfileAnswer, ProfileJob
from inferlens.execution.scheduler import Scheduler
from inferlens.execution.subprocess import launch
from inferlens.models.model import ModelInfo
from inferlens.record.layer_profile import Level, Profile
from inferlens.record.profile_store import save
from inferlens.record.record import ModelFacts, Record
from inferlens.spec.plan import Plan
from inferlens.spec.plan_words import count, known

LEVELS: tuple[Level, ...] = get_args(Level)
ALSO: dict[str, Level] = {"module": "layer"}  # words for a level by what it shows
RUNS = 50
WARMUP = 10


def profile(
    model: Any,
    example_inputs: Any = None,
    *,
    level: Any = "layer",
    runs: int = RUNS,
    observer: Observer | None = None,
    **words: Any,
) -> list[Profile]:
    """Profiles a model on the backends of this machine.

    Args:
        model: a name, a file, a factory, or a live ``nn.Module``; a list of names for several models.
        example_inputs: of a live module, as of :func:`inferlens.bench`.
        level: ``layer``, ``kernel``, or both; ``module`` is another word for ``layer``, which is what is traced to
            modules.
        runs: profiled calls of each case and level.
        observer: told what happens; by default nothing is shown.
        words: as of :func:`inferlens.bench`, but ``repeats``; the untouched run is of latency alone.

    Returns:
        One profile for each case and level, those that failed included. They are on disk too, beside the records.

    Raises:
        InferlensError: if the model or the words mean nothing. A case that cannot be profiled says why in its profile.
    """
    levels, runs = levels_of(level), count("runs", runs)
    with api.named(model, example_inputs) as (spec, found, live):
        plan = Plan.from_words({"mode": "latency", **words, "model": spec})
        made = run(plan, levels, runs, observer or Silent(), found, live)
    return [each for each, _ in made]


def levels_of(value: Any) -> tuple[str, ...]:
    """The levels that some words name, each once. Modules are no level of their own: layers are traced to them.

    Raises:
        InferlensError: for a word that is none.
    """
    words = known("level", value, (*LEVELS, *ALSO))
    return tuple(dict.fromkeys(ALSO.get(word, word) for word in words))


def run(
    plan: Plan,
    levels: Sequence[str],
    runs: int,
    observer: Observer,
    found: Sequence[ModelInfo] | None = None,
    live: str | None = None,
) -> list[tuple[Profile, Path]]:
    """Times and profiles every case of ``plan``; each record and profile is on disk before the next one starts.

    Args:
        found, live: of a live module what is known of it, and its file.

    Returns:
        The profiles, each with the folder that it and its record are in.

    Raises:
        InferlensError: if the plan asks for several processes of each case.
    """
    if plan.repeats > 1:
        raise InferlensError("A case is profiled in one process for each level.", hint="without --repeats")
    observer.doing("looking at models and backends")
    cases = expand(plan, list(found) if found else api.find(plan.model), api.probe(backends_named(plan)))
    observer.planned(cases)
    profiles = []
    with api.embark(plan, observer, cases, live) as scheduler:
        ceilings = Kept(scheduler.cache(), scheduler.environment, plan.rebuild)
        for planned in cases:
            record, folder = scheduler.measure_in(planned)
            for level in levels:
                observer.doing(f"{planned.case.label}: profiling every {level}")
                made = _profile(scheduler, planned, record, folder, level, runs)
                profiles.append((_beneath(made, ceilings, folder, observer), folder))
    return profiles


def _profile(scheduler: Scheduler, planned: Planned, record: Record, folder: Path, level: Any, runs: int) -> Profile:
    """Profiles one case in a fresh process and keeps the profile beside its record."""
    made = Profile(
        id=uuid.uuid4().hex,
        record=record.id,
        created=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        case=planned.case,
        level=level,
        runs=runs,
        status=record.status,
        reason=record.reason,
        hint=record.hint,
        model=record.model,
        environment=record.environment,
    )
    if record.status == "ok":
        made = _asked(scheduler, planned, made, folder)
    save(folder, made)
    return made


def _beneath(profile: Profile, ceilings: Kept, folder: Path, observer: Observer) -> Profile:
    """The profile with the ceilings of its device, where its work is known that is held against them."""
    if profile.status != "ok" or not profile.work or not profile.work.modules:
        return profile
    observer.doing(f"{profile.case.label}: what the device reaches at best")
    made = replace(profile, ceilings=ceilings.of(profile.case))
    save(folder, made)
    return made


def _asked(scheduler: Scheduler, planned: Planned, profile: Profile, folder: Path) -> Profile:
    """``profile`` with what the case's process answers, or how it ended without."""
    job = ProfileJob(
        case=planned.case,
        level=profile.level,
        runs=profile.runs,
        warmup=WARMUP,
        folder=str(folder.resolve()),
        cache=str(scheduler.cache()),
        trust=scheduler.plan.trust,
        rebuild=False,  # what the untouched run has built is what is profiled
        live=scheduler.live,
    )

    def tell(event: Event) -> None:
        if isinstance(event, Began):
            scheduler.observer.phase(event.phase)

    log = folder / f"profile-{profile.level}.log"
    outcome = launch(job, timeout=scheduler.plan.budget.timeout, log=log, on_event=tell)
    if not outcome.answer:
        return replace(profile, status=outcome.status, reason=outcome.reason, output_tail=outcome.tail)
    answer = msgspec.json.decode(outcome.answer, type=ProfileAnswer)
    return replace(
        profile,
        status=answer.status,
        reason=answer.reason,
        hint=answer.hint,
        output_tail=outcome.tail if answer.status != "ok" else (),
        model=replace(answer.model or ModelFacts(name=""), name=planned.found.name),
        phases=answer.phases,
        layers=answer.layers,
        kernels=answer.kernels,
        work=answer.work,
        facts=answer.facts,
        warnings=answer.warnings,
    )
