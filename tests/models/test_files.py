"""Inputs and precisions of model files; inputs that do not fit, and missing weights, are one message."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from inferlens.errors import InferlensError, Unsupported
from inferlens.models.files import graph_precision, onnx_file_precision
from inferlens.models.resolve import find
from inferlens.spec.case import TensorSpec
from tests.models.loading import graph, loaded
from tests.refusals import refusal


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A convolution with 4*3*3*3 + 4 parameters in files of both kinds, stored for one shape, and for several."""
    folder, net = tmp_path_factory.mktemp("files"), torch.nn.Conv2d(3, 4, 3).eval()
    feed = (torch.ones(2, 3, 8, 8),)
    torch.onnx.export(net, feed, folder / "fixed.onnx", dynamo=True, input_names=["input"], verbose=False)
    torch.export.save(torch.export.export(net, feed), folder / "fixed.pt2")
    model = onnx.load(folder / "fixed.onnx")
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    sizes[0].dim_value, sizes[2].dim_param = -1, "height"  # both are free: some exporters write the one, some the other
    onnx.save(model, folder / "free.onnx")
    ranges = {0: torch.export.Dim("batch", min=1, max=8), 2: torch.export.Dim("height", min=8)}
    free = torch.export.export(net, (torch.ones(4, 3, 16, 8),), dynamic_shapes=(ranges,), strict=False)
    torch.export.save(free, folder / "free.pt2")
    return folder


@pytest.mark.parametrize("name", ["fixed.onnx", "fixed.pt2"])
def test_fixed_inputs_and_weights_of_a_file_cannot_be_changed(files, name):
    kinds = {"2x3x9x9:float32": Unsupported, "2x3:float32": InferlensError, "2x3x8x8:int64": InferlensError}
    for wrong, kind in kinds.items():
        inputs = (TensorSpec.parse(f"input={wrong}"),)
        error = refusal("does not take", loaded, files / name, inputs=inputs, batch=None)
        assert (type(error), error.expected) == (kind, "input=2x3x8x8:float32")
    assert type(refusal("does not take input=3x3x8x8:float32", loaded, files / name, batch=3)) is Unsupported
    for weights in ("DEFAULT", "other.pth"):
        refusal("brings its own weights", loaded, files / name, weights=weights)


def test_open_dimensions_need_sizes(files):
    assert find(str(files / "free.onnx")).batch == 1
    assert refusal("leaves open", loaded, files / "free.onnx").hint == "--dim height=128"
    model = loaded(files / "free.onnx", inputs=(TensorSpec("input", (1, 3, 10, 8)),), batch=5)
    assert model.inputs == (TensorSpec("input", (5, 3, 10, 8), names=("", "", "height", "")),)
    refusal("does not take", loaded, files / "free.onnx", inputs=(TensorSpec("input", (1, 4, 10, 8)),))


@pytest.mark.parametrize(("asked", "batch"), [("4x3x16x8", 9), ("9x3x5x8", None), ("1..9x3x16x8", 8)])
def test_sizes_outside_of_the_range_of_a_program_are_one_message(files, asked, batch):
    inputs = (TensorSpec.parse(f"input={asked}"),)
    error = refusal("does not take", loaded, files / "free.pt2", inputs=inputs, batch=batch)
    assert (type(error), error.expected) == (Unsupported, "input=1..8x3x8..Nx8:float32")
    for end in (1, 8):
        model = loaded(files / "free.pt2", inputs=(TensorSpec("input", (1, 3, 8, 8)),), batch=end)
        assert model.module(torch.ones(model.inputs[0].shape)).shape == (end, 4, 6, 6)


def small_graph(path, **inputs):
    """Save a ReLU of the first input, or of a weight; a shape may be ``None``, which is unknown."""
    weight = numpy_helper.from_array(np.ones((2, 4), np.float32), "w")
    onnx.save(graph([helper.make_node("Relu", [next(iter(inputs), "w")], ["y"])], inputs, [weight]), path)
    return path


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4, 5), ()])
def test_a_graph_without_a_shape_takes_any(tmp_path, shape):
    path = small_graph(tmp_path / "net.onnx", x=None, more=["N", 8])
    assert "--input x=1x" in refusal(r"leaves open the shape of x \(1 x \?\)", loaded, path).hint
    model = loaded(path, inputs=(TensorSpec("x", shape),), batch=shape[0] if shape else None)
    assert [spec.shape for spec in model.inputs] == [shape, (shape[0] if shape else 1, 8)]
    refusal("does not take x=3:int64", loaded, path, inputs=(TensorSpec("x", (3,), "int64"),), batch=None)


def test_the_input_to_try_has_the_graphs_own_name(tmp_path):
    path = small_graph(tmp_path / "net.onnx", **{"x0 of x0": ["N", None]})
    assert refusal("leaves open", loaded, path).hint == "--input 'x0 of x0=1x128:float32'"
    refusal("takes no inputs", find, str(small_graph(tmp_path / "none.onnx")))


def test_a_single_number_has_no_batch(tmp_path):
    path = small_graph(tmp_path / "scalar.onnx", x=[])
    assert loaded(path).inputs == loaded(path, batch=1).inputs == (TensorSpec("x", ()),)
    error = refusal("does not take", loaded, path, inputs=(TensorSpec("x", (2, 3)),), batch=None)
    assert error.expected == "x=scalar:float32"
    error = refusal("'x' is a single number, without a batch", loaded, path, batch=4)
    assert type(error) is Unsupported


@pytest.mark.parametrize("name", ["net.onnx", "net.pt", "net.engine"])
def test_a_folder_is_no_model_file(tmp_path, name):
    (tmp_path / name).mkdir()
    refusal(rf"{name} is a folder\.", find, str(tmp_path / name))


def test_weights_beside_a_graph_count_and_are_looked_for(files, tmp_path):
    path, beside = tmp_path / "net.onnx", tmp_path / "net.data"
    outside = {"save_as_external_data": True, "size_threshold": 0, "convert_attribute": False}
    onnx.save_model(onnx.load(files / "fixed.onnx"), path, location=beside.name, **outside)
    first = loaded(path)
    assert first.parameters == 4 * 3 * 3 * 3 + 4
    data = beside.read_bytes()
    beside.write_bytes(data[::-1])
    assert loaded(path).weights_sha256 != first.weights_sha256
    beside.unlink()
    refusal("is missing", loaded, path)


def test_a_graph_reads_nothing_outside_its_folder(files, tmp_path):
    model = onnx.load(files / "fixed.onnx")
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], location="../secret")
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    refusal("refers to weights in", loaded, tmp_path / "net.onnx")


def test_plain_torchscript_is_recognized_in_a_ts_file(tmp_path):
    path = tmp_path / "net.ts"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(4, 2), torch.zeros(1, 4)), str(path))
    assert find(str(path)).format == "torchscript"


# Precisions

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
