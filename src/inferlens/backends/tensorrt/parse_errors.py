"""What TensorRT's ONNX parser could not take, as one message: the node, its operator, its module, what to try."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inferlens.backends.availability import found
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.log import condensed
from inferlens.errors import Unsupported
from inferlens.units import plural

SCOPES = "pkg.torch.onnx.name_scopes"  # where the exporter of PyTorch keeps the module's path
UNREADABLE = ("MODEL_DESERIALIZE_FAILED", "DESERIALIZE", "ParseFromCodedStream")
MISSING = "is not supported"
CURE = "another operator in the model, a plugin (option plugins), or --backend onnxruntime:cuda"


def refusal(path: Path, parser: Any, flavour: Flavour, errors: list[str]) -> Unsupported:
    """The error for a file that the parser refused; ``errors`` are the logger's."""
    told = [parser.get_error(index) for index in range(parser.num_errors)]
    if not told or any(word in error.desc() for error in told for word in UNREADABLE):
        reason = "" if told else f": {condensed(errors)}"
        return Unsupported(
            f"{flavour.name} cannot read {path}: it is no ONNX file, or cut short or damaged{reason}.",
            cure="export it again",
        )
    first, graph = told[0], _graph(path)
    where = _node(first, graph)
    more = sorted({error.node_operator() for error in told if error.node_operator()} - {first.node_operator()})
    others = f" Nor can it take {plural(len(more), 'more operator')}: {', '.join(more)}." if more else ""
    return Unsupported(f"{flavour.title} cannot take {where}: {_reason(first)}.{others}", cure=CURE)


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


def _node(error: Any, graph: Any) -> str:
    operator, name = error.node_operator(), error.node_name()
    if not operator and not name:
        return f"the input '{error.file()}'" if "importInput" in error.func() else "the graph"
    node = next((each for each in _nodes(graph) if each.name == name and each.op_type == operator), None)
    domain = f"{node.domain}::" if node is not None and node.domain not in ("", "ai.onnx") else ""
    module = module_of(node) if node is not None else ""
    return f"the ONNX node '{name}' ({domain}{operator}{f', in the module {module}' if module else ''})"


def _nodes(graph: Any) -> Iterator[Any]:
    """Nodes of a graph and of the graphs and functions inside it."""
    if graph is None:
        return
    pending = [graph.graph, *graph.functions]
    while pending:
        for node in pending.pop().node:
            yield node
            pending += [attribute.g for attribute in node.attribute if attribute.g.node]


def _reason(error: Any) -> str:
    text = condensed([error.desc()]).rstrip(".")
    operator = error.node_operator()
    if text == "false" or (operator and text == f"Op type {operator} is not supported in TensorRT-RTX"):
        return "it has no such operator"
    if "convertDtype" in text:
        return "it has no such data type"
    return text.removeprefix(f"Invalid Node - {error.node_name()}").strip()


def _graph(path: Path) -> Any:
    """The graph, weights in other files left there; ``None`` if it cannot be read, for this is only to say more."""
    if not found("onnx"):
        return None
    import onnx

    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception:
        return None
