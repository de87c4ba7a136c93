"""Counts an ONNX graph from the shapes that ONNX infers; its weights are not read.

What only looks at a tensor in another way (a reshape, a transposition), or in another type (quantisation), hands on the
tensor itself: it is work that the graph's author wrote down and a runtime need not do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferlens.models.work.byte_counter import ByteCounter, ModuleCall, Seen
from inferlens.record.work import Work
from inferlens.spec.case import TensorSpec

_VIEWS = """Cast DequantizeLinear Dropout Expand Flatten Identity QuantizeLinear Reshape Shape Slice Split Squeeze
Transpose Unsqueeze"""
VIEWS = frozenset(_VIEWS.split())
# They read of their first tensor no more than they write.
PICKING = frozenset(("Gather", "GatherElements", "GatherND"))
CONSTANTS = frozenset(("Constant", "ConstantOfShape"))
# For each kind of matrix product the places of the two tensors that are multiplied.
PRODUCTS = {
    "Conv": (0, 1), "ConvInteger": (0, 1), "QLinearConv": (0, 3), "ConvTranspose": (0, 1), "Gemm": (0, 1),
    "MatMul": (0, 1), "MatMulInteger": (0, 1), "QLinearMatMul": (0, 3),
}  # fmt: skip
# Operators of ONNX with FLOPs to speak of and no formula here. Those of other domains have none either.
_HEAVY = """Attention DFT DeformConv Det Einsum FlexAttention GRU GridSample If LSTM LinearAttention Loop
NonMaxSuppression RNN RoiAlign STFT Scan"""
HEAVY = frozenset(_HEAVY.split())


@dataclass(frozen=True)
class Known:
    """A tensor of the graph: its shape, and bytes of an element."""

    shape: tuple[int, ...]
    size: int

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.shape)


@dataclass
class GraphTensors:
    """The tensors of a graph whose shapes are known, and which of them are views of which."""

    known: dict[str, Known]
    roots: dict[str, str] = field(default_factory=dict)

    def seen(self, *names: str) -> list[Seen]:
        """Tensors as an operator sees them, but for those whose shapes are not known."""
        found = []
        for name in names:
            root = self.roots.get(name, name)
            if name in self.known and root in self.known:
                whole = self.known[root].elements * self.known[root].size
                found.append(Seen(root, name, min(self.known[name].elements * self.known[root].size, whole), whole))
        return found


def count_onnx(
    path: Path, inputs: tuple[TensorSpec, ...], element: int, modules: Mapping[str, tuple[str, ...]]
) -> Work:
    """The work of one call of the graph in ``path``. Raises whatever ONNX raises.

    Args:
        inputs: their shapes are put in where the graph leaves them open.
        element: bytes of an element that is float32 in the graph.
        modules: of a tensor's name, the paths of the modules whose operator makes it; of several the first has it all.
    """
    import onnx

    loaded = inferred(path, inputs)
    graph = GraphTensors(tensors(loaded, element))
    counted = ByteCounter(spec.name for spec in inputs)
    calls: dict[str, ModuleCall] = {}
    for node in loaded.graph.node:
        if node.op_type in CONSTANTS or not any(node.output):
            continue
        if node.op_type in VIEWS and node.domain in ("", "ai.onnx"):
            graph.roots.update({name: graph.roots.get(node.input[0], node.input[0]) for name in node.output})
            continue
        origin = (modules.get(node.output[0]) or ("",))[0]
        if origin not in calls:
            calls[origin] = counted.begin(origin, "")
        reads, writes = graph.seen(*node.input), graph.seen(*node.output)
        if node.op_type in PICKING and graph.seen(node.input[0]) and writes:
            first = reads[0]
            part = (first.part, node.output[0])
            reads[0] = Seen(first.storage, part, min(first.bytes, writes[0].bytes), first.whole)
        counted.operator(calls[origin], node.op_type, flops(node, graph), reads, writes)
    counted.returned(graph.seen(*(value.name for value in loaded.graph.output)))
    return counted.work(f"counted from the shapes that ONNX {onnx.__version__} infers")


def flops(node: Any, graph: GraphTensors) -> float | None:
    """FLOPs of one node; ``None`` where there is no formula, or a shape is not known."""
    if node.op_type not in PRODUCTS:
        return None if node.op_type in HEAVY or node.domain not in ("", "ai.onnx") else 0.0
    left, right = (graph.known.get(node.input[place]) for place in PRODUCTS[node.op_type])
    made = graph.known.get(node.output[0])
    if left is None or right is None or made is None or not left.shape or len(right.shape) < 1:
        return None
    if "MatMul" in node.op_type:
        return 2.0 * made.elements * left.shape[-1]
    if node.op_type == "Gemm":
        transposed = any(item.name == "transA" and item.i for item in node.attribute)
        return 2.0 * made.elements * left.shape[0 if transposed else -1]
    # Each element of the result (of a transposed convolution: of the input) takes part with one filter.
    points = left if node.op_type == "ConvTranspose" else made
    return 2.0 * points.elements * math.prod(right.shape[1:])


def product_shares(loaded: Any) -> dict[str, float]:
    """The share of each node in a graph's multiply-adds, by the first tensor that it writes; none if none is known."""
    graph = GraphTensors(tensors(loaded, 4))
    work = {node.output[0]: flops(node, graph) or 0.0 for node in loaded.graph.node if node.output}
    whole = sum(work.values())
    return {name: value / whole for name, value in work.items()} if whole else {}


def inferred(path: Path, inputs: tuple[TensorSpec, ...]) -> Any:
    """The graph with all shapes that follow from those of its inputs."""
    import onnx

    loaded = onnx.load(str(path), load_external_data=False)
    shapes = {spec.name: spec.shape for spec in inputs}
    for value in loaded.graph.input:
        if value.name in shapes:
            dimensions = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in shapes[value.name]]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dimensions))  # it may have had none
    del loaded.graph.value_info[:]  # what was written down may be of another batch
    for value in loaded.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(loaded, data_prop=True)


def tensors(loaded: Any, element: int) -> dict[str, Known]:
    """Weights, inputs, outputs and what is between them, as far as their shapes are known."""
    import onnx

    def size(kind: int) -> int:
        if kind == onnx.TensorProto.FLOAT:
            return element
        try:
            return int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
        except (KeyError, TypeError):  # texts
            return 0

    graph = loaded.graph
    known = {item.name: Known(tuple(item.dims), size(item.data_type)) for item in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                known[node.output[0]] = Known(tuple(attribute.t.dims), size(attribute.t.data_type))
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if value.name not in known and tensor.HasField("shape"):
            shape = tuple(int(item.dim_value) if item.HasField("dim_value") else -1 for item in tensor.shape.dim)
            if min(shape, default=0) >= 0:
                known[value.name] = Known(shape, size(tensor.elem_type))
    return known
