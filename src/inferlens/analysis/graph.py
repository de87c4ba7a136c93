"""The layers of one case as a graph: nodes in the order of execution, and edges along tensors.

Edges come from the names of tensors: a layer that reads a name follows every earlier layer that writes it. A name that
no layer writes is an input of the model or a weight, which is no edge. Without names of tensors only the order of the
layers is known; they are then a chain, and a note says so.

To be readable, layers are folded into modules, and modules are regions around the rest. Only neighbors in the order of
execution are folded into one node. In that order every layer follows the layers that it reads from, so folding makes
no cycle; a module that is called twice is two nodes. A layer of no known module belongs to the module of the
layer before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.modules import Path, ancestor, module_path
from inferlens.analysis.profile_table import profile_runs
from inferlens.record.profile import Layer, Profile, Tensor
from inferlens.trace.kernels import precision_in
from inferlens.units import plural

SCHEMA = "inferlens.graph/1"
MOST_EDGES = 20_000
ORDER_ONLY = "The layers do not name their tensors, so lines show the order in which they ran, not the flow of data."
TOO_MANY_EDGES = f"Only the first {MOST_EDGES:,} edges are drawn."
INSPECTED = ("Name", "LayerType", "Inputs", "Outputs", "Metadata")  # of a layer in an engine's inspector
REGIONS = ("module", "fused", "none")
READABLE = 90  # nodes to draw if no depth is requested
MOST = 2_000  # nodes to draw at all

Owners = Sequence[Path | None]  # the module of each layer


class Node(Struct, frozen=True, kw_only=True):
    """A layer, several layers folded into one node, or an end of the graph."""

    name: str  # the layer's; of a folded node, the module's path
    role: Literal["layer", "folded", "input", "output"] = "layer"
    kind: str = ""  # in the backend's words; empty for folded nodes and ends
    places: tuple[int, ...] = ()  # of its layers in the order of execution, from 1
    module: Path | None = None  # the deepest module that contains all origins of its layers, if known
    modules: tuple[str, ...] = ()  # the distinct origins of its layers; so are ``operators``
    operators: tuple[str, ...] = ()
    inputs: tuple[Tensor, ...] = ()  # of folded layers those from other nodes; ``outputs``: those that other nodes read
    outputs: tuple[Tensor, ...] = ()
    seconds: float | None = None  # typical time of all its layers; ``None`` if none was timed
    share: float | None = None
    precision: str = ""  # that of its outputs, such as ``fp16``; of folded layers, the one with most time
    details: dict[str, str] = {}


class Edge(Struct, frozen=True, kw_only=True):
    """From one node to another, by their indices. ``known``: tensors lead there; else only the order is known."""

    tail: int
    head: int
    tensors: tuple[Tensor, ...] = ()
    known: bool = True


class Region(Struct, frozen=True, kw_only=True):
    """Neighboring nodes of a module in the order of execution, including those of its inner regions."""

    path: Path
    label: str
    nodes: tuple[int, ...]
    inner: tuple[Region, ...] = ()
    seconds: float | None = None
    share: float | None = None


class Graph(Struct, frozen=True, kw_only=True):
    """The drawing of one case."""

    title: str
    about: str = ""
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    regions: tuple[Region, ...] = ()
    whole: float | None = None  # seconds of a run; ``None`` without times
    layers: int = 0  # number of layers, however many nodes they became
    depth: int = 0  # depth to which modules are unfolded; ``deepest``: the full depth
    deepest: int = 0
    notes: tuple[str, ...] = ()  # a sentence for each thing that is unknown, not shown, or folded


class GraphSource(Struct, frozen=True, kw_only=True):
    """Layers and their times, from any source."""

    title: str
    about: str = ""
    layers: tuple[Layer, ...]
    seconds: tuple[float | None, ...] = ()  # typical time of each layer; ``None`` for a layer that was not timed
    whole: float | None = None  # of a run; ``None`` if nothing was timed
    inputs: tuple[Tensor, ...] = ()  # of the model; so are ``outputs``, by default the tensors that no layer reads
    outputs: tuple[Tensor, ...] = ()
    notes: tuple[str, ...] = ()


def profile_source(
    profile: Profile, title: str, about: str = "", unprofiled: Sequence[float] = ()
) -> GraphSource | str:
    """Return a profile's layers with typical times, or why there are none; see :func:`profile_runs`."""
    runs = profile_runs(profile, "layer", unprofiled)
    if isinstance(runs, str) or profile.layers is None:
        return str(runs)
    tensor_specs = profile.model.inputs or profile.case.inputs
    pairs = zip(runs.layers, runs.timed, strict=True)
    return GraphSource(
        title=title, about=about, layers=profile.layers.layers, whole=runs.typical(runs.whole),
        seconds=tuple(runs.typical(series) if timed else None for series, timed in pairs),
        inputs=tuple(Tensor(name=spec.name, shape=tuple(spec.shape), dtype=spec.dtype) for spec in tensor_specs),
        notes=tuple(f"{name}: {why}" for name, why in profile.layers.absent.items() if name != "begins"),
    )  # fmt: skip


def data_flow(source: GraphSource) -> tuple[list[Edge], list[tuple[int, Tensor]], list[str]]:
    """Return edges between layers (-1: the model's input), tensors that leave the model, and notes."""
    edges = list(islice(_edges_by_name(source), MOST_EDGES + 1))
    notes = [TOO_MANY_EDGES] if len(edges) > MOST_EDGES else []
    edges = edges[:MOST_EDGES]
    order_only = not any(edge.tail >= 0 for edge in edges) and len(source.layers) > 1
    if order_only:
        edges, notes = [], [*notes, ORDER_ONLY]
    for index, layer in enumerate(source.layers[1:], 1):
        # A layer without names of tensors follows the layer before.
        if order_only or not any(tensor.name for tensor in (*layer.inputs, *layer.outputs)):
            edges.append(Edge(tail=index - 1, head=index, known=False))
    leaving = [] if order_only else list(_leaving_tensors(source, {edge.tail for edge in edges}))
    return edges, leaving, notes


def _edges_by_name(source: GraphSource) -> Iterator[Edge]:
    """Yield edges by the names of tensors. A pair of layers has one edge for each name."""
    writers: dict[str, list[int]] = {}
    for index, layer in enumerate(source.layers):
        for name in {tensor.name for tensor in layer.outputs}:
            writers.setdefault(name, []).append(index)
    writers = {tensor.name: [-1] for tensor in source.inputs} | writers
    for index, layer in enumerate(source.layers):
        reads: dict[str, Tensor] = {}
        for tensor in layer.inputs:
            reads.setdefault(tensor.name, tensor)
        for name, tensor in reads.items():
            candidates = writers.get(name, []) if name else []
            earlier = [writer for writer in candidates if writer < index] or candidates
            yield from (Edge(tail=writer, head=index, tensors=(tensor,)) for writer in earlier if writer != index)


def _leaving_tensors(source: GraphSource, read: set[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield layers and their tensors that leave the model: by the outputs' names, or if no layer reads the layer."""
    names = {tensor.name for tensor in source.outputs}
    for index, layer in enumerate(source.layers):
        if names:
            yield from ((index, tensor) for tensor in layer.outputs if tensor.name in names)
        elif index not in read:
            yield from ((index, tensor) for tensor in layer.outputs[:1] if tensor.name)


def sum_times(seconds: Sequence[float | None]) -> float | None:
    """Return the sum of the known times; ``None`` if there is none."""
    times = [time for time in seconds if time is not None]
    return sum(times) if times else None


def layer_precision(layer: Layer) -> str:
    """Return the precision of a layer as the backend reports it, or else its first output's type; empty if unknown.

    A layer that only outputs indices or truth values is ``int`` or ``bool``.
    """
    types = (f"{tensor.dtype} {tensor.format}" for tensor in (*layer.outputs, *layer.inputs))
    texts = (layer.precision, str(layer.details.get("precision", "")), *types)
    return next(filter(None, map(precision_in, texts)), "")


def build_graph(source: GraphSource, *, regions: str = "module", depth: int | None = None) -> Graph:
    """Return the graph of some layers.

    Args:
        regions: ``module`` for regions of modules, ``fused`` or ``none`` for none.
        depth: a module at this depth, 1 or more, is one node; beyond the deepest nothing is folded. ``None``: the
            largest depth with at most :data:`READABLE` nodes.
    """
    owners = layer_modules(source.layers)
    deepest = max((len(owner) for owner in owners if owner), default=0)
    shown, groups = _groups(source, owners, deepest, depth)
    edges, outputs, notes = data_flow(source)
    nodes = [_node(source, owners, group, shown) for group in groups]
    node_by_layer = {index: number for number, group in enumerate(groups) for index in group}
    if len(groups) < len(source.layers):
        unfold_hint = f": modules are unfolded {shown} of {deepest} deep, --depth {shown + 1} unfolds more"
        folded = f"{plural(len(source.layers), 'layer')} are drawn as {plural(len(groups), 'node')}"
        notes.append(f"{folded}{unfold_hint if shown <= deepest else ''}.")
    # The region of a layer is its module; that of a folded node is the one around its module.
    paths = [(node.module or ())[: -1 if node.role == "folded" else None] for node in nodes]
    nested = _regions(paths, nodes) if regions == "module" else ()
    leaving = [(node_by_layer[index], tensor) for index, tensor in outputs]
    edges = _add_ends(source, nodes, _node_edges(edges, node_by_layer), leaving)
    return Graph(
        title=source.title, about=source.about, nodes=tuple(nodes), edges=tuple(edges), regions=nested,
        whole=source.whole, layers=len(source.layers), depth=shown, deepest=deepest, notes=(*source.notes, *notes),
    )  # fmt: skip


def layer_modules(layers: Sequence[Layer]) -> list[Path | None]:
    """Return the deepest module that contains all origins of each layer; without any, that of the layer before."""
    owners: list[Path | None] = []
    for layer in layers:
        known = ancestor([module_path(path) for path in layer.modules]) if layer.modules else None
        owners.append(owners[-1] if known is None and owners else known)
    return owners


def _groups(source: GraphSource, owners: Owners, deepest: int, depth: int | None) -> tuple[int, list[range]]:
    """Return the depth to which modules are unfolded, and the layers of each node."""
    depths = range(deepest + 1, 0, -1) if depth is None else [min(max(depth, 1), deepest + 1)]
    most_nodes = READABLE if depth is None else MOST
    for shown in depths:
        groups = _module_groups(owners, shown)
        if len(groups) <= most_nodes:
            return shown, groups
    neighbors = np.array_split(np.arange(len(source.layers)), most_nodes)
    return shown, [range(int(group[0]), int(group[-1]) + 1) for group in neighbors]


def _module_groups(owners: Owners, depth: int) -> list[range]:
    """Return neighboring layers of one module at ``depth`` as one group, and every other layer as its own."""
    keys = [owner[:depth] if owner and len(owner) >= depth else index for index, owner in enumerate(owners)]
    runs = [list(members) for _, members in groupby(range(len(keys)), lambda index: keys[index])]
    return [range(members[0], members[-1] + 1) for members in runs]


def _node(source: GraphSource, owners: Owners, group: range, depth: int) -> Node:
    """Return the node of a group of layers, which are folded if they are several."""
    layers = [source.layers[index] for index in group]
    times = [source.seconds[index] for index in group] if source.seconds else []
    seconds = sum_times(times)
    folded = len(layers) > 1
    paths = [owner[:depth] if folded else owner for index in group if (owner := owners[index]) is not None]
    module = ancestor(paths) if paths else None
    inputs, outputs = [layer.inputs for layer in layers], [layer.outputs for layer in layers]
    first = layers[0]
    return Node(
        name=".".join(module or ()) if folded else first.name, role="folded" if folded else "layer",
        kind="" if folded else first.kind, details={} if folded else _details(first), module=module,
        places=tuple(index + 1 for index in group),
        modules=tuple(dict.fromkeys(path for layer in layers for path in layer.modules)),
        operators=tuple(name for layer in layers for name in layer.operators),
        inputs=_outer_tensors(inputs, outputs) if folded else first.inputs,
        outputs=_outer_tensors(outputs, inputs) if folded else first.outputs,
        seconds=seconds, share=seconds / source.whole if seconds is not None and source.whole else None,
        precision=_main_precision(layers, times),
    )  # fmt: skip


def _details(layer: Layer) -> dict[str, str]:
    """Return the backend's details of a layer as short texts, groups of details flattened."""
    details: list[tuple[str, Any]] = []
    for key, value in layer.details.items():
        details += value.items() if isinstance(value, dict) else [(key, value)]
    shown = [(key, value) for key, value in details[:40] if key not in INSPECTED and value not in ("", [])]
    return {str(key)[:100]: str(value)[:200] for key, value in shown}


def _outer_tensors(
    tensor_lists: Sequence[tuple[Tensor, ...]], other_lists: Sequence[tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Return the distinct named tensors of folded layers that are not among the inner ones."""
    inside = {tensor.name for tensors in other_lists for tensor in tensors}
    outside = (tensor for tensors in tensor_lists for tensor in tensors if tensor.name and tensor.name not in inside)
    return tuple({tensor.name: tensor for tensor in outside}.values())


def _main_precision(layers: Sequence[Layer], times: Sequence[float | None]) -> str:
    """Return the precision with most of the time; without times, that of most layers."""
    totals: Counter[str] = Counter()
    for index, layer in enumerate(layers):
        totals[layer_precision(layer)] += (times[index] or 0.0) if any(times) else 1.0  # type: ignore[assignment]
    return totals.most_common(1)[0][0]


def _node_edges(edges: Sequence[Edge], node_by_layer: dict[int, int]) -> list[Edge]:
    """Return one edge for each pair of different nodes. An input of the model stays -1 and has its own edge."""
    groups: dict[tuple[int, int, bool, str], dict[str, Tensor]] = {}
    for edge in edges:
        tail, head = node_by_layer.get(edge.tail, -1), node_by_layer[edge.head]
        if tail != head:
            key = tail, head, edge.known, edge.tensors[0].name if tail < 0 else ""
            groups.setdefault(key, {}).update({tensor.name: tensor for tensor in edge.tensors})
    return [
        Edge(tail=tail, head=head, tensors=tuple(tensors.values()), known=known)
        for (tail, head, known, _), tensors in groups.items()
    ]


def _add_ends(
    source: GraphSource, nodes: list[Node], edges: list[Edge], outputs: list[tuple[int, Tensor]]
) -> list[Edge]:
    """Add a node for each of the model's inputs with a reader, and for each of its outputs; return all edges."""
    inputs: dict[str, int] = {}
    for tensor in source.inputs:
        if any(edge.tail < 0 and edge.tensors[0].name == tensor.name for edge in edges):
            inputs[tensor.name] = len(nodes)
            nodes.append(Node(name=tensor.name, role="input", outputs=(tensor,)))
    results = [replace(edge, tail=inputs.get(edge.tensors[0].name, -1)) if edge.tail < 0 else edge for edge in edges]
    for tail, tensor in outputs:
        results.append(Edge(tail=tail, head=len(nodes), tensors=(tensor,)))
        nodes.append(Node(name=tensor.name, role="output", inputs=(tensor,)))
    return [edge for edge in results if edge.tail >= 0]


def _regions(paths: Sequence[Path], nodes: Sequence[Node], first: int = 0, level: int = 0) -> tuple[Region, ...]:
    """Return nested regions of neighboring nodes in the same module; a region of one node would say nothing.

    Levels at which nothing divides a region are joined: ``encoder.layers``. ``first`` is the index of the first node.
    """
    regions: list[Region] = []
    for name, group in groupby(paths, lambda path: path[level] if len(path) > level else None):
        members = list(group)
        indices = range(first, first + len(members))
        first += len(members)
        if name is not None and len(members) > 1:
            top = len(ancestor(members))
            region = Region(
                path=members[0][:top], label=".".join(members[0][level:top]), nodes=tuple(indices),
                inner=_regions(members, nodes, indices[0], top),
                seconds=sum_times([nodes[index].seconds for index in indices]),
                share=sum_times([nodes[index].share for index in indices]),
            )  # fmt: skip
            regions.append(region)
    return tuple(regions)
