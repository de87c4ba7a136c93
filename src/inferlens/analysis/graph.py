"""The layers of one case as a graph: nodes in the order of execution, edges from one to another where a tensor leads.

Edges come from the names of tensors: a layer that reads a name follows every earlier layer that writes it. What nobody
writes is an input of the model or, if it is none, a weight, which is no edge. Where layers have no names of tensors,
the only thing known is the order in which they ran; they are then a chain, and the graph says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, islice
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.modules import Path, ancestor, module_path
from inferlens.analysis.profile_table import runs_of
from inferlens.record.layer_profile import Layer, Profile, Tensor
from inferlens.trace.precision import precision_in
from inferlens.units import plural

SCHEMA = "inferlens.graph/1"
MOST_EDGES = 20_000
ORDER_ONLY = "The layers do not name their tensors, so lines show the order in which they ran, not the flow of data."
TOO_MANY_EDGES = f"Only the first {MOST_EDGES:,} edges are drawn."
INSPECTED = ("Name", "LayerType", "Inputs", "Outputs", "Metadata")  # of a layer in an engine's inspector


class Node(Struct, frozen=True, kw_only=True):
    """A layer, several layers folded into one node, or an end of the graph."""

    name: str  # the layer's; of a folded node, the module's path
    role: Literal["layer", "folded", "input", "output"] = "layer"
    kind: str = ""  # in the backend's words; empty for folded nodes and ends
    places: tuple[int, ...] = ()  # of its layers in the order of execution, from 1
    module: Path | None = None  # the deepest module that contains all that its layers came from, if it is known
    modules: tuple[str, ...] = ()  # what its layers came from, each once; so are ``operators``
    operators: tuple[str, ...] = ()
    inputs: tuple[Tensor, ...] = ()  # of folded layers, what they read from others; ``outputs``: what others read
    outputs: tuple[Tensor, ...] = ()
    seconds: float | None = None  # typical time of all its layers; ``None`` if none was timed
    share: float | None = None
    precision: str = ""  # that of its outputs, such as ``fp16``; of folded layers, the one that takes most time
    details: dict[str, str] = {}


class Edge(Struct, frozen=True, kw_only=True):
    """From one node to another, by their indices. ``known``: tensors lead there; else only the order is known."""

    tail: int
    head: int
    tensors: tuple[Tensor, ...] = ()
    known: bool = True


class Region(Struct, frozen=True, kw_only=True):
    """A module's nodes that lie next to each other in the order of execution, those of its inner regions among them."""

    path: Path
    label: str
    nodes: tuple[int, ...]
    inner: tuple[Region, ...] = ()
    seconds: float | None = None
    share: float | None = None


class Graph(Struct, frozen=True, kw_only=True):
    """What is drawn of one case."""

    title: str
    about: str = ""
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    regions: tuple[Region, ...] = ()
    whole: float | None = None  # seconds of a run; ``None`` without times
    layers: int = 0  # how many layers there are, however many nodes they became
    depth: int = 0  # how deep modules are unfolded; ``deepest``: how deep they go
    deepest: int = 0
    notes: tuple[str, ...] = ()  # what is not known, not shown, or folded; a sentence each


class GraphSource(Struct, frozen=True, kw_only=True):
    """Layers and how long they took, whatever they were read from."""

    title: str
    about: str = ""
    layers: tuple[Layer, ...]
    seconds: tuple[float | None, ...] = ()  # of each layer, typical; ``None`` for one that was not timed
    whole: float | None = None  # of a run; ``None`` if nothing was timed
    inputs: tuple[Tensor, ...] = ()  # tensors of the model; so are ``outputs``, which else are what no layer reads
    outputs: tuple[Tensor, ...] = ()
    notes: tuple[str, ...] = ()


def profile_source(
    profile: Profile, title: str, about: str = "", unprofiled: Sequence[float] = ()
) -> GraphSource | str:
    """Return a profile's layers with typical times, or why there are none; ``unprofiled`` as in :func:`runs_of`."""
    runs = runs_of(profile, "layer", unprofiled)
    if isinstance(runs, str) or profile.layers is None:
        return str(runs)
    tensor_specs = profile.model.inputs or profile.case.inputs
    return GraphSource(
        title=title,
        about=about,
        layers=profile.layers.layers,
        seconds=tuple(runs.typical(row) if runs.timed[at] else None for at, row in enumerate(runs.layers)),
        whole=runs.typical(runs.whole),
        inputs=tuple(Tensor(name=spec.name, shape=tuple(spec.shape), dtype=spec.dtype) for spec in tensor_specs),
        notes=tuple(f"{what}: {why}" for what, why in profile.layers.absent.items() if what != "begins"),
    )


def data_flow(source: GraphSource) -> tuple[list[Edge], list[tuple[int, Tensor]], list[str]]:
    """Return which layer reads from which (-1: the model's input), what leaves the model, and what is not known."""
    edges = list(islice(_edges_by_name(source), MOST_EDGES + 1))
    notes = [TOO_MANY_EDGES] if len(edges) > MOST_EDGES else []
    edges = edges[:MOST_EDGES]
    if not any(edge.tail >= 0 for edge in edges) and len(source.layers) > 1:
        chain = [Edge(tail=index, head=index + 1, known=False) for index in range(len(source.layers) - 1)]
        return chain, [], [*notes, ORDER_ONLY]
    edges += [  # what names no tensors follows the layer before
        Edge(tail=index - 1, head=index, known=False) for index, layer in enumerate(source.layers)
        if index and not any(tensor.name for tensor in (*layer.inputs, *layer.outputs))
    ]  # fmt: skip
    return edges, list(_leaving_tensors(source, {edge.tail for edge in edges})), notes


def _edges_by_name(source: GraphSource) -> Iterator[Edge]:
    """Edges by the names of tensors, each pair of layers once for each name."""
    given = {tensor.name for tensor in source.inputs}
    writers: dict[str, list[int]] = {}
    for index, layer in enumerate(source.layers):
        for name in {tensor.name for tensor in layer.outputs}:
            writers.setdefault(name, []).append(index)
    for index, layer in enumerate(source.layers):
        reads: dict[str, Tensor] = {}
        for tensor in layer.inputs:
            reads.setdefault(tensor.name, tensor)
        for name, tensor in reads.items():
            wrote = writers.get(name, [-1] if name in given else []) if name else []
            earlier = [writer for writer in wrote if writer < index] or wrote
            yield from (Edge(tail=writer, head=index, tensors=(tensor,)) for writer in earlier if writer != index)


def _leaving_tensors(source: GraphSource, read: set[int]) -> Iterator[tuple[int, Tensor]]:
    """Layers and the tensor of theirs that leaves the model: by its outputs' names, or if nobody reads the layer."""
    names = {tensor.name for tensor in source.outputs}
    for index, layer in enumerate(source.layers):
        leaving = [tensor for tensor in layer.outputs if tensor.name in names]
        if not names and index not in read:
            leaving = [tensor for tensor in layer.outputs[:1] if tensor.name]
        yield from ((index, tensor) for tensor in leaving)


def sum_times(seconds: Sequence[float | None]) -> float | None:
    """The sum of the times that are known; ``None`` if there is none."""
    known = [time for time in seconds if time is not None]
    return sum(known) if known else None


def layer_precision(layer: Layer) -> str:
    """What a layer computes in: what the backend says of it, or else the type of its first output; empty if not known.

    A layer that only turns out indices or truth values is ``int`` or ``bool``.
    """
    written = (f"{tensor.dtype} {tensor.format}" for tensor in (*layer.outputs, *layer.inputs))
    told = (layer.precision, str(layer.details.get("precision", "")), *written)
    return next(filter(None, map(precision_in, told)), "")


# A graph that people can look at: layers folded into modules, and modules as regions around what is left.
#
# Only layers that follow each other in the order of execution are folded into one node. That order is one in which every
# layer comes after those that it reads from, so no fold makes a cycle of a graph that had none; a module that is called
# twice is two nodes. A layer of no known module counts to the deepest module that contains both of its neighbours.

REGIONS = ("module", "fused", "none")
READABLE = 90  # nodes that are drawn where no depth is asked for
MOST = 2_000  # nodes that are drawn at all

Owners = Sequence[Path | None]  # the module of each layer


def build_graph(source: GraphSource, *, regions: str = "module", depth: int | None = None) -> Graph:
    """The graph of some layers.

    Args:
        regions: ``module`` for regions of modules, ``fused`` or ``none`` for none.
        depth: a module that is as deep as this, 1 or more, is one node; beyond the deepest nothing is folded.
            ``None``: as deep as gives :data:`READABLE` nodes at most.
    """
    owners = layer_modules(source.layers)
    deepest = max((len(owner) for owner in owners if owner), default=0)
    shown, groups = _groups(source, owners, deepest, depth)
    edges, ends, notes = data_flow(source)
    nodes = [_node(source, owners, group, shown) for group in groups]
    place = {index: number for number, group in enumerate(groups) for index in group}
    if len(groups) < len(source.layers):
        more = f": modules are unfolded {shown} of {deepest} deep, --depth {shown + 1} unfolds more"
        folded = f"{plural(len(source.layers), 'layer')} are drawn as {plural(len(groups), 'node')}"
        notes.append(f"{folded}{more if shown <= deepest else ''}.")
    # A layer lies in its module, a folded node beside what its module has around it.
    paths = [(node.module or ())[: -1 if node.role == "folded" else None] for node in nodes]
    found = _regions(paths, nodes) if regions == "module" else ()
    edges = _add_ends(source, nodes, _node_edges(edges, place), [(place[index], tensor) for index, tensor in ends])
    return Graph(
        title=source.title, about=source.about, nodes=tuple(nodes), edges=tuple(edges), regions=found,
        whole=source.whole, layers=len(source.layers), depth=shown, deepest=deepest, notes=(*source.notes, *notes),
    )  # fmt: skip


def layer_modules(layers: Sequence[Layer]) -> list[Path | None]:
    """The deepest module that contains all that a layer came from; for layers of no known module, its neighbours'."""
    known = [ancestor([module_path(path) for path in layer.modules]) if layer.modules else None for layer in layers]

    def last(before: Path | None, own: Path | None) -> Path | None:
        return before if own is None else own

    before, after = list(accumulate(known, last)), list(accumulate(known[::-1], last))[::-1]
    return [
        ancestor([left, right]) if own is None and left is not None and right is not None else own
        for own, left, right in zip(known, before, after, strict=True)
    ]


def _groups(source: GraphSource, owners: Owners, deepest: int, depth: int | None) -> tuple[int, list[range]]:
    """How deep modules are unfolded, and the layers of each node."""
    shown = deepest + 1 if depth is None else min(max(depth, 1), deepest + 1)
    most = READABLE if depth is None else MOST
    groups = _module_groups(owners, shown)
    while depth is None and len(groups) > most and shown > 1:
        shown -= 1
        groups = _module_groups(owners, shown)
    return shown, groups if len(groups) <= most else _join_smallest(source, groups, most)


def _module_groups(owners: Owners, depth: int) -> list[range]:
    """Layers in a row of the same module at ``depth`` as one group, every other layer as one of its own."""
    keys = [owner[:depth] if owner and len(owner) >= depth else index for index, owner in enumerate(owners)]
    runs = [list(members) for _, members in groupby(range(len(keys)), lambda index: keys[index])]
    return [range(members[0], members[-1] + 1) for members in runs]


def _join_smallest(source: GraphSource, groups: list[range], most: int) -> list[range]:
    """``most`` groups, made by joining, again and again, the two neighbours that take least together."""
    seconds = source.seconds or (None,) * len(source.layers)
    # Of equal times, and where there are none, the number of layers counts.
    cost = np.array([sum(seconds[index] or 0.0 for index in group) + 1e-15 * len(group) for group in groups])
    while len(groups) > most:
        left = int(np.argmin(cost[:-1] + cost[1:]))
        groups[left : left + 2] = [range(groups[left][0], groups[left + 1][-1] + 1)]
        cost[left] += cost[left + 1]
        cost = np.delete(cost, left + 1)
    return groups


def _node(source: GraphSource, owners: Owners, group: range, depth: int) -> Node:
    layers = [source.layers[index] for index in group]
    times = [source.seconds[index] for index in group] if source.seconds else []
    seconds = sum_times(times)
    folded = len(layers) > 1
    known = [owner[:depth] if folded else owner for index in group if (owner := owners[index]) is not None]
    module = ancestor(known) if known else None
    read, wrote = [layer.inputs for layer in layers], [layer.outputs for layer in layers]
    return Node(
        name=".".join(module or ()) if folded else layers[0].name,
        role="folded" if folded else "layer",
        kind="" if folded else layers[0].kind,
        places=tuple(index + 1 for index in group),
        module=module,
        modules=tuple(dict.fromkeys(path for layer in layers for path in layer.modules)),
        operators=tuple(name for layer in layers for name in layer.operators),
        inputs=_outer_tensors(read, wrote) if folded else read[0],
        outputs=_outer_tensors(wrote, read) if folded else wrote[0],
        seconds=seconds,
        share=seconds / source.whole if seconds is not None and source.whole else None,
        precision=_main_precision(layers, times),
        details={} if folded else _details(layers[0]),
    )


def _details(layer: Layer) -> dict[str, str]:
    """What a backend says of a layer beside its tensors, as short texts; what it says in groups, one by one."""
    said: list[tuple[str, Any]] = []
    for key, value in layer.details.items():
        said += value.items() if isinstance(value, dict) else [(key, value)]
    return {
        str(key)[:100]: str(value)[:200] for key, value in said[:40] if key not in INSPECTED and value not in ("", [])
    }


def _outer_tensors(own: Sequence[tuple[Tensor, ...]], inner: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Of folded layers' tensors those with a name that are not among the others, each once."""
    inside = {tensor.name for tensors in inner for tensor in tensors}
    return tuple({t.name: t for tensors in own for t in tensors if t.name and t.name not in inside}.values())


def _main_precision(layers: Sequence[Layer], times: Sequence[float | None]) -> str:
    """The precision in which most of the time is spent; without times, that of most layers."""
    found: Counter[str] = Counter()
    for index, layer in enumerate(layers):
        found[layer_precision(layer)] += (times[index] or 0.0) if any(times) else 1.0  # type: ignore[assignment]
    return found.most_common(1)[0][0]


def _node_edges(edges: Sequence[Edge], place: dict[int, int]) -> list[Edge]:
    """Edges between nodes: each pair once; those within a node are gone, the model's inputs stay -1 and apart."""
    found: dict[tuple[int, int, bool, str], dict[str, Tensor]] = {}
    for edge in edges:
        tail, head = place.get(edge.tail, -1), place[edge.head]
        if tail != head:
            apart = edge.tensors[0].name if tail < 0 else ""
            found.setdefault((tail, head, edge.known, apart), {}).update(
                {tensor.name: tensor for tensor in edge.tensors}
            )
    return [
        Edge(tail=tail, head=head, tensors=tuple(tensors.values()), known=known)
        for (tail, head, known, _), tensors in found.items()
    ]


def _add_ends(
    source: GraphSource, nodes: list[Node], edges: list[Edge], outputs: list[tuple[int, Tensor]]
) -> list[Edge]:
    """Adds a node for each of the model's inputs that is read, and for each of its outputs; all edges then."""
    given: dict[str, int] = {}
    for tensor in source.inputs:
        if any(edge.tail < 0 and edge.tensors[0].name == tensor.name for edge in edges):
            given[tensor.name] = len(nodes)
            nodes.append(Node(name=tensor.name, role="input", outputs=(tensor,)))
    led = [replace(edge, tail=given.get(edge.tensors[0].name, -1)) if edge.tail < 0 else edge for edge in edges]
    for tail, tensor in outputs:
        led.append(Edge(tail=tail, head=len(nodes), tensors=(tensor,)))
        nodes.append(Node(name=tensor.name, role="output", inputs=(tensor,)))
    return [edge for edge in led if edge.tail >= 0]


def _regions(paths: Sequence[Path], nodes: Sequence[Node], first: int = 0, level: int = 0) -> tuple[Region, ...]:
    """Nodes in a row that lie in the same module, as regions in regions; a region of one node would say nothing.

    Levels at which nothing divides a region are joined: ``encoder.layers``.
    """
    found: list[Region] = []
    begin = 0
    for name, members in groupby(paths, lambda path: path[level] if len(path) > level else None):
        inside = list(members)
        if name is not None and len(inside) > 1:
            top, places = len(ancestor(inside)), range(first + begin, first + begin + len(inside))
            found.append(
                Region(
                    path=inside[0][:top],
                    label=".".join(inside[0][level:top]),
                    nodes=tuple(places),
                    inner=_regions(inside, nodes, places[0], top),
                    seconds=sum_times([nodes[index].seconds for index in places]),
                    share=sum_times([nodes[index].share for index in places]),
                )
            )
        begin += len(inside)
    return tuple(found)
