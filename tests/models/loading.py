"""A model by name or file, small networks and graphs, and a file that nobody should open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inferlens.models.model import Model
from inferlens.models.resolve import find, load
from inferlens.spec.case import Case


def loaded(name: str | Path, *, trust: bool = False, **fields: Any) -> Model:
    """The model of that name, at its own batch if no other is asked for."""
    model_info = find(str(name))
    return load(Case(model=model_info.spec, backend="pytorch", **{"batch": model_info.batch, **fields}), trust=trust)


Shapes = Mapping[str, Any]  # by name; ``None`` for one that is not told


def graph(
    nodes: Sequence[Any], inputs: Shapes, weights: Sequence[Any] = (), *, kind: int = 1, outputs: Shapes | None = None
) -> Any:
    """A model of ONNX, whose inputs are of this kind, floats by default; its output is called y."""
    import onnx

    given, made = (
        [onnx.helper.make_tensor_value_info(name, one, shape) for name, shape in shapes.items()]
        for one, shapes in ((kind, inputs), (1, outputs or {"y": None}))
    )
    whole = onnx.helper.make_graph(nodes, "g", given, made, weights)
    return onnx.helper.make_model(whole, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])


def small() -> Any:
    """A convolution and a batch norm."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))


class Bomb:
    """A pickle that leaves a mark when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))
