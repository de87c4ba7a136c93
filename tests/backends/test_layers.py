"""The contract of every runner that tells its layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from inferlens.errors import Unsupported
from tests.backends import small
from tests.backends.profiling.layered import (
    ODD,
    Costly,
    Fused,
    Shared,
    hooks,
    model,
    of,
    prepared,
    profiled,
    resnet18,
    seconds,
    total,
)

LABELS = (
    "pytorch", "onnxruntime:cpu", "openvino:cpu", "torchscript:trace", "torch_compile:default",
)  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
def test_costs_are_where_the_work_is(label: str, tmp_path: Path) -> None:
    costly = model(Costly, 1, 64, 56, 56)
    layers = profiled(label, costly, prepared(tmp_path), runs=5)
    covered = [total(layers, run) / whole for run, whole in enumerate(layers.whole)]
    assert max(covered) > 0.8
    first, second = (seconds(of(layers, name)) for name in ("first", "second"))
    assert 3 < second / first < 60


@pytest.mark.parametrize("label", LABELS)
def test_shared_and_repeated_modules(label: str, tmp_path: Path) -> None:
    layers = profiled(label, model(Shared), prepared(tmp_path))
    assert not of(layers, "never")
    assert sum(layer.calls for layer in of(layers, "twice")) >= 2
    for name in ("one", "other"):
        found = of(layers, name)
        assert found
        assert seconds(found) > 0
        assert any(tensor.shape[2:] == (32, 32) for layer in found for tensor in layer.outputs)


@pytest.mark.parametrize("label", LABELS)
def test_fused_layers_name_all_their_modules(label: str, tmp_path: Path) -> None:
    layers = profiled(label, model(Fused), prepared(tmp_path))
    parts = tuple(f"{ODD}.{part}" for part in range(3))
    assert of(layers, "last")
    if "torch" in label:  # what is fused there is another test's
        assert all(of(layers, part) for part in parts)
        return
    (fused,) = of(layers, *parts)
    assert fused.modules == parts
    assert "Conv" in fused.operators
    assert "Relu" in fused.operators
    assert not any("never" in layer.modules for layer in layers.layers)


@pytest.mark.parametrize("label", LABELS)
def test_resnet18_is_attributed(label: str, tmp_path: Path) -> None:
    network = resnet18()
    assert network.module is not None
    paths = {path for path, _ in network.module.named_modules()}
    layers = profiled(label, network, prepared(tmp_path))
    assert {path for layer in layers.layers for path in layer.modules} <= paths
    known = seconds([layer for layer in layers.layers if layer.modules])
    assert known >= 0.95 * seconds(list(layers.layers))
    convolutions = {path for path, part in network.module.named_modules() if isinstance(part, nn.Conv2d)}
    named = {path for layer in layers.layers for path in layer.modules}
    # batch norm folded into a convolution is all that is left of its name where the exporter folds
    assert not label.startswith(("pytorch", "torchscript")) or convolutions <= named
    assert max(total(layers, run) / whole for run, whole in enumerate(layers.whole)) > 0.8


@pytest.mark.parametrize("label", LABELS)
def test_what_is_timed_is_not_instrumented(label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = model(Fused)
    preparation = prepared(tmp_path, level="")
    monkeypatch.chdir(tmp_path)
    runner = small.backend(label).prepare(network, small.case(label, threads=1), preparation)
    with runner:
        feed = runner.place(small.arrays(network))
        runner.infer(feed)
        assert not hooks(network)
        if label == "onnxruntime:cpu":
            assert not runner._loaded.get_session_options().enable_profiling
        if label == "openvino:cpu":
            assert runner.compiled.get_property("PERF_COUNT") == "NO"
        if label.startswith("torchscript"):
            assert "profiler::" not in str(runner.script.graph)
        if label.startswith("torch_compile"):
            assert runner._compiler is None
        with pytest.raises(Unsupported, match="to be timed"):
            runner.profile_layers(feed, 1)
    assert not [path for path in tmp_path.rglob("*") if "profile" in path.name or "optimised" in path.name]
