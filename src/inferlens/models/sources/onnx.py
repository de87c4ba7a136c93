"""``.onnx`` files: read for their inputs alone; a backend runs the file as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferlens.case import DTYPES, TensorSpec
from inferlens.errors import InferlensError, MissingLibrary
from inferlens.models.model import Found
from inferlens.models.sources.base import Opened, Source, Wish
from inferlens.models.sources.files import broken_file, existing, sha256


class OnnxFile(Source):
    """ONNX graphs."""

    prefix = "onnx"
    format = "onnx"

    def names(self) -> Sequence[str]:
        """Files are not listed."""
        return ()

    def find(self, name: str) -> Found:
        """See :class:`Source`."""
        path = existing(name)
        shapes = list(_graph_inputs(path).values())
        batch = shapes[0][0][0] if shapes and shapes[0][0] else None
        return Found(spec=f"onnx:{path}", name=path.stem, format="onnx", batch=batch or 1)

    def open(self, name: str, wish: Wish) -> Opened:  # noqa: ARG002 - a file of weights is loaded afterwards
        """See :class:`Source`."""
        path = existing(name)
        graph = _graph_inputs(path)
        first = next(iter(graph.values()))[0] if graph else ()
        digest = sha256(path)
        return Opened(
            format="onnx",
            path=path,
            inputs=tuple(_spec(name, shape, dtype) for name, (shape, dtype) in graph.items()),
            fixed_batch=bool(first and first[0]),
            weights=f"in {path.name}",
            source=f"ONNX file, sha256 {digest}",
        )


def _graph_inputs(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape (0 where a dimension is free) and type of each input of the graph.

    Raises:
        InferlensError: if the file is no ONNX graph.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingLibrary("onnx", extra="onnx") from error
    with broken_file(path):
        model = onnx.load(str(path), load_external_data=False)
        if not model.graph.node:
            raise InferlensError(f"{path} is no ONNX graph, or an empty one.")
        weights = {tensor.name for tensor in model.graph.initializer}
        return {value.name: _shape_and_type(onnx, value) for value in model.graph.input if value.name not in weights}


def _shape_and_type(onnx: Any, value: Any) -> tuple[tuple[int, ...], str]:
    tensor = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    dtype = {"float": "float32", "double": "float64"}.get(name, name)
    if dtype not in DTYPES:
        raise InferlensError(f"The input '{value.name}' has type {dtype}.", expected=", ".join(DTYPES))
    return tuple(int(dimension.dim_value) for dimension in tensor.shape.dim), dtype


def _spec(name: str, shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """The first dimension is 1 where it is free; others that are free stay 0, which asks for ``--input``."""
    return TensorSpec(name, (shape[0] or 1, *shape[1:]) if shape else (), dtype)
