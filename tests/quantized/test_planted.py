"""Mistakes planted in a quantized file of a trained network show in its outputs and its accuracy against fp32."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import inferlens
from tests.backends.test_quantize import digits as digits

pytestmark = pytest.mark.usefixtures("one_process")
WORDS = {"backend": "onnxruntime:cpu", "warmup": 1, "iterations": 2, "within": "0s"}


@pytest.fixture(scope="module")
def folder(digits, tmp_path_factory):
    """The network in fp32, and correctly quantized."""
    module, data = digits
    folder = tmp_path_factory.mktemp("planted")
    torch.onnx.export(
        module, (torch.zeros(50, 1, 8, 8),), folder / "fp32.onnx", input_names=["image"], dynamo=True, verbose=False,
        external_data=False,
    )  # fmt: skip
    right = folder / "right.onnx"
    inferlens.quantize(str(folder / "fp32.onnx"), calibration=data, output=str(right), backend="onnxruntime")
    return folder


@pytest.fixture
def files(folder, digits, tmp_path, monkeypatch):
    """Go to a folder with the files, and return the data."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return digits[1]


def against_fp32(file, data):
    """Compare a file with fp32. Return the result, the error of the outputs and the drop in accuracy."""
    words = {**WORDS, "input": "image=50x1x8x8", "calibration": data, "accuracy": data}
    result = inferlens.ab("fp32.onnx", file, **words)
    return result, result.outputs.rel_l2, result.accuracy.drop


def scaled(graph, node, factor):
    """Multiply the scale of a node that dequantizes."""
    (right,) = (tensor for tensor in graph.initializer if tensor.name == node.input[1])
    wrong = numpy_helper.from_array(numpy_helper.to_array(right) * np.float32(factor), f"{right.name}_wrong")
    graph.initializer.append(wrong)
    node.input[1] = wrong.name


def test_a_correctly_quantized_file_gives_the_outputs_of_its_source(files):
    result, error, lost = against_fp32("right.onnx", files)
    assert 0.001 < error < 0.05
    assert abs(lost) <= 0.01
    assert "A and B give the same outputs" in str(result)
    assert "tolerance 0.10)" in str(result)


def changed(change, file="right.onnx"):
    """Save a copy of a file with a mistake."""
    wrong = onnx.load(file)
    change(wrong.graph)
    onnx.save(wrong, "wrong.onnx")
    return "wrong.onnx"


def test_one_scale_that_is_wrong_by_a_factor_of_two_shows_in_the_outputs(files):
    nodes = [node.name for node in onnx.load("right.onnx").graph.node if node.op_type == "DequantizeLinear"]
    harmless = []
    for name, factor in zip(nodes, itertools.cycle((2, 0.5)), strict=False):
        wrong = changed(lambda graph, name=name, factor=factor: scaled(graph, named(graph, name), factor))
        result, error, _ = against_fp32(wrong, files)
        if error <= 0.1:
            harmless.append((name, error < 0.02))
        assert ("DIFFERENT OUTPUTS" in str(result)) == (error > 0.1)
    assert len(nodes) == 11
    assert harmless == [("head.bias_DequantizeLinear", True)]  # small compared with the sum to which it is added


def test_an_output_that_is_quantized_twice_shows_if_it_does_harm(files):
    def twice(graph, scale):
        """Quantize the output again, with the scale and the zero point of this tensor."""
        next(node for node in graph.node if graph.output[0].name in node.output).output[0] = "once"
        parts = [f"{scale}_scale", f"{scale}_zero_point"]
        graph.node.append(helper.make_node("QuantizeLinear", ["once", *parts], ["again"]))
        graph.node.append(helper.make_node("DequantizeLinear", ["again", *parts], [graph.output[0].name]))

    _, error, lost = against_fp32(changed(lambda graph: twice(graph, "linear")), files)  # its scale: nothing is lost
    assert error < 0.02
    assert lost == pytest.approx(0, abs=0.01)
    result, _, lost = against_fp32(changed(lambda graph: twice(graph, "image")), files)
    assert "DIFFERENT OUTPUTS" in str(result)
    assert lost > 0.05


def test_a_wrong_scale_in_the_cache_makes_a_case_wrong(files):
    words = {"backend": "onnxruntime:cpu", "precision": "int8", "calibration": files}
    words |= {"quick": True, "mode": "latency", "iterations": 2, "warmup": 1}
    (right,) = inferlens.bench("fp32.onnx", **words)
    (cached,) = Path("results/.cache").rglob("cpu-*.onnx")
    wrong = changed(lambda graph: scaled(graph, named(graph, "features.3.weight_DequantizeLinear"), 2), str(cached))
    Path(wrong).replace(cached)
    (again,) = inferlens.bench("fp32.onnx", rerun=True, **words)
    assert [phase.note for phase in again.phases if phase.name == "quantize"] == ["cached"]
    assert (right.ranked, again.ranked) == (True, False)
    assert again.agreement.reason.startswith("relative L2 error")


def named(graph, name):
    return next(node for node in graph.node if node.name == name)
