"""``inferlens tune``: a search for the fastest right way of running a model, and rounds of fresh builds that prove it.

Each round of the search measures some candidates beside the best so far. Their processes build side by side and are
timed in turns, with short series. Candidates that fail or have wrong outputs are out before they are timed. The few
that may be the fastest then meet the best of ``inferlens bench`` and the reference in the finals, which alone decide.

A round is kept as soon as it is over, and the next one depends on the kept rounds alone, so the same command goes on
where an earlier one was stopped.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median_low

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.measures import includes_export, measure_value, violation_factors, violations
from inferlens.analysis.race import FinalsAim, RaceAnswer, log_cost
from inferlens.analysis.tuning import REPORT, Trial, TuningReport, save_tuning
from inferlens.errors import InferlensError
from inferlens.execution.expand import Planned
from inferlens.execution.launching.estimate import build_factor, seconds_by
from inferlens.execution.protocol import Observer
from inferlens.execution.rounds import (
    REFERENCE_ROUNDS,
    Entrant,
    Rounds,
    budget_of_rounds,
    records_of_rounds,
    rounds_at_once,
)
from inferlens.execution.scheduler import SPARE, TYPICAL_MEMORY, Scheduler, scheduled
from inferlens.execution.survey import Named, live_files
from inferlens.execution.tuning import outcome
from inferlens.execution.tuning.advice import advised, paid
from inferlens.execution.tuning.finals import FinalsRule
from inferlens.execution.tuning.search import LEAST_GROUP, Candidates, Search
from inferlens.execution.tuning.space import Space, Tried, size
from inferlens.execution.tuning.trial_log import WORK, TrialLog, TrialRounds, clear, content_of, folders_of, place_of
from inferlens.limits import memory_left
from inferlens.measure.monitor.cpu import usable_cpus
from inferlens.models.resolve import files_of
from inferlens.record.record import IN_TURNS, MEMORY_APART, RANDOM, Artefact, Record
from inferlens.record.store import BEST, RECORD, TRIALS, TUNING, Store, alone_in, read_record, safe_name
from inferlens.spec.case import Budget, Case
from inferlens.spec.objective import Constraint, Objective
from inferlens.spec.plan import Plan, Where, as_plan
from inferlens.stats.search_model import Point

TIMED = ("latency", "latency.p95", "latency.p99", "throughput")
TAIL_SAMPLES = 200  # of a process: a p99 of fewer is hardly more than the longest of them
SERIES, SERIES_ON_GPU = 1.0, 0.5  # seconds of a process of the search: processes differ by more than longer ones tell
WARMUP = 0.2  # seconds of a process of the search
FINALS = 0.5  # of the time, at most, that the search leaves for the finals
LEAST_PATIENCE = 30.0  # seconds of a process
PATIENCE = 5  # times what other processes of the family needed, beside that
FIRST_OF_FAMILY = 0.25  # of the time that a tuning has, for the first process of a family


class Request(Struct, frozen=True, kw_only=True):
    """What a tuning is asked for; ``budget`` is seconds for all of it."""

    plan: Plan
    objective: Objective
    constraints: tuple[Constraint, ...] = ()
    budget: float = 600.0

    @property
    def measures(self) -> set[str]:
        """Names of all that is aimed at or limited."""
        return {self.objective.name, *(each.name for each in self.constraints)}


def run(
    request: Request, what: Tried, space: Space, home: Path, observer: Observer, model: Named | None, seconds: float
) -> TuningReport:
    """Tunes one model at one batch size: the search and the finals in a space, which is ``what`` of it runs here.

    What it keeps lies in the folder ``home``; ``model`` is the plan's, where it is a live one; ``seconds`` are its
    share of the budget.
    """
    work = home / TUNING / WORK
    plan = replace(request.plan, output=str(work))
    with alone_in(home), scheduled(plan, observer, space.families, live_files(model)) as scheduler:
        where = {each.case.python: place_of(scheduler, each.case) for each in space.families}
        asked = replace(request, budget=0.0, plan=replace(request.plan, output="", where=Where(), wait=0.0))
        found = space.families[0].found
        about = [asked, what, where, found, content_of(found.spec, request.plan)]
        kept = TrialLog(home / TUNING / TRIALS, about, request.budget, model, observer)
        before = home / TUNING / REPORT
        if not kept.trials and before.exists():
            before.unlink()
        clear(work / safe_name(found.name), kept)
        tuned = Tuner(request, scheduler, what, space, kept, home, seconds).run()
    save_tuning(tuned, home / TUNING)
    shutil.rmtree(work, ignore_errors=True)
    for folder in (home / TUNING, home / BEST):
        if folder.exists():
            observer.kept(folder)
    return tuned


def budget_for(budget: Budget, measures: Collection[str], series: float | None = None) -> Budget:
    """What a process of a round measures, so that everything is known that is aimed at or limited.

    ``series`` are the seconds of a process of the search; ``None`` is as in other races.
    """
    modes = {"throughput" if name == "throughput" else "latency" for name in measures if name in TIMED} or {"latency"}
    mode = "both" if len(modes) > 1 else min(modes)
    if budget.explicit or "energy" in measures:  # which is not known well enough of a short series
        return replace(budget, mode=mode)
    found = replace(budget_of_rounds(budget), mode=mode)
    if series:
        longest = min(series, found.max_time or series)
        found = replace(found, warmup_seconds=min(WARMUP, found.warmup_seconds), max_time=longest)
    return replace(found, iterations=TAIL_SAMPLES, max_time=None) if "latency.p99" in measures else found


@dataclass
class Tuner:
    """One tuning under way; ``home`` is the model's folder, ``share`` the seconds that it has."""

    request: Request
    scheduler: Scheduler
    what: Tried
    space: Space
    kept: TrialLog
    home: Path
    share: float
    begin: float = field(default_factory=lambda: time.monotonic())
    first: dict[str, Record] = field(default_factory=dict)  # of each case that ran, by its digest

    def __post_init__(self) -> None:
        self.candidates = Candidates(self.space)
        self.measures = self.request.measures
        series = SERIES_ON_GPU if self._on_gpu else SERIES
        self.scheduler.round_budget = budget_for(self.request.plan.budget, self.measures, series)
        self.scheduler.looks_at_kernels = self.scheduler.round_budget.mode == "latency"
        self.scheduler.one_at_a_time = "energy" in self.measures or (self._on_gpu and "memory" in self.measures)
        self.scheduler.tells_all = True
        known = (record for trial in self.kept.trials for record in trial.records)
        self.scheduler.accuracies |= {record.case.digest: each for record in known if (each := record.accuracy)}
        self.begin -= self.kept.seconds

    @property
    def _on_gpu(self) -> bool:
        return self.space.families[0].case.device != "cpu"

    @cached_property
    def search(self) -> Search:
        """The search, with the rounds of earlier runs. A round holds one candidate for every two CPUs."""
        self.seconds = seconds_by((), self.scheduler.plan)
        point, recommended = self.candidates.point, self.space.recommended
        usual = {case.precision for case in self.space.references[:1]} or {case.precision for case in recommended[:1]}
        first = [case for case in recommended if case.precision in usual]
        first = [*self.space.references[:1], *first]
        families = [*recommended, *(each.case for each in self.space.families)]
        search = Search(
            first=list(dict.fromkeys(map(point, first))),
            families=list(dict.fromkeys(map(point, families))),
            neighbours=self.candidates.neighbours,
            cost=lambda point: self._cost(self.candidates.cases[point]),
            group=min(max(LEAST_GROUP, len(usable_cpus()) // 2), 3 * LEAST_GROUP),
        )
        for trial in self.kept.trials:
            if not trial.final:
                self._learn(search, trial.records)
        return search

    def _cost(self, case: Case) -> float:
        """Seconds, and more for a build that takes longer than others, as those of its round wait for it."""
        return self.seconds(case) * build_factor(case)

    def run(self) -> TuningReport:
        """The search, then the finalists' rounds."""
        before = [trial for trial in self.kept.trials if trial.final]
        search = self.search
        self.scheduler.patience = self._patience
        over = not search.propose() if before else self._searched()
        self.scheduler.patience = lambda _: math.inf  # who has run may build anew for as long as that takes
        self.scheduler.looks_at_kernels = False
        known = budget_for(self.request.plan.budget, self.measures)
        self.scheduler.round_budget = None if known == budget_of_rounds(self.request.plan.budget) else known
        cases = self._finalists(before)
        barred = {record.case.digest for record in outcome.barred(self.kept.trials, self.request.constraints)}
        if all(case.digest in barred for case in cases):
            barred -= {case.digest for case in self._nearest()}
        aim = FinalsAim(self.request.objective, frozenset(barred))
        finals = Rounds(
            self.scheduler,
            [Entrant(self.space.planned(case), [self.first[case.digest]]) for case in cases],
            self.begin + self.share,
            FinalsRule(aim, anew=self._seconds_of_finals(cases) <= self._left),
            TrialRounds(self.kept, before, final=True),
        )
        return self._tuned(finals, finals.run().answer, over)

    def _searched(self) -> bool:
        """Rounds of the search until it is over, or there is no time for one candidate more; whether it was over."""
        while points := self.search.propose():
            room = memory_left() / (SPARE * max([TYPICAL_MEMORY, *self._peaks()]))
            planned = [self.space.planned(self.candidates.cases[point]) for point in points[: max(2, int(room))]]
            while self.search.rounds and not self._in_time([each.case for each in planned]):
                if len(planned) <= 2:  # the best, beside which the least worth while is left out first
                    return False
                planned.pop()
            self._hold(planned)
        return True

    def _hold(self, planned: Sequence[Planned]) -> None:
        """A round of the search."""
        reference = self.scheduler.references.of(planned[0])  # no round's time: there is one for all
        if RANDOM in reference.behavior:
            raise InferlensError(
                f"{planned[0].case.model} gives random outputs: a wrong candidate cannot be told from a right one.",
                expected="the same outputs for the same inputs",
                hint="model.eval(), or inferlens bench, which ranks by speed and says so",
            )
        tick, number = time.monotonic(), self.search.rounds + 1
        processes = [(one, number) for one in planned]
        records = list(records_of_rounds(self.scheduler, processes, together=not self._crowded))
        found = [self._without_export(*each, number) for each in zip(planned, records, strict=True)]
        self._learn(self.search, found)  # first: of a machine that does not tell the aim nothing is kept
        self.kept.add(Trial(records=tuple(found), seconds=time.monotonic() - tick))
        self.scheduler.discard(records)
        best = self.search.best if self.search.seen else None
        said = f"best so far {self.candidates.cases[best].way}" if best else "nothing ran yet"
        said += ", beyond a limit" * (best in self.search.barred)
        self.scheduler.observer.round(number, [each.case for each in planned], said)

    @property
    def _left(self) -> float:
        """Seconds of its share that are left."""
        return self.begin + self.share - time.monotonic()

    def _in_time(self, cases: Sequence[Case]) -> bool:
        """Whether a round of these leaves time for the finals."""
        return self._seconds_of(cases) <= self._left_to_search

    @property
    def _left_to_search(self) -> float:
        """Seconds that are left until the finals have to begin."""
        return self._left - min(self._seconds_of_finals(self._finalists(())), FINALS * self.share)

    def _seconds_of_finals(self, cases: Sequence[Case]) -> float:
        """Return the seconds of the final rounds in which all are built anew, side by side if CPUs allow it."""
        at_once = rounds_at_once([self.first[case.digest] for case in cases]) if cases else 1
        return math.ceil(REFERENCE_ROUNDS / at_once) * self._seconds_of([*cases] * min(REFERENCE_ROUNDS, at_once))

    def _seconds_of(self, cases: Sequence[Case]) -> float:
        """Seconds of a round of these, if estimates are as wrong as those of earlier rounds."""
        rounds = [trial for trial in self.kept.trials if not trial.final]
        ran = [(trial.seconds, [each for each in trial.records if each.status == "ok"]) for trial in rounds]
        wrong = [seconds / _side_by_side(self.seconds(each.case) for each in some) for seconds, some in ran if some]
        return median_low(wrong or [1.0]) * _side_by_side(map(self.seconds, cases))

    @property
    def _crowded(self) -> bool:
        """Whether some had the memory for it one after the other alone: then none are measured at once any more."""
        rounds = [trial.records for trial in self.kept.trials if not trial.final and len(trial.records) > 1]
        return any(
            all(IN_TURNS not in record.facts and record.status != "out of memory" for record in each) for each in rounds
        )

    def _without_export(self, planned: Planned, record: Record, number: int) -> Record:
        """The record; with the memory of a second process, which finds the export, if the process exported."""
        if self._on_gpu or "memory" not in self.measures or not record.ranked or not includes_export(record):
            return record
        again, _ = self.scheduler.measure(planned, number, self.scheduler.round_budget)
        self.scheduler.discard([again])
        if not again.ranked or includes_export(again):
            return record
        return replace(record, memory=again.memory, facts={**record.facts, MEMORY_APART: True})

    def _patience(self, case: Case) -> float:
        """Return the seconds that a process may take, so that one that hangs does not use up the time.

        Some times what other processes of its family needed, as far as builds take longer, but hardly more than is left
        for the search.
        """
        if self.scheduler.plan.budget.explicit:
            return math.inf
        family = self.space.family(case)
        needed = [
            sum(phase.seconds for phase in record.phases if phase.name != "steady state") / build_factor(record.case)
            for record in self.first.values()
            if self.space.family(record.case) == family
        ]
        longest = PATIENCE * max(needed) * build_factor(case) if needed else FIRST_OF_FAMILY * self.share
        return math.ceil(LEAST_PATIENCE + max(min(longest, self._left_to_search), 0.0))

    def _learn(self, search: Search, records: Sequence[Record]) -> None:
        """What a round says of the objective; candidates of which no limit can be told are out."""
        limits, point = self.request.constraints, self.candidates.point
        able = [each for each in records if each.ranked and math.inf not in violation_factors(each, limits)]
        for each in records:
            if each.ranked:
                self.first.setdefault(each.case.digest, each)
        aim = self.request.objective
        if self.first and all(measure_value(each, aim.name) is None for each in self.first.values()):
            raise InferlensError(f"The {aim.measure.title} is not known on this machine.", hint="another aim for --for")
        self.seconds = seconds_by(map(_from_export, self.first.values()), self.scheduler.plan)
        found: dict[Point, float | None] = {point(each.case): None for each in records}
        found |= {point(each.case): log for each in able if (log := log_cost(aim, each)) is not None}
        search.barred = {point(each.case) for each in self.first.values() if violations(each, limits)}
        search.add(found)
        if search.seen:
            right = [each for each in self.first.values() if point(each.case) not in search.barred]
            best = search.mean(search.best)
            cases = advised(right, lambda case: search.mean(point(case)) - best, self.space)
            search.advised = list(map(point, cases))

    def _peaks(self) -> Iterable[float]:
        return (record.memory.host_peak or 0 for record in self.first.values())

    def _finalists(self, before: Sequence[Trial]) -> list[Case]:
        """Return the best, a rival, the best of ``inferlens bench``, and the reference; or those of earlier finals."""
        if before:
            return [record.case for record in before[0].records]
        some = self.search.seen and self.search.best not in self.search.barred
        chosen = [self.candidates.cases[point] for point in self.search.finalists()] if some else self._nearest()
        ran = [each.case for each in self.space.families if each.case.digest in self.first]
        reference = [case for case in self.space.references if case.digest in self.first][:1]
        precision = {case.precision for case in reference} or {case.precision for case in ran}
        usual = sorted((case for case in ran if case.precision in precision), key=self._rank)[:1]
        always = [*usual, *reference]
        rivals = [case for case in chosen[1:] if case not in always]
        finalists = list({case.digest: case for case in (*chosen[:1], *rivals[:1], *always)}.values())
        if self._seconds_of_finals(finalists) > self._left:
            finalists = [case for case in finalists if case not in rivals]
        return finalists

    def _nearest(self) -> list[Case]:
        """Where nothing keeps all constraints: what breaks them least."""
        able = sorted(self.first.values(), key=lambda record: violation_factors(record, self.request.constraints))
        return [record.case for record in able[:1]]

    def _rank(self, case: Case) -> tuple[bool, float]:
        """Whether it breaks a limit, and what is believed of it, for what was seen is of different moments."""
        point = self.candidates.point(case)
        return point in self.search.barred, self.search.mean(point)

    def _tuned(self, finals: Rounds, answer: RaceAnswer, over: bool) -> TuningReport:
        equal = [each for each in finals.entrants if each.id in answer.fastest]
        point = self.candidates.point

        def changed(each: Entrant) -> tuple[int, bool, bool]:
            case = each.planned.case
            return len(point(case).settings), case.precision != "fp32", each.id != answer.best

        best = min(equal, key=changed, default=None)
        folder = self._ship(best) if best else ""
        trials, case = tuple(self.kept.trials), best.planned.case if best else None
        objective, limits = self.request.objective, self.request.constraints
        every = outcome.candidates(trials, case, objective, limits, point)
        return TuningReport(
            objective=objective,
            constraints=limits,
            trials=trials,
            answer=answer,
            best=case,
            candidates=every,
            advice=paid(case, every, {each.id: each for trial in trials for each in trial.records}, self.space)
            if case
            else (),
            effects=outcome.effects(trials, case, objective, point, self.space) if case else (),
            size=size(self.space),
            skipped=(
                *outcome.unreached(self.space, trials),
                *outcome.untried(self.space, self.what, self.request.plan),
            ),
            complete=over,
            seconds=time.monotonic() - self.begin,
            broken_constraints=tuple(each.sentence for each in violations(best.runs, limits)) if best else (),
            folder=folder,
        )

    def _add_model(self, case: Case, folder: Path) -> None:
        """Puts the model's own files beside its record, or what was exported of it, which its processes found."""
        own = files_of(case.model)
        kept = [Path(shutil.copy2(path, folder)) for path in own or self.scheduler.exported(case)]
        kind = "model" if own else "onnx"
        kinds = zip(kept, [kind, *[f"{kind} weights"] * len(kept)], strict=False)
        if artefacts := tuple(Artefact(path.name, kind, path.stat().st_size) for path, kind in kinds):
            Store.save(folder, replace(read_record(folder / RECORD), artefacts=artefacts))

    def _ship(self, best: Entrant) -> str:
        """Puts the winner's last build where it is found, if it does not lie there; what is nowhere is built anew."""
        target, work = self.home / BEST, Path(self.scheduler.plan.output)
        most = max(len(record.artefacts) for record in best.records)  # a process that found things cached has none
        whole = [record.id for record in best.records if len(record.artefacts) == most]
        if {*whole} & folders_of(target).keys():
            return str(target)
        folders = folders_of(work)
        built = next((folders[each] for each in reversed(whole) if each in folders), None)
        if not built:
            again, built = self.scheduler.measure(best.planned)
            if not again.ranked:
                return ""
        fresh, old = self.home / "best.new", self.home / "best.old"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(built, fresh)
        if not most:
            self._add_model(best.planned.case, fresh)
        (fresh / "best.toml").write_text(as_plan(best.planned.case), encoding="utf-8")
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():  # moved, for what is removed bit by bit may be taken for the winner
            target.replace(old)
        fresh.replace(target)
        shutil.rmtree(old, ignore_errors=True)
        return str(target)


def _side_by_side(alone: Iterable[float]) -> float:
    """Return the seconds of processes that load and build side by side, if they take so many seconds alone."""
    alone = list(alone)
    return max([*alone, sum(alone) / len(usable_cpus())])


def _from_export(record: Record) -> Record:
    """Return the record as that of a process that finds the exported model, and loads nothing else."""
    if record.phase_seconds("export") is None:
        return record
    return replace(record, phases=tuple(each for each in record.phases if each.name not in ("load", "export")))
