"""From a PyTorch module to an ONNX file in the case's folder.

The exporter built on ``torch.export`` comes first: it keeps every node's module path. Where it fails, the older one,
which traces, gets a try, and the record says so. Models that already are ONNX files are used as they are.
"""

from __future__ import annotations

import shutil
import traceback
import warnings
from pathlib import Path
from typing import Any

from inferlens.backends.availability import first_lines
from inferlens.backends.base import Preparation
from inferlens.backends.pytorch.cast import cast
from inferlens.backends.pytorch.export import any_names, example_feed, export_dimensions, flat_outputs, free_sizes
from inferlens.errors import Unsupported, is_short_of_memory
from inferlens.models.model import Model
from inferlens.spec.case import Case

LONGEST = 300  # characters of a reason
EMBED_LIMIT = (
    1_500_000_000  # bytes of weights; one ONNX file holds less than 2 GiB, the rest goes into a file beside it
)
# Errors of torch.export for code whose path depends on values.
ON_VALUES = ("GuardOnDataDependentSymNode", "DataDependentOutputException")


def onnx_file(model: Model, case: Case, preparation: Preparation, precision: str) -> Path:
    """The model as an ONNX file with weights and float inputs in ``precision``; an artefact if it was made here.

    Raises:
        Unsupported: if the model cannot be exported.
    """
    if model.path is not None and model.format == "onnx":
        return model.path
    if model.module is None:
        raise Unsupported(f"'{model.spec}' is neither a PyTorch module nor an ONNX file.")
    if model.format == "torchscript":
        raise Unsupported(
            f"'{model.spec}' is TorchScript, which cannot be exported to ONNX.", hint="the model that it was made from"
        )
    path = preparation.folder / "model.onnx"
    with preparation.phase("export"):
        preparation.folder.mkdir(parents=True, exist_ok=True)
        cast(model.module, precision)
        _export(model, _largest(model, case, precision), precision, path, preparation)
    for written in sorted(preparation.folder.glob("model.onnx*")):
        preparation.keep(written, "onnx" if written == path else "onnx weights")
    return path


def move_onnx(written: Path, path: Path) -> None:
    """Moves an ONNX file, and the file of its weights if it has one, whose name the graph knows.

    The second file gets the name of the first with ``.data`` after it.
    """
    import onnx

    beside = [each for each in written.parent.glob(f"{written.name}*") if each != written]
    if not beside:
        shutil.move(written, path)
        return
    graph = onnx.load(str(written))  # with its weights
    onnx.save(graph, str(path), save_as_external_data=True, location=f"{path.name}.data")


def lower_folded_weights(path: Path) -> None:
    """Gives folded convolution weights of a bf16 graph their type back, in place.

    The exporter folds batch norm into convolutions with NumPy, which has no bf16, and leaves fp32 weights behind: a
    graph that no runtime takes.
    """
    import onnx
    import torch

    model = onnx.load(str(path), load_external_data=False)
    mixed = {
        name
        for node in model.graph.node
        if node.op_type in ("Conv", "ConvTranspose", "Gemm")
        for name in node.input[1:]
    }
    stray = [
        tensor
        for tensor in model.graph.initializer
        if tensor.name in mixed and tensor.data_type == onnx.TensorProto.FLOAT
    ]
    for tensor in stray:
        values = torch.from_numpy(onnx.numpy_helper.to_array(tensor, str(path.parent)).copy()).to(torch.bfloat16)
        lowered = onnx.TensorProto(
            name=tensor.name, data_type=onnx.TensorProto.BFLOAT16, dims=tensor.dims,
            raw_data=values.view(torch.int16).numpy().tobytes(),
        )  # fmt: skip
        tensor.CopyFrom(lowered)
    names = {tensor.name for tensor in stray}
    names |= {name for node in model.graph.node if names & set(node.input) for name in node.output}
    for value in model.graph.value_info:
        if value.name in names and value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    if stray:
        onnx.save(model, str(path))


def reason(error: BaseException) -> str:
    """Why the exporter failed: what it raises itself tells the step it was at, and that the cause is below."""
    while error.__cause__ is not None and type(error).__module__.startswith("torch.onnx"):
        error = error.__cause__
    kind, said = type(error).__name__, first_lines(error, 2).rstrip(".")
    if kind in ON_VALUES:
        said = _line_of_code(error) or said
        return f"control flow or a size depends on values of a tensor: {said}"[:LONGEST]
    return (f"{kind}: {said}" if type(error).__module__ == "builtins" else said)[:LONGEST]


def _line_of_code(error: BaseException) -> str:
    """The line of the model that an error came from; empty if none is known outside of PyTorch and Python."""
    import torch

    libraries, python = {Path(torch.__file__).parent, Path(__file__).parents[1]}, Path(traceback.__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if frame.line and file.parent != python and libraries.isdisjoint(file.parents):
            return f"{frame.line} ({file.name}, line {frame.lineno})"
    return ""


def _largest(model: Model, case: Case, precision: str) -> tuple[Any, ...]:
    """Inputs at their largest shape.

    Raises:
        Unsupported: if memory is too short for that of a range.
    """
    try:
        return example_feed(model, case, precision)
    except Exception as error:
        if not is_short_of_memory(error) or not any(spec.dynamic for spec in model.inputs):
            raise
        raise Unsupported(
            f"'{model.name}' cannot be exported to ONNX: memory is too short for its largest inputs.",
            hint="a smaller most of the range, or of the profiles",
        ) from error


def _export(model: Model, feed: tuple[Any, ...], precision: str, path: Path, preparation: Preparation) -> None:
    import torch

    module: Any = model.module

    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    names = [spec.name for spec in model.inputs]
    with warnings.catch_warnings(), torch.no_grad(), any_names():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # of the exporter's own use of its libraries
        warnings.filterwarnings("ignore", category=FutureWarning)
        try:
            torch.onnx.export(
                module, feed, path, input_names=names, dynamo=True, external_data=size > EMBED_LIMIT, verbose=False,
                dynamic_shapes=export_dimensions(module, model.inputs),
            )  # fmt: skip
            if precision == "bf16":
                lower_folded_weights(path)
            preparation.facts["onnx_exporter"] = "torch.export"
            return
        except Exception as error:  # whatever the exporter stumbles over, the other one may do
            first = error
        try:
            warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # the record warns of just that
            flat = flat_outputs(module)  # this one knows fewer types of outputs
            axes = {spec.name: free_sizes(spec) for spec in model.inputs}
            torch.onnx.export(flat, feed, path, input_names=names, dynamo=False, verbose=False, dynamic_axes=axes)
        except Exception as error:
            raise Unsupported(
                f"'{model.name}' cannot be exported to ONNX: {reason(first)} (tracing: {first_lines(error, 1)})"
            ) from first
    preparation.facts["onnx_exporter"] = "TorchScript"
    preparation.warn(
        "export-fallback",
        f"The torch.export-based ONNX exporter failed ({reason(first)}); the older, tracing one was used.",
        "Its nodes have no module paths, and control flow is fixed to what this input took.",
    )
