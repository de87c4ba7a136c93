"""What workers on one machine do to each other: the reference alone, and beside the others.

They have cores and a GPU of their own, and share memory, caches, power and the bus. So when all else is over one case
that was measured beside the others is measured once more, while nothing else runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from inferlens.analysis.interference.samples import latencies
from inferlens.execution.expand import Planned
from inferlens.execution.launching.parts import CasesJob, UnderWay, scheduled_part
from inferlens.execution.protocol import Observer, PartJob
from inferlens.execution.rounds import references_of
from inferlens.record.record import Record
from inferlens.record.store import Store
from inferlens.stats.quantiles import median
from inferlens.units import plural, ratio

BESIDE = "beside others"  # the fact of the case that was measured both ways


class AloneJob(PartJob, frozen=True, kw_only=True):
    """Measure a case that is in no table."""

    planned: Planned


def alone(job: AloneJob, observer: Observer) -> Record:
    """The record of the case; nothing of it is kept."""
    with scheduled_part(job, observer, [job.planned]) as scheduler:
        record, folder = scheduler.measure(job.planned)
    shutil.rmtree(folder, ignore_errors=True)
    return record


def compare_alone(under_way: UnderWay, jobs: Sequence[CasesJob]) -> None:
    """Measures the reference of what ran first once more, alone; says how it compares, and keeps that in its record."""
    worker, job = next(((worker, job) for worker, job in under_way.first.items() if worker.neighbours), (None, None))
    if not worker or not job or len(jobs) < 2:
        return
    plan = under_way.plan
    beside = _reference(under_way, job)
    if not beside:
        return
    under_way.gathered.doing("the reference alone")
    planned = next(each for each in job.cases if each.case == beside.case)
    with ThreadPoolExecutor(1) as pool:  # a worker's thread keeps to its own CPUs
        words = {"plan": replace(plan, accuracy=""), "run": "", "planned": planned}
        record = pool.submit(worker.do, alone, under_way.job(AloneJob, worker.kind, **words), Observer()).result()
    times = latencies(beside).samples, latencies(record).samples
    if not all(times):
        return
    found = median(times[0]) / median(times[1])
    folder = under_way.gathered.folders[beside.id]
    Store.save(folder, replace(beside, facts={**beside.facts, BESIDE: {"others": worker.neighbours, "ratio": found}}))
    more = ": they disturb each other" if abs(found - 1) > plan.budget.threshold else ""
    others = plural(worker.neighbours, "other worker")
    said = f"{beside.case.label} took {ratio(found)} as long beside {others} as alone{more} (one process each)."
    under_way.gathered.remark(said)


def _reference(under_way: UnderWay, job: CasesJob) -> Record | None:
    """The first record of a case that others of a part are compared with, or else of any case, with latencies."""
    chosen = references_of(job.cases, under_way.plan.reference)
    able = [record for record in under_way.now(job).known if record.status == "ok" and latencies(record).samples]
    return min(able, key=lambda record: (record.repeat, record.case not in chosen), default=None)
