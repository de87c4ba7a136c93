"""The partition of what the TorchScript front end compiled, read from its graph: engines, and what is left of PyTorch.

That partitioner is in C++ and says nothing: which operators went into an engine cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inferlens.partition import Operator, Partition, Segment, breaks_of, merged

ENGINE = "tensorrt::execute_engine"
NOTE = "The TorchScript front end does not tell which operators went into an engine, nor why others did not."


def script_partition(graph: Any, *, front_end: str, min_block_size: int, flavour: str) -> Partition:
    """The partition of a compiled script module, from its inlined graph."""
    nodes = list(_nodes(graph))
    parts = [
        Segment("TensorRT", (Operator(ENGINE),))
        if node.kind() == ENGINE
        else Segment("PyTorch", (Operator(node.kind().replace("::", ".")),))
        for node in nodes
    ]
    segments = tuple(Segment("TensorRT", ()) if each.runs_in == "TensorRT" else each for each in merged(parts))
    left = sum(len(each.operators) for each in segments)
    return Partition(
        front_end=front_end,
        min_block_size=min_block_size,
        operators=left,
        in_tensorrt=0,
        engines=tuple(None for each in segments if each.runs_in == "TensorRT"),
        segments=segments,
        breaks=breaks_of(segments),
        flavour=flavour,
        note=NOTE,
    )


def _nodes(graph: Any) -> Iterator[Any]:
    """Engines and operators of a TorchScript graph, blocks within it included; what only packs values is left out."""
    for node in graph.nodes():
        kind = node.kind()
        if kind == ENGINE or kind.startswith("aten::"):
            yield node
        for block in node.blocks():
            yield from _nodes(block)
