"""The layers of TorchScript: the operators that its interpreter calls, and those it fused, traced back to modules.

In which module an operator was, the graph that ran tells; its tensors PyTorch's execution trace of one call that is
looked at and not timed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.profiling.layer_runs import Runnable, Taken
from inferlens.backends.profiling.operator_layers import Call, OperatorNames, numbered, outermost
from inferlens.backends.profiling.traced_runs import SPAN, TracedOperator, one_run
from inferlens.record.layer_profile import Layer, Tensor

GROUP, LOOP = "prim::TensorExprGroup", "prim::Loop"
NO_NAMES = "the graph that ran names no modules for them."
FROZEN = "it was frozen before it was saved. Freeze with the option of this backend instead."
SELF = ("TOP", "SELF", "UNKNOWN_INSTANCE", "INSTANCE_NAME_UNKNOWN")  # the module that called, or a function of it
MOST_WAYS = 64  # that are followed through a graph with branches
TYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "unsigned char": "uint8", "signed char": "int8",
}  # fmt: skip

# By how many calls it explains: how many nodes a way passes over, and what it takes, each with what it took before.
Ways = dict[int, tuple[int, Any]]
Tensors = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]  # inputs and outputs


class Modules:
    """The modules of a model, and their paths from the texts in which TorchScript names them."""

    def __init__(self, module: Any, wrapped: str = "") -> None:
        # A script module tells the types that it was made from; in what was traced the model may lie at a path.
        named = list(module.named_modules(remove_duplicate=False))
        first: dict[int, str] = {}
        for path, part in named:
            first.setdefault(id(part), path)
        self._types = {path: getattr(part, "original_name", type(part).__name__) for path, part in named}
        self._first = {path: first[id(part)] for path, part in named}  # TorchScript goes by any of a module's paths
        self._wrapped = wrapped
        self.named = False  # whether any node named one

    def path_of(self, node: Any) -> str | None:
        """The module of a node of the graph: the model itself where none is named; ``None`` if that is not known."""
        scope, instances = node.scopeName(), node.getModuleHierarchy()
        if not scope and not instances:
            return ""
        self.named = True
        path = self.of_scope(scope) if scope else None
        return self.of_instances(instances) if path is None and instances else path

    def of_scope(self, scope: str) -> str | None:
        """The path in a traced node's scope, such as ``__module.block/__module.block.0``."""
        path = scope.rpartition("/__module.")[2].removeprefix("__module.")
        if self._wrapped:
            path = path.removeprefix(self._wrapped).removeprefix(".")
        return self._first.get(path)

    def of_instances(self, text: str) -> str:
        """The path in the instances that a node was inlined from, such as ``block(Block).0(Conv2d)``.

        Modules that only hold others are not named there; where it is not told which of several it was, it is the path
        of what they all are in.
        """
        path = ""
        for part in text.split("."):
            name, _, kind = part.rpartition("(")
            if name in SELF or (name == self._wrapped and not path and name not in self._types):
                continue
            inner = self._below(path, name, kind.rstrip(")"))
            if inner is None:
                break
            path = inner
        return self._first[path]

    def _below(self, path: str, name: str, kind: str) -> str | None:
        """The module of a name that is called from one, which may lie in a list of modules or the like."""
        direct = f"{path}.{name}" if path else name
        if direct in self._types:
            return direct
        named = (item for item in self._types if item.rpartition(".")[2] == name)
        below = [item for item in named if not path or item.startswith(f"{path}.")]
        alike = {self._first[item] for item in below if self._types[item] == kind}
        return alike.pop() if len(alike) == 1 else None


class ExecutedNode(Struct):
    """A node of the graph that ran, with the kinds and modules of what it was fused from, and the blocks in it."""

    name: str
    kinds: tuple[str, ...]
    paths: tuple[str | None, ...]
    blocks: list[list[ExecutedNode]] = []


class ScriptNames(OperatorNames):
    """What the operators of a (frozen) script module are, from the graph that ran and one call that is looked at."""

    def __init__(self, runner: Runnable, modules: Modules, feed: Any, *, on_gpu: bool, frozen: bool) -> None:
        import torch

        with TemporaryDirectory(prefix="inferlens-") as folder:
            file = Path(folder, "execution.json")
            observer = torch.profiler.ExecutionTraceObserver().register_callback(str(file))
            root = one_run(runner, feed, on_gpu=on_gpu, execution_trace_observer=observer).root
            seen = tensors_in(file.read_bytes()) if file.is_file() else {}
        nodes = nodes_of(torch.jit.last_executed_optimized_graph(), modules)
        self._bare = frozen and not modules.named
        self.why_unknown = FROZEN if self._bare else NO_NAMES
        self._loops = any(node.name == LOOP for node in every(nodes))
        self._without_tensors = 0
        calls = self.calls(root)
        numbers = {id(operator): call for call, operator in numbered(root.every())}
        self._known = {
            call: self._named(operator.name, node, seen.get(numbers[id(operator)], ((), ())))
            for (call, operator), node in zip(calls, matched([name for (name, _), _ in calls], nodes), strict=True)
        }

    def calls(self, root: TracedOperator) -> list[tuple[Call, TracedOperator]]:
        """The operators of a run that the interpreter called itself."""
        return numbered(
            outermost(
                root, lambda traced_operator: "::" in traced_operator.name or traced_operator.name.startswith("fused_")
            )
        )

    def named(self, taken: Mapping[Call, Taken]) -> dict[Call, Layer]:
        """By module and operator, with a number where several are the same; the turns of a loop are one layer."""
        count: Counter[str] = Counter()
        alike: dict[Any, Layer] = {}
        found = {}
        for call in taken:
            layer = self._known.get(call) or Layer(name="", kind=short(call[0]), operators=(call[0],))
            key = (call[0], layer.modules, layer.inputs) if self._loops else call
            if key not in alike:
                name = "/".join(filter(None, (layer.modules[0] if layer.modules else "", layer.kind)))
                count[name] += 1
                alike[key] = replace(layer, name=name if count[name] == 1 else f"{name} #{count[name]}")
            found[call] = alike[key]
        self._without_tensors = sum(not layer.outputs for layer in alike.values())
        return found

    def absent(self) -> dict[str, str]:
        count = self._without_tensors
        return {"tensors": f"not known of {count} operators that were fused."} if count else {}

    def _named(self, name: str, node: ExecutedNode | None, tensors: Tensors) -> Layer:
        known = node.paths if node and not self._bare else ()
        return Layer(
            name="",
            kind=short(name),
            modules=tuple(dict.fromkeys(path for path in known if path is not None)),
            operators=tuple(dict.fromkeys(node.kinds)) if node else (name,),
            inputs=tensors[0],
            outputs=tensors[1],
        )


def nodes_of(block: Any, modules: Modules) -> list[ExecutedNode]:
    """The nodes of the graph that ran or of a block in it, in order."""
    found = []
    for node in block.nodes():
        kind, parts = node.kind(), [node]
        if kind == GROUP:
            parts = [item for item in node.g("Subgraph").nodes() if item.kind() != "prim::Constant"]
        blocks = [nodes_of(inner, modules) for inner in node.blocks()]
        found.append(
            ExecutedNode(kind, tuple(part.kind() for part in parts), tuple(map(modules.path_of, parts)), blocks)
        )
    return found


def every(nodes: list[ExecutedNode]) -> Iterator[ExecutedNode]:
    """All nodes, with those in the blocks of nodes."""
    for node in nodes:
        yield node
        for block in node.blocks:
            yield from every(block)


def within(nodes: list[ExecutedNode], words: set[str]) -> list[ExecutedNode]:
    """The nodes of some names, and those that hold such."""
    found = []
    for node in nodes:
        blocks = [within(block, words) for block in node.blocks]
        if any(blocks) or node.name in words:
            found.append(ExecutedNode(node.name, node.kinds, node.paths, blocks if any(blocks) else []))
    return found


def matched(names: list[str], nodes: list[ExecutedNode]) -> list[ExecutedNode | None]:
    """For each operator that was called, by name, the node that it was; ``None`` where that cannot be told.

    Without branches there are as many nodes of a name as calls, and they go by order. Else what was called
    is followed through the graph.
    """
    words = [GROUP if "::" not in name else name for name in names]
    alike: defaultdict[str, list[ExecutedNode]] = defaultdict(list)
    for node in every(nodes):
        alike[node.name].append(node)
    count, done = Counter(words), Counter[str]()
    followed: dict[int, ExecutedNode] = {}
    if any(len(alike[word]) != count[word] for word in count):
        seen = [place for place, word in enumerate(words) if alike[word]]
        ways = follow(within(nodes, set(words)), [words[place] for place in seen], {0: (0, None)})
        _, way = ways.get(len(seen), (0, None))
        for place in reversed(seen if way else []):
            way, followed[place] = way
    found: list[ExecutedNode | None] = []
    for place, word in enumerate(words):
        found.append(alike[word][done[word]] if len(alike[word]) == count[word] else followed.get(place))
        done[word] += 1
    return found


def follow(nodes: list[ExecutedNode], words: list[str], ways: Ways) -> Ways:
    """Ways through some nodes that explain calls.

    A branch takes the nodes of one of its blocks, a loop its own any number of times. Of ways that explain as many
    calls the one that passes over fewest nodes is kept, and of all ways only the best.
    """
    for node in nodes:
        after: Ways = dict(ways) if node.name == LOOP else {}
        turn = ways
        while turn and node.blocks:
            more = [way for block in node.blocks for way in follow(block, words, turn).items() if _keep(after, *way)]
            turn = dict(more) if node.name == LOOP else {}
        if not node.blocks:
            for at, (passed, item) in ways.items():
                _keep(after, at, (passed + 1, item))
                if at < len(words) and words[at] == node.name:
                    _keep(after, at + 1, (passed, (item, node)))
        ways = dict(sorted(after.items(), key=lambda way: way[1][0])[:MOST_WAYS])
    return ways


def _keep(ways: Ways, at: int, way: tuple[int, Any]) -> bool:
    better = at not in ways or way[0] < ways[at][0]
    if better:
        ways[at] = way
    return better


def short(kind: str) -> str:
    """A kind without its namespace, if it is one of PyTorch's own."""
    return kind.removeprefix("aten::").removeprefix("prim::")


def tensors_in(execution: bytes) -> dict[Call, Tensors]:
    """The tensors of each call of the run in an execution trace; none where it is not whole."""
    try:
        nodes = sorted(msgspec.json.decode(execution)["nodes"], key=lambda node: node["id"])  # in order of the begins
    except msgspec.MsgspecError:
        return {}
    begin = max((node["id"] for node in nodes if node["name"] == SPAN), default=0)
    count: Counter[str] = Counter()
    found = {}
    for node in nodes:
        if node["id"] >= begin:
            found[node["name"], count[node["name"]]] = tensors(node["inputs"]), tensors(node["outputs"])
            count[node["name"]] += 1
    return found


def tensors(values: dict[str, list[Any]]) -> tuple[Tensor, ...]:
    """The tensors among some values, those in lists too."""
    found: list[Tensor] = []
    for shape, kind in zip(values["shapes"], values["types"], strict=False):
        several = kind.startswith("GenericList[Tensor")
        dtype = kind.removeprefix("GenericList[").partition(",")[0].removeprefix("Tensor(").rstrip(")]")
        if kind.startswith("Tensor(") or several:
            shapes = [item for item in (shape if several else [shape]) if isinstance(item, list)]
            found += [Tensor(shape=tuple(shape), dtype=TYPES.get(dtype, dtype)) for shape in shapes]
    return tuple(tensor for tensor in found if "nullptr" not in tensor.dtype)
