"""What Inductor's generated code calls, in order, and the nodes of its graph that each call was made from.

Inductor notes, where it is asked to, before each call in its code a number, and for each number the nodes that it was
made from. A node has the stack of modules that Dynamo saw it in; one that replaced others, as a pattern does, has lost
it, and belongs to the module that lies before it as well as behind it. Inductor names too many nodes of a convolution
or a matrix product, and after it; which of them each call computes, ``inductor_steps`` tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from msgspec import Struct

from inferlens.backends.profiling.operator_runs import OURS
from inferlens.backends.torch_compile.steps import Step, narrow, step_of
from inferlens.record.layer_profile import Tensor

HANDLE = re.compile(r"# \[Provenance debug handles\] (\S+):(\d+)")
GRAPH = f"{OURS}graph "
KINDS = {
    "cpp": "C++", "triton_poi": "Triton pointwise", "triton_red": "Triton reduction", "triton_for": "Triton foreach",
    "triton_per": "Triton persistent reduction", "triton_tem": "Triton template", "triton": "Triton",
}  # fmt: skip
ALIASES = {  # Inductor's own, which call another
    "bias_addmm": "addmm", "conv1x1_via_mm": "matmul", "mm_dtype": "mm", "bmm_dtype": "bmm",
}  # fmt: skip


class Made(Struct):
    """One call in the generated code.

    Attributes:
        name: of the kernel, or of the library's operator without its namespace.
        extern: whether it is the operator of a library.
    """

    name: str
    kind: str
    extern: bool = False
    modules: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()


class Compiler:
    """Inductor, as it is asked to compile so that its kernels can be told apart and traced back.

    Attributes:
        graphs: what the code of each graph calls, in the order in which the graphs were compiled.
        told: whether this PyTorch has Inductor note what its calls were made from.
    """

    def __init__(self, module: Any, mode: str, *, on_gpu: bool) -> None:
        """
        Args:
            module: what is compiled, as its parts are named.
            mode: of ``torch.compile``; a mode's CUDA graphs are left out, because a replay tells no operators.
        """
        from torch import _inductor as inductor

        settings: dict[str, Any] = dict(inductor.list_mode_options(mode))
        settings |= {"triton.cudagraphs": False, "fx_graph_cache": False}
        if not on_gpu:
            settings["cpp.enable_kernel_profile"] = True
        self.told = hasattr(inductor.config.trace, "provenance_tracking_level")
        if self.told:
            settings["trace.provenance_tracking_level"] = 1
        self._settings = settings
        self._paths = {id(part): path for path, part in module.named_modules()}
        self.graphs: list[list[Made]] = []

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        """Compiles one of Dynamo's graphs; its calls are in a span that says which it is."""
        import torch
        from torch._functorch import config
        from torch._inductor.compile_fx import compile_fx
        from torch._inductor.graph import GraphLowering

        made: list[Made] = []
        span = f"{GRAPH}{len(self.graphs)}"
        self.graphs.append(made)
        before = GraphLowering.save_output_code
        with ExitStack() as entered:
            if hasattr(config, "enable_autograd_cache"):  # what comes from a cache is not made, and says nothing
                entered.enter_context(config.patch(enable_autograd_cache=False))
            if torch.__version__ < (2, 10):
                note_library_calls(entered)
            entered.callback(setattr, GraphLowering, "save_output_code", before)
            # A choice of autotuning may be a graph of its own, which is compiled before: the last one is what runs.
            GraphLowering.save_output_code = staticmethod(lambda code: made.__setitem__(slice(None), self._calls(code)))
            compiled = compile_fx(graph, inputs, config_patches=self._settings)

        def called(*arguments: Any) -> Any:
            with torch.profiler.record_function(span):
                return compiled(*arguments)

        return called

    def _calls(self, code: str) -> list[Made]:
        """The calls in a graph's code; Inductor is still at that graph."""
        from torch._inductor import debug
        from torch._inductor.virtualized import V

        known = getattr(debug, "_inductor_triton_kernel_to_post_grad_node_info", {})
        nodes = {node.name: node for node in V.graph.module.graph.nodes}
        place = {name: index for index, name in enumerate(nodes)}
        steps: list[Step] = []
        computed: set[Any] = set()  # by products so far, and with them
        done: set[Any] = set()  # by all calls so far
        for name, number in HANDLE.findall(code):
            names = (each for each in known.get(f"{name}:{number}", ()) if each in nodes)
            origins = [nodes[each] for each in sorted(names, key=place.__getitem__)]
            steps.append(step := step_of(*short_name(name), origins, computed, done))
            computed |= set(step.origins) if step.product else set()
            done |= set(step.origins)
        narrow(steps)
        before: set[Any] = set()
        found = []
        for step in steps:
            inner = step.origins if step.product else [node for node in step.origins if node not in computed]
            after = [node for node in step.origins if node in before and not step.product]  # whose outcome it works on
            found.append(self._made(step, inner, after))
            before |= set(step.origins) if step.product else set()
        return found

    def _made(self, step: Step, inner: list[Any], after: list[Any]) -> Made:
        """One call; ``inner`` are the nodes that it computes itself, ``after`` those that a product did before it."""
        name = step.name
        paths = (path_of(node, self._paths) for node in step.origins)
        inside = set(inner)
        reads = [each for node in inner for each in node.all_input_nodes if each not in inside]
        writes = [node for node in inner if any(user not in inside for user in node.users)]
        kind = next((KINDS[start] for start in sorted(KINDS, key=len, reverse=True) if name.startswith(start)), name)
        return Made(
            name=name,
            kind=name if step.extern else kind,
            extern=step.extern,
            modules=tuple(dict.fromkeys(path for path in paths if path is not None)),
            operators=tuple(dict.fromkeys(filter(None, map(operator_of, step.origins)))),
            inputs=tensors(dict.fromkeys(reads or after)),
            outputs=tensors(writes or after),
        )


def note_library_calls(entered: ExitStack) -> None:
    """Has PyTorch 2.9 note what operators of libraries were made from that return a new tensor, such as convolutions.

    It notes all other calls; newer ones note these, too.
    """
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.debug import set_kernel_post_grad_provenance_tracing as note

    def noting(generate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def generated(wrapper: Any, node: Any) -> Any:
            if name := node.python_kernel_name:
                wrapper.write_provenance_debug_handle(name, note(node, name, is_extern=True))
            return generate(wrapper, node)

        return generated

    for name in ("generate_extern_kernel_alloc", "generate_fallback_kernel"):
        before = getattr(PythonWrapperCodegen, name)
        entered.callback(setattr, PythonWrapperCodegen, name, before)
        setattr(PythonWrapperCodegen, name, noting(before))


def short_name(name: str) -> tuple[str, bool]:
    """The name of a call as the profiler will see it, without namespace, and whether it is a library's operator."""
    parts = name.removeprefix("torch.ops.").split(".")
    if len(parts) == 1:
        return name, False
    return ALIASES.get(parts[1], parts[1]), True


def path_of(node: Any, paths: dict[int, str]) -> str | None:
    """The path of the module that a node came from; the model itself's is empty, ``None`` is not known."""
    path = told_path(node, paths)
    if path is not None or node.op == "placeholder":
        return path
    before, behind = reached(node, "all_input_nodes", paths), reached(node, "users", paths)
    both = before & behind
    return both.pop() if len(both) == 1 else None


def told_path(node: Any, paths: dict[int, str]) -> str | None:
    """The path in a node's own stack of modules, which names them by their ids; ``None`` where it has lost that."""
    stack = node.meta.get("nn_module_stack") or {}
    for key, (text, _) in reversed(list(stack.items())):
        number = str(key).partition("@")[0]
        path = paths.get(int(number)) if number.isdigit() else None
        if path is None and isinstance(text, str):
            named = text.removeprefix("L['self']").removeprefix(".")
            path = named if named in paths.values() else None
        if path is not None:
            return path
    return "" if node.meta.get("stack_trace") or node.meta.get("source_fn_stack") else None


def reached(node: Any, way: str, paths: dict[int, str]) -> set[str]:
    """The modules of the nearest nodes before or behind one that have not lost theirs."""
    found: set[str] = set()
    waiting, seen = list(getattr(node, way)), {node}
    while waiting:
        each = waiting.pop()
        if each in seen or each.op in ("placeholder", "output"):
            continue
        seen.add(each)
        path = told_path(each, paths)
        if path is None:
            waiting += list(getattr(each, way))
        else:
            found.add(path)
    return found


def operator_of(node: Any) -> str:
    """The ATen operator that a node came from, as ``aten::convolution``."""
    word = str(node.meta.get("original_aten") or "")
    namespace, _, rest = word.partition(".")
    return f"{namespace}::{rest.partition('.')[0]}" if rest else ""


def tensors(nodes: Iterable[Any]) -> tuple[Tensor, ...]:
    """What nodes hold, as far as they are tensors; sizes that are free are those it was compiled with."""
    found = []
    for node in nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else (values,):
            if hasattr(value, "shape") and hasattr(value, "dtype"):
                shape = tuple(size if isinstance(size, int) else int(size.node.hint or 0) for size in value.shape)
                found.append(Tensor(name=node.name, shape=shape, dtype=str(value.dtype).removeprefix("torch.")))
    return tuple(found)
