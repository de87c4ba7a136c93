"""What Dynamo captures of a module: from which modules the operators of each graph came, and why each graph ends.

Dynamo notes modules by their place in the function that it compiles, which after a break may be the ``forward`` of a
part of the model, and Torch-TensorRT's lowering forgets them. Here they become paths of the model and are kept on the
way. What is computed stays the same, and a path that is not certain is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isfunction
from pathlib import Path
from typing import Any

from inferlens.backends.torch_tensorrt.operators import clean_path
from inferlens.record.partition import Interruption

BACKENDS = "torch_tensorrt.dynamo.backend.backends"
EXPORTS = "aot_export_joint_simple"
STACK = "nn_module_stack"
LOCAL = re.compile(r"^[LG]\[['\"][^'\"]*['\"]\]")  # what begins the name of everything in a compiled function
FRAME = re.compile(r'File "([^"]+)", line (\d+)')
KINDS = re.compile(r"\._(?:parameters|buffers|modules)\b")
Place = tuple[str, int]  # file and line


class Captured:
    """The graphs that Dynamo captures of a module, as they come."""

    def __init__(self) -> None:
        self._module: Any = None
        self._ends: list[Any] = []  # why each graph ended, one of each
        self._noted = 0  # reasons that Dynamo had noted before

    def backend(self, module: Any) -> Callable[..., Any]:
        """The backend for ``torch.compile`` of ``module``: Torch-TensorRT's, which is watched."""
        from torch._dynamo import lookup_backend, utils

        own = lookup_backend("torch_tensorrt")
        self._module = module
        self._ends, self._noted = [], len(getattr(utils, "graph_break_reasons", ()))

        def torch_tensorrt(graph_module: Any, inputs: Any, **more: Any) -> Any:
            self._ends.append(getattr(graph_module, "compile_subgraph_reason", None))
            try:
                set_paths(graph_module, self._module)
            except Exception:  # these are notes of Dynamo's own, which change from version to version
                for node in graph_module.graph.nodes:
                    node.meta.pop(STACK, None)
            with kept_paths():
                return own(graph_module, inputs, **more)

        return torch_tensorrt

    def interruptions(self) -> tuple[Interruption, ...]:
        """Where Python runs between the graphs, in order."""
        from torch._dynamo import utils

        reasons = list(getattr(utils, "graph_break_reasons", ()))[self._noted :]
        found: list[Interruption] = []
        graph = -1
        before: tuple[Place, ...] = ()
        for each in reasons:
            graph = next((number for number, end in enumerate(self._ends) if end is each), graph)
            stack = tuple((frame.filename, frame.lineno or 0) for frame in each.user_stack or ())
            # A break in a function that is called: Dynamo tells it of the caller, and then of the function itself.
            if not (stack and stack == before[-len(stack) :] and found[-1].reason == told_reason(each.reason)):
                found.append(Interruption(graph, told_reason(each.reason), told_place(stack), self._path_in(stack)))
            before = stack
        known = {each.reason for each in found}
        rest = [reason for each in utils.counters.get("graph_break", {}) if (reason := told_reason(each)) not in known]
        return (*found, *(Interruption(graph, reason) for reason in rest))

    def _path_in(self, stack: Sequence[Place]) -> str | None:
        """Path of the innermost module that has one of these lines, if just one has it."""
        try:
            inner = (paths for place in reversed(stack) if (paths := paths_at(self._module, place)))
            return only(next(inner, []))
        except Exception:  # source code that is not there, or is of no file
            return None


def set_paths(graph_module: Any, module: Any) -> None:
    """Has every node of one of Dynamo's graphs carry the path of its module in ``module``, where that is certain."""
    known = dict(module.named_modules())
    own = own_path(graph_module, module)
    for node in graph_module.graph.nodes:
        stack = node.meta.pop(STACK, None)
        path = own
        if own is not None and stack:
            inner, kind = list(stack.values())[-1][:2]
            path = _joined(own, clean_path(LOCAL.sub("", str(inner))))
            if path not in known or (isinstance(kind, type) and not isinstance(known[path], kind)):
                path = None
        if path is not None:
            node.meta[STACK] = {path: (path, type(known[path]))}


def own_path(graph_module: Any, module: Any) -> str | None:
    """Path of the module whose ``forward``, or a part of it, a graph of Dynamo's is; ``None`` if it is not certain.

    The module is known by the parameters that the graph reads, or else by where the code stands.
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
    places = (FRAME.search(node.meta.get("stack_trace") or "") for node in graph_module.graph.nodes)
    first = next((place for place in places if place), None)
    return only(paths_at(module, (first[1], int(first[2])))) if first else None


def paths_at(module: Any, place: Place) -> list[str]:
    """Paths of the modules whose class has this line."""
    file, line = place
    return [path for path, part in module.named_modules() if _has_line(type(part), file, line)]


def only(paths: Sequence[str]) -> str | None:
    """The path, if there is just one."""
    return paths[0] if len(paths) == 1 else None


def _has_line(kind: type, file: str, line: int) -> bool:
    from torch import nn

    own = (base for base in kind.__mro__ if base is not nn.Module)
    codes = (function.__code__ for base in own for function in vars(base).values() if isfunction(function))
    for code in codes:
        if code.co_filename == file and code.co_firstlineno <= line:
            last = max((end for *_, end in code.co_lines() if end), default=0)
            if line <= last:
                return True
    return False


def _joined(path: str, inner: str) -> str:
    return ".".join(filter(None, [path, inner]))


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

    setattr(backends, EXPORTS, exported)
    try:
        yield
    finally:
        setattr(backends, EXPORTS, own)


def told_reason(text: str) -> str:
    """What a reason of Dynamo's says, in one line: what happened, and with what.

    Its own form is a title, then lines that begin ``Explanation:``, ``Hint:`` and ``Developer debug context:``.
    """
    lines = [line.strip() for line in str(text).strip().splitlines()]
    title = lines[0] if lines else ""
    for line in lines[1:]:
        if line.startswith("Explanation:"):
            return f"{title}: {line.removeprefix('Explanation:').strip()}".rstrip(".")
    return title


def told_place(stack: Sequence[Place]) -> str:
    """``model.py line 7``; of code that was called from elsewhere, also from where."""
    places = [f"{Path(file).name} line {line}" for file, line in stack]
    if not places:
        return ""
    return places[-1] if len(set(places)) == 1 else f"{places[-1]}, called from {places[0]}"
