"""The contract of every runner that profiles layers, and the exact layers of some."""

from functools import cache

import pytest
from torch import nn

from inferlens.backends.onnxruntime.profile import NodeArguments, ProfileEvent, times_by_node
from inferlens.models.model import Model
from tests.backends import small
from tests.backends.profiling import samples
from tests.backends.small import unsupported

ONNX = ("onnxruntime:cpu", "openvino:cpu")
LABELS = ("pytorch", *ONNX, "torchscript:trace", "torch_compile:default")


@pytest.mark.parametrize("label", LABELS[:-1])  # torch_compile has tests of the same facts
def test_layers_of_a_residual_network_have_its_modules(label, tmp_path):
    network = samples.residual_network()
    paths = {path for path, _ in network.module.named_modules()}
    layers = samples.profiled(label, network, samples.prepared(tmp_path))
    named = {path for layer in layers.layers for path in layer.modules}
    assert named <= paths
    assert samples.known_share(layers) >= 0.95
    convolutions = {path for path, part in network.module.named_modules() if isinstance(part, nn.Conv2d)}
    # batch norm folded into a convolution is all that is left of its name where the exporter folds
    assert label in ONNX or convolutions <= named
    assert max(samples.total(layers, run) / whole for run, whole in enumerate(layers.whole)) > 0.5


@pytest.mark.parametrize("label", LABELS)
def test_a_runner_to_be_timed_is_not_instrumented(label, tmp_path, monkeypatch):
    network = small.model(samples.product)
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
    """Attention calls no modules on its fast path, which it leaves if it has hooks."""
    network = samples.model(lambda: nn.Sequential(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)), 1, 96, 32)
    layers = samples.profiled("pytorch", network, samples.prepared(tmp_path))
    assert [layer.name for layer in layers.layers] == ["", "0"]


def test_eager_layers_are_the_modules_themselves(tmp_path):
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


def test_exported_programs_have_one_layer_and_say_why(tmp_path):
    layers = samples.profiled("pytorch", small.as_program(samples.model(samples.Fused)), samples.prepared(tmp_path))
    assert "nn.Module" in layers.absent["modules"]


@pytest.fixture(scope="module")
def layers_of(tmp_path_factory):
    """A function that profiles a sample on a backend once for all tests."""

    @cache
    def layers_of(label, kind):
        return samples.profiled(label, samples.model(kind), samples.prepared(tmp_path_factory.mktemp("layers")))

    return layers_of


def test_onnxruntime_traces_fused_and_reshaped_nodes_to_modules(layers_of):
    """A sum and a ReLU are fused into the convolution before them, and products get other shapes."""
    layers = layers_of("onnxruntime:cpu", samples.Attention)
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
    network, label = small.model(samples.product), "onnxruntime:cpu"
    runner = small.backend(label).prepare(network, small.case(label, threads=1), samples.prepared(tmp_path))
    with runner:
        feed = runner.place(small.arrays(network))
        runner.profile_layers(feed, 1)
        unsupported("once", runner.profile_layers, feed, 1)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["model.onnx"]


def test_onnxruntime_own_times_of_nodes_with_graphs_inside():

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
    """A user's ONNX file has operators, and the profile says how to get module paths."""
    network = samples.model(samples.Fused)
    path = small.exported(tmp_path / "user.onnx", network.module, 1, 3, 32, 32, dynamo=False)
    file = Model("user.onnx", "user", "onnx", network.inputs, path=path)
    layers = samples.profiled(label, file, samples.prepared(tmp_path))
    assert not any(layer.modules for layer in layers.layers)
    assert "dynamo=True" in layers.absent["modules"]
    assert any("Conv" in layer.operators for layer in layers.layers)


def readers(layers):
    """Return for each layer the indices of the layers that read its outputs."""
    inputs = [{tensor.name for tensor in layer.inputs} for layer in layers.layers]
    outputs = [{tensor.name for tensor in layer.outputs} for layer in layers.layers]
    return [{index for index, names in enumerate(inputs) if names & written} for written in outputs]


@pytest.mark.parametrize("label", ONNX)
@pytest.mark.parametrize("kind", [samples.Fused, samples.Attention])
def test_layers_are_one_graph(label, kind, layers_of):
    """Packed weights, and nodes that a library does not run, leave no gaps."""
    layers = layers_of(label, kind)
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
