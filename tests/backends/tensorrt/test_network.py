"""ONNX files that do not become networks, each with one clear message; and quantized ones that do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.engine import built, network
from inferlens.backends.tensorrt.library import Flavour
from inferlens.errors import Unsupported
from inferlens.spec.case import TensorSpec
from tests.backends.quantized import quantized_file
from tests.backends.tensorrt import without_gpu

EVIL = "evil\x1b[31m\nError: fake"
SCOPES = "['', 'encoder', 'encoder.layers.3', 'encoder.layers.3.warp', 'warp']"
CONSTANT = helper.make_node("Constant", [], ["one"], value=helper.make_tensor("one", TensorProto.INT64, [1], [1]))


@pytest.mark.parametrize("content", [b"", b"hello" * 100, "cut", "garbled", None])
def test_a_broken_file_is_one_sentence(content: Any, graph: Path, tmp_path: Path, rtx: Flavour) -> None:
    path, whole = tmp_path / "broken.onnx", graph.read_bytes()
    if content == "garbled":
        content = whole[:200] + bytes(reversed(whole[200:600])) + whole[600:]
    if content is not None:
        path.write_bytes(whole[: len(whole) // 2] if content == "cut" else content)
    with pytest.raises(Unsupported) as raised:
        network(path, rtx)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ([helper.make_node("Det", ["x"], ["y"], name="det")], ["'det' (Det)", "no such operator"]),
        ([helper.make_node("Relu", ["nothing"], ["y"], name="relu")], ["'relu' (Relu)"]),
        ([helper.make_node("Add", ["x", "w"], ["y"], name="add")], ["'add' (Add)", "broadcast"]),
        ([CONSTANT, helper.make_node("Add", ["x", "one"], ["y"], name="add")], ["'add' (Add)", "Float and Int64"]),
        ([helper.make_node(EVIL, ["x"], ["y"], name=EVIL)], ["the ONNX node 'evil [31m Error: fake'"]),
    ],
    ids=["operator", "dangling", "shapes", "types", "name"],
)  # fmt: skip
def test_what_cannot_be_parsed_is_named(nodes: list[Any], named: list[str], tmp_path: Path, rtx: Flavour) -> None:
    with pytest.raises(Unsupported) as raised:
        network(saved(tmp_path, nodes, domains=("acme",)), rtx)
    assert all(words in raised.value.what for words in named), raised.value.what
    assert "Error Code" not in raised.value.what
    assert "\n" not in str(raised.value)
    assert raised.value.hint


class Places(torch.nn.Module):
    """Where its input is positive."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0)


@without_gpu
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


@without_gpu
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
    if ((kind, layers) == ("int8", "convolution") and version < (1, 7)) or version < (1, 5):
        with pytest.raises(Unsupported, match="cannot build the engine"):
            built(wanted, preparation)
    else:
        assert len(built(wanted, preparation).content) > 1000


def saved(folder: Path, nodes: list[Any], domains: tuple[str, ...] = ()) -> Path:
    """A graph from ``x`` to ``y``, both 1x4, with a weight ``w`` of size 3."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])
    return written(folder / "made.onnx", helper.make_graph(nodes, "graph", ends[:1], ends[1:], [weight]), domains)


def written(path: Path, graph: Any, domains: tuple[str, ...] = ()) -> Path:
    sets = [helper.make_opsetid("", 20), *(helper.make_opsetid(domain, 1) for domain in domains)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=10), path)
    return path
