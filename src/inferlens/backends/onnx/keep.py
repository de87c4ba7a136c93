"""Which nodes of an ONNX graph are the layers that a case does not quantize."""

from __future__ import annotations

from pathlib import Path

from inferlens.backends.onnx.modules import OnnxNode, origins
from inferlens.spec.case import Case
from inferlens.spec.keep import kept, unknown_layer


def kept_nodes(path: Path, case: Case) -> tuple[str, ...]:
    """Names of the nodes of the graph in ``path`` that ``case`` keeps, in order. Raises Unsupported for no layer's."""
    if not case.keep:
        return ()
    nodes = origins(path).nodes
    names = [node.name for node in nodes]
    known = dict.fromkeys([*(module for node in nodes for module in node.modules), *names])
    found: set[str] = set()
    for layer in kept(case):
        named = [node.name for node in nodes if is_in(node, layer)]
        if not named:
            raise unknown_layer(layer, known)
        found.update(named)
    return tuple(name for name in names if name in found)


def is_in(node: OnnxNode, layer: str) -> bool:
    """Whether ``layer`` names the node, its module, or one around it."""
    return node.name == layer or any(f"{module}.".startswith(f"{layer}.") for module in node.modules)
