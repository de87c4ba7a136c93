"""What calls are fed with, and what happens between two of them: seen from the runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferlens.backends.base import Inputs, Preparation
from inferlens.backends.clocks import HostClock
from inferlens.backends.fake import Fake, FakeRunner
from inferlens.measure import feeding
from inferlens.measure.feeding import Feeding, cache_bytes
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Model
from inferlens.spec.case import Case, TensorSpec

CACHE = 1 << 20
MODEL = Model("fake:demo", "demo", "fake", (TensorSpec("x", (1, 3, 64, 64)),))


class Watched(FakeRunner):
    """Notes which inputs it is called with and made ready for."""

    seen: list[str]
    feeds: list[Any]

    def infer(self, feed: Inputs) -> Inputs:
        self.seen.append("infer")
        self.feeds.append(feed["x"])
        return feed

    def bind(self, feed: Inputs) -> None:
        self.seen.append("bind")


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "cache_bytes", lambda _: CACHE)


def fed(folder: Path, **how: bool) -> tuple[Watched, Feeding, Preparation]:
    case = Case(model="fake:demo", backend="fake", variant="steady", **how)  # type: ignore[arg-type]
    preparation = Preparation(folder, folder)
    runner = Watched(Fake.options(), case, preparation, 1)
    runner.seen, runner.feeds = [], []
    return runner, Feeding(runner, MODEL, case, make_inputs(MODEL, case.seed), preparation), preparation


@pytest.mark.usefixtures("small_cache")
def test_rotating_inputs_are_larger_than_the_cache_and_ready_before_the_call(tmp_path: Path) -> None:
    runner, feeds, preparation = fed(tmp_path, rotate=True)
    facts = preparation.facts["rotating inputs"]
    assert facts["bytes"] >= feeding.TIMES_CACHE * CACHE
    HostClock().time(runner.infer, feeds.latency, facts["feeds"] + 1)
    assert runner.seen[:4] == ["bind", "infer", "bind", "infer"]
    assert runner.feeds[0] is runner.feeds[-1]
    addresses = {feed.ctypes.data for feed in runner.feeds}
    assert len(addresses) == facts["feeds"]
    assert not any((one == item).all() for one, item in zip(runner.feeds, runner.feeds[1:], strict=False))


@pytest.mark.usefixtures("small_cache")
def test_the_cache_is_flushed_before_each_latency_sample_and_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(feeding, "flusher", lambda *_: lambda: order.append("flush"))
    runner, feeds, preparation = fed(tmp_path, cold=True)
    runner.seen = order
    HostClock().time(runner.infer, feeds.latency, 3)
    assert order == ["flush", "infer"] * 3
    assert preparation.facts["flushed_bytes"] == feeding.TIMES_CACHE * CACHE
    HostClock().window(runner.infer, feeds.throughput, 2)
    assert order[6:] == ["infer"] * 2


def cpu_cache(root: Path, cpu: int, index: int, **files: str) -> None:
    folder = root / f"cpu{cpu}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def test_the_last_level_caches_are_counted_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu in range(4):
        cpu_cache(tmp_path, cpu, 0, level="1", size="48K", shared_cpu_list=str(cpu))
        cpu_cache(tmp_path, cpu, 3, level="3", size="32768K", shared_cpu_list="0-1" if cpu < 2 else "2-3")
    monkeypatch.setattr(feeding, "CPUS", tmp_path)
    assert cache_bytes("cpu") == 2 * 32 << 20


@pytest.mark.parametrize("size", ["", "many", "-1K"])
def test_a_system_that_does_not_say_has_an_assumed_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    cpu_cache(tmp_path, 0, 3, level="3", size=size, shared_cpu_list="0")
    monkeypatch.setattr(feeding, "CPUS", tmp_path)
    assert cache_bytes("cpu") == 0
    _, _, preparation = fed(tmp_path, cold=True)
    assert preparation.facts["flushed_bytes"] == feeding.TIMES_CACHE * feeding.ASSUMED_CACHE
