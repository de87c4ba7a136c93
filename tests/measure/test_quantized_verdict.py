"""Whether a quantized model is right: by its accuracy where that is known, else by the error of its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

import inferlens
from inferlens.measure.agreement import judged
from inferlens.record.record import Accuracy, Agreement
from inferlens.spec.case import Case
from inferlens.views.rows import Row, rows

pytestmark = pytest.mark.usefixtures("one_process")
CLASSES, COUNT = 12, 96


def files(folder: Path, *, peak: float, offset: float) -> tuple[str, dict[str, str]]:
    """A network that gives its inputs back, so far off zero, and data of such peaks with one sample that is far larger.

    Ranges that hold that one leave steps of 0.4 for all others.
    """
    weights = [
        numpy_helper.from_array(np.eye(CLASSES, dtype=np.float32), "eye"),
        numpy_helper.from_array(np.full(CLASSES, offset, np.float32), "offset"),
    ]
    nodes = [helper.make_node("MatMul", ["x", "eye"], ["same"]), helper.make_node("Add", ["same", "offset"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, CLASSES]) for name in "xy"]
    graph = helper.make_graph(nodes, "same", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "same.onnx")

    labels = np.arange(COUNT) % CLASSES
    samples = peak * np.eye(CLASSES, dtype=np.float32)[labels]
    np.savez(folder / "data.npz", x=samples, label=labels)
    np.savez(folder / "unlabelled.npz", x=samples)
    np.savez(folder / "calibration.npz", x=np.concatenate([samples, 100 * np.eye(CLASSES, dtype=np.float32)[:4]]))
    words = {name: str(folder / f"{name}.npz") for name in ("data", "unlabelled", "calibration")}
    return str(folder / "same.onnx"), words


def int8(folder: Path, model: str, words: dict[str, str], **more: Any) -> tuple[Row, str]:
    """The row in int8, and the table."""
    records = inferlens.bench(
        model, backend="onnxruntime:cpu", precision="fp32,int8", calibration=words["calibration"], quick=True,
        mode="latency", iterations=5, warmup=1, output=str(folder / "results"), **more,
    )  # fmt: skip
    return next(row for row in rows(list(records)) if row.precision == "int8"), str(records)


def test_a_large_error_is_right_where_the_accuracy_holds_and_wrong_where_nobody_knows(tmp_path: Path) -> None:
    model, words = files(tmp_path, peak=1.0, offset=0.0)
    row, _ = int8(tmp_path, model, words, accuracy=words["data"])
    assert (row.drop, row.outputs, row.ranked) == (0.0, "right", True)
    assert (row.error or 0) > 0.1
    unknown, _ = int8(tmp_path / "unlabelled", model, words, accuracy=words["unlabelled"])
    assert (unknown.metric, unknown.outputs, unknown.ranked) == ("agreement", "wrong", False)
    alone, _ = int8(tmp_path / "alone", model, words)
    assert (alone.outputs, alone.ranked, alone.error) == ("wrong", False, pytest.approx(row.error))


def test_a_small_error_that_loses_the_answers_is_less_accurate_and_says_so(tmp_path: Path) -> None:
    model, words = files(tmp_path, peak=0.1, offset=100.0)
    row, table = int8(tmp_path, model, words, accuracy=words["data"])
    assert (row.error or 1) < 0.1
    assert (row.outputs, row.ranked, row.drop) == ("less accurate", True, pytest.approx(11 / 12))
    (line,) = [line for line in table.splitlines() if " int8 " in line and "8.3 %" in line and "±" in line]
    assert line.count("less accurate") == 1
    assert int8(tmp_path / "alone", model, words)[0].outputs == "right"


@pytest.mark.usefixtures("short_rounds")
def test_a_tuning_times_what_accuracy_decides_about(tmp_path: Path) -> None:
    model, words = files(tmp_path, peak=1.0, offset=0.0)
    tuned = inferlens.tune(
        model, backend="onnxruntime:cpu", precision="fp32,int8", only=["onnxruntime:cpu", "fp32", "int8", "threads"],
        threads=1, calibration=words["calibration"], accuracy=words["data"], within="accuracy-drop=1%", budget="8s",
        output=str(tmp_path / "results"),
    )  # fmt: skip
    (ended,) = tuned.tuned
    cases = {record.id: record for trial in ended.trials for record in trial.records}
    found = [candidate for candidate in ended.candidates if cases[candidate.record].case.precision == "int8"]
    assert found
    assert all(candidate.speedup and not candidate.rejection for candidate in found)


@pytest.mark.parametrize(
    ("found", "agrees"),
    [
        (Agreement(reference="fp32", agrees=False, rel_l2=0.3, tolerance=0.1, reason="0.3 is above"), True),
        (Agreement(reference="fp32", agrees=False, tolerance=0.1, reason="outputs are not finite"), False),
        (Agreement(reference="fp32", reason="there is no reference"), None),
    ],
)
def test_what_is_not_finite_stays_wrong_and_what_is_not_quantized_keeps_its_tolerance(
    found: Agreement, agrees: bool | None
) -> None:
    accuracy = Accuracy(data="data.npz", metric="top-1", count=2, values=(1.0, 1.0), reference_values=(1.0, 1.0))
    case = Case(model="demo", backend="onnxruntime", variant="cpu", precision="int8")
    agreement = judged(found, case, accuracy)
    assert agreement
    assert agreement.agrees is agrees
    assert judged(found, replace(case, precision="fp16"), accuracy) == found
    assert judged(found, case, None) == found
