"""The times of one profile's runs, a row for each of its layers, and how layers and the whole fit together.

Two kinds of numbers come from the runs. *Statistics over runs* (mean, median, 95th percentile) say how a time spreads,
and do not add up: the median of a sum is not the sum of medians. *Typical times* do add up: the mean over the same runs
for everything, the middle half of them when ordered by the whole. A share is a typical time over the typical whole, so
shares add up too, and a few slow runs change neither. Of kernels a share may be of what they add up to instead: most of
a profiled run is the host's, and the GPU idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict
from numpy.typing import NDArray

from inferlens.record.kernel_profile import Kernel
from inferlens.record.layer_profile import Layer, Profile, Tensor, Timed
from inferlens.stats.intervals import ends, median_interval, ratio_interval
from inferlens.stats.quantiles import summarise

LEAST_RUNS_TO_TRIM = 4
# How the clock of layers begins whose times are those of the kernels that they launched, and nothing else.
KERNELS_CLOCK = "torch.profiler (CUPTI)"
_LONGEST = 86400.0  # what takes longer than a day is no run: sums of such times need not be finite, nor fit a trace
_ROUNDING = 0.005  # of the whole: layers that add up to so little more than it do so by the clock's rounding

Array = NDArray[np.float64]


class RunTimes(Struct, frozen=True, kw_only=True):
    """What a time came to over the runs, in seconds.

    Attributes:
        typical: mean over the middle half of the runs; these add up.
        share: ``typical`` over that of the whole, or of all kernels; ``None`` if that took no time.
        median_low, median_high: 95 % interval of the median; ``None`` with too few runs.
        p95: ``None`` with too few runs.
    """

    typical: float
    share: float | None
    mean: float
    median: float
    median_low: float | None
    median_high: float | None
    p95: float | None


@dataclass(frozen=True, eq=False)
class Runs:
    """Seconds of every run: of the whole, and of each layer, or kernel; zeros for one that was not timed.

    Attributes:
        whole: shape (runs,).
        layers: shape (layers, runs).
        was_timed: whether each layer was.
        share_of: what shares are of: the whole ``run``, or what all ``kernels`` in it add up to.
    """

    whole: Array
    layers: Array
    was_timed: tuple[bool, ...]
    share_of: Literal["run", "kernels"] = "run"

    @property
    def count(self) -> int:
        """How many runs there were."""
        return int(self.whole.size)

    @cached_property
    def sums(self) -> Array:
        """What the layers of each run add up to."""
        return np.asarray(self.layers.sum(axis=0), dtype=np.float64)

    @property
    def base(self) -> Array:
        """What shares are of, in each run."""
        return self.whole if self.share_of == "run" else self.sums

    @property
    def outside(self) -> Array:
        """The part of each run that was in no layer; negative where layers ran at the same time."""
        return self.whole - self.sums

    @cached_property
    def middle(self) -> NDArray[np.intp]:
        """The middle half of the runs, by the whole; all of them where they are few."""
        order = np.argsort(self.whole, kind="stable")
        cut = self.count // 4 if self.count >= LEAST_RUNS_TO_TRIM else 0
        return order[cut : self.count - cut]

    def typical(self, series: Array) -> float:
        """The mean of a series over the middle half of the runs."""
        return float(series[self.middle].mean())

    def share(self, series: Array) -> float | None:
        """The typical time of a series over that of what shares are of."""
        base = self.typical(self.base)
        return self.typical(series) / base if base > 0 else None

    def times(self, series: Array) -> RunTimes:
        """What a series, a number for each run in their order, comes to."""
        summary = summarise(series.tolist())
        assert summary is not None, "a profile without runs has no times"
        low, high = ends(median_interval(series.tolist()))
        return RunTimes(
            typical=self.typical(series), share=self.share(series), mean=summary.mean, median=summary.median,
            median_low=low, median_high=high, p95=summary.p95,
        )  # fmt: skip

    def of_layers(self, places: Iterable[int]) -> RunTimes:
        """What the layers at these places, from 0, add up to, run by run."""
        return self.times(self.layers[list(places)].sum(axis=0))

    def of_kernels(self) -> Runs:
        """The same runs, in which shares are of all kernels."""
        return replace(self, share_of="kernels")


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
    times: RunTimes | None


class ProfilingCost(Struct, frozen=True, kw_only=True):
    """What a profiled run took, in seconds, and how much longer than a call that is not profiled.

    Attributes:
        runs: how many profiled runs there were.
        whole: what each run took.
        unprofiled: median latency of the same case without profiling; ``None`` where that is not known.
        cost: median of the whole over ``unprofiled``: 1.2 is a fifth slower when profiled.
        cost_low, cost_high: its 95 % interval; ``None`` with too few runs.
    """

    runs: int
    whole: RunTimes
    unprofiled: float | None = field(name="untouched")
    cost: float | None
    cost_low: float | None
    cost_high: float | None


class Reconciliation(ProfilingCost, frozen=True, kw_only=True):
    """How the layers and the whole fit together, in seconds.

    Attributes:
        layers: what the layers of each run add up to.
        outside: the whole less the layers, run by run; negative where layers ran at the same time.
        untimed: how many layers have no time.
    """

    layers: RunTimes
    outside: RunTimes
    untimed: int

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

    def sum_of(self, rows: Iterable[LayerRow]) -> RunTimes:
        """What some of the rows add up to, run by run."""
        return self.runs.of_layers(row.place - 1 for row in rows)


def layer_table(profile: Profile, unprofiled: Sequence[float] = ()) -> LayerTable | str:
    """The layers of a profile, or the sentence that says why there are none.

    Args:
        profile: of one case.
        unprofiled: latency samples of the same case without profiling, in seconds and in order; may be none.
    """
    runs = layer_runs(profile)
    if isinstance(runs, str) or profile.layers is None:
        return str(runs)
    rows = (
        LayerRow(
            place=place, name=layer.name, kind=layer.kind, modules=layer.modules, operators=layer.operators,
            inputs=layer.inputs, outputs=layer.outputs, calls=layer.calls,
            times=runs.times(series) if timed else None,
        )
        for place, (layer, series, timed) in enumerate(
            zip(profile.layers.layers, runs.layers, runs.was_timed, strict=True), 1
        )
    )  # fmt: skip
    return LayerTable(
        rows=tuple(rows),
        reconciliation=reconciliation(runs, unprofiled),
        timed=profile.layers.timed,
        clock=profile.layers.clock,
        runs=runs,
    )


def reconciliation(runs: Runs, unprofiled: Sequence[float] = ()) -> Reconciliation:
    """How the layers of these runs and the whole fit together; ``unprofiled`` as in :func:`layer_table`."""
    return Reconciliation(
        **asdict(profiling_cost(runs, unprofiled)),
        layers=runs.times(runs.sums),
        outside=runs.times(runs.outside),
        untimed=runs.was_timed.count(False),
    )


def profiling_cost(runs: Runs, unprofiled: Sequence[float] = ()) -> ProfilingCost:
    """What these runs took against calls that are not profiled; ``unprofiled`` as in :func:`layer_table`."""
    whole = runs.whole.tolist()
    before = float(np.median(unprofiled)) if len(unprofiled) else None
    low, high = ends(ratio_interval(whole, unprofiled) if before else None)
    return ProfilingCost(
        runs=runs.count,
        whole=runs.times(runs.whole),
        unprofiled=before,
        cost=float(np.median(whole)) / before if before else None,
        cost_low=low,
        cost_high=high,
    )


def layer_runs(profile: Profile) -> Runs | str:
    """The runs of a profile of layers, or the sentence that says why there is nothing to compute with."""
    if profile.status == "ok" and profile.layers is None and profile.kernels is not None:
        return "It is of kernels, which inferlens kernels and inferlens modules show."
    return runs_of(profile)


def runs_of(profile: Profile) -> Runs | str:
    """The runs of a profile of layers or of kernels, or the sentence that says why there is nothing to compute with.

    Times that cannot be right are not repaired: a profile in which a single part has another number of runs than the
    whole, or a negative time, is refused.
    """
    found = profile.layers or profile.kernels
    if profile.status != "ok" or found is None:
        return profile.reason or f"It ended as '{profile.status}', and no reason is known."
    whole = np.asarray(found.whole, dtype=np.float64)
    if not whole.size:
        return "It has no runs."
    if not are_times(whole):
        return "Its times are no times: one is negative, not finite or more than a day."
    parts, noun = parts_of(profile), "layer" if profile.layers else "kernel"
    times = np.zeros((len(parts), whole.size))
    for index, part in enumerate(parts):
        if len(part.times) not in (0, whole.size):
            return f"A {noun} has {len(part.times)} times, and there were {whole.size} runs."
        times[index] = part.times or 0.0
    if not are_times(times):
        return f"A {noun} has a time that is negative, not finite or more than a day."
    return Runs(whole, times, tuple(bool(part.times) for part in parts))


def parts_of(profile: Profile) -> Sequence[Layer | Kernel]:
    """The layers of a profile, or its kernels."""
    if profile.layers is not None:
        return profile.layers.layers
    return profile.kernels.kernels if profile.kernels else ()


def timed_of(profile: Profile) -> Timed | None:
    """Whether the times of its parts are of the host or of the GPU, as those of kernels are; ``None`` without any."""
    if profile.layers is not None:
        return profile.layers.timed
    return "GPU" if profile.kernels else None


def clock_of(profile: Profile) -> str:
    """What timed its parts; empty where that is not known."""
    found = profile.layers or profile.kernels
    return found.clock if found else ""


def times_kernels(profile: Profile) -> bool:
    """Whether the times of its parts are those of kernels: of its kernels, or of layers that CUPTI timed as such."""
    return timed_of(profile) == "GPU" and (profile.layers is None or clock_of(profile).startswith(KERNELS_CLOCK))


def unknown_share(profile: Profile, runs: Runs) -> float:
    """The share of the time of a profile's parts that is of no known module, 0 to 1; all of no time at all."""
    unknown = np.array([not part.modules for part in parts_of(profile)], dtype=bool)
    share = runs.of_kernels().share(np.asarray(runs.layers[unknown].sum(axis=0), dtype=np.float64))
    return 1.0 if share is None else share


def are_times(values: Array | Sequence[float]) -> bool:
    """Whether all of these can be seconds that something took: finite, not negative, no more than a day."""
    found = np.asarray(values, dtype=np.float64)
    return bool(((found >= 0) & (found <= _LONGEST)).all())  # which what is not a number is not
