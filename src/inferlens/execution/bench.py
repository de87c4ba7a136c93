"""``inferlens bench``: a race among the cases of a plan."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from inferlens.execution.expand import Planned
from inferlens.execution.protocol import Observer
from inferlens.execution.rounds import hold_rounds
from inferlens.execution.scheduler import Scheduler, scheduled
from inferlens.execution.survey import Named, cases_of, named
from inferlens.record.record import CUT_SHORT, Record
from inferlens.record.store import Store
from inferlens.spec.plan import Plan


def measured(model: Any, example_inputs: Any, words: Mapping[str, Any], observer: Observer) -> list[Record]:
    """One record per case of a plan in words, in the order they ran; ``model`` may be a live module.

    Raises:
        InferlensError: if the model or the words mean nothing. A case that fails is a record, not an error.
    """
    with named(model, example_inputs) as model:
        return run(Plan.from_words({**words, "model": model.spec}), observer, model)


def run(plan: Plan, observer: Observer, model: Named | None = None) -> list[Record]:
    """Measures every case of ``plan``; each record is on disk before the next case starts.

    Each case is measured once, by itself; those that may be the fastest then meet in rounds, unless the plan says how
    often cases are measured.
    """
    observer.doing("looking at models and backends")
    cases = cases_of(plan, model)
    order = measuring_order(cases, plan.repeats, plan.seed)
    observer.planned([planned for planned, _ in order])
    with scheduled(plan, observer, cases, model) as scheduler:
        try:
            screened = [(planned, scheduler.measure(planned, repeat)[0]) for planned, repeat in order]
            if not plan.repeats:
                hold_rounds(scheduler, screened)
        except BaseException:
            _cut_short(plan, scheduler)
            raise
        return scheduler.records


def _cut_short(plan: Plan, scheduler: Scheduler) -> None:
    """Says so in the records of a race that had just begun, which look like those of one that is over."""
    if not plan.repeats and not any(record.repeat > 1 for record in scheduler.records):
        for record in scheduler.records:
            Store.save(scheduler.kept[record.id], replace(record, facts={**record.facts, CUT_SHORT: True}))


def measuring_order(cases: Sequence[Planned], repeats: int, seed: int) -> list[tuple[Planned, int]]:
    """Each case ``repeats`` times, round after round, each in an order drawn from ``seed``, so heat hits all alike.

    Without repeats the order is that of the plan. What cannot run here is said once.
    """
    if repeats <= 1:
        return [(planned, 0) for planned in cases]
    order = []
    shuffle = random.Random(seed)
    for repeat in range(repeats):
        able = [planned for planned in cases if repeat == 0 or not planned.refusal]
        order += [(planned, repeat) for planned in shuffle.sample(able, len(able))]
    return order
