"""From the names in an ONNX graph to the paths of the modules that its nodes came from.

PyTorch's exporter, the one built on ``torch.export``, writes into each node the scopes that it came from, as
``pkg.torch.onnx.name_scopes``: ``['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d_1']``, of which the last is the
operator and the one before it the module that called it. Where it folds a batch norm into the convolution before it,
the node keeps the scope of the batch norm and the weight that of the convolution; both are named then.

Runtimes rewrite the graph. What one of their nodes came from is found through the tensors that stayed: everything
between those that it reads and the one that it writes (:meth:`Origins.between`).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

SCOPES = "pkg.torch.onnx.name_scopes"
NO_SCOPES = (
    f"the ONNX file has no module paths ('{SCOPES}' in its nodes' metadata). They are there if it is exported with "
    "torch.onnx.export(..., dynamo=True), or if the PyTorch model itself is given."
)
NO_ONNX = "the module paths in an ONNX file are read with the package onnx: pip install 'inferlens[onnx]'"
WEIGHTED = ("Conv", "ConvTranspose", "Gemm")  # what a batch norm is folded into
VALUES = ("Constant",)  # nodes that do nothing at run time


class OnnxNode(Struct, frozen=True):
    """A node of an ONNX graph, and the paths of the modules that it came from."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    modules: tuple[str, ...] = ()


class OnnxNodes:
    """The nodes of a graph as it was given, by their place in it, their names and what they write."""

    def __init__(self, nodes: Iterable[OnnxNode], absent: str = "") -> None:
        self.nodes = tuple(nodes)
        self.absent = absent or ("" if any(node.modules for node in self.nodes) else NO_SCOPES)
        self.by_name = {node.name: node for node in self.nodes if node.name}
        self.by_output = {name: node for node in self.nodes for name in node.outputs}
        self._place = {node.outputs: place for place, node in enumerate(self.nodes)}

    def in_order(self, nodes: Iterable[OnnxNode]) -> list[OnnxNode]:
        """Each of ``nodes`` once, in the order of the graph, without those that are only values."""
        places = {self._place[node.outputs] for node in nodes if node.kind not in VALUES}
        return [self.nodes[place] for place in sorted(places)]

    def between(self, outputs: Iterable[str], stops: set[str]) -> list[OnnxNode]:
        """The nodes that ``outputs`` are computed by, from the tensors in ``stops`` and the graph's own inputs on."""
        found: dict[tuple[str, ...], OnnxNode] = {}
        open_ = list(outputs)
        while open_:
            node = self.by_output.get(open_.pop())
            if node is not None and node.outputs not in found:
                found[node.outputs] = node
                open_ += [name for name in node.inputs if name not in stops]
        return self.in_order(found.values())


def origins(path: Path) -> OnnxNodes:
    """The nodes of an ONNX file, without its weights."""
    try:
        import onnx
    except ImportError:
        return OnnxNodes((), NO_ONNX)
    graph = onnx.load(str(path), load_external_data=False).graph
    uses = Counter(name for node in graph.node for name in set(node.input))
    return OnnxNodes(
        OnnxNode(node.name, node.op_type, tuple(node.input), tuple(node.output), modules_of(node, uses))
        for node in graph.node
        if any(node.output)
    )


def modules_of(node: Any, uses: Counter[str]) -> tuple[str, ...]:
    """Paths of the modules that an ONNX node came from, by its metadata; ``uses`` counts the readers of each tensor."""
    scopes = scopes_of(node)
    if not scopes:
        return ()
    module = scopes[-2] if len(scopes) > 1 else ""
    folded = node.op_type in WEIGHTED and "batch_norm" in scopes[-1] and len(node.input) > 1
    if folded and uses[node.input[1]] == 1 and "." in node.input[1]:
        return tuple(dict.fromkeys((node.input[1].rpartition(".")[0], module)))
    return (module,)


def scopes_of(node: Any) -> list[str]:
    """The scopes that the exporter wrote into a node, as a list in Python's notation; none if it wrote none."""
    written = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    try:
        scopes = ast.literal_eval(written) if written else []
    except (SyntaxError, ValueError):
        return []
    return [str(scope) for scope in scopes] if isinstance(scopes, list) else []


def modules_among(nodes: Iterable[OnnxNode]) -> tuple[str, ...]:
    """The modules of some nodes, each once, in their order."""
    return tuple(dict.fromkeys(module for node in nodes for module in node.modules))


def operators_among(nodes: Iterable[OnnxNode]) -> tuple[str, ...]:
    """The operators of some nodes, in their order."""
    return tuple(node.kind for node in nodes)
