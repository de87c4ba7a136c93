"""A profile becomes a row for each layer, and an account of how the layers and the whole fit together.

The *reconciliation* says what the rows alone do not: what the layers of a run add up to, what the run took, how much of
it was in no layer, and what profiling cost, against calls of the same case that were timed untouched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from inferlens.analysis.profile.runs import Runs, Times, runs_of
from inferlens.record.layer_profile import Layer, Profile, Tensor, Timed
from inferlens.stats.intervals import ratio_interval

# Below this share of the whole, layers that add up to more than it do so by the clock's rounding.
_ROUNDING = 0.005


class LayerRow(Struct, frozen=True, kw_only=True):
    """One layer.

    Attributes:
        place: its place in the order of execution, from 1.
        calls: how often it is executed in a run; ``times`` are of all calls together.
        times: ``None`` if it was not timed.
    """

    place: int
    name: str
    kind: str
    modules: tuple[str, ...]
    operators: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    calls: int
    times: Times | None


class Reconciliation(Struct, frozen=True, kw_only=True):
    """How the layers and the whole fit together, in seconds.

    Attributes:
        runs: how many instrumented runs there were.
        layers: what the layers of each run add up to.
        whole: what each run took.
        outside: the whole less the layers, run by run; negative where layers ran at the same time.
        untimed: how many layers have no time.
        untouched: median latency of the same case without profiling; ``None`` where that is not known.
        cost: median of the whole over ``untouched``: 1.2 is a fifth slower when profiled.
        cost_low, cost_high: its 95 % interval; ``None`` with too few runs.
    """

    runs: int
    layers: Times
    whole: Times
    outside: Times
    untimed: int
    untouched: float | None
    cost: float | None
    cost_low: float | None
    cost_high: float | None

    @property
    def overlaps(self) -> bool:
        """Whether layers add up to more than the whole, so that some ran at the same time."""
        return self.outside.typical < -_ROUNDING * self.whole.typical


@dataclass(frozen=True, kw_only=True)
class LayerTable:
    """The layers of one case in the order of execution, and their reconciliation.

    Attributes:
        timed, clock: whether times are the host's or the GPU's, and what took them.
        runs: the times of every run.
    """

    rows: tuple[LayerRow, ...]
    reconciliation: Reconciliation
    timed: Timed
    clock: str
    runs: Runs

    def sum_of(self, rows: Iterable[LayerRow]) -> Times:
        """What some of the rows add up to, run by run."""
        places = [row.place - 1 for row in rows]
        return self.runs.times(self.runs.layers[places].sum(axis=0))


def layer_table(profile: Profile, untouched: Sequence[float] = ()) -> LayerTable | str:
    """The layers of a profile, or the sentence that says why there are none.

    Args:
        profile: of one case.
        untouched: latency samples of the same case without profiling, in seconds and in order; may be none.
    """
    runs = runs_of(profile)
    if isinstance(runs, str) or profile.layers is None:
        return str(runs)
    rows = (_row(index, layer, runs) for index, layer in enumerate(profile.layers.layers))
    return LayerTable(
        rows=tuple(rows),
        reconciliation=reconciliation(runs, untouched),
        timed=profile.layers.timed,
        clock=profile.layers.clock,
        runs=runs,
    )


def reconciliation(runs: Runs, untouched: Sequence[float] = ()) -> Reconciliation:
    """How the layers of these runs and the whole fit together; ``untouched`` as in :func:`layer_table`."""
    whole = runs.whole.tolist()
    before = float(np.median(untouched)) if len(untouched) else None
    interval = ratio_interval(whole, untouched) if before else None
    return Reconciliation(
        runs=runs.count,
        layers=runs.times(runs.sums),
        whole=runs.times(runs.whole),
        outside=runs.times(runs.outside),
        untimed=runs.was_timed.count(False),
        untouched=before,
        cost=float(np.median(whole)) / before if before else None,
        cost_low=interval.low if interval else None,
        cost_high=interval.high if interval else None,
    )


def _row(index: int, layer: Layer, runs: Runs) -> LayerRow:
    return LayerRow(
        place=index + 1,
        name=layer.name,
        kind=layer.kind,
        modules=layer.modules,
        operators=layer.operators,
        inputs=layer.inputs,
        outputs=layer.outputs,
        calls=layer.calls,
        times=runs.times(runs.layers[index]) if runs.was_timed[index] else None,
    )
