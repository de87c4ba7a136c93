"""What measured candidates tell about those that are not measured yet: a Gaussian process over named settings.

A candidate belongs to a family, a variant in a precision, and has settings beside the family's defaults. The logarithm
of its time is that of the family, plus what each setting does everywhere, plus what it does in this family, plus a rest
of its own. A measurement adds what the machine did to all that were measured together, and noise. All of these are
normal and independent, so the covariance of two candidates is a sum over what they share: C. E. Rasmussen and C. K. I.
Williams, "Gaussian processes for machine learning" (2006), chapter 2. How far noise reaches is chosen by the marginal
likelihood, from a few values; noise that is far from usual has to be shown by many measurements.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.stats.intervals import student_quantile

Matrix = NDArray[np.floating[Any]]
FAMILY, ROUND = 1.0, 0.5  # standard deviations of logarithms
SETTING = 0.2  # of what a setting does everywhere
FAMILY_SETTING = 1.5  # of what a setting does: what it does in a family alone
REST = 0.3  # of what a setting does: what a candidate differs by from the sum of its settings
NOISE = (0.03, 0.06, 0.12)  # lower values take the luck of a single process for a gain
USUAL_NOISE, NOISE_RANGE = 0.03, 2.0  # a normal prior of its logarithm


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
    """What is believed of some candidates: mean logarithms, and their covariance."""

    points: Sequence[Point]
    mean: Matrix
    covariance: Matrix
    noise: float

    def after_measuring(self, place: int) -> Prediction:
        """The same once that one will have been measured, whatever comes out: the covariance does not depend on it."""
        column = self.covariance[:, place]
        less = np.outer(column, column) / (column[place] + self.noise**2)
        return Prediction(self.points, self.mean, self.covariance - less, self.noise)

    def gain(self, best: int) -> Matrix:
        """By how much each may be expected to be faster than ``best``, as a logarithm; 0 where it is not at all.

        Expected improvement: D. R. Jones, M. Schonlau and W. J. Welch, "Efficient global optimization of expensive
        black-box functions", Journal of Global Optimization 13 (1998).
        """
        from scipy.special import ndtr

        ahead, spread = self._advantage(best)
        ratio = ahead / spread
        gain: Matrix = ahead * ndtr(ratio) + spread * np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
        return gain

    def chance(self, best: int) -> Matrix:
        """The probability that each is faster than ``best``."""
        from scipy.special import ndtr

        ahead, spread = self._advantage(best)
        chance: Matrix = ndtr(ahead / spread)
        return chance

    def difference_variance(self, first: int, second: int) -> float:
        """The variance of the difference of two."""
        found = self.covariance
        return float(found[first, first] + found[second, second] - 2 * found[first, second])

    def _advantage(self, best: int) -> tuple[Matrix, Matrix]:
        variances = np.diag(self.covariance)
        squared = variances + variances[best] - 2 * self.covariance[best]
        return self.mean[best] - self.mean, np.sqrt(np.maximum(squared, 1e-18))


def predict(observations: Sequence[Observation], points: Sequence[Point]) -> Prediction:
    """What measurements, one at least, tell about ``points``."""
    logs = np.array([observed.log for observed in observations])
    level = float(logs.mean())
    logs = logs - level
    where = [observed.point for observed in observations]
    together = np.array([[one.round == observed.round for observed in observations] for one in observations]) * ROUND**2
    shared = _shared(where, where)
    best = None
    for noise in NOISE:
        inner = _covariance(shared) + together + noise**2 * np.eye(len(observations))
        lower = np.linalg.cholesky(inner)
        half = np.linalg.solve(lower, logs)
        likelihood = -0.5 * float(half @ half) - float(np.log(np.diag(lower)).sum())
        likelihood -= 0.5 * (math.log(noise / USUAL_NOISE) / NOISE_RANGE) ** 2
        if best is None or likelihood > best[0]:
            best = likelihood, noise, lower, half
    assert best
    _, noise, lower, half = best
    across = np.linalg.solve(lower, _covariance(_shared(where, points)))
    return Prediction(
        points=points,
        mean=level + across.T @ half,
        covariance=_covariance(_shared(points, points)) - across.T @ across,
        noise=noise,
    )


def _shared(some: Sequence[Point], others: Sequence[Point]) -> tuple[Matrix, Matrix, Matrix]:
    """Of each two: whether their families are one; how many settings they share; whether equal."""
    family = np.array([[one.family == point.family for point in others] for one in some], dtype=np.float64)
    names = sorted({name for point in (*some, *others) for name in point.settings})
    rows, columns = (
        np.array([[name in point.settings for name in names] for point in side], dtype=np.float64)
        for side in (some, others)
    )
    settings = rows.reshape(len(some), len(names)) @ columns.reshape(len(others), len(names)).T
    same = np.array([[one == point for point in others] for one in some], dtype=np.float64)
    return family, settings, same


def _covariance(shared: tuple[Matrix, Matrix, Matrix]) -> Matrix:
    family, settings, same = shared
    return FAMILY**2 * family + SETTING**2 * settings * (1 + FAMILY_SETTING**2 * family) + (REST * SETTING) ** 2 * same


LARGEST_EFFECT = math.log(10)  # an interval that reaches further says nothing


def setting_effects(observations: Sequence[Observation], point: Point) -> dict[str, tuple[float, float, float] | None]:
    """Return the speed-up by each setting of a point's family, and its 95 % interval; ``None`` where it is not known.

    By least squares: the logarithm of a time is the level of its round, plus that of its candidate, a level of its own
    or, in the family of ``point``, the family's plus what each setting does there. The intervals of all settings that
    were tried in the family hold at once (Bonferroni), for a winner has those that looked best.
    """
    places: dict[Hashable, int] = {}
    columns = [
        [places.setdefault(term, len(places)) for term in _terms(observed, point.family)] for observed in observations
    ]
    design = np.zeros((len(observations), len(places)))
    for row, own in enumerate(columns):
        design[row, own] = 1.0
    logs, inverse = np.array([observed.log for observed in observations]), np.linalg.pinv(design)
    rest = logs - design @ (inverse @ logs)
    freedom = len(observations) - int(np.linalg.matrix_rank(design))
    tried = {
        name for observed in observations if observed.point.family == point.family for name in observed.point.settings
    }
    found: dict[str, tuple[float, float, float] | None] = dict.fromkeys(sorted(point.settings | tried))
    for name in found.keys() & tried if freedom > 0 else ():
        wanted = np.zeros(len(places))
        wanted[places["setting", name]] = -1.0
        weights = wanted @ inverse  # of the measurements
        if not np.allclose(weights @ design, wanted, atol=1e-6):  # it was never there without another one
            continue
        error = math.sqrt(float(rest @ rest) / freedom * float(weights @ weights))
        log, margin = float(weights @ logs), error * student_quantile(1 - 0.025 / len(tried), freedom)
        if abs(log) + margin < LARGEST_EFFECT:
            found[name] = (math.exp(log), math.exp(log - margin), math.exp(log + margin))
    return found


def _terms(observation: Observation, family: str) -> list[Hashable]:
    """What adds up to the logarithm of a time."""
    point = observation.point
    own = [("family",), *(("setting", name) for name in point.settings)] if point.family == family else [point]
    return [("round", observation.round), *own]
