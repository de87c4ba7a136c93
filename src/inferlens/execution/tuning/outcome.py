"""What follows from a tuning's rounds: how every candidate stands to the winner, what settings cost, what was left out.

How candidates stand is what the rounds of the search say, put together by the same model that the search goes by
(``stats.gaussian_process``), what breaks a limit included: it was timed. The finals are not among them, for the answer
is theirs alone. What settings do is what all rounds say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from msgspec.structs import replace

from inferlens.analysis.measures import violations
from inferlens.analysis.race import log_cost
from inferlens.analysis.tuning import Candidate, Effect, SkippedCandidate, Trial
from inferlens.backends import BACKENDS, importable
from inferlens.execution.tuning.space import Space, Tried, as_asked, asked_for, combined
from inferlens.record.record import Record
from inferlens.spec.case import PRECISIONS, Case
from inferlens.spec.objective import Constraint, Objective
from inferlens.spec.plan import Plan
from inferlens.stats.intervals import normal_quantile
from inferlens.stats.search_model import Observation, Point, predict, setting_effects

PointOf = Callable[[Case], Point]


def candidates(
    trials: Sequence[Trial],
    best: Case | None,
    objective: Objective,
    constraints: Sequence[Constraint],
    point: PointOf,
) -> tuple[Candidate, ...]:
    """All that were measured: the finalists, what is slower, what could not win; in each of these the best first."""
    first: dict[str, Record] = {}
    out: dict[str, str] = {}
    final = {record.case.digest for trial in trials if trial.final for record in trial.records}
    for trial in trials:
        for record in trial.records:
            digest = record.case.digest
            first.setdefault(digest, record)
            if trial.final == (digest in final) and (why := _why_out(record, () if trial.final else constraints)):
                out.setdefault(digest, why)
    for record in barred(trials, constraints):
        if record.case != best:
            out.setdefault(record.case.digest, _why_out(record, constraints))
    against = _against(trials, best, objective, point)
    found = []
    for digest, record in first.items():
        speedup, low, high = against.get(point(record.case), (None, None, None))
        settings = tuple(sorted(point(record.case).settings))
        found.append(
            Candidate(
                record=record.id, settings=settings, speedup=speedup, low=low, high=high,
                rejection=out.get(digest, ""), final=digest in final,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda each: (not each.final, bool(each.rejection), -(each.speedup or 0.0))))


def barred(trials: Sequence[Trial], constraints: Sequence[Constraint]) -> list[Record]:
    """Of each case that broke a limit when it first ran right, in the search, the record of that."""
    first: dict[str, Record] = {}
    for record in (record for trial in trials if not trial.final for record in trial.records if record.ranked):
        first.setdefault(record.case.digest, record)
    return [record for record in first.values() if violations(record, constraints)]


def _why_out(record: Record, constraints: Sequence[Constraint]) -> str:
    """Why a record could not be the best; empty where it could."""
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    if not record.ranked and record.agreement:
        return f"wrong outputs: {record.agreement.reason}"
    return next((each.sentence for each in violations(record, constraints)), "")


def _against(
    trials: Sequence[Trial], best: Case | None, objective: Objective, point: PointOf
) -> dict[Point, tuple[float, float, float]]:
    """How many times as fast as the best each one is that the search has timed, with a 95 % interval."""
    seen = _seen([trial for trial in trials if not trial.final], objective, point)
    if best is None or not seen:
        return {}
    points = list(dict.fromkeys([point(best), *(each.point for each in seen)]))
    belief, wide = predict(seen, points), normal_quantile(0.975)
    found = {}
    for place, each in enumerate(points):
        log = float(belief.mean[0] - belief.mean[place])
        spread = wide * math.sqrt(max(belief.difference_variance(0, place), 0.0))
        found[each] = (math.exp(log), math.exp(log - spread), math.exp(log + spread))
    return found


def _seen(trials: Sequence[Trial], objective: Objective, point: PointOf) -> list[Observation]:
    """What rounds have timed."""
    return [
        Observation(point(record.case), log, number)
        for number, trial in enumerate(trials)
        for record in trial.records
        if record.ranked and (log := log_cost(objective, record)) is not None
    ]


def effects(
    trials: Sequence[Trial], best: Case, objective: Objective, point: PointOf, space: Space
) -> tuple[Effect, ...]:
    """What each setting of the best does, and others that may be beside those, by all rounds, the finals too."""
    chosen, took, found = point(best), _build_seconds(trials, point), []
    free = {name: values for name, values in space.values(best).items() if name not in space.settings(best)}
    each = [(name, value) for name, values in free.items() for value in values]
    beside = {f"{name}={value}" for name, value in each if as_asked(combined(best, {name: value}), best, {name: value})}
    for name, effect in setting_effects(_seen(trials, objective, point), chosen).items():
        if name not in chosen.settings | beside:  # it takes the place of one of them
            continue
        speedup, low, high = effect or (None, None, None)
        longer = _longer_build(took, chosen.family, name)
        kept = name in chosen.settings
        found.append(Effect(setting=name, speedup=speedup, low=low, high=high, build=longer, chosen=kept))
    return tuple(found)


def _build_seconds(trials: Sequence[Trial], point: PointOf) -> dict[Point, list[float]]:
    """How long each was built, without the export, which is the same for all of them, and what was cached."""
    took: dict[Point, list[float]] = {}
    for record in (record for trial in trials for record in trial.records):
        built = [phase.seconds for phase in record.phases if phase.name == "build" and phase.note != "cached"]
        if built:
            took.setdefault(point(record.case), []).append(sum(built))
    return took


def _longer_build(took: Mapping[Point, list[float]], family: str, setting: str) -> float | None:
    """How many seconds longer a build of a family takes with a setting: of what was built with it and without."""
    pairs = [(each, Point(family, each.settings - {setting})) for each in took if setting in each.settings]
    more = [mean(took[one]) - mean(took[other]) for one, other in pairs if one.family == family and other in took]
    return mean(more) if more else None


def untried(space: Space, what: Tried, plan: Plan) -> tuple[SkippedCandidate, ...]:
    """Backends and precisions of which no family was tried, what the request left out first; ``what`` it left.

    What neither it nor the plan left out does not take such a model.
    """
    within = _words(asked_for(plan, what))
    labels = [each.case.backend_label for each in space.families]
    refused = [each.case.backend_label for each in space.refused]
    every = [f"{each.name}:{variant}".rstrip(":") for each in importable() for variant in each.variants]
    others = {each.name for each in importable() if [*each.reference_for] != [each.name]}  # that takes its own alone
    whole = others - {label.partition(":")[0] for label in (*labels, *refused)}
    names = [each for each in every if each.partition(":")[0] in others - whole and each not in (*labels, *refused)]
    alike = {name for each in space.families for name in names if _runs_as(name, each.case) == each.case.backend_label}
    names = [each for each in names if each not in alike]
    known = {each.case.precision for each in (*space.families, *space.refused)}
    names = [*(each for each in PRECISIONS if each not in known), *sorted(whole), *names]
    asked = _words(what)
    found = [
        SkippedCandidate(name=name, hint="" if name in asked else "--only")
        for name in names
        if name not in asked or name not in within
    ]
    tried = {(each.case.backend_label, each.case.precision) for each in space.families}
    for each in space.refused:
        label = each.case.backend_label
        name = label if label not in labels else f"{label} {each.case.precision}"
        if each.refusal and (label, each.case.precision) not in tried:
            found.append(SkippedCandidate(name=name, reason=each.refusal.what, hint=each.refusal.hint))
    return tuple({each.name: each for each in reversed(found)}.values())[::-1]


def _words(what: Tried) -> set[str]:
    """Names of all that is tried."""
    return {*what.precisions, *what.labels, *(label.partition(":")[0] for label in what.labels)}


def _runs_as(label: str, case: Case) -> str:
    """The label of what a variant would run as in place of the case's; its own, where the case is another backend's."""
    name, _, variant = label.partition(":")
    if name != case.backend:
        return label
    return BACKENDS.get(name).effective(replace(case, variant=variant)).backend_label


def unreached(space: Space, trials: Sequence[Trial]) -> list[SkippedCandidate]:
    """Backends of which no family was tried because the time was over, and precisions of others."""
    met = [record.case for trial in trials for record in trial.records]
    digests, labels = {case.digest for case in met}, {case.backend_label for case in met}
    left = [each.case for each in space.families if each.case.digest not in digests]
    names = [each.backend_label + f" {each.precision}" * (each.backend_label in labels) for each in left]
    return [
        SkippedCandidate(name=name, reason="time was over", hint="a longer --budget") for name in dict.fromkeys(names)
    ]
