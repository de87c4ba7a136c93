"""The nodes of an ONNX file as layers, in the order of the file, with the tensors between them; nothing is run.

Weights are read by name alone: the data of a model need not be there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from inferlens.backends.onnx.modules import NO_SCOPES, VALUES, modules_of
from inferlens.models.sources.onnx import onnx_graph
from inferlens.record.layer_profile import Layer, Tensor

DOMAINS = ("", "ai.onnx")
SHAPES = 4096  # bytes of a weight, from which on it is none that tells a shape
INSIDE = "Nodes with graphs inside of them, such as If and Loop, are drawn without these: {}."


class OnnxLayers:
    """What an ONNX file tells.

    Attributes:
        layers: one for each node that does something.
        inputs, outputs: of the graph, weights left out.
        notes: what it does not tell.
    """

    def __init__(self, graph: Any) -> None:
        weights = {each.name for each in (*graph.initializer, *graph.sparse_initializer)}
        self._shapes = {each.name: _tensor(each) for each in (*graph.value_info, *graph.input, *graph.output)}
        self._shapes |= {each.name: _weight(each) for each in graph.initializer}
        uses = Counter(name for node in graph.node for name in set(node.input))
        self.inputs = tuple(_tensor(each) for each in graph.input if each.name not in weights)
        self.outputs = tuple(map(_tensor, graph.output))
        self.layers = tuple(self._layer(node, uses) for node in graph.node if node.op_type not in VALUES)
        inside = sorted({node.op_type for node in graph.node if any(_graphs(each) for each in node.attribute)})
        self.notes: tuple[str, ...] = (INSIDE.format(", ".join(inside)),) if inside else ()
        if not any(layer.modules for layer in self.layers):
            self.notes += (f"modules: {NO_SCOPES}",)

    def _layer(self, node: Any, uses: Counter[str]) -> Layer:
        kind = node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"
        return Layer(
            name=node.name or next(iter(node.output), ""),
            kind=kind,
            modules=modules_of(node, uses),
            operators=(kind,),
            inputs=tuple(self._shapes.get(name, Tensor(name=name)) for name in node.input if name),
            outputs=tuple(self._shapes.get(name, Tensor(name=name)) for name in node.output if name),
            details=dict(filter(None, map(_attribute, node.attribute))),
        )


def onnx_layers(path: Path) -> OnnxLayers:
    """The nodes of an ONNX file, with the shapes that can be told from it.

    Raises:
        MissingLibrary: if the package onnx is not there.
        InferlensError: if the file is no ONNX.
    """
    return OnnxLayers(_inferred(onnx_graph(path)).graph)


def _inferred(model: Any) -> Any:
    """The model with the shapes of its tensors where they follow from what it says; as it is where they do not."""
    import onnx

    for weights in model.graph.initializer:
        if len(weights.raw_data) > SHAPES:
            weights.ClearField("raw_data")
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:
        return model  # too large, or broken: shapes are missing then, and nothing else


def _tensor(value: Any) -> Tensor:
    kind = value.type.tensor_type
    sizes = [size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim]
    return Tensor(name=value.name, shape=tuple(sizes), dtype=_type(kind.elem_type))


def _weight(value: Any) -> Tensor:
    return Tensor(name=value.name, shape=tuple(value.dims), dtype=_type(value.data_type), format="weights")


def _type(number: int) -> str:
    import onnx

    names = {code: name for name, code in onnx.TensorProto.DataType.items()}
    name = names.get(number, "").lower()
    return "" if name == "undefined" else {"float": "float32", "double": "float64"}.get(name, name)


def _graphs(attribute: Any) -> bool:
    return bool(attribute.graphs) or attribute.HasField("g")


def _attribute(attribute: Any) -> tuple[str, str] | None:
    """An attribute that is a number, a few of them, or a text: kernel, stride, axis."""
    if attribute.HasField("i"):
        return attribute.name, str(attribute.i)
    if attribute.HasField("f"):
        return attribute.name, f"{attribute.f:g}"
    if attribute.HasField("s"):
        return attribute.name, attribute.s[:100].decode(errors="replace")
    if 0 < len(attribute.ints) <= 8:
        return attribute.name, "x".join(map(str, attribute.ints))
    return None
