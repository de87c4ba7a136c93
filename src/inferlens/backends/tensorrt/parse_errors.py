"""What TensorRT's ONNX parser could not take, as one message: the node, its operator, its module, what to try."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferlens.backends.availability import found
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.gpu import current_gpu
from inferlens.backends.tensorrt.log import condensed
from inferlens.errors import Unsupported, one_line
from inferlens.units import plural

SCOPES = "pkg.torch.onnx.name_scopes"  # where the exporter of PyTorch keeps the module's path
UNREADABLE = ("ParseFromCodedStream", "Failed to parse the ONNX model")
# The last is of operators that its parser hands to a plugin which the library does not have.
NO_OPERATOR = re.compile(
    r"^Op type \S+ is not supported|No importer registered for op|Plugin not found|getPluginCreatorVersion\(creator\)"
)
NO_PLUGIN = "plugin was not found in the plugin registry"  # it is there, and cannot be made without a GPU
WITH_GPU = "a machine with a GPU"
OTHERWISE = "another operator in the model, {plugin}or --backend onnxruntime:cuda"


def refusal(path: Path, parser: Any, flavour: Flavour) -> Unsupported:
    """The error for a file that the parser refused."""
    try:
        told = [Told.of(parser.get_error(index)) for index in range(parser.num_errors)]
    except UnicodeDecodeError:  # names that are no text
        told = []
    if not told or any(word in error.text for error in told for word in UNREADABLE):
        return Unsupported(
            f"{flavour.name} cannot read {path}: it is no ONNX file, or cut short or damaged.", hint="export it again"
        )
    first = told[0]
    where = _where(first, _graph(path))
    if NO_PLUGIN in first.text and current_gpu() is None:
        return Unsupported(
            one_line(f"{flavour.title} cannot take {where} here: on a machine with a GPU alone."),
            hint=f"{WITH_GPU}, or --backend onnxruntime:cpu",
        )
    more = sorted({error.operator for error in told if error.operator} - {first.operator})
    others = f" Nor can it take {plural(len(more), 'more operator')}: {', '.join(more)}." if more else ""
    return Unsupported(
        one_line(f"{flavour.title} cannot take {where}: {_reason(first)}.{others}"),
        hint="export it again: the graph contradicts itself"
        if first.invalid and not first.foreign
        else OTHERWISE.format(plugin="a plugin (option plugins), " if takes_plugins(flavour) else ""),
    )


def takes_plugins(flavour: Flavour) -> bool:
    """Whether the parser looks among the plugins for an operator that it does not know.

    That of TensorRT for RTX does not, whose networks have no layer for plugins.
    """
    definition = flavour.module.INetworkDefinition
    return hasattr(definition, "add_plugin_v3") or hasattr(definition, "add_plugin_v2")


@dataclass(frozen=True)
class Told:
    """One error of the parser: its text, the node, the function of the parser and the input it was at."""

    text: str
    name: str
    operator: str
    function: str
    place: str
    invalid: bool

    @property
    def foreign(self) -> bool:
        """Whether TensorRT does not know the operator, which 1.7 for RTX calls an invalid node as well."""
        return self.text.strip() == "false" or bool(NO_OPERATOR.search(self.text))

    @staticmethod
    def of(error: Any) -> Told:
        """From a ``ParserError``."""
        invalid = str(error.code().name).startswith("INVALID")
        return Told(error.desc(), error.node_name(), error.node_operator(), error.func(), error.file(), invalid)


def module_of(node: Any) -> str:
    """The path of the ``nn.Module`` an ONNX node came from, such as ``layer1.0.conv1``; empty if it is not told."""
    properties = {entry.key: entry.value for entry in node.metadata_props}
    try:
        scopes = [str(scope) for scope in ast.literal_eval(properties.get(SCOPES, "[]"))]
    except (ValueError, SyntaxError):
        scopes = []
    if not scopes:  # "layer1: Sequential/layer1.0: BasicBlock/conv2d: aten.conv2d.default"
        scopes = [part.partition(":")[0].strip() for part in properties.get("namespace", "").split("/")]
    return next((scope for scope in reversed(scopes[:-1]) if scope), "")  # the last is the node's own name


def _where(error: Told, graph: Any) -> str:
    if not error.operator and not error.name:
        return f"the input '{error.place}'" if error.function == "importInput" else "the graph"
    node = next((each for each in _nodes(graph) if each.name == error.name and each.op_type == error.operator), None)
    domain = f"{node.domain}::" if node is not None and node.domain not in ("", "ai.onnx") else ""
    module = module_of(node) if node is not None else ""
    within = f", in the module {module}" if module else ""
    return f"the ONNX node '{error.name}' ({domain}{error.operator}{within})"


def _nodes(graph: Any) -> Iterator[Any]:
    """Nodes of a graph and of the graphs and functions inside it."""
    if graph is None:
        return
    pending = [graph.graph, *graph.functions]
    while pending:
        for node in pending.pop().node:
            yield node
            pending += [attribute.g for attribute in node.attribute if attribute.g.node]


def _reason(error: Told) -> str:
    if error.foreign:
        return "it has no such operator"
    if "convertDtype" in error.text:
        return "it has no such data type"
    if "Node input was not registered" in error.text:
        return "one of its inputs comes from nowhere"
    said = error.text.replace(f"Invalid Node - {error.name}", "", 1)  # a line of its own, before the reason
    return condensed([said], "the parser calls it invalid and says no more")


def _graph(path: Path) -> Any:
    """The graph, weights in other files left there; ``None`` if it cannot be read, for this is only to say more."""
    if not found("onnx"):
        return None
    import onnx

    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception:
        return None
