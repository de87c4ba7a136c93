"""Graphs made by hand: layers that read and write tensors by name."""

from typing import Any

from inferlens.analysis.graph import GraphSource
from inferlens.record.profile import Layer, Tensor

SHAPE = (1, 64, 56, 56)


def tensors(names: str) -> tuple[Tensor, ...]:
    """``"a b"`` as two tensors."""
    return tuple(Tensor(name=name, shape=SHAPE, dtype="float32") for name in names.split())


def reads(inputs: str, outputs: str, *modules: str, **fields: Any) -> Layer:
    """A layer named after what it writes."""
    named = {"name": outputs, "kind": "Conv", "inputs": tensors(inputs), "outputs": tensors(outputs)}
    return Layer(modules=modules, **{**named, **fields})


def source(*layers: Layer, **fields: Any) -> GraphSource:
    """The layers, of a millisecond each."""
    count = len(layers)
    defaults: dict[str, Any] = {"title": "small", "seconds": (1e-3,) * count, "whole": 1e-3 * count}
    return GraphSource(layers=layers, **{**defaults, "inputs": tensors("x"), **fields})


def residual() -> GraphSource:
    """Two blocks, each with a way around its second convolution; the last layer is fused from three modules."""
    return source(
        reads("x stem.weight", "stem", "stem"),
        reads("stem w", "a0", "blocks.0.a"),
        reads("a0 w stem", "b0", "blocks.0.b", "blocks.0", "blocks.0.relu", operators=("Conv", "Add", "Relu")),
        reads("b0", "moved", kind="Reorder"),
        reads("moved w", "a1", "blocks.1.a"),
        reads("a1 w b0", "b1", "blocks.1.b", "blocks.1"),
        reads("b1 w", "y", "head"),
    )


def long(count: int, depth: int) -> GraphSource:
    """A chain with ways around six layers, and modules of forty layers each, unless ``depth`` is 0."""
    made = []
    for index in range(count):
        inputs = f"t{index - 1} w{index}" + (f" t{index - 6}" if index > 6 and index % 6 == 0 else "")
        modules = [f"blocks.{index // 40}.{index % 40}"] if depth else []
        made.append(reads(inputs if index else "x", f"t{index}", *modules))
    return source(*made)
