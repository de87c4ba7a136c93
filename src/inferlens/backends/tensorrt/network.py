"""The first step of a build: an ONNX file parsed into a network of TensorRT's. Needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt import log
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.parse_errors import refusal
from inferlens.errors import InferlensError, Unsupported
from inferlens.models.sources.files import broken_file
from inferlens.spec.case import TensorSpec

# Names of TensorRT's types (trt.DataType), as we and NumPy call them.
DTYPES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "BOOL": "bool", "FP8": "float8", "FP4": "float4", "INT4": "int4", "E8M0": "e8m0",
}  # fmt: skip


@dataclass
class Network:
    """A parsed network and what must live as long as it does.

    Attributes:
        flavour: the flavour it belongs to.
        log: the logger of its builder; keeps the errors.
        builder, definition: TensorRT's ``Builder`` and ``INetworkDefinition``.
        parser: keeps the weights that the definition points to.
        weakly_typed: whether the builder may lower precisions.
    """

    flavour: Flavour
    log: log.Log
    builder: Any
    definition: Any
    parser: Any
    weakly_typed: bool = False

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs in order; a size that is free is -1."""
        return tuple(_spec(self.definition.get_input(index)) for index in range(self.definition.num_inputs))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs in order; a size that depends on the inputs' is -1."""
        return tuple(_spec(self.definition.get_output(index)) for index in range(self.definition.num_outputs))

    @property
    def layers(self) -> int:
        """Number of layers before the builder fuses them."""
        return int(self.definition.num_layers)


def network(path: Path, flavour: Flavour, *, weakly_typed: bool = False) -> Network:
    """The network of an ONNX file, strongly typed unless ``weakly_typed``.

    Raises:
        InferlensError: if there is no such file.
        Unsupported: if the file cannot be read, or has a node that the flavour cannot run; the message names it.
    """
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise InferlensError(f"The file {path} {problem}.", expected="an ONNX file", hint="the path of a .onnx file")
    if weakly_typed and flavour.strongly_typed_only:
        raise Unsupported(
            f"Networks of {flavour.title} are strongly typed: precisions are those of the graph.",
            hint="no weakly_typed; --precision fp16 exports the graph in fp16",
        )
    trt, heard = flavour.module, log.log(flavour)
    builder = trt.Builder(heard)
    if builder is None:
        raise Unsupported(f"{flavour.title} does not start: {log.condensed(heard.errors)}")
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    definition = builder.create_network(0 if weakly_typed or typed is None else 1 << int(typed))
    parser = trt.OnnxParser(definition, heard)
    if not parser.parse_from_file(str(path)):
        raise refusal(path, parser, flavour)
    if not definition.num_layers or not definition.num_outputs:  # the parser takes an empty file for an empty graph
        raise Unsupported(f"{path} is no ONNX graph, or an empty one.", expected="an ONNX file with nodes and outputs")
    return Network(flavour, heard, builder, definition, parser, weakly_typed)


def warn_of_float64(path: Path, flavour: Flavour, preparation: Preparation) -> None:
    """Says of an ONNX file with inputs or outputs of float64 that it is computed in fp32: TensorRT has no float64."""
    import onnx

    with broken_file(path):
        graph = onnx.load(str(path), load_external_data=False).graph
    if any(value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for value in (*graph.input, *graph.output)):
        preparation.warn(
            "no-effect",
            f"The float64 of {path.name} does nothing: {flavour.name} takes and computes all of it in fp32.",
            "Compare it with the others' fp32, or take --backend onnxruntime:cpu, which computes in float64.",
        )


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(str(tensor.name), tuple(int(size) for size in tensor.shape), DTYPES[tensor.dtype.name])
