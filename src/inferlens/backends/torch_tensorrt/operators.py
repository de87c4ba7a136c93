"""Operators of a lowered or compiled graph: who runs them, why PyTorch, and from which modules they came.

The library asks how much of a graph is supported and then has it partitioned. Both functions are wrapped while it
compiles; what went in and what came out is noted. So a partition is the one that was built, whichever front end and
version. That of what is compiled already is read from its graph: which operators went into an engine is not known then,
so neither is how many there were. The TorchScript front end gives one such: its partitioner is in C++ and says nothing.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import getitem
from typing import Any

from msgspec.structs import replace

from inferlens.backends.availability import first_lines
from inferlens.backends.torch_tensorrt.engines import OWNERS
from inferlens.backends.torch_tensorrt.library import replaced
from inferlens.record.partition import (
    Operator,
    Partition,
    Segment,
    Side,
    Why,
    choices_of,
    merged,
    partition_of,
    reaches_of,
)

CALLS = ("call_function", "call_method", "call_module")
STACK = "nn_module_stack"
ACCELERATED = "_run_on_acc"  # begins the names of submodules that become engines
EXECUTES = re.compile(r"^tensorrt\b.*execute_engine")  # operators that run engines
SCOPE = "__module."
OF_SCRIPT = "The TorchScript front end does not say which operators went into an engine, nor why others did not."
OF_FILE = "A compiled module does not say which operators went into an engine, nor why others did not."


class Lowered:
    """One lowered graph: how it was partitioned, and how it would be with another ``min_block_size``.

    The graph is kept without its weights, which would otherwise stay on the GPU.
    """

    def __init__(self, graph_module: Any, executed: Any, supported: int, total: int) -> None:
        self._module = weightless(graph_module)
        self._why = WhyPyTorch(executed)
        self._partition: Callable[..., Any] | None = None
        self._executed = executed
        self._all_supported = supported == total
        self._segments: tuple[Segment, ...] | None = None

    def partitioned(self, partition: Callable[..., Any], arguments: dict[str, Any], result: Any) -> None:
        """Notes a call of the library's ``partition`` and its result."""
        rest = {name: value for name, value in arguments.items() if name != "min_block_size"}
        self._partition = partial(partition, **{**rest, "require_full_compilation": False})
        self._segments = self._read(result)

    def segments(self, graph: int) -> tuple[Segment, ...]:
        """As partitioned; a graph that was passed over as too small runs in PyTorch, whole."""
        found = self._segments
        if found is None:
            found = merged([Segment("PyTorch", self._operators(self._module.graph.nodes, "PyTorch"))])
        return tuple(Segment(each.runs_in, each.operators, graph) for each in found)

    def at(self, min_block_size: int, graph: int) -> tuple[Segment, ...]:
        """The segments that another ``min_block_size`` gives; none of a graph without operators."""
        if not any(node.op in CALLS for node in self._module.graph.nodes):
            return ()
        import torch
        from torch_tensorrt.dynamo import partitioning

        partition = self._partition or partial(
            partitioning.fast_partition,
            torch_executed_ops=self._executed,
            require_full_compilation=False,
            skip_fusion=self._all_supported,
        )
        clone = torch.fx.GraphModule(self._module, copy.deepcopy(self._module.graph))  # partitioning changes it
        found = self._read(partition(clone, min_block_size=min_block_size)[0])
        return tuple(Segment(each.runs_in, each.operators, graph) for each in found)

    def _read(self, partitioned: Any) -> tuple[Segment, ...]:
        """Segments of a partitioned module: its submodules, and, from the global partitioner, nodes between them."""
        parts = []
        for node in partitioned.graph.nodes:
            if node.op != "call_module":  # those that unpack a submodule's outputs were not in the graph before
                own = not any(each.op == "call_module" for each in node.all_input_nodes) or node.target is not getitem
                parts.append(Segment("PyTorch", self._operators([node] if own else [], "PyTorch")))
                continue
            side: Side = "TensorRT" if ACCELERATED in str(node.target) else "PyTorch"
            inner = partitioned.get_submodule(node.target)
            parts.append(Segment(side, self._operators(inner.graph.nodes, side)))
        return merged(parts)

    def _operators(self, nodes: Any, side: Side) -> tuple[Operator, ...]:
        why: Callable[[Any], tuple[Why, str]] = self._why if side == "PyTorch" else lambda _: ("", "")
        return tuple(Operator(short_name(node), module_path(node), *why(node)) for node in nodes if node.op in CALLS)


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
        return "unsupported", "its converter does not take these arguments"


@contextmanager
def watching() -> Iterator[list[Lowered]]:
    """The graphs that are partitioned meanwhile, in order."""
    from torch_tensorrt.dynamo import partitioning

    graphs: list[Lowered] = []
    asks = partitioning.get_graph_converter_support

    def asked(graph_module: Any, torch_executed_ops: Any = None) -> Any:
        supported, total = asks(graph_module, torch_executed_ops)
        graphs.append(Lowered(graph_module, torch_executed_ops or set(), supported, total))
        return supported, total

    def done(partition: Callable[..., Any], graph_module: Any, *positional: Any, **arguments: Any) -> Any:
        result = partition(graph_module, *positional, **arguments)
        if graphs:
            graphs[-1].partitioned(partition, arguments, result[0])
        return result

    watched = {name: partial(done, getattr(partitioning, name)) for name in ("fast_partition", "global_partition")}
    with replaced(partitioning, get_graph_converter_support=asked, **watched):
        yield graphs


def segments_of(graphs: Sequence[Lowered]) -> tuple[Segment, ...]:
    """Segments of all graphs, in order."""
    return tuple(segment for number, graph in enumerate(graphs) for segment in graph.segments(number))


def ways_of(graphs: Sequence[Lowered], own: int) -> dict[str, Any]:
    """What other values of ``min_block_size`` than ``own`` give, each found by the library's partitioner.

    Fields of a partition: ``choices``, of some values, and ``ways``; or the ``note`` why nothing is known.
    """

    def evaluate(min_block_size: int) -> list[Segment]:
        return [part for number, graph in enumerate(graphs) for part in graph.at(min_block_size, number)]

    try:
        sizes = [len(each.operators) for each in evaluate(1) if each.runs_in == "TensorRT"]
        reaches = reaches_of(sizes, own)
        return {"choices": choices_of(reaches, own, evaluate), "ways": len(reaches)}
    except Exception as error:  # the partitioner raises nearly every type there is, and the partition is there already
        reason = f"{type(error).__name__}: {first_lines(error)}"
        return {"note": f"What other values of min_block_size give is not known: {reason}."}


def weightless(graph_module: Any) -> Any:
    """A copy of a graph whose weights have a shape and a type but no values."""
    import torch

    graph = copy.deepcopy(graph_module.graph)
    root: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value = graph_module
            for name in str(node.target).split("."):
                value = getattr(value, name)
            root[str(node.target)] = value.to("meta") if isinstance(value, torch.Tensor) else value
    return torch.fx.GraphModule(root, graph)


def compiled_partition(
    compiled: Any, note: str, *, forced: Collection[str] = (), wrapped: str = "", **known: Any
) -> Partition | None:
    """The partition of a compiled module, from its graph; ``None`` if it has none that can be read.

    Args:
        compiled: a graph module, or the inlined graph of a script module.
        note: what is not known.
        forced: operators that PyTorch was to run in any case, such as ``aten::relu``.
        wrapped: the path of the model in what was traced, if that is not the model itself.
        known: the other fields of a partition.
    """
    import torch

    if isinstance(compiled, torch.jit.ScriptModule):
        compiled = compiled.inlined_graph
    if isinstance(compiled, torch.fx.GraphModule):
        parts = list(_graph_parts(compiled))
    elif isinstance(compiled, torch.Graph):
        parts = [_script_part(node, forced, wrapped) for node in _script_nodes(compiled)]
    else:
        return None
    segments = tuple(Segment("TensorRT", ()) if each.runs_in == "TensorRT" else each for each in merged(parts))
    found = partition_of(segments, note=note, **known)
    if not found.engines:
        return found
    return replace(found, operators=None, in_tensorrt=None, engines=(None,) * len(found.engines))


def _script_part(node: Any, forced: Collection[str], wrapped: str) -> Segment:
    name, scope = node.kind(), str(node.scopeName())
    if EXECUTES.search(name):
        return Segment("TensorRT", (Operator(name),))
    inner = f"{scope.rpartition('/')[2]}."
    around = f"{wrapped}." if wrapped else ""
    module = clean_path(inner.removeprefix(SCOPE).removeprefix(around)) if inner.startswith(SCOPE) else None
    why: tuple[Why, str] = ("forced", "named in torch_executed_ops") if name in forced else ("", "")
    return Segment("PyTorch", (Operator(name.replace("::", "."), module, *why),))


def _script_nodes(graph: Any) -> Iterator[Any]:
    """Engines and operators of a TorchScript graph, blocks within it included; what only packs values is left out."""
    for node in graph.nodes():
        if EXECUTES.search(node.kind()) or node.kind().startswith("aten::"):
            yield node
        for block in node.blocks():
            yield from _script_nodes(block)


def _graph_parts(module: Any) -> Iterator[Segment]:
    """Engines and operators of a graph module, those of the submodules that it calls included."""
    import torch

    for node in module.graph.nodes:
        if node.op not in CALLS:
            continue
        inner = module.get_submodule(node.target) if node.op == "call_module" else None
        name = short_name(node) if inner is None else type(inner).__name__
        if name in OWNERS or EXECUTES.search(name):
            yield Segment("TensorRT", (Operator(name),))
        elif isinstance(getattr(inner, "graph", None), torch.fx.Graph):
            yield from _graph_parts(inner)
        elif name.startswith("aten."):  # what else there is only packs values
            yield Segment("PyTorch", (Operator(name, module_path(node)),))


def full_name(node: Any) -> str:
    """``torch.ops.aten.relu.default``."""
    from torch.fx.node import _get_qualified_name

    return node.target if isinstance(node.target, str) else str(_get_qualified_name(node.target))


def short_name(node: Any) -> str:
    """``aten.relu.default``, ``getitem``."""
    return full_name(node).removeprefix("torch.ops.").removeprefix("_operator.")


def module_path(node: Any) -> str | None:
    """Path of the ``nn.Module`` a node came from, such as ``layer1.0.conv1``; ``None`` where it is not known."""
    stack = node.meta.get(STACK) or {}
    paths = [str(entry[0]) for entry in stack.values() if isinstance(entry, tuple)]
    return clean_path(paths[-1]) if paths else None


def clean_path(path: str) -> str:
    """A module's path as ``named_modules`` has it.

    Dynamo writes ``L['self']._modules['layer1']._modules['0']``, or ``L__self___layer1``, for ``layer1.0``.
    """
    path = re.sub(r"(?:\._modules)?\[['\"]([^'\"]+)['\"]\]", r".\1", path)
    return re.sub(r"^(L\.)?(fn|self)(\.|$)|^L\.", "", path).strip(".")
