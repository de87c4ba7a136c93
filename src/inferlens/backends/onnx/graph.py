"""Whether an ONNX graph on disk fits a case: its precision and its inputs' shapes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inferlens.errors import Unsupported
from inferlens.models.precision import onnx_file_precision
from inferlens.spec.case import TensorSpec


def check_precision(path: Path, precision: str) -> None:
    """Refuses to run a file's weights under another precision's name.

    Raises:
        Unsupported: if the file is in another precision.
    """
    own = onnx_file_precision(path)
    if own != precision:
        raise Unsupported(
            f"The file {path.name} is in {own}, and it is run as it is.",
            hint=f"--precision {own}, or a file written in {precision}",
        )


def check_shapes(declared: Iterable[tuple[str, Iterable[Any]]], specs: tuple[TensorSpec, ...]) -> None:
    """Compares the inputs a graph declares, as name and dimensions, with those of the case.

    Dimensions that are not numbers are free, and so are the inputs of which a graph tells no dimension at all: scalars
    look the same, and were compared when the file was read.

    Raises:
        Unsupported: if they differ in number, or in a dimension that is fixed.
    """
    graph = {name: tuple(shape) for name, shape in declared}
    if set(graph) != {spec.name for spec in specs}:
        given = ", ".join(spec.name for spec in specs)
        raise Unsupported(f"The ONNX graph has the inputs {', '.join(graph)}, the model was described with {given}.")
    for spec in specs:
        own = graph[spec.name]
        fits = not own or (
            len(own) == len(spec.shape)
            and all(not isinstance(fixed, int) or fixed == size for fixed, size in zip(own, spec.shape, strict=False))
        )
        if not fits:
            fixed = "x".join(map(str, own)) or "scalar"
            raise Unsupported(
                f"The ONNX graph was made for {spec.name}={fixed}, not for {spec}.",
                hint="its own batch size, or a file exported with a dynamic batch",
            )
