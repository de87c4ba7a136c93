"""The precision that an ONNX graph on disk is in: its weights' float type, or what it is quantized to."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

# onnx.TensorProto.DataType
FLOAT_TYPES = {1: "fp32", 10: "fp16", 16: "bf16"}
QUANTIZED_TYPES = {2: "int8", 3: "int8", 17: "fp8", 18: "fp8", 19: "fp8", 20: "fp8"}
QUANTIZED_OPERATORS = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")


def file_precision(path: Path) -> str:
    """As :func:`graph_precision`, of a file."""
    import onnx

    return graph_precision(onnx.load(str(path), load_external_data=False))


def graph_precision(model: Any) -> str:
    """What the graph is quantized to, or the type of most of its weights, or of its inputs; fp32 without floats."""
    quantized = _quantized_to(model.graph)
    if quantized:
        return quantized
    sizes: Counter[str] = Counter()
    for weight in model.graph.initializer:
        if weight.data_type in FLOAT_TYPES:
            sizes[FLOAT_TYPES[weight.data_type]] += math.prod(weight.dims)
    if not sizes:
        kinds = (value.type.tensor_type.elem_type for value in model.graph.input)
        sizes.update(FLOAT_TYPES[kind] for kind in kinds if kind in FLOAT_TYPES)
    return sizes.most_common(1)[0][0] if sizes else "fp32"


def _quantized_to(graph: Any) -> str:
    """The type in most of the graph's nodes that quantize; empty if there are none."""
    kinds = {weight.name: weight.data_type for weight in graph.initializer}
    kinds |= {
        node.output[0]: attribute.t.data_type
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    found: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type in QUANTIZED_OPERATORS:
            found["int8"] += 1
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            # Without a zero point QuantizeLinear makes uint8, unless an attribute names the type.
            named = [attribute.i for attribute in node.attribute if attribute.name == "output_dtype"]
            kind = kinds.get(node.input[2] if len(node.input) > 2 and node.input[2] else node.input[0])
            found[QUANTIZED_TYPES.get(kind or next(iter(named), 0) or 2, "int8")] += 1
    return found.most_common(1)[0][0] if found else ""
