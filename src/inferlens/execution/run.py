"""Runs a plan: surveys the machine, expands the plan, measures case after case, keeps every record.

:func:`bench` is the same for Python, with the same words as the command line and with a live module in hand.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends.base import Absence, Capabilities
from inferlens.errors import InferlensError
from inferlens.execution.expand import Planned, backends_named, expand
from inferlens.execution.observer import Observer, Silent
from inferlens.execution.protocol import (
    FindAnswer,
    FindJob,
    ProbeAnswer,
    ProbeJob,
)
from inferlens.execution.scheduler import Scheduler
from inferlens.execution.subprocess import launch
from inferlens.measure import environment
from inferlens.measure.monitor.before import IDLE_SECONDS, surveyed
from inferlens.models.model import ModelInfo
from inferlens.record.machine import Before
from inferlens.record.record import Record
from inferlens.spec.plan import Plan

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
def named(model: Any, example_inputs: Any = None) -> Iterator[tuple[Any, list[ModelInfo] | None, str | None]]:
    """A model in a plan's words; of a live module also what is known of it, and its file, which is there meanwhile.

    Raises:
        InferlensError: if there are example inputs for a name, or the module cannot be saved.
    """
    if isinstance(model, (str, Path)) or (isinstance(model, (list, tuple)) and model):
        if example_inputs is not None:
            raise InferlensError(
                "Example inputs go with a live module, not with a name.", hint="input=['x=1x3x224x224']"
            )
        yield [str(name) for name in model] if isinstance(model, (list, tuple)) else str(model), None, None
        return
    from inferlens.models.sources import live

    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        path = Path(folder) / "module"
        found = live.save(model, example_inputs, path)
        yield found.spec, [found], str(path)


def run(
    plan: Plan, observer: Observer, found: Sequence[ModelInfo] | None = None, live: str | None = None
) -> list[Record]:
    """Measures every case of ``plan``; each record is on disk before the next case starts."""
    observer.doing("looking at models and backends")
    models = list(found) if found else find(plan.model)
    cases = expand(plan, models, probe(backends_named(plan)))
    turns = in_turns(cases, plan.repeats, plan.seed)
    observer.planned([planned for planned, _ in turns])
    with embark(plan, observer, cases, live) as scheduler:
        # What is measured in turns stays beside its neighbours in time.
        later = plan.repeats == 1 and len(turns) > 1
        records = [scheduler.measure(planned, repeat, later=later) for planned, repeat in turns]
        again = scheduler.second_times()
        return [again.get(record.id, record) for record in records]


@contextmanager
def embark(plan: Plan, observer: Observer, cases: Sequence[Planned], live: str | None = None) -> Iterator[Scheduler]:
    """What measures ``cases``, once the machine was looked at while nothing ran."""
    uses_gpu = any(planned.case.device == "cuda" and not planned.refusal for planned in cases)
    idle = surveyed(IDLE_SECONDS) if uses_gpu else Before()
    with tempfile.TemporaryDirectory(prefix="inferlens-") as scratch:
        yield Scheduler(plan, observer, Path(scratch), live, environment.collect(), idle)


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


def find(names: Sequence[str]) -> list[ModelInfo]:
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
            raise InferlensError(failure.what, expected=failure.expected, hint=failure.hint)
    return [found for found in answer.found if found]
