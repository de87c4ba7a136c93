"""The search of a tuning: chooses the cases that ``inferlens tune`` measures next, and the finalists.

The tuner asks for the cases of a round and tells the search their records, until no case is left::

    while cases := search.ask(cost):
        search.tell(measure(cases))

A round is the best case so far, so that a disturbance of the machine that affects the whole round cancels out, and a
few cases that are chosen in this order (:meth:`Search._next_points`):

1. the reference, and the cases that backends recommend in its precision;
2. the cases that the profiles of fast cases advise, such as a CUDA graph where calls wait for the host;
3. the families that were not measured and do not cost much, the cheapest first;
4. the cases with the largest expected gain for their cost, by a Gaussian process (:class:`TimeModel`), among the other
   families that were not measured and the neighbours of the best cases.

The search is over when no case promises ``LEAST_GAIN``. It runs nothing and depends only on what it was told, so an
interrupted tuning continues by telling it the records that were kept. In here a case is a *point*: the name of its
family, and its settings, which are all that the model knows of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferlens.analysis.measures import violation_factors, violations
from inferlens.analysis.race import log_cost
from inferlens.analysis.tuning import Observation, Point, Speedup
from inferlens.execution.tuning.space import SearchSpace, advised_cases, neighbours
from inferlens.record.record import Record
from inferlens.spec.case import Case
from inferlens.spec.objective import Constraint, Objective
from inferlens.stats.intervals import normal_quantile

LEAST_GAIN = 0.004  # the smallest expected gain that is worth a process, as a logarithm
REACH = math.log(1.6)  # families further behind the best are not tuned
COSTLY = 4  # times the cost of the cheapest family: families that cost more wait until a large gain is expected
LEAST_GROUP = 3  # cases of a round, in addition to the best
LEAST_CHANCE = 0.15  # the smallest probability of being faster than the best with which a rival is in the finals


class Search:
    """A search among the candidates of a space. Only :meth:`tell` changes what it knows.

    Attributes:
        rounds: the number of rounds.
        records: the first record of each candidate that ran right.
        beyond_limits: the candidates of ``records`` that break a limit. While others keep the limits, such a candidate
            is not the best, and its family is not tuned.
        failed: the candidates that never ran right, or of which a limit is unknown.
        model: the model of the times of all others.
        means: the expected logarithm of the time of each measured candidate.
    """

    def __init__(
        self, space: SearchSpace, objective: Objective, limits: Sequence[Constraint] = (), group: int = LEAST_GROUP
    ) -> None:
        self.space, self.objective, self.limits, self.group = space, objective, limits, group
        self.rounds = 0
        self.records: dict[Point, Record] = {}
        self.beyond_limits: set[Point] = set()
        self.failed: set[Point] = set()
        self.model = TimeModel.fit([])
        self.means: dict[Point, float] = {}
        self._cases: dict[Point, Case] = {}
        self._neighbours: dict[Point, list[Point]] = {}
        references, recommended = space.references[:1], space.recommended
        precision = next((case.precision for case in (*references, *recommended)), "")
        first = [*references, *(case for case in recommended if case.precision == precision)]
        self._first = self._points(first)
        self._families = self._points([*recommended, *(family.case for family in space.families)])

    def tell(self, records: Sequence[Record]) -> None:
        """Add the records of a round.

        A candidate that has worked before does not count as failed, because something else may have ended its process.
        """
        self.rounds += 1
        observations = [*self.model.observations]
        for record in records:
            (point,) = self._points([record.case])
            log = log_cost(self.objective, record) if record.ranked else None
            if record.ranked and point not in self.records:
                self.records[point] = record
                if violations(record, self.limits):
                    self.beyond_limits.add(point)
            if log is not None and math.inf not in violation_factors(record, self.limits):
                observations.append(Observation(point, log, self.rounds))
            elif point not in self.means:
                self.failed.add(point)
        self.model = TimeModel.fit(observations)
        self.means = self.model.predict(self.model.measured).means

    def ask(self, cost: Callable[[Case], float], room: int = 100) -> list[Case]:
        """Return the cases of the next round, the best first and the least promising last; empty if the search is over.

        Args:
            cost: returns the relative cost to measure a case.
            room: the number of cases that have room in memory; the best and one more take part in any case.
        """
        points = self._next_points(cost)
        best = [self._best] if points and self._best else []
        return [self._cases[point] for point in [*best, *points][: max(2, room)]]

    @property
    def best(self) -> Case | None:
        """The measured case that is expected to be the fastest; ``None`` if nothing ran."""
        return self._cases[self._best] if self._best else None

    def record(self, case: Case) -> Record:
        """Return the first record of a case that ran right."""
        return self.records[self.space.point(case)]

    def finalists(self, *, rival: bool) -> list[Case]:
        """Return the best, a ``rival``, the best that ``inferlens bench`` would measure, and the reference."""
        references = [case for case in self.space.references if self.space.point(case) in self.records][:1]
        families = self._points(family.case for family in self.space.families)
        families = [point for point in families if point in self.records]
        if references:
            families = [point for point in families if self._cases[point].precision == references[0].precision]
        families.sort(key=lambda point: (point in self.beyond_limits, self.means.get(point, math.inf)))
        points = [*self._fastest(rival=rival), *families[:1], *self._points(references)]
        return [self._cases[point] for point in dict.fromkeys(points)]

    def excluded(self, finalists: Iterable[Case]) -> frozenset[str]:
        """Return the digests of finalists that cannot win, because they break a limit. If all do, the nearest can."""
        points = self._points(finalists)
        excluded = [point for point in points if point in self.beyond_limits]
        if len(excluded) == len(points):
            excluded = [point for point in excluded if point not in self._nearest()]
        return frozenset(self._cases[point].digest for point in excluded)

    def _fastest(self, *, rival: bool) -> list[Point]:
        """Return the best, and the point that is the likeliest to be faster, if one may be."""
        if not self._best or self._best in self.beyond_limits:
            return self._nearest()
        chances = self.model.predict(self._eligible).chances(self._best)
        chances.pop(self._best)
        likeliest = max(chances, key=chances.__getitem__, default=self._best)
        return [self._best, likeliest] if rival and chances.get(likeliest, 0.0) >= LEAST_CHANCE else [self._best]

    def _nearest(self) -> list[Point]:
        """Return the point that breaks the limits least, for when none keeps them."""
        return sorted(self.records, key=lambda point: violation_factors(self.records[point], self.limits))[:1]

    @property
    def _eligible(self) -> list[Point]:
        """The measured points that keep all limits; if none does, all measured points."""
        return [point for point in self.means if point not in self.beyond_limits] or list(self.means)

    @property
    def _best(self) -> Point | None:
        return min(self._eligible, key=self.means.__getitem__, default=None)

    def _next_points(self, cost: Callable[[Case], float]) -> list[Point]:
        """Return the points of the next round without the best, the most promising first."""
        costs = {point: cost(self._cases[point]) for point in self._families}
        families = sorted(self._untried(costs), key=costs.__getitem__)
        cheap = [point for point in families if costs[point] <= COSTLY * min(costs.values(), default=0.0)]
        points = self._untried([*self._first, *self._advised(), *cheap])[: self.group]
        if self._best:
            return self._filled(points, self._best, cost)
        return list(dict.fromkeys([*points, *families]))[: self.group]  # the model knows nothing yet

    def _untried(self, points: Iterable[Point]) -> list[Point]:
        return [point for point in dict.fromkeys(points) if point not in self.means and point not in self.failed]

    def _advised(self) -> list[Point]:
        """Return the points that may help against the bottlenecks of measured ones that keep all limits."""
        measured = [point for point in self.records if point in self.means and point not in self.beyond_limits]
        least = min((self.means[point] for point in measured), default=0.0)
        distances = [self.means[point] - least for point in measured]
        return self._points(advised_cases([self.records[point] for point in measured], distances, self.space))

    def _filled(self, points: Sequence[Point], best: Point, cost: Callable[[Case], float]) -> list[Point]:
        """Return the points of a round, and those with the largest expected gain for their cost to fill it.

        Each is chosen as if those before it were measured. A family that was not measured is always worth a process.
        """
        families = self._untried(self._families)
        pool = dict.fromkeys([*points, *self.means, *families, *self._surroundings(best)])
        prediction, filled = self.model.predict(list(pool)), [*points]
        for point in points:
            prediction = prediction.after_measuring(point)
        while len(filled) < self.group:
            values = {
                point: max(gain, LEAST_GAIN) / cost(self._cases[point])
                for point, gain in prediction.gains(best).items()
                if (gain >= LEAST_GAIN or point in families)
                and point not in (best, *filled)
                and point not in self.beyond_limits
            }
            if not values:
                break
            filled.append(max(values, key=values.__getitem__))
            prediction = prediction.after_measuring(filled[-1])
        return filled

    def _surroundings(self, best: Point) -> list[Point]:
        """Return the points that climbs from the best point of each family visit."""
        leaders: dict[str, Point] = {}
        for point in sorted(self._eligible, key=self.means.__getitem__):
            if self.means[point] <= self.means[best] + REACH:
                leaders.setdefault(point.family, point)
        return [visited for point in leaders.values() for visited in self._climb(point)]

    def _climb(self, point: Point) -> list[Point]:
        """Return the neighbours of a point, then those of the best of them, until none is better."""
        visited: list[Point] = []
        while True:
            near = self._working_neighbours(point)
            visited += near
            means = self.model.predict([point, *near]).means
            fastest = min(means, key=means.__getitem__)
            if means[fastest] >= means[point] - LEAST_GAIN:
                return visited
            point = fastest

    def _working_neighbours(self, point: Point) -> list[Point]:
        """Return the neighbours of a point, without those with all settings that may have made another one fail."""
        if point not in self._neighbours:
            self._neighbours[point] = self._points(neighbours(self._cases[point], self.space))
        working = {name for measured in self.means if measured.family == point.family for name in measured.settings}
        failures = [failed.settings for failed in self.failed if failed.family == point.family]
        causes = [settings - working or settings for settings in failures]
        return [near for near in self._neighbours[point] if not any(cause <= near.settings for cause in causes)]

    def _points(self, cases: Iterable[Case]) -> list[Point]:
        """Return the points of cases, and remember which case a point is."""
        points = {self.space.point(case): case for case in cases}
        self._cases.update(points)
        return list(points)


# The model of the times, by which candidates are chosen that are not measured yet.

Matrix = NDArray[np.floating[Any]]
Terms = Mapping[Hashable, float]  # normal and independent parts of a sum, with their variances
FAMILY, ROUND = 1.0, 0.5  # standard deviations of logarithms
SETTING = 0.2  # of the effect of a setting in general
FAMILY_SETTING = 1.5  # of its effect in one family, relative to that
REST = 0.3  # of a candidate's distance from the sum of its settings, relative to that
NOISE = (0.03, 0.06, 0.12)  # lower values take the luck of a single process for a gain
USUAL_NOISE, NOISE_RANGE = 0.03, 2.0  # a normal prior of its logarithm
LEAST_DEVIATION = 1e-9  # because a point has no advantage over itself


@dataclass(frozen=True)
class Prediction:
    """The distribution of the logarithms of the times of points: means and covariance."""

    points: Sequence[Point]
    mean: Matrix
    covariance: Matrix
    noise: float

    @property
    def means(self) -> dict[Point, float]:
        return self._by_point(self.mean)

    def after_measuring(self, point: Point) -> Prediction:
        """Return the prediction after one more measurement. The covariance does not depend on its outcome."""
        column = self.covariance[:, self.points.index(point)]
        reduction = np.outer(column, column) / (column[self.points.index(point)] + self.noise**2)
        return replace(self, covariance=self.covariance - reduction)

    def advantages(self, best: Point) -> tuple[Matrix, Matrix]:
        """Return the mean and the standard deviation of the advantage of each point over ``best``."""
        variances, place = np.diag(self.covariance), self.points.index(best)
        squared = variances + variances[place] - 2 * self.covariance[place]
        return self.mean[place] - self.mean, np.sqrt(np.maximum(squared, 0.0))

    def gains(self, best: Point) -> dict[Point, float]:
        """Return the expected improvement of each point over ``best``, as a logarithm.

        D. R. Jones, M. Schonlau and W. J. Welch, "Efficient global optimization of expensive black-box functions",
        Journal of Global Optimization 13 (1998).
        """
        from scipy.special import ndtr

        advantage, deviation = self.advantages(best)
        ratio = advantage / np.maximum(deviation, LEAST_DEVIATION)
        density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
        return self._by_point(advantage * ndtr(ratio) + deviation * density)

    def chances(self, best: Point) -> dict[Point, float]:
        """Return the probability that each point is faster than ``best``."""
        from scipy.special import ndtr

        advantage, deviation = self.advantages(best)
        return self._by_point(ndtr(advantage / np.maximum(deviation, LEAST_DEVIATION)))

    def _by_point(self, values: Matrix) -> dict[Point, float]:
        """Return rounded values. Points of which equally little is known are then equal, and the first one is taken."""
        return dict(zip(self.points, values.round(9).tolist(), strict=True))


@dataclass(frozen=True)
class TimeModel:
    """A Gaussian process of the logarithms of times, fitted to observations.

    The logarithm of a candidate's time is a sum of terms (:func:`_terms`). A measurement adds the effect of the machine
    on its round, and noise. All of these are normal and independent, so the covariance of two candidates is the sum of
    the variances of their common terms: C. E. Rasmussen and C. K. I. Williams, "Gaussian processes for machine
    learning" (2006), chapter 2. The noise is the likeliest of a few values; noise that is far from usual needs many
    measurements.
    """

    observations: Sequence[Observation]
    level: float  # the mean logarithm
    noise: float
    likelihood: float  # the logarithm, up to a constant
    whitening: Matrix  # the inverse of the Cholesky factor of the covariance of the observations
    whitened: Matrix  # the observations, which have become independent

    @classmethod
    def fit(cls, observations: Sequence[Observation]) -> TimeModel:
        return max((cls.with_noise(observations, noise) for noise in NOISE), key=lambda model: model.likelihood)

    @classmethod
    def with_noise(cls, observations: Sequence[Observation], noise: float) -> TimeModel:
        logs = np.array([observation.log for observation in observations])
        level = float(logs.mean()) if observations else 0.0
        rounds = [{observation.round: ROUND**2} for observation in observations]
        points = [_terms(observation.point) for observation in observations]
        covariance = _covariance(points, points) + _covariance(rounds, rounds) + noise**2 * np.eye(len(logs))
        lower = np.linalg.cholesky(covariance)
        whitening = np.linalg.inv(lower)
        whitened = whitening @ (logs - level)
        likelihood = -0.5 * float(whitened @ whitened) - float(np.log(np.diag(lower)).sum())
        likelihood -= 0.5 * (math.log(noise / USUAL_NOISE) / NOISE_RANGE) ** 2
        return cls(observations, level, noise, likelihood, whitening, whitened)

    @property
    def measured(self) -> list[Point]:
        """The points of the observations, each once."""
        return list(dict.fromkeys(observation.point for observation in self.observations))

    def predict(self, points: Sequence[Point]) -> Prediction:
        """Return the distribution of the logarithms of the times of points."""
        measured, terms = [_terms(observation.point) for observation in self.observations], list(map(_terms, points))
        across = self.whitening @ _covariance(measured, terms)
        mean, covariance = self.level + across.T @ self.whitened, _covariance(terms, terms) - across.T @ across
        return Prediction(points, mean, covariance, self.noise)


def _terms(point: Point) -> Terms:
    """Return the terms of a candidate: its family, each setting in general and in this family, and a rest."""
    terms: dict[Hashable, float] = {(point.family,): FAMILY**2, point: (REST * SETTING) ** 2}
    for name in sorted(point.settings):  # in one order, so that rounding is the same in all runs
        terms |= {name: SETTING**2, (point.family, name): (FAMILY_SETTING * SETTING) ** 2}
    return terms


def _covariance(rows: Sequence[Terms], columns: Sequence[Terms]) -> Matrix:
    """Return the covariance of each pair: the sum of the variances of their common terms."""
    places = {term: place for place, term in enumerate(dict.fromkeys(term for terms in rows for term in terms))}
    variances, common = np.zeros((len(rows), len(places))), np.zeros((len(columns), len(places)))
    for row, terms in zip(variances, rows, strict=True):
        row[[places[term] for term in terms]] = list(terms.values())
    for row, terms in zip(common, columns, strict=True):
        row[[places[term] for term in terms if term in places]] = 1.0
    covariance: Matrix = variances @ common.T
    return covariance


def speedups(observations: Sequence[Observation], best: Point) -> dict[Point, Speedup]:
    """Return the speedups of observed points over the best, with a 95 % interval."""
    model = TimeModel.fit(observations)
    points = list(dict.fromkeys([best, *model.measured]))
    means, deviations = model.predict(points).advantages(best)
    margins = normal_quantile(0.975) * deviations
    return {
        point: (math.exp(log), math.exp(log - margin), math.exp(log + margin))
        for point, log, margin in zip(points, means, margins, strict=True)
    }
