"""The graph that TorchScript ran, and the operators of a call held against it, to tell the modules they came from.

Operators are told apart by name and order, which is enough in a graph without branches. In a frozen graph with some,
and around nodes that the profiler does not see, there are marks: spans, put into the graph before its first call.
``optimize_for_inference`` makes other nodes of convolutions and linear layers, and loses from which module they came;
they are taken, in their order, for the nodes that there were before, if these are as many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from inferlens.backends.profiling.operator_runs import OURS
from inferlens.backends.torchscript.scopes import Modules

MARK = f"{OURS}mark "
ENTER, EXIT = "profiler::_record_function_enter", "profiler::_record_function_exit"
GROUP = "prim::TensorExprGroup"
CONVOLUTIONS = frozenset({
    "aten::_convolution", "aten::convolution", "aten::conv1d", "aten::conv2d", "aten::conv3d",
    "prim::mkldnn_convolution", "aten::cudnn_convolution_relu", "aten::cudnn_convolution_add_relu",
})  # fmt: skip
PRODUCTS = frozenset({"aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::addmm"})
UNSEEN = ("prim::mkldnn", "prim::MKLDNN", "prim::BroadcastMKLDNN")  # by the profiler
INSERTED = frozenset({"aten::to_mkldnn", "aten::to_dense", "prim::BroadcastMKLDNNTensors"})
BRANCHES = ("prim::If", "prim::Loop")


class Place(Struct, frozen=True):
    """Where a node is.

    Attributes:
        scope, instances: the texts of its scope, and of the instances that it was inlined from.
        operator: what it was before it was optimised, where that is known.
    """

    kind: str
    scope: str = ""
    instances: str = ""
    operator: str = ""

    def path(self, modules: Modules) -> str | None:
        """The module that it came from; ``None`` if the texts name none."""
        path = modules.of_scope(self.scope) if self.scope else None
        return modules.of_stack(self.instances) if path is None and self.instances else path

    @property
    def told(self) -> bool:
        """Whether a module is named."""
        return bool(self.scope or self.instances)


class Marks(Struct):
    """What was learned as a graph was optimised.

    Attributes:
        places: of the nodes in marks, by the mark's name.
        lost: kinds of which some nodes have lost their module, so that one without is not the model's own.
    """

    places: dict[str, Place] = {}
    lost: frozenset[str] = frozenset()


class Step(Struct):
    """A node that may be seen as an operator; several places where it was fused."""

    name: str
    places: tuple[Place, ...]


def nodes_of(block: Any) -> Iterator[Any]:
    """All nodes of a graph or block, with those in the blocks of its nodes, in order."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes_of(inner)


def place_of(node: Any) -> Place:
    """Where a node is."""
    return Place(node.kind(), node.scopeName(), node.getModuleHierarchy())


def frozen(script: Any, *, on_gpu: bool) -> tuple[Any, Marks]:
    """The module frozen, with marks where it has branches."""
    import torch

    made = torch.jit.freeze(script.eval())
    return made, Marks(put_marks(made.graph, {}, on_gpu=on_gpu))


def optimised(script: Any, *, on_gpu: bool) -> tuple[Any, Marks]:
    """The module optimised for inference, with marks around the nodes that need them."""
    import torch

    given = torch.jit.freeze(script.eval()) if hasattr(script, "training") else script
    before = [place_of(node) for node in nodes_of(given.graph)]
    made = torch.jit.optimize_for_inference(given)
    nodes = list(nodes_of(made.graph))
    places = regained(before, nodes, on_gpu=on_gpu)
    untold = Counter(plain(place.kind) for place in before if not place.told)
    now = Counter(plain(node.kind()) for node in nodes if not place_of(node).told and id(node) not in places)
    lost = frozenset(kind for kind, count in now.items() if count > untold[kind])
    return made, Marks(put_marks(made.graph, places, on_gpu=on_gpu), lost)


def plain(kind: str) -> str:
    """A kind without the mark of what works in place."""
    return kind.removesuffix("_")


def put_marks(graph: Any, places: dict[int, Place], *, on_gpu: bool) -> dict[str, Place]:
    """Puts marks around the nodes that have ``places``, that are not seen, and with branches around all but on a GPU.

    On a GPU they would keep TorchScript from fusing what is in them.
    """
    nodes = list(nodes_of(graph))
    everywhere = not on_gpu and any(node.kind() in BRANCHES for node in nodes)
    marks: dict[str, Place] = {}
    for node in nodes:
        computes = node.kind().startswith("aten::") and any("Tensor" in str(out.type()) for out in node.outputs())
        if id(node) in places or node.kind().startswith(UNSEEN) or (everywhere and computes):
            name = f"{MARK}{len(marks)}"
            marks[name] = places.get(id(node)) or place_of(node)
            put_mark(graph, node, name)
    return marks


def regained(before: list[Place], nodes: list[Any], *, on_gpu: bool) -> dict[int, Place]:
    """The places of those nodes that have lost theirs, by the nodes' ids."""
    found: dict[int, Place] = {}
    old, new = defaultdict(list), defaultdict(list)
    for place in before:
        old[word_of(place.kind)].append(place)
    for node in nodes:
        new[word_of(node.kind())].append(node)
    for word, alike in new.items():
        if len(old[word]) == len(alike):
            found |= {
                id(node): Place(node.kind(), was.scope, was.instances, was.kind)
                for was, node in zip(old[word], alike, strict=True)
                if was.told and not place_of(node).told
            }
    if on_gpu:
        return found  # where a sum is fused with others, and a mark would forbid that
    products = {node.output().debugName(): found[id(node)] for node in nodes if id(node) in found}
    for node in nodes:
        was = products.get(node.inputsAt(0).debugName()) if node.kind() == "aten::add" else None
        if was is not None and not place_of(node).told:  # the bias of a linear layer
            found[id(node)] = Place(node.kind(), was.scope, was.instances, was.operator)
    return found


def word_of(kind: str) -> str:
    """What kinds have in common that stand for one another: those of a convolution, of a product, of an activation."""
    if kind in CONVOLUTIONS or kind in PRODUCTS:
        return "convolution" if kind in CONVOLUTIONS else "product"
    word = plain(kind).removeprefix("aten::").removeprefix("prim::MKLDNN").lower()
    return "hardtanh" if word == "relu6" else word


def put_mark(graph: Any, node: Any, name: str) -> None:
    """Has the profiler see a node, as a span of that name."""
    graph.setInsertPoint(node)
    entered = graph.create(ENTER, [graph.insertConstant(name), graph.insertConstant(None)], 1)
    entered.insertBefore(node)
    left = graph.create(EXIT, [entered.output()], 0)
    left.insertAfter(node)


def steps_of(graph: Any) -> list[Step]:
    """The nodes of the executed graph in order, without those in marks."""
    found: list[Step] = []
    marked = False

    def walk(block: Any) -> None:
        nonlocal marked
        for node in block.nodes():
            kind = node.kind()
            marked = kind == ENTER or (marked and kind != EXIT)
            if kind == GROUP:
                inner = [each for each in node.g("Subgraph").nodes() if each.kind() != "prim::Constant"]
                found.append(Step(GROUP, tuple(place_of(each) for each in inner)))
            elif not marked:
                found.append(Step(kind, (place_of(node),)))
            for inner_block in node.blocks():
                walk(inner_block)

    walk(graph)
    return found


def matched(names: list[str], steps: list[Step]) -> list[Step | None]:
    """For each operator that was called, by name, the node that it was; ``None`` where that cannot be told.

    That is by order where there are as many nodes of that name as calls; else where all nodes are in the same place.
    """
    alike: defaultdict[str, list[Step]] = defaultdict(list)
    for step in steps:
        alike[step.name].append(step)
    words = [GROUP if "::" not in name else name for name in names]
    count, done = Counter(words), Counter[str]()
    found: list[Step | None] = []
    for word in words:
        there = alike[word]
        if len(there) == count[word]:
            found.append(there[done[word]])
        else:
            found.append(there[0] if len({step.places for step in there}) == 1 else None)
        done[word] += 1
    return found
