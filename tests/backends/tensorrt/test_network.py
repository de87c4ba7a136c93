"""ONNX files that do not become networks, each with one clear message; and quantized ones that do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.backend import TensorRT, limits
from inferlens.backends.tensorrt.engine import built
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.network import network
from inferlens.errors import InferlensError, Unsupported
from inferlens.spec.case import TensorSpec
from tests.backends.quantized import quantized_file

SCOPES = "['', 'encoder', 'encoder.layers.3', 'encoder.layers.3.warp', 'warp']"
CONSTANT = helper.make_node("Constant", [], ["one"], value=helper.make_tensor("one", TensorProto.INT64, [1], [1]))


@pytest.mark.parametrize("content", [b"", b"hello" * 100, "cut", "garbled"], ids=["empty", "foreign", "cut", "garbled"])
def test_a_broken_file_is_one_sentence(content: Any, graph: Path, tmp_path: Path, rtx: Flavour) -> None:
    path, whole = tmp_path / "broken.onnx", graph.read_bytes()
    if content == "garbled":
        content = whole[:200] + bytes(reversed(whole[200:600])) + whole[600:]
    path.write_bytes(whole[: len(whole) // 2] if content == "cut" else content)
    with pytest.raises(Unsupported) as raised:
        network(path, rtx)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["none.onnx", ""])
def test_a_file_that_is_not_there_is_not_blamed_on_the_graph(name: str, tmp_path: Path, rtx: Flavour) -> None:
    with pytest.raises(InferlensError, match=f"The file {tmp_path / name}"):
        network(tmp_path / name, rtx)


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ([helper.make_node("Det", ["x"], ["y"], name="det")], ["'det' (Det)", "no such operator"]),
        ([helper.make_node("Relu", ["nothing"], ["y"], name="relu")], ["'relu' (Relu)"]),
        ([helper.make_node("Add", ["x", "w"], ["y"], name="add")], ["'add' (Add)", "broadcast"]),
        ([CONSTANT, helper.make_node("Add", ["x", "one"], ["y"], name="add")], ["'add' (Add)", "Float and Int64"]),
        (
            [helper.make_node("Det", ["x"], ["y"]), helper.make_node("Warp", ["x"], ["z"], domain="acme")],
            ["(Det)", "Nor can it take Warp"],
        ),
    ],
    ids=["operator", "dangling", "shapes", "types", "two operators"],
)  # fmt: skip
def test_what_cannot_be_parsed_is_named(nodes: list[Any], named: list[str], tmp_path: Path, rtx: Flavour) -> None:
    with pytest.raises(Unsupported) as raised:
        network(saved(tmp_path, nodes, domains=("acme",)), rtx)
    assert all(words in raised.value.what for words in named), raised.value.what
    assert "Error Code" not in raised.value.what
    assert raised.value.hint


class Places(torch.nn.Module):
    """Where its input is positive."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0)


def test_an_unsupported_operator_is_named_with_its_module(tmp_path: Path, rtx: Flavour) -> None:
    """A custom operator deep in a module; and NonZero, for which the parser looks for a plugin that there is not."""
    node = helper.make_node("Warp", ["a"], ["y"], name="node_warp", domain="acme")
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=SCOPES)
    warp = saved(tmp_path, [helper.make_node("Relu", ["x"], ["a"], name="relu"), node], domains=("acme",))
    places = tmp_path / "places.onnx"
    outer = torch.nn.Sequential()
    outer.add_module("places", Places())
    torch.onnx.export(outer.eval(), (torch.ones(4, 8),), places, dynamo=True, verbose=False)
    for path, operator, module in ((warp, "Warp", "encoder.layers.3.warp"), (places, "NonZero", "places")):
        with pytest.raises(Unsupported) as raised:
            network(path, rtx)
        assert f"({operator}, in the module {module}): it has no such operator." in raised.value.what


def test_an_operator_that_takes_a_gpu_to_parse_says_so(tmp_path: Path, rtx: Flavour) -> None:
    """TensorRT for RTX has a plugin for RoiAlign, which it cannot make without a GPU."""
    node = helper.make_node("RoiAlign", ["x", "boxes", "of"], ["y"], name="align", output_height=2, output_width=2)
    sizes = {"x": [1, 3, 8, 8], "boxes": [4, 4], "of": [4], "y": [4, 3, 2, 2]}
    ends = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "of" else TensorProto.FLOAT, size)
        for name, size in sizes.items()
    ]
    path = written(tmp_path / "align.onnx", helper.make_graph([node], "graph", ends[:3], ends[3:]))
    if torch.cuda.is_available():
        assert network(path, rtx).layers
        return
    with pytest.raises(Unsupported, match=r"'align' \(RoiAlign\)") as raised:
        network(path, rtx)
    assert raised.value.hint == "a machine with a GPU"


def test_a_name_in_the_file_makes_no_line_of_ours(tmp_path: Path, rtx: Flavour) -> None:
    name = "evil\x1b[31m\nError: fake"
    nodes = [helper.make_node(name, ["x"], ["y"], name=name), helper.make_node(f"{name} too", ["x"], ["z"])]
    for each in (nodes, [helper.make_node("Add", ["x", "w"], ["y"], name=name)]):
        with pytest.raises(Unsupported, match=r"the ONNX node 'evil \[31m Error: fake'") as raised:
            network(saved(tmp_path, each), rtx)
        assert "\n" not in str(raised.value)


def test_a_graph_in_float64_is_said_to_be_computed_in_fp32(
    graph: Path, tmp_path: Path, job: Any, preparation: Preparation, rtx: Flavour
) -> None:
    path = saved(tmp_path, [helper.make_node("Abs", ["x"], ["y"], name="abs")], kind=TensorProto.DOUBLE)
    parsed = network(path, rtx)
    assert [spec.dtype for spec in (*parsed.inputs, *parsed.outputs)] == ["float32", "float32"]
    given = dataclasses.replace(job(path=path).model, inputs=(TensorSpec("x", (1, 4), "float64"),))
    case = msgspec.structs.replace(job(path=path).case, options={"compute_capability": "8.9"})
    for model, cached, codes in (
        (given, False, ["no-effect"]), (given, True, ["no-effect"]), (job(path=graph).model, False, []),
    ):  # fmt: skip
        assert TensorRT().build(model, case, preparation, tmp_path / "made.engine").cached == cached
        assert [warning.code for warning in preparation.warnings] == codes
        preparation.warnings.clear()


def test_weakly_typed_networks_are_refused_where_there_are_none(graph: Path, rtx: Flavour) -> None:
    with pytest.raises(Unsupported, match="strongly typed"):
        network(graph, rtx, weakly_typed=True)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("layers", ["linear", "convolution"])
def test_quantized_graphs_build_as_they_are(
    kind: str, layers: str, tmp_path: Path, job: Any, preparation: Preparation, rtx: Flavour
) -> None:
    wanted = job(path=quantized_file(tmp_path, kind, layers), precision=kind, compute_capability="8.9")
    if layers == "linear":
        model = dataclasses.replace(wanted.model, inputs=(TensorSpec("image", (4, 32)),))
        wanted = dataclasses.replace(wanted, model=model)
    parsed = network(wanted.path, rtx)
    assert {"QUANTIZE", "DEQUANTIZE"} <= {parsed.definition.get_layer(at).type.name for at in range(parsed.layers)}
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
        assert len(built(wanted, preparation).content) > 1000


def saved(folder: Path, nodes: list[Any], domains: tuple[str, ...] = (), kind: int = TensorProto.FLOAT) -> Path:
    """A graph from ``x`` to ``y``, both 1x4, with a weight ``w`` of size 3."""
    ends = [helper.make_tensor_value_info(name, kind, [1, 4]) for name in ("x", "y")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])
    return written(folder / "made.onnx", helper.make_graph(nodes, "graph", ends[:1], ends[1:], [weight]), domains)


def written(path: Path, graph: Any, domains: tuple[str, ...] = ()) -> Path:
    sets = [helper.make_opsetid("", 20), *(helper.make_opsetid(domain, 1) for domain in domains)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=10), path)
    return path
