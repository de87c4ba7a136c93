"""The times of one profile's runs as arrays, and what they come to.

Two kinds of numbers come from them. *Statistics over runs* (mean, median, 95th percentile) say how a time spreads, and
do not add up: the median of a sum is not the sum of medians. *Typical times* do add up: the mean over the same runs for
everything, the middle half of them when ordered by the whole. A share is a typical time over the typical whole, so
shares add up too, and a few disturbed runs change neither. Of kernels a share may be of what they add up to instead:
most of a run that is profiled is the host's, and the GPU idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.record.kernel_profile import Kernel
from inferlens.record.layer_profile import Layer, Profile, Timed
from inferlens.stats.intervals import median_interval
from inferlens.stats.quantiles import summarise

LEAST_RUNS_TO_TRIM = 4
_LONGEST = 86400.0  # what takes longer than a day is no run: sums of such times need not be finite, nor fit a trace

# How the clock of layers begins whose times are those of the kernels that they launched, and nothing else.
KERNELS_CLOCK = "torch.profiler (CUPTI)"

Array = NDArray[np.float64]
ShareOf = Literal["run", "kernels"]


class Times(Struct, frozen=True, kw_only=True):
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
    share_of: ShareOf = "run"

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

    @cached_property
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

    def times(self, series: Array) -> Times:
        """What a series, a number for each run in their order, comes to."""
        summary = summarise(series.tolist())
        assert summary is not None, "a profile without runs has no times"
        interval = median_interval(series.tolist())
        return Times(
            typical=self.typical(series),
            share=self.share(series),
            mean=summary.mean,
            median=summary.median,
            median_low=interval.low if interval else None,
            median_high=interval.high if interval else None,
            p95=summary.p95,
        )

    def of_kernels(self) -> Runs:
        """The same runs, in which shares are of all kernels."""
        return replace(self, share_of="kernels")


def runs_of(profile: Profile) -> Runs | str:
    """The runs of a profile of layers, or the sentence that says why there is nothing to compute with.

    Times that cannot be right are not repaired: a profile in which a single layer has another number of runs than the
    whole, or a negative time, is refused.
    """
    if profile.status == "ok" and profile.layers is None and profile.kernels is not None:
        return "It is of kernels, which inferlens kernels and inferlens modules show."
    return part_runs(profile)


def part_runs(profile: Profile) -> Runs | str:
    """The same of a profile at any level: its parts are layers or kernels."""
    told = profile.layers or profile.kernels
    if profile.status != "ok" or told is None:
        return profile.reason or f"It ended as '{profile.status}', and no reason is known."
    whole = np.asarray(told.whole, dtype=np.float64)
    if not whole.size:
        return "It has no runs."
    if not are_times(whole):
        return "Its times are no times: one is negative, not finite or more than a day."
    parts, noun = parts_of(profile), "layer" if profile.layers else "kernel"
    timed = tuple(bool(part.times) for part in parts)
    times = np.zeros((len(timed), whole.size))
    for index, part in enumerate(parts):
        if not part.times:
            continue
        if len(part.times) != whole.size:
            return f"A {noun} has {len(part.times)} times, and there were {whole.size} runs."
        times[index] = part.times
    if not are_times(times):
        return f"A {noun} has a time that is negative, not finite or more than a day."
    return Runs(whole, times, timed)


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
    """What timed its parts; empty where that is not told."""
    told = profile.layers or profile.kernels
    return told.clock if told else ""


def times_kernels(profile: Profile) -> bool:
    """Whether the times of its parts are those of kernels: of its kernels, or of layers that CUPTI timed as such."""
    if profile.layers is not None:
        return profile.layers.timed == "GPU" and clock_of(profile).startswith(KERNELS_CLOCK)
    return profile.kernels is not None


def unknown_share(profile: Profile, runs: Runs) -> float:
    """The share of the time of a profile's parts that is of no known module, 0 to 1; all of no time at all."""
    unknown = np.array([not part.modules for part in parts_of(profile)], dtype=bool)
    share = runs.of_kernels().share(np.asarray(runs.layers[unknown].sum(axis=0), dtype=np.float64))
    return 1.0 if share is None else share


def are_times(values: Array | Sequence[float]) -> bool:
    """Whether all of these can be seconds that something took: finite, not negative, no more than a day."""
    found = np.asarray(values, dtype=np.float64)
    return bool(((found >= 0) & (found <= _LONGEST)).all())  # which what is not a number is not
