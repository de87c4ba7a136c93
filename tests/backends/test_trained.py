"""Trained networks from Python packages, quantized on real data, stay right on other data."""

import importlib.util
import statistics

import numpy as np
import onnx
import pytest

import inferlens

pytest.importorskip("PIL")
if not all(importlib.util.find_spec(package) for package in ("magika", "rapidocr_onnxruntime")):
    pytest.skip("needs the packages that carry the networks", allow_module_level=True)

from benchmarks.trained import files, texts

pytestmark = pytest.mark.usefixtures("one_process")
QUICK = {"quick": True, "mode": "latency", "iterations": 2, "warmup": 1, "precision": "int8"}


def reading(infer):
    return texts.evaluate_reading(infer, 8)


def finding(infer):
    return texts.evaluate_finding(infer, 6)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Calibration data, and labeled data of other files."""
    folder = tmp_path_factory.mktemp("data")
    np.savez(folder / "lines.npz", x=texts.lines(1, 4)[0])
    np.savez(folder / "pages.npz", x=texts.pages(1, 4)[0])
    files.write(folder, 6)
    return folder


def measured(network, folder, **words):
    (record,) = inferlens.bench(str(network), output=str(folder), **{**QUICK, **words})
    assert (record.status, record.reason, record.accuracy.reason) == ("ok", "", "")
    return record, record.accuracy


def drop(accuracy):
    return statistics.fmean(accuracy.reference_values) - statistics.fmean(accuracy.values)


def test_openvino_classifies_files_as_before(data, tmp_path):  # with ONNX Runtime: benchmarks/trained
    record, accuracy = measured(
        files.network(), tmp_path, backend="openvino", input="bytes=8x2048:int32:0..256",
        calibration=str(data / "files.npz"), accuracy=str(data / "other_files.npz"),
    )  # fmt: skip
    assert statistics.fmean(accuracy.reference_values) > 0.85
    assert drop(accuracy) <= 1.5 / accuracy.count
    assert record.facts["quantized_share"] == pytest.approx(1.0)


def test_text_is_found_as_before_by_a_network_of_an_old_opset(data, tmp_path):  # with OpenVINO: benchmarks/trained
    assert onnx.load(str(texts.network("det"))).opset_import[0].version < 13
    _, accuracy = measured(
        texts.network("det"), tmp_path, backend="onnxruntime:cpu", input="x=1x3x256x320",
        calibration=str(data / "pages.npz"), accuracy=f"{__name__}:finding",
    )  # fmt: skip
    assert statistics.fmean(accuracy.reference_values) > 0.9
    assert drop(accuracy) < 0.02


def test_text_is_read_as_before_where_depthwise_convolutions_stay(data, tmp_path):
    network = texts.network("rec")
    depthwise = [
        node.name for node in onnx.load(str(network)).graph.node
        if node.op_type == "Conv" and any(item.name == "group" and item.i > 1 for item in node.attribute)
    ]  # fmt: skip

    _, accuracy = measured(
        network, tmp_path, backend="onnxruntime:cpu", input="x=1x3x48x320", keep=f"fp32:{','.join(depthwise)}",
        calibration=str(data / "lines.npz"), accuracy=f"{__name__}:reading",
    )  # fmt: skip
    assert statistics.fmean(accuracy.reference_values) > 0.9
    assert drop(accuracy) <= 0.01
