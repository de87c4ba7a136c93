"""Layers of every runner that tells them: one contract, and what each of them has to get exactly right."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inferlens.backends.abilities import LayerProfiler
from inferlens.backends.base import TOLERANCES, Preparation
from inferlens.case import TensorSpec
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.profile import Layer, Layers
from tests.backends import small

LABELS = ("pytorch", "onnxruntime:cpu", "openvino:cpu")
RUNS = 3
RESOLUTION = 5e-6  # seconds for each layer; OpenVINO's counters are the coarsest
ODD = "a 'b' <c>, [d]/é"


class Fused(nn.Module):
    """Convolution, batch norm and ReLU that compilers make one of, in a module with an odd name."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.add_module(ODD, block)
        self.last = nn.Conv2d(32, 4, 1)
        nn.init.uniform_(block[1].running_var, 0.5, 2.0)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.last(self.get_submodule(ODD)(image))


class Shared(nn.Module):
    """A module called twice, two modules that share their weights, one with no work, one never called."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Conv2d(3, 3, 3, padding=1)
        self.one = nn.Conv2d(3, 3, 3, padding=1)
        self.other = nn.Conv2d(3, 3, 3, padding=1)
        self.other.weight, self.other.bias = self.one.weight, self.one.bias
        self.nothing = nn.Identity()
        self.never = nn.Linear(3, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = torch.sigmoid(self.twice(torch.sigmoid(self.twice(image))))
        return self.other(torch.sigmoid(self.one(self.nothing(image))))


class Costly(nn.Module):
    """Two convolutions that take milliseconds, the second with eight times the work of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(64, 64, 3, padding=1)
        self.second = nn.Conv2d(64, 512, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.second(torch.sigmoid(self.first(image)))


def model(kind: Callable[[], nn.Module], *shape: int) -> Model:
    torch.manual_seed(0)
    spec = TensorSpec("image", shape or (1, 3, 32, 32))
    return Model("small", "small", "module", (spec,), module=kind().eval())


def prepared(folder: Path, level: str = "layer") -> Preparation:
    made = small.preparation(folder)
    made.level = level
    return made


def profiled(label: str, model: Model, preparation: Preparation, runs: int = RUNS, **case: Any) -> Layers:
    """The layers of ``model``, its outputs checked before and after."""
    inputs = small.arrays(model)
    expected = small.eager(model, inputs) if model.module is not None else None
    runner = small.backend(label).prepare(model, small.case(label, threads=1, **case), preparation)
    assert isinstance(runner, LayerProfiler)
    with runner:
        feed = runner.place(inputs)
        for _ in range(2):
            runner.infer(feed)
        layers = runner.profile_layers(feed, runs)
        if expected is not None:
            assert small.error(runner.collect(runner.infer(feed)), expected) < TOLERANCES["fp32"]
    check(layers, runs)
    return layers


def check(layers: Layers, runs: int) -> None:
    """What holds for the layers of every backend."""
    assert layers.layers
    assert len(layers.whole) == runs
    for layer in layers.layers:
        assert layer.name or layer.modules == ("",)
        assert layer.kind
        assert layer.calls >= 1
        assert len(layer.times) == runs
        assert len(layer.begins) in (0, runs)
        assert all(math.isfinite(value) and value >= 0 for value in (*layer.times, *layer.begins))
    for run, whole in enumerate(layers.whole):
        assert total(layers, run) <= whole + RESOLUTION * len(layers.layers)
    if not any(layer.begins for layer in layers.layers):
        assert layers.absent["begins"]


def total(layers: Layers, run: int) -> float:
    return sum(layer.times[run] for layer in layers.layers)


def of(layers: Layers, *modules: str) -> list[Layer]:
    """The layers that came from all of ``modules``, in order."""
    return [layer for layer in layers.layers if set(modules) <= set(layer.modules)]


def seconds(layers: list[Layer]) -> float:
    """The fastest run's time of some layers together."""
    return min(map(sum, zip(*(layer.times for layer in layers), strict=True)))


@pytest.mark.parametrize("label", LABELS)
def test_costs_are_where_the_work_is(label: str, tmp_path: Path) -> None:
    costly = model(Costly, 1, 64, 56, 56)
    layers = profiled(label, costly, prepared(tmp_path), runs=5)
    covered = [total(layers, run) / whole for run, whole in enumerate(layers.whole)]
    assert max(covered) > 0.8
    first, second = (seconds(of(layers, name)) for name in ("first", "second"))
    assert 4 < second / first < 16


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
    if label == "pytorch":
        assert all(of(layers, part) for part in parts)
        return
    (fused,) = of(layers, *parts)
    assert fused.modules == parts
    assert "Conv" in fused.operators
    assert "Relu" in fused.operators
    assert not any("never" in layer.modules for layer in layers.layers)


@pytest.mark.parametrize("label", LABELS)
def test_resnet18_is_attributed(label: str, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    from tests.backends.test_resnet18 import resnet18

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
    assert label != "pytorch" or convolutions <= named
    assert total(layers, 0) > 0.8 * layers.whole[0]


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
        with pytest.raises(Unsupported, match="to be timed"):
            runner.profile_layers(feed, 1)
    assert not [path for path in tmp_path.rglob("*") if "profile" in path.name or "optimised" in path.name]


def hooks(model: Model) -> list[Any]:
    assert model.module is not None
    return [
        hook for part in model.module.modules() for hook in (*part._forward_pre_hooks, *part._forward_hooks)
    ]  # fmt: skip


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
    from inferlens.backends.module_hooks import own_times

    marks = [0, 1, 2, ~2, ~1, 1, ~1, ~0]
    own = own_times(marks, [1.0, 2, 3, 4, 5, 6, 8, 10], 4)
    assert [part.time for part in own] == [4, 4, 1, 0]
    assert [part.calls for part in own] == [1, 2, 1, 0]
    assert [part.begin for part in own] == [1, 2, 3, 0]


def test_torchscript_says_what_to_use_instead(tmp_path: Path) -> None:
    network = model(Fused)
    label = "torchscript:trace"
    with small.backend(label).prepare(network, small.case(label), prepared(tmp_path)) as runner:
        assert isinstance(runner, LayerProfiler)
        with pytest.raises(Unsupported, match="--backend pytorch"):
            runner.profile_layers(runner.place(small.arrays(network)), 1)


def test_openvino_counts_each_run_by_itself() -> None:
    """OpenVINO tells a mean over all runs, in whole microseconds: 100, then 90 of two, then 93 of three runs."""
    from types import SimpleNamespace

    from inferlens.backends.openvino_profile import Counter

    status = SimpleNamespace(EXECUTED="executed")
    counter = Counter("name", "Convolution")
    for count, mean in enumerate((100, 90, 93), start=1):
        told = SimpleNamespace(
            status="executed", Status=status, exec_type="brgconv", real_time=timedelta(microseconds=mean)
        )
        counter.read(told, count, keep=count > 1)
    assert counter.times == pytest.approx([80e-6, 99e-6])


def test_openvino_runs_are_put_together_from_several_models(tmp_path: Path) -> None:
    layers = profiled("openvino:cpu", model(Costly, 1, 64, 28, 28), prepared(tmp_path), runs=7)
    for layer in of(layers, "second"):
        assert max(layer.times) < 10 * min(layer.times)


def test_openvino_names_with_commas_and_endings() -> None:
    from inferlens.backends.onnx_modules import Node, Origins
    from inferlens.backends.openvino_profile import originals

    names = ("a,b", "/layer/conv", "c")
    graph = Origins(Node(name, "Conv", (), (f"out {name}",)) for name in names)
    assert [node.name for node in originals("/layer/conv/WithoutBiases,a,b,nobody,out c", graph)] == list(names)


class Attention(nn.Module):
    """What transformers are made of, after a residual convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.block = nn.Conv2d(32, 32, 3, padding=1)
        self.linear = nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = self.stem(image)
        words = torch.relu(image + self.block(image)).flatten(2).transpose(1, 2)
        words = self.norm(words + nn.functional.gelu(self.linear(words)))
        return self.attention(words, words, words)[0]


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
    from inferlens.backends.onnxruntime_profile import Arguments, Event, by_node

    def event(name: str, begin: int, duration: int) -> Event:
        return Event("Node", name, begin, duration, 1, Arguments(op_name=name))

    events = [event("If", 10, 100), event("Conv", 20, 30), event("Conv", 60, 40), event("Relu", 110, 5)]
    timed = by_node([(0, events)])
    assert [(node.first.name, node.times[0], node.calls[0]) for node in timed] == [
        ("If", pytest.approx(30e-6), 1), ("Conv", pytest.approx(70e-6), 2), ("Relu", pytest.approx(5e-6), 1),
    ]  # fmt: skip
    assert timed[1].begins[0] == pytest.approx(20e-6)


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_eager_layers_on_a_gpu(tmp_path: Path) -> None:
    network = model(Costly, 8, 64, 224, 224)
    inputs = small.arrays(network)
    case = small.case("pytorch", device="cuda")
    with small.backend("pytorch").prepare(network, case, prepared(tmp_path)) as runner:
        assert isinstance(runner, LayerProfiler)
        feed = runner.place(inputs)
        for _ in range(3):
            runner.infer(feed)
        layers = runner.profile_layers(feed, 5)
    check(layers, 5)
    assert layers.timed == "GPU"
    assert [layer.name for layer in layers.layers] == ["", "first", "second"]
    assert 4 < seconds(of(layers, "second")) / seconds(of(layers, "first")) < 16
    assert not hooks(network)
