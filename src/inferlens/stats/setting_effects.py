"""What settings do beside a candidate's others: how many times faster it is with each than without, by least squares.

The logarithm of a time is the level of its round, plus that of its candidate: a level of its own, or, in the family
that is asked about, the family's plus what each setting does there. Residuals say how far processes differ, and how
many of them are independent is what the levels leave: Student's t allows for that. The intervals of all settings that
were tried in the family hold at once (Bonferroni), for a winner has those that looked best.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from inferlens.stats.gaussian_process import Observed, Point
from inferlens.stats.intervals import student_quantile

MOST = math.log(10)  # an interval that reaches further says nothing


def setting_effects(seen: Sequence[Observed], point: Point) -> dict[str, tuple[float, float, float] | None]:
    """The speed-up by each setting of a point and of others of its family, and its 95 % interval.

    ``None`` where too few measurements tell it.
    """
    places: dict[Hashable, int] = {}
    columns = [[places.setdefault(term, len(places)) for term in _terms(each, point.family)] for each in seen]
    design = np.zeros((len(seen), len(places)))
    for row, own in enumerate(columns):
        design[row, own] = 1.0
    logs, inverse = np.array([each.log for each in seen]), np.linalg.pinv(design)
    rest = logs - design @ (inverse @ logs)
    freedom = len(seen) - int(np.linalg.matrix_rank(design))
    tried = {name for each in seen if each.point.family == point.family for name in each.point.settings}
    found: dict[str, tuple[float, float, float] | None] = dict.fromkeys(sorted(point.settings | tried))
    for name in found.keys() & tried if freedom > 0 else ():
        wanted = np.zeros(len(places))
        wanted[places["setting", name]] = -1.0
        weights = wanted @ inverse  # of the measurements
        if not np.allclose(weights @ design, wanted, atol=1e-6):  # it was never there without another one
            continue
        error = math.sqrt(float(rest @ rest) / freedom * float(weights @ weights))
        log, margin = float(weights @ logs), error * student_quantile(1 - 0.025 / len(tried), freedom)
        if abs(log) + margin < MOST:
            found[name] = (math.exp(log), math.exp(log - margin), math.exp(log + margin))
    return found


def _terms(each: Observed, family: str) -> list[Hashable]:
    """What adds up to the logarithm of a time."""
    point = each.point
    own = [("family",), *(("setting", name) for name in point.settings)] if point.family == family else [point]
    return [("round", each.round), *own]
