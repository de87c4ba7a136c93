"""``inferlens quantize`` on a small trained-like model with one layer planted that does not bear it."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

import inferlens
from inferlens.execution.quantize import limit_of
from inferlens.views.profiles.quantization import quantization_document
from inferlens.views.renderers import render
from inferlens.views.report import comparison_section, load_inputs
from inferlens.views.table import SCREEN
from tests.backends.small import exported
from tests.commands import inferlens as command
from tests.commands import output_of
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("one_process")
QUICK = {"quick": True, "mode": "latency", "iterations": 3, "warmup": 1}


class Planted(torch.nn.Module):
    """Linear layers; one channel that ``wide`` gives is a thousand times larger than all others."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(32, 48)
        self.wide = torch.nn.Linear(48, 64)
        self.narrow = torch.nn.Linear(64, 48)
        self.last = torch.nn.Linear(48, 12)
        with torch.no_grad():
            self.wide.weight[5] *= 1000
            self.wide.bias[5] *= 1000
            self.narrow.weight[:, 5] /= 1000

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.tanh(self.narrow(self.wide(x)))
        return self.last(x)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Return an ONNX file of the model; to export it takes ten times as long as to quantize it."""
    path = tmp_path_factory.mktemp("planted") / "Planted.onnx"
    return exported(path, Planted(), 8, 32, input_names=["x"], external_data=False)


@pytest.fixture
def data(planted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(planted, tmp_path)
    np.savez("data.npz", x=np.random.default_rng(0).standard_normal((48, 32), dtype=np.float32))
    return "data.npz"


def quantized(data, **words):
    return inferlens.quantize("Planted.onnx", calibration=data, **words)


def test_a_layer_that_does_not_bear_it_is_ranked_first_and_kept_for_a_limit(data):
    report = quantized(data, errors=True)
    worst, *others = report.layers
    assert worst.name in ("wide", "narrow")
    assert report.best.error > 0.05
    assert sum(layer.share for layer in report.layers) == pytest.approx(1.0)
    assert max(layer.error for layer in others[1:]) < worst.error / 5

    limited = quantized(data, within="error=2e-2")
    assert limited.best.error <= 0.02 < limited.attempts[0].error
    assert {"wide", "narrow"} & {*limited.best.keep.removeprefix("fp32:").split(",")}
    assert 0 < (limited.best.share or 0) < 1
    again = quantized(data, keep=limited.best.keep)
    assert again.best.error == pytest.approx(limited.best.error, rel=1e-3)


def test_what_layers_lose_is_kept_beside_the_records_and_shown_again(data):
    kept = Path("results/Planted/quantized-int8-onnxruntime.json")
    quantized(data)
    assert not kept.exists(), "no layers were ranked"
    report = quantized(data, errors=True)
    shown = command("show", kept.as_posix(), cwd=Path()).stdout
    assert shown.splitlines()[:8] == render(quantization_document(report), width=SCREEN.width).splitlines()[:8]
    assert all(layer.name in shown for layer in report.layers[:3])
    document = json.loads(command("show", kept.as_posix(), "--json", cwd=Path()).stdout)
    assert [layer["error"] for layer in document["layers"]] == [layer.error for layer in report.layers]
    (section,) = comparison_section(load_inputs([Path("results")]))
    assert [line.name for line in section.blocks[-1].lines] == [layer.name for layer in report.layers]


def test_the_file_of_a_live_module_runs_and_is_what_was_compared(data):
    report = inferlens.quantize(Planted().eval(), torch.zeros(8, 32), calibration=data)
    assert (report.path, report.samples) == ("Planted.int8.onnx", 48)
    (record,) = inferlens.bench(report.path, backend="onnxruntime:cpu", **QUICK)
    assert (record.status, record.case.precision) == ("ok", "int8")
    assert record.agreement.agrees
    assert report.size == Path(report.path).stat().st_size


def test_a_limit_that_nothing_keeps_is_an_answer_with_the_nearest_and_no_file(data):
    report = quantized(data, within="error=1e-12")
    assert (report.path, report.best.error) == ("", min(attempt.error for attempt in report.attempts))
    assert [path.name for path in Path().glob("*.onnx")] == ["Planted.onnx"]


def test_openvino_writes_what_it_runs_and_keeps_layers(data):
    report = quantized(data, backend="openvino", within="error=2e-2")
    assert (report.path, Path(report.path).with_suffix(".bin").is_file()) == ("Planted.int8.xml", True)
    assert report.best.error <= 0.02
    (record,) = inferlens.bench(report.path, backend="openvino", **QUICK)
    assert (record.status, record.reason, record.case.precision) == ("ok", "", "int8")


@pytest.mark.parametrize(
    ("to", "kind", "limit"), [("int8", TensorProto.INT8, 0.02), ("fp8", TensorProto.FLOAT8E4M3FN, 0.05)]
)
def test_a_file_for_tensorrt_is_symmetric_and_who_ran_it_is_said(data, to, kind, limit):
    report = quantized(data, to=to, backend="tensorrt", keep="fp16:narrow")
    assert report.best.error <= limit
    assert report.run_by == ("onnxruntime:cpu" if report.not_run else report.case.backend_label)
    assert bool(report.not_run) or torch.cuda.is_available()
    graph = onnx.load(report.path).graph
    zeros = {each.name: each for each in graph.initializer if each.data_type == kind and not each.dims}
    quantizing = [node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert {each.type.tensor_type.elem_type for each in (graph.input[0], graph.output[0])} == {TensorProto.FLOAT16}
    assert len(quantizing) == 3 * 3  # a pair before three of the layers, and their weights
    points = [node.input[2] for node in quantizing if node.op_type == "QuantizeLinear"]
    assert not any(onnx.numpy_helper.to_array(zeros[name]) for name in points)


def test_fp8_is_for_tensorrt_by_itself_and_layers_stay_in_fp16(data):
    report = quantized(data, to="fp8", within="error=2.5e-2")
    assert report.case.backend == "tensorrt"
    assert report.best.error <= 0.025 < report.attempts[0].error
    assert report.best.keep.startswith("fp16:")
    assert {layer.kinds for layer in report.layers} == {("Gemm",)}


def test_what_cannot_be_is_said_before_anything_runs(data):
    for words, hint in (
        ({"backend": "torch_compile"}, "--backend onnxruntime"),
        ({"output": "planted.xml", "backend": "onnxruntime"}, "--output planted.onnx"),
        ({"within": "accuracy-drop=1%"}, "--accuracy DATA"),
        ({"to": "fp8", "device": "cpu"}, "--to int8"),
        ({"keep": "fp32:xyzzy"}, "a name such as"),
        ({"keep": "fp32:wide", "backend": "tensorrt"}, "--keep fp16:LAYER"),
        ({"output": "planted.engine", "backend": "tensorrt"}, "--output planted.onnx"),
    ):
        assert refusal("", quantized, data, **words).hint.startswith(hint)
    refusal("", limit_of, "memory=1GiB", None)


def test_a_file_in_fp16_or_int8_is_refused_with_what_to_do(data, tmp_path):
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    for name, ends in (("half.onnx", False), ("within.onnx", True)):  # its inputs and outputs too, or not
        onnx.save(float16.convert_float_to_float16(onnx.load("Planted.onnx"), keep_io_types=ends), name)
        for backend in ("onnxruntime", "tensorrt"):
            done = command("quantize", name, "--calibration", data, "-b", backend, cwd=tmp_path)
            assert (done.returncode, done.stdout, "Try: " in done.stderr) == (2, "", True)
            assert f"{name} is in fp16" in done.stderr
    words = {"backend": "onnxruntime:cpu", "precision": "int8", "calibration": data, **QUICK}
    (record,) = inferlens.bench("half.onnx", **words)
    assert (record.status, record.hint) == ("unsupported", "the original model")

    command("quantize", "Planted.onnx", "--calibration", data, "-o", "int8.onnx", cwd=tmp_path)
    again = command("quantize", "int8.onnx", "--calibration", data, cwd=tmp_path)
    assert (again.returncode, again.stdout, "quantized already" in again.stderr) == (2, "", True)
    (record,) = inferlens.bench("int8.onnx", **words)
    assert (record.status, [phase.name for phase in record.phases].count("quantize")) == ("ok", 0)  # run as it is


def test_the_screen_says_what_it_is_worth_and_how_to_go_on(data, tmp_path):
    factory = ("tests.execution.test_quantize_file:Planted", "--input", "x=8x32", "--calibration", data)
    done = command("quantize", *factory, "--errors", "-o", "p.onnx", cwd=tmp_path)
    assert len(done.stdout.splitlines()) <= 24, done.stdout
    assert "inferlens bench p.onnx -b onnxruntime" in done.stdout
    assert "--precision fp32,int8" in done.stdout
    words = ("Planted.onnx", "--calibration", data)
    shown = output_of("quantize", *words, "-b", "tensorrt", "-o", "t.onnx", cwd=tmp_path)
    assert ("Not run by tensorrt" in shown) != torch.cuda.is_available()
    document = json.loads(output_of("quantize", *words, "--json", "--keep", "fp32:wide,narrow", cwd=tmp_path))
    assert document["best"]["keep"] == "fp32:narrow,wide"
    assert command("quantize", *words, "--within", "error=1e-12", cwd=tmp_path).returncode == 1


def test_a_limit_on_the_drop_in_accuracy_is_kept_on_labels(data, tmp_path):
    inputs = np.random.default_rng(1).standard_normal((400, 32), dtype=np.float32)
    labels = Planted().eval()(torch.from_numpy(inputs)).argmax(dim=1).numpy()
    np.savez(tmp_path / "labelled.npz", x=inputs, label=labels)
    report = quantized(data, within="accuracy-drop=2%", accuracy="labelled.npz")
    best = report.best
    assert (best.metric, best.reference_accuracy, report.limit) == ("top-1", 1.0, "accuracy-drop=2%")
    assert best.accuracy_drop <= 0.02 < report.attempts[0].accuracy_drop
    assert best.accuracy_drop == pytest.approx(1 - best.accuracy)
    assert best.accuracy_drop_low <= best.accuracy_drop <= best.accuracy_drop_high
    assert best.keep


def score(infer):
    """A measure that is not a percentage."""
    return 1000 + float(infer(np.ones((8, 32), np.float32))[0].mean())


def test_a_drop_of_a_measure_of_ones_own_is_a_share_of_its_value(data, tmp_path):
    report = quantized(data, accuracy="tests.execution.test_quantize_file:score", within="accuracy-drop=1%")
    best = report.best
    assert (best.accuracy_share, best.keep) == (False, "")
    assert best.accuracy_drop == pytest.approx(1 - best.accuracy / best.reference_accuracy)
    assert "1,000" in render(quantization_document(report, "Planted", "cpu"))


def test_noise_says_that_accuracy_is_meaningless(data):
    text = render(quantization_document(quantized("random"), "Planted", "cpu"), width=SCREEN.width)
    assert "samples of noise: accuracy meaningless" in text
