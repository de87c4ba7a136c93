"""Layers, exactly: what each backend has to get right beside the contract of all."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

from inferlens.backends.abilities import LayerProfiler
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from tests.backends import small
from tests.backends.profiling.layered import (
    Attention,
    Fused,
    Shared,
    hooks,
    model,
    of,
    prepared,
    profiled,
    seconds,
)


def test_eager_profiling_keeps_the_fast_path(tmp_path: Path) -> None:
    """Attention calls no modules on its fast path, which it leaves where it has hooks of its own."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.encoder(image.flatten(1, 2))

    layers = profiled("pytorch", model(Layer), prepared(tmp_path))
    assert [layer.name for layer in layers.layers] == ["", "encoder"]


def test_eager_layers_are_the_modules_themselves(tmp_path: Path) -> None:
    """Exact: every module that is called, its calls, its tensors; own times add up to the root's."""
    network = model(Shared)
    layers = profiled("pytorch", network, prepared(tmp_path))
    assert not hooks(network)
    by_name = {layer.name: layer for layer in layers.layers}
    assert list(by_name) == ["", "twice", "nothing", "one", "other"]
    assert {name: layer.calls for name, layer in by_name.items()} == {
        "": 1, "twice": 2, "nothing": 1, "one": 1, "other": 1,
    }  # fmt: skip
    assert by_name["twice"].kind == "Conv2d"
    assert by_name["one"].inputs[0].shape == (1, 3, 32, 32)
    assert by_name["one"].outputs[0].dtype == "float32"
    assert by_name["nothing"].times[1] < 1e-3
    begins = [by_name[name].begins[0] for name in by_name]
    assert begins == sorted(begins)
    assert layers.timed == "host"


def test_eager_hooks_are_removed_after_an_error(tmp_path: Path) -> None:
    network = model(Fused)
    runner = small.backend("pytorch").prepare(network, small.case("pytorch"), prepared(tmp_path))
    assert isinstance(runner, LayerProfiler)
    with runner, pytest.raises(RuntimeError):
        runner.profile_layers((torch.zeros(1, 7, 32, 32),), 1)
    assert not hooks(network)


def test_own_times_of_nested_and_repeated_calls() -> None:
    """Module 0 from 1 to 10 s; in it 1 from 2 to 5, which calls 2 from 3 to 4; and 1 again from 6 to 8."""
    from inferlens.backends.profiling.module_hooks import own_times

    marks = [0, 1, 2, ~2, ~1, 1, ~1, ~0]
    own = own_times(marks, [1.0, 2, 3, 4, 5, 6, 8, 10], 4)
    assert [part.time for part in own] == [4, 4, 1, 0]
    assert [part.calls for part in own] == [1, 2, 1, 0]
    assert [part.begin for part in own] == [1, 2, 3, 0]


def test_openvino_counts_each_run_by_itself() -> None:
    """OpenVINO tells a mean over all runs, in whole microseconds: 100, then 90 of two, then 93 of three runs."""
    from types import SimpleNamespace

    from inferlens.backends.openvino.profile import NodeCounter

    status = SimpleNamespace(EXECUTED="executed")
    counter = NodeCounter("name", "Convolution")
    for count, mean in enumerate((100, 90, 93), start=1):
        told = SimpleNamespace(
            status="executed", Status=status, exec_type="brgconv", real_time=timedelta(microseconds=mean)
        )
        counter.read(told, count, keep=count > 1)
    assert counter.times == pytest.approx([80e-6, 99e-6])


def test_openvino_names_with_endings() -> None:
    from inferlens.backends.onnx.modules import OnnxNode, OnnxNodes
    from inferlens.backends.openvino.profile import originals

    names = ("a", "/layer/conv", "c")
    graph = OnnxNodes(OnnxNode(name, "Conv", (), (f"out {name}",)) for name in names)
    assert [node.name for node in originals("/layer/conv/WithoutBiases,a,nobody,out c", graph)] == list(names)


def test_onnxruntime_traces_what_its_optimiser_made(tmp_path: Path) -> None:
    """A sum and a ReLU fused into the convolution before them, and products that were given other shapes."""
    layers = profiled("onnxruntime:cpu", model(Attention), prepared(tmp_path))
    (block,) = of(layers, "block")
    assert block.modules == ("block", "")
    assert block.operators == ("Conv", "Add", "Relu")
    assert block.details["provider"] == "CPUExecutionProvider"
    assert [layer.kind for layer in of(layers, "linear")] in (["Gemm"], ["MatMul", "Add"], ["MatMul"])
    assert not any(layer.modules for layer in layers.layers if layer.details.get("inserted"))
    known = seconds([layer for layer in layers.layers if layer.modules or layer.details.get("inserted")])
    assert known == pytest.approx(seconds(list(layers.layers)), rel=0.05)
    begins = [layer.begins[0] for layer in layers.layers]
    assert begins == sorted(begins)


def test_onnxruntime_leaves_no_files_and_profiles_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network, label = model(Fused), "onnxruntime:cpu"
    preparation = prepared(tmp_path)
    runner = small.backend(label).prepare(network, small.case(label, threads=1), preparation)
    assert isinstance(runner, LayerProfiler)
    with runner:
        feed = runner.place(small.arrays(network))
        runner.profile_layers(feed, 1)
        with pytest.raises(Unsupported, match="once"):
            runner.profile_layers(feed, 1)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["model.onnx"]


def test_onnxruntime_own_times_of_nodes_with_graphs_inside() -> None:
    """A node of 100 us with two calls of another in it, and one after it."""
    from inferlens.backends.onnxruntime.profile import NodeArguments, ProfileEvent, by_node

    def event(name: str, begin: int, duration: int) -> ProfileEvent:
        return ProfileEvent("Node", name, begin, duration, 1, NodeArguments(op_name=name))

    events = [event("If", 10, 100), event("Conv", 20, 30), event("Conv", 60, 40), event("Relu", 110, 5)]
    timed = by_node([(0, events)])
    assert [(first.name, taken.times[0], taken.calls[0]) for first, taken in timed] == [
        ("If", pytest.approx(30e-6), 1), ("Conv", pytest.approx(70e-6), 2), ("Relu", pytest.approx(5e-6), 1),
    ]  # fmt: skip
    assert timed[1][1].begins[0] == pytest.approx(20e-6)


@pytest.mark.parametrize("label", ["onnxruntime:cpu", "openvino:cpu"])
def test_files_without_module_paths_say_so(label: str, tmp_path: Path) -> None:
    """An ONNX file of the user's own has operators, and says how module paths can be had."""
    import onnx

    path = tmp_path / "own.onnx"
    network = model(Fused)
    assert network.module is not None
    torch.onnx.export(network.module, (torch.zeros(1, 3, 32, 32),), path, input_names=["image"], verbose=False)
    graph = onnx.load(path)
    for node in graph.graph.node:
        del node.metadata_props[:]
    onnx.save(graph, path)
    own = Model("own.onnx", "own", "onnx", network.inputs, path=path)
    layers = profiled(label, own, prepared(tmp_path))
    assert not any(layer.modules for layer in layers.layers)
    assert "dynamo=True" in layers.absent["modules"]
    assert any("Conv" in layer.operators for layer in layers.layers)


def test_exported_programs_have_one_layer_and_say_why(tmp_path: Path) -> None:
    network = model(Fused)
    assert network.module is not None
    program = torch.export.export(network.module, (torch.zeros(1, 3, 32, 32),))
    exported = Model("small", "small", "exported", network.inputs, module=program.module())
    layers = profiled("pytorch", exported, prepared(tmp_path))
    assert "nn.Module" in layers.absent["modules"]
