"""What every runner that times its layers shares: the check that it was prepared for that, and the runs themselves.

A runner that was prepared to be timed refuses: nothing is instrumented behind a timing's back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from inferlens.backends.base import Preparation
from inferlens.errors import Unsupported

NOT_TOLD = "the library does not tell when a layer began"


def check_level(preparation: Preparation) -> None:
    """Refuses to profile a runner that was prepared to be timed.

    Raises:
        Unsupported: if the preparation's level is not ``layer``.
    """
    if preparation.level != "layer":
        raise Unsupported("The runner was prepared to be timed, not to be profiled.", expected="the level 'layer'")


class Runs(Protocol):
    """What can be run: a runner, or anything else with these two of its methods."""

    def infer(self, feed: Any) -> Any:
        """One call."""

    def synchronize(self) -> None:
        """Returns when its outputs are ready."""


def timed_runs(runner: Runs, feed: Any, runs: int, after: Callable[[], None] = lambda: None) -> tuple[float, ...]:
    """Seconds of ``runs`` calls on the host's clock, each from the call to its outputs being ready.

    ``after`` reads what a run left behind, between the runs and outside of their times.
    """
    now, whole = time.perf_counter_ns, []
    for _ in range(runs):
        begin = now()
        runner.infer(feed)
        runner.synchronize()
        whole.append((now() - begin) / 1e9)
        after()
    return tuple(whole)
