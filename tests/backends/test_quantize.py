"""A trained model, quantized on its own data: as right as before, in int8, and honest where it is neither."""

import copy
import dataclasses
import importlib
import importlib.util
import itertools
import json
import shutil
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

import inferlens
from inferlens.analysis.profile_table import profile_runs
from inferlens.analysis.work import precisions
from inferlens.backends.availability import cuda_quantized
from inferlens.backends.base import Absence, Preparation
from inferlens.backends.onnx.graph import onnx_file
from inferlens.backends.onnx.quantize import cpu_dialect, quantize_onnx, tensorrt_dialect
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.library import find_flavour
from inferlens.backends.torch_compile.backend import quantize_linear
from inferlens.models.model import Model
from inferlens.spec.case import TensorSpec
from inferlens.views import answer
from inferlens.views.profiles.cases import ProfiledCase, precision_line
from inferlens.views.rows import rows
from tests.backends import small
from tests.backends.small import quantized_file, unsupported
from tests.commands import stay
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("one_process")
on_all_backends = pytest.mark.parametrize("backend", ["onnxruntime:cpu", "openvino", "torch_compile"])
LINEAR = torch.nn.Linear(16, 8).eval()
QUICK = {"quick": True, "mode": "latency", "iterations": 3, "warmup": 1}


def digits_network():
    """Return a network for handwritten digits of 8x8 pixels."""
    features = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
    )  # fmt: skip
    return torch.nn.Sequential(OrderedDict(features=features, flat=torch.nn.Flatten(), head=torch.nn.Linear(512, 10)))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A model trained on the digits of scikit-learn, which takes long to import, and 200 other digits."""
    library = importlib.util.find_spec("sklearn") or pytest.skip("needs scikit-learn")
    table = np.loadtxt(Path(library.origin).parent / "datasets/data/digits.csv.gz", np.float32, delimiter=",")
    images, labels = (table[:, :-1] / 16).reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)
    torch.manual_seed(0)
    module, loss = digits_network(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    for begin in range(200, 1500, 50):
        optimizer.zero_grad()
        batch = slice(begin, begin + 300)
        loss(module(torch.from_numpy(images[batch])), torch.from_numpy(labels[batch])).backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, image=images[:200], label=labels[:200])
    return module.eval(), path


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder in which a model is quantized once for all tests of a backend."""
    return tmp_path_factory.mktemp("results")


def bench(network, example, folder, **words):
    words = {"precision": "int8", "output": str(folder), **QUICK, **words}
    return list(inferlens.bench(network, example, **words))


def bench_digits(digits, folder, **words):
    module, path = digits
    return bench(module, torch.zeros(8, 1, 8, 8), folder, **{"calibration": str(path), **words})


@on_all_backends
def test_a_trained_model_stays_right_and_so_do_the_layers_that_are_kept(digits, results, backend):
    (record,) = bench_digits(digits, results, backend=backend, accuracy=str(digits[1]))
    assert (record.status, record.reason, record.facts["quantized_share"]) == ("ok", "", 1.0)
    assert (record.agreement.agrees, record.agreement.top1) == (True, 1.0)
    assert 0 < record.agreement.rel_l2 < 0.05
    assert [phase.name for phase in record.phases].count("quantize") == 1
    assert (record.accuracy.metric, record.accuracy.count) == ("top-1", 200)
    assert sum(record.accuracy.reference_values) > 180
    (row,) = rows([record])
    assert row.accuracy
    assert -0.02 <= row.drop <= 0.02
    assert backend != "onnxruntime:cpu" or row.drop_low < row.drop
    (record,) = bench_digits(digits, results, backend=backend, keep="fp32:features")
    assert (record.status, record.reason) == ("ok", "")
    # Multiply-adds: 64 positions of 9 factors and 16 filters, 16 of 144 and 32, and 512 x 10.
    assert record.facts["quantized_share"] == pytest.approx(5120 / (9216 + 73728 + 5120), abs=1e-3)


def largest(file):
    """The largest byte, without its sign, of the weights in a file; of a program, of what its weights meet."""
    if file.suffix == ".pt2":
        nodes = torch.export.load(str(file)).graph.nodes
        return max(int(node.args[4]) for node in nodes if "quantize_per_tensor" in str(node.target))
    if file.suffix == ".onnx":
        values = map(numpy_helper.to_array, onnx.load(str(file)).graph.initializer)
    else:
        operators = pytest.importorskip("openvino").Core().read_model(str(file)).get_ordered_ops()
        values = [item.data for item in operators if "Const" in str(item)]
    return max(int(np.abs(value.astype(int)).max()) for value in values if value.dtype == np.int8)


@pytest.mark.parametrize(
    ("backend", "suffix", "most"),
    [("onnxruntime:cpu", "onnx", 64), ("openvino", "xml", 64), ("torch_compile", "pt2", 127)],
)
def test_without_vnni_sums_of_two_products_do_not_overflow(tmp_path, monkeypatch, backend, suffix, most):
    for module in ("onnx.quantize", "openvino", "torch_compile.backend"):
        monkeypatch.setattr(f"inferlens.backends.{module}.seven_bits", lambda: True)
    (record,) = bench(LINEAR, torch.zeros(1, 16), tmp_path, backend=backend, calibration="random")
    assert (record.status, record.reason) == ("ok", "")
    assert "accuracy meaningless" in answer.doubts(*rows([record])), "noise is for speed alone"
    (file,) = (tmp_path / ".cache" / "quantized").rglob(f"*.{suffix}")
    assert most / 2 < largest(file) <= most


def test_dynamic_quantization_takes_no_data_but_products_with_weights(tmp_path):
    torch.manual_seed(0)
    words = {"option": "onnxruntime.quantize=dynamic", "backend": "onnxruntime:cpu"}
    (record,) = bench(attending(), torch.randn(2, 8, 32), tmp_path, **words)
    assert (record.status, record.reason, record.agreement.agrees) == ("ok", "", True)
    assert record.agreement.rel_l2 > 0
    assert 0.8 < record.facts["quantized_share"] < 1
    convolutions = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    (record,) = bench(convolutions, torch.randn(1, 3, 8, 8), tmp_path, **words)
    assert record.status == "unsupported"
    assert "no MatMul has weights" in record.reason
    (record,) = bench(LINEAR, torch.ones(4, 16), tmp_path, calibration="random", **words)  # the exporter transposes it
    assert (record.status, record.reason, record.facts["quantized_share"]) == ("ok", "", 1.0)


# What the layers of a quantized model have to say, on each backend: the modules of products, and that they are in int8.


def profiled(monkeypatch, *network, **words):
    """A profile, its runs and its precisions, which do not follow from ceilings: to measure these takes longest."""
    monkeypatch.setattr("inferlens.execution.profile.ceilings_of", lambda *_: None)
    (profile,) = inferlens.profile(*network, **{"precision": "int8", "runs": 4, "iterations": 3, "warmup": 1, **words})
    assert (profile.status, profile.reason, profile.case.precision) == ("ok", "", "int8")
    runs = profile_runs(profile)
    return profile, runs, precisions(profile, runs)


@on_all_backends
def test_layers_say_that_they_are_in_int8_and_of_which_modules(digits, results, backend, monkeypatch):
    words = {"backend": backend, "calibration": str(digits[1]), "output": str(results)}
    profile, runs, shares = profiled(monkeypatch, digits[0], torch.zeros(8, 1, 8, 8), **words)
    assert (shares.work, shares.stayed) == (pytest.approx({"int8": 1.0}), ())
    in_no_layer = runs.share(runs.outside)
    assert sum(shares.time.values()) + shares.converting + (in_no_layer or 0.0) == pytest.approx(1)
    int8 = [layer.modules for layer in profile.layers.layers if layer.precision == "int8" and layer.modules]
    products = {"features.0", "features.3", "head"}
    assert products <= {path for modules in int8 for path in modules}
    assert all(len(products.intersection(modules)) <= 1 for modules in int8)


def test_a_layer_that_was_left_out_of_quantization_is_named(tmp_path, monkeypatch):
    file = quantized_file(tmp_path, "int8", "linear", leaving=1)
    words = {"backend": "onnxruntime:cpu", "output": str(tmp_path), "precision": None}
    profile, _, shares = profiled(monkeypatch, str(file), **words)
    (stayed,) = (profile.parts[place] for place in shares.stayed)
    assert (stayed.modules, stayed.precision) == (("2",), "fp32")
    assert shares.conversions
    assert shares.work == pytest.approx({"int8": 0.5, "fp32": 0.5})
    assert "; fp32 " in precision_line(ProfiledCase(profile))


def test_quantized_files_are_kept_for_the_same_data_and_method(tmp_path):
    def noted(data, **words):
        (record,) = bench(LINEAR, torch.zeros(1, 16), tmp_path, backend="onnxruntime:cpu", calibration=data, **words)
        return [phase.note for phase in record.phases if phase.name == "quantize"]

    one, other = str(tmp_path / "one.npz"), str(tmp_path / "other.npz")
    np.savez(one, input=np.random.default_rng(0).random((8, 16), np.float32))
    np.savez(other, input=np.ones((8, 16), np.float32))
    assert [noted(one), noted(one), noted(other)] == [[""], ["cached"], [""]]
    assert noted(one, option="onnxruntime.ranges=entropy") == [""]
    assert len(list((tmp_path / ".cache" / "quantized").glob("*/calibration.json"))) == 3


@on_all_backends
def test_a_model_without_products_is_not_called_int8(tmp_path, backend):
    (record,) = bench(torch.nn.ReLU(), torch.zeros(1, 64), tmp_path, calibration="random", backend=backend)
    assert record.status == "unsupported"
    assert record.reason.startswith("Nothing of 'ReLU' can be quantized")


@pytest.mark.parametrize(("words", "refused"), [
    ({"calibration": None}, r"needs calibration data.* Try: --calibration DATA"),
    ({"calibration": "wrong.npz"}, r"Expected: 1x8x8\."),
    ({"keep": "fp32:features.00"}, r"There is no layer 'features\.00' to keep\. .*Try: .*features\.0"),
    ({"keep": "fp16:head"}, "Try: --keep fp32:LAYER$"),
    ({"keep": "fp32:head", "precision": "fp32"}, "Try: --precision int8 --calibration DATA$"),
])  # fmt: skip
def test_what_cannot_be_quantized_is_refused_before_anything_runs(words, refused, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("wrong.npz", image=np.ones((4, 3, 8, 8)))
    refusal(refused, bench_digits, digits, tmp_path, **{"backend": "onnxruntime:cpu", **words})
    assert not list(tmp_path.rglob("record.json"))


def test_layers_are_kept_in_int8_only_and_an_unknown_node_is_a_row_with_the_nearest_names(tmp_path):
    network, example = torch.nn.Sequential(LINEAR), torch.zeros(1, 16)
    words = {"backend": "onnxruntime:cpu", "calibration": "random"}
    records = bench(network, example, tmp_path, precision="fp32,int8", keep="fp32:0", **words)
    assert [(record.case.precision, record.case.keep, record.status) for record in records] == [
        ("fp32", "", "ok"), ("int8", "fp32:0", "ok"),
    ]  # fmt: skip
    (record,) = bench(network, example, tmp_path, keep="fp32:node_linea", **words)
    assert (record.status, record.hint) == ("unsupported", "did you mean node_linear?")


# One graph and its ranges in the dialects of several runtimes: each takes its own, and all mean the same numbers.

needs_rtx = pytest.mark.skipif(isinstance(find_flavour("rtx"), Absence), reason="needs TensorRT for RTX")
IMAGES = "image=2x3x16x16"
DIALECTS = (cpu_dialect(), tensorrt_dialect("int8"), tensorrt_dialect("fp8"))


class Residual(torch.nn.Module):
    """Convolutions, one with a sum behind it, and a head."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, image):
        first = self.first(image).relu()
        return self.head((self.second(first) + first).relu().mean((2, 3)))


def attending():
    return torch.nn.Sequential(torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)).eval()


def model(module, spec):
    torch.manual_seed(0)
    return Model(type(module).__name__, type(module).__name__, "module", (TensorSpec.parse(spec),), module.eval())


def residual():
    torch.manual_seed(0)
    return model(Residual(), IMAGES)


def quantized(network, dialect, folder, **words):
    preparation = Preparation(folder / "case", folder / "cache")
    case = small.case("onnxruntime:cpu", precision="int8", calibration="random")
    plain = onnx_file(network, case, preparation, "fp32")
    return quantize_onnx(plain, network, case, preparation, dialect, **words), preparation


def error(network, path):
    """Return the relative L2 error of a graph against its module, in ONNX Runtime without optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = small.arrays(network)
    kind = {"tensor(float16)": np.float16, "tensor(float)": np.float32}[session.get_inputs()[0].type]
    outputs = session.run(None, {name: array.astype(kind) for name, array in inputs.items()})
    return small.error([item.astype(np.float32) for item in outputs], small.eager(network, inputs))


def test_ranges_are_measured_once_for_all_dialects(tmp_path):
    notes, network = [], residual()
    for dialect in (*DIALECTS, DIALECTS[0]):
        path, preparation = quantized(network, dialect, tmp_path)
        notes.append(next(phase.note for phase in preparation.phases if phase.name == "quantize"))
        assert preparation.facts["quantized_share"] == 1.0
        onnx.checker.check_model(str(path), full_check=True)
        assert error(network, path) < (0.1 if dialect.fp8 else 0.03)
        if dialect is DIALECTS[1]:
            check_tensorrt_graph(onnx.load(str(path)).graph)
        if dialect.fp8:
            weights = {item.name: numpy_helper.to_array(item) for item in onnx.load(str(path)).graph.initializer}
    assert notes == ["", "ranges cached", "ranges cached", "cached"]
    (kept,) = tmp_path.rglob("calibration.json")
    low, high = json.loads(kept.read_text())["image"]
    assert low < 0 < high
    assert float(weights["image_scale"]) * 448 == pytest.approx(max(-low, high), rel=1e-3), "fp8's largest number"


def check_tensorrt_graph(graph):
    """Check pairs of nodes at the inputs of products and sums, in fp16; biases are not quantized."""
    makers = {name: node.op_type for node in graph.node for name in node.output}
    readers = {name: node.op_type for node in graph.node for name in node.input}
    inputs = {node.op_type: [makers.get(name, "") for name in node.input] for node in graph.node}
    assert inputs["Conv"] == inputs["Gemm"] == ["DequantizeLinear", "DequantizeLinear", ""]
    assert sorted(inputs["Add"]) == ["Conv", "DequantizeLinear"]  # one kernel with the convolution before it
    assert all(readers[node.output[0]] != "QuantizeLinear" for node in graph.node if node.op_type == "Conv")
    kinds = {weight.data_type for weight in graph.initializer}
    assert not kinds & {onnx.TensorProto.FLOAT, onnx.TensorProto.INT32}  # the latter is what a quantized bias would be
    assert graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_attention_itself_stays_in_fp16_and_so_do_the_nodes_that_are_named(tmp_path):
    network = model(attending(), "words=2x8x32")
    path, preparation = quantized(network, tensorrt_dialect("int8"), tmp_path)
    share = preparation.facts["quantized_share"]
    assert 0.8 < share < 1
    assert error(network, path) < 0.05
    products = [node.name for node in onnx.load(str(path)).graph.node if node.op_type in ("MatMul", "Gemm")]
    other, preparation = quantized(network, tensorrt_dialect("int8"), tmp_path, keep=products[-1:])
    assert other != path
    assert preparation.facts["quantized_share"] < share


@needs_rtx
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_the_backend_builds_a_quantized_engine_without_a_gpu(kind, tmp_path):
    network = model(attending(), "words=2x8x32") if kind == "int8" else residual()
    options = {"compute_capability": "8.9"}
    case = small.case("tensorrt:rtx", precision=kind, device="cuda", calibration="random", options=options)
    preparation = small.preparation(tmp_path)
    assert TensorRT().build(network, case, preparation, tmp_path / "small.engine").size > 0
    assert preparation.facts["quantized_share"] > 0.8
    assert [phase.name for phase in preparation.phases] == ["export", "quantize", "build"]


# Quantization for GPUs, without one: modules are quantized on the CPU, and exported.


def case(precision, keep=""):
    return small.case("torch_compile", precision=precision, device="cuda", calibration="random", keep=keep)


def test_fp8_needs_a_gpu_that_has_it():
    def of(*capability):
        return cuda_quantized(SimpleNamespace(cuda=SimpleNamespace(get_device_capability=lambda: capability)))

    assert of(9, 0) == (("fp8", "int8"), {})
    assert of(8, 6) == (("int8",), {"cuda/fp8": "this GPU has compute capability 8.6, and fp8 needs 8.9"})
    assert set(of(7, 5)[1]) == {"cuda/fp8", "cuda/int8"}


def test_torchao_quantizes_linear_layers_alone_where_they_are_large_enough(preparation):
    stem, layers = torch.nn.Conv2d(3, 3, 1), (torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    mostly = model(torch.nn.Sequential(stem, *layers), IMAGES)
    fp8 = dataclasses.replace(mostly, module=copy.deepcopy(mostly.module)), case("fp8")
    unsupported("cannot quantize", quantize_linear, *fp8, preparation)  # which needs a GPU
    inputs = small.arrays(mostly)
    right = small.eager(mostly, inputs)
    quantize_linear(mostly, case("int8"), preparation)
    assert 0.9 < preparation.facts["quantized_share"] < 1
    assert 0 < small.error(small.eager(mostly, inputs), right) < 0.05
    convolution, pool = torch.nn.Conv2d(3, 16, 3), torch.nn.AdaptiveAvgPool2d(4)
    images = model(torch.nn.Sequential(convolution, pool, torch.nn.Flatten(2), torch.nn.Linear(16, 16)), IMAGES)
    quantize_linear(images, case("int8"), preparation)
    assert 0 < preparation.facts["quantized_share"] < 1, "the head of a convolutional network"
    for other in (residual(), model(torch.nn.Sequential(convolution), IMAGES)):
        unsupported("no modules of linear layers", quantize_linear, other, case("int8"), preparation)
    quantize_linear(images, case("int8", keep="fp16:3"), preparation)
    assert preparation.facts["quantized_share"] == 0, "as was asked for"


def test_modelopt_quantizes_to_fp8_and_is_exported_with_operators_of_tensorrt(preparation):
    pytest.importorskip("modelopt")
    from inferlens.backends.torch_tensorrt.backend import export_without_kernels, quantize_module

    model = residual()
    inputs = small.arrays(model)
    right = small.eager(model, inputs)
    quantize_module(model, case("fp8"), preparation)
    assert preparation.facts["quantized_share"] == 1.0
    assert 0 < small.error(small.eager(model, inputs), right) < 0.1
    tensor = torch.rand(4, 4)
    with export_without_kernels():  # its own code for int8 is CUDA's
        assert torch.ops.tensorrt.quantize_op(tensor, torch.ones(4, 1), 8, 0, False, False).equal(tensor)
    with torch.no_grad(), export_without_kernels():  # int8 is exported only on a GPU
        program = torch.export.export(model.module, (torch.from_numpy(inputs["image"]),), strict=False)
    called = [str(node.target) for node in program.graph.nodes]
    assert called.count("tensorrt.quantize_op.default") == 6  # inputs and weights of three layers
    quantize_module(residual(), case("fp8", keep="fp16:second"), preparation)
    assert preparation.facts["quantized_share"] < 0.5


# Mistakes planted in a quantized file show in its outputs and its accuracy against fp32.


@pytest.fixture(scope="module")
def folder(digits, tmp_path_factory):
    """The network in fp32, and correctly quantized."""
    module, data = digits
    folder = tmp_path_factory.mktemp("planted")
    source = small.exported(folder / "fp32.onnx", module, 50, 1, 8, 8, external_data=False)
    with pytest.MonkeyPatch.context() as patch:
        stay(patch)
        words = {"calibration": data, "backend": "onnxruntime"}
        inferlens.quantize(str(source), output=str(folder / "right.onnx"), **words)
    return folder


@pytest.fixture
def files(folder, digits, tmp_path, monkeypatch):
    """Go to a folder with the files, and return the data."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return digits[1]


def against_fp32(file, data):
    """Compare a file with fp32. Return the result, the error of the outputs and the drop in accuracy."""
    words = {"backend": "onnxruntime:cpu", "warmup": 1, "iterations": 2, "within": "0s", "input": "image=50x1x8x8"}
    result = inferlens.ab("fp32.onnx", file, calibration=data, accuracy=data, **words)
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


def test_wrong_preprocessing_shows_in_the_accuracy_on_right_data(files):
    with np.load(files) as right:
        np.savez("wrong.npz", image=255 * right["image"])
    words = {"backend": "onnxruntime:cpu", "precision": "int8", **QUICK}
    (record,) = inferlens.bench("fp32.onnx", calibration="wrong.npz", accuracy=str(files), **words)
    accuracy = record.accuracy
    assert np.mean(accuracy.reference_values) - np.mean(accuracy.values) > 0.2


def test_a_wrong_scale_in_the_cache_makes_a_case_wrong(files):
    words = {"backend": "onnxruntime:cpu", "precision": "int8", "calibration": files, **QUICK}
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


# Trained networks from a Python package, quantized on real data, stay right on other data. More: benchmarks/trained


@pytest.fixture(scope="module")
def texts():
    """Pages and lines of text, and networks that find and read it."""
    for package in ("PIL", "rapidocr_onnxruntime"):
        pytest.importorskip(package)
    return importlib.import_module("benchmarks.trained.texts")


def finding(infer):
    return importlib.import_module("benchmarks.trained.texts").evaluate_finding(infer, 6)


def reading(infer):
    return importlib.import_module("benchmarks.trained.texts").evaluate_reading(infer, 8)


@pytest.mark.parametrize(("name", "shape", "evaluate", "most"), [
    ("det", "1x3x256x320", "finding", 0.019), ("rec", "1x3x48x320", "reading", 0.01),
])  # fmt: skip
def test_text_is_found_and_read_as_before_where_depthwise_convolutions_stay(
    name, shape, evaluate, most, texts, tmp_path
):
    network, samples = onnx.load(str(texts.network(name))), {"det": texts.pages, "rec": texts.lines}[name](1, 4)[0]
    assert name == "rec" or network.opset_import[0].version < 13
    np.savez(tmp_path / "data.npz", x=samples)
    depthwise = [
        node.name for node in network.graph.node
        if node.op_type == "Conv" and any(item.name == "group" and item.i > 1 for item in node.attribute)
    ]  # fmt: skip
    (record,) = inferlens.bench(
        str(texts.network(name)), backend="onnxruntime:cpu", precision="int8", input=f"x={shape}",
        keep=f"fp32:{','.join(depthwise)}" if name == "rec" else "", calibration=str(tmp_path / "data.npz"),
        accuracy=f"{__name__}:{evaluate}", output=str(tmp_path), **QUICK,
    )  # fmt: skip
    assert (record.status, record.reason, record.accuracy.reason) == ("ok", "", "")
    assert np.mean(record.accuracy.reference_values) > 0.9
    assert np.mean(record.accuracy.reference_values) - np.mean(record.accuracy.values) <= most


def test_openvino_classifies_files_as_before(tmp_path):
    for package in ("PIL", "magika", "rapidocr_onnxruntime"):
        pytest.importorskip(package)
    files = importlib.import_module("benchmarks.trained.files")
    files.write(tmp_path, 6)
    (record,) = inferlens.bench(
        str(files.network()), backend="openvino", precision="int8", input="bytes=8x2048:int32:0..256",
        calibration=str(tmp_path / "files.npz"), accuracy=str(tmp_path / "other_files.npz"), output=str(tmp_path),
        **QUICK,
    )  # fmt: skip
    reference = np.mean(record.accuracy.reference_values)
    assert reference > 0.85
    assert reference - np.mean(record.accuracy.values) <= 1.5 / record.accuracy.count
    assert record.facts["quantized_share"] == pytest.approx(1.0)
