"""The graph that TorchScript ran, and the operators of a call held against it, to tell the modules they came from.

Operators are distinguished by name and order, and followed through branches and loops. Around nodes that the profiler
does not see there are marks: spans, put into the graph before its first call.
``optimize_for_inference`` makes other nodes of convolutions and linear layers, and loses from which module they came;
they are taken, in their order, for the nodes that there were before, if these are as many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from inferlens.backends.profiling.traced_runs import OURS
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
LOOP = "prim::Loop"
MOST_WAYS = 64  # that are followed through a graph with branches

# By how many calls it explains: how many nodes a way passes over, and what it takes, each with what it took before.
Ways = dict[int, tuple[int, Any]]


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
        return modules.of_instances(self.instances) if path is None and self.instances else path

    @property
    def named(self) -> bool:
        """Whether a module is named."""
        return bool(self.scope or self.instances)


class GraphMarks(Struct):
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
    blocks: list[list[Step]] = []


def nodes_of(block: Any) -> Iterator[Any]:
    """All nodes of a graph or block, with those in the blocks of its nodes, in order."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes_of(inner)


def place_of(node: Any) -> Place:
    """Where a node is."""
    return Place(node.kind(), node.scopeName(), node.getModuleHierarchy())


def optimised(script: Any, *, on_gpu: bool) -> tuple[Any, GraphMarks]:
    """The module optimised for inference, with marks around the nodes that need them."""
    import torch

    given = torch.jit.freeze(script.eval()) if hasattr(script, "training") else script
    before = [place_of(node) for node in nodes_of(given.graph)]
    made = torch.jit.optimize_for_inference(given)
    nodes = list(nodes_of(made.graph))
    places = regained(before, nodes, on_gpu=on_gpu)
    unnamed = Counter(plain(place.kind) for place in before if not place.named)
    now = Counter(plain(node.kind()) for node in nodes if not place_of(node).named and id(node) not in places)
    lost = frozenset(kind for kind, count in now.items() if count > unnamed[kind])
    return made, GraphMarks(put_marks(made.graph, places), lost)


def plain(kind: str) -> str:
    """A kind without the mark of what works in place."""
    return kind.removesuffix("_")


def put_marks(graph: Any, places: dict[int, Place]) -> dict[str, Place]:
    """Puts marks around the nodes that have ``places``, and those that the profiler does not see."""
    marks: dict[str, Place] = {}
    for node in list(nodes_of(graph)):
        if id(node) in places or node.kind().startswith(UNSEEN):
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
                if was.named and not place_of(node).named
            }
    if on_gpu:
        return found  # where a sum is fused with others, and a mark would forbid that
    products = {node.output().debugName(): found[id(node)] for node in nodes if id(node) in found}
    for node in nodes:
        was = products.get(node.inputsAt(0).debugName()) if node.kind() == "aten::add" else None
        if was is not None and not place_of(node).named:  # the bias of a linear layer
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


def steps_of(block: Any) -> list[Step]:
    """The nodes of the executed graph or of a block in it, in order, without those in marks."""
    found: list[Step] = []
    marked = False
    for node in block.nodes():
        kind = node.kind()
        marked = kind == ENTER or (marked and kind != EXIT)
        blocks = [steps_of(each) for each in node.blocks()]
        if kind == GROUP:
            inner = [each for each in node.g("Subgraph").nodes() if each.kind() != "prim::Constant"]
            found.append(Step(GROUP, tuple(place_of(each) for each in inner)))
        elif blocks or not marked:
            found.append(Step(kind, (place_of(node),), blocks))
    return found


def every(steps: list[Step]) -> Iterator[Step]:
    """All nodes, with those in the blocks of nodes."""
    for step in steps:
        yield step
        for block in step.blocks:
            yield from every(block)


def within(steps: list[Step], words: set[str]) -> list[Step]:
    """The nodes of some names, and those that hold such."""
    found = []
    for step in steps:
        blocks = [within(block, words) for block in step.blocks]
        if any(blocks) or step.name in words:
            found.append(Step(step.name, step.places, blocks if any(blocks) else []))
    return found


def matched(names: list[str], steps: list[Step]) -> list[Step | None]:
    """For each operator that was called, by name, the node that it was; ``None`` where that cannot be told.

    Without branches there are as many nodes of a name as calls, and they go by order. Else what was called
    is followed through the graph.
    """
    words = [GROUP if "::" not in name else name for name in names]
    alike: defaultdict[str, list[Step]] = defaultdict(list)
    for step in every(steps):
        alike[step.name].append(step)
    count, done = Counter(words), Counter[str]()
    followed: dict[int, Step] = {}
    if any(len(alike[word]) != count[word] for word in count):
        seen = [place for place, word in enumerate(words) if alike[word]]
        ways = follow(within(steps, set(words)), [words[place] for place in seen], {0: (0, None)})
        _, way = ways.get(len(seen), (0, None))
        for place in reversed(seen if way else []):
            way, followed[place] = way
    found: list[Step | None] = []
    for place, word in enumerate(words):
        found.append(alike[word][done[word]] if len(alike[word]) == count[word] else followed.get(place))
        done[word] += 1
    return found


def follow(steps: list[Step], words: list[str], ways: Ways) -> Ways:
    """Ways through some nodes that explain calls, by how many calls they explain: nodes passed over, and nodes taken.

    A branch takes the nodes of one of its blocks, a loop its own any number of times. Of ways that explain as many
    calls the one that passes over fewest nodes is kept, and of all ways only the best.
    """
    for step in steps:
        after: Ways = {}
        if step.blocks:
            after = dict(ways) if step.name == LOOP else {}
            turn = ways
            while turn:
                better = [
                    each for block in step.blocks for each in follow(block, words, turn).items() if _keep(after, *each)
                ]
                turn = dict(better) if step.name == LOOP else {}
        else:
            for at, (passed, taken) in ways.items():
                _keep(after, at, (passed + 1, taken))
                if at < len(words) and words[at] == step.name:
                    _keep(after, at + 1, (passed, (taken, step)))
        ways = dict(sorted(after.items(), key=lambda way: way[1][0])[:MOST_WAYS])
    return ways


def _keep(ways: Ways, at: int, way: tuple[int, Any]) -> bool:
    better = at not in ways or way[0] < ways[at][0]
    if better:
        ways[at] = way
    return better
