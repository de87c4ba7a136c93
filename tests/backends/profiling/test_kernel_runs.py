"""Kernels from real traces of a GPU: what ran in which run, how long, how it fills the GPU, whose it was."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from inferlens.backends.profiling import kernel_runs
from inferlens.backends.profiling import traced_runs as tracing
from inferlens.backends.profiling.kernel_runs import kernels_from
from inferlens.backends.profiling.traced_runs import traced_runs
from inferlens.errors import Unsupported
from inferlens.trace import read
from tests.backends import small
from tests.backends.profiling.kernel_samples import EAGER, ENGINE, FOLDER, GRAPH, H200, NAMES, Scoped, kernels, runs


@pytest.mark.parametrize("name", NAMES)
def test_runs_are_cut_and_add_up(name: str) -> None:
    found = kernels(name)
    trace = read(FOLDER / f"{name}.json.gz")
    assert len(found.whole) == len(found.busy) == len(found.begun) == 3
    total = sum(sum(each.times) for each in found.kernels)
    assert total == pytest.approx(trace.duration[trace.gpu.row].sum() / 1e9)
    for run, (whole, busy) in enumerate(zip(found.whole, found.busy, strict=True)):
        assert 0 < busy <= sum(each.times[run] for each in found.kernels) + 1e-12
        assert busy < whole
        assert all(0 <= each.begins[run] < whole for each in found.kernels)
        assert all(each.begins[run] + each.times[run] <= whole for each in found.kernels)
    assert list(found.begun) == sorted(found.begun)
    assert found.begun[0] == 0


@pytest.mark.parametrize(("name", "count", "launches"), [(EAGER, 162, 162), (GRAPH, 58, 2), (ENGINE, 25, 25)])
def test_launches_are_calls_of_the_runtime(name: str, count: int, launches: int) -> None:
    """A CUDA graph is one, however many kernels it holds; the other of that trace copies its input."""
    found = kernels(name)
    assert (len(found.kernels), found.launches) == (count, launches)
    assert all(each.calls == 1 for each in found.kernels)
    operators = {"tensorrt::execute_engine": 24, "aten::copy_": 1}  # of an engine, on three streams
    assert name != ENGINE or Counter(each.operator for each in found.kernels) == operators
    assert name != ENGINE or len({each.stream for each in found.kernels}) == 3


def test_every_kernel_of_eager_pytorch_has_its_module() -> None:
    found = kernels(EAGER)
    assert found.absent == {}
    by_module: Counter[str] = Counter()
    for each in found.kernels:
        (module,) = each.modules
        assert each.layer == module
        by_module[module] += 1
    convolutions = {name for name in by_module if "conv" in name or name.endswith("downsample.0")}
    assert len(convolutions) == 20
    assert {"bn1", "relu", "maxpool", "avgpool", "fc", "layer1.0", "layer4.1.bn2"} <= set(by_module)
    additions = [each for each in found.kernels if each.operator == "aten::add_"]
    assert {module for each in additions for module in each.modules} == {
        f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)
    }
    assert {each.operator for each in found.kernels if each.modules == ("conv1",)} == {"aten::cudnn_convolution"}


def test_kernels_of_which_no_backend_tells_say_so() -> None:
    found = kernels(GRAPH)
    assert "inductor-graph does not tell" in found.absent["origins"]
    assert not any(each.modules or each.layer for each in found.kernels)
    assert {each.operator for each in found.kernels} == {"", "aten::_foreach_copy_"}


def test_shapes_and_occupancy() -> None:
    by_module = {each.modules[0]: each for each in kernels(EAGER).kernels}
    conv1 = by_module["conv1"]
    assert (conv1.grid, conv1.block, conv1.registers, conv1.shared_memory) == ((392, 2, 1), (8, 8, 1), 92, 2304)
    for each in kernels(EAGER).kernels:
        assert each.occupancy is not None
        assert each.achieved is not None
        assert 0 < each.achieved <= each.occupancy <= 1


def test_runs_that_differ_are_put_together_by_likeness() -> None:
    first, second, third = runs(EAGER)
    cut = replace(second, events=second.events[:5] + second.events[6:])
    found = kernels_from([first, cut, third], H200, Scoped())
    assert "not all runs" in found.absent["order"]
    lost = second.events[5].launched.name
    (short,) = [each for each in found.kernels if each.name == lost and each.modules == ("maxpool",)]
    assert short.times[1] == 0 < short.times[0]
    assert short.begins == ()
    assert sum(each.calls for each in found.kernels) == 162
    same = kernels(EAGER)
    for run in (0, 2):
        assert sum(each.times[run] for each in found.kernels) == pytest.approx(
            sum(each.times[run] for each in same.kernels)
        )


def test_what_nobody_is_known_to_have_launched_is_in_the_run_in_which_it_began() -> None:
    trace = read(FOLDER / f"{GRAPH}.json.gz")
    gpu = dataclasses.replace(trace.gpu, correlation=trace.gpu.correlation * 0, external=trace.gpu.external * 0)
    lost = dataclasses.replace(trace, gpu=gpu)
    known, unknown = traced_runs(trace), traced_runs(lost)
    assert [len(run.events) for run in unknown] == [len(run.events) for run in known]
    assert {run.launches for run in unknown} == {0}
    assert [event.begin for event in unknown[0].events] == sorted(event.begin for event in unknown[0].events)


def test_a_profiler_that_sees_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the way through torch.profiler, here on the CPU: runs are found, and no kernels in them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unsupported, match="sees no GPU"):
        kernel_runs.check()
    model, real = small.model(), tracing.profiler
    for module in (kernel_runs, tracing):
        monkeypatch.setattr(module, "profiler", lambda **_: real(on_gpu=False))
    monkeypatch.setattr(kernel_runs, "check", lambda: None)
    with small.backend("pytorch").prepare(model, small.case("pytorch"), small.preparation(tmp_path)) as runner:
        feed = runner.place(small.arrays(model))
        ((clocked, traced),) = tracing.trace_runs(runner, feed, 3, on_gpu=True)
        assert clocked.started.endswith("+00:00")
        assert [run.events for run in traced] == [()] * 3
        assert all(run.whole > 0 for run in traced)
        with pytest.raises(Unsupported, match="saw nothing run on the GPU in 12 runs"):
            kernel_runs.kernels_of(runner, feed, 12)
