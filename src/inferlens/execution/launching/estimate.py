"""How long the cases of a plan will take: from records of earlier runs, or else from what phases typically take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from inferlens.backends import BACKENDS
from inferlens.errors import InferlensError
from inferlens.execution.expand import Planned
from inferlens.execution.measure_case import LATENCY_SHARE
from inferlens.record.record import IN_TURNS, Record
from inferlens.record.store import load_records, safe_name
from inferlens.spec.case import MAX_TIME, Case
from inferlens.spec.plan import Plan
from inferlens.stats.samples import median

STARTING = 1.0  # seconds until a process has imported its libraries, as far as that is in no phase
PREPARING = 6.0  # to load, export, build and call for the first time
PREPARATION = ("load", "export", "build", "first inference")


def seconds_of(cases: Sequence[Planned], plan: Plan) -> list[float]:
    """Seconds that each case will take in one process, 0 where it cannot run."""
    seconds = estimator([planned.found.name for planned in cases], plan)
    return [0.0 if planned.refusal else seconds(planned.case) for planned in cases]


def estimator(models: Iterable[str], plan: Plan) -> Callable[[Case], float]:
    """What tells the seconds that a case of these models will take in one process, by records under ``plan.output``."""
    records: list[Record] = []
    for folder in {Path(plan.output) / safe_name(name) for name in models}:
        with suppress(InferlensError):
            records += load_records(folder).records
    return seconds_by(records, plan)


def seconds_by(records: Iterable[Record], plan: Plan) -> Callable[[Case], float]:
    """What tells the seconds that a case will take in one process, by records of the same model.

    As long as the case itself took, or else others of its backend; or else as phases typically take, with half the time
    that series may have. What others took to prepare counts as many times as the case's options make it longer.
    """
    budget = plan.budget
    series = budget.seconds or (budget.max_time or MAX_TIME) / 2
    typical = PREPARING, STARTING + budget.warmup_seconds + series / LATENCY_SHARE
    whole: dict[str, list[float]] = {}
    parts: dict[str, list[tuple[float, float]]] = {}  # by backend: to prepare without options, and the rest
    in_turns: dict[str, list[tuple[float, float]]] = {}
    for record in (each for each in records if each.status == "ok"):
        seconds = STARTING + sum(phase.seconds for phase in record.phases)
        prepared = sum(phase.seconds for phase in record.phases if phase.name in PREPARATION)
        plain = prepared / build_factor(record.case)
        if IN_TURNS in record.facts:  # most of the rest it waited for the others
            in_turns.setdefault(record.case.backend_label, []).append((plain, typical[1]))
            continue
        whole.setdefault(record.case.digest, []).append(seconds)
        parts.setdefault(record.case.backend_label, []).append((plain, seconds - prepared))

    def seconds_for(case: Case) -> float:
        if case.digest in whole:
            return median(whole[case.digest])
        factor, label = build_factor(case), case.backend_label
        known = parts.get(label) or in_turns.get(label) or [typical]
        return median([prepared * factor + rest for prepared, rest in known])

    return seconds_for


def build_factor(case: Case) -> float:
    """How many times longer preparing a case takes than with its backend's defaults, about; 1 where nobody knows."""
    try:
        backend = BACKENDS.get(case.backend)
        case = backend.effective(case)
    except InferlensError:  # of a record from elsewhere
        return 1.0
    acting = {knob.name: knob.build for knob in backend.knobs if knob.setting(case) is not None and knob.fits(case)}
    return math.prod(acting.values()) * backend.slow_variants.get(case.variant or "", 1.0)
