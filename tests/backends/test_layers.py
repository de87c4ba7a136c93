"""The contract of every runner that tells its layers, and what each of them tells exactly."""

from collections import OrderedDict
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch import nn

from inferlens.backends.base import LayerProfiler
from inferlens.backends.onnxruntime.profile import NodeArguments, ProfileEvent, node_tensors, times_by_node
from inferlens.backends.openvino import NodeCounter
from inferlens.backends.profiling.runs import add_own_times
from inferlens.models.model import Model
from tests.backends import small
from tests.backends.profiling import samples
from tests.backends.small import unsupported

ONNX = ("onnxruntime:cpu", "openvino:cpu")
LABELS = ("pytorch", *ONNX, "torchscript:trace", "torch_compile:default")


@pytest.mark.parametrize("label", LABELS)
def test_resnet18_is_attributed(label, tmp_path):
    network = samples.resnet18()
    if label.startswith("torch_compile"):  # which takes a second for each kernel: the first of four alike stages
        network = replace(network, module=nn.Sequential(OrderedDict(list(network.module.named_children())[:5])))
    paths = {path for path, _ in network.module.named_modules()}
    layers = samples.profiled(label, network, samples.prepared(tmp_path))
    named = {path for layer in layers.layers for path in layer.modules}
    assert named <= paths
    known = samples.seconds([layer for layer in layers.layers if layer.modules])
    assert known >= 0.95 * samples.seconds(list(layers.layers))
    convolutions = {path for path, part in network.module.named_modules() if isinstance(part, nn.Conv2d)}
    # batch norm folded into a convolution is all that is left of its name where the exporter folds
    assert label in ONNX or convolutions <= named
    assert max(samples.total(layers, run) / whole for run, whole in enumerate(layers.whole)) > 0.8


@pytest.mark.parametrize("label", LABELS)
def test_what_is_timed_is_not_instrumented(label, tmp_path, monkeypatch):
    network = samples.model(samples.Fused)
    preparation = samples.prepared(tmp_path, level="")
    monkeypatch.chdir(tmp_path)
    runner = small.backend(label).prepare(network, small.case(label, threads=1), preparation)
    with runner:
        feed = runner.place(small.arrays(network))
        runner.infer(feed)
        assert not samples.hooks(network)
        if label == "onnxruntime:cpu":
            assert not runner._session.get_session_options().enable_profiling
        if label == "openvino:cpu":
            assert runner.compiled.get_property("PERF_COUNT") == "NO"
        if label.startswith("torch_compile"):
            assert runner._compiler is None
        unsupported("to be timed", runner.profile_layers, feed, 1)
    assert not [path for path in tmp_path.rglob("*") if "profile" in path.name or "optimised" in path.name]


def test_eager_profiling_keeps_the_fast_path(tmp_path):
    """Attention calls no modules on its fast path, which it leaves where it has hooks of its own."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

        def forward(self, image):
            return self.encoder(image.flatten(1, 2))

    layers = samples.profiled("pytorch", samples.model(Layer), samples.prepared(tmp_path))
    assert [layer.name for layer in layers.layers] == ["", "encoder"]


def test_eager_layers_are_the_modules_themselves(tmp_path):
    """Exact: every module that is called, its calls, its tensors; own times add up to the root's."""
    network = samples.model(samples.Shared)
    layers = samples.profiled("pytorch", network, samples.prepared(tmp_path))
    assert not samples.hooks(network)
    by_name = {layer.name: layer for layer in layers.layers}
    assert [(name, layer.calls) for name, layer in by_name.items()] == [
        ("", 1), ("twice", 2), ("nothing", 1), ("one", 1), ("other", 1),
    ]  # fmt: skip
    assert (by_name["twice"].kind, by_name["one"].inputs[0].shape) == ("Conv2d", (1, 3, 32, 32))
    assert by_name["one"].outputs[0].dtype == "float32"
    assert by_name["nothing"].times[1] < 1e-3
    begins = [by_name[name].begins[0] for name in by_name]
    assert (begins, layers.timed) == (sorted(begins), "host")


def test_own_times_of_nested_and_repeated_calls():
    """Module 0 from 1 to 10 s; in it 1 from 2 to 5, which calls 2 from 3 to 4; and 1 again from 6 to 8."""
    marks = [0, 1, 2, ~2, ~1, 1, ~1, ~0]
    taken = {}
    add_own_times(taken, 0, marks, [1.0, 2, 3, 4, 5, 6, 8, 10])
    assert {number: (own.times[0], own.calls[0], own.begins[0]) for number, own in taken.items()} == {
        0: (4, 1, 1), 1: (4, 2, 2), 2: (1, 1, 3)
    }  # fmt: skip


def test_exported_programs_have_one_layer_and_say_why(tmp_path):
    layers = samples.profiled("pytorch", small.as_program(samples.model(samples.Fused)), samples.prepared(tmp_path))
    assert "nn.Module" in layers.absent["modules"]


def test_openvino_counts_each_run_by_itself():
    """OpenVINO tells a mean over all runs, in whole microseconds: 100, then 90 of two, then 93 of three runs."""
    status = SimpleNamespace(EXECUTED="executed")
    counter = NodeCounter("name", "Convolution")
    for count, mean in enumerate((100, 90, 93), start=1):
        time = timedelta(microseconds=mean)
        told = SimpleNamespace(status="executed", Status=status, exec_type="brgconv", real_time=time)
        counter.update(told, count, keep=count > 1)
    assert counter.times == pytest.approx([80e-6, 99e-6])


def test_onnxruntime_traces_what_its_optimiser_made(tmp_path):
    """A sum and a ReLU fused into the convolution before them, and products that were given other shapes."""
    layers = samples.profiled("onnxruntime:cpu", samples.model(samples.Attention), samples.prepared(tmp_path))
    (block,) = samples.of(layers, "block")
    assert (block.modules, block.operators) == (("block", ""), ("Conv", "Add", "Relu"))
    assert block.details["provider"] == "CPUExecutionProvider"
    assert [layer.kind for layer in samples.of(layers, "linear")] in (["Gemm"], ["MatMul", "Add"], ["MatMul"])
    assert not any(layer.modules for layer in layers.layers if layer.details.get("inserted"))
    known = samples.seconds([layer for layer in layers.layers if layer.modules or layer.details.get("inserted")])
    assert known == pytest.approx(samples.seconds(list(layers.layers)), rel=0.05)
    begins = [layer.begins[0] for layer in layers.layers]
    assert begins == sorted(begins)
    stem = next(layer for layer in layers.layers if "stem" in layer.modules)
    assert {tensor.name for tensor in stem.outputs} & {tensor.name for tensor in block.inputs}, "the residual"


def test_onnxruntime_leaves_no_files_and_profiles_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network, label = samples.model(samples.Fused), "onnxruntime:cpu"
    runner = small.backend(label).prepare(network, small.case(label, threads=1), samples.prepared(tmp_path))
    assert isinstance(runner, LayerProfiler)
    with runner:
        feed = runner.place(small.arrays(network))
        runner.profile_layers(feed, 1)
        unsupported("once", runner.profile_layers, feed, 1)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["model.onnx"]


def test_onnxruntime_own_times_of_nodes_with_graphs_inside():
    """A node of 100 us with two calls of another in it, and one after it."""

    def event(name, begin, duration):
        return ProfileEvent("Node", name, begin, duration, 1, NodeArguments(op_name=name))

    events = [event("If", 10, 100), event("Conv", 20, 30), event("Conv", 60, 40), event("Relu", 110, 5)]
    timed = times_by_node([(0, events)])
    assert [(first.name, item.times[0], item.calls[0]) for first, item in timed] == [
        ("If", pytest.approx(30e-6), 1), ("Conv", pytest.approx(70e-6), 2), ("Relu", pytest.approx(5e-6), 1),
    ]  # fmt: skip
    assert timed[1][1].begins[0] == pytest.approx(20e-6)


@pytest.mark.parametrize("label", ONNX)
def test_files_without_module_paths_say_so(label, tmp_path):
    """An ONNX file of the user's own has operators, and says how module paths can be had."""
    network = samples.model(samples.Fused)
    path = small.exported(tmp_path / "own.onnx", network.module, 1, 3, 32, 32, dynamo=False)
    own = Model("own.onnx", "own", "onnx", network.inputs, path=path)
    layers = samples.profiled(label, own, samples.prepared(tmp_path))
    assert not any(layer.modules for layer in layers.layers)
    assert "dynamo=True" in layers.absent["modules"]
    assert any("Conv" in layer.operators for layer in layers.layers)


def readers(layers):
    """By layer, the later layers that read what it writes."""
    written = {tensor.name: index for index, layer in enumerate(layers.layers) for tensor in layer.outputs}
    found = [set() for _ in layers.layers]
    for index, layer in enumerate(layers.layers):
        for tensor in layer.inputs:
            if tensor.name in written:
                found[written[tensor.name]].add(index)
    return found


@pytest.mark.parametrize("label", ONNX)
@pytest.mark.parametrize("kind", [samples.Fused, samples.Shared, samples.Attention])
def test_layers_are_one_graph(label, kind, tmp_path):
    """Weights that a library has packed, and nodes that it does not run, are no gaps."""
    layers = samples.profiled(label, samples.model(kind), samples.prepared(tmp_path))
    assert all(tensor.name for layer in layers.layers for tensor in layer.outputs)
    if kind is samples.Fused:
        parts = tuple(f"{samples.ODD}.{part}" for part in range(3))
        assert [(layer.modules, {"Conv", "Relu"} <= set(layer.operators)) for layer in samples.of(layers, *parts)] == [
            (parts, True)
        ]
    leads_to = readers(layers)
    assert [index for index, reads in enumerate(leads_to) if not reads] == [len(layers.layers) - 1]
    begins = [layer for layer in layers.layers if any(tensor.name == "image" for tensor in layer.inputs)]
    reached = {index for reads in leads_to for index in reads}
    assert begins == [layer for index, layer in enumerate(layers.layers) if index not in reached] != []
    assert all(index < reader for index, reads in enumerate(leads_to) for reader in reads)


def test_packed_weights_do_not_shift_names():
    told = [{"float": [8, 32]}, {"float": [64]}]
    found = node_tensors(told, ("x", "weight", "bias"), {"x"})
    assert [(tensor.name, tensor.shape, tensor.dtype) for tensor in found] == [
        ("x", (8, 32), "float32"), ("bias", (64,), "float32"),
    ]  # fmt: skip
    assert [tensor.name for tensor in node_tensors(told, ("x", "y", ""), {"x", "y"})] == ["x", "y"]
    found = node_tensors(told, ("x", "y", "z"), {"x", "y", "z"})  # more than is told, and none of them a weight
    assert [tensor.name for tensor in found] == ["", ""]
