"""What every runner that times its layers shares: the check that it was prepared for that, and the runs themselves.

A runner that was prepared to be timed refuses: nothing is instrumented behind a timing's back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, Protocol

from msgspec import Struct

from inferlens.backends.base import Preparation
from inferlens.errors import Unsupported
from inferlens.record.profile import Layer, Layers


def check_level(preparation: Preparation, *, replays: bool = False) -> None:
    """Refuses to profile a runner that was prepared to be timed, or that ``replays`` a CUDA graph."""
    if preparation.level not in ("layer", "kernel"):
        what = "The runner was prepared to be timed, not to be profiled."
        raise Unsupported(what, expected="the level 'layer' or 'kernel'")
    if replays:
        raise Unsupported("A CUDA graph replays kernels and has no layers.", hint="without cuda_graph")


class Taken(Struct):
    """What a layer took in each run: seconds, when it first began, how many calls; and the names of its kernels."""

    times: dict[int, float] = {}
    begins: dict[int, float] = {}
    calls: dict[int, int] = {}
    kernels: dict[str, None] = {}

    def add(self, run: int, time: float, begin: float, calls: int = 1) -> None:
        self.times[run] = self.times.get(run, 0.0) + time
        self.begins.setdefault(run, begin)
        self.calls[run] = self.calls.get(run, 0) + calls

    def join(self, other: Taken) -> None:
        """What another call, later in each run, took."""
        for run, seconds in other.times.items():
            self.add(run, seconds, other.begins[run], other.calls[run])
        self.kernels.update(other.kernels)

    def timing(self, runs: int) -> dict[str, Any]:
        return {
            "times": tuple(self.times.get(run, 0.0) for run in range(runs)),
            "begins": tuple(self.begins.get(run, 0.0) for run in range(runs)),
            "calls": max(self.calls.values()),
        }


class Runnable(Protocol):
    """What can be run: a runner, or anything else with these two of its methods."""

    def infer(self, feed: Any) -> Any:
        """One call."""

    def synchronize(self) -> None:
        """Returns when its outputs are ready."""


class Clocked(Struct, frozen=True):
    """When some runs were, on the host's clock."""

    whole: tuple[float, ...]  # seconds of each, from the call to its outputs being ready
    moments: tuple[float, ...]  # when each began, in seconds of time.perf_counter()
    started: str  # UTC time at which the first began, ISO 8601

    @property
    def begun(self) -> tuple[float, ...]:
        """When each began, in seconds since the first of them began."""
        return tuple(moment - self.moments[0] for moment in self.moments)

    def __add__(self, later: Clocked) -> Clocked:
        return Clocked(self.whole + later.whole, self.moments + later.moments, self.started or later.started)

    def layers(
        self, layers: Iterable[Layer], *, clock: str, absent: dict[str, str] | None = None, on_gpu: bool = False
    ) -> Layers:
        return Layers(
            layers=tuple(layers),
            whole=self.whole,
            timed="GPU" if on_gpu else "host",
            clock=clock,
            absent=absent or {},
            begun=self.begun,
            started=self.started,
        )


NO_RUNS = Clocked((), (), "")


def clocked_runs(runner: Runnable, feed: Any, runs: int, after: Callable[[], None] = lambda: None) -> Clocked:
    """``runs`` calls of ``runner``, each timed from the call to its outputs being ready.

    ``after`` reads what a run left behind, between the runs and outside of their times.
    """
    now, whole, moments = time.perf_counter_ns, [], []
    started = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    for _ in range(runs):
        begin = now()
        runner.infer(feed)
        runner.synchronize()
        whole.append((now() - begin) / 1e9)
        moments.append(begin / 1e9)
        after()
    return Clocked(tuple(whole), tuple(moments), started)
