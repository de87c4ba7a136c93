"""Operators of a lowered graph, and why PyTorch runs those that it runs."""

from __future__ import annotations

import re
from operator import getitem
from typing import Any

from inferlens.record.partition import Operator, Why

CALLS = ("call_function", "call_method", "call_module")


class WhyPyTorch:
    """Why a node runs in PyTorch; asks the library's converters as its partitioner does."""

    def __init__(self, executed: Any) -> None:
        """``executed`` are the operators that PyTorch runs in any case: targets, or their full names."""
        from torch_tensorrt.dynamo.partitioning._adjacency_partitioner import OpSupportTester

        self._executed = executed
        self._support = OpSupportTester(torch_executed_ops=executed)

    def __call__(self, node: Any) -> tuple[Why, str]:
        """The reason, and the same in words where there is more to say."""
        from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS

        if node.target in self._executed or full_name(node) in self._executed:
            return "forced", "named in torch_executed_ops"
        source = node.all_input_nodes[0] if node.target is getitem and node.all_input_nodes else None
        if source is not None and source.op in CALLS:  # one of several results runs where they are made
            reason, detail = self(source)
            if reason != "block too small":
                return reason, f"a result of {short_name(source)}: {detail}"
        if self._support.is_node_supported({}, node):
            return "block too small", ""
        if node.target not in DYNAMO_CONVERTERS:
            return "unsupported", "no converter"
        if any(dtype.is_complex for dtype in map(_dtype, (node, *node.all_input_nodes)) if dtype is not None):
            return "unsupported", "complex numbers"
        return "unsupported", "its converter does not take these arguments"


def operator_of(node: Any, why: WhyPyTorch | None) -> Operator:
    """The operator of a node; ``why`` says why PyTorch runs it, if PyTorch does."""
    reason, detail = why(node) if why else ("", "")
    return Operator(short_name(node), module_path(node), reason, detail)


def full_name(node: Any) -> str:
    """``torch.ops.aten.relu.default``."""
    from torch.fx.node import _get_qualified_name

    return node.target if isinstance(node.target, str) else str(_get_qualified_name(node.target))


def short_name(node: Any) -> str:
    """``aten.relu.default``, ``getitem``."""
    return full_name(node).removeprefix("torch.ops.").removeprefix("_operator.")


def module_path(node: Any) -> str | None:
    """Path of the ``nn.Module`` a node came from, such as ``layer1.0.conv1``; ``None`` where nothing tells."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values() if isinstance(entry, tuple)]
    return clean_path(paths[-1]) if paths else None


def clean_path(path: str) -> str:
    """A module's path as ``named_modules`` has it.

    Dynamo writes ``L['self']._modules['layer1']._modules['0']``, or ``L__self___layer1``, for ``layer1.0``.
    """
    path = re.sub(r"(?:\._modules)?\[['\"]([^'\"]+)['\"]\]", r".\1", path)
    return re.sub(r"^(L\.)?(fn|self)(\.|$)|^L\.", "", path).strip(".")


def _dtype(node: Any) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)
