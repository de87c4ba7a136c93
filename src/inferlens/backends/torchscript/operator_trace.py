"""One call of a script module that is looked at and not timed: the modules that each operator was in, and its tensors.

The profiler's trace has, for each operator, the stack of modules that TorchScript was in. It is not asked for where the
module was frozen: the stack then names functions that are no more, and reading it ends the process now and then.
PyTorch's execution trace has the tensors that went in and came out.
"""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from inferlens.backends.profiling.layer_runs import Runs
from inferlens.backends.profiling.operator_runs import Operator, one_run, tensor
from inferlens.record.layer_profile import Tensor


class Seen(Struct, frozen=True):
    """What one call of an operator showed."""

    hierarchy: str = ""
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()


class Arguments(Struct):
    """What the profiler's trace tells of an event."""

    number: int = msgspec.field(default=0, name="External id")
    function: int = msgspec.field(default=0, name="Record function id")
    hierarchy: str = msgspec.field(default="", name="Module Hierarchy")


class Event(Struct):
    """An event of the profiler's trace."""

    ph: str = ""
    args: Arguments = msgspec.field(default_factory=Arguments)


class Trace(Struct):
    """The profiler's trace."""

    traceEvents: list[msgspec.Raw]


class Values(Struct):
    """Tensors of a node of the execution trace, among other values."""

    shapes: list[Any] = []
    types: list[str] = []


class Node(Struct):
    """A node of the execution trace."""

    attrs: list[dict[str, Any]] = []
    inputs: Values = msgspec.field(default_factory=Values)
    outputs: Values = msgspec.field(default_factory=Values)


class Nodes(Struct):
    """The execution trace."""

    nodes: list[Node]


def look(runner: Runs, feed: Any, *, on_gpu: bool, modules: bool) -> tuple[Operator, dict[int, Seen]]:
    """One call: what was called in it, and by the operators' numbers what it showed.

    Args:
        modules: whether to look for the modules that operators were in.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace, execution = Path(folder, "trace.json"), Path(folder, "execution.json")
        root, profile = one_run(runner, feed, on_gpu=on_gpu, **asked(execution, modules=modules))
        profile.export_chrome_trace(str(trace))
        arguments = arguments_in(trace.read_bytes())
        nodes = nodes_in(execution.read_bytes()) if execution.is_file() else {}
    return root, {each.number: seen_of(each.hierarchy, nodes.get(each.function)) for each in arguments}


def asked(path: Path, *, modules: bool) -> dict[str, Any]:
    """What the profiler is asked for: the execution trace in a file, and modules; both where this PyTorch has them."""
    from torch.profiler import profile

    known = inspect.signature(profile).parameters
    more: dict[str, Any] = {"with_modules": True} if modules and "with_modules" in known else {}
    if "execution_trace_observer" in known:
        from torch.profiler import ExecutionTraceObserver

        more["execution_trace_observer"] = ExecutionTraceObserver().register_callback(str(path))
    return more


def arguments_in(trace: bytes) -> list[Arguments]:
    """What a trace tells of each event that has a number."""
    found = []
    for raw in msgspec.json.decode(trace, type=Trace).traceEvents:
        try:
            event = msgspec.json.decode(raw, type=Event)
        except msgspec.ValidationError:  # of another kind, with arguments of its own
            continue
        if event.ph == "X" and event.args.number:
            found.append(event.args)
    return found


def nodes_in(execution: bytes) -> dict[int, Node]:
    """The nodes of an execution trace by the number of their record function; none where it is not whole."""
    try:
        nodes = msgspec.json.decode(execution, type=Nodes).nodes
    except msgspec.MsgspecError:
        return {}
    return {each["value"]: node for node in nodes for each in node.attrs if each.get("name") == "rf_id"}


def seen_of(hierarchy: str, node: Node | None) -> Seen:
    """What is known of one operator."""
    return Seen(hierarchy, tensors(node.inputs), tensors(node.outputs)) if node else Seen(hierarchy)


def tensors(values: Values) -> tuple[Tensor, ...]:
    """The tensors among some values, those in lists too."""
    found: list[Tensor] = []
    for shape, kind in zip(values.shapes, values.types, strict=False):
        inner = [shape]
        if kind.startswith("GenericList[Tensor"):
            inner, kind = shape, kind.removeprefix("GenericList[").partition(",")[0].rstrip("]")
        if kind.startswith("Tensor("):
            made = (tensor(each, kind.removeprefix("Tensor(").rstrip(")")) for each in inner)
            found += [each for each in made if each is not None and "nullptr" not in each.dtype]
    return tuple(found)
