"""Predictions for candidates that are not measured yet: a Gaussian process over named settings.

A candidate belongs to a family, a variant in a precision, and has settings that differ from the family's defaults. The
logarithm of its time is that of the family, plus the effect of each setting in general and in this family, plus a rest
of its own. A measurement adds the effect of the machine on all that were measured together, and noise. All of these are
normal and independent, so the covariance of two candidates is a sum over their common parts: C. E. Rasmussen and C. K.
I. Williams, "Gaussian processes for machine learning" (2006), chapter 2. The noise is chosen by the marginal
likelihood from a few values; noise that is far from usual needs many measurements.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.stats.intervals import student_quantile

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
    columns = [[places.setdefault(term, len(places)) for term in _terms(item, point.family)] for item in observations]
    design = np.zeros((len(observations), len(places)))
    for row, own in enumerate(columns):
        design[row, own] = 1.0
    logs, inverse = np.array([observation.log for observation in observations]), np.linalg.pinv(design)
    rest = logs - design @ (inverse @ logs)
    freedom = len(observations) - int(np.linalg.matrix_rank(design))
    measured = {name for item in observations if item.point.family == point.family for name in item.point.settings}
    effects: dict[str, tuple[float, float, float] | None] = dict.fromkeys(sorted(point.settings | measured))
    for name in effects.keys() & measured if freedom > 0 else ():
        contrast = np.zeros(len(places))
        contrast[places["setting", name]] = -1.0
        weights = contrast @ inverse  # of the measurements
        if not np.allclose(weights @ design, contrast, atol=1e-6):  # it was never there without another one
            continue
        error = math.sqrt(float(rest @ rest) / freedom * float(weights @ weights))
        log, margin = float(weights @ logs), error * student_quantile(1 - 0.025 / len(measured), freedom)
        if abs(log) + margin < LARGEST_EFFECT:
            effects[name] = (math.exp(log), math.exp(log - margin), math.exp(log + margin))
    return effects


def _terms(observation: Observation, family: str) -> list[Hashable]:
    """Return the terms whose sum is the logarithm of a time."""
    point = observation.point
    own = [("family",), *(("setting", name) for name in point.settings)] if point.family == family else [point]
    return [("round", observation.round), *own]
