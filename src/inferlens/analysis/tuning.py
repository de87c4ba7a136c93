"""Reports of tunings: kept next to their rounds, and loaded again without measuring.

``trials.jsonl`` has the records, a line for each round. ``tuned.json`` next to it has the conclusions from them and
from the search space. Both are read strictly: a tuning with a broken part is refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, field
from msgspec.structs import replace

from inferlens.analysis.measures import AccuracyScore, accuracy_of, measure_value, score_accuracy, violations
from inferlens.analysis.race import FinalsAim, RaceAnswer, log_cost, race
from inferlens.analysis.samples import CaseRuns, group_by
from inferlens.errors import InferlensError, check_choice
from inferlens.record.display import Struct
from inferlens.record.files import decode_json, files_under, plain_or_packed, read_unpacked, write_whole
from inferlens.record.record import Record
from inferlens.record.store import BEST, RECORD, TRIALS, TUNING, is_of_tuning
from inferlens.spec.case import Case
from inferlens.spec.objective import MEASURES, Constraint, Objective
from inferlens.stats.intervals import student_quantile

SCHEMA = "inferlens.tuned/1"
REPORT = "tuned.json"
WINNER = "winner"
AGAIN = "the same 'inferlens tune', which goes on where it was"
Factor = Annotated[float, Meta(gt=0, lt=1e12)]
Seconds = Annotated[float, Meta(gt=-1e9, lt=1e9)]
LARGEST_EFFECT = math.log(10)  # an interval that reaches further says nothing


class Trial(Struct, frozen=True, kw_only=True):
    """A round: the records of its processes, of finalists if ``final``, after so much ``budget``."""

    records: tuple[Record, ...]
    final: bool = False
    seconds: float = 0.0
    budget: float = 0.0


class Effect(Struct, frozen=True, kw_only=True):
    """The effect of a setting in the winner's family: the speed-up with it, from ``low`` to ``high``.

    ``None`` if the rounds do not tell it. ``chosen`` are the settings of the winner. All intervals hold at once with a
    probability of 95 %. ``build`` is the number of seconds that the build takes longer with it, if a candidate was
    built with and without it.
    """

    setting: str
    speedup: Factor | None = None
    low: Factor | None = None
    high: Factor | None = None
    build: Seconds | None = None
    chosen: bool = True


class Candidate(Struct, frozen=True, kw_only=True):
    """A measured candidate."""

    record: str
    settings: tuple[str, ...] = ()  # the settings that distinguish it in its family, such as ``threads=2``
    # Over the winner, from ``low`` to ``high``, by all rounds of the search; ``None`` if it was not timed.
    speedup: Factor | None = None
    low: Factor | None = None
    high: Factor | None = None
    # Why it could not win: its failure, wrong outputs, or the limit that it breaks.
    rejection: str = field(default="", name="out")
    final: bool = False


class Advice(Struct, frozen=True):
    """Advice that paid: ``settings`` of the winner helped ``against`` the bottleneck of another ``way``."""

    settings: str
    against: str
    way: str
    speedup: Factor  # of the winner over that way


class SkippedCandidate(Struct, frozen=True, kw_only=True):
    """A backend or precision that was not measured."""

    name: str
    reason: str = field(default="", name="why")  # empty if the request excluded it
    hint: str = ""  # the options that include it, if there are any


class TuningReport(Struct, frozen=True, kw_only=True):
    """The outcome of a tuning."""

    schema: str = SCHEMA
    objective: Objective
    constraints: tuple[Constraint, ...] = ()
    trials: tuple[Trial, ...] = ()  # its rounds, which have a file of their own
    answer: RaceAnswer  # the race of the finalists; ``best``: the winning case, if anything ran right
    best: Case | None
    candidates: tuple[Candidate, ...]  # all that were measured, the best first
    effects: tuple[Effect, ...]
    size: Annotated[int, Meta(ge=0)]
    skipped: tuple[SkippedCandidate, ...] = field(name="untried")
    complete: bool = field(name="over")  # whether the search ended by itself, before its time
    seconds: Annotated[float, Meta(ge=0, lt=1e9)]
    broken_constraints: tuple[str, ...] = field(default=(), name="missed")  # those that even the answer breaks
    folder: str = ""  # of the winner, ready to be used; empty if there is none
    advice: tuple[Advice, ...] = ()  # advice of profiles that paid

    @property
    def final_records(self) -> tuple[Record, ...]:
        """The records of the finalists' rounds. Records of several runs get the number of the first."""
        records = [record for trial in self.trials if trial.final for record in trial.records]
        return tuple(replace(record, run=records[0].run) for record in records)

    @property
    def search_records(self) -> tuple[Record, ...]:
        return tuple(record for trial in self.trials if not trial.final for record in trial.records)

    @property
    def _cases(self) -> dict[str, Case]:
        return {record.id: record.case for trial in self.trials for record in trial.records}

    @property
    def aim(self) -> FinalsAim:
        cases = self._cases
        rejected = (candidate.record for candidate in self.candidates if candidate.final and candidate.rejection)
        return FinalsAim(self.objective, frozenset(cases[record].digest for record in rejected))

    @property
    def fastest(self) -> tuple[Case, ...]:
        """The cases of the answer: the winner, or all that are equally good."""
        cases = self._cases
        return tuple(cases[name] for name in self.answer.fastest)

    @property
    def runs_by_case(self) -> dict[str, CaseRuns]:
        return _group_by_case([*self.search_records, *self.final_records])


# What rounds say about candidates and their settings.


class Point(Struct, frozen=True):
    """A candidate: its family, ``VARIANT PRECISION``, and its settings that are not the family's defaults."""

    family: str
    settings: frozenset[str] = frozenset()


class Observation(Struct, frozen=True):
    """The logarithm of a time that was measured in a round."""

    point: Point
    log: float
    round: Hashable


Points = Mapping[str, Point]  # by the digest of the case
Speedup = tuple[float, float, float]  # with the ends of its 95 % interval


def timed_points(trials: Sequence[Trial], objective: Objective, points: Points) -> list[Observation]:
    """Return the logarithms of the costs of all records that may be ranked."""
    return [
        Observation(points[record.case.digest], log, number)
        for number, trial in enumerate(trials)
        for record in trial.records
        if record.ranked and (log := log_cost(objective, record)) is not None
    ]


def all_candidates(
    trials: Sequence[Trial],
    limits: Sequence[Constraint],
    best: Case | None,
    points: Points,
    speedups: Mapping[Point, Speedup],
) -> tuple[Candidate, ...]:
    """Return all measured candidates: the finalists, slower ones, and those that could not win; the best first."""
    searches = _group_by_case([record for trial in trials if not trial.final for record in trial.records])
    finals = _group_by_case([record for trial in trials if trial.final for record in trial.records])
    results = []
    for digest, runs in {**searches, **finals}.items():
        final, first = digest in finals, searches.get(digest, runs).first
        if final:  # only the finals say whether it fails, and only the search whether it keeps the limits
            rejections = [_rejection(record, ()) for record in finals[digest].records]
            measured = [record for record in searches[digest].records if record.ranked] if first.case != best else []
            rejections += [_rejection(record, limits) for record in measured[:1]]
        else:
            rejections = [_rejection(record, limits) for record in runs.records]
        speedup, low, high = speedups.get(points[digest], (None, None, None))
        results.append(
            Candidate(
                record=first.id, settings=tuple(sorted(points[digest].settings)), speedup=speedup, low=low, high=high,
                rejection=next(filter(None, rejections), ""), final=final,
            )
        )  # fmt: skip
    results.sort(key=lambda result: (not result.final, bool(result.rejection), -(result.speedup or 0.0)))
    return tuple(results)


def _rejection(record: Record, limits: Sequence[Constraint]) -> str:
    """Return why a record could not be the best; empty if it could."""
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    if not record.ranked and record.agreement:
        return f"wrong outputs: {record.agreement.reason}"
    return next((violation.sentence for violation in violations(record, limits)), "")


def effects(trials: Sequence[Trial], objective: Objective, best: Point, points: Points) -> tuple[Effect, ...]:
    """Return the effects of the settings of the best, and of others that could be added to it, by all rounds."""
    names = {setting.partition("=")[0] for setting in best.settings}
    seconds: dict[Point, list[float]] = {}  # of builds, without the export, which all share, and without cached builds
    for record in (record for trial in trials for record in trial.records):
        builds = [phase.seconds for phase in record.phases if phase.name == "build" and phase.note != "cached"]
        if builds:
            seconds.setdefault(points[record.case.digest], []).append(sum(builds))
    mean_seconds = {point: fmean(builds) for point, builds in seconds.items() if point.family == best.family}
    results = []
    for setting, effect in setting_effects(timed_points(trials, objective, points), best).items():
        chosen = setting in best.settings
        if chosen or setting.partition("=")[0] not in names:  # no other value of a knob that the best has set
            speedup, low, high = effect or (None, None, None)
            longer = _longer_build(mean_seconds, setting)
            results.append(Effect(setting=setting, speedup=speedup, low=low, high=high, build=longer, chosen=chosen))
    return tuple(results)


def _longer_build(seconds: Mapping[Point, float], setting: str) -> float | None:
    """Return how many seconds longer a build takes with a setting, by points of one family."""
    pairs = [(point, Point(point.family, point.settings - {setting})) for point in seconds if setting in point.settings]
    differences = [seconds[point] - seconds[without] for point, without in pairs if without in seconds]
    return fmean(differences) if differences else None


def setting_effects(observations: Sequence[Observation], point: Point) -> dict[str, Speedup | None]:
    """Return the speed-up by each setting of a point's family, and its 95 % interval; ``None`` if unknown.

    By least squares: the logarithm of a time is the level of its round, plus that of its candidate, or in the family of
    ``point``, the family's plus the effect of each setting there. The intervals of all settings that were measured in
    the family hold at once (Bonferroni), as a winner has the settings that looked best.
    """
    terms = [_terms(observation, point.family) for observation in observations]
    columns = list(dict.fromkeys(term for row in terms for term in row))
    design = np.array([[term in row for term in columns] for row in terms], dtype=np.float64)
    logs, inverse = np.array([observation.log for observation in observations]), np.linalg.pinv(design)
    rest = logs - design @ (inverse @ logs)
    freedom = len(observations) - int(np.linalg.matrix_rank(design))
    points = [observation.point for observation in observations]
    measured = {name for other in points if other.family == point.family for name in other.settings}
    effects: dict[str, Speedup | None] = dict.fromkeys(sorted(point.settings | measured))
    for name in effects.keys() & measured if freedom > 0 else ():
        contrast = np.zeros(len(columns))
        contrast[columns.index(("setting", name))] = -1.0
        weights = contrast @ inverse  # of the measurements
        if not np.allclose(weights @ design, contrast, atol=1e-6):  # it never differed without another setting
            continue
        error = math.sqrt(float(rest @ rest) / freedom * float(weights @ weights))
        log, margin = float(weights @ logs), error * student_quantile(1 - 0.025 / len(measured), freedom)
        if abs(log) + margin < LARGEST_EFFECT:
            effects[name] = (math.exp(log), math.exp(log - margin), math.exp(log + margin))
    return effects


def _terms(observation: Observation, family: str) -> list[Hashable]:
    """Return the terms whose sum is the logarithm of a time."""
    point, round_term = observation.point, ("round", observation.round)
    if point.family != family:
        return [round_term, point]
    return [round_term, ("family",), *(("setting", name) for name in point.settings)]


# What tables and charts show of candidates.


class CandidateFacts(Struct, frozen=True, kw_only=True):
    """The measures of a candidate."""

    case: Case
    candidate: Candidate
    # Of the winner the value in the finals; of others that value times their ratio to the winner, in the finals for
    # finalists and in the search for the rest. So disturbances of other rounds do not matter.
    objective: float | None
    error: float | None
    memory: float | None  # the largest of its processes that did not export, which takes more than any call does
    build: float | None  # the longest
    outcome: str  # in a few words, or why it could not win
    metric: str = ""
    accuracy: AccuracyScore | None = None  # in ``metric``; ``None`` if unknown


def candidate_facts(tuning: TuningReport) -> list[CandidateFacts]:
    """Return the facts about each candidate in their order, the winner first."""
    runs_by_case, finals = tuning.runs_by_case, _group_by_case(tuning.final_records)
    digests = {record.id: digest for digest, runs in runs_by_case.items() for record in runs.records}
    answer_ids = {digests[record]: record for record in (*tuning.answer.fastest, *tuning.answer.open)}
    winner = tuning.best.digest if tuning.best else ""
    final_race = race(finals, aim=tuning.aim)
    value = measure_value(finals[winner], tuning.objective.name) if winner in finals else None
    cost = tuning.objective.measure.cost
    results = []
    for candidate in tuning.candidates:
        digest = digests[candidate.record]
        difference = final_race.data.difference(winner, digest)
        ratio = difference.ratio if difference else 1 / candidate.speedup if candidate.speedup else None
        ratio = 1.0 if digest == winner else ratio
        runs = runs_by_case[digest]
        accuracy = accuracy_of(runs)
        outcome = WINNER if digest == winner else _outcome(candidate, tuning, answer_ids.get(digest, ""))
        facts = CandidateFacts(
            case=runs.first.case, candidate=candidate, objective=cost(cost(value) * ratio) if value and ratio else None,
            error=measure_value(runs, "error"), memory=measure_value(runs, "memory"),
            build=measure_value(runs, "build"), outcome=outcome,
            metric=accuracy.metric if accuracy else "", accuracy=score_accuracy(accuracy),
        )  # fmt: skip
        results.append(facts)
    return sorted(results, key=lambda facts: facts.outcome != WINNER)


def _outcome(candidate: Candidate, tuning: TuningReport, answer_id: str) -> str:
    """Return the outcome of a candidate that is not the winner; ``answer_id`` is its id in the answer."""
    fast = tuning.objective.name.startswith(("latency", "throughput"))
    equal, worse = ("as fast", "slower") if fast else ("as good", "worse")
    if candidate.rejection:
        return candidate.rejection
    if candidate.final:
        rank = worse if answer_id not in tuning.answer.open else "not told apart"
        return f"{equal if answer_id in tuning.answer.fastest else rank} in the finals"
    if candidate.high is not None and candidate.high < 1:
        return worse
    return f"about {equal}" if candidate.speedup else ""


def _group_by_case(records: Sequence[Record]) -> dict[str, CaseRuns]:
    groups = group_by(records, lambda record: record.case.digest)
    return {digest: CaseRuns(tuple(group)) for digest, group in groups.items()}


def save_tuning(tuning: TuningReport, folder: Path) -> None:
    data = msgspec.json.encode(replace(tuning, trials=(), folder=""))
    write_whole(folder / REPORT, msgspec.json.format(data, indent=1) + b"\n")


def find_tunings(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of tunings: the paths themselves, or those in folders that contain nothing else."""
    folders = []
    for path in paths:
        if path.name == REPORT and path.is_file():
            folders.append(path.parent)
        elif plain_or_packed(path / TRIALS).is_file() or (path / REPORT).is_file():
            folders.append(path)
        elif all(is_of_tuning(file, path) for file in files_under(path, RECORD)) and tunings_under(path):
            folders += tunings_under(path)
        else:
            return []
    return folders


def tunings_under(path: Path) -> list[Path]:
    """Return the folders of tunings in a folder, at any depth."""
    return [file.parent for file in files_under(path, TRIALS) if file.parent.name == TUNING]


def load_tuning(folder: Path) -> TuningReport:
    """Return the report of a tuning, with its rounds; raise an InferlensError if it is not over, or broken."""
    try:
        data = (folder / REPORT).read_bytes()
        lines = read_unpacked(plain_or_packed(folder / TRIALS)).split(b"\n")
    except OSError as error:
        problem = f"The tuning in {folder} is not over, or cannot be read: {error.strerror}."
        raise InferlensError(problem, hint=AGAIN) from error
    try:
        tuning = decode_json(data, TuningReport, SCHEMA, "tuning")
        trials = tuple(msgspec.json.decode(line, type=Trial) for line in lines[1:] if line)
        for name in (tuning.objective.name, *(limit.name for limit in tuning.constraints)):
            check_choice("measure", name, MEASURES)
    except (msgspec.DecodeError, RecursionError, InferlensError) as error:
        reason = error.sentence if isinstance(error, InferlensError) else error
        raise InferlensError(f"The tuning in {folder} is broken: {reason}", hint=AGAIN) from error
    best = Path(os.path.normpath(folder / ".." / BEST))
    tuning = replace(tuning, trials=trials, folder=str(best) if best.is_dir() else "")
    recorded = {record.id for trial in trials for record in trial.records}
    finals = [record.case for record in tuning.final_records]
    reported = {candidate.record for candidate in tuning.candidates} | {*tuning.answer.fastest, *tuning.answer.open}
    has_best = bool(tuning.best) == bool(tuning.answer.best) and (not tuning.best or tuning.best in finals)
    if not reported <= recorded or not has_best:
        raise InferlensError(f"{folder / REPORT} is not about the rounds in {TRIALS} beside it.", hint=AGAIN)
    return tuning
