"""The precision of a model file: ONNX graphs, exported programs, TorchScript."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from inferlens.models.files import graph_precision, onnx_file_precision
from inferlens.models.resolve import find
from tests.models.loading import graph

ZERO_POINTS = {
    TensorProto.INT8: "int8", TensorProto.UINT8: "int8", TensorProto.FLOAT8E4M3FN: "fp8", TensorProto.FLOAT8E5M2: "fp8",
}  # fmt: skip
X = {"x": [1, 4]}


def weight(name, kind, *shape):
    return helper.make_tensor(name, kind, shape, np.zeros(shape).ravel().tolist())


def test_the_precision_is_that_of_most_weights_or_of_the_inputs():
    kinds = ((TensorProto.FLOAT, "fp32"), (TensorProto.BFLOAT16, "bf16"), (TensorProto.DOUBLE, "fp32"))
    for kind, precision in (*kinds, (TensorProto.INT64, "fp32")):
        one = graph([helper.make_node("Add", ["x", "w"], ["y"])], X, [weight("w", kind, 1, 4)])
        assert graph_precision(one) == precision
    node = helper.make_node("Sum", ["x", "a", "b", "c"], ["y"])
    many_small = [weight(name, TensorProto.FLOAT, 4) for name in "ab"]
    assert graph_precision(graph([node], X, [*many_small, weight("c", TensorProto.FLOAT16, 8, 4)])) == "fp16"
    node = helper.make_node("Relu", ["x"], ["y"])
    assert graph_precision(graph([node], X, kind=TensorProto.FLOAT16)) == "fp16"
    assert graph_precision(graph([node], X, kind=TensorProto.INT64)) == "fp32"


@pytest.mark.parametrize("place", ["initializer", "constant"])
@pytest.mark.parametrize(("kind", "precision"), ZERO_POINTS.items())
def test_a_quantized_graph_has_the_precision_of_its_zero_point(kind, precision, place):
    scale, zero = weight("s", TensorProto.FLOAT), weight("z", kind)
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
             helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])]  # fmt: skip
    if place == "constant":  # as exporters of PyTorch write them
        nodes = [helper.make_node("Constant", [], ["z"], value=zero), *nodes]
    assert graph_precision(graph(nodes, X, [scale] if place == "constant" else [scale, zero])) == precision


def test_without_a_zero_point_the_weights_or_the_operator_decide():
    scale, stored = weight("s", TensorProto.FLOAT), weight("w", TensorProto.FLOAT8E4M3FN, 1, 4)
    quantize = ("QuantizeLinear", ["x", "s"], ["y"])
    assert graph_precision(graph([helper.make_node(*quantize)], X, [scale])) == "int8"
    for inputs in (["w", "s"], ["w", "s", ""]):
        nodes = [helper.make_node("DequantizeLinear", inputs, ["d"]), helper.make_node("Add", ["x", "d"], ["y"])]
        assert graph_precision(graph(nodes, X, [stored, scale])) == "fp8"
    assert graph_precision(graph([helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], X)) == "int8"


def test_weights_in_another_file_need_not_be_there(tmp_path):
    model = graph([helper.make_node("Add", ["x", "w"], ["y"])], X)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 4), np.float16), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    assert onnx_file_precision(tmp_path / "m.onnx") == "fp16"


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float16, "fp16"), (torch.bfloat16, "bf16")])
def test_files_of_pytorch_have_a_precision(tmp_path, dtype, precision):
    module, example = torch.nn.Linear(4, 2).eval().to(dtype), torch.ones(1, 4, dtype=dtype)
    torch.export.save(torch.export.export(module, (example,)), tmp_path / "m.pt2")
    torch.jit.trace(module, example).save(str(tmp_path / "m.pt"))
    mixed = torch.nn.Sequential(module, torch.nn.Linear(2, 2))
    torch.jit.script(mixed).save(str(tmp_path / "mixed.pt"))
    precisions = [find(str(tmp_path / name)).precision for name in ("m.pt2", "m.pt", "mixed.pt")]
    assert precisions == [precision, precision, "fp32"]
