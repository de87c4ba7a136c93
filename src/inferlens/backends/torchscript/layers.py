"""The layers of TorchScript: the operators that its interpreter calls, and those it fused, traced back to modules.

In which module an operator was, the graph that ran tells; its tensors PyTorch's execution trace of one call that is
looked at and not timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.profiling.layer_runs import Runnable, Taken
from inferlens.backends.profiling.operator_layers import Call, NamedLayer, OperatorNames, numbered, outermost
from inferlens.backends.profiling.traced_runs import SPAN, TracedOperator, one_run
from inferlens.backends.torchscript.graph import (
    INSERTED,
    LOOP,
    MARK,
    GraphMarks,
    Place,
    Step,
    every,
    matched,
    plain,
    steps_of,
)
from inferlens.backends.torchscript.scopes import Modules
from inferlens.record.layer_profile import Tensor

INTERNAL = "by TorchScript, to change the layout of memory"
NO_NAMES = "the graph that ran names no modules for them."
FROZEN = "it was frozen before it was saved. Freeze with the option of this backend instead."
NO_TENSORS = "not known of {} operators that run in oneDNN or were fused."
TYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "unsigned char": "uint8", "signed char": "int8",
}  # fmt: skip


class ScriptNames(OperatorNames):
    """What the operators of a script module are, from the graph that ran and one call that is looked at."""

    def __init__(
        self, runner: Runnable, modules: Modules, marks: GraphMarks, feed: Any, *, on_gpu: bool, frozen: bool
    ) -> None:
        """
        Args:
            frozen: whether the module's calls were inlined by freezing.
        """
        import torch

        with TemporaryDirectory(prefix="inferlens-") as folder:
            file = Path(folder, "execution.json")
            observer = torch.profiler.ExecutionTraceObserver().register_callback(str(file))
            root = one_run(runner, feed, on_gpu=on_gpu, execution_trace_observer=observer).root
            seen = tensors_in(file.read_bytes()) if file.is_file() else {}
        steps = steps_of(torch.jit.last_executed_optimized_graph())
        places = [place for step in every(steps) for place in step.places]
        self._modules = modules
        self._marks = marks.places
        self._loops = any(step.name == LOOP for step in every(steps))
        bare = frozen and not any(place.named for place in (*places, *marks.places.values()))
        self._lost = frozenset(plain(place.kind) for place in places) if bare else marks.lost
        self.why_unknown = FROZEN if bare else NO_NAMES
        self._without_tensors = 0
        calls = self.calls(root)
        nodes = iter(matched([name for (name, _), _ in calls if not name.startswith(MARK)], steps))
        numbers = {id(operator): call for call, operator in numbered(root.every())}
        self._known = {call: self._origin(operator, seen, numbers, nodes) for call, operator in calls}

    def calls(self, root: TracedOperator) -> list[tuple[Call, TracedOperator]]:
        """The operators of a run that the interpreter called itself."""
        return numbered(outermost(root, lambda each: "::" in each.name or each.name.startswith((MARK, "fused_"))))

    def named(self, taken: Mapping[Call, Taken]) -> dict[Call, NamedLayer]:
        """By module and operator, with a number where several are the same; the turns of a loop are one layer."""
        count: Counter[str] = Counter()
        alike: dict[Any, NamedLayer] = {}
        found = {}
        for call in taken:
            key, known = self._known.get(call) or (call, NamedLayer("", short(call[0]), operators=(call[0],)))
            if key not in alike:
                name = "/".join(filter(None, (known.modules[0] if known.modules else "", known.kind)))
                count[name] += 1
                alike[key] = replace(known, name=name if count[name] == 1 else f"{name} #{count[name]}")
            found[call] = alike[key]
        self._without_tensors = sum(not each.outputs for each in {each.name: each for each in found.values()}.values())
        return found

    def absent(self) -> dict[str, str]:
        """Tensors that were not seen."""
        return {"tensors": NO_TENSORS.format(self._without_tensors)} if self._without_tensors else {}

    def _origin(
        self,
        operator: TracedOperator,
        seen: dict[Call, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]],
        numbers: dict[int, Call],
        nodes: Iterator[Step | None],
    ) -> tuple[Any, NamedLayer]:
        """What is known of one call of an operator, and what is the same for calls that are turns of one loop.

        Args:
            nodes: those of all calls that are in no mark, in order.
        """
        place = self._marks.get(operator.name)
        if place is not None:
            inner = next((each for each in operator.inside if each.name == place.kind), operator)
            found = self._named(place.kind, (place,), seen.get(numbers[id(inner)]))
            return operator.name, replace(found, operators=(place.operator or place.kind,))
        step = next(nodes)
        found = self._named(operator.name, step.places if step else (), seen.get(numbers[id(operator)]))
        return (operator.name, found.modules, found.inputs) if self._loops else object(), found

    def _named(
        self, kind: str, places: tuple[Place, ...], tensors: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None
    ) -> NamedLayer:
        paths = (self._path(place) for place in places)
        inserted = kind in INSERTED
        return NamedLayer(
            name="",
            kind=short(kind),
            modules=() if inserted else tuple(dict.fromkeys(path for path in paths if path is not None)),
            operators=tuple(dict.fromkeys(place.kind for place in places)) or (kind,),
            inputs=tensors[0] if tensors else (),
            outputs=tensors[1] if tensors else (),
            inserted=INTERNAL if inserted else "",
        )

    def _path(self, place: Place) -> str | None:
        """The module of a node: the model itself where none is named, unless that may have been lost."""
        path = place.path(self._modules)
        return "" if path is None and not place.named and plain(place.kind) not in self._lost else path


def short(kind: str) -> str:
    """A kind without its namespace, if it is one of PyTorch's own."""
    return kind.removeprefix("aten::").removeprefix("prim::")


class NodeValues(Struct):
    """Tensors of a node of the execution trace, among other values."""

    shapes: list[Any] = []
    types: list[str] = []


class ExecutionNode(Struct):
    """A node of the execution trace; the numbers rise in the order of the begins."""

    id: int
    name: str
    inputs: NodeValues = msgspec.field(default_factory=NodeValues)
    outputs: NodeValues = msgspec.field(default_factory=NodeValues)


class ExecutionTrace(Struct):
    """The execution trace."""

    nodes: list[ExecutionNode]


def tensors_in(execution: bytes) -> dict[Call, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """The inputs and outputs of each call of the run in an execution trace; none where it is not whole."""
    try:
        nodes = sorted(msgspec.json.decode(execution, type=ExecutionTrace).nodes, key=lambda node: node.id)
    except msgspec.MsgspecError:
        return {}
    begin = max((node.id for node in nodes if node.name == SPAN), default=0)
    count: Counter[str] = Counter()
    found = {}
    for node in nodes:
        if node.id >= begin:
            found[node.name, count[node.name]] = tensors(node.inputs), tensors(node.outputs)
            count[node.name] += 1
    return found


def tensors(values: NodeValues) -> tuple[Tensor, ...]:
    """The tensors among some values, those in lists too."""
    found: list[Tensor] = []
    for shape, kind in zip(values.shapes, values.types, strict=False):
        several = kind.startswith("GenericList[Tensor")
        dtype = kind.removeprefix("GenericList[").partition(",")[0].removeprefix("Tensor(").rstrip(")]")
        if kind.startswith("Tensor(") or several:
            shapes = [each for each in (shape if several else [shape]) if isinstance(each, list)]
            found += [Tensor(shape=tuple(each), dtype=TYPES.get(dtype, dtype)) for each in shapes]
    return tuple(each for each in found if "nullptr" not in each.dtype)
