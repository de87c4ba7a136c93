"""ONNX files that do not become networks, each with one clear message; and quantized ones that do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.engine import built
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.network import network
from inferlens.backends.tensorrt.parse_errors import module_of, takes_plugins
from inferlens.backends.tensorrt.quantized import limits
from inferlens.errors import InferlensError, Unsupported
from inferlens.spec.case import TensorSpec
from tests.backends.quantized import quantized_file


@pytest.mark.parametrize("content", [b"", b"hello" * 100, "cut", "garbled"], ids=["empty", "foreign", "cut", "garbled"])
def test_a_broken_file_is_one_sentence(content: Any, graph: Path, tmp_path: Path, rtx: Any) -> None:
    path, whole = tmp_path / "broken.onnx", graph.read_bytes()
    if content == "garbled":
        content = whole[:200] + bytes(reversed(whole[200:600])) + whole[600:]
    path.write_bytes(whole[: len(whole) // 2] if content == "cut" else content)
    with pytest.raises(Unsupported, match=r"no ONNX (file|graph)") as raised:
        network(path, rtx)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unsupported_operator_is_named_with_its_module(tmp_path: Path, rtx: Any) -> None:
    """A custom operator deep in a module, as PyTorch's exporter would write it."""
    node = helper.make_node("Warp", ["a"], ["y"], name="node_warp", domain="acme")
    node.metadata_props.add(
        key="pkg.torch.onnx.name_scopes", value="['', 'encoder', 'encoder.layers.3', 'encoder.layers.3.warp', 'warp']"
    )
    path = saved(tmp_path, [helper.make_node("Relu", ["x"], ["a"], name="relu"), node], domains=("acme",))
    with pytest.raises(Unsupported) as raised:
        network(path, rtx)
    assert raised.value.what == (
        f"{rtx.title} cannot take the ONNX node 'node_warp' (acme::Warp, in the module encoder.layers.3.warp): it has "
        "no such operator."
    )
    assert raised.value.hint == "another operator in the model, or --backend onnxruntime:cuda"


def test_a_flavour_whose_networks_have_plugins_advises_one(rtx: Any) -> None:
    assert not takes_plugins(rtx)
    other = SimpleNamespace(INetworkDefinition=SimpleNamespace(add_plugin_v3=None))
    assert takes_plugins(Flavour("trt", "tensorrt", "TensorRT", "10.13.0.35", other))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([helper.make_node("Det", ["x"], ["y"], name="det")], r"'det' \(Det\): it has no such operator"),
        ([helper.make_node("Relu", ["nothing"], ["y"], name="relu")], r"'relu' \(Relu\): .* comes from nowhere"),
        ([helper.make_node("Add", ["x", "w"], ["y"], name="add")], r"'add' \(Add\): .*broadcast"),
    ],
    ids=["operator", "dangling", "shapes"],
)
def test_what_cannot_be_parsed_is_named(nodes: list[Any], message: str, tmp_path: Path, rtx: Any) -> None:
    with pytest.raises(Unsupported, match=message) as raised:
        network(saved(tmp_path, nodes), rtx)
    assert raised.value.hint


class Places(torch.nn.Module):
    """Where its input is positive."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0)


def test_an_operator_that_only_a_plugin_would_run_is_one_it_does_not_have(tmp_path: Path, rtx: Any) -> None:
    """The parser of TensorRT for RTX knows NonZero, and looks for a plugin that the library does not have."""
    path = tmp_path / "places.onnx"
    outer = torch.nn.Sequential()
    outer.add_module("places", Places())
    torch.onnx.export(outer.eval(), (torch.ones(4, 8),), path, dynamo=True, verbose=False)
    with pytest.raises(Unsupported) as raised:
        network(path, rtx)
    assert "(NonZero, in the module places): it has no such operator." in raised.value.what
    assert "ssertion" not in raised.value.what
    assert raised.value.hint == "another operator in the model, or --backend onnxruntime:cuda"


def test_an_operator_that_takes_a_gpu_to_parse_says_so(tmp_path: Path, rtx: Any) -> None:
    """TensorRT for RTX has a plugin for RoiAlign, which it cannot make without a GPU."""
    node = helper.make_node("RoiAlign", ["x", "boxes", "of"], ["y"], name="align", output_height=2, output_width=2)
    sizes = {"x": [1, 3, 8, 8], "boxes": [4, 4], "of": [4], "y": [4, 3, 2, 2]}
    ends = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "of" else TensorProto.FLOAT, size)
        for name, size in sizes.items()
    ]
    graph = helper.make_graph([node], "graph", ends[:3], ends[3:])
    path = tmp_path / "align.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    if torch.cuda.is_available():
        assert network(path, rtx).layers
        return
    with pytest.raises(Unsupported, match=r"'align' \(RoiAlign\) here: on a machine with a GPU alone") as raised:
        network(path, rtx)
    assert raised.value.hint.startswith("a machine with a GPU, or ")


def test_a_name_in_the_file_makes_no_line_of_ours(tmp_path: Path, rtx: Any) -> None:
    name = "evil\x1b[31m\nError: fake"
    nodes = [helper.make_node(name, ["x"], ["y"], name=name), helper.make_node(f"{name} too", ["x"], ["z"])]
    with pytest.raises(Unsupported, match=r"the ONNX node 'evil \[31m Error: fake' \(evil .*: evil .* too") as raised:
        network(saved(tmp_path, nodes), rtx)
    assert "\n" not in str(raised.value)
    with pytest.raises(Unsupported) as raised:  # the parser's own reason quotes it
        network(saved(tmp_path, [helper.make_node("Add", ["x", "w"], ["y"], name=name)]), rtx)
    assert "\n" not in str(raised.value)


def test_the_parsers_reason_is_a_whole_sentence(tmp_path: Path, rtx: Any) -> None:
    number = helper.make_node("Constant", [], ["one"], value=helper.make_tensor("one", TensorProto.INT64, [1], [1]))
    with pytest.raises(Unsupported) as raised:
        network(saved(tmp_path, [number, helper.make_node("Add", ["x", "one"], ["y"], name="add")]), rtx)
    assert raised.value.what.endswith("must have same input types. But they are of types Float and Int64.")
    assert raised.value.what.count("(") == raised.value.what.count(")")
    assert "Error Code" not in raised.value.what


def test_several_unsupported_operators_are_all_named(tmp_path: Path, rtx: Any) -> None:
    nodes = [helper.make_node("Det", ["x"], ["y"], name="det"), helper.make_node("Warp", ["x"], ["z"], domain="acme")]
    with pytest.raises(Unsupported, match="Nor can it take 1 more operator: Warp"):
        network(saved(tmp_path, nodes, domains=("acme",)), rtx)


def test_an_input_of_a_type_it_lacks_is_named(tmp_path: Path, rtx: Any) -> None:
    path = saved(tmp_path, [helper.make_node("Abs", ["x"], ["y"], name="abs")], kind=TensorProto.INT16)
    with pytest.raises(Unsupported, match="the input 'x': it has no such data type"):
        network(path, rtx)


@pytest.mark.parametrize(("name", "problem"), [("none.onnx", "does not exist"), ("", "is a folder")])
def test_a_file_that_is_not_there_is_not_blamed_on_the_graph(name: str, problem: str, tmp_path: Path, rtx: Any) -> None:
    with pytest.raises(InferlensError) as raised:
        network(tmp_path / name, rtx)
    assert raised.value.what == f"The file {tmp_path / name} {problem}."
    assert "ONNX file" in raised.value.expected


def test_a_graph_in_float64_is_said_to_be_computed_in_fp32(
    tmp_path: Path, job: Any, preparation: Preparation, rtx: Any
) -> None:
    path = saved(tmp_path, [helper.make_node("Abs", ["x"], ["y"], name="abs")], kind=TensorProto.DOUBLE)
    parsed = network(path, rtx)
    assert [spec.dtype for spec in (*parsed.inputs, *parsed.outputs)] == ["float32", "float32"]
    given = dataclasses.replace(job(path=path).model, inputs=(TensorSpec("x", (1, 4), "float64"),))
    case = msgspec.structs.replace(job(path=path).case, options={"compute_capability": "8.9"})
    for cached in (False, True):
        report = TensorRT().build(given, case, preparation, tmp_path / "made.engine")
        assert report.cached == cached
        (warning,) = preparation.warnings
        assert warning.code == "no-effect"
        assert "float64 of made.onnx" in warning.message
        assert "fp32" in warning.message
        assert "onnxruntime" in warning.advice
        preparation.warnings.clear()


def test_a_graph_without_float64_is_not_complained_of(
    graph: Path, job: Any, preparation: Preparation, tmp_path: Path
) -> None:
    case = msgspec.structs.replace(job().case, options={"compute_capability": "8.9"})
    TensorRT().build(job(path=graph).model, case, preparation, tmp_path / "made.engine")
    assert not preparation.warnings


def test_weakly_typed_networks_are_refused_where_there_are_none(graph: Path, rtx: Any) -> None:
    with pytest.raises(Unsupported, match="strongly typed"):
        network(graph, rtx, weakly_typed=True)


@pytest.mark.parametrize(
    ("properties", "module"),
    [
        ({"pkg.torch.onnx.name_scopes": "['', 'layer1', 'layer1.0', 'conv2d']"}, "layer1.0"),
        ({"namespace": "model: Net/layer1: Block/layer1.conv: Conv2d/conv2d: aten.conv2d.default"}, "layer1.conv"),
        ({"pkg.torch.onnx.name_scopes": "broken["}, ""),
        ({}, ""),
    ],
)
def test_the_module_of_a_node(properties: dict[str, str], module: str) -> None:
    node = helper.make_node("Conv", ["x"], ["y"])
    for key, value in properties.items():
        node.metadata_props.add(key=key, value=value)
    assert module_of(node) == module


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("layers", ["linear", "convolution"])
def test_quantized_graphs_build_as_they_are(
    kind: str, layers: str, tmp_path: Path, job: Any, preparation: Preparation, rtx: Any
) -> None:
    wanted = job(path=quantized_file(tmp_path, kind, layers), precision=kind, compute_capability="8.9")
    if layers == "linear":
        model = dataclasses.replace(wanted.model, inputs=(TensorSpec("image", (4, 32)),))
        wanted = dataclasses.replace(wanted, model=model)
    types = {layer_type(network(wanted.path, rtx), index) for index in range(network(wanted.path, rtx).layers)}
    assert {"QUANTIZE", "DEQUANTIZE"} <= types
    version = tuple(map(int, rtx.version.split(".")[:2]))
    if (kind, layers) == ("int8", "convolution") and version < (1, 7):
        with pytest.raises(Unsupported, match="has no INT8 convolutions") as raised:
            built(wanted, preparation)
        assert "FP8" in raised.value.hint
        assert "convolutions from version 1.7 on" in limits(rtx)["rtx/cuda/int8"]
    elif version < (1, 5) and not torch.cuda.is_available():
        with pytest.raises(Unsupported, match="builds on a GPU alone"):
            built(wanted, preparation)
    else:
        assert len(built(wanted, preparation).plan) > 1000


def test_fp8_names_the_gpus_that_lack_it(tmp_path: Path, job: Any, preparation: Preparation) -> None:
    wanted = job(path=quantized_file(tmp_path, "fp8", "convolution"), precision="fp8")
    with pytest.raises(Unsupported, match=r"compute capability 8\.0 have no FP8"):
        built(wanted, preparation)


def layer_type(parsed: Any, index: int) -> str:
    return str(parsed.definition.get_layer(index).type.name)


def saved(folder: Path, nodes: list[Any], domains: tuple[str, ...] = (), kind: int = TensorProto.FLOAT) -> Path:
    """A graph from ``x`` to ``y``, both 1x4, with a weight ``w`` of size 3."""
    ends = [helper.make_tensor_value_info(name, kind, [1, 4]) for name in ("x", "y")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [weight])
    sets = [helper.make_opsetid("", 20), *(helper.make_opsetid(domain, 1) for domain in domains)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=10), folder / "made.onnx")
    return folder / "made.onnx"
