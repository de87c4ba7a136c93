"""The accuracy on real data, and the verdict on a quantized model."""

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper, numpy_helper

import inferlens
from inferlens.analysis.tuning import candidate_facts
from inferlens.measure.output_check import apply_quantized_verdict
from inferlens.record.record import Accuracy, Agreement
from inferlens.spec.case import Case
from inferlens.views.answer import doubts
from inferlens.views.picture import THEMES
from inferlens.views.renderers import render
from inferlens.views.report import answer_section, load_inputs
from inferlens.views.rows import rows
from inferlens.views.table import Table
from inferlens.views.tuning import tuning_chart, tuning_document
from tests.models.loading import graph
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("one_process")
COUNT, CLASSES = 400, 12
FAST = {"backend": "fake", "input": f"x=4x{CLASSES}", "iterations": 3, "warmup": 1}


def scores(count=COUNT):
    """Return samples that are scores themselves, and labels, of which one in eight is not the largest score's."""
    labels = np.arange(count) % CLASSES
    samples = np.eye(CLASSES, dtype=np.float32)[labels] + np.random.default_rng(0).random((count, CLASSES)) / 100
    labels[::8] = (labels[::8] + 3) % CLASSES
    return samples.astype(np.float32), labels


@pytest.fixture
def data(tmp_path):
    """Files with labels that the reference partly misses (data), all answers (planted), or never answers (shifted)."""
    samples, labels = scores()
    answers = {"data": labels, "planted": samples.argmax(axis=1), "shifted": (labels + 1) % CLASSES}
    for name, numbers in answers.items():
        np.savez(tmp_path / f"{name}.npz", x=samples, label=numbers)
    np.savez(tmp_path / "unlabelled.npz", x=samples)
    return {name: str(tmp_path / f"{name}.npz") for name in (*answers, "unlabelled")}


def bench(folder, data, **words):
    words = {"quick": True, **words} if "repeats" not in words else words
    return inferlens.bench("fake:demo", accuracy=data, output=str(folder / "results"), **{**FAST, **words})


def accuracies(folder, data, **words):
    return [record.accuracy for record in bench(folder, data, **words)]


def test_labels_are_compared_with_the_largest_scores(tmp_path, data):
    (accuracy,) = accuracies(tmp_path, data["data"])
    assert (accuracy.data, accuracy.metric, accuracy.count) == (data["data"], "top-1", COUNT)
    assert accuracy.reference == "fake:steady fp32 on cpu"
    assert accuracy.values == accuracy.reference_values == tuple(float(place % 8 != 0) for place in range(COUNT))
    assert (accuracy.top5, accuracy.reference_top5) == (pytest.approx(1, abs=0.13), accuracy.top5)


def test_a_planted_drop_is_shown_with_an_interval_that_holds_it(tmp_path, data):
    records = bench(tmp_path, data["planted"], option={"fake.mistakes": [0, 0.05], "fake.error": [0, 0.001]})
    exact, planted = (
        next(row for row in rows(list(records)) if row.label.endswith(f" error=0.0 mistakes={share}"))
        for share in ("0.0", "0.05")
    )
    assert (exact.accuracy, exact.drop, doubts(exact)) == (1.0, 0.0, ["few samples"])
    assert (planted.metric, planted.accuracy, planted.drop) == ("top-1", 0.95, pytest.approx(0.05))
    assert 0.027 < (planted.drop_low or 0) < 0.05 < (planted.drop_high or 0) < 0.08
    assert doubts(planted) == ["less accurate", "few samples"]
    lines = str(records).splitlines()
    assert "p95" not in next(line for line in lines if "top-1" in line and "drop" in line)
    assert "5.0 % ±2." in str(records)
    assert "top-1 100.0 %" in lines[1] + lines[2]
    assert max(map(len, lines)) <= 100


def test_labels_with_other_numbers_are_warned_of_under_the_table(tmp_path, data):
    assert "chance" not in str(bench(tmp_path / "right", data["data"], precision="fp32,fp16"))
    wrong = bench(tmp_path, data["shifted"], precision="fp32,fp16")
    message = "accuracy meaningless: fp32's top-1 is chance. Are weights random, or labels numbered otherwise?"
    assert message in str(wrong)
    assert {row.outputs for row in rows(list(wrong))} == {"accuracy meaningless"}


def test_a_drop_is_a_limit_of_a_tuning(tmp_path, data):
    words = {"input": FAST["input"], "budget": "20s", "within": "accuracy-drop=1%", "output": str(tmp_path / "results")}
    words |= {"backend": "fake", "only": ["fake:steady", "knob_a"], "option": ["fake.mistakes=0,0.05"]}
    error = refusal("accuracy-drop is not known without data", inferlens.tune, "fake:demo", **words)
    assert error.hint == "--accuracy DATA"
    tuned = inferlens.tune("fake:demo", accuracy=data["planted"], **words)
    assert ({row.accuracy for row in tuned.rows}, bool(tuned[0].accuracy)) == ({1.0}, True)
    (ended,) = tuned.tuned
    settings = [(" ".join(candidate.settings), candidate.rejection) for candidate in ended.candidates]
    rejections = {text for words, text in settings if "mistakes=0.05" in words or "drop" in text}
    assert rejections
    assert all("drop in accuracy is 5.0 %, beyond the limit of 1.0 %" in text for text in rejections)
    assert all(word in str(tuned) for word in ("drop", "top-1"))
    chart = tuning_chart(ended)(THEMES["light"])
    assert next(panel["layer"][0]["encoding"]["y"]["title"] for panel in chart["hconcat"]) == "top-1 (%)"
    assert {facts.accuracy.value for facts in candidate_facts(ended) if facts.accuracy} == {1.0, 0.95}
    assert all(text in render(tuning_document(ended), "markdown") for text in ("| 95.0 % | 5.0 % |", "| 100.0 % |"))


def test_ab_shows_the_accuracy_of_both_sides(tmp_path, data):
    words = {**FAST, "max_rounds": 3}
    del words["backend"]
    words["output"] = str(tmp_path)
    sides = "fake:steady", "fake:steady fake.mistakes=0.05"
    result = inferlens.ab("fake:demo", *sides, accuracy=data["planted"], **words)
    assert (result.accuracy.metric, result.accuracy.a, result.accuracy.b) == ("top-1", 1.0, 0.95)
    assert "\ntop-1 of 400 samples: A 100.0 %, B 95.0 %, drop 5.0 % ±2.2\n" in str(result)
    without = inferlens.ab("fake:demo", "fake:steady", "fake:fast", **words)
    assert (without.accuracy, without.accuracy_sentence) == (None, "")


def test_a_page_shows_the_accuracy_of_the_fastest(tmp_path, data):
    bench(tmp_path, data["planted"], option={"fake.mistakes": 0.05})
    items = answer_section(load_inputs([tmp_path / "results"]))
    costs = next(item for item in items if isinstance(item, Table) and item.columns)
    titles = [column.title for column in costs.columns]
    assert [title for title in titles if title in ("accuracy", "drop")] == ["accuracy", "drop"]
    assert any("95.0 %" in cell for cell in costs.cells(titles.index("accuracy")))


def test_without_labels_the_accuracy_is_the_agreement_with_the_reference(tmp_path, data):
    (accuracy,) = accuracies(tmp_path, data["unlabelled"], option={"fake.mistakes": 0.05})
    assert (accuracy.metric, sum(accuracy.values), accuracy.reference_values) == ("agreement", COUNT - 20, ())


def test_only_the_first_process_is_evaluated_and_the_last_batch_is_cut(tmp_path, data):
    results = accuracies(tmp_path, data["data"], repeats=3, batch="7,8")
    assert [accuracy.count if accuracy else None for accuracy in results] == [COUNT, COUNT, None, None, None, None]


def test_outputs_without_classes_have_no_accuracy(tmp_path):
    np.savez(tmp_path / "images.npz", x=np.zeros((6, 3, 8, 8)))
    (accuracy,) = accuracies(tmp_path, str(tmp_path / "images.npz"), input=None)
    assert (accuracy.metric, accuracy.values, "no labels" in accuracy.reason) == ("", (), True)


def mean_margin(infer):
    """A measure of one number, of samples fewer than a batch."""
    samples, _ = scores(10)
    parts = [infer(samples[place : place + 3])[0] for place in range(0, 10, 3)]
    assert [len(part) for part in parts] == [3, 3, 3, 1]
    return float(np.concatenate(parts).max(axis=1).mean())


def largest(infer):
    """A measure with a value for each sample, which are given by name."""
    samples, _ = scores(4)
    return infer({"x": samples})[0].max(axis=1).tolist()


def broken(infer):
    raise ValueError("no such file")


def test_a_function_of_infer_gives_one_number_or_one_for_each_sample(tmp_path):
    (one,) = accuracies(tmp_path, f"{__name__}:mean_margin")
    (accuracy,) = accuracies(tmp_path, f"{__name__}:largest")
    assert (one.metric, one.count, len(one.values), len(accuracy.values)) == ("mean_margin", 10, 1, 4)
    assert one.values == one.reference_values == (pytest.approx(1.005, abs=0.005),)
    assert (accuracy.metric, accuracy.values) == ("largest", accuracy.reference_values)


@pytest.mark.parametrize(("accuracy", "message"), [
    ("nowhere.npz", "There is no data 'nowhere.npz'"), ("random", "random inputs have no labels"),
    (f"{__name__}:broken", "broken failed: ValueError: no such file"),
    ("labels.npz", "has the label 12, and the model tells 12 classes apart"),
    ("shapes.npz", "has the shape 5 for the input 'x'"),
])  # fmt: skip
def test_data_that_does_not_fit_is_an_error_before_the_run(tmp_path, accuracy, message):
    samples, _ = scores(4)
    np.savez(tmp_path / "labels.npz", x=samples, label=[0, 1, 2, 12])
    np.savez(tmp_path / "shapes.npz", x=samples[:, :5], label=[0, 1, 2, 3])
    refusal(message, bench, tmp_path, str(tmp_path / accuracy) if (tmp_path / accuracy).exists() else accuracy)


# A quantized model is right by its accuracy if that is known, else by the error of its outputs.

PEAKS = 96


def files(folder, *, peak, offset):
    """Return a network that adds ``offset`` to its inputs, and data of ``peak`` with some samples that are far larger.

    Ranges for the large samples leave steps of 0.4 for all others.
    """
    eye = np.eye(CLASSES, dtype=np.float32)
    weights = {"eye": eye, "offset": np.full(CLASSES, offset, np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "eye"], ["same"]), helper.make_node("Add", ["same", "offset"], ["y"])]
    shape, tensors = [4, CLASSES], [numpy_helper.from_array(values, name) for name, values in weights.items()]
    onnx.save(graph(nodes, {"x": shape}, tensors, outputs={"y": shape}), folder / "same.onnx")
    labels = np.arange(PEAKS) % CLASSES
    samples = peak * eye[labels]
    np.savez(folder / "data.npz", x=samples, label=labels)
    np.savez(folder / "unlabelled.npz", x=samples)
    np.savez(folder / "calibration.npz", x=np.concatenate([samples, 100 * eye[:4]]))
    words = {name: str(folder / f"{name}.npz") for name in ("data", "unlabelled", "calibration")}
    return str(folder / "same.onnx"), words


def int8(folder, model, words, **more):
    """The row in int8, and the table."""
    records = inferlens.bench(
        model, backend="onnxruntime:cpu", precision="fp32,int8", calibration=words["calibration"], quick=True,
        mode="latency", iterations=5, warmup=1, output=str(folder / "results"), **more,
    )  # fmt: skip
    return next(row for row in rows(list(records)) if row.precision == "int8"), str(records)


def test_a_large_error_is_right_only_with_a_known_accuracy(tmp_path):
    model, words = files(tmp_path, peak=1.0, offset=0.0)
    row, _ = int8(tmp_path, model, words, accuracy=words["data"])
    assert (row.drop, row.outputs, row.ranked) == (0.0, "right", True)
    assert (row.error or 0) > 0.1
    unknown, _ = int8(tmp_path / "unlabelled", model, words, accuracy=words["unlabelled"])
    assert (unknown.metric, unknown.outputs, unknown.ranked) == ("agreement", "wrong", False)
    alone, _ = int8(tmp_path / "alone", model, words)
    assert (alone.outputs, alone.ranked, alone.error) == ("wrong", False, pytest.approx(row.error))


def test_a_small_error_that_changes_the_classes_is_less_accurate(tmp_path):
    model, words = files(tmp_path, peak=0.1, offset=100.0)
    row, table = int8(tmp_path, model, words, accuracy=words["data"])
    assert (row.error or 1) < 0.1
    assert (row.outputs, row.ranked, row.drop) == ("less accurate", True, pytest.approx(11 / 12))
    (line,) = [line for line in table.splitlines() if " int8 " in line and "8.3 %" in line and "±" in line]
    assert line.count("less accurate") == 1
    assert int8(tmp_path / "alone", model, words)[0].outputs == "right"


@pytest.mark.parametrize(("agreement", "agrees"), [
    (Agreement(reference="fp32", agrees=False, rel_l2=0.3, tolerance=0.1, reason="0.3 is above"), True),
    (Agreement(reference="fp32", agrees=False, tolerance=0.1, reason="outputs are not finite"), False),
    (Agreement(reference="fp32", reason="there is no reference"), None),
])  # fmt: skip
def test_accuracy_decides_only_for_finite_quantized_outputs(agreement, agrees):
    accuracy = Accuracy(data="data.npz", metric="top-1", count=2, values=(1.0, 1.0), reference_values=(1.0, 1.0))
    case = Case(model="demo", backend="onnxruntime", variant="cpu", precision="int8")
    assert apply_quantized_verdict(agreement, case, accuracy).agrees is agrees
    assert apply_quantized_verdict(agreement, replace(case, precision="fp16"), accuracy) == agreement
    assert apply_quantized_verdict(agreement, case, None) == agreement
