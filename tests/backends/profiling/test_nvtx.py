"""Ranges for NVIDIA's profilers: what is pushed and popped, and that nothing is where nobody asked."""

import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from inferlens.backends.base import Preparation
from inferlens.backends.clocks import NVTX_VARIABLE, HostClock, enable_nvtx, nvtx_enabled, nvtx_push_pop, nvtx_range
from inferlens.backends.profiling.runs import time_modules
from inferlens.measure.series import latency, sampling_rule, throughput
from inferlens.spec.case import Budget
from tests.commands import inferlens


@pytest.fixture
def said(monkeypatch):
    """What a made-up nvtx is told."""
    told = []

    @contextmanager
    def annotate(name, domain):
        told.append(f"+ {name}")
        yield
        told.append(f"- {name}")

    module = SimpleNamespace(
        annotate=annotate, push_range=lambda name, domain: told.append(f"+ {name}"),
        pop_range=lambda domain: told.append("-"),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "nvtx", module)
    monkeypatch.setenv(NVTX_VARIABLE, "1")
    return told


class Counting:
    """A runner that notes its calls among the ranges."""

    clock = HostClock()

    def __init__(self, told, call=lambda feed: None):
        self.told, self.call = told, call

    def infer(self, feed):
        self.told.append("call")
        return self.call(feed)

    def synchronize(self):
        pass


def test_a_phase_and_a_series_are_one_range_each_with_all_calls_inside(said):
    runner = Counting(said)
    with Preparation(Path(), Path()).phase("steady state"):
        latency(runner, iter(lambda: 0, 1), sampling_rule(Budget(iterations=5)), lambda _: None)
        throughput(runner, iter(lambda: 0, 1), 1e-3, 0.01, lambda _: None)
    ranges = [item for item in said if item != "call"]
    inner = [f"{sign} series: {name}" for name in ("latency", "throughput") for sign in "+-"]
    assert ranges == ["+ steady state", *inner, "- steady state"]
    assert said[1:8] == ["+ series: latency", *["call"] * 5, "- series: latency"]


def test_profiled_modules_are_ranges_inside_each_other(said):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())
    time_modules(Counting(said, module), module, torch.ones(2), 1)
    ranges = [item for item in said if item != "call"]
    assert ranges[-6:] == ["+ module: ", "+ module: 0", "-", "+ module: 1", "-", "-"]


def test_nothing_is_set_where_nobody_asked(said, monkeypatch):
    monkeypatch.delenv(NVTX_VARIABLE)
    with Preparation(Path(), Path()).phase("load"), nvtx_range("x"):
        begin, end = nvtx_push_pop()
        begin("y")
        end()
    assert said == []


def test_without_the_package_the_option_is_refused_with_what_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.delenv(NVTX_VARIABLE, raising=False)
    done = inferlens("bench", "fake:demo", "--nvtx", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert "[nvtx]'" in done.stderr


def test_the_real_package_needs_no_gpu(monkeypatch):
    pytest.importorskip("nvtx")
    monkeypatch.setenv(NVTX_VARIABLE, "")
    enable_nvtx()
    begin, end = nvtx_push_pop()
    with nvtx_range("series: latency"):
        begin("module: layer1")
        end()
    assert nvtx_enabled()
