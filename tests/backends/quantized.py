"""ONNX files that are quantized, with QuantizeLinear and DequantizeLinear nodes, made by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

QUANTIZES = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def quantized_file(folder: Path, kind: str, layers: str, *, leaving: int = 0) -> Path:
    """A small graph quantized to ``int8`` or ``fp8``, of ``linear`` layers (input 4x32) or a ``convolution``.

    The last so many products are left as they are.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    convolution = layers == "convolution"
    torch.manual_seed(0)
    module: Any = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    if convolution:
        module = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3))
    example = torch.randn(1, 3, 16, 16) if convolution else torch.randn(4, 32)
    torch.onnx.export(
        module.eval(), (example,), folder / "float.onnx", input_names=["image"], dynamo=True, verbose=False,
        external_data=False,
    )  # fmt: skip
    if kind == "fp8" and not hasattr(onnx.numpy_helper, "float8e4m3_to_float32") and QUANTIZES < (1, 24):
        pytest.skip("ONNX Runtime 1.23 quantizes to FP8 by a function that newer ONNX does not have")
    type = QuantType.QInt8 if kind == "int8" else QuantType.QFLOAT8E4M3FN
    nodes = onnx.load(folder / "float.onnx").graph.node
    products = [node.name for node in nodes if node.op_type in ("Conv", "Gemm", "MatMul")]
    quantize_static(
        folder / "float.onnx", folder / f"{kind}.onnx", Reader(tuple(example.shape)), quant_format=QuantFormat.QDQ,
        activation_type=type, weight_type=type,
        nodes_to_exclude=products[len(products) - leaving :],
        calibrate_method=CalibrationMethod.MinMax if kind == "int8" else CalibrationMethod.Distribution,
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
    )  # fmt: skip
    return folder / f"{kind}.onnx"


class Reader:
    """Calibration data: a few random images."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(0)
        self.left = [{"image": random.standard_normal(shape, dtype=np.float32)} for _ in range(4)]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None
