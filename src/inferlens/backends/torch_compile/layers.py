"""The layers of Inductor: the kernels that it generated and the operators of libraries that its code calls.

Inductor notes, where it is asked to, before each call in its code a number, and for each number the nodes of its graph
that it was made from. A node has the stack of modules that Dynamo saw it in; one that replaced others, as a pattern
does, has lost it, and belongs to the module that lies before it as well as behind it; at an end of the graph, to the
one beside it. The profiler sees each call by its name, and which call of the code it was is told by its order among
those of its name, in its graph. What Python runs between graphs are operators without a module.

Of a quantized model Inductor puts a product, what follows it and the quantizing of that into one call of oneDNN, of
which it knows the last alone: the others are found in Dynamo's graph, from there back to the product.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from typing import Any

from msgspec.structs import replace

from inferlens.backends.profiling.kernels import Call, OperatorNames, numbered, outermost
from inferlens.backends.profiling.layers import Taken
from inferlens.backends.profiling.traces import OURS, TracedOperator
from inferlens.record.layer_profile import Layer, Tensor
from inferlens.trace.precision import first_precision

HANDLE = re.compile(r"# \[Provenance debug handles\] (\S+):(\d+)")
GRAPH = f"{OURS}graph "
KINDS = {
    "cpp": "C++", "triton_poi": "Triton pointwise", "triton_red": "Triton reduction", "triton_for": "Triton foreach",
    "triton_per": "Triton persistent reduction", "triton_tem": "Triton template", "triton": "Triton",
}  # fmt: skip
ALIASES = {  # Inductor's own, which call another
    "bias_addmm": "addmm", "conv1x1_via_mm": "matmul", "mm_dtype": "mm", "bmm_dtype": "bmm",
}  # fmt: skip
ONEDNN = {  # what oneDNN and MKL compute of frozen weights on the CPU, and what that is elsewhere
    "_convolution_pointwise": "convolution", "_convolution_pointwise_": "convolution",
    "_convolution_transpose_pointwise": "convolution", "_linear_pointwise": "linear", "_mkl_linear": "linear",
}  # fmt: skip
OF_BYTES = {  # what it computes of quantized factors
    "qconv_pointwise": "convolution", "qconv2d_pointwise": "convolution", "qlinear_pointwise": "linear",
}  # fmt: skip
QUANTIZED_PRODUCTS = ("convolution", "conv1d", "conv2d", "conv3d", "linear", "addmm", "mm", "matmul", "bmm")
PRODUCTS = frozenset({  # what libraries and templates compute, and no other kernel
    "convolution", "mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm",
    "flex_attention", *ONEDNN, *OF_BYTES,
})  # fmt: skip
TEMPLATE = "triton_tem"
SEEN_AS = re.compile(r"graph_\d+_(?=cpp_)")  # what Inductor puts before the name of a C++ kernel
NO_ORIGINS = "Python runs them between the graphs, or Inductor does not say what they are of."
TOO_OLD = "this PyTorch does not say what Inductor's kernels were made from; PyTorch 2.10 and later do."


MOST = 16  # nodes between a product and what its outcome is quantized by


def target_of(node: Any) -> str:
    """The name of what a node calls, without namespace and overload."""
    return str(getattr(node.target, "_opname", "") or getattr(node.target, "__name__", node.target))


def is_conversion(operator: str) -> bool:
    """Whether an operator quantizes or dequantizes."""
    return operator.rpartition("::")[2].startswith(("quantize_", "dequantize_"))


class QuantizedNodes:
    """The nodes of Dynamo's graph; each product is that of one call."""

    def __init__(self, nodes: Iterable[Any]) -> None:
        self._named = {node.name: node for node in nodes}
        self._taken: set[Any] = set()

    def sources(self, node: Any, extern: bool) -> list[Any]:
        """Those that a node of Inductor's came from, if it quantizes: of a library's call all; else itself."""
        first = next((item.name for item in node.meta.get("from_node") or () if item.name in self._named), "")
        given = self._named.get(first)
        if given is None or not (is_conversion(target_of(given)) or target_of(node).startswith(("qconv", "qlinear"))):
            return [node]
        if not extern:
            return [given]
        found = self._from_product(given, MOST)
        self._taken.update(item for item in found if target_of(item) in QUANTIZED_PRODUCTS)
        return (
            found or [input_node for input_node in given.all_input_nodes if input_node.op == "call_function"] or [given]
        )

    def _from_product(self, node: Any, left: int) -> list[Any]:
        """What lies between a product that no call was found for yet and a node, both with it."""
        if target_of(node) in QUANTIZED_PRODUCTS:
            return [] if node in self._taken else [node]
        if not left or target_of(node).startswith("dequantize_"):
            return []
        found = [item for source in node.all_input_nodes for item in self._from_product(source, left - 1)]
        own = [] if is_conversion(target_of(node)) else [node]
        return list(dict.fromkeys([*found, *own])) if found else []


class Compiler:
    """Inductor, as it is asked to compile so that its kernels can be told apart and traced back.

    Without the CUDA graphs of the mode, because a replay shows no operators.

    Attributes:
        graphs: what the code of each graph calls, in the order in which the graphs were compiled: kernels, and
            operators of libraries without their namespace.
        knows: whether this PyTorch has Inductor note what all its calls were made from.
    """

    def __init__(self, module: Any, mode: str, *, on_gpu: bool) -> None:
        import torch
        from torch import _inductor as inductor

        settings: dict[str, Any] = dict(inductor.list_mode_options(mode))
        settings |= {"triton.cudagraphs": False, "fx_graph_cache": False}
        if not on_gpu:
            settings["cpp.enable_kernel_profile"] = True
        self.knows = torch.__version__ >= (2, 10)
        if self.knows:
            settings["trace.provenance_tracking_level"] = 1
        self._settings = settings
        self._paths = {id(part): path for path, part in module.named_modules()}
        self.graphs: list[list[Layer]] = []
        self._quantized = QuantizedNodes(())  # of the graph that is compiled

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        """Compiles one of Dynamo's graphs; its calls are in a span that says which it is."""
        import torch
        from torch._functorch import config
        from torch._inductor.compile_fx import compile_fx
        from torch._inductor.graph import GraphLowering

        made: list[Layer] = []
        span = f"{GRAPH}{len(self.graphs)}"
        self.graphs.append(made)
        self._quantized = QuantizedNodes(graph.graph.nodes)
        before = GraphLowering.save_output_code
        # What comes from a cache is not made, and says nothing.
        with config.patch(enable_autograd_cache=False), ExitStack() as entered:
            entered.callback(setattr, GraphLowering, "save_output_code", before)
            # A choice of autotuning may be a graph of its own, which is compiled before: the last one is what runs.
            GraphLowering.save_output_code = staticmethod(lambda code: made.__setitem__(slice(None), self._calls(code)))
            compiled = compile_fx(graph, inputs, config_patches=self._settings)

        def called(*arguments: Any) -> Any:
            with torch.profiler.record_function(span):
                return compiled(*arguments)

        return called

    def _calls(self, code: str) -> list[Layer]:
        """The calls in a graph's code; Inductor is still at that graph."""
        from torch._inductor import debug
        from torch._inductor.virtualized import V

        known = getattr(debug, "_inductor_triton_kernel_to_post_grad_node_info", {})
        nodes = {node.name: node for node in V.graph.module.graph.nodes}
        place = {name: index for index, name in enumerate(nodes)}
        done: set[Any] = set()
        found = []
        for name, number in HANDLE.findall(code):
            names = (item for item in known.get(f"{name}:{number}", ()) if item in nodes)
            origins = [nodes[name] for name in sorted(names, key=place.__getitem__)]
            called, extern = short_name(name)
            own = computed(called, extern, origins, done)
            found.append(self._made(called, extern, own, done))
            done |= {node for node in own if extern or called.startswith(TEMPLATE) or not is_product(node)}
        return found

    def _made(self, name: str, extern: bool, own: list[Any], done: set[Any]) -> Layer:
        """One call, of the nodes that it computes; those that are ``done`` already it only works on."""
        own = [node for node in own if node.op != "get_attr"] or own  # whose memory order it may change as well
        parts = [source for node in own for part in parts_of(node) for source in self._quantized.sources(part, extern)]
        paths = (path_of(part, self._paths) for part in parts)
        inner = [node for node in own if node not in done]
        after = [] if inner else own
        inside = set(inner)
        reads = [input_node for node in inner for input_node in node.all_input_nodes if input_node not in inside]
        writes = [node for node in inner if any(user not in inside for user in node.users)]
        operators = tuple(dict.fromkeys(filter(None, map(operator_of, parts))))
        inputs, outputs = tensors(dict.fromkeys(reads or after)), tensors(writes or after)
        return Layer(
            name=name,
            kind=(ONEDNN | OF_BYTES).get(name, name) if extern else kind_of(name, operators),
            modules=tuple(dict.fromkeys(path for path in paths if path is not None)),
            operators=operators,
            inputs=inputs,
            outputs=outputs,
            precision=precision_of(name, operators, (*inputs, *outputs)),
        )


def kind_of(name: str, operators: Sequence[str]) -> str:
    """What a generated kernel is; one that does nothing else quantizes, or dequantizes."""
    if operators and all(map(is_conversion, operators)):
        return operators[-1].rpartition("::")[2]
    return next((KINDS[start] for start in KINDS if name.startswith(start)), name)


def precision_of(name: str, operators: Sequence[str], tensors: Iterable[Tensor]) -> str:
    """What a call computes in: a kernel that dequantizes what it reads computes in fp32."""
    if name in OF_BYTES:
        return "int8"
    return (
        "fp32"
        if any("::dequantize" in operator for operator in operators)
        else first_precision(t.dtype for t in tensors)
    )


def computed(name: str, extern: bool, origins: list[Any], done: set[Any]) -> list[Any]:
    """Those of the nodes that Inductor names for a call that it computes, or works on: it also names what lies before.

    Convolutions and matrix products are computed by libraries and Triton templates, and by no other kernel; what comes
    after a product cannot be computed before it. A kernel that computes nothing works on the last node that is named:
    it gives its weights or its outcome another memory order, or computes it again. ``done`` was computed before.
    """
    whole = [item for node in origins for item in accumulated(node)] if extern else origins
    products = [node for node in whole if is_product(node) and node not in done]
    if name in OF_BYTES:
        return [node for node in products if name in map(target_of, parts_of(node))][:1] or products[:1] or origins
    if extern:
        alike = [node for node in origins if target_of(node) == name]
        others = [node for node in whole if not is_product(node)] if len(whole) > len(origins) else []
        return [node for node in alike if node not in done] or others or products or alike or origins
    if name.startswith(TEMPLATE) and products:
        return [node for node in origins if node not in done]
    new = [node for node in origins if node not in done and not is_product(node) and not waits(node, done)]
    return new or [node for node in origins if not set(origins).intersection(node.users)]


def accumulated(node: Any) -> list[Any]:
    """A node, and before it the one whose outcome it adds its own to in place, which Inductor then names for it."""
    given = (
        [input_node for input_node in node.all_input_nodes if input_node.op == "call_function"]
        if "_binary" in node.name
        else []
    )
    return [*(accumulated(given[-1]) if len(given) > 1 else []), node]


def waits(node: Any, done: set[Any]) -> bool:
    """Whether a node needs a product that is yet to come."""
    waiting, seen = list(node.all_input_nodes), set()
    while waiting:
        each = waiting.pop()
        if each in seen or each in done:
            continue
        if is_product(each):
            return True
        seen.add(each)
        waiting += each.all_input_nodes
    return False


def is_product(node: Any) -> bool:
    """Whether libraries and templates compute it."""
    return any(target_of(part) in PRODUCTS for part in parts_of(node))


def parts_of(node: Any) -> list[Any]:
    """The nodes that a node stands for, in order: itself, or those of a pattern that Inductor lowers as one.

    Such a pattern, as a product and the activation behind it, is a partial function of its match, named as its last.
    """
    match = next(iter(getattr(node.target, "args", ())), None)
    return list(getattr(match, "nodes", ())) or [node]


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
    before, behind = (reached(node, way, paths) for way in ("all_input_nodes", "users"))
    if is_conversion(target_of(node)):  # it belongs to what it converts the outcome of
        found = before or behind
    else:
        found = before & behind if before and behind else before | behind  # constants and last nodes have one side
    return found.pop() if len(found) == 1 else None


def told_path(node: Any, paths: dict[int, str]) -> str | None:
    """The path in a node's own stack of modules, which names them by their ids; ``None`` where it has lost that.

    In the stack of an exported program, whose modules are gone, the paths themselves stand, that of the model first.
    """
    if is_conversion(operator_of(node)) or is_conversion(target_of(node)):
        return None
    stack = node.meta.get("nn_module_stack") or {}
    exported = next((text for text, _ in stack.values()), None) == ""
    for key, (text, _) in reversed(list(stack.items())):
        number = str(key).partition("@")[0]
        path = paths.get(int(number)) if number.isdigit() else None
        if path is None and isinstance(text, str):
            named = text.removeprefix("L['self']").removeprefix(".")
            path = named if exported or named in paths.values() else None
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
    namespace, _, rest = str(node.meta.get("original_aten") or "").partition(".")
    if not rest and is_conversion(target_of(node)):
        return f"quantized_decomposed::{target_of(node)}"
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


class InductorNames(OperatorNames):
    """What the operators of compiled code are."""

    def __init__(self, compiler: Compiler) -> None:
        self.why_unknown = NO_ORIGINS if compiler.knows else TOO_OLD
        self._count: Counter[str] = Counter()
        self._expected: dict[Call, Layer] = {}  # by graph and name, and the place among those of its name
        for name, layer in ((f"{i}/{layer.name}", layer) for i, graph in enumerate(compiler.graphs) for layer in graph):
            self._expected[name, self._count[name]] = layer
            self._count[name] += 1

    def calls(self, root: TracedOperator) -> list[tuple[Call, TracedOperator]]:
        """In each graph what its code calls, by graph and name, and whatever else Python called."""
        found: list[tuple[Call, TracedOperator]] = []
        others = []
        for part in outermost(
            root, lambda traced_operator: traced_operator.name.startswith(GRAPH) or "::" in traced_operator.name
        ):
            if part.name.startswith(GRAPH):
                found += self._inside(part, part.name.removeprefix(GRAPH))
            else:
                others.append(part)
        return found + numbered(others)

    def _inside(self, part: TracedOperator, graph: str) -> list[tuple[Call, TracedOperator]]:
        calls = outermost(
            part,
            lambda traced_operator: (
                "::" in traced_operator.name or f"{graph}/{plain(traced_operator.name)}" in self._count
            ),
        )
        return numbered(calls, lambda name: f"{graph}/{plain(name)}")

    def named(self, taken: Mapping[Call, Taken]) -> dict[Call, Layer]:
        """By the name of the call, with its graph where there are several, and a number where several are the same."""
        seen = Counter(name for name, _ in taken)
        alike = {
            name: {layer.modules for (other, _), layer in self._expected.items() if other == name}
            for name in self._count
        }
        several = len({name.partition("/")[0] for name in self._count}) > 1
        shown_before: Counter[str] = Counter()
        found = {}
        for call in sorted(taken, key=lambda call: taken[call].begins.get(0, inf)):
            name = call[0]
            sure = seen[name] == self._count[name] or len(alike.get(name, ())) == 1
            layer = self._expected.get(call, self._expected.get((name, 0))) if sure else None
            shown = name if several and layer else name.partition("/")[2] or name
            shown_before[shown] += 1
            turn = f" #{shown_before[shown]}" if shown_before[shown] > 1 else ""
            layer = layer or Layer(name=plain(name), kind=plain(name), operators=(name,))
            found[call] = replace(layer, name=shown + turn)
        return found


def plain(name: str) -> str:
    """The name of an operator or kernel as the code calls it."""
    return SEEN_AS.sub("", name).rpartition("::")[2]
