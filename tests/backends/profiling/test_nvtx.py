"""Ranges for NVIDIA's profilers, which are pushed and popped only with the option."""

import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from inferlens.backends.base import Preparation
from inferlens.backends.clocks import NVTX_VARIABLE, HostClock, nvtx_push_pop, nvtx_range
from inferlens.backends.profiling.runs import time_modules
from inferlens.measure.series import latency, sampling_rule, throughput
from inferlens.spec.case import Budget
from tests.commands import inferlens


@pytest.fixture
def ranges(monkeypatch):
    """The ranges that a fake nvtx pushes and pops."""
    log = []

    @contextmanager
    def annotate(name, domain):
        log.append(f"+ {name}")
        yield
        log.append(f"- {name}")

    module = SimpleNamespace(
        annotate=annotate, push_range=lambda name, domain: log.append(f"+ {name}"),
        pop_range=lambda domain: log.append("-"),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "nvtx", module)
    monkeypatch.setenv(NVTX_VARIABLE, "1")
    return log


class Counting:
    """A runner that notes its calls among the ranges."""

    clock = HostClock()

    def __init__(self, log, call=lambda feed: None):
        self.log, self.call = log, call

    def infer(self, feed):
        self.log.append("call")
        return self.call(feed)

    def synchronize(self):
        pass


def test_a_phase_and_a_series_are_one_range_each_with_all_calls_inside(ranges):
    runner = Counting(ranges)
    with Preparation(Path(), Path()).phase("steady state"):
        latency(runner, iter(lambda: 0, 1), sampling_rule(Budget(iterations=5)), lambda _: None)
        throughput(runner, iter(lambda: 0, 1), 1e-3, 0.01, lambda _: None)
    inner = [f"{sign} series: {name}" for name in ("latency", "throughput") for sign in "+-"]
    assert [item for item in ranges if item != "call"] == ["+ steady state", *inner, "- steady state"]
    assert ranges[1:8] == ["+ series: latency", *["call"] * 5, "- series: latency"]


def test_profiled_modules_are_ranges_inside_each_other(ranges):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())
    time_modules(Counting(ranges, module), module, torch.ones(2), 1)
    assert ranges[-6:] == ["+ module: ", "+ module: 0", "-", "+ module: 1", "-", "-"]


def test_nothing_is_set_where_nobody_asked(ranges, monkeypatch):
    monkeypatch.delenv(NVTX_VARIABLE)
    with Preparation(Path(), Path()).phase("load"), nvtx_range("x"):
        begin, end = nvtx_push_pop()
        begin("y")
        end()
    assert ranges == []


def test_without_the_package_the_option_is_refused_with_what_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.delenv(NVTX_VARIABLE, raising=False)
    done = inferlens("bench", "fake:demo", "--nvtx", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert "[nvtx]'" in done.stderr
