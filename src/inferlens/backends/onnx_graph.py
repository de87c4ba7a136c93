"""What an ONNX graph on disk declares: its float type, and whether the inputs of a case fit it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inferlens.case import TensorSpec
from inferlens.errors import Unsupported

FLOAT_TYPES = {1: "fp32", 10: "fp16", 16: "bf16"}  # onnx.TensorProto.DataType


def file_precision(path: Path) -> str:
    """The precision most of a file's weights (without weights: its inputs) are in; fp32 if it has no floats."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    sizes: Counter[str] = Counter()
    for weight in graph.initializer:
        if weight.data_type in FLOAT_TYPES:
            count = 1
            for size in weight.dims:
                count *= size
            sizes[FLOAT_TYPES[weight.data_type]] += count
    if not sizes:
        kinds = (value.type.tensor_type.elem_type for value in graph.input)
        sizes.update(FLOAT_TYPES[kind] for kind in kinds if kind in FLOAT_TYPES)
    return sizes.most_common(1)[0][0] if sizes else "fp32"


def check_precision(path: Path, precision: str) -> None:
    """Refuses to run a file's weights under another precision's name.

    Raises:
        Unsupported: if the file is in another precision.
    """
    own = file_precision(path)
    if own != precision:
        raise Unsupported(
            f"The file {path.name} is in {own}, and ONNX Runtime runs it as it is.",
            cure=f"--precision {own}, or a file written in {precision}",
        )


def check_shapes(declared: Iterable[tuple[str, Iterable[Any]]], specs: tuple[TensorSpec, ...]) -> None:
    """Compares the inputs a graph declares, as name and dimensions, with those of the case.

    Dimensions that are not numbers are free.

    Raises:
        Unsupported: if they differ in number, or in a dimension that is fixed.
    """
    graph = {name: tuple(shape) for name, shape in declared}
    if set(graph) != {spec.name for spec in specs}:
        given = ", ".join(spec.name for spec in specs)
        raise Unsupported(f"The ONNX graph has the inputs {', '.join(graph)}, the model was described with {given}.")
    for spec in specs:
        own = graph[spec.name]
        fits = len(own) == len(spec.shape) and all(
            not isinstance(fixed, int) or fixed == size for fixed, size in zip(own, spec.shape, strict=False)
        )
        if not fits:
            fixed = "x".join(map(str, own)) or "scalar"
            raise Unsupported(
                f"The ONNX graph was made for {spec.name}={fixed}, not for {spec}.",
                cure="its own batch size, or a file exported with a dynamic batch",
            )
