"""What Dynamo captures of a module: from which modules the operators of each graph came, and why each graph ends.

Dynamo notes modules by their place in the function that it compiles, which after a break may be the ``forward`` of a
part of the model, and Torch-TensorRT's lowering forgets them. Here they become paths of the model and are kept on the
way. What is computed stays the same, and a path that is not certain is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferlens.backends.torch_tensorrt.library import replaced
from inferlens.backends.torch_tensorrt.operators import STACK, clean_path
from inferlens.record.partition import Interruption

BACKENDS = "torch_tensorrt.dynamo.backend.backends"
EXPORTS = "aot_export_joint_simple"
LOCAL = re.compile(r"^[LG]\[['\"][^'\"]*['\"]\]")  # what begins the name of everything in a compiled function
KINDS = re.compile(r"\._(?:parameters|buffers|modules)\b")


class Captured:
    """The graphs that Dynamo captures of a module, as they come."""

    def __init__(self) -> None:
        self._ends: list[Any] = []  # why each graph ended, one of each
        self._noted = 0  # reasons that Dynamo had noted before

    def backend(self, module: Any) -> Callable[..., Any]:
        """The backend for ``torch.compile`` of ``module``: Torch-TensorRT's, which is watched."""
        from torch._dynamo import lookup_backend, utils

        own = lookup_backend("torch_tensorrt")
        self._ends, self._noted = [], len(getattr(utils, "graph_break_reasons", ()))

        def torch_tensorrt(graph_module: Any, inputs: Any, **more: Any) -> Any:
            self._ends.append(getattr(graph_module, "compile_subgraph_reason", None))
            try:
                set_paths(graph_module, module)
            except Exception:  # these are notes of Dynamo's own, which change from version to version
                for node in graph_module.graph.nodes:
                    node.meta.pop(STACK, None)
            with kept_paths():
                return own(graph_module, inputs, **more)

        return torch_tensorrt

    def interruptions(self) -> tuple[Interruption, ...]:
        """Where Python runs between the graphs, in order."""
        from torch._dynamo import utils

        found: list[Interruption] = []
        graph = -1
        before: tuple[str, ...] = ()
        for each in list(getattr(utils, "graph_break_reasons", ()))[self._noted :]:
            graph = next((number for number, end in enumerate(self._ends) if end is each), graph)
            reason = short_reason(each.reason)
            lines = tuple(f"{Path(frame.filename).name} line {frame.lineno or 0}" for frame in each.user_stack or ())
            # A break in a function that is called: Dynamo has it of the caller, and then of the function itself.
            if not (lines and lines == before[-len(lines) :] and found[-1].reason == reason):
                called = f", called from {lines[0]}" if len(set(lines)) > 1 else ""
                found.append(Interruption(graph, reason, f"{lines[-1]}{called}" if lines else ""))
            before = lines
        known = {each.reason for each in found}
        rest = dict.fromkeys(short_reason(each) for each in utils.counters.get("graph_break", {}))
        return (*found, *(Interruption(graph, reason) for reason in rest if reason not in known))


def set_paths(graph_module: Any, module: Any) -> None:
    """Has every node of one of Dynamo's graphs carry the path of its module in ``module``, where that is certain."""
    known = dict(module.named_modules())
    own = own_path(graph_module, module)
    for node in graph_module.graph.nodes:
        stack = node.meta.pop(STACK, None)
        path = own
        if own is not None and stack:
            inner, kind = list(stack.values())[-1][:2]
            path = ".".join(filter(None, [own, clean_path(LOCAL.sub("", str(inner)))]))
            if path not in known or (isinstance(kind, type) and not isinstance(known[path], kind)):
                path = None
        if path is not None:
            node.meta[STACK] = {path: (path, type(known[path]))}


def own_path(graph_module: Any, module: Any) -> str | None:
    """Path of the module whose ``forward``, or a part of it, a graph of Dynamo's is; ``None`` if it is not certain.

    The module is known by the parameters that the graph reads; of a graph without any it is not.
    """
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for node in graph_module.graph.nodes:
        read = node.meta.get("grapharg") if node.op == "placeholder" else None
        source = getattr(read, "source", None)
        if read is None or source is None:
            continue
        name = source.name() if callable(source.name) else source.name
        local = clean_path(KINDS.sub("", LOCAL.sub("", name)))
        paths = [path for path, tensor in tensors if tensor is read.example]
        ends = [path for path in paths if path == local or path.endswith(f".{local}")]
        if local and len(ends) == 1:
            return str(ends[0]).removesuffix(local).rstrip(".")
    return None


@contextmanager
def kept_paths() -> Iterator[None]:
    """While it lasts, the lowering of Dynamo's graphs keeps the paths: as Inductor does it, node by node.

    Where that cannot be, the library's own way is taken, which forgets them.
    """
    from importlib import import_module

    import torch
    from torch.fx.traceback import preserve_node_meta

    backends = import_module(BACKENDS)
    own = getattr(backends, EXPORTS, None)
    if own is None:
        yield
        return

    def exported(graph_module: Any, inputs: Any, **more: Any) -> Any:
        def run(*arguments: Any) -> Any:
            return torch.fx.Interpreter(graph_module).run(*arguments)

        try:
            with preserve_node_meta():
                made = own(run, inputs, **more)
        except Exception:  # whatever it is, the library is asked as if nobody watched
            return own(graph_module, inputs, **more)
        for node in made.graph.nodes:
            if STACK in node.meta:  # nodes of one origin share it, and the library takes from it what it has read
                node.meta[STACK] = dict(node.meta[STACK])
        return made

    with replaced(backends, **{EXPORTS: exported}):
        yield


def short_reason(text: str) -> str:
    """What a reason of Dynamo's says, in one line: its title, and the line that begins ``Explanation:``."""
    title, *lines = [line.strip() for line in str(text).strip().splitlines()] or [""]
    why = next((line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")), "")
    return f"{title}: {why}".rstrip(".") if why else title
