"""``inferlens tune --study``: one option alone. Its values race its default in rounds, with all else as the plan says.

A study is of one way of running a model: a backend's variant in a precision. Each value is measured once, by itself,
and built anew for that; then the values meet the default in rounds, until it is known of each how it compares.
The same study goes on where an earlier one was stopped, as a tuning does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from inferlens.analysis.race import Race
from inferlens.analysis.tuning import Trial
from inferlens.backends import BACKENDS, importable
from inferlens.backends.base import THREADS
from inferlens.errors import InferlensError, check_choice
from inferlens.execution.expand import Planned, backends_named, check_words, refuse_if_none_runs
from inferlens.execution.protocol import Observer
from inferlens.execution.rounds import BaseRule, Entrant, Rounds
from inferlens.execution.scheduler import Scheduler, scheduled
from inferlens.execution.survey import Named, expanded, live_files
from inferlens.execution.tuning.space import as_asked, combined
from inferlens.execution.tuning.trial_log import TrialLog, TrialRounds, content_of, place_of
from inferlens.record.record import Record
from inferlens.record.store import STUDY, TRIALS, safe_name
from inferlens.spec.case import AXES, Case, Option
from inferlens.spec.plan import Plan, count, texts
from inferlens.stats.comparison import Comparison
from inferlens.stats.intervals import ends
from inferlens.stats.race_rule import LEAST_ROUNDS
from inferlens.units import listing, ratio, ratio_range

FORM = "OPTION=VALUE,VALUE or BACKEND.OPTION=VALUE,VALUE"
MOST_NAMED = 4


class StudyRequest(Struct, frozen=True, kw_only=True):
    """What a study is asked for: values of a knob of a backend; ``budget`` is seconds for all of it."""

    plan: Plan
    backend: str
    knob: str
    values: tuple[Option, ...]
    budget: float = 600.0

    @property
    def name(self) -> str:
        """The knob, with its backend."""
        return f"{self.backend}.{self.knob}"

    @property
    def default(self) -> Option | None:
        """What the knob has by default; ``None``: what the library chooses."""
        return None if self.knob == THREADS else getattr(BACKENDS.get(self.backend).options(), self.knob)


class StudiedValue(Struct, frozen=True, kw_only=True):
    """One value: the records of its case, and its times against those of the default, where both ran right."""

    value: Option | None
    is_default: bool
    records: tuple[Record, ...]
    comparison: Comparison | None = None

    @property
    def text(self) -> str:
        """The value as a command has it."""
        return written(self.value)

    @property
    def verdict(self) -> str:
        """How it compares; empty where it does not."""
        return self.comparison.verdict if self.comparison else ""


class Study(Struct, frozen=True, kw_only=True):
    """How a study ended; ``values`` has the default too: numbers in their order, others as they were named."""

    request: StudyRequest
    values: tuple[StudiedValue, ...]
    threshold: float
    seconds: float


def written(value: Option | None) -> str:
    """A value as a command has it; ``None`` is what the library chooses."""
    return "default" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def requested(plan: Plan, text: str, budget: float) -> StudyRequest:
    """The study that ``KNOB=VALUE,VALUE`` means, where the plan's backends leave no doubt, or ``BACKEND.KNOB=...``.

    Raises InferlensError for a knob or a value that there is not, or a knob of several backends. Nothing is run for it.
    """
    name, _, said = (part.strip() for part in text.partition("="))
    values: Sequence[Any] = texts(said)
    if not name or not values:
        raise InferlensError(f"The study '{text}' names no values.", expected=FORM)
    backend, _, knob = name.rpartition(".")
    backend = backend or _only_backend_with(knob, plan)
    full = f"{backend}.{knob}"
    if full in plan.option or (knob == THREADS and plan.threads):
        raise InferlensError(f"The values of {knob} are given twice.", hint=f"--study {full}={said} alone")
    labels = [label for label in plan.backend if label.partition(":")[0] == backend]
    asked = {} if knob == THREADS else {full: tuple(values)}
    check_words(msgspec.structs.replace(plan, option={**asked, **plan.option}))
    plan = msgspec.structs.replace(plan, backend=tuple(labels) or (backend,))
    if knob == THREADS:
        values = [count(THREADS, value) for value in values]
    else:
        cases = [Case(model="", backend=backend, options={knob: value}) for value in values]
        values = [getattr(BACKENDS.get(backend).parse_options(case), knob) for case in cases]
    request = StudyRequest(plan=plan, backend=backend, knob=knob, values=tuple(dict.fromkeys(values)), budget=budget)
    if request.values == (request.default,):
        raise InferlensError(f"{said} is the default of {full}.", expected="another value, to compare with it")
    return request


def run(request: StudyRequest, observer: Observer, model: Named | None = None) -> Study:
    """Measures the default and each value; the records are kept as those of ``inferlens bench`` are.

    What an earlier run of the same study has measured is not measured again. Raises InferlensError if several ways of
    running the model are left, none can run here, or the knob does nothing.
    """
    observer.doing("looking at models and backends")
    base = _base(request, model)
    default = request.default
    values = [*([] if default in request.values else [default]), *request.values]
    if all(isinstance(each, (int, float)) for each in values):
        values.sort(key=lambda each: each or 0)
    cases = [replace(base, case=base.case if each == default else _set(request, base.case, each)) for each in values]
    observer.planned(cases)
    with scheduled(request.plan, observer, cases, live_files(model)) as scheduler:
        plan, begin = msgspec.structs.replace(request.plan, wait=0.0), time.monotonic()
        asked, content = msgspec.structs.replace(request, budget=0.0, plan=plan), content_of(base.found.spec, plan)
        about = [asked, place_of(scheduler, base.case), base.found, content]
        home = Path(request.plan.output) / safe_name(base.found.name) / STUDY
        kept = TrialLog(home / TRIALS, about, request.budget, model, observer)
        before, begin = kept.trials[:], begin - kept.seconds
        if before:
            scheduler.id = before[0].records[0].run  # of which all records are
        entrants = []
        for planned in cases:
            record = before.pop(0).records[0] if before else _first(scheduler, planned, kept)
            entrants.append(Entrant(planned, [record]))
        rule = SweepRule(entrants, values, values.index(default), request.knob)
        rounds = Rounds(scheduler, entrants, begin + request.budget, rule, TrialRounds(kept, before))
        race = rounds.run()
        threshold, found = race.threshold, rule.comparisons(race)
    return Study(
        request=request,
        values=tuple(
            StudiedValue(
                value=value,
                is_default=value == default,
                records=tuple(each.records),
                comparison=found.get(each.id),
            )
            for value, each in zip(values, entrants, strict=True)
        ),
        threshold=threshold,
        seconds=time.monotonic() - begin,
    )


def _first(scheduler: Scheduler, planned: Planned, kept: TrialLog) -> Record:
    """The record of a case that is measured by itself."""
    tick = time.monotonic()
    scheduler.builds_anew = True
    record, _ = scheduler.measure(planned)
    scheduler.builds_anew = False
    kept.add(Trial(records=(record,), seconds=time.monotonic() - tick))
    return record


class SweepRule(BaseRule):
    """Compares the values of a knob with its default, until each has a verdict."""

    def __init__(self, entrants: Sequence[Entrant], values: Sequence[Option | None], place: int, knob: str) -> None:
        super().__init__(entrants[place])
        self.entrants, self.values, self.knob = entrants, values, knob

    def comparisons(self, race: Race) -> Mapping[str, Comparison]:
        """Return the verdict on each value against the default, of those that ran right."""
        base = self.base.id
        if base not in race.ranked:
            return {}
        return {name: race.comparison(base, name) for name in race.ranked if name != base}

    def summary(self, race: Race, entrants: Mapping[str, Entrant]) -> str:  # noqa: ARG002
        """Return the value that gains most against the default, in a few words."""
        comparisons = self.comparisons(race)
        name = max(comparisons, key=lambda name: comparisons[name].speedup or 0.0, default="")
        if not name:
            return ""
        value = next(value for value, each in zip(self.values, self.entrants, strict=True) if each.id == name)
        interval = comparisons[name].speedup_interval
        sure = f" ({ratio_range(*ends(interval))})" if race.rounds >= LEAST_ROUNDS else ""
        return f"{self.knob}={written(value)} {ratio(comparisons[name].speedup)} the default{sure}"


def _only_backend_with(knob: str, plan: Plan) -> str:
    """The one backend of the plan that has the knob; the fake one only where it or a model of it is named."""
    named, asked = backends_named(plan), {each.partition(":")[0] for each in (*plan.backend, *plan.model)}
    able = [each for each in importable() if each.name in named]
    able = [each for each in able if "fake" not in each.reference_for or each.name in asked]
    options = {each.name: (THREADS, *each.options.__struct_fields__) for each in able}
    check_choice("knob", knob, sorted(set().union(*options.values())))
    having = [name for name, known in options.items() if knob in known]
    if len(having) > 1:
        what = f"Several backends have {knob}: {listing(having)}."
        raise InferlensError(what, expected="one of them", hint=f"--backend NAME, or BACKEND.{knob}=VALUE,VALUE")
    return having[0]


def _base(request: StudyRequest, model: Named | None) -> Planned:
    """The one case that the plan leaves, with the knob at its default."""
    planned = expanded(request.plan, model)
    refuse_if_none_runs(planned)
    able = [each for each in planned if not each.refusal]
    if len(able) > 1:
        cases = [each.case for each in able]
        varied = [axis.name for axis in AXES if len({getattr(case, axis.name) for case in cases}) > 1]
        words = [f"--{name} {getattr(cases[0], name)}" for name in varied]
        words += [f"--backend {cases[0].backend_label}"] * (len({case.variant for case in cases}) > 1)
        labels = listing([case.label for case in cases[:MOST_NAMED]]) + " and more" * (len(cases) > MOST_NAMED)
        what = f"A study is of one way of running one model, and {len(able)} are left: {labels}."
        raise InferlensError(what, expected="one", hint=" ".join(words))
    return replace(able[0], case=combined(able[0].case, {}))


def _set(request: StudyRequest, base: Case, value: Option | None) -> Case:
    """The case with the knob at a value.

    Raises InferlensError if it would be run as another one: beside other options, or on this device, it does nothing.
    """
    found = combined(base, {request.knob: value})
    if value is not None and as_asked(found, base, {request.knob: value}):
        return found
    knobs = [each for each in BACKENDS.get(request.backend).knobs if each.name == request.knob]
    needs = [each for knob in knobs for each in knob.needs if each not in base.options]
    what = f"{request.knob}={written(value)} does nothing for {base.label}."
    hint = f"--option {request.backend}.{needs[0]}=VALUE" if needs else f"inferlens backends {request.backend}"
    raise InferlensError(what, hint=hint)
