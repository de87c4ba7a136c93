"""The search of a tuning. This module alone decides which candidate ``inferlens tune`` tries next.

The first candidates are the reference and those that backends recommend in its precision. Next are those that the
profile of a fast candidate advises, such as a CUDA graph where calls wait for the host. Then come all families that are
cheap to build. After that, a round has the candidates with the largest expected gain for their cost, by a Gaussian
process over families and settings (``stats.search_model``). The best candidate so far is in every round, so that a
disturbance of the machine that affects the whole round cancels out. The search is over when no candidate promises
``LEAST_GAIN`` and no family is left. The finalists are chosen here, too.

Nothing here runs a process, and proposals depend only on what was added: an interrupted tuning continues by adding its
measurements again. How candidates compare with the winner follows from the rounds of the search, by the same Gaussian
process; a candidate that breaks a limit is included. The finals are not, because only they give the answer. Effects
of settings follow from all rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean

from inferlens.analysis.measures import bottleneck, violation_factors, violations
from inferlens.analysis.race import log_cost
from inferlens.analysis.tuning import Candidate, Effect, SkippedCandidate, Trial
from inferlens.backends import BACKENDS, importable_backends
from inferlens.execution.tuning.space import (
    SearchSelection,
    SearchSpace,
    narrowed_selection,
    neighbours,
)
from inferlens.record.record import Record
from inferlens.spec.case import PRECISIONS, Case
from inferlens.spec.objective import Constraint, Objective
from inferlens.spec.plan import Plan
from inferlens.stats.intervals import normal_quantile
from inferlens.stats.search_model import Observation, Point, Prediction, predict, setting_effects

LEAST_GAIN = 0.004  # expected, as a share: less is not worth a process
LEAST_SHARE = 0.3  # of what the first of a round promises for its cost: a candidate with less waits
REACH = math.log(1.6)  # families further behind the best are not tuned
COSTLY = 4  # times the cheapest family: such a family comes last
LEAST_GROUP = 3  # candidates of a round, in addition to the best
LEAST_CHANCE = 0.15  # of being faster than the best: with less none is confirmed


@dataclass
class Candidates:
    """Candidates of a space as points, their cases, and the first records of those that ran right, by digest."""

    space: SearchSpace
    cases: dict[Point, Case] = field(default_factory=dict)
    ran: dict[str, Record] = field(default_factory=dict)
    _near: dict[Point, list[Point]] = field(default_factory=dict)

    def point(self, case: Case) -> Point:
        settings = frozenset(f"{name}={value}" for name, value in self.space.settings(case).items())
        point = Point(self.space.family(case).label, settings)
        self.cases.setdefault(point, case)
        return point

    def neighbours(self, point: Point) -> list[Point]:
        if point not in self._near:
            self._near[point] = [self.point(case) for case in neighbours(self.cases[point], self.space)]
        return self._near[point]

    def search(self, cost: Callable[[Case], float], group: int) -> Search:
        """Return a search that has measured nothing; ``cost`` and ``group`` are as of :class:`Search`."""
        reference, recommended = self.space.references[:1], self.space.recommended
        usual = (reference or recommended)[:1]
        first = [*reference, *(case for case in recommended if case.precision == usual[0].precision)]
        families = [*recommended, *(family.case for family in self.space.families)]
        return Search(
            families=list(dict.fromkeys(map(self.point, families))),
            first=list(dict.fromkeys(map(self.point, first))),
            neighbours=self.neighbours,
            cost=lambda point: cost(self.cases[point]),
            group=group,
        )

    def learn(
        self, search: Search, records: Sequence[Record], objective: Objective, limits: Sequence[Constraint]
    ) -> None:
        """Add the records of a round to the search. Candidates that are wrong, or whose limits are unknown, are out."""
        for record in records:
            if record.ranked:
                self.ran.setdefault(record.case.digest, record)
        able = [record for record in records if record.ranked and math.inf not in violation_factors(record, limits)]
        logs: dict[Point, float | None] = {self.point(record.case): None for record in records}
        logs |= {self.point(record.case): log for record in able if (log := log_cost(objective, record)) is not None}
        search.barred = {self.point(record.case) for record in self.ran.values() if violations(record, limits)}
        search.add(logs)
        if search.observations:
            right = [record for record in self.ran.values() if self.point(record.case) not in search.barred]
            best = search.mean(search.best)
            cases = advised(right, lambda case: search.mean(self.point(case)) - best, self.space)
            search.advised = list(map(self.point, cases))

    def finalists(self, search: Search, limits: Sequence[Constraint], *, rival: bool) -> list[Case]:
        """Return the best, a ``rival``, the best that ``inferlens bench`` would measure, and the reference."""
        able = search.observations and search.best not in search.barred
        chosen = [self.cases[point] for point in search.finalists()] if able else self.nearest(limits)
        reference = [case for case in self.space.references if case.digest in self.ran][:1]
        usual = [family.case for family in self.space.families if family.case.digest in self.ran]
        usual = [case for case in usual if not reference or case.precision == reference[0].precision]
        points = {case.digest: self.point(case) for case in usual}
        usual.sort(key=lambda case: (points[case.digest] in search.barred, search.mean(points[case.digest])))
        cases = [*chosen[: 1 + rival], *usual[:1], *reference]
        return list({case.digest: case for case in cases}.values())

    def nearest(self, limits: Sequence[Constraint]) -> list[Case]:
        """Return the case that breaks the limits least, for when none keeps them."""
        able = sorted(self.ran.values(), key=lambda record: violation_factors(record, limits))
        return [record.case for record in able[:1]]


@dataclass
class Search:
    """A search among candidates.

    Attributes:
        families: points without settings.
        neighbours: returns the points that differ from one by a setting more, less or of another value.
        cost: returns the relative cost to measure a point.
        group: the number of candidates of a round, in addition to the best.
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
    observations: list[Observation] = field(default_factory=list)
    failed: set[Point] = field(default_factory=set)
    barred: set[Point] = field(default_factory=set)
    rounds: int = 0

    def add(self, logs: Mapping[Point, float | None]) -> None:
        """Add a round: logarithms of times; ``None`` for candidates that failed or are wrong.

        A candidate that has worked before stays: something else may have ended its process.
        """
        self.rounds += 1
        self.observations += [Observation(point, log, self.rounds) for point, log in logs.items() if log is not None]
        worked = {one.point for one in self.observations}
        self.failed |= {point for point, log in logs.items() if log is None and point not in worked}
        self.__dict__.pop("belief", None)

    def propose(self, room: int = 100, ends_in_time: Callable[[list[Point]], bool] = lambda _: True) -> list[Point]:
        """Return the next round, the best so far first; empty if the search is over, or there is no time for it.

        Args:
            room: the number of candidates that have room in memory; the best and one more take part in any case.
            ends_in_time: of a round that does not, the least promising candidates are left out.
        """
        points = {one.point for one in self.observations} | self.failed
        best = [self.best] if self.observations else []
        first = [point for point in dict.fromkeys([*self.first, *self.advised]) if point not in points]
        families = [point for point in self.families if point not in {*points, *first}]
        families.sort(key=self.cost)
        limit = COSTLY * min(map(self.cost, self.families))
        cheap = [point for point in families if self.cost(point) <= limit]
        chosen = [*first, *cheap] or (self._promising() if best else []) or families[:1]
        proposed = [*best, *chosen[: self.group]][: max(2, room)] if chosen else []
        while proposed and self.rounds and not ends_in_time(proposed):
            proposed = proposed[:-1] if len(proposed) > 2 else []
        return proposed

    def _promising(self) -> list[Point]:
        """Return the points with the largest expected gain for their cost."""
        belief, chosen, least = self.belief, [self.best], 0.0
        while len(chosen) <= self.group:
            gain = belief.gain(self._best_place)
            worth = [
                own / self.cost(point) if own >= LEAST_GAIN and point not in {*chosen, *self.barred} else 0.0
                for point, own in zip(belief.points, gain, strict=True)
            ]
            place = max(range(len(worth)), key=worth.__getitem__)
            if worth[place] <= least:
                break
            least = max(least, LEAST_SHARE * worth[place])
            chosen.append(belief.points[place])
            belief = belief.after_measuring(place)
        return chosen[1:]

    def mean(self, point: Point) -> float:
        """Return the expected logarithm of a measured point; infinite for others."""
        if not self.observations or point not in self.belief.points:
            return math.inf
        return float(self.belief.mean[self.belief.points.index(point)])

    def finalists(self) -> list[Point]:
        """Return the best, and the point that is the likeliest to be faster, if one may be."""
        belief, best, measured = self.belief, self._best_place, self._eligible
        chances = belief.chance(best)
        others = [place for place, point in enumerate(belief.points) if place != best and point in measured]
        rival = max(others, key=lambda place: float(chances[place]), default=best)
        places = [best, rival] if rival != best and chances[rival] >= LEAST_CHANCE else [best]
        return [belief.points[place] for place in places]

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
        measured = {one.point for one in self.observations}
        return measured - self.barred or measured

    @cached_property
    def belief(self) -> Prediction:
        """The model of the measured points, of their neighbours, and of what those lead to."""
        measured = list(dict.fromkeys(one.point for one in self.observations))
        belief = predict(self.observations, measured)
        means = {point: float(mean) for point, mean in zip(measured, belief.mean, strict=True)}
        eligible = self._eligible
        limit = min(means[point] for point in eligible) + REACH
        near = [point for point in measured if point in eligible and means[point] <= limit]
        best_of: dict[str, Point] = {}  # by family, the one that seems best
        for point in sorted(near, key=means.__getitem__):
            best_of.setdefault(point.family, point)
        pool = dict.fromkeys(measured)
        for start in best_of.values():
            self._climb(start, pool)
        return predict(self.observations, list(pool))

    def _climb(self, point: Point, pool: dict[Point, None]) -> None:
        """Add neighbours of a point, then those of the best of them, until none is better."""
        while True:
            around = [near for near in self.neighbours(point) if self._may_work(near)]
            pool.update(dict.fromkeys(around))
            belief = predict(self.observations, [point, *around])
            place = int(belief.mean.argmin())
            if place == 0 or belief.mean[place] >= belief.mean[0] - LEAST_GAIN:
                return
            point = belief.points[place]

    def _may_work(self, point: Point) -> bool:
        """Return ``False`` for a point with all settings that may be why another one of its family failed."""
        works = [one.point.settings for one in self.observations if one.point.family == point.family]
        working = frozenset[str]().union(*works)
        failed = (one.settings for one in self.failed if one.family == point.family)
        return not any((settings - working or settings) <= point.settings for settings in failed)


# Times as slow as the best: slower candidates are not followed. CUDA graphs can be four times as fast.
ADVICE_REACH = {"host": 4.0, "layout": 1.3, "memory": 1.3}
LOWER = ("fp16", "bf16")  # precisions that move fewer bytes than fp32


def helpful(case: Case, against: str, space: SearchSpace) -> list[str]:
    """Return the settings of a case that may help against a bottleneck, or its variant or precision if those may."""
    settings = [
        f"{name}={value}"
        for name, value in space.settings(case).items()
        if any(knob.name == name and against in knob.helps for knob in space.able(case))
    ]
    if against in BACKENDS.get(case.backend).variant_helps.get(case.variant or "", ()):
        settings.append(case.backend_label)
    return [*settings, *([case.precision] if against == "memory" and case.precision in LOWER else [])]


def advised(records: Sequence[Record], behind: Callable[[Case], float], space: SearchSpace) -> Iterator[Case]:
    """Yield the candidates that may lift what limits the measured ones, those that are advised by the fastest first.

    ``behind`` gives the logarithm of how many times as slow as the best a case is.
    """
    for record in sorted(records, key=lambda record: behind(record.case)):
        against = bottleneck(record)
        if against and behind(record.case) <= math.log(ADVICE_REACH[against]):
            already = {*helpful(record.case, against, space)}
            for case in _near(record.case, space):
                if {*helpful(case, against, space)} - already:
                    yield case


def _near(case: Case, space: SearchSpace) -> Iterator[Case]:
    """Yield the candidates with one setting changed, then the families with another variant or precision."""
    yield from neighbours(case, space)
    for family in (one.case for one in space.families if one.case.backend == case.backend):
        if (family.precision != case.precision) + (family.variant != case.variant) == 1:
            yield family


PointOf = Callable[[Case], Point]


def candidates(
    trials: Sequence[Trial], best: Case | None, objective: Objective, constraints: Sequence[Constraint], point: PointOf
) -> tuple[Candidate, ...]:
    """Return all measured candidates: the finalists, slower ones, and those that could not win; the best first."""
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
    measured = []
    for digest, record in first.items():
        speedup, low, high = against.get(point(record.case), (None, None, None))
        settings = tuple(sorted(point(record.case).settings))
        measured.append(
            Candidate(
                record=record.id, settings=settings, speedup=speedup, low=low, high=high,
                rejection=out.get(digest, ""), final=digest in final,
            )
        )  # fmt: skip
    return tuple(sorted(measured, key=lambda one: (not one.final, bool(one.rejection), -(one.speedup or 0.0))))


def barred(trials: Sequence[Trial], constraints: Sequence[Constraint]) -> list[Record]:
    """Return the first records of cases that broke a limit when they first ran right, in the search."""
    first: dict[str, Record] = {}
    for record in (record for trial in trials if not trial.final for record in trial.records if record.ranked):
        first.setdefault(record.case.digest, record)
    return [record for record in first.values() if violations(record, constraints)]


def _why_out(record: Record, constraints: Sequence[Constraint]) -> str:
    """Return why a record could not be the best; empty if it could."""
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    if not record.ranked and record.agreement:
        return f"wrong outputs: {record.agreement.reason}"
    return next((limit.sentence for limit in violations(record, constraints)), "")


def _against(
    trials: Sequence[Trial], best: Case | None, objective: Objective, point: PointOf
) -> dict[Point, tuple[float, float, float]]:
    """Return the speedups of timed points over the best, with a 95 % interval."""
    observations = _observations([trial for trial in trials if not trial.final], objective, point)
    if best is None or not observations:
        return {}
    points = list(dict.fromkeys([point(best), *(one.point for one in observations)]))
    belief, wide = predict(observations, points), normal_quantile(0.975)
    against = {}
    for place, item in enumerate(points):
        log = float(belief.mean[0] - belief.mean[place])
        spread = wide * math.sqrt(max(belief.difference_variance(0, place), 0.0))
        against[item] = (math.exp(log), math.exp(log - spread), math.exp(log + spread))
    return against


def _observations(trials: Sequence[Trial], objective: Objective, point: PointOf) -> list[Observation]:
    """Return the timed points of rounds."""
    return [
        Observation(point(record.case), log, number)
        for number, trial in enumerate(trials)
        for record in trial.records
        if record.ranked and (log := log_cost(objective, record)) is not None
    ]


def effects(
    trials: Sequence[Trial], best: Case, objective: Objective, point: PointOf, space: SearchSpace
) -> tuple[Effect, ...]:
    """Return the effects of the settings of the best, and of others that do not take their place, by all rounds."""
    chosen, took, measured = point(best), _build_seconds(trials, point), []
    for name, effect in setting_effects(_observations(trials, objective, point), chosen).items():
        if name not in chosen.settings and name.partition("=")[0] in space.settings(best):
            continue  # it takes the place of one of them
        speedup, low, high = effect or (None, None, None)
        longer = _longer_build(took, chosen.family, name)
        own = name in chosen.settings
        measured.append(Effect(setting=name, speedup=speedup, low=low, high=high, build=longer, chosen=own))
    return tuple(measured)


def _build_seconds(trials: Sequence[Trial], point: PointOf) -> dict[Point, list[float]]:
    """Return the seconds of builds by point, without the export, which all share, and without cached builds."""
    took: dict[Point, list[float]] = {}
    for record in (record for trial in trials for record in trial.records):
        built = [phase.seconds for phase in record.phases if phase.name == "build" and phase.note != "cached"]
        if built:
            took.setdefault(point(record.case), []).append(sum(built))
    return took


def _longer_build(took: Mapping[Point, list[float]], family: str, setting: str) -> float | None:
    """Return how many seconds longer a build of a family takes with a setting."""
    pairs = [(one, Point(family, one.settings - {setting})) for one in took if setting in one.settings]
    more = [mean(took[one]) - mean(took[point]) for one, point in pairs if one.family == family and point in took]
    return mean(more) if more else None


def skipped(space: SearchSpace, selection: SearchSelection, plan: Plan) -> tuple[SkippedCandidate, ...]:
    """Return what was not tried: backends and precisions that the user left out, then families that cannot run."""
    selected, within = _words(selection), _words(narrowed_selection(plan, selection))
    ordinary = [one.name for one in importable_backends() if [*one.reference_for] != [one.name]]
    names = [name for name in (*PRECISIONS, *sorted(ordinary)) if name not in within]
    left_out = [SkippedCandidate(name=name, hint="" if name in selected else "--only") for name in names]
    labels = {one.case.backend_label for one in space.families}
    families = {(one.case.backend_label, one.case.precision) for one in space.families}
    for one in space.refused:
        label = one.case.backend_label
        name = label if label not in labels else f"{label} {one.case.precision}"
        if one.refusal and (label, one.case.precision) not in families:
            left_out.append(SkippedCandidate(name=name, reason=one.refusal.what, hint=one.refusal.hint))
    return tuple({one.name: one for one in reversed(left_out)}.values())[::-1]


def _words(selection: SearchSelection) -> set[str]:
    """Return the names of the precisions and backends that are selected."""
    return {*selection.precisions, *(label.partition(":")[0] for label in selection.labels)}


def unreached(space: SearchSpace, trials: Sequence[Trial]) -> list[SkippedCandidate]:
    """Return backends of which no family was tried because the time was over, and precisions of others."""
    met = [record.case for trial in trials for record in trial.records]
    digests, labels = {case.digest for case in met}, {case.backend_label for case in met}
    left = [one.case for one in space.families if one.case.digest not in digests]
    names = [case.backend_label + f" {case.precision}" * (case.backend_label in labels) for case in left]
    return [
        SkippedCandidate(name=name, reason="time was over", hint="a longer --budget") for name in dict.fromkeys(names)
    ]
