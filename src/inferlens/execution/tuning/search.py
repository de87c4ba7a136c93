"""Which candidates a tuning measures next, given the measurements so far.

The first candidates are those that backends recommend. Next are those that the profile of a fast candidate advises,
such as a CUDA graph where calls wait for the host. Then come all families that are cheap to build. After that, a round
has the candidates with the largest expected gain for their cost, by a Gaussian process over families and settings
(``stats.gaussian_process``). The best candidate so far is in every round, so that a disturbance of the machine that
affects the whole round cancels out. The search is over when no candidate promises ``LEAST_GAIN`` and no family is left.

Nothing here runs a process, and proposals depend only on what was added: an interrupted tuning continues by adding its
measurements again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from inferlens.execution.tuning.space import Space, neighbours
from inferlens.spec.case import Case
from inferlens.stats.search_model import Observation, Point, Prediction, predict

LEAST_GAIN = 0.004  # expected, as a share: less is not worth a process
LEAST_SHARE = 0.3  # of what the first of a round promises for its cost: what promises less waits until more is known
REACH = math.log(1.6)  # families further behind the best are not tuned
COSTLY = 4  # times the cheapest family: such a family comes last
LEAST_GROUP = 3  # candidates of a round, beside the best
LEAST_CHANCE = 0.15  # of being faster than the best: with less none is confirmed beside it


@dataclass
class Candidates:
    """Candidates of a space as points, and the case of each point that was met."""

    space: Space
    cases: dict[Point, Case] = field(default_factory=dict)
    _near: dict[Point, list[Point]] = field(default_factory=dict)

    def point(self, case: Case) -> Point:
        """What a search knows a case by."""
        settings = frozenset(f"{name}={value}" for name, value in self.space.settings(case).items())
        point = Point(self.space.family(case).label, settings)
        self.cases.setdefault(point, case)
        return point

    def neighbours(self, point: Point) -> list[Point]:
        """Those of the space."""
        if point not in self._near:
            self._near[point] = [self.point(case) for case in neighbours(self.cases[point], self.space)]
        return self._near[point]


@dataclass
class Search:
    """A search among candidates.

    Attributes:
        families: points without settings.
        neighbours: points that differ from one by a setting more, less or of another value.
        cost: what a point costs to measure, beside others.
        group: how many are measured in a round, beside the best.
        first: points that are measured before all others, in this order, whatever they cost.
        advised: points that come next, in this order.
        barred: points that were measured and break a limit. The best is one of them, and their families are tuned, only
            while nothing keeps the limits.
    """

    families: Sequence[Point]
    neighbours: Callable[[Point], Iterable[Point]]
    cost: Callable[[Point], float]
    group: int = LEAST_GROUP
    first: Sequence[Point] = ()
    advised: Sequence[Point] = ()
    seen: list[Observation] = field(default_factory=list)
    failed: set[Point] = field(default_factory=set)
    barred: set[Point] = field(default_factory=set)
    rounds: int = 0

    def add(self, found: Mapping[Point, float | None]) -> None:
        """What a round found: logarithms of times; ``None`` of what failed or is wrong.

        What has worked before stays among the candidates: something else may have ended it.
        """
        self.rounds += 1
        self.seen += [Observation(point, log, self.rounds) for point, log in found.items() if log is not None]
        worked = {each.point for each in self.seen}
        self.failed |= {point for point, log in found.items() if log is None and point not in worked}
        self.__dict__.pop("belief", None)

    def propose(self) -> list[Point]:
        """The next round, the best so far first; empty if the search is over."""
        known = {each.point for each in self.seen} | self.failed
        best = [self.best] if self.seen else []
        first = [point for point in dict.fromkeys([*self.first, *self.advised]) if point not in known]
        families = [point for point in self.families if point not in {*known, *first}]
        families.sort(key=lambda family: (self._level(family), self.cost(family)))
        limit = COSTLY * min(map(self.cost, self.families))
        cheap = [point for point in families if self.cost(point) <= limit]
        chosen = [*first, *cheap] or (self._promising() if best else []) or families[:1]
        return [*best, *chosen[: self.group]] if chosen else []

    def _promising(self) -> list[Point]:
        """Return the points with the largest expected gain for their cost."""
        belief, chosen, least = self.belief, [self.best], 0.0
        while len(chosen) <= self.group:
            gain = belief.gain(self._best_place)
            worth = [
                each / self.cost(point) if each >= LEAST_GAIN and point not in {*chosen, *self.barred} else 0.0
                for point, each in zip(belief.points, gain, strict=True)
            ]
            place = max(range(len(worth)), key=worth.__getitem__)
            if worth[place] <= least:
                break
            least = max(least, LEAST_SHARE * worth[place])
            chosen.append(belief.points[place])
            belief = belief.after_measuring(place)
        return chosen[1:]

    def _level(self, family: Point) -> float:
        """Return the mean of the fastest candidate of the family's variant, in any precision.

        A variant that was not measured counts as one that is ``REACH`` behind the best.
        """
        variant = family.family.partition(" ")[0]
        same = [each.point for each in self.seen if each.point.family.partition(" ")[0] == variant]
        return min(map(self.mean, same), default=self.mean(self.best) + REACH if self.seen else 0.0)

    def mean(self, point: Point) -> float:
        """What is believed of a measured one; infinite for others."""
        if not self.seen or point not in self.belief.points:
            return math.inf
        return float(self.belief.mean[self.belief.points.index(point)])

    def finalists(self) -> list[Point]:
        """The best, then what may be faster: what has fewer settings of the best, then the likeliest."""
        belief, best, measured = self.belief, self._best_place, self._eligible
        points, chances = belief.points, belief.chance(best)

        def order(place: int) -> tuple[bool, float]:
            less = points[place].family == points[best].family and points[place].settings < points[best].settings
            return not less, -chances[place]

        others = [place for place, point in enumerate(points) if place != best and point in measured]
        others = sorted((place for place in others if chances[place] >= LEAST_CHANCE), key=order)
        return [points[place] for place in (best, *others)]

    @property
    def best(self) -> Point:
        """The measured one that is believed to be the fastest."""
        return self.belief.points[self._best_place]

    @property
    def _best_place(self) -> int:
        mean, eligible = self.belief.mean, self._eligible
        places = [place for place, point in enumerate(self.belief.points) if point in eligible]
        return min(places, key=lambda place: float(mean[place]))

    @property
    def _eligible(self) -> set[Point]:
        """What was measured and keeps all limits; where nothing does, all that was measured."""
        measured = {each.point for each in self.seen}
        return measured - self.barred or measured

    @cached_property
    def belief(self) -> Prediction:
        """What is believed of the measured ones, of their neighbours, and of what those lead to."""
        measured = list(dict.fromkeys(each.point for each in self.seen))
        belief = predict(self.seen, measured)
        means = {point: float(mean) for point, mean in zip(measured, belief.mean, strict=True)}
        eligible = self._eligible
        limit = min(means[point] for point in eligible) + REACH
        near = [point for point in measured if point in eligible and means[point] <= limit]
        best_of: dict[str, Point] = {}  # of each family the one that seems best
        for point in sorted(near, key=means.__getitem__):
            best_of.setdefault(point.family, point)
        pool = dict.fromkeys(measured)
        for start in best_of.values():
            self._climb(start, pool)
        return predict(self.seen, list(pool))

    def _climb(self, point: Point, pool: dict[Point, None]) -> None:
        """Adds neighbours of a point, then those of the best of them, until none is better."""
        while True:
            around = [each for each in self.neighbours(point) if self._may(each)]
            pool.update(dict.fromkeys(around))
            belief = predict(self.seen, [point, *around])
            place = int(belief.mean.argmin())
            if place == 0 or belief.mean[place] >= belief.mean[0] - LEAST_GAIN:
                return
            point = belief.points[place]

    def _may(self, point: Point) -> bool:
        """Not what has all settings by which one of its family may have failed: those that nobody there works with."""
        works = [each.point.settings for each in self.seen if each.point.family == point.family]
        known = frozenset[str]().union(*works)
        failed = (each.settings for each in self.failed if each.family == point.family)
        return not any((settings - known or settings) <= point.settings for settings in failed)
