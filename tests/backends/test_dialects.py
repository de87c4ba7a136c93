"""One graph and its ranges in the dialects of several runtimes: each takes its own, and all mean the same numbers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import inferlens
from inferlens.backends.base import Absence, Preparation
from inferlens.backends.onnx.export import onnx_file
from inferlens.backends.onnx.quantize import Dialect, for_cpu, for_tensorrt, quantized_onnx
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.engine import build_engine
from inferlens.backends.tensorrt.flavours import find, flavour
from inferlens.backends.tensorrt.network import configuration, network
from inferlens.backends.tensorrt.options import TensorRTOptions
from inferlens.backends.tensorrt.profiles import profiles
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.spec.case import TensorSpec
from tests.backends import small

DIALECTS = (for_cpu(), for_tensorrt("int8"), for_tensorrt("fp8"))


class Residual(torch.nn.Module):
    """Convolutions, one with a sum behind it, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.first(image).relu()
        made: torch.Tensor = self.head((self.second(first) + first).relu().mean((2, 3)))
        return made


class Attending(torch.nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(words)
        return made


def model(module: torch.nn.Module, spec: str) -> Model:
    torch.manual_seed(0)
    return Model(type(module).__name__, type(module).__name__, "module", (TensorSpec.parse(spec),), module.eval())


def residual() -> Model:
    torch.manual_seed(0)
    return model(Residual(), "image=2x3x16x16")


def written(of: Model, dialect: Dialect, folder: Path, **words: Any) -> tuple[Path, Preparation]:
    preparation = Preparation(folder / "case", folder / "cache")
    case = small.case("onnxruntime:cpu", precision="int8", calibration="random")
    plain = onnx_file(of, case, preparation, "fp32")
    return quantized_onnx(plain, of, case, preparation, dialect, **words), preparation


def error(of: Model, path: Path) -> float:
    """The relative L2 error of a graph against its module, in ONNX Runtime, which computes FP8 if it is let alone."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = small.arrays(of)
    kind = {"tensor(float16)": np.float16, "tensor(float)": np.float32}[session.get_inputs()[0].type]
    found = session.run(None, {name: array.astype(kind) for name, array in inputs.items()})
    return small.error([item.astype(np.float32) for item in found], small.eager(of, inputs))


def test_ranges_are_found_once_for_all_dialects(tmp_path: Path) -> None:
    notes = []
    for dialect in (*DIALECTS, DIALECTS[0]):
        path, preparation = written(residual(), dialect, tmp_path)
        notes.append(next(phase.note for phase in preparation.phases if phase.name == "quantize"))
        assert preparation.facts["quantized_share"] == 1.0
        onnx.checker.check_model(str(path), full_check=True)
        assert error(residual(), path) < (0.1 if dialect.fp8 else 0.03)
    assert notes == ["", "ranges cached", "ranges cached", "cached"]
    (kept,) = tmp_path.rglob("calibration.json")
    low, high = json.loads(kept.read_text())["image"]
    assert low < 0 < high


def test_what_tensorrt_wants(tmp_path: Path) -> None:
    """Pairs of nodes at the inputs of products, and of what is added to one, in fp16; biases are not quantized."""
    path, _ = written(residual(), for_tensorrt("int8"), tmp_path)
    graph = onnx.load(str(path)).graph
    makers = {name: node.op_type for node in graph.node for name in node.output}
    readers = {name: node.op_type for node in graph.node for name in node.input}
    inputs = {node.op_type: [makers.get(name, "") for name in node.input] for node in graph.node}
    pair = ["DequantizeLinear"] * 2
    assert (inputs["Conv"], inputs["Gemm"]) == ([*pair, ""], [*pair, ""])
    assert sorted(inputs["Add"]) == ["Conv", "DequantizeLinear"]  # one kernel with the convolution before it
    assert all(readers[node.output[0]] != "QuantizeLinear" for node in graph.node if node.op_type == "Conv")
    kinds = Counter(weight.data_type for weight in graph.initializer)
    assert onnx.TensorProto.FLOAT not in kinds
    assert onnx.TensorProto.INT32 not in kinds  # what a quantized bias would be
    assert graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_attention_itself_stays_in_fp16_and_so_do_the_nodes_that_are_named(tmp_path: Path) -> None:
    of = model(Attending(), "words=2x8x32")
    path, preparation = written(of, for_tensorrt("int8"), tmp_path)
    share = preparation.facts["quantized_share"]
    assert 0.8 < share < 1
    assert error(of, path) < 0.05
    products = [node.name for node in onnx.load(str(path)).graph.node if node.op_type in ("MatMul", "Gemm")]
    other, preparation = written(of, for_tensorrt("int8"), tmp_path, keep=products[-1:])
    assert other != path
    assert preparation.facts["quantized_share"] < share


def test_scales_of_fp8_reach_the_largest_value(tmp_path: Path) -> None:
    of = residual()
    path, _ = written(of, for_tensorrt("fp8"), tmp_path)
    (kept,) = tmp_path.rglob("calibration.json")
    graph = onnx.load(str(path)).graph
    scales = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer if item.name == "image_scale"}
    largest = max(map(abs, json.loads(kept.read_text())["image"]))
    assert float(scales["image_scale"]) * 448 == pytest.approx(largest, rel=1e-3)


@pytest.mark.skipif(isinstance(find("rtx"), Absence), reason="needs TensorRT for RTX")
@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("layers", ["convolution", "linear"])
def test_tensorrt_for_rtx_builds_them_without_a_gpu_or_says_why_not(kind: str, layers: str, tmp_path: Path) -> None:
    of = residual() if layers == "convolution" else model(Attending(), "words=2x8x32")
    path, _ = written(of, for_tensorrt(kind), tmp_path)
    rtx = flavour("rtx")
    parsed = network(path, rtx)
    config = configuration(parsed, TensorRTOptions(compute_capability="8.9"), profiles("", parsed.inputs))
    if (kind, layers) == ("int8", "convolution") and tuple(map(int, rtx.version.split(".")[:2])) < (1, 7):
        with pytest.raises(Unsupported, match="cannot build the engine"):
            build_engine(parsed, config)
    else:
        assert build_engine(parsed, config)


@pytest.mark.skipif(isinstance(find("rtx"), Absence), reason="needs TensorRT for RTX")
def test_the_backend_builds_a_quantized_engine_without_a_gpu(tmp_path: Path) -> None:
    options = {"compute_capability": "8.9"}
    case = small.case("tensorrt:rtx", precision="fp8", device="cuda", calibration="random", options=options)
    preparation = small.preparation(tmp_path)
    report = TensorRT().build(residual(), case, preparation, tmp_path / "fp8.engine")
    assert report.size > 0
    assert preparation.facts["quantized_share"] == 1.0
    assert [phase.name for phase in preparation.phases] == ["export", "quantize", "build"]


QUICK: dict[str, Any] = {"quick": True, "mode": "latency", "iterations": 3, "warmup": 1, "precision": "int8"}
DYNAMIC = {"option": "onnxruntime.quantize=dynamic", "backend": "onnxruntime:cpu"}


@pytest.mark.usefixtures("one_process")
def test_dynamic_quantization_takes_no_data_but_products_with_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    (record,) = inferlens.bench(Attending().eval(), torch.randn(2, 8, 32), output=str(tmp_path), **QUICK, **DYNAMIC)
    assert (record.status, record.reason) == ("ok", "")
    assert record.agreement
    assert record.agreement.agrees
    assert (record.agreement.rel_l2 or 0) > 0
    assert 0.8 < record.facts["quantized_share"] < 1
    convolutions = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    (record,) = inferlens.bench(convolutions, torch.randn(1, 3, 8, 8), output=str(tmp_path), **QUICK, **DYNAMIC)
    assert record.status == "unsupported"
    assert "no MatMul has weights" in record.reason
