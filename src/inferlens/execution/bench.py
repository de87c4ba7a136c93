"""``inferlens bench``: a race among the cases of a plan."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inferlens.execution.expand import Planned
from inferlens.execution.launching.alone import compare_alone
from inferlens.execution.launching.parts import CasesJob, UnderWay, launched, scheduled_part, still_known
from inferlens.execution.launching.resume import resumable
from inferlens.execution.protocol import Observer
from inferlens.execution.rounds import first_rounds, hold_first_round, hold_rounds, screening_budget
from inferlens.execution.survey import Named, named
from inferlens.record.record import CUT_SHORT, Record
from inferlens.record.store import Store, lock_folder, safe_name
from inferlens.spec.plan import Plan


def measured(model: Any, example_inputs: Any, words: Mapping[str, Any], observer: Observer | None) -> list[Record]:
    """One record per case of a plan in words, in the order they ran; ``model`` may be a live module.

    Raises InferlensError if the model or the words mean nothing. A case that fails is a record, not an error.
    """
    with named(model, example_inputs) as model:
        return run(Plan.from_words({**words, "model": model.spec}), observer or Observer(), model)


def run(plan: Plan, observer: Observer, model: Named | None = None) -> list[Record]:
    """Measures every case of ``plan``; each record is on disk before the next case starts.

    Each case is measured once, by itself; those that may be the fastest then meet in rounds, unless the plan says how
    often cases are measured.
    """
    plan = replace(plan, recommended=True)
    observer.doing("looking at models and backends")
    with launched(plan, observer, model) as under_way:
        cases = under_way.cases()
        orders = [measuring_order(each, plan.repeats, plan.seed) for each in cases.values()]
        observer.planned([planned for order in orders for planned, _ in order])
        names = sorted({safe_name(planned.found.name) for planned in itertools.chain(*cases.values())})
        with ExitStack() as stack:
            for name in names:  # rows of two runs at once tell nothing of each other
                stack.enter_context(lock_folder(Path(plan.output) / name))
            stack.enter_context(resumable(under_way))
            jobs = under_way.race_jobs(CasesJob, cases)
            try:
                under_way.do(race, jobs)
            except BaseException:
                _cut_short(plan, under_way)
                raise
            if plan.repeats != 1:  # what is measured once is short
                compare_alone(under_way, jobs)
        return under_way.gathered.records


def race(job: CasesJob, observer: Observer) -> None:
    """Measures cases, and holds their rounds."""
    plan, cases = job.plan, job.planned()
    with scheduled_part(job, observer, cases) as scheduler:
        before = still_known(job, scheduler)
        known = {(record.case.digest, record.repeat): record for record in before}
        budget = None if plan.repeats > 1 else screening_budget(plan.budget)

        def measure(planned: Sequence[Planned]) -> list[tuple[Planned, int]]:
            """Measure what is not known yet, and return the order of all of it."""
            order = measuring_order(planned, plan.repeats, plan.seed)
            left = [(one, repeat) for one, repeat in order if (one.case.digest, repeat) not in known]
            add(scheduler.measure_each(left, budget))
            return order

        def add(records: Iterable[Record]) -> None:
            known.update({(record.case.digest, record.repeat): record for record in records})

        begun: list[list[Planned]] = []
        if job.given_up and not plan.repeats:
            measured = {digest for digest, _ in known}
            cases = tuple(planned for planned in cases if planned.case.digest not in measured)
        elif not plan.repeats:
            begun = first_rounds(scheduler, cases)
        in_rounds = [planned for few in begun for planned in few]
        order = measure([planned for planned in cases if planned not in in_rounds])
        for few in begun:
            order += [(planned, 1) for planned in few]
            before_stop = [known[key] for planned in few if (key := (planned.case.digest, 1)) in known]
            if len(before_stop) < len(few):
                observer.discarded(before_stop)
                add(hold_first_round(scheduler, few))
        plain = plain_ways(cases, known)
        for planned, _ in plain:
            observer.remark(f"{planned.case.label}: {planned.note}")
        rounds = not plan.repeats and not job.given_up
        raced = {planned.case.work for planned, repeat in order if known[planned.case.digest, repeat].ranked and rounds}
        order += measure([planned for planned, _ in plain if planned.case.work not in raced])
        if rounds:
            screened = [(planned, known[planned.case.digest, repeat]) for planned, repeat in order]
            stand_ins = [(planned, record) for planned, record in plain if planned.case.work in raced]
            hold_rounds(scheduler, screened, stand_ins, [record for record in before if record.repeat])


def plain_ways(cases: Sequence[Planned], known: Mapping[tuple[str, int], Record]) -> list[tuple[Planned, Record]]:
    """Return the plain ways to measure in place of recommended ones that failed where the plain ones may run.

    Each has the record of the way that failed.
    """
    first = {digest: record for (digest, repeat), record in known.items() if repeat <= 1}
    tried = [(planned.fallback, first.get(planned.case.digest)) for planned in cases]
    found = {
        plain.case.digest: (plain, record)
        for plain, record in tried
        if plain and record and not record.ranked and record.status != "timed out"
        if record.phases and record.phases[-1].name not in ("load", "export")
    }
    return list(found.values())


def _cut_short(plan: Plan, under_way: UnderWay) -> None:
    """Says so in the records of a race that had just begun, which look like those of one that is over."""
    records, folders = under_way.gathered.records, under_way.gathered.folders
    if not plan.repeats and not any(record.repeat > 1 for record in records):
        for record in records:
            Store.save(folders[record.id], replace(record, facts={**record.facts, CUT_SHORT: True}))


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
