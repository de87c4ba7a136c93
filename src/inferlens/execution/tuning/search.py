"""The search of a tuning. This module alone decides which candidate ``inferlens tune`` tries next.

The first candidates are the reference and those that backends recommend in its precision. Next are those that the
profile of a fast candidate advises, such as a CUDA graph where calls wait for the host. Then come all families that are
cheap to build. After that, a round has the candidates with the largest expected gain for their cost, by a Gaussian
process over families and settings (:func:`predict`). The best candidate so far is in every round, so that a
disturbance of the machine that affects the whole round cancels out. The search is over when no candidate promises
``LEAST_GAIN`` and no family is left. The finalists are chosen here, too.

Nothing here runs a process, and proposals depend only on what was added: an interrupted tuning continues by adding its
measurements again. How candidates compare with the winner follows from the rounds of the search, by the same Gaussian
process; a candidate that breaks a limit is included. The finals are not, because only they give the answer. Effects
of settings follow from all rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import mean
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.analysis.measures import bottleneck, violation_factors, violations
from inferlens.analysis.race import log_cost
from inferlens.analysis.tuning import Advice, Candidate, Effect, SkippedCandidate, Trial
from inferlens.backends import BACKENDS, importable_backends
from inferlens.execution.tuning.space import SearchSelection, SearchSpace, narrowed_selection, neighbours
from inferlens.record.record import Record
from inferlens.spec.case import PRECISIONS, Case
from inferlens.spec.objective import Constraint, Objective
from inferlens.spec.plan import Plan
from inferlens.stats.intervals import normal_quantile, student_quantile

LEAST_GAIN = 0.004  # the smallest expected gain that is worth a process, as a logarithm
LEAST_SHARE = 0.3  # of the expected gain for its cost of the first candidate of a round: others with less wait
REACH = math.log(1.6)  # families further behind the best are not tuned
COSTLY = 4  # families that cost more than this many times as much as the cheapest one come last
LEAST_GROUP = 3  # candidates of a round, in addition to the best
LEAST_CHANCE = 0.15  # the smallest probability of being faster than the best with which a rival is in the finals


@dataclass
class Candidates:
    """The candidates of a space as points, their cases, and the first records of those that ran right, by digest."""

    space: SearchSpace
    objective: Objective
    limits: Sequence[Constraint] = ()
    cases: dict[Point, Case] = field(default_factory=dict)
    ran: dict[str, Record] = field(default_factory=dict)
    _neighbours: dict[Point, list[Point]] = field(default_factory=dict)

    def point(self, case: Case) -> Point:
        settings = frozenset(f"{name}={value}" for name, value in self.space.settings(case).items())
        point = Point(self.space.family(case).label, settings)
        self.cases.setdefault(point, case)
        return point

    def neighbours(self, point: Point) -> list[Point]:
        if point not in self._neighbours:
            self._neighbours[point] = [self.point(case) for case in neighbours(self.cases[point], self.space)]
        return self._neighbours[point]

    def search(self, cost: Callable[[Case], float], group: int) -> Search:
        """Return a search that has measured nothing. ``cost`` is that of a case; ``group`` is as of :class:`Search`."""
        references, recommended = self.space.references[:1], self.space.recommended
        precision = next((case.precision for case in (*references, *recommended)), "")
        first = [*references, *(case for case in recommended if case.precision == precision)]
        families = [*recommended, *(family.case for family in self.space.families)]
        return Search(
            families=list(dict.fromkeys(map(self.point, families))),
            first=list(dict.fromkeys(map(self.point, first))),
            neighbours=self.neighbours,
            cost=lambda point: cost(self.cases[point]),
            group=group,
        )

    def learn(self, search: Search, records: Sequence[Record]) -> None:
        """Add the records of a round to the search.

        Candidates with wrong outputs or an unknown limit count as failed.
        """
        logs: dict[Point, float | None] = {}
        for record in records:
            log = None
            if record.ranked:
                self.ran.setdefault(record.case.digest, record)
                if math.inf not in violation_factors(record, self.limits):
                    log = log_cost(self.objective, record)
            logs[self.point(record.case)] = log
        search.barred = {self.point(record.case) for record in self.beyond_limits()}
        search.add(logs)
        if search.observations:
            best = search.mean(search.best)
            candidates = [record for record in self.ran.values() if self.point(record.case) not in search.barred]
            distances = [search.mean(self.point(record.case)) - best for record in candidates]
            search.advised = list(map(self.point, advised_cases(candidates, distances, self.space)))

    def finalists(self, search: Search, *, rival: bool) -> list[Case]:
        """Return the best, a ``rival``, the best that ``inferlens bench`` would measure, and the reference."""
        if search.observations and search.best not in search.barred:
            fastest = [self.cases[point] for point in search.finalists()]
        else:
            fastest = self.nearest()
        references = [case for case in self.space.references if case.digest in self.ran][:1]
        families = [family.case for family in self.space.families if family.case.digest in self.ran]
        if references:
            families = [case for case in families if case.precision == references[0].precision]
        families.sort(key=lambda case: (self.point(case) in search.barred, search.mean(self.point(case))))
        cases = [*fastest[: 1 + rival], *families[:1], *references]
        return list({case.digest: case for case in cases}.values())

    def nearest(self) -> list[Case]:
        """Return the case that breaks the limits least, for when none keeps them."""
        records = sorted(self.ran.values(), key=lambda record: violation_factors(record, self.limits))
        return [record.case for record in records[:1]]

    def beyond_limits(self) -> list[Record]:
        """Return the first records of the candidates that break a limit."""
        return [record for record in self.ran.values() if violations(record, self.limits)]

    def results(self, trials: Sequence[Trial], best: Case | None) -> tuple[Candidate, ...]:
        """Return all measured candidates: the finalists, slower ones, and those that could not win; the best first."""
        first_records: dict[str, Record] = {}
        rejections: dict[str, str] = {}
        finalists = {record.case.digest for trial in trials if trial.final for record in trial.records}
        for trial in trials:
            for record in trial.records:
                digest = record.case.digest
                first_records.setdefault(digest, record)
                if trial.final == (digest in finalists):  # only the finals count for a finalist
                    rejection = _rejection(record, () if trial.final else self.limits)
                    rejections[digest] = rejections.get(digest) or rejection
        for record in self.beyond_limits():
            if record.case != best:
                rejections[record.case.digest] = rejections.get(record.case.digest) or _rejection(record, self.limits)
        speedups = self._speedups(trials, best)
        results = []
        for digest, record in first_records.items():
            point = self.point(record.case)
            speedup, low, high = speedups.get(point, (None, None, None))
            settings = tuple(sorted(point.settings))
            results.append(
                Candidate(
                    record=record.id, settings=settings, speedup=speedup, low=low, high=high,
                    rejection=rejections.get(digest, ""), final=digest in finalists,
                )
            )  # fmt: skip
        results.sort(key=lambda result: (not result.final, bool(result.rejection), -(result.speedup or 0.0)))
        return tuple(results)

    def effects(self, trials: Sequence[Trial], best: Case) -> tuple[Effect, ...]:
        """Return the effects of the settings of the best, and of others that could be added to it, by all rounds."""
        best_point, build_seconds, results = self.point(best), self._build_seconds(trials), []
        for setting, effect in setting_effects(self._observations(trials), best_point).items():
            chosen = setting in best_point.settings
            if not chosen and setting.partition("=")[0] in self.space.settings(best):
                continue  # another value of a knob that the best has set
            speedup, low, high = effect or (None, None, None)
            longer = _longer_build(build_seconds, best_point.family, setting)
            results.append(Effect(setting=setting, speedup=speedup, low=low, high=high, build=longer, chosen=chosen))
        return tuple(results)

    def _speedups(self, trials: Sequence[Trial], best: Case | None) -> dict[Point, tuple[float, float, float]]:
        """Return the speedups of timed points over the best, with a 95 % interval, by the rounds of the search."""
        observations = self._observations([trial for trial in trials if not trial.final])
        if best is None or not observations:
            return {}
        points = list(dict.fromkeys([self.point(best), *(observation.point for observation in observations)]))
        belief, quantile = predict(observations, points), normal_quantile(0.975)
        speedups = {}
        for place, point in enumerate(points):
            log = float(belief.mean[0] - belief.mean[place])
            margin = quantile * math.sqrt(max(belief.difference_variance(0, place), 0.0))
            speedups[point] = (math.exp(log), math.exp(log - margin), math.exp(log + margin))
        return speedups

    def _observations(self, trials: Sequence[Trial]) -> list[Observation]:
        """Return the timed points of rounds."""
        return [
            Observation(self.point(record.case), log, number)
            for number, trial in enumerate(trials)
            for record in trial.records
            if record.ranked and (log := log_cost(self.objective, record)) is not None
        ]

    def _build_seconds(self, trials: Sequence[Trial]) -> dict[Point, list[float]]:
        """Return the seconds of builds by point, without the export, which all share, and without cached builds."""
        seconds: dict[Point, list[float]] = {}
        for record in (record for trial in trials for record in trial.records):
            builds = [phase.seconds for phase in record.phases if phase.name == "build" and phase.note != "cached"]
            if builds:
                seconds.setdefault(self.point(record.case), []).append(sum(builds))
        return seconds


def _rejection(record: Record, constraints: Sequence[Constraint]) -> str:
    """Return why a record could not be the best; empty if it could."""
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    if not record.ranked and record.agreement:
        return f"wrong outputs: {record.agreement.reason}"
    return next((limit.sentence for limit in violations(record, constraints)), "")


def _longer_build(seconds: Mapping[Point, list[float]], family: str, setting: str) -> float | None:
    """Return how many seconds longer a build of a family takes with a setting."""
    differences = []
    for point in seconds:
        without = Point(family, point.settings - {setting})
        if point.family == family and setting in point.settings and without in seconds:
            differences.append(mean(seconds[point]) - mean(seconds[without]))
    return mean(differences) if differences else None


@dataclass
class Search:
    """A search among candidates.

    Attributes:
        families: points without settings.
        neighbours: returns the points that have one setting more, less, or at another value than a point.
        cost: returns the relative cost to measure a point.
        group: the number of candidates of a round, in addition to the best.
        first: points that are measured before all others, in this order, whatever they cost.
        advised: points that come next, in this order.
        barred: measured points that break a limit. While other points keep the limits, a barred point is not the best,
            and its family is not tuned.
    """

    families: Sequence[Point]
    neighbours: Callable[[Point], Iterable[Point]]
    cost: Callable[[Point], float]
    group: int = LEAST_GROUP
    first: Sequence[Point] = ()
    advised: Sequence[Point] = ()
    observations: list[Observation] = field(default_factory=list)
    failed: set[Point] = field(default_factory=set)
    barred: set[Point] = field(default_factory=set)
    rounds: int = 0

    def add(self, logs: Mapping[Point, float | None]) -> None:
        """Add a round: logarithms of times; ``None`` for candidates that failed or have wrong outputs.

        A candidate that has worked before does not count as failed, because something else may have ended its process.
        """
        self.rounds += 1
        self.observations += [Observation(point, log, self.rounds) for point, log in logs.items() if log is not None]
        self.failed |= {point for point, log in logs.items() if log is None} - self._measured.keys()
        self.__dict__.pop("belief", None)

    def propose(self, room: int = 100) -> list[Point]:
        """Return the next round, the best so far first and the least promising last; empty if the search is over.

        ``room`` is the number of candidates that have room in memory; the best and one more take part in any case.
        """
        tried = self._measured.keys() | self.failed
        first = [point for point in dict.fromkeys([*self.first, *self.advised]) if point not in tried]
        families = sorted((point for point in self.families if point not in {*tried, *first}), key=self.cost)
        limit = COSTLY * min(map(self.cost, self.families))
        candidates = [*first, *(point for point in families if self.cost(point) <= limit)]
        candidates = candidates or (self._promising() if self.observations else []) or families[:1]
        best = [self.best] if self.observations else []
        return [*best, *candidates[: self.group]][: max(2, room)] if candidates else []

    @property
    def _measured(self) -> dict[Point, None]:
        """The points that have an observation, in order of their first ones."""
        return dict.fromkeys(observation.point for observation in self.observations)

    def _promising(self) -> list[Point]:
        """Return the points with the largest expected gain for their cost."""
        belief, points, least = self.belief, [self.best], 0.0
        while len(points) <= self.group:
            gains = belief.gain(self._best_place)
            excluded = {*points, *self.barred}
            values = [
                gain / self.cost(point) if gain >= LEAST_GAIN and point not in excluded else 0.0
                for point, gain in zip(belief.points, gains, strict=True)
            ]
            place = max(range(len(values)), key=values.__getitem__)
            if values[place] <= least:
                break
            least = max(least, LEAST_SHARE * values[place])
            points.append(belief.points[place])
            belief = belief.after_measuring(place)
        return points[1:]

    def mean(self, point: Point) -> float:
        """Return the expected logarithm of a measured point; infinite for others."""
        if not self.observations or point not in self.belief.points:
            return math.inf
        return float(self.belief.mean[self.belief.points.index(point)])

    def finalists(self) -> list[Point]:
        """Return the best, and the point that is the likeliest to be faster, if one may be."""
        belief, best, eligible = self.belief, self._best_place, self._eligible
        chances = belief.chance(best)
        others = [place for place, point in enumerate(belief.points) if place != best and point in eligible]
        rivals = [place for place in others if chances[place] >= LEAST_CHANCE]
        rivals.sort(key=lambda place: -float(chances[place]))
        return [belief.points[place] for place in (best, *rivals[:1])]

    @property
    def best(self) -> Point:
        """The measured point that is expected to be the fastest."""
        return self.belief.points[self._best_place]

    @property
    def _best_place(self) -> int:
        mean, eligible = self.belief.mean, self._eligible
        places = [place for place, point in enumerate(self.belief.points) if point in eligible]
        return min(places, key=lambda place: float(mean[place]))

    @property
    def _eligible(self) -> set[Point]:
        """The measured points that keep all limits; if none does, all measured points."""
        return self._measured.keys() - self.barred or set(self._measured)

    @cached_property
    def belief(self) -> Prediction:
        """The prediction for the measured points, and for the points that a climb from the best of a family visits."""
        pool = self._measured
        belief = predict(self.observations, list(pool))
        means = {point: float(mean) for point, mean in zip(pool, belief.mean, strict=True)}
        eligible = self._eligible
        ordered = sorted((point for point in pool if point in eligible), key=means.__getitem__)
        best_by_family: dict[str, Point] = {}
        for point in ordered:
            if means[point] <= means[ordered[0]] + REACH:
                best_by_family.setdefault(point.family, point)
        for point in best_by_family.values():
            self._climb(point, pool)
        return predict(self.observations, list(pool))

    def _climb(self, point: Point, pool: dict[Point, None]) -> None:
        """Add the neighbours of a point to the pool, then those of the best of them, until none is better."""
        while True:
            candidates = [neighbour for neighbour in self.neighbours(point) if self._may_work(neighbour)]
            pool.update(dict.fromkeys(candidates))
            belief = predict(self.observations, [point, *candidates])
            place = int(belief.mean.argmin())
            if place == 0 or belief.mean[place] >= belief.mean[0] - LEAST_GAIN:
                return
            point = belief.points[place]

    def _may_work(self, point: Point) -> bool:
        """Return ``False`` for a point with all settings that may be why another one of its family failed."""
        working = {name for measured in self._measured if measured.family == point.family for name in measured.settings}
        failures = [failed.settings for failed in self.failed if failed.family == point.family]
        return not any((settings - working or settings) <= point.settings for settings in failures)


# Times as slow as the best: slower candidates are not followed. CUDA graphs can be four times as fast.
ADVICE_REACH = {"host": 4.0, "layout": 1.3, "memory": 1.3}
LOWER = ("fp16", "bf16")  # precisions that move fewer bytes than fp32


def remedies(case: Case, limit: str, space: SearchSpace) -> set[str]:
    """Return the settings, the variant and the precision of a case that may help against a bottleneck."""
    helping_knobs = {knob.name for knob in space.able(case) if limit in knob.helps}
    result = {f"{name}={value}" for name, value in space.settings(case).items() if name in helping_knobs}
    if limit in BACKENDS.get(case.backend).variant_helps.get(case.variant or "", ()):
        result.add(case.backend_label)
    if limit == "memory" and case.precision in LOWER:
        result.add(case.precision)
    return result


def advised_cases(records: Sequence[Record], distances: Sequence[float], space: SearchSpace) -> Iterator[Case]:
    """Yield the candidates that may help against the bottlenecks of measured ones, those of the fastest first.

    ``distances`` are the logarithms of the time of each record over that of the best.
    """
    for distance, record in sorted(zip(distances, records, strict=True), key=lambda pair: pair[0]):
        limit = bottleneck(record)
        if limit and distance <= math.log(ADVICE_REACH[limit]):
            present = remedies(record.case, limit, space)
            for case in _variations(record.case, space):
                if remedies(case, limit, space) - present:
                    yield case


def advice_that_paid(
    best: Case, candidates: Sequence[Candidate], records: Mapping[str, Record], space: SearchSpace
) -> tuple[Advice, ...]:
    """Return the remedies of the best against bottlenecks of slower cases, each with the fastest case that has it.

    ``records`` has the records of the candidates, by their ids.
    """
    slower: dict[str, list[tuple[float, Case]]] = {}
    for candidate in candidates:
        record = records[candidate.record]
        limit = bottleneck(record) if candidate.speedup and candidate.high and candidate.high < 1 else ""
        if limit and not remedies(record.case, limit, space):
            slower.setdefault(limit, []).append((candidate.speedup or 0.0, record.case))
    advice = []
    for limit, rivals in slower.items():
        speedup, rival = max(rivals, key=lambda pair: pair[0])
        if settings := remedies(best, limit, space):
            advice.append(Advice(", ".join(sorted(settings)), limit, rival.way, 1 / speedup))
    return tuple(advice)


def _variations(case: Case, space: SearchSpace) -> Iterator[Case]:
    """Yield the candidates with one setting changed, then the families with another variant or precision."""
    yield from neighbours(case, space)
    for family in (planned.case for planned in space.families if planned.case.backend == case.backend):
        if (family.precision != case.precision) + (family.variant != case.variant) == 1:
            yield family


def skipped(space: SearchSpace, selection: SearchSelection, plan: Plan) -> tuple[SkippedCandidate, ...]:
    """Return the backends and precisions that the user left out, then the families that cannot run."""
    selected, allowed = _words(selection), _words(narrowed_selection(plan, selection))
    backends = [backend.name for backend in importable_backends() if [*backend.reference_for] != [backend.name]]
    names = [name for name in (*PRECISIONS, *sorted(backends)) if name not in allowed]
    results = {name: SkippedCandidate(name=name, hint="" if name in selected else "--only") for name in names}
    labels = {planned.case.backend_label for planned in space.families}
    families = {(planned.case.backend_label, planned.case.precision) for planned in space.families}
    for planned in space.refused:
        label, precision, refusal = planned.case.backend_label, planned.case.precision, planned.refusal
        if refusal and (label, precision) not in families:
            name = label if label not in labels else f"{label} {precision}"
            results.setdefault(name, SkippedCandidate(name=name, reason=refusal.what, hint=refusal.hint))
    return tuple(results.values())


def _words(selection: SearchSelection) -> set[str]:
    """Return the names of the precisions and backends that are selected."""
    return {*selection.precisions, *(label.partition(":")[0] for label in selection.labels)}


def unreached(space: SearchSpace, trials: Sequence[Trial]) -> list[SkippedCandidate]:
    """Return backends of which no family was tried because the time was over, and precisions of others."""
    tried = [record.case for trial in trials for record in trial.records]
    digests, labels = {case.digest for case in tried}, {case.backend_label for case in tried}
    untried = [planned.case for planned in space.families if planned.case.digest not in digests]
    names = [case.backend_label + f" {case.precision}" * (case.backend_label in labels) for case in untried]
    reason, hint = "time was over", "a longer --budget"
    return [SkippedCandidate(name=name, reason=reason, hint=hint) for name in dict.fromkeys(names)]


# Predictions for candidates that are not measured yet: a Gaussian process over named settings.
#
# A candidate belongs to a family, a variant in a precision, and has settings that differ from the family's defaults.
# The logarithm of its time is that of the family, plus the effect of each setting in general and in this family, plus
# a rest of its own. A measurement adds the effect of the machine on all that were measured together, and noise. All of
# these are normal and independent, so the covariance of two candidates is a sum over their common parts: C. E.
# Rasmussen and C. K. I. Williams, "Gaussian processes for machine learning" (2006), chapter 2. The noise is chosen by
# the marginal likelihood from a few values; noise that is far from usual needs many measurements.

Matrix = NDArray[np.floating[Any]]
FAMILY, ROUND = 1.0, 0.5  # standard deviations of logarithms
SETTING = 0.2  # of the effect of a setting in general
FAMILY_SETTING = 1.5  # of its effect in one family, relative to that
REST = 0.3  # of a candidate's distance from the sum of its settings, relative to that
NOISE = (0.03, 0.06, 0.12)  # lower values take the luck of a single process for a gain
USUAL_NOISE, NOISE_RANGE = 0.03, 2.0  # a normal prior of its logarithm
LARGEST_EFFECT = math.log(10)  # an interval that reaches further says nothing


class Point(Struct, frozen=True):
    """A candidate: its family, ``VARIANT PRECISION``, and its settings that are not the family's defaults."""

    family: str
    settings: frozenset[str] = frozenset()


class Observation(Struct, frozen=True):
    """The logarithm of a time that was measured in a round."""

    point: Point
    log: float
    round: Hashable


@dataclass(frozen=True)
class Prediction:
    """The distribution of the logarithms of candidates: means and covariance."""

    points: Sequence[Point]
    mean: Matrix
    covariance: Matrix
    noise: float

    def after_measuring(self, place: int) -> Prediction:
        """Return the prediction after one more measurement: the covariance does not depend on its outcome."""
        column = self.covariance[:, place]
        reduction = np.outer(column, column) / (column[place] + self.noise**2)
        return replace(self, covariance=self.covariance - reduction)

    def gain(self, best: int) -> Matrix:
        """Return the expected improvement over ``best`` of each candidate, as a logarithm.

        D. R. Jones, M. Schonlau and W. J. Welch, "Efficient global optimization of expensive black-box functions",
        Journal of Global Optimization 13 (1998).
        """
        from scipy.special import ndtr

        advantage, deviation = self._advantage(best)
        ratio = advantage / deviation
        gain: Matrix = advantage * ndtr(ratio) + deviation * np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
        return gain

    def chance(self, best: int) -> Matrix:
        """Return the probability that each candidate is faster than ``best``."""
        from scipy.special import ndtr

        advantage, deviation = self._advantage(best)
        chance: Matrix = ndtr(advantage / deviation)
        return chance

    def difference_variance(self, first: int, second: int) -> float:
        """Return the variance of the difference of two candidates."""
        covariance = self.covariance
        return float(covariance[first, first] + covariance[second, second] - 2 * covariance[first, second])

    def _advantage(self, best: int) -> tuple[Matrix, Matrix]:
        """Return mean and standard deviation of the advantage of each candidate over ``best``."""
        variances = np.diag(self.covariance)
        squared = variances + variances[best] - 2 * self.covariance[best]
        return self.mean[best] - self.mean, np.sqrt(np.maximum(squared, 1e-18))


def predict(observations: Sequence[Observation], points: Sequence[Point]) -> Prediction:
    """Return the prediction for ``points`` from at least one observation."""
    logs = np.array([observation.log for observation in observations])
    level = float(logs.mean())
    logs = logs - level
    measured = [observation.point for observation in observations]
    rounds = [observation.round for observation in observations]
    same_round = np.array([[first == second for second in rounds] for first in rounds]) * ROUND**2
    covariance = _covariance(measured, measured)
    best = None
    for noise in NOISE:
        lower = np.linalg.cholesky(covariance + same_round + noise**2 * np.eye(len(observations)))
        half = np.linalg.solve(lower, logs)
        likelihood = -0.5 * float(half @ half) - float(np.log(np.diag(lower)).sum())
        likelihood -= 0.5 * (math.log(noise / USUAL_NOISE) / NOISE_RANGE) ** 2
        if best is None or likelihood > best[0]:
            best = likelihood, noise, lower, half
    assert best
    _, noise, lower, half = best
    across = np.linalg.solve(lower, _covariance(measured, points))
    return Prediction(
        points=points,
        mean=level + across.T @ half,
        covariance=_covariance(points, points) - across.T @ across,
        noise=noise,
    )


def _covariance(rows: Sequence[Point], columns: Sequence[Point]) -> Matrix:
    """Return the covariance of each pair, from equal families, the number of common settings, and equality."""
    family = np.array([[row.family == column.family for column in columns] for row in rows], dtype=np.float64)
    names = sorted({name for point in (*rows, *columns) for name in point.settings})
    first, second = (
        np.array([[name in point.settings for name in names] for point in side], dtype=np.float64)
        for side in (rows, columns)
    )
    settings = first.reshape(len(rows), len(names)) @ second.reshape(len(columns), len(names)).T
    equal = np.array([[row == column for column in columns] for row in rows], dtype=np.float64)
    variance = SETTING**2 * settings * (1 + FAMILY_SETTING**2 * family)
    return FAMILY**2 * family + variance + (REST * SETTING) ** 2 * equal


def setting_effects(observations: Sequence[Observation], point: Point) -> dict[str, tuple[float, float, float] | None]:
    """Return the speed-up by each setting of a point's family, and its 95 % interval; ``None`` if unknown.

    By least squares: the logarithm of a time is the level of its round, plus that of its candidate, or in the family of
    ``point``, the family's plus the effect of each setting there. The intervals of all settings that were measured in
    the family hold at once (Bonferroni), as a winner has the settings that looked best.
    """
    places: dict[Hashable, int] = {}
    columns = [
        [places.setdefault(term, len(places)) for term in _terms(observation, point.family)]
        for observation in observations
    ]
    design = np.zeros((len(observations), len(places)))
    for row, column in enumerate(columns):
        design[row, column] = 1.0
    logs, inverse = np.array([observation.log for observation in observations]), np.linalg.pinv(design)
    rest = logs - design @ (inverse @ logs)
    freedom = len(observations) - int(np.linalg.matrix_rank(design))
    points = [observation.point for observation in observations]
    measured = {name for other in points if other.family == point.family for name in other.settings}
    effects: dict[str, tuple[float, float, float] | None] = dict.fromkeys(sorted(point.settings | measured))
    for name in effects.keys() & measured if freedom > 0 else ():
        contrast = np.zeros(len(places))
        contrast[places["setting", name]] = -1.0
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
