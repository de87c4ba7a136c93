"""Two models that compile in seconds, and steps of the tests of backends."""

import copy
import dataclasses
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from inferlens.backends import BACKENDS
from inferlens.backends.base import TOLERANCES, Preparation
from inferlens.errors import Unsupported
from inferlens.models.model import Model, ModelInfo
from inferlens.spec.case import Case, TensorSpec, with_batch
from tests.refusals import refusal


class Convolution(nn.Module):
    """Convolution, batch norm with statistics of its own, ReLU, pooling, a linear layer."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 10)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, image):
        return self.linear(torch.relu(self.norm(self.convolution(image))).mean(dim=(2, 3)))


class TwoInputs(nn.Module):
    """An image-like and an integer input; returns a tuple that holds a dictionary and a tuple."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(50, 16), nn.Linear(12, 16)

    def forward(self, values, tokens):
        words = self.embedding(tokens)
        mixed = self.linear(values).unsqueeze(1) * words
        return {"scores": torch.softmax(mixed.sum(-1), -1), "mixed": mixed}, (mixed.mean(1), tokens + 1)


CONVOLUTION = (TensorSpec("image", (1, 3, 16, 16)),)
TWO_INPUTS = (TensorSpec("values", (1, 12)), TensorSpec("tokens", (1, 6), "int64", 0, 50))


def model(kind=Convolution, batch=1, format="module", path=None):
    """Return a new model of a kind with weights from a seed; runners change it in place."""
    torch.manual_seed(0)
    module = kind().eval()
    specs = with_batch(TWO_INPUTS if kind is TwoInputs else CONVOLUTION, batch)
    return Model(kind.__name__, kind.__name__.lower(), format, specs, module=module, path=path)


def arrays(model, seed=0):
    """Inputs of a model from a seed."""
    random = np.random.default_rng(seed)
    return {
        spec.name: random.standard_normal(spec.shape, dtype=np.float32)
        if spec.low is None
        else random.integers(spec.low, spec.high, spec.shape, dtype=spec.dtype)
        for spec in model.inputs
    }


def eager(model, inputs):
    """Return the outputs of the model's module in fp32 on the CPU, flattened in order."""
    module = copy.deepcopy(model.module)
    with torch.inference_mode():
        outputs = module(*(torch.from_numpy(inputs[spec.name]) for spec in model.inputs))
    return [tensor.numpy() for tensor in _flat(outputs)]


def _flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in (value.values() if isinstance(value, dict) else value) for tensor in _flat(part)]


def error(outputs, reference):
    """Relative L2 error, the worst output's."""
    assert [value.shape for value in outputs] == [value.shape for value in reference]
    return max(
        float(np.linalg.norm(output.astype(np.float64) - right) / np.linalg.norm(right.astype(np.float64)))
        for output, right in zip(outputs, reference, strict=True)
    )


def backend(label):
    """The backend of ``onnxruntime:cpu``."""
    return BACKENDS.get(label.partition(":")[0])()


def case(label, **more):
    name, _, variant = label.partition(":")
    return Case(model="small", backend=name, variant=variant, **more)


def allowed(label, precision="fp32", **options):
    """The largest error that the backend of ``label`` may have on a GPU."""
    return backend(label).tolerance(case(label, device="cuda", precision=precision, options=options))


def stays_right(runner, model, tolerance, entries=2):
    """Check agreement over repeated calls, another feed and several entries, and that outputs are not overwritten."""
    inputs, others = arrays(model), arrays(model, seed=1)
    expected, other = eager(model, inputs), eager(model, others)
    for _ in range(entries):
        with runner:
            feed, second = runner.place(arrays(model)), runner.place(arrays(model, seed=1))
            for array in inputs.values():  # a feed keeps what it was made from
                _ = [np.full_like(array, np.nan) for _ in range(100)]
            for placed, right in ((feed, expected), (feed, expected), (second, other), (feed, expected)):
                outputs = runner.infer(placed)
                runner.synchronize()
                got = runner.collect(outputs)
                assert error(got, right) < tolerance
                assert all(value.dtype == np.float32 for value in got)
            kept = runner.collect(runner.infer(feed))
            runner.infer(second)
            runner.synchronize()
            assert error(kept, expected) < tolerance, "collected outputs were overwritten"


def flattens(runner, model, tolerance):
    """Check that the outputs of ``TwoInputs`` are flattened in order, and integers keep their type."""
    inputs = arrays(model)
    expected = eager(model, inputs)
    with runner:
        got = outputs_of(runner, inputs)
    assert [value.shape for value in got] == [(3, 6), (3, 6, 16), (3, 16), (3, 6)]
    assert error(got, expected) < tolerance
    assert got[3].dtype == np.int64


def info(format):
    return ModelInfo(spec=f"{format}:small", name="small", format=format)


def as_program(model):
    """The model as an exported program."""
    feed = tuple(torch.zeros(spec.shape) for spec in model.inputs)
    program = torch.export.export(model.module, feed).module()
    return dataclasses.replace(model, format="exported", module=program)


def unsupported(words, act, *arguments, **named):
    """Return the error of a call that is refused as unsupported, with a message of this pattern."""
    error = refusal(words, act, *arguments, **named)
    assert isinstance(error, Unsupported)
    return error


def skip_unless_runs(case, format):
    """Return the case's backend; skips the test where this machine lacks what it needs."""
    refusal = backend(case.backend).capabilities().refusal(case, info(format))
    if refusal:
        pytest.skip(str(refusal))
    return backend(case.backend)


def preparation(folder):
    """Folders under ``folder``."""
    (folder / "case").mkdir(exist_ok=True)
    return Preparation(folder / "case", folder / "cache")


def outputs_of(runner, inputs):
    """Return the outputs of one call of an entered runner."""
    outputs = runner.infer(runner.place(inputs))
    runner.synchronize()
    return runner.collect(outputs)


def run(model, case, preparation, inputs):
    """Return the outputs of one call."""
    with backend(case.backend).prepare(model, case, preparation) as runner:
        return outputs_of(runner, inputs)


def exported(path, module, *shape, free=False, **more):
    """Export a module with the input ``image`` to ONNX; its batch may be ``free``."""
    sizes = {"dynamic_shapes": ({0: "batch"},)} if free else {}
    words = {"input_names": ["image"], "dynamo": True, "verbose": False, **sizes, **more}
    torch.onnx.export(module.eval(), (torch.zeros(shape),), path, **words)
    return path


def agrees(model, case, preparation, reference=None):
    """Check the outputs against those of ``reference``, or of the model itself."""
    inputs = arrays(model)
    expected = eager(reference or model, inputs)
    assert error(run(model, case, preparation, inputs), expected) < TOLERANCES[case.precision]


# Quantized ONNX files with QuantizeLinear and DequantizeLinear nodes, made by ONNX Runtime

QUANTIZES = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def quantized_file(folder, kind, layers, *, leaving=0):
    """Save a graph in ``int8`` or ``fp8``, of ``linear`` layers (input 4x32) or a ``convolution``.

    The last ``leaving`` products stay in fp32.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    convolution = layers == "convolution"
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    if convolution:
        module = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3))
    shape = (1, 3, 16, 16) if convolution else (4, 32)
    exported(folder / "float.onnx", module, *shape, external_data=False)
    if kind == "fp8" and not hasattr(onnx.numpy_helper, "float8e4m3_to_float32") and QUANTIZES < (1, 24):
        pytest.skip("ONNX Runtime 1.23 quantizes to FP8 by a function that newer ONNX does not have")
    random = np.random.default_rng(0)
    feeds = iter([{"image": random.standard_normal(shape, dtype=np.float32)} for _ in range(4)])
    reader = SimpleNamespace(get_next=lambda: next(feeds, None))
    type = QuantType.QInt8 if kind == "int8" else QuantType.QFLOAT8E4M3FN
    nodes = onnx.load(folder / "float.onnx").graph.node
    products = [node.name for node in nodes if node.op_type in ("Conv", "Gemm", "MatMul")]
    quantize_static(
        folder / "float.onnx", folder / f"{kind}.onnx", reader, quant_format=QuantFormat.QDQ,
        activation_type=type, weight_type=type, nodes_to_exclude=products[len(products) - leaving :],
        calibrate_method=CalibrationMethod.MinMax if kind == "int8" else CalibrationMethod.Distribution,
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
    )  # fmt: skip
    return folder / f"{kind}.onnx"
