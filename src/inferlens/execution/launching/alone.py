"""What workers on one machine do to each other: the reference alone, and beside the others.

They have cores and a GPU of their own, and share memory, caches, power and the bus. So when all else is over one case
that was measured beside the others is measured once more, while nothing else runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from msgspec.structs import replace

from inferlens.analysis.samples import latencies
from inferlens.errors import InferlensError
from inferlens.execution.expand import Planned
from inferlens.execution.launching.parts import CasesJob, UnderWay, scheduled_part
from inferlens.execution.protocol import Observer, PartJob
from inferlens.execution.rounds import references_of
from inferlens.record.record import Record
from inferlens.record.store import Store
from inferlens.stats.samples import median
from inferlens.units import plural, ratio

BESIDE = "beside others"  # the fact of the case that was measured both ways


class AloneJob(PartJob, frozen=True, kw_only=True):
    """Measure a case that is in no table."""

    planned: Planned


def alone(job: AloneJob, observer: Observer) -> Record:  # noqa: ARG001 - who would keep the record
    """The record of the case; nothing of it is kept."""
    with scheduled_part(job, Observer(), [job.planned]) as scheduler:
        record, folder = scheduler.measure(job.planned)
    shutil.rmtree(folder, ignore_errors=True)
    return record


def compare_alone(under_way: UnderWay, jobs: Sequence[CasesJob]) -> None:
    """Measures the reference of a worker's first race once more, alone; says how they compare, and keeps that."""
    worker = under_way.launcher.workers(1)[0]
    job = next((job for job in map(under_way.now, jobs) if job.gpu == worker.gpu), None)
    beside = _reference(under_way, job) if job and worker.neighbours and len(jobs) > 1 else None
    if not job or not beside:
        return
    plan = under_way.plan
    under_way.gathered.doing("the reference alone")
    planned = next(each for each in job.cases if each.case == beside.case)
    words = {"plan": replace(plan, accuracy="", wait=0.0), "planned": planned}
    try:
        (record,) = under_way.do(alone, [under_way.job(AloneJob, worker.kind, **words)])
    except InferlensError:  # all is measured that was asked for
        return
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
    able = [record for record in job.known if record.status == "ok" and latencies(record).samples]
    return min(able, key=lambda record: (record.repeat, record.case not in chosen), default=None)
