"""Sees what Torch-TensorRT's own partitioner decides, while it compiles.

The library asks how much of a graph is supported and then has it partitioned. Both functions are wrapped for that time;
what went in and what came out is noted. So a partition is the one that was built, whichever front end and version.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import getitem
from typing import Any, NamedTuple

from inferlens.backends.availability import first_lines
from inferlens.backends.torch_tensorrt.operators import CALLS, WhyPyTorch, operator_of
from inferlens.record.partition import Choice, Segment, choices_of, merged, reaches_of

ENGINE = "_run_on_acc"  # begins the names of submodules that become engines


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
        from torch_tensorrt.dynamo import partitioning

        partition = self._partition or partial(
            partitioning.fast_partition,
            torch_executed_ops=self._executed,
            require_full_compilation=False,
            skip_fusion=self._all_supported,
        )
        found = self._read(partition(clone(self._module), min_block_size=min_block_size)[0])
        return tuple(Segment(each.runs_in, each.operators, graph) for each in found)

    def _read(self, partitioned: Any) -> tuple[Segment, ...]:
        """Segments of a partitioned module: its submodules, and, from the global partitioner, nodes between them."""
        parts = []
        for node in partitioned.graph.nodes:
            if node.op != "call_module":  # those that unpack a submodule's outputs were not in the graph before
                own = not any(each.op == "call_module" for each in node.all_input_nodes) or node.target is not getitem
                parts.append(Segment("PyTorch", self._operators([node] if own else [], "PyTorch")))
                continue
            side = "TensorRT" if ENGINE in str(node.target) else "PyTorch"
            inner = partitioned.get_submodule(node.target)
            parts.append(Segment(side, self._operators(inner.graph.nodes, side)))  # type: ignore[arg-type]
        return merged(parts)

    def _operators(self, nodes: Any, side: str) -> tuple[Any, ...]:
        why = self._why if side == "PyTorch" else None
        return tuple(operator_of(node, why) for node in nodes if node.op in CALLS)


@contextmanager
def watching() -> Iterator[list[Lowered]]:
    """The graphs that are partitioned meanwhile, in order."""
    from torch_tensorrt.dynamo import partitioning

    graphs: list[Lowered] = []
    asks = partitioning.get_graph_converter_support
    ways = {name: getattr(partitioning, name) for name in ("fast_partition", "global_partition")}

    def asked(graph_module: Any, torch_executed_ops: Any = None) -> Any:
        supported, total = asks(graph_module, torch_executed_ops)
        graphs.append(Lowered(graph_module, torch_executed_ops or set(), supported, total))
        return supported, total

    def done(partition: Callable[..., Any], graph_module: Any, *positional: Any, **arguments: Any) -> Any:
        result = partition(graph_module, *positional, **arguments)
        if graphs:
            graphs[-1].partitioned(partition, arguments, result[0])
        return result

    try:
        partitioning.get_graph_converter_support = asked
        for name, partition in ways.items():
            setattr(partitioning, name, partial(done, partition))
        yield graphs
    finally:
        partitioning.get_graph_converter_support = asks
        for name, partition in ways.items():
            setattr(partitioning, name, partition)


def segments_of(graphs: Sequence[Lowered]) -> tuple[Segment, ...]:
    """Segments of all graphs, in order."""
    return tuple(segment for number, graph in enumerate(graphs) for segment in graph.segments(number))


class Ways(NamedTuple):
    """What other values of ``min_block_size`` give.

    Attributes:
        choices: of some values.
        total: how many values there are that differ in what they give.
        note: why nothing is known, where that is so.
    """

    choices: tuple[Choice, ...] = ()
    total: int = 0
    note: str = ""


def ways_of(graphs: Sequence[Lowered], own: int) -> Ways:
    """What other values of ``min_block_size`` than ``own`` give, each found by the library's partitioner.

    Whoever asks has a partition already: if the partitioner fails with another value, that is a note.
    """

    def evaluate(min_block_size: int) -> list[Segment]:
        return [part for number, graph in enumerate(graphs) for part in graph.at(min_block_size, number)]

    try:
        sizes = [len(each.operators) for each in evaluate(1) if each.runs_in == "TensorRT"]
        reaches = reaches_of(sizes, own)
        return Ways(choices_of(reaches, own, evaluate), len(reaches))
    except Exception as error:  # the partitioner raises nearly every type there is
        reason = f"{type(error).__name__}: {first_lines(error)}"
        return Ways(note=f"What other values of min_block_size give could not be found out: {reason}.")


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


def clone(graph_module: Any) -> Any:
    """A copy that can be partitioned without changing the original."""
    import torch

    return torch.fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))
