"""What the calls of a quantized graph came from: its products, by way of Dynamo's graph.

Inductor makes one call of a product, what follows it and the quantizing of that, and knows the last alone. Every node
has the name of the one in Dynamo's graph that it came from; there the product lies before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inferlens.backends.torch_compile.quantize import PRODUCTS

MOST = 16  # nodes between a product and what its outcome is quantized by


def target_of(node: Any) -> str:
    """The name of what a node calls, without namespace and overload."""
    return str(getattr(node.target, "_opname", "") or getattr(node.target, "__name__", node.target))


def is_conversion(operator: str) -> bool:
    """Whether an operator quantizes or dequantizes."""
    return operator.rpartition("::")[2].startswith(("quantize_", "dequantize_"))


class QuantizedNodes:
    """The nodes of Dynamo's graph; each product is that of one call."""

    def __init__(self, nodes: Iterable[Any]) -> None:
        self._named = {node.name: node for node in nodes}
        self._taken: set[Any] = set()

    def sources(self, node: Any, extern: bool) -> list[Any]:
        """Those that a node of Inductor's came from, if it quantizes: of a library's call all; else itself."""
        first = next((each.name for each in node.meta.get("from_node") or () if each.name in self._named), "")
        given = self._named.get(first)
        if given is None or not (is_conversion(target_of(given)) or target_of(node).startswith(("qconv", "qlinear"))):
            return [node]
        if not extern:
            return [given]
        found = self._from_product(given, MOST)
        self._taken.update(each for each in found if target_of(each) in PRODUCTS)
        return found or [each for each in given.all_input_nodes if each.op == "call_function"] or [given]

    def _from_product(self, node: Any, left: int) -> list[Any]:
        """What lies between a product that no call was found for yet and a node, both with it."""
        if target_of(node) in PRODUCTS:
            return [] if node in self._taken else [node]
        if not left or target_of(node).startswith("dequantize_"):
            return []
        found = [each for source in node.all_input_nodes for each in self._from_product(source, left - 1)]
        own = [] if is_conversion(target_of(node)) else [node]
        return list(dict.fromkeys([*found, *own])) if found else []
