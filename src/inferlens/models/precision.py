"""The precision that a model file is in: its weights' float type, or what it is quantized to; nothing is unpickled."""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

# onnx.TensorProto.DataType
FLOAT_TYPES = {1: "fp32", 10: "fp16", 16: "bf16"}
QUANTIZED_TYPES = {2: "int8", 3: "int8", 17: "fp8", 18: "fp8", 19: "fp8", 20: "fp8"}
QUANTIZED_OPERATORS = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")
# torch._export.serde.schema.ScalarType
EXPORTED_TYPES = {6: "fp16", 7: "fp32", 13: "bf16"}
STORAGES = {"torch HalfStorage": "fp16", "torch FloatStorage": "fp32", "torch BFloat16Storage": "bf16"}
LARGEST = 1 << 26  # bytes of a description of weights; longer ones are none


def onnx_file_precision(path: Path) -> str:
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


def torch_file_precision(path: Path) -> str:
    """The type of most weights of an exported program, or of all of a TorchScript archive; fp32 where that is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.file_size > LARGEST:
                    continue
                if entry.filename.endswith("/model_weights_config.json"):
                    return _exported(archive.read(entry))
                if entry.filename.endswith("/data.pkl"):
                    return _script(archive.read(entry))
    except Exception:  # a broken file is told when it is opened
        return "fp32"
    return "fp32"


def _exported(config: bytes) -> str:
    sizes: Counter[str] = Counter()
    for entry in msgspec.json.decode(config)["config"].values():
        meta = entry["tensor_meta"]
        if meta["dtype"] in EXPORTED_TYPES:
            sizes[EXPORTED_TYPES[meta["dtype"]]] += math.prod(size["as_int"] for size in meta["sizes"])
    return sizes.most_common(1)[0][0] if sizes else "fp32"


def _script(pickle: bytes) -> str:
    named = {str(argument) for opcode, argument, _ in pickletools.genops(pickle) if opcode.name == "GLOBAL"}
    found = {STORAGES[name] for name in named if name in STORAGES}
    return found.pop() if len(found) == 1 else "fp32"
