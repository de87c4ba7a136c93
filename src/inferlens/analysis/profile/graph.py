"""The layers of one case as a graph: nodes in the order of execution, edges from one to another where a tensor leads.

Edges come from the names of tensors: a layer that reads a name follows every earlier layer that writes it. What nobody
writes is an input of the model or, if it is none, a weight, which is no edge. Where layers have no names of tensors,
the only thing known is the order in which they ran; they are then a chain, and the graph says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from msgspec import Struct

from inferlens.analysis.profile.layers import runs_of
from inferlens.analysis.profile.modules import Path
from inferlens.record.layer_profile import Layer, Profile, Tensor
from inferlens.trace.precision import precision_in

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


def source_of(profile: Profile, title: str, about: str = "", unprofiled: Sequence[float] = ()) -> GraphSource | str:
    """Return a profile's layers with typical times, or why there are none; ``unprofiled`` as in :func:`runs_of`."""
    runs = runs_of(profile, "layer", unprofiled)
    if isinstance(runs, str) or profile.layers is None:
        return str(runs)
    tensor_specs = profile.model.inputs or profile.case.inputs
    return GraphSource(
        title=title,
        about=about,
        layers=profile.layers.layers,
        seconds=tuple(runs.typical(row) if runs.was_timed[at] else None for at, row in enumerate(runs.layers)),
        whole=runs.typical(runs.whole),
        inputs=tuple(Tensor(name=spec.name, shape=tuple(spec.shape), dtype=spec.dtype) for spec in tensor_specs),
        notes=tuple(f"{what}: {why}" for what, why in profile.layers.absent.items() if what != "begins"),
    )


def flow_of(source: GraphSource) -> tuple[list[Edge], list[tuple[int, Tensor]], list[str]]:
    """Return which layer reads from which (-1: the model's input), what leaves the model, and what is not known."""
    edges = list(islice(_by_name(source), MOST_EDGES + 1))
    notes = [TOO_MANY_EDGES] if len(edges) > MOST_EDGES else []
    edges = edges[:MOST_EDGES]
    if not any(edge.tail >= 0 for edge in edges) and len(source.layers) > 1:
        chain = [Edge(tail=index, head=index + 1, known=False) for index in range(len(source.layers) - 1)]
        return chain, [], [*notes, ORDER_ONLY]
    edges += [  # what names no tensors follows the layer before
        Edge(tail=index - 1, head=index, known=False) for index, layer in enumerate(source.layers)
        if index and not any(tensor.name for tensor in (*layer.inputs, *layer.outputs))
    ]  # fmt: skip
    return edges, list(_ends(source, {edge.tail for edge in edges})), notes


def _by_name(source: GraphSource) -> Iterator[Edge]:
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


def _ends(source: GraphSource, read: set[int]) -> Iterator[tuple[int, Tensor]]:
    """Layers and the tensor of theirs that leaves the model: by its outputs' names, or if nobody reads the layer."""
    names = {tensor.name for tensor in source.outputs}
    for index, layer in enumerate(source.layers):
        leaving = [tensor for tensor in layer.outputs if tensor.name in names]
        if not names and index not in read:
            leaving = [tensor for tensor in layer.outputs[:1] if tensor.name]
        yield from ((index, tensor) for tensor in leaving)


def lasting(seconds: Sequence[float | None]) -> float | None:
    """The sum of the times that are known; ``None`` if there is none."""
    known = [time for time in seconds if time is not None]
    return sum(known) if known else None


def precision_of(layer: Layer) -> str:
    """What a layer computes in: what the backend says of it, or else the type of its first output; empty if not known.

    A layer that only turns out indices or truth values is ``int`` or ``bool``.
    """
    written = (f"{tensor.dtype} {tensor.format}" for tensor in (*layer.outputs, *layer.inputs))
    told = (layer.precision, str(layer.details.get("precision", "")), *written)
    return next(filter(None, map(precision_in, told)), "")
