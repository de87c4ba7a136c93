"""Layers of engines, as inspector and profiler described real ones, and their kernels."""

import gzip
import json
from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper

from inferlens.analysis.graph import ORDER_ONLY, build_graph
from inferlens.backends.base import GpuLaunch
from inferlens.backends.tensorrt import layers as engine_layers
from inferlens.backends.tensorrt.layers import absences, engine_source, inspected_layers, kernel_sources
from inferlens.backends.torch_tensorrt.runner import lookup_in
from tests.refusals import refusal

SAMPLES = Path(__file__).parent / "samples"
PATHS = frozenset({"", "conv1", "maxpool", "layer1", "layer1.0", "layer1.0.conv1", "layer4.1.conv2", "avgpool", "fc"})
REWRITTEN = 52  # the convolution of features.18.0, which became a matrix product
SPLIT = "splitKreduce_kernel"


def sample(name):
    return json.loads((SAMPLES / name).read_text())


def test_layers_of_real_engines_have_their_modules():
    layers = inspected_layers(sample("resnet18-dynamo-engine.json")["Layers"], lookup_in(PATHS))
    stem = layers[1]
    assert (stem.kind, stem.inputs[0].shape, stem.inputs[0].dtype) == ("runtime_fusion", (1, 4, 224, 224), "float16")
    assert stem.details["inspector"]["LayerType"] == "runtime_fusion"
    by_name = {module: layer for layer in layers for module in layer.modules}
    assert by_name["layer4.1.conv2"].kind == "correlation"
    assert by_name["layer4.1.conv2"].operators == ("aten.convolution.default",)
    script = inspected_layers(sample("resnet18-script-engine.json")["Layers"], lookup_in(PATHS))
    assert {("layer1.0.conv1",), ("maxpool",)} <= {layer.modules for layer in script}
    name = "%8 : Tensor = aten::relu(%7), scope: __module.layer1/__module.layer1.0 # f.py:1:0_myl0_3"
    assert inspected_layers([name], lookup_in(PATHS))[0].modules == ("layer1.0",)


@pytest.mark.parametrize("entry", [
    {"Name": "fused", "Metadata": "[ONNX Layer: node_Conv_1]\x1f[ONNX Layer: node_relu]"},
    {"Name": "node_Conv_1 + node_relu", "LayerType": "CaskConvolution"},
])  # fmt: skip
def test_layers_of_an_onnx_graph_have_its_modules(entry, tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="node_Conv_1"),
        helper.make_node("Relu", ["a"], ["b"], name="node_relu"),
    ]
    for node, module in zip(nodes, ("layer1.0.conv1", "layer1.0"), strict=True):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{module}', 'x']")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 4, 4]) for name in ("x", "b")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "graph", ends[:1], ends[1:])), tmp_path / "x.onnx")
    lookup, missing = engine_layers.onnx_lookup(tmp_path / "x.onnx")
    assert missing == ""
    (layer,) = inspected_layers([entry], lookup)
    assert (layer.modules, layer.operators) == (("layer1.0.conv1", "layer1.0"), ("Conv", "Relu"))
    (written,) = inspected_layers([{"Name": "__myl_x", "Outputs": [{"Name": "b_myl0_1"}]}], lookup)
    assert written.modules == ("layer1.0",)


def test_missing_details_of_an_engine_are_reported():
    layers = inspected_layers(["node_Conv_1", "node_relu"], engine_layers.onnx_lookup(None)[0])
    assert [layer.name for layer in layers] == ["node_Conv_1", "node_relu"]
    assert absences(["node_Conv_1"], layers, engine_layers.NO_ONNX)["modules"] == engine_layers.NO_ONNX
    assert "profiling_verbosity=detailed" in absences([], layers)["details"]
    assert list(absences([{}], [replace(layer, times=(1e-6,)) for layer in layers])) == ["modules"]


CONVOLUTION = {
    "Name": "node_Conv_292 + node_relu", "LayerType": "CaskConvolution",
    "Inputs": [{"Name": "x", "Dimensions": [1, 3, 224, 224], "Format/Datatype": "Row major linear FP32"}],
    "Outputs": [{"Name": "relu", "Dimensions": [1, 64, 112, 112], "Format/Datatype": "Channel major FP16 format"}],
    "Metadata": "[ONNX Layer: node_Conv_292]\x1f[ONNX Layer: relu] b]\x1f[ONNX Layer: relu] b]\x1f[Other: c]",
    "Kernel": [7, 7],
}  # fmt: skip


def test_layers_of_an_engine_have_their_operators():
    pool = {"Name": "pool", "LayerType": "Pool", "Inputs": [{"Name": "relu"}], "Outputs": [{"Name": "y"}]}
    data = json.dumps({"Layers": [CONVOLUTION, pool], "Bindings": ["x", "y"]}).encode()
    assert engine_layers.is_engine_information(data)
    graph = build_graph(engine_source(data, "engine"))
    arrows = {(graph.nodes[edge.tail].name, graph.nodes[edge.head].name) for edge in graph.edges}
    assert arrows == {("x", CONVOLUTION["Name"]), (CONVOLUTION["Name"], "pool"), ("pool", "y")}
    first = graph.nodes[0]
    assert (first.operators, first.details) == (("node_Conv_292", "relu] b", "[Other: c]"), {"Kernel": "[7, 7]"})
    assert (first.outputs[0].shape, first.outputs[0].dtype) == ((1, 64, 112, 112), "float16")
    names = build_graph(engine_source(b'{"Layers": ["conv1", "fc"], "Bindings": ["x", "y"]}', "of low verbosity"))
    assert {engine_layers.ONLY_NAMES, ORDER_ONLY} <= set(names.notes)
    assert [node.name for node in names.nodes] == ["conv1", "fc"]


def test_other_json_is_refused():
    layers = [b"{}", b"[]", b'[{"Inputs": 5}]', b"[" * 100_000]
    for data in (b"", b"{", b"[1]", b"\xff\xfe{", *(b'{"Layers": %b}' % item for item in layers)):
        refusal("x cannot be read", engine_source, data, "x")


def launched(names):
    return [GpuLaunch(name=name, operator="tensorrt::execute_engine") for name in names]


def test_every_kernel_of_a_real_engine_has_its_layer():
    models = pytest.importorskip("torchvision.models")
    paths = frozenset(name for name, _ in models.mobilenet_v2().named_modules())
    sample = json.loads(gzip.decompress((SAMPLES / "mobilenet_v2-dynamo.json.gz").read_bytes()))
    layers, kernels = inspected_layers(sample["Layers"], lookup_in(paths)), sample["kernels"]
    own = [layer.name for layer in layers]
    origins = kernel_sources(launched(kernels), layers, {})
    assert (origins.absent, [kernel_origin.layer for kernel_origin in origins.origins]) == ({}, own)
    assert origins.origins[REWRITTEN].modules == ("features.18.0",)
    assert origins.origins[1].modules == ("features.0.0", "features.0.1", "features.0.2")
    assert origins.origins[-1].modules == ("classifier.1",)
    pairs = zip(kernels, origins.origins, strict=True)
    assert all(("convFwd" in kernel) == ("Corr" in origin.layer) for kernel, origin in pairs)
    more = kernel_sources(launched([*kernels[:20], SPLIT, *kernels[20:]]), layers, {})
    assert [kernel_origin.layer for kernel_origin in more.origins] == [*own[:20], f"{own[19]} + {own[20]}", *own[20:]]
    assert more.absent["layers"].startswith("1 of 56 kernels")
    fewer = kernel_sources(launched(kernels), [*layers[:REWRITTEN], *layers[REWRITTEN + 1 :]], {})
    assert fewer.absent["layers"].startswith("52 of 55 kernels"), "a layer that is missing leaves its stretch shared"
