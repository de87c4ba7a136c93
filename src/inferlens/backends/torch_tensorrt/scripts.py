"""The partition of what is compiled already, read from its graph: engines, and what is left of PyTorch.

That of the TorchScript front end is one such: its partitioner is in C++ and says nothing. Which operators went into an
engine cannot be told then, so neither can how many there were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from inferlens.backends.torch_tensorrt.engines import OWNERS
from inferlens.backends.torch_tensorrt.operators import CALLS, clean_path, module_path, short_name
from inferlens.record.partition import Operator, Partition, Segment, breaks_of, merged

ENGINE = "tensorrt::execute_engine"
ENGINES = "execute_engine"  # ends the names of the operators that run engines
SPACE = "tensorrt"  # of those operators, and of what only packs their inputs
SCOPE = "__module."
NOTE = "The TorchScript front end does not tell which operators went into an engine, nor why others did not."
LOADED = "A compiled module does not tell which operators went into an engine, nor why others did not."


def script_partition(
    graph: Any,
    *,
    front_end: str,
    min_block_size: int,
    flavour: str,
    forced: Collection[str] = (),
    wrapped: str = "",
    note: str = NOTE,
) -> Partition:
    """The partition of a compiled script module, from its inlined graph.

    ``forced`` are the operators that PyTorch was to run in any case, such as ``aten::relu``; ``wrapped`` is the path of
    the model in what was traced, if that is not the model itself.
    """
    parts = [
        Segment("TensorRT", (Operator(ENGINE),))
        if node.kind() == ENGINE
        else Segment("PyTorch", (_script_operator(node, forced, wrapped),))
        for node in _nodes(graph)
    ]
    return _told(parts, front_end=front_end, min_block_size=min_block_size, flavour=flavour, note=note)


def loaded_partition(module: Any, *, front_end: str, min_block_size: int, flavour: str) -> Partition | None:
    """The partition of a compiled module from a file; ``None`` if it has no graph that can be read."""
    import torch

    told = {"front_end": front_end, "min_block_size": min_block_size, "flavour": flavour, "note": LOADED}
    if isinstance(module, torch.jit.ScriptModule):
        return script_partition(module.inlined_graph, **told)  # type: ignore[arg-type]
    if not isinstance(module, torch.fx.GraphModule):
        return None
    parts = list(_graph_parts(module))
    return _told(parts, **told) if parts else None  # type: ignore[arg-type]


def _told(parts: Sequence[Segment], *, front_end: str, min_block_size: int, flavour: str, note: str) -> Partition:
    segments = tuple(Segment("TensorRT", ()) if each.runs_in == "TensorRT" else each for each in merged(parts))
    engines = tuple(None for each in segments if each.runs_in == "TensorRT")
    left = sum(len(each.operators) for each in segments)
    return Partition(
        front_end=front_end,
        min_block_size=min_block_size,
        operators=None if engines else left,
        in_tensorrt=None if engines else 0,
        engines=engines,
        segments=segments,
        breaks=breaks_of(segments),
        flavour=flavour,
        note=note,
    )


def _script_operator(node: Any, forced: Collection[str], wrapped: str) -> Operator:
    name, scope = node.kind(), str(node.scopeName())
    inner = f"{scope.rpartition('/')[2]}."
    around = f"{wrapped}." if wrapped else ""
    module = clean_path(inner.removeprefix(SCOPE).removeprefix(around)) if inner.startswith(SCOPE) else None
    why, detail = ("forced", "named in torch_executed_ops") if name in forced else ("", "")
    return Operator(name.replace("::", "."), module, why, detail)  # type: ignore[arg-type]


def _graph_parts(module: Any) -> Iterator[Segment]:
    """Engines and operators of a graph module, those of the submodules that it calls included."""
    import torch

    for node in module.graph.nodes:
        if node.op not in CALLS:
            continue
        inner = module.get_submodule(node.target) if node.op == "call_module" else None
        kind = type(inner).__name__
        name = kind if inner is not None else short_name(node)
        if kind in OWNERS or (name.startswith(SPACE) and ENGINES in name):
            yield Segment("TensorRT", (Operator(name),))
        elif isinstance(getattr(inner, "graph", None), torch.fx.Graph):
            yield from _graph_parts(inner)
        elif name.startswith("aten."):  # what else there is only packs values
            yield Segment("PyTorch", (Operator(name, module_path(node)),))


def _nodes(graph: Any) -> Iterator[Any]:
    """Engines and operators of a TorchScript graph, blocks within it included; what only packs values is left out."""
    for node in graph.nodes():
        kind = node.kind()
        if kind == ENGINE or kind.startswith("aten::"):
            yield node
        for block in node.blocks():
            yield from _nodes(block)
