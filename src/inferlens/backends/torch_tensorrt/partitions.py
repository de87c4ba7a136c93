"""Partitions: which operators run in PyTorch and why, the modules they came from, and breaks of Dynamo's graphs.

Both partitioning functions of the library are wrapped while it compiles. A compiled module shows its partition in its
graph, without the number of operators in an engine. Dynamo names modules by their position in the compiled function,
and Torch-TensorRT's lowering drops them; here they become paths of the model and are kept. An uncertain path is
omitted. The computation does not change.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from operator import getitem
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inferlens.backends.torch_tensorrt.library import replace_attributes
from inferlens.errors import LateModule, reason
from inferlens.record.builds import (
    Interruption,
    Operator,
    Partition,
    Segment,
    Side,
    Why,
    choices_of,
    merged,
    partition_of,
)

torch: Any = LateModule("torch")

ENGINE_MODULES = ("TorchTensorRTModule", "PythonTorchTensorRTModule")  # classes of modules with an engine
CALL_NODES = ("call_function", "call_method", "call_module")
STACK = "nn_module_stack"
ENGINE_PREFIX = "_run_on_acc"  # prefix of submodules that become engines
ENGINE_OPERATOR = re.compile(r"\btensorrt\b.*execute_engine")  # operators that run engines
SCOPE = "__module."
COMPILED_NOTE = "The compiled module does not show which operators are in an engine, nor why others are not."
BACKENDS = "torch_tensorrt.dynamo.backend.backends"
EXPORTS = "aot_export_joint_simple"


class LoweredGraph:
    """A lowered graph without its weights: its partition, and those of other ``min_block_size``."""

    def __init__(self, number: int, graph_module: Any, executed: Any, repartition: Callable[..., Any]) -> None:
        """Copy the graph; ``executed`` always run in PyTorch, and ``repartition`` partitions a copy of the graph."""
        from torch_tensorrt.dynamo.partitioning._adjacency_partitioner import OpSupportTester

        self._number = number
        self._module = without_weights(graph_module)
        self._executed = executed
        self._support = OpSupportTester(torch_executed_ops=executed)
        self._repartition = repartition
        self._segments: tuple[Segment, ...] | None = None

    def set_partition(self, result: Any, repartition: Callable[..., Any]) -> None:
        """Keep the result of the library's partitioner, and a function to call it again."""
        self._repartition = repartition
        self._segments = self._segments_of(result)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of the partition; a graph that is too small runs in PyTorch as a whole."""
        if self._segments is None:
            return merged([self._segment(self._module.graph.nodes, "PyTorch")])
        return self._segments

    def segments_at(self, min_block_size: int) -> tuple[Segment, ...]:
        """Return the segments at another ``min_block_size``; none for a graph without operators."""
        if not any(node.op in CALL_NODES for node in self._module.graph.nodes):
            return ()
        clone = torch.fx.GraphModule(self._module, copy.deepcopy(self._module.graph))  # partitioning changes it
        return self._segments_of(self._repartition(clone, min_block_size=min_block_size)[0])

    def pytorch_reason(self, node: Any) -> tuple[Why, str]:
        """Return why PyTorch runs a node, as a code and in words, from the library's converters."""
        from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS

        if node.target in self._executed or full_name(node) in self._executed:
            return "forced", "named in torch_executed_ops"
        source = node.all_input_nodes[0] if node.target is getitem and node.all_input_nodes else None
        if source is not None and source.op in CALL_NODES:  # an item of a result runs where the result is computed
            reason, detail = self.pytorch_reason(source)
            if reason != "block too small":
                return reason, f"a result of {operator_name(source)}: {detail}"
        if self._support.is_node_supported({}, node):
            return "block too small", ""
        converted = node.target in DYNAMO_CONVERTERS
        return "unsupported", "its converter does not take these arguments" if converted else "no converter"

    def _segments_of(self, partitioned: Any) -> tuple[Segment, ...]:
        """Return the submodules of a partitioned module, and the nodes between them, as segments."""
        parts = []
        for node in partitioned.graph.nodes:
            if node.op == "call_module":
                side: Side = "TensorRT" if ENGINE_PREFIX in str(node.target) else "PyTorch"
                parts.append(self._segment(partitioned.get_submodule(node.target).graph.nodes, side))
            elif node.target is not getitem or all(source.op != "call_module" for source in node.all_input_nodes):
                parts.append(self._segment([node], "PyTorch"))  # nodes that unpack a submodule's outputs are new
        return merged(parts)

    def _segment(self, nodes: Any, side: Side) -> Segment:
        why: Callable[[Any], tuple[Why, str]] = self.pytorch_reason if side == "PyTorch" else lambda _: ("", "")
        calls = (node for node in nodes if node.op in CALL_NODES)
        operators = tuple(Operator(operator_name(node), module_path(node), *why(node)) for node in calls)
        return Segment(side, operators, self._number)


@contextmanager
def watch_partitioner() -> Iterator[list[LoweredGraph]]:
    """Yield a list that collects the graphs that are partitioned meanwhile."""
    from torch_tensorrt.dynamo import partitioning

    graphs: list[LoweredGraph] = []
    get_support, fast = partitioning.get_graph_converter_support, partitioning.fast_partition
    partial_compilation = {"require_full_compilation": False}

    def record_graph(graph_module: Any, torch_executed_ops: Any = None) -> Any:
        supported, total = get_support(graph_module, torch_executed_ops)
        executed = torch_executed_ops or set()
        skip_fusion = supported == total
        repartition = partial(fast, torch_executed_ops=executed, skip_fusion=skip_fusion, **partial_compilation)
        graphs.append(LoweredGraph(len(graphs), graph_module, executed, repartition))
        return supported, total

    def record_partition(partition: Callable[..., Any], graph_module: Any, *positional: Any, **arguments: Any) -> Any:
        result = partition(graph_module, *positional, **arguments)
        if graphs:
            graphs[-1].set_partition(result[0], partial(partition, **{**arguments, **partial_compilation}))
        return result

    names = ("fast_partition", "global_partition")
    watched = {name: partial(record_partition, getattr(partitioning, name)) for name in names}
    with replace_attributes(partitioning, get_graph_converter_support=record_graph, **watched):
        yield graphs


def segments_of(graphs: Sequence[LoweredGraph]) -> tuple[Segment, ...]:
    """Return the segments of all graphs, in order."""
    return tuple(segment for graph in graphs for segment in graph.segments)


def partition_choices(graphs: Sequence[LoweredGraph], min_size: int) -> dict[str, Any]:
    """Return ``choices`` and ``ways`` of a partition by the library's partitioner, or a ``note`` with the reason."""

    def evaluate(min_block_size: int) -> list[Segment]:
        return [segment for graph in graphs for segment in graph.segments_at(min_block_size)]

    try:
        sizes = [len(segment.operators) for segment in evaluate(1) if segment.runs_in == "TensorRT"]
        return choices_of(sizes, min_size, evaluate)
    except Exception as error:  # the partitioner raises nearly every type, and the partition itself is complete
        return {"note": f"The partitions of other values of min_block_size are unknown: {reason(error)}."}


def without_weights(graph_module: Any) -> Any:
    """Return a copy of a graph whose weights have a shape and a type but no values."""
    graph = copy.deepcopy(graph_module.graph)
    root: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value = graph_module
            for name in str(node.target).split("."):
                value = getattr(value, name)
            root[str(node.target)] = value.to("meta") if isinstance(value, torch.Tensor) else value
    return torch.fx.GraphModule(root, graph)


# Compiled modules


def compiled_partition(
    compiled: Any, *, forced: Collection[str] = (), wrapped: str = "", **fields: Any
) -> Partition | None:
    """Return the partition in a compiled module's graph; ``None`` if it cannot be read.

    ``forced`` operators always run in PyTorch, and ``wrapped`` is the model's path inside a trace.
    """
    if isinstance(compiled, torch.jit.ScriptModule):
        compiled = compiled.inlined_graph
    if isinstance(compiled, torch.fx.GraphModule):
        parts = list(_graph_parts(compiled))
    elif isinstance(compiled, torch.Graph):
        parts = list(_script_parts(compiled, forced, f"{SCOPE}{wrapped}." if wrapped else SCOPE))
    else:
        return None
    segments = tuple(Segment("TensorRT", ()) if segment.runs_in == "TensorRT" else segment for segment in merged(parts))
    partition = partition_of(segments, note=COMPILED_NOTE, **fields)
    if not partition.engines:
        return partition
    return replace(partition, operators=None, in_tensorrt=None, engines=(None,) * len(partition.engines))


def _script_parts(graph: Any, forced: Collection[str], root: str) -> Iterator[Segment]:
    """Yield engines and operators of a TorchScript graph and its blocks."""
    for node in graph.nodes():
        name = node.kind()
        if ENGINE_OPERATOR.search(name):
            yield Segment("TensorRT", (Operator(name),))
        elif name.startswith("aten::"):
            inner = f"{str(node.scopeName()).rpartition('/')[2]}."
            module = clean_path(inner.removeprefix(root)) if inner.startswith(root) else None
            why: tuple[Why, str] = ("forced", "named in torch_executed_ops") if name in forced else ("", "")
            yield Segment("PyTorch", (Operator(name.replace("::", "."), module, *why),))
        for block in node.blocks():
            yield from _script_parts(block, forced, root)


def _graph_parts(module: Any) -> Iterator[Segment]:
    """Yield engines and operators of a graph module and its submodules."""
    for node in module.graph.nodes:
        if node.op not in CALL_NODES:
            continue
        inner = module.get_submodule(node.target) if node.op == "call_module" else None
        name = operator_name(node) if inner is None else type(inner).__name__
        if name in ENGINE_MODULES or ENGINE_OPERATOR.search(name):
            yield Segment("TensorRT", (Operator(name),))
        elif isinstance(getattr(inner, "graph", None), torch.fx.Graph):
            yield from _graph_parts(inner)
        elif name.startswith("aten."):  # other nodes only pack values
            yield Segment("PyTorch", (Operator(name, module_path(node)),))


# Dynamo


class CapturedGraphs:
    """The graphs that Dynamo captures of a module."""

    _end_reasons: list[Any]  # one reason per graph
    _reason_count: int  # number of Dynamo's earlier reasons

    def backend(self, module: Any) -> Callable[..., Any]:
        """Return Torch-TensorRT's backend for ``torch.compile`` of ``module``, watched."""
        from torch._dynamo import lookup_backend, utils

        backend = lookup_backend("torch_tensorrt")
        self._end_reasons, self._reason_count = [], len(getattr(utils, "graph_break_reasons", ()))

        def torch_tensorrt(graph_module: Any, inputs: Any, **settings: Any) -> Any:
            self._end_reasons.append(getattr(graph_module, "compile_subgraph_reason", None))
            try:
                set_paths(graph_module, module)
            except Exception:  # Dynamo's notes change between versions
                for node in graph_module.graph.nodes:
                    node.meta.pop(STACK, None)
            with keep_paths():
                return backend(graph_module, inputs, **settings)

        return torch_tensorrt

    def interruptions(self) -> tuple[Interruption, ...]:
        """Return the lines at which Python runs between the graphs, in order, and the graph before each."""
        from torch._dynamo import utils

        interruptions: dict[tuple[str, str], Interruption] = {}
        graph = -1
        for graph_break in list(getattr(utils, "graph_break_reasons", ()))[self._reason_count :]:
            graph = next((number for number, end in enumerate(self._end_reasons) if end is graph_break), graph)
            lines = [f"{Path(frame.filename).name} line {frame.lineno or 0}" for frame in graph_break.user_stack or ()]
            why, line = reason(graph_break.reason), lines[-1] if lines else ""
            interruptions.setdefault((why, line), Interruption(graph, why, line))
        reasons = {why for why, _ in interruptions}
        counted = dict.fromkeys(reason(text) for text in utils.counters.get("graph_break", {}))
        return (*interruptions.values(), *(Interruption(graph, why) for why in counted if why not in reasons))


def set_paths(graph_module: Any, module: Any) -> None:
    """Set the module path of every node in one of Dynamo's graphs that a part of ``module`` called.

    Dynamo names modules by their ids, and by their position in the compiled function, which may be a part of the model.
    """
    parts = {str(id(part)): (path, type(part)) for path, part in module.named_modules()}
    for node in graph_module.graph.nodes:
        stack = node.meta.pop(STACK, None)
        part = parts.get(str(list(stack)[-1]).partition("@")[0]) if stack else None
        if part is not None:
            node.meta[STACK] = {part[0]: part}


@contextmanager
def keep_paths() -> Iterator[None]:
    """Keep module paths while Dynamo's graphs are lowered, as Inductor does; if that fails they are lost."""
    from torch.fx.traceback import preserve_node_meta

    backends = import_module(BACKENDS)
    original = getattr(backends, EXPORTS, None)
    if original is None:
        yield
        return

    def export(graph_module: Any, inputs: Any, **settings: Any) -> Any:
        try:
            with preserve_node_meta():
                result = original(lambda *tensors: torch.fx.Interpreter(graph_module).run(*tensors), inputs, **settings)
        except Exception:  # the paths are lost
            return original(graph_module, inputs, **settings)
        for node in result.graph.nodes:
            if STACK in node.meta:  # nodes share it, and the library removes what it has read
                node.meta[STACK] = dict(node.meta[STACK])
        return result

    with replace_attributes(backends, **{EXPORTS: export}):
        yield


# Names


def full_name(node: Any) -> str:
    """Return the qualified name, such as ``torch.ops.aten.relu.default``."""
    from torch.fx.node import _get_qualified_name

    return node.target if isinstance(node.target, str) else str(_get_qualified_name(node.target))


def operator_name(node: Any) -> str:
    """Return the short name, such as ``aten.relu.default`` or ``getitem``."""
    return full_name(node).removeprefix("torch.ops.").removeprefix("_operator.")


def module_path(node: Any) -> str | None:
    """Return the path of a node's ``nn.Module``, such as ``layer1.0.conv1``, or ``None`` if unknown."""
    stack = node.meta.get(STACK) or {}
    paths = [str(entry[0]) for entry in stack.values() if isinstance(entry, tuple)]
    return clean_path(paths[-1]) if paths else None


def clean_path(path: str) -> str:
    """Return ``layer1.0`` for Dynamo's ``L['self']._modules['layer1']._modules['0']``."""
    path = re.sub(r"(?:\._modules)?\[['\"]([^'\"]+)['\"]\]", r".\1", path)
    return re.sub(r"^(L\.)?(fn|self)(\.|$)|^L\.", "", path).strip(".")
