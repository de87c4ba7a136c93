"""The first step of a build: an ONNX file parsed into a network of TensorRT's. Needs no GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferlens.backends.onnx.modules import scopes_of
from inferlens.backends.tensorrt.flavours import Flavour, condensed, log
from inferlens.errors import Unsupported, one_line
from inferlens.spec.case import TensorSpec

# Names of TensorRT's types (trt.DataType), as we and NumPy call them.
DTYPES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "BOOL": "bool", "FP8": "float8", "FP4": "float4", "INT4": "int4", "E8M0": "e8m0",
}  # fmt: skip
UNREADABLE = ("ParseFromCodedStream", "Failed to parse the ONNX model")
# The last is of operators that its parser hands to a plugin which the library does not have.
NO_OPERATOR = re.compile(
    r"^false$|^Op type \S+ is not supported|No importer registered for op|Plugin not found"
    r"|getPluginCreatorVersion\(creator\)"
)


@dataclass
class Network:
    """A parsed network, and what must live as long as it does; ``weakly_typed``: the builder may lower precisions."""

    flavour: Flavour
    log: Any
    builder: Any
    definition: Any
    parser: Any
    weakly_typed: bool = False

    @property
    def tensors(self) -> list[Any]:
        """The library's own input tensors, in order."""
        return [self.definition.get_input(index) for index in range(self.definition.num_inputs)]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs in order; a size that is free is -1."""
        return tuple(map(_spec, self.tensors))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs in order; a size that depends on the inputs' is -1."""
        return tuple(_spec(self.definition.get_output(index)) for index in range(self.definition.num_outputs))

    @property
    def layers(self) -> int:
        """Number of layers before the builder fuses them."""
        return int(self.definition.num_layers)


def network(path: Path, flavour: Flavour, *, weakly_typed: bool = False) -> Network:
    """The network of an ONNX file; ``Unsupported`` names what cannot be read, or the node that cannot be run."""
    if weakly_typed and flavour.strongly_typed_only:
        raise Unsupported(
            f"Networks of {flavour.title} are strongly typed: precisions are those of the graph.",
            hint="no weakly_typed; --precision fp16 exports the graph in fp16",
        )
    trt, heard = flavour.module, log(flavour)
    builder = trt.Builder(heard)
    if builder is None:
        raise Unsupported(f"{flavour.title} does not start: {condensed(heard.errors)}")
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    definition = builder.create_network(0 if weakly_typed or typed is None else 1 << int(typed))
    parser = trt.OnnxParser(definition, heard)
    if not parser.parse_from_file(str(path)):
        raise _refusal(path, parser, flavour)
    if not definition.num_layers or not definition.num_outputs:  # the parser takes an empty file for an empty graph
        raise Unsupported(f"{path} is no ONNX graph, or an empty one.", expected="an ONNX file with nodes and outputs")
    return Network(flavour, heard, builder, definition, parser, weakly_typed)


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(str(tensor.name), tuple(int(size) for size in tensor.shape), DTYPES[tensor.dtype.name])


def _refusal(path: Path, parser: Any, flavour: Flavour) -> Unsupported:
    """The error for a file that the parser refused: the first node, its operator, its module, the reason."""
    try:
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        found = [(each.desc().strip(), each.node_name(), each.node_operator()) for each in errors]
    except UnicodeDecodeError:  # names that are no text
        found = []
    if not found or any(words in text for text, *_ in found for words in UNREADABLE):
        return Unsupported(
            f"{flavour.name} cannot read {path}: it is no ONNX file, or cut short or damaged.", hint="export it again"
        )
    text, name, operator = found[0]
    said = condensed([text.replace(f"Invalid Node - {name}", "", 1)], "the parser gives no reason")
    reason = "it has no such operator" if NO_OPERATOR.search(text) else said
    module = _module_of(path, name)
    where = f"the ONNX node '{name}' ({operator}{f', in the module {module}' if module else ''})"
    return Unsupported(
        one_line(f"{flavour.title} cannot take {where if operator else 'the graph'}: {reason}."),
        hint="another operator in the model, a plugin (option plugins), or --backend onnxruntime:cuda",
    )


def _module_of(path: Path, name: str) -> str:
    """The path of the ``nn.Module`` that a node came from; empty where the file does not say."""
    try:
        import onnx

        nodes = onnx.load(str(path), load_external_data=False).graph.node
    except Exception:  # this only adds to a message
        return ""
    scopes = next((scopes_of(node) for node in nodes if node.name == name), [])
    return scopes[-2] if len(scopes) > 1 else ""
