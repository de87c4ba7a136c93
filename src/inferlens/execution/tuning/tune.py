"""``inferlens tune``: a search for the fastest way to run a model correctly, and rounds of fresh builds that prove it.

A round of the search measures some candidates and the best so far. Their processes build side by side and are
timed in turns, with short series. Candidates that fail or have wrong outputs are out before they are timed. The few
that may be the fastest then meet the best of ``inferlens bench`` and the reference in the finals, which alone decide.

Every pair of a model and a batch size is a tuning of its own, with a share of the time, and a folder of its own:
``OUTPUT/MODEL``, or in it ``batch-8`` or ``batch-1-sequence_length-32`` if the model has several sizes. Unused time of
a tuning is for the next ones. A round is kept as soon as it is over, and the next one depends on the kept rounds alone,
so the same command goes on where an earlier one was stopped.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.measures import includes_export, measure_value, violations
from inferlens.analysis.race import FinalsAim, RaceAnswer
from inferlens.analysis.tuning import REPORT, Trial, TuningReport, all_candidates, effects, save_tuning, timed_points
from inferlens.errors import InferlensError
from inferlens.execution.cases import (
    Environments,
    ModelHandle,
    build_factor,
    live_files,
    refuse_if_none_runs,
    seconds_by,
)
from inferlens.execution.protocol import Observer, PlannedCase
from inferlens.execution.race import (
    REFERENCE_ROUNDS,
    Entrant,
    FinalsPolicy,
    RaceEngine,
    budget_of_rounds,
    concurrent_rounds,
    measure_rounds,
)
from inferlens.execution.resume import WORK, TrialLog, clear, content_of, folders_of, place_of
from inferlens.execution.scheduler import MeasureOptions, Scheduler, fitting_processes, open_scheduler
from inferlens.execution.tuning.search import LEAST_GROUP, Search, speedups
from inferlens.execution.tuning.space import (
    SearchSelection,
    SearchSpace,
    advice_that_paid,
    explore,
    size,
    skipped,
    unreached,
)
from inferlens.measure.monitor import usable_cpus
from inferlens.models.resolve import files_of
from inferlens.record.record import MEMORY_APART, RANDOM, Artefact, Record
from inferlens.record.store import BEST, RECORD, TRIALS, TUNING, Store, lock_folder, read_record, safe_name
from inferlens.spec.case import Budget, Case
from inferlens.spec.objective import Constraint, Objective
from inferlens.spec.options import texts
from inferlens.spec.plan import Duration, Plan, Texts, Where, as_plan
from inferlens.units import parse_duration

TIMED = ("latency", "latency.p95", "latency.p99", "throughput")
TAIL_SAMPLES = 200  # of a process: a p99 of fewer is hardly more than the longest of them
SERIES, SERIES_ON_GPU = 1.0, 0.5  # seconds of a process of the search; longer ones differ by as much from one another
WARMUP = 0.2  # seconds of a process of the search
FINALS = 0.5  # of the time, at most, that the search leaves for the finals
LEAST_PATIENCE = 30.0  # seconds that every process may take
PATIENCE = 5  # added to that: this many times the longest time that another process of the backend needed
FIRST_OF_BACKEND = 0.25  # added to it for the first process of a backend: this share of the time of a tuning


class TuningRequest(Struct, frozen=True, kw_only=True):
    """The request of a tuning; ``budget`` is seconds for all of it."""

    plan: Plan
    objective: Objective
    constraints: tuple[Constraint, ...] = ()
    budget: float = 600.0

    @property
    def measures(self) -> set[str]:
        """The names of the objective and of the limits."""
        return {self.objective.name, *(limit.name for limit in self.constraints)}


def tune_one(
    request: TuningRequest,
    selection: SearchSelection,
    space: SearchSpace,
    home: Path,
    observer: Observer,
    model: ModelHandle | None,
    seconds: float,
) -> TuningReport:
    """Tune one model at one batch size: hold the search and the finals.

    Args:
        selection: the part of the search space that the user selected; ``space`` has its candidates on this machine.
        home: the folder of the results.
        model: the live model of the plan.
        seconds: the share of the budget.
    """
    work = home / TUNING / WORK
    plan, environments, info = replace(request.plan, output=str(work)), Environments(), space.families[0].model
    with lock_folder(home):
        cases = [planned.case for planned in space.families]
        places = {case.python: place_of(environments.of(case), case) for case in cases}
        same_plan = replace(request.plan, output="", where=Where(), wait=0.0, rerun=False)
        key = [replace(request, budget=0.0, plan=same_plan), selection, places, info, content_of(info.spec, plan)]
        log = TrialLog(home / TUNING / TRIALS, key, request.budget, model, observer, rerun=plan.rerun)
        if not log.trials:
            (home / TUNING / REPORT).unlink(missing_ok=True)
        clear(work / safe_name(info.name), log)
        records = [record for trial in log.trials for record in trial.records]
        live = live_files(model)
        with open_scheduler(plan, observer, space.families, live, environments=environments) as scheduler:
            scheduler.accuracies |= {record.case.digest: record.accuracy for record in records if record.accuracy}
            tuned = Tuner(request, scheduler, selection, space, log, home, seconds).run()
    save_tuning(tuned, home / TUNING)
    shutil.rmtree(work, ignore_errors=True)
    for folder in (home / TUNING, home / BEST):
        if folder.exists():
            observer.kept(folder)
    return tuned


def budget_for(budget: Budget, measures: Collection[str], series: float | None = None) -> Budget:
    """Return the budget of a process of a round, so that it measures the objective and all limits.

    ``series`` are the seconds of a process of the search; ``None``: as in other races.
    """
    modes = {"throughput" if name == "throughput" else "latency" for name in measures if name in TIMED} or {"latency"}
    mode = "both" if len(modes) > 1 else min(modes)
    if budget.explicit or "energy" in measures:  # a short series does not measure energy well enough
        return replace(budget, mode=mode)
    result = replace(budget_of_rounds(budget), mode=mode)
    if series:
        longest = min(series, result.max_time or series)
        result = replace(result, warmup_seconds=min(WARMUP, result.warmup_seconds), max_time=longest)
    return replace(result, iterations=TAIL_SAMPLES, max_time=None) if "latency.p99" in measures else result


@dataclass
class Tuner:
    """A running tuning. ``home`` is its folder, and ``share`` its seconds, which include those of earlier runs."""

    request: TuningRequest
    scheduler: Scheduler
    selection: SearchSelection
    space: SearchSpace
    log: TrialLog
    home: Path
    share: float

    def __post_init__(self) -> None:
        self.begin = time.monotonic() - self.log.seconds
        self.measures = self.request.measures
        self.on_gpu = self.space.families[0].case.device != "cpu"
        budget = budget_for(self.request.plan.budget, self.measures, SERIES_ON_GPU if self.on_gpu else SERIES)
        self.options = MeasureOptions(
            budget, only_right=True, kernels=budget.mode == "latency", accuracy_in_all=True, patience=self._patience
        )
        self.in_turns = "energy" not in self.measures and not (self.on_gpu and "memory" in self.measures)
        self.seconds = seconds_by((), self.scheduler.plan)
        group = min(max(LEAST_GROUP, len(usable_cpus()) // 2), 3 * LEAST_GROUP)  # one for every two CPUs
        self.search = Search(self.space, self.request.objective, self.request.constraints, group)
        for trial in self.log.trials:
            if not trial.final:
                self._learn(trial.records)

    def _cost(self, case: Case) -> float:
        """Return the seconds of a case, and more for a long build, because the others of its round wait for it."""
        return self.seconds(case) * build_factor(case)

    def run(self) -> TuningReport:
        """Search, then hold the finalists' rounds; return the answer."""
        earlier_finals = [trial for trial in self.log.trials if trial.final]
        while not earlier_finals and (cases := self._next_round()):
            self._hold([self.space.planned(case) for case in cases])
        complete = not self.search.ask(self._cost)
        budget = budget_for(self.request.plan.budget, self.measures)
        usual = budget == budget_of_rounds(self.request.plan.budget)
        # Without patience, because a finalist may build anew for as long as that takes.
        options = MeasureOptions(None if usual else budget, only_right=True, accuracy_in_all=True)
        cases = [record.case for record in earlier_finals[0].records] if earlier_finals else self._finalists()
        policy = FinalsPolicy(
            aim=FinalsAim(self.request.objective, self.search.excluded(cases)),
            log=self.log,
            earlier=earlier_finals,
            options=options,
            rebuild=self._seconds_of_finals(cases) <= self._left,
            in_turns=self.in_turns,
        )
        entrants = [Entrant(self.space.planned(case), [self.search.record(case)]) for case in cases]
        finals = RaceEngine(self.scheduler, entrants, self.begin + self.share, policy)
        return self._report(finals, finals.run().answer, complete)

    def _next_round(self) -> list[Case]:
        """Return the cases of the next round of the search that has memory and time, or nothing."""
        peaks = [record.memory.host_peak or 0 for record in self.search.records.values()]
        cases = self.search.ask(self._cost, fitting_processes(peaks))
        while cases and self.search.rounds and self._seconds_of(cases) > self._left_to_search:
            cases = cases[:-1] if len(cases) > 2 else []  # without the least promising one
        return cases

    def _hold(self, planned: Sequence[PlannedCase]) -> None:
        """Hold a round of the search."""
        reference = self.scheduler.references.of(planned[0])  # before the clock of the round starts
        if RANDOM in reference.behavior:
            raise InferlensError(
                f"{planned[0].case.model} gives random outputs: a wrong candidate cannot be told from a right one.",
                expected="the same outputs for the same inputs",
                hint="model.eval(), or inferlens bench, which ranks by speed and says so",
            )
        begin, number = time.monotonic(), self.search.rounds + 1
        processes = [(candidate, number) for candidate in planned]
        measured = list(measure_rounds(self.scheduler, processes, self.options, in_turns=self.in_turns))
        records = [self._without_export(*pair, number) for pair in zip(planned, measured, strict=True)]
        self._learn(records)  # before the log is written, because this raises if nothing can be learned
        self.log.add(Trial(records=tuple(records), seconds=time.monotonic() - begin))
        self.scheduler.discard(measured)
        best = self.search.best
        standing = f"best so far {best.way}" if best else "nothing ran yet"
        standing += ", beyond a limit" * bool(best and violations(self.search.record(best), self.request.constraints))
        self.scheduler.observer.round(number, [candidate.case for candidate in planned], standing)

    @property
    def _left(self) -> float:
        """The seconds of its share that are left."""
        return self.begin + self.share - time.monotonic()

    @property
    def _left_to_search(self) -> float:
        """The seconds until the finals have to begin."""
        return self._left - min(self._seconds_of_finals(self._finalists()), FINALS * self.share)

    def _seconds_of_finals(self, cases: Sequence[Case]) -> float:
        """Return the seconds of the first final rounds, whose processes build anew, side by side if CPUs allow it."""
        rounds = concurrent_rounds(list(map(self.search.record, cases))) if cases else 1
        return math.ceil(REFERENCE_ROUNDS / rounds) * self._seconds_of([*cases] * min(REFERENCE_ROUNDS, rounds))

    def _seconds_of(self, cases: Sequence[Case]) -> float:
        """Return the seconds of a round of these cases, corrected by the errors of the estimates of earlier rounds."""
        factors = []
        for trial in self.log.trials:
            ran = [record.case for record in trial.records if record.status == "ok"]
            if ran and not trial.final:
                factors.append(trial.seconds / _side_by_side(map(self.seconds, ran)))
        return median_low(factors or [1.0]) * _side_by_side(map(self.seconds, cases))

    def _without_export(self, planned: PlannedCase, record: Record, number: int) -> Record:
        """Return the record; if its process exported the model, with the memory of a second process, which did not."""
        if self.on_gpu or "memory" not in self.measures or not record.ranked or not includes_export(record):
            return record
        again, _ = self.scheduler.measure(planned, number, self.options)
        self.scheduler.discard([again])
        if not again.ranked or includes_export(again):
            return record
        return replace(record, memory=again.memory, facts={**record.facts, MEMORY_APART: True})

    def _patience(self, case: Case) -> float:
        """Return the seconds that a process may take, so that a process that hangs does not use up the time.

        It may take several times as long as other processes of its backend, and longer for a longer build, but hardly
        longer than the rest of the search.
        """
        if self.scheduler.plan.budget.explicit:
            return math.inf
        needed = [
            sum(phase.seconds for phase in record.phases if phase.name != "steady state") / build_factor(record.case)
            for record in self.search.records.values()
            if record.case.backend == case.backend
        ]
        longest = PATIENCE * max(needed) * build_factor(case) if needed else FIRST_OF_BACKEND * self.share
        return math.ceil(LEAST_PATIENCE + max(min(longest, self._left_to_search), 0.0))

    def _learn(self, records: Sequence[Record]) -> None:
        """Add the records of a round to the search. Raises InferlensError if the objective is not known here."""
        objective = self.request.objective
        self.search.tell(records)
        ran = self.search.records.values()
        if ran and all(measure_value(record, objective.name) is None for record in ran):
            what = f"The {objective.measure.title} is not known on this machine."
            raise InferlensError(what, hint="another aim for --for")
        self.seconds = seconds_by(ran, self.scheduler.plan)

    def _finalists(self) -> list[Case]:
        """Return the finalists, without a rival of the best if there is no time for it."""
        cases = self.search.finalists(rival=True)
        return cases if self._seconds_of_finals(cases) <= self._left else self.search.finalists(rival=False)

    def _report(self, finals: RaceEngine, answer: RaceAnswer, complete: bool) -> TuningReport:
        """Return the report. Of equally fast finalists the plainest one is the best."""

        def complexity(entrant: Entrant) -> tuple[int, bool, bool]:
            case = entrant.planned.case
            return len(self.space.settings(case)), case.precision != "fp32", entrant.id != answer.best

        fastest = [entrant for entrant in finals.entrants if entrant.id in answer.fastest]
        best = min(fastest, key=complexity, default=None)
        folder = self._ship(best) if best else ""
        trials, case = tuple(self.log.trials), best.planned.case if best else None
        records = {record.id: record for trial in trials for record in trial.records}
        points = {record.case.digest: self.space.point(record.case) for record in records.values()}
        objective, limits = self.request.objective, self.request.constraints
        searched = timed_points([trial for trial in trials if not trial.final], objective, points)
        compared = speedups(searched, points[case.digest]) if case and searched else {}
        candidates = all_candidates(trials, limits, case, points, compared)
        return TuningReport(
            objective=objective,
            constraints=limits,
            trials=trials,
            answer=answer,
            best=case,
            candidates=candidates,
            effects=effects(trials, objective, points[case.digest], points) if case else (),
            size=size(self.space),
            skipped=(*unreached(self.space, trials), *skipped(self.space, self.selection, self.request.plan)),
            complete=complete,
            seconds=time.monotonic() - self.begin,
            broken_constraints=tuple(limit.sentence for limit in violations(best.runs, limits)) if best else (),
            folder=folder,
            advice=advice_that_paid(case, candidates, records, self.space) if case else (),
        )

    def _add_model(self, case: Case, folder: Path) -> None:
        """Put the model's own files, or those that it was exported to, into the folder of its record."""
        files, kind = files_of(case.model), "model"
        if not files:
            files, kind = self.scheduler.exported(case), "onnx"
        artefacts: list[Artefact] = []
        for file in files:  # the model comes first, and then its weights
            copy = Path(shutil.copy2(file, folder))
            artefacts.append(Artefact(copy.name, kind if not artefacts else f"{kind} weights", copy.stat().st_size))
        if artefacts:
            Store.save(folder, replace(read_record(folder / RECORD), artefacts=tuple(artefacts)))

    def _ship(self, best: Entrant) -> str:
        """Copy the winner's last build to its place, unless it is there; if there is no build, build anew."""
        target, work = self.home / BEST, Path(self.scheduler.plan.output)
        files = max(len(record.artefacts) for record in best.records)  # a process that used the cache has none
        complete = [record.id for record in best.records if len(record.artefacts) == files]
        if {*complete} & folders_of(target).keys():
            return str(target)
        folders = folders_of(work)
        build = next((folders[name] for name in reversed(complete) if name in folders), None)
        if not build:
            record, build = self.scheduler.measure(best.planned)
            if not record.ranked:
                return ""
        fresh, old = self.home / "best.new", self.home / "best.old"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(build, fresh)
        if not files:
            self._add_model(best.planned.case, fresh)
        (fresh / "best.toml").write_text(as_plan(best.planned.case), encoding="utf-8")
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():  # moved first, because a folder that is only half removed may be taken for the winner
            target.replace(old)
        fresh.replace(target)
        shutil.rmtree(old, ignore_errors=True)
        return str(target)


def _side_by_side(seconds: Iterable[float]) -> float:
    """Return the seconds of processes that load and build side by side, from their seconds one at a time."""
    seconds = list(seconds)
    return max([*seconds, sum(seconds) / len(usable_cpus())])


def tuning_request(plan: Plan, objective: str, within: Texts, budget: Duration) -> TuningRequest:
    """Return the request in words: the objective, its limits, and seconds or a text such as ``10m``.

    Raises InferlensError if one of them means nothing.
    """
    constraints = Constraint.parse_all(texts(within))
    for limit in constraints:
        if (needs := limit.measure.needs) and not getattr(plan, needs):
            raise InferlensError(f"{limit.name} is not known without data to evaluate.", hint=f"--{needs} DATA")
    seconds = parse_duration(str(budget))
    if not seconds:
        raise InferlensError("--budget must be longer than 0 seconds.", expected="a --budget such as 10m")
    return TuningRequest(plan=plan, objective=Objective.parse(objective), constraints=constraints, budget=seconds)


def tune(
    request: TuningRequest, selection: SearchSelection, observer: Observer, model: ModelHandle | None = None
) -> list[TuningReport]:
    """Tune all models of the plan at all of their batch sizes.

    Raises InferlensError if one of them cannot run here, before the first one begins.
    """
    observer.doing("looking at models and backends")
    parts = parts_of(explore(request.plan, selection, model))
    reports: list[TuningReport] = []
    for place, part in enumerate(parts):
        case, name, part_request = part.families[0].case, part.families[0].model.name, request
        if len(parts) > 1:
            part_request = replace(request, plan=narrowed(request.plan, case))
            observer.part(f"{name}, {case.sizes_label}" if part_request.plan.batch or case.sizes else name)
        home = Path(request.plan.output) / safe_name(name) / size_folder(part, parts)
        unused = request.budget - sum(report.seconds for report in reports)
        seconds = max(request.budget / len(parts), unused / (len(parts) - place))
        reports.append(tune_one(part_request, selection, part, home, observer, model, seconds))
    return reports


def parts_of(space: SearchSpace) -> list[SearchSpace]:
    """Return the spaces of all models at all batch sizes and with all sets of inputs."""

    def sizes(planned: PlannedCase) -> tuple[object, ...]:
        return planned.case.model, planned.case.batch, planned.case.inputs

    parts = []
    for key in dict.fromkeys(map(sizes, (*space.families, *space.refused))):
        families = tuple(planned for planned in space.families if sizes(planned) == key)
        refused = tuple(planned for planned in space.refused if sizes(planned) == key)
        refuse_if_none_runs([*families, *refused])
        parts.append(dataclasses.replace(space, families=families, refused=refused))
    return parts


def narrowed(plan: Plan, case: Case) -> Plan:
    """Return the plan for the model, the batch and the inputs of a case alone."""
    batch = plan.batch and (case.batch,)
    return replace(plan, model=(case.model,), batch=batch, input=(case.inputs,), dim=((),))


def size_folder(part: SearchSpace, parts: Sequence[SearchSpace]) -> str:
    """Return the name of the folder of one of several tunings of a model; empty if the model has only one."""
    case = part.families[0].case
    if sum(other.families[0].case.model == case.model for other in parts) == 1:
        return ""
    return safe_name(case.sizes_label.replace(", ", "-").replace(" ", "-"))
