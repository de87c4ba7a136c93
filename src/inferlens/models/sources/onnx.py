"""``.onnx`` files: read for their inputs alone; a backend runs the file as it is."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from inferlens.errors import InferlensError, library
from inferlens.models.model import ModelInfo
from inferlens.models.sources.base import LoadRequest, Opened, Sizes, Source
from inferlens.models.sources.files import AGAIN, broken_file, existing
from inferlens.record.file_kind import FileType
from inferlens.record.files import sha256
from inferlens.spec.case import DTYPES, TensorSpec

# onnx.TensorProto.DataType
FLOAT_TYPES = {1: "fp32", 10: "fp16", 16: "bf16"}
FLOATS = (*FLOAT_TYPES, 11)  # types of parameters; integers are shapes and indices
DTYPES_OF_ONNX = {
    1: "float32", 2: "uint8", 3: "int8", 6: "int32", 5: "int16", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
    16: "bfloat16",
}  # fmt: skip
QUANTIZED_TYPES = {2: "int8", 3: "int8", 17: "fp8", 18: "fp8", 19: "fp8", 20: "fp8"}
OPEN_SIZE = "export it with larger inputs, or with sizes left open"
QUANTIZED_OPERATORS = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")


class OnnxFile(Source):
    """ONNX graphs."""

    prefix = "onnx"
    format = "onnx"
    kinds = (FileType.ONNX,)

    def find(self, name: str) -> ModelInfo:
        path, _ = existing(name, *self.kinds, FileType.UNKNOWN)  # its fields may stand in an unusual order
        model = onnx_graph(path)
        first = _inputs(model, path)[0][0].shape
        return ModelInfo(
            spec=f"onnx:{path}",
            name=path.stem,
            format="onnx",
            batch=first[0] if first else 1,
            precision=graph_precision(model),
        )

    def open(self, name: str, request: LoadRequest) -> Opened:  # noqa: ARG002 - a file of weights is loaded afterwards
        path, _ = existing(name, *self.kinds, FileType.UNKNOWN)
        model = onnx_graph(path)
        inputs = _inputs(model, path)
        return Opened(
            format="onnx",
            path=path,
            inputs=tuple(spec for spec, _ in inputs),
            sizes={spec.name: sizes for spec, sizes in inputs},
            parameters=sum(math.prod(tensor.dims) for tensor in model.graph.initializer if tensor.data_type in FLOATS),
            weights=f"in {path.name}",
            source=f"ONNX file, sha256 {sha256(path, *weight_files(path, model))}",
        )


def onnx_graph(path: Path) -> Any:
    """The graph of an ONNX file, weights in other files left there.

    Raises:
        MissingLibrary: if the package onnx is not there.
        InferlensError: if the file is no ONNX graph.
    """
    onnx = library("onnx", extra="onnx")
    with broken_file(path):
        model = onnx.load(str(path), load_external_data=False)
        if not model.graph.node:
            raise InferlensError(f"{path} is not an ONNX graph, or is empty.", hint=AGAIN)
        names = [value.name for value in model.graph.output]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InferlensError(f"{path} lists its output '{twice[0]}' twice.", hint="export it again")
        return model


def _inputs(model: Any, path: Path) -> list[tuple[TensorSpec, Sizes | None]]:
    """The inputs of the graph, and what sizes they may have.

    The first size is 1 where it is free, which some files write as -1; others that are free, or not even told of, are
    0, which asks for ``--input``.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    found: list[tuple[TensorSpec, Sizes | None]] = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        if any(size.HasField("dim_value") and size.dim_value == 0 for size in tensor.shape.dim):
            raise InferlensError(f"The input '{value.name}' of {path} has a dimension of size 0.", hint=OPEN_SIZE)
        dtype = DTYPES_OF_ONNX.get(tensor.elem_type)
        if dtype is None:
            raise InferlensError(f"The input '{value.name}' has an unknown type.", expected=", ".join(DTYPES))
        shape = [max(int(size.dim_value), 0) for size in tensor.shape.dim] if tensor.HasField("shape") else [0, 0]
        sizes = tuple((size or 1, size or None) for size in shape) if tensor.HasField("shape") else None
        names = tuple(size.dim_param for size in tensor.shape.dim)
        shape[:1] = [size or 1 for size in shape[:1]]
        found.append((TensorSpec(value.name, tuple(shape), dtype, names=names), sizes))
    if not found:
        raise InferlensError(f"The graph of {path} takes no inputs, so there is nothing to measure it with.")
    return found


def onnx_types(path: Path) -> dict[str, str]:
    """The types of a file's inputs, by name."""
    return {spec.name: spec.dtype for spec, _ in _inputs(onnx_graph(path), path)}


def weight_files(path: Path, model: Any) -> list[Path]:
    """The files beside ``path`` that hold its larger weights."""
    ends: dict[str, int] = {}
    for tensor in model.graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.data_location and "location" in where:
            end = int(where.get("offset", 0)) + int(where.get("length", 0))
            ends[where["location"]] = max(end, ends.get(where["location"], 0))
    for name, end in ends.items():
        file = path.parent / name
        if Path(name).is_absolute() or ".." in Path(name).parts:  # by name: a cache of models is made of links
            raise InferlensError(f"{path} refers to weights in {name}.", expected="weights in the folder of the graph")
        if not file.is_file() or file.stat().st_size < end:
            problem = "is cut short" if file.is_file() else "is missing"
            raise InferlensError(
                f"{file}, which holds weights of {path.name}, {problem}.",
                expected=f"a file of {end} bytes or more",
                hint=f"copy it from where {path.name} comes from",
            )
    return [path.parent / name for name in sorted(ends)]


def onnx_file_precision(path: Path) -> str:
    """As :func:`graph_precision`, of a file."""
    return graph_precision(onnx_graph(path))


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
