"""A run of ``inferlens bench``: the cases of a plan are measured, then the fastest ones race.

:func:`run` is the table of contents. It runs on this machine; ``remote`` starts the same on other workers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from inferlens.execution.cases import Environments, ModelHandle, cases_of, live_files, race_plan
from inferlens.execution.protocol import Observer, PlannedCase, ResultCollector
from inferlens.execution.race import first_round_groups, hold_rounds, measure_rounds, screening_budget
from inferlens.execution.resume import RunState, mark_if_cut_short, reuse_earlier
from inferlens.execution.scheduler import MeasureOptions, Process, Scheduler, open_scheduler
from inferlens.record.record import Record
from inferlens.record.store import lock_folder, safe_name
from inferlens.spec.plan import Plan


def run(plan: Plan, observer: Observer, model: ModelHandle | None = None) -> list[Record]:
    """Measure every case of ``plan``; a record is on disk before the next case starts.

    A case is measured once, by itself. The cases that may be the fastest then meet in rounds, unless the plan gives a
    number of repeats. Records of earlier runs of the same request are used again. Return the records in the order in
    which they ended.
    """
    results = ResultCollector(observer)
    results.doing("looking at models and backends")
    plan = race_plan(plan)
    cases = cases_of(plan, model)
    results.planned([planned for planned, _ in measuring_order(cases, plan.repeats, plan.seed)])
    environments = Environments()
    with alone_in_folders(plan, cases), mark_if_cut_short(plan, results):
        state = reuse_earlier(RunState(), "bench", plan, cases, model, environments, results)
        with open_scheduler(plan, results, cases, live_files(model), state, environments) as scheduler:
            measure_cases(scheduler, cases)
    return results.records


def measure_cases(scheduler: Scheduler, cases: Sequence[PlannedCase]) -> None:
    """Measure cases and let them race; on the CPU they begin with a round, elsewhere they are measured one by one."""
    results, plan = CaseResults(scheduler), scheduler.plan
    groups = []
    if not plan.repeats:
        new = [planned for planned in cases if planned.case.work not in scheduler.state.run_by_work]
        groups = first_round_groups(scheduler, new)
    begin_with_round = list(itertools.chain.from_iterable(groups))
    order = measuring_order(cases, plan.repeats, plan.seed)
    results.measure([(planned, repeat) for planned, repeat in order if planned not in begin_with_round])
    for group in groups:
        results.add(measure_rounds(scheduler, [(planned, 1) for planned in group], in_turns=True))
    stand_ins = stand_ins_of(cases, results)
    for planned in stand_ins:
        scheduler.observer.remark(f"{planned.case.label}: {planned.note}")
    results.measure(measuring_order(stand_ins, plan.repeats, plan.seed))
    if not plan.repeats:
        first_records = [(planned, results.first_record(planned)) for planned in (*cases, *stand_ins)]
        hold_rounds(scheduler, [(planned, record) for planned, record in first_records if record])


class CaseResults:
    """The records of cases that were measured in this run or an earlier one, by case and repeat."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.records: dict[tuple[str, int], Record] = {}
        self.add(scheduler.state.records)

    def add(self, records: Iterable[Record]) -> None:
        self.records |= {(record.case.digest, record.repeat): record for record in records}

    def measure(self, order: Sequence[Process]) -> None:
        """Measure the processes that have no record yet, one by one."""
        plan = self.scheduler.plan
        missing = [(planned, repeat) for planned, repeat in order if not self._has_record(planned, repeat)]
        budget = None if plan.repeats > 1 else screening_budget(plan.budget)
        self.add(self.scheduler.measure_one_by_one(missing, MeasureOptions(budget=budget)))

    def first_record(self, planned: PlannedCase) -> Record | None:
        """Return the first record of a case: measured by itself, or in the first round."""
        records = (self.records.get((planned.case.digest, repeat)) for repeat in (0, 1))
        return next(filter(None, records), None)

    def _has_record(self, planned: PlannedCase, repeat: int) -> bool:
        if self.scheduler.plan.repeats:
            return (planned.case.digest, repeat) in self.records
        return self.first_record(planned) is not None


def stand_ins_of(cases: Sequence[PlannedCase], results: CaseResults) -> list[PlannedCase]:
    """Return the plain cases to measure in place of recommended ones that crashed, or failed with a loaded model."""
    stand_ins: dict[str, PlannedCase] = {}
    for planned in cases:
        plain, record = planned.fallback, results.first_record(planned)
        if plain is None or record is None or record.ranked or record.status == "timed out":
            continue
        loaded = record.phases and record.phases[-1].name not in ("load", "export")
        if loaded or record.status == "crashed":  # a process that crashed has reported no phases
            stand_ins[plain.case.digest] = plain
    return list(stand_ins.values())


def measuring_order(cases: Sequence[PlannedCase], repeats: int, seed: int) -> list[Process]:
    """Return the cases ``repeats`` times, in rounds of random order, so that heat affects all alike.

    Without repeats the order is that of the plan. A case that cannot run is listed once.
    """
    if repeats <= 1:
        return [(planned, 0) for planned in cases]
    order = []
    shuffle = random.Random(seed)
    for repeat in range(repeats):
        runnable = [planned for planned in cases if repeat == 0 or not planned.refusal]
        order += [(planned, repeat) for planned in shuffle.sample(runnable, len(runnable))]
    return order


@contextmanager
def alone_in_folders(plan: Plan, cases: Sequence[PlannedCase]) -> Iterator[None]:
    """Keep the folders of the models to this process; two runs at once would disturb one another."""
    with ExitStack() as stack:
        for name in sorted({safe_name(planned.model.name) for planned in cases}):
            stack.enter_context(lock_folder(Path(plan.output) / name))
        yield
