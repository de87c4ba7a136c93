"""LoadGen drives the dispatcher: its latencies are those of the calls, and its verdict is kept."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from pathlib import Path

import pytest

from inferlens.execution.load.dispatcher import Finished, Instances
from inferlens.execution.load.tasks import loadgen_run
from inferlens.record.load import Deployment, Limit, LoadgenVerdict, LoadRecord
from inferlens.spec.case import Case

pytest.importorskip("mlperf_loadgen")
SECONDS = 0.005


class SleepingInstance(Instances):
    """One instance in this process whose calls take 5 ms."""

    count = 1

    def __init__(self) -> None:
        self._wakes, self._waker = os.pipe()
        self._running: tuple[float, float] | None = None

    def send(self, instance: int, samples: Sequence[int], size: int) -> None:
        self._running = self.now(), self.now() + SECONDS

    def wake(self) -> None:
        os.write(self._waker, b"w")

    def wait(self, until: float) -> list[Finished]:
        end = min(until, self._running[1] if self._running else until)
        if select.select([self._wakes], [], [], max(0.0, min(end - self.now(), 1.0)))[0]:
            os.read(self._wakes, 1 << 16)
        if self._running is None or self.now() < self._running[1]:
            return []
        (begin, end), self._running = self._running, None
        return [Finished(0, begin, end)]


def verdict(folder: Path, rate: float, limit: Limit) -> LoadgenVerdict:
    record = LoadRecord(
        id="", created="", case=Case(model="fake:demo", backend="fake"), requested=Deployment(),
        deployment=Deployment(), limit=limit, seconds=1, scenario="server",
    )  # fmt: skip
    return loadgen_run(SleepingInstance(), record, rate, folder)  # type: ignore[arg-type]


def test_its_latency_is_that_of_a_call(tmp_path: Path) -> None:
    """Within 8 ms on a busy machine; it was once longer by the time that a thread took to start."""
    made = verdict(tmp_path, 60, Limit(0.5, 0.2))
    assert made.valid, made.reason
    assert made.at_limit == pytest.approx(SECONDS + 0.004, abs=0.004)


def test_an_invalid_run_has_its_reason(tmp_path: Path) -> None:
    made = verdict(tmp_path, 180, Limit(0.5, 0.001))
    assert not made.valid
    assert "Performance constraints satisfied" in made.reason
