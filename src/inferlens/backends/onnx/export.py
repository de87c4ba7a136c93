"""From a PyTorch module to an ONNX file in the case's folder; and whether a file that is there fits the case.

The exporter built on ``torch.export`` comes first: it keeps every node's module path. Where it fails, the older one,
which traces, gets a try, and the record says so. Models that already are ONNX files are used as they are.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from inferlens.backends.availability import quiet
from inferlens.backends.base import Preparation
from inferlens.backends.pytorch.export import cast, example_feed, export_dimensions, flat_outputs, free_sizes
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.models.sources.onnx import onnx_file_precision, onnx_graph, weight_files
from inferlens.reasons import reason
from inferlens.record.files import exclusive
from inferlens.spec.case import Case, TensorSpec

EMBED_LIMIT = 1_500_000_000  # bytes of weights in one ONNX file, which holds less than 2 GiB; else they are beside it


def onnx_file(model: Model, case: Case, preparation: Preparation, precision: str) -> Path:
    """The model as an ONNX file with weights and float inputs in ``precision``; an artefact if it was made here."""
    if model.path is not None and model.format == "onnx":
        return model.path
    path = preparation.folder / "model.onnx"
    if preparation.exported and (preparation.exported / path.name).exists():
        with preparation.phase("export") as noted:
            noted.note = "cached"
        return preparation.exported / path.name
    if model.module is None:
        raise Unsupported(f"'{model.spec}' is neither a PyTorch module nor an ONNX file.")
    if model.format == "torchscript":
        raise Unsupported(
            f"'{model.spec}' is TorchScript, which cannot be exported to ONNX.", hint="the model that it was made from"
        )
    with exclusive(preparation.export_by) if preparation.export_by else nullcontext() as shared:
        if shared and (made := Path(shared.read())).is_file():
            with preparation.phase("export") as noted:
                noted.note = "shared"
            return made
        with preparation.phase("export"):
            preparation.folder.mkdir(parents=True, exist_ok=True)
            cast(model.module, precision)
            _export(model, example_feed(model, case, precision), precision, path, preparation)
        if shared:
            shared.write(str(path))
    for written in sorted(preparation.folder.glob("model.onnx*")):
        preparation.keep(written, "onnx" if written == path else "onnx weights")
    return path


def copy_onnx(source: Path, path: Path) -> None:
    """Copies an ONNX file; weights in files beside it are put into one, with its own name and ``.data`` after it."""
    import onnx

    if weight_files(source, onnx_graph(source)):
        onnx.save(onnx.load(str(source)), str(path), save_as_external_data=True, location=f"{path.name}.data")
    else:
        shutil.copyfile(source, path)


def lower_folded_weights(path: Path) -> None:
    """Gives folded convolution weights of a bf16 graph their type back, in place.

    The exporter folds batch norm into convolutions with NumPy, which has no bf16, and leaves fp32 weights behind: a
    graph that no runtime takes.
    """
    import onnx
    import torch

    model = onnx.load(str(path), load_external_data=False)
    folded = [node for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm")]
    mixed = {name for node in folded for name in node.input[1:]}
    stray = [
        item for item in model.graph.initializer if item.name in mixed and item.data_type == onnx.TensorProto.FLOAT
    ]
    for tensor in stray:
        values = torch.from_numpy(onnx.numpy_helper.to_array(tensor, str(path.parent)).copy()).to(torch.bfloat16)
        raw = values.view(torch.int16).numpy().tobytes()
        kind = onnx.TensorProto.BFLOAT16
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=kind, dims=tensor.dims, raw_data=raw))
    names = {tensor.name for tensor in stray}
    names |= {name for node in model.graph.node if names & set(node.input) for name in node.output}
    for value in model.graph.value_info:
        if value.name in names and value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    if stray:
        onnx.save(model, str(path))


def _export(model: Model, feed: tuple[Any, ...], precision: str, path: Path, preparation: Preparation) -> None:
    import torch

    module: Any = model.module
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    names = [spec.name for spec in model.inputs]
    with quiet(), torch.no_grad():
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
                f"'{model.name}' cannot be exported to ONNX: {reason(first)} (tracing: {reason(error)})"
            ) from first
    preparation.facts["onnx_exporter"] = "TorchScript"
    preparation.warn(
        "export-fallback",
        f"The older, tracing ONNX exporter was used, for the newer one failed: {reason(first)}.",
        "Its nodes have no module paths, and control flow is fixed to what this input took.",
    )


def check_precision(path: Path, precision: str) -> None:
    """Refuses to run a file's weights under another precision's name."""
    own = onnx_file_precision(path)
    if own != precision:
        raise Unsupported(
            f"The file {path.name} is in {own}, and it is run as it is.",
            hint=f"--precision {own}, or a file written in {precision}",
        )


def check_outputs(model: Model) -> None:
    """Refuses an ONNX file with an output that is a sequence or a map, for runtimes that give tensors alone."""
    if model.format != "onnx" or model.path is None:
        return
    for value in onnx_graph(model.path).graph.output:
        if (kind := (value.type.WhichOneof("value") or "tensor_type").removesuffix("_type")) not in (
            "tensor",
            "sparse_tensor",
        ):
            raise Unsupported(
                f"The output '{value.name}' is a {kind}, and only tensors are supported here.",
                hint="--backend onnxruntime:cpu, or an export without it, such as options={'zipmap': False}",
            )


def check_shapes(declared: Iterable[tuple[str, Iterable[Any]]], specs: tuple[TensorSpec, ...]) -> None:
    """Refuses a case whose inputs are not those that a graph declares, by name and dimensions.

    Dimensions that are not numbers are free, and so are the inputs of which a graph tells no dimension at all: scalars
    look the same, and were compared when the file was read.
    """
    graph = {name: tuple(shape) for name, shape in declared}
    if set(graph) != {spec.name for spec in specs}:
        given = ", ".join(spec.name for spec in specs)
        raise Unsupported(f"The ONNX graph has the inputs {', '.join(graph)}, the model was described with {given}.")
    for spec in specs:
        own = graph[spec.name]
        sizes = [size if isinstance(fixed, int) else fixed for fixed, size in zip(own, spec.shape, strict=False)]
        if own and (len(own) != len(spec.shape) or list(own) != sizes):
            fixed = "x".join(map(str, own)) or "scalar"
            raise Unsupported(
                f"The ONNX graph was made for {spec.name}={fixed}, not for {spec}.",
                hint="its own batch size, or a file exported with a dynamic batch",
            )
