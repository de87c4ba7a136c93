"""What it costs to stop at a narrow interval: how often the intervals of series hold that the stopping rule ended.

Looking for a narrow interval and stopping there picks those that are narrow by luck. Here made-up latencies, of which
the truth is known, go through the measuring loop itself (``measure.series.latency``, its chunks included) with the rule
of half-width in 10 s at most, and then through what is done with stored samples: the unsteady beginning is left out,
interval and doubts are those of the rest. Beside them stand the same series at a length that was fixed beforehand, the
mean of those at which the rule ended: what is lost between the two is the price of stopping.

All seeded: the same table every time, in Markdown. Takes about an hour on two CPUs; ``python -m benchmarks.early_stops
--runs 200`` is quicker.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple, cast

import numpy as np

from inferlens.backends.base import Runner
from inferlens.backends.clocks import Timings
from inferlens.measure import series
from inferlens.measure.stopping import StoppingRule, sampling_rule
from inferlens.spec.case import Budget
from inferlens.stats.intervals import median_interval
from inferlens.stats.steady import diagnostics, steady
from tests.stats.series import Array, autoregressive

SEED = 20260
RUNS = 2000
MAX_TIME = 10.0  # seconds that a series may take
# Seconds of a call: of a short one there are many samples before the rule may end, of a long one few.
CALLS = (0.001, 0.01, 0.05)
HEADER = (
    "samples", "call", "stopped early", "mean length", "doubted", "covers", "wrong without a doubt",
    "covers, doubted or not", "fixed length: covers", "covers, doubted or not",
)  # fmt: skip
_BLOCK = 50
# Coverage is not judged on fewer series than this.
_LEAST_RUNS = 100

Rule = Callable[[], StoppingRule]


class Ended(NamedTuple):
    """One series: its length, whether the rule was satisfied, and whether its interval is doubted and holds."""

    count: int
    reached: bool
    doubted: bool
    held: bool


class Played:
    """A clock that plays made-up latencies."""

    name = "made up"
    asynchronous = False
    lanes = 1

    def __init__(self, latencies: Array) -> None:
        self._latencies, self._next, self._now = latencies, 0, 0.0

    def now(self) -> float:
        """Seconds of made-up time."""
        return self._now

    def time(self, _infer: Callable[[Any], Any], _feeds: Iterator[Any], count: int) -> Timings:
        """The next ``count`` latencies, back to back."""
        taken = self._latencies[self._next : self._next + count]
        ends = self._now + np.cumsum(taken)
        self._next, self._now = self._next + count, float(ends[-1])
        return Timings(taken.tolist(), [], [], begins=(ends - taken).tolist())


class Playing:
    """As much of a runner as the measuring loop asks for."""

    def __init__(self, latencies: Array) -> None:
        self.clock = Played(latencies)

    def infer(self, feed: Any) -> Any:
        """Nothing: the clock has the latencies."""
        return feed


class Kind(NamedTuple):
    """Made-up latencies around 1.

    Attributes:
        name: for the table.
        drawn: series in rows, from a seed, their number, their length and the number that fills the longest time.
        truth: the true median after so many samples of such a number.
    """

    name: str
    drawn: Callable[[int, int, int, int], Array]
    truth: Callable[[int, int], float] = lambda _count, _most: 1.0


def _independent(shape: Callable[[Array, Array], Array]) -> Callable[[int, int, int, int], Array]:
    """Series of what ``shape`` makes of normal and of uniform numbers."""

    def drawn(seed: int, runs: int, count: int, _most: int) -> Array:
        draw = np.random.default_rng(seed)
        return shape(draw.standard_normal((runs, count)), draw.random((runs, count)))

    return drawn


def _resembling(correlation: float, white: float = 0.0) -> Callable[[int, int, int, int], Array]:
    def drawn(seed: int, runs: int, count: int, _most: int) -> Array:
        noise = white * np.random.default_rng(seed + 1).standard_normal((runs, count))
        return 1 + 0.05 * autoregressive(seed, runs, count, correlation) + noise

    return drawn


def _drifting(name: str, by: float) -> Kind:
    """A drift by ``by`` in the longest time; its truth is the level in the middle of what was taken."""

    def drawn(seed: int, runs: int, count: int, most: int) -> Array:
        noise = np.random.default_rng(seed).standard_normal((runs, count))
        return 1 + by * np.arange(count) / most + 0.05 * noise

    return Kind(name, drawn, lambda count, most: 1 + by * (count - 1) / 2 / most)


_QUANTILE = NormalDist().inv_cdf
_TWO_MODES, _OUTLIERS = 1 + 0.02 * _QUANTILE(0.5 / 0.6), 1 + 0.05 * _QUANTILE(0.5 / 0.98)
KINDS = (
    Kind("normal", _independent(lambda z, _: 1 + 0.05 * z)),
    Kind("log-normal, σ 0.3", _independent(lambda z, _: np.exp(0.3 * z))),
    Kind("two modes, 60 : 40", _independent(lambda z, u: 1 + 0.02 * z + 0.3 * (u < 0.4)), lambda *_: _TWO_MODES),
    Kind(
        "2 % outliers",
        _independent(lambda z, u: np.where(u < 0.02, 1.5 + 75 * u, 1 + 0.05 * z)),
        lambda *_: _OUTLIERS,
    ),
    _drifting("drift of 1 deviation in 10 s", 0.05),
    _drifting("drift of 6 deviations in 10 s", 0.3),
    _drifting("drift of 60 deviations in 10 s", 3.0),
    Kind("autocorrelation 0.5", _resembling(0.5)),
    Kind("autocorrelation 0.9", _resembling(0.9)),
    Kind("autocorrelation 0.9 under as much white noise", _resembling(0.9, 0.05)),
)


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.early_stops", description="The price of stopping.")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--kind", help="those whose name has this in it alone", default="")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args(words)
    print(f"Seed {SEED}, {args.runs} runs, of {MAX_TIME:.0f} s at most.\n\n| " + " | ".join(HEADER) + " |")
    print("|" + " --- |" * len(HEADER), flush=True)
    begin = time.perf_counter()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the processes that begin now
    with multiprocessing.get_context("spawn").Pool(args.processes, _alone) as pool:
        for place, kind in enumerate(KINDS):
            for call in CALLS if args.kind in kind.name else ():
                print("| " + " | ".join(row(place, call, args.runs, pool.starmap)) + " |", flush=True)
    print(f"\n{time.perf_counter() - begin:.0f} s")


def row(place: int, call: float, runs: int, starmap: Callable[..., Any] = itertools.starmap) -> list[str]:
    """The row of one kind, by its place in :data:`KINDS`, and one length of call."""
    blocks = [(place, call, number, min(_BLOCK, runs - number * _BLOCK)) for number in range(-(-runs // _BLOCK))]
    ended = [one for block in starmap(stopped, blocks) for one in block]
    length = round(sum(one.count for one in ended) / len(ended))
    fixed = [one for block in starmap(fixed_length, [(*block, length) for block in blocks]) for one in block]
    sure = [one.held for one in ended if not one.doubted]
    fixed_sure = [one.held for one in fixed if not one.doubted]
    return [
        KINDS[place].name,
        f"{1000 * call:g} ms",
        _share([one.reached for one in ended]),
        str(length),
        _share([one.doubted for one in ended]),
        _share(sure) if len(sure) >= _LEAST_RUNS else f"too few: {len(sure)}",
        _share([not (one.held or one.doubted) for one in ended]),
        _share([one.held for one in ended]),
        _share(fixed_sure) if len(fixed_sure) >= _LEAST_RUNS else f"too few: {len(fixed_sure)}",
        _share([one.held for one in fixed]),
    ]


def stopped(
    place: int, call: float, number: int, runs: int, rule: Rule = lambda: sampling_rule(Budget(max_time=MAX_TIME))
) -> list[Ended]:
    """A block of series, each ended by the rule in the measuring loop."""
    found = []
    for latencies in _drawn(place, call, number, runs):
        ending = rule()
        feeds: Iterator[Any] = itertools.repeat(None)
        (measurement,) = series.latency(cast(Runner, Playing(latencies)), feeds, ending, lambda _: None)
        found.append(_ended(place, call, list(measurement.values), ending.reached))
    return found


def fixed_length(place: int, call: float, number: int, runs: int, length: int) -> list[Ended]:
    """The same series, all of one length."""
    return [_ended(place, call, one[:length].tolist(), True) for one in _drawn(place, call, number, runs)]


def _drawn(place: int, call: float, number: int, runs: int) -> Array:
    """A block of series in seconds, each longer than any that is taken."""
    most = round(MAX_TIME / call)
    drawn = KINDS[place].drawn(SEED + 10 * number, runs, round(1.3 * most) + series.MOST_IN_CHUNK, most)
    return np.asarray(call * drawn)


def _ended(place: int, call: float, taken: list[float], reached: bool) -> Ended:
    """What the reader of a record with these samples is told, against the truth."""
    samples = taken[steady(taken).start :]
    interval = median_interval(samples)
    doubted = interval is None or any(diagnostic.target == "interval" for diagnostic in diagnostics(samples))
    truth = call * KINDS[place].truth(len(taken), round(MAX_TIME / call))
    return Ended(len(taken), reached, doubted, interval is not None and truth in interval)


def _share(hits: list[bool]) -> str:
    return f"{sum(hits) / len(hits):.1%}"


def _alone() -> None:
    """The collector has nothing to look at: the loop under test calls it for each series."""
    gc.freeze()


if __name__ == "__main__":
    main()
