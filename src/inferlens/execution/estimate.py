"""How long the cases of a plan will take: from records of earlier runs, or else from what phases typically take."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from inferlens.errors import InferlensError
from inferlens.execution.expand import Planned
from inferlens.execution.measure_case import LATENCY_SHARE
from inferlens.record.record import IN_TURNS, Record
from inferlens.record.store import load_records, safe_name
from inferlens.spec.case import MAX_TIME
from inferlens.spec.plan import Plan
from inferlens.stats.quantiles import median

STARTING = 3.0  # seconds until a process has imported its libraries, which is in no phase
PREPARING = 6.0  # to load, export, build and call for the first time


def seconds_of(cases: Sequence[Planned], plan: Plan) -> list[float]:
    """Seconds that each case will take in one process, 0 where it cannot run.

    As long as the case itself took, or else others of its backend for this model, whose records are under
    ``plan.output``; or else as phases typically take, with half the time that series may have.
    """
    folders = {Path(plan.output) / safe_name(planned.found.name) for planned in cases}
    records: list[Record] = []
    for folder in folders:
        with suppress(InferlensError):
            records += [record for record in load_records(folder).records if record.status == "ok"]
    took: dict[str, list[float]] = {}
    for record in records:
        if IN_TURNS in record.facts:  # most of that time it waited for the others
            continue
        seconds = STARTING + sum(phase.seconds for phase in record.phases)
        for key in (record.case.digest, record.case.backend_label):
            took.setdefault(key, []).append(seconds)
    budget = plan.budget
    series = budget.seconds or (budget.max_time or MAX_TIME) / 2
    typical = STARTING + PREPARING + budget.warmup_seconds + series / LATENCY_SHARE
    return [
        0.0
        if planned.refusal
        else median(took.get(planned.case.digest) or took.get(planned.case.backend_label) or [typical])
        for planned in cases
    ]
