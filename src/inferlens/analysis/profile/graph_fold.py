"""A graph that people can look at: layers folded into modules, and modules as regions around what is left.

Only layers that follow each other in the
order of execution are folded into one node. That order is one in which every layer comes after those that it reads
from, so no fold makes a cycle of a graph that had none; a module that is called twice is two nodes. A layer of no known
module counts to the deepest module that contains both of its neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from msgspec.structs import replace

from inferlens.analysis.profile.graph import (
    INSPECTED,
    Edge,
    Graph,
    Node,
    Region,
    Source,
    flow_of,
    lasting,
    precision_of,
)
from inferlens.analysis.profile.modules import Path, ancestor, path_of
from inferlens.errors import InferlensError, suggestion
from inferlens.record.layer_profile import Layer, Tensor
from inferlens.units import listing, plural

REGIONS = ("module", "fused", "none")
READABLE = 90  # nodes that are drawn where no depth is asked for
MOST = 2_000  # nodes that are drawn at all

Groups = list[range]


def graph_of(source: Source, *, regions: str = "module", depth: int | None = None) -> Graph:
    """The graph of some layers.

    Args:
        source: the layers and their times.
        regions: ``module`` for regions of modules, ``fused`` or ``none`` for none.
        depth: a module that is as deep as this, 1 or more, is one node; beyond the deepest nothing is folded.
            ``None``: as deep as gives :data:`READABLE` nodes at most.

    Raises:
        InferlensError: for other regions.
    """
    check_regions(regions)
    owners = owners_of(source.layers)
    deepest = max((len(owner) for owner in owners if owner), default=0)
    shown, groups, thinned = _groups(source, owners, deepest, depth)
    edges, ends, told = flow_of(source)
    nodes = [_node(source, owners, group, shown) for group in groups]
    place = {index: number for number, group in enumerate(groups) for index in group}
    nodes, drawn = _with_ends(source, nodes, _between(edges, place), ends, place)
    notes = (*source.notes, *told, *_folded(len(source.layers), len(groups), shown, deepest, thinned))
    found = _regions([_region_path(owners, group, shown) for group in groups], nodes) if regions == "module" else ()
    return Graph(
        title=source.title,
        about=source.about,
        nodes=tuple(nodes),
        edges=tuple(drawn),
        regions=tuple(found),
        whole=source.whole,
        layers=len(source.layers),
        depth=shown,
        deepest=deepest,
        notes=notes,
    )


def check_regions(regions: str) -> None:
    """Refuses regions that there are not.

    Raises:
        InferlensError: if there are none of that name.
    """
    if regions not in REGIONS:
        hint = suggestion(regions, REGIONS) or "--regions module"
        raise InferlensError(f"There are no regions '{regions}'.", expected=listing(REGIONS), hint=hint)


def owners_of(layers: Sequence[Layer]) -> list[Path | None]:
    """The deepest module that contains all that a layer came from; for layers of no known module, its neighbours'."""
    known = [ancestor([path_of(path) for path in layer.modules]) if layer.modules else None for layer in layers]

    def last(paths: Sequence[Path | None]) -> list[Path | None]:
        found: list[Path | None] = []
        for path in paths:
            found.append(path if path is not None or not found else found[-1])
        return found

    before, after = last(known), last(known[::-1])[::-1]
    return [
        ancestor([left, right]) if own is None and left is not None and right is not None else own
        for own, left, right in zip(known, before, after, strict=True)
    ]


def _groups(source: Source, owners: Sequence[Path | None], deepest: int, depth: int | None) -> tuple[int, Groups, bool]:
    """How deep modules are unfolded, the layers of each node, and whether that alone would have been too many nodes."""
    shown = deepest + 1 if depth is None else min(max(depth, 1), deepest + 1)
    most = READABLE if depth is None else MOST
    groups = _runs(owners, shown)
    while depth is None and len(groups) > most and shown > 1:
        shown -= 1
        groups = _runs(owners, shown)
    return (shown, groups, False) if len(groups) <= most else (shown, _thinned(source, groups, most), True)


def _runs(owners: Sequence[Path | None], depth: int) -> Groups:
    """Layers in a row of the same module at ``depth`` as one group, every other layer as one of its own."""
    keys = [owner[:depth] if owner and len(owner) >= depth else index for index, owner in enumerate(owners)]
    groups, begin = [], 0
    for _, members in groupby(keys):
        end = begin + len(list(members))
        groups.append(range(begin, end))
        begin = end
    return groups


def _thinned(source: Source, groups: Groups, most: int) -> Groups:
    """``most`` groups, made by joining, again and again, the two neighbours that take least together."""
    times = [lasting([source.seconds[index] for index in group]) or 0.0 if source.seconds else 0.0 for group in groups]
    # Of equal times, and where there are none, the number of layers counts.
    cost = np.array([time + 1e-15 * len(group) for time, group in zip(times, groups, strict=True)])
    while len(groups) > most:
        left = int(np.argmin(cost[:-1] + cost[1:]))
        groups[left : left + 2] = [range(groups[left][0], groups[left + 1][-1] + 1)]
        cost[left] += cost[left + 1]
        cost = np.delete(cost, left + 1)
    return groups


def _node(source: Source, owners: Sequence[Path | None], group: range, depth: int) -> Node:
    layers = [source.layers[index] for index in group]
    times = [source.seconds[index] for index in group] if source.seconds else []
    seconds = lasting(times)
    folded = len(layers) > 1
    known = [owner[:depth] if folded else owner for index in group if (owner := owners[index]) is not None]
    module = ancestor(known) if known else None
    return Node(
        name=".".join(module or ()) if folded else layers[0].name,
        role="folded" if folded else "layer",
        kind="" if folded else layers[0].kind,
        places=tuple(index + 1 for index in group),
        module=module,
        modules=tuple(dict.fromkeys(path for layer in layers for path in layer.modules)),
        operators=tuple(name for layer in layers for name in layer.operators),
        inputs=_outer([layer.inputs for layer in layers], [layer.outputs for layer in layers], folded),
        outputs=_outer([layer.outputs for layer in layers], [layer.inputs for layer in layers], folded),
        seconds=seconds,
        share=seconds / source.whole if seconds is not None and source.whole else None,
        precision=_mostly(layers, times),
        details={} if folded else details_of(layers[0]),
    )


def details_of(layer: Layer) -> dict[str, str]:
    """What a backend tells of a layer beside its tensors, as short texts; what it tells in groups, one by one."""
    told: list[tuple[str, Any]] = []
    for key, value in layer.details.items():
        told += value.items() if isinstance(value, dict) else [(key, value)]
    return {
        str(key)[:100]: str(value)[:200] for key, value in told[:40] if key not in INSPECTED and value not in ("", [])
    }


def _outer(of: Sequence[tuple[Tensor, ...]], others: Sequence[tuple[Tensor, ...]], folded: bool) -> tuple[Tensor, ...]:
    """A layer's tensors; of folded ones those with a name that are not among the others, each once."""
    if not folded:
        return of[0]
    inside = {tensor.name for tensors in others for tensor in tensors}
    return tuple({t.name: t for tensors in of for t in tensors if t.name and t.name not in inside}.values())


def _mostly(layers: Sequence[Layer], times: Sequence[float | None]) -> str:
    """The precision in which most of the time is spent; without times, that of most layers."""
    found: Counter[str] = Counter()
    for index, layer in enumerate(layers):
        found[precision_of(layer)] += (times[index] or 0.0) if times and any(times) else 1.0  # type: ignore[assignment]
    return found.most_common(1)[0][0]


def _between(edges: Sequence[Edge], place: dict[int, int]) -> list[Edge]:
    """Edges between nodes: each pair once; those within a node are gone, the model's inputs stay -1 and apart."""
    found: dict[tuple[int, int, bool, str], dict[str, Tensor]] = {}
    for edge in edges:
        tail, head = place.get(edge.tail, -1), place[edge.head]
        if tail != head:
            apart = edge.tensors[0].name if tail < 0 else ""
            found.setdefault((tail, head, edge.known, apart), {}).update({each.name: each for each in edge.tensors})
    return [
        Edge(tail=tail, head=head, tensors=tuple(tensors.values()), known=known)
        for (tail, head, known, _), tensors in found.items()
    ]


def _with_ends(
    source: Source,
    nodes: list[Node],
    edges: list[Edge],
    ends: Sequence[tuple[int, Tensor]],
    place: dict[int, int],
) -> tuple[list[Node], list[Edge]]:
    """The graph with a node for each of the model's inputs that is read, and for each of its outputs."""
    nodes, given = list(nodes), {}
    for tensor in source.inputs:
        if any(edge.tail < 0 and edge.tensors[0].name == tensor.name for edge in edges):
            given[tensor.name] = len(nodes)
            nodes.append(Node(name=tensor.name, role="input", outputs=(tensor,)))
    led = [replace(edge, tail=given.get(edge.tensors[0].name, -1)) if edge.tail < 0 else edge for edge in edges]
    for index, tensor in ends:
        led.append(Edge(tail=place[index], head=len(nodes), tensors=(tensor,)))
        nodes.append(Node(name=tensor.name, role="output", inputs=(tensor,)))
    return nodes, [edge for edge in led if edge.tail >= 0]


def _region_path(owners: Sequence[Path | None], group: range, depth: int) -> Path:
    """The module that a node lies in: a layer's own, a folded node's with the module itself left out."""
    known = [owner for index in group if (owner := owners[index]) is not None]
    if not known:
        return ()
    inside = ancestor([owner[:depth] if len(group) > 1 else owner for owner in known])
    return inside[:-1] if len(group) > 1 else inside


def _regions(paths: Sequence[Path], nodes: Sequence[Node], first: int = 0, level: int = 0) -> tuple[Region, ...]:
    """Nodes in a row that lie in the same module, as regions in regions; a region of one node would say nothing."""
    found: list[Region] = []
    begin = 0
    for name, members in groupby(paths, lambda path: path[level] if len(path) > level else None):
        end = begin + len(list(members))
        if name is not None and end - begin > 1:
            found.append(_region(paths[begin:end], nodes, first + begin, level + 1))
        begin = end
    return tuple(found)


def _region(paths: Sequence[Path], nodes: Sequence[Node], first: int, level: int) -> Region:
    """One region; levels at which nothing divides it are joined: ``encoder.layers``."""
    top = len(ancestor(paths))
    members = range(first, first + len(paths))
    seconds = lasting([nodes[index].seconds for index in members])
    shares = lasting([nodes[index].share for index in members])
    return Region(
        path=paths[0][:top],
        label=".".join(paths[0][level - 1 : top]),
        nodes=tuple(members),
        inner=_regions(paths, nodes, first, top),
        seconds=seconds,
        share=shares,
    )


def _folded(layers: int, nodes: int, depth: int, deepest: int, thinned: bool) -> list[str]:
    """What is folded, and what unfolds it."""
    ways = [f"modules are unfolded {depth} of {deepest} deep, --depth {depth + 1} unfolds more"] * (depth <= deepest)
    ways += ["those that take least are folded with the ones next to them in the order of execution"] * thinned
    return [f"{plural(layers, 'layer')} are drawn as {plural(nodes, 'node')}: {'; '.join(ways)}."] * (nodes < layers)
