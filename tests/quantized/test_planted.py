"""Mistakes planted in a quantized file of a trained network: told by its outputs and by its accuracy beside fp32."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import inferlens
from tests.backends.test_quantize import digits as digits  # a network trained on scikit-learn's digits

pytestmark = pytest.mark.usefixtures("one_process")
WORDS = {"backend": "onnxruntime:cpu", "warmup": 1, "iterations": 2, "within": "0s"}


@pytest.fixture
def files(digits, tmp_path, monkeypatch):
    """The network in fp32, and rightly quantized."""
    module, data = digits
    monkeypatch.chdir(tmp_path)
    torch.onnx.export(
        module, (torch.zeros(50, 1, 8, 8),), "fp32.onnx", input_names=["image"], dynamo=True, verbose=False,
        external_data=False,
    )  # fmt: skip
    inferlens.quantize("fp32.onnx", calibration=data, output="right.onnx", backend="onnxruntime")
    return data


def against_fp32(file, data):
    """The file beside fp32, how far its outputs are, and how much accuracy it lost."""
    words = {**WORDS, "input": "image=50x1x8x8", "calibration": data, "accuracy": data}
    found = inferlens.ab("fp32.onnx", file, **words)
    return found, found.outputs.rel_l2, found.accuracy.drop


def scaled(graph, node, factor):
    """Gives a node that dequantizes a scale of its own, so many times the right one."""
    (right,) = (each for each in graph.initializer if each.name == node.input[1])
    wrong = numpy_helper.from_array(numpy_helper.to_array(right) * np.float32(factor), f"{right.name}_wrong")
    graph.initializer.append(wrong)
    node.input[1] = wrong.name


def test_a_file_that_is_rightly_quantized_gives_the_outputs_of_its_source(files):
    found, error, lost = against_fp32("right.onnx", files)
    assert 0.001 < error < 0.05
    assert abs(lost) <= 0.01
    assert "A and B give the same outputs" in str(found)
    assert "tolerance 0.10)" in str(found)


def changed(change, file="right.onnx"):
    """A file beside it, with a mistake."""
    wrong = onnx.load(file)
    change(wrong.graph)
    onnx.save(wrong, "wrong.onnx")
    return "wrong.onnx"


@pytest.mark.parametrize("factor", [2, 0.5])
def test_one_scale_that_is_off_by_a_factor_of_two_shows_in_the_outputs(files, factor):
    nodes = [node.name for node in onnx.load("right.onnx").graph.node if node.op_type == "DequantizeLinear"]
    harmless = []
    for name in nodes:
        wrong = changed(lambda graph, name=name: scaled(graph, named(graph, name), factor))
        found, error, _ = against_fp32(wrong, files)
        if error <= 0.1:
            harmless.append((name, error < 0.02))
        assert ("DIFFERENT OUTPUTS" in str(found)) == (error > 0.1)
    assert len(nodes) == 11
    assert harmless == [("head.bias_DequantizeLinear", True)]  # which is next to nothing beside what it is added to


def test_an_output_that_is_quantized_twice_shows_where_it_does_harm(files):
    def twice(graph, scale):
        """Quantizes the output once more, by the scale and the zero point of this tensor."""
        next(node for node in graph.node if graph.output[0].name in node.output).output[0] = "once"
        parts = [f"{scale}_scale", f"{scale}_zero_point"]
        graph.node.append(helper.make_node("QuantizeLinear", ["once", *parts], ["again"]))
        graph.node.append(helper.make_node("DequantizeLinear", ["again", *parts], [graph.output[0].name]))

    found, error, lost = against_fp32(changed(lambda graph: twice(graph, "linear")), files)  # its own: nothing is lost
    assert error < 0.02
    assert lost == pytest.approx(0, abs=0.01)
    found, error, lost = against_fp32(changed(lambda graph: twice(graph, "image")), files)
    assert "DIFFERENT OUTPUTS" in str(found)
    assert lost > 0.1


def test_a_scale_that_is_off_in_what_was_quantized_here_is_wrong_beside_its_source(files):
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
    (found,) = (node for node in graph.node if node.name == name)
    return found
