"""The layers of Inductor: generated kernels, and the library operators that its code calls.

On request Inductor numbers each call in its code, and lists the graph nodes behind each number. A node has the stack of
modules in which Dynamo traced it. A node that replaced others, as a pattern does, has lost its stack. It belongs to the
module that is both before and behind it or, at an end of the graph, to its only neighbor. The profiler shows each call
by name; its position among the calls of that name in its graph identifies it. Python's operators between graphs have no
module.

In a quantized model one call of oneDNN combines a product, the operators after it, and their quantization. Inductor
lists only the last node; the other nodes are read from Dynamo's graph, back to the product.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from typing import Any

from msgspec.structs import replace

from inferlens.backends.profiling.kernels import Call, OperatorNames, number_calls, outermost_operators
from inferlens.backends.profiling.runs import SPAN_PREFIX, LayerTimes, TracedOperator
from inferlens.errors import LateModule
from inferlens.record.profile import Layer, Tensor
from inferlens.trace.kernels import first_precision

torch: Any = LateModule("torch")

PROVENANCE_HANDLE = re.compile(r"# \[Provenance debug handles\] (\S+):(\d+)")
GRAPH_SPAN = f"{SPAN_PREFIX}graph "
KINDS = {
    "cpp": "C++", "triton_poi": "Triton pointwise", "triton_red": "Triton reduction", "triton_for": "Triton foreach",
    "triton_per": "Triton persistent reduction", "triton_tem": "Triton template", "triton": "Triton",
}  # fmt: skip
ALIASES = {  # Inductor's operators that call another
    "bias_addmm": "addmm", "conv1x1_via_mm": "matmul", "mm_dtype": "mm", "bmm_dtype": "bmm",
}  # fmt: skip
ONEDNN = {  # operators of oneDNN and MKL with frozen weights, and their usual kind
    "_convolution_pointwise": "convolution", "_convolution_pointwise_": "convolution",
    "_convolution_transpose_pointwise": "convolution", "_linear_pointwise": "linear", "_mkl_linear": "linear",
}  # fmt: skip
INTEGER_PRODUCTS = {  # operators with quantized factors
    "qconv_pointwise": "convolution", "qconv2d_pointwise": "convolution", "qlinear_pointwise": "linear",
}  # fmt: skip
QUANTIZED_PRODUCTS = ("convolution", "conv1d", "conv2d", "conv3d", "linear", "addmm", "mm", "matmul", "bmm")
PRODUCTS = frozenset({  # computed only by libraries and templates
    "convolution", "mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm",
    "flex_attention", *ONEDNN, *INTEGER_PRODUCTS,
})  # fmt: skip
TEMPLATE = "triton_tem"
KERNEL_PREFIX = re.compile(r"graph_\d+_(?=cpp_)")  # Inductor's prefix of C++ kernels
NO_ORIGINS = "Python runs them between the graphs, or Inductor does not report their origin."
TOO_OLD = "this PyTorch does not report the origin of Inductor's kernels; PyTorch 2.10 and later do."
MAX_DISTANCE = 16  # nodes between a product and its quantization


def target_of(node: Any) -> str:
    """Return the name of the function that a node calls, without namespace and overload."""
    return str(getattr(node.target, "_opname", "") or getattr(node.target, "__name__", node.target))


def is_conversion(operator: str) -> bool:
    """Return whether an operator quantizes or dequantizes."""
    return operator.rpartition("::")[2].startswith(("quantize_", "dequantize_"))


class QuantizedNodes:
    """The nodes of Dynamo's graph; each product belongs to one call."""

    def __init__(self, nodes: Iterable[Any]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._used: set[Any] = set()

    def sources(self, node: Any, extern: bool) -> list[Any]:
        """Return the Dynamo nodes of an Inductor node that quantizes, back to the product for a library's call."""
        names = (source.name for source in node.meta.get("from_node") or ())
        source = next((self._nodes[name] for name in names if name in self._nodes), None)
        quantizes = target_of(node).startswith(("qconv", "qlinear"))
        if source is None or not (quantizes or is_conversion(target_of(source))):
            return [node]
        if not extern:
            return [source]
        nodes = self._from_product(source, MAX_DISTANCE)
        self._used.update(product for product in nodes if target_of(product) in QUANTIZED_PRODUCTS)
        return nodes or [before for before in source.all_input_nodes if before.op == "call_function"] or [source]

    def _from_product(self, node: Any, distance: int) -> list[Any]:
        """Return the nodes from an unused product to ``node``, both included, over at most ``distance`` nodes."""
        if target_of(node) in QUANTIZED_PRODUCTS:
            return [] if node in self._used else [node]
        if not distance or target_of(node).startswith("dequantize_"):
            return []
        nodes: dict[Any, None] = {}
        for source in node.all_input_nodes:
            nodes |= dict.fromkeys(self._from_product(source, distance - 1))
        if nodes and not is_conversion(target_of(node)):
            nodes[node] = None
        return list(nodes)


class TracingCompiler:
    """Inductor with settings that identify its kernels and their origins.

    CUDA graphs are off, because a replay shows no operators.

    Attributes:
        graphs: the calls in each graph's code, in compilation order: kernels, and operators without namespace.
        has_provenance: whether this PyTorch lists the nodes behind Inductor's calls.
    """

    def __init__(self, module: Any, mode: str, *, on_gpu: bool) -> None:
        from torch import _inductor as inductor

        settings: dict[str, Any] = dict(inductor.list_mode_options(mode))
        settings |= {"triton.cudagraphs": False, "fx_graph_cache": False}
        if not on_gpu:
            settings["cpp.enable_kernel_profile"] = True
        self.has_provenance = torch.__version__ >= (2, 10)
        if self.has_provenance:
            settings["trace.provenance_tracking_level"] = 1
        self._settings = settings
        self._paths = {id(part): path for path, part in module.named_modules()}
        self.graphs: list[list[Layer]] = []
        self._quantized = QuantizedNodes(())  # of the current graph

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        """Compile one of Dynamo's graphs; its calls are in a span with the graph's number."""
        from torch._functorch import config
        from torch._inductor.compile_fx import compile_fx
        from torch._inductor.graph import GraphLowering

        layers: list[Layer] = []
        span = f"{GRAPH_SPAN}{len(self.graphs)}"
        self.graphs.append(layers)
        self._quantized = QuantizedNodes(graph.graph.nodes)
        before = GraphLowering.save_output_code

        def keep_calls(code: str) -> None:
            layers[:] = self._calls(code)  # autotuning may compile other graphs first; the last one runs

        # Without caches, since cached code has no provenance.
        with config.patch(enable_autograd_cache=False), ExitStack() as entered:
            entered.callback(setattr, GraphLowering, "save_output_code", before)
            GraphLowering.save_output_code = staticmethod(keep_calls)
            compiled = compile_fx(graph, inputs, config_patches=self._settings)

        record_function = torch.profiler.record_function

        def called(*arguments: Any) -> Any:
            with record_function(span):
                return compiled(*arguments)

        return called

    def _calls(self, code: str) -> list[Layer]:
        """Return the calls in a graph's code, while Inductor compiles it."""
        from torch._inductor import debug
        from torch._inductor.virtualized import V

        node_names = getattr(debug, "_inductor_triton_kernel_to_post_grad_node_info", {})
        nodes = {node.name: node for node in V.graph.module.graph.nodes}
        computed: set[Any] = set()
        layers = []
        for name, number in PROVENANCE_HANDLE.findall(code):
            listed = set(node_names.get(f"{name}:{number}", ()))
            origins = [node for node_name, node in nodes.items() if node_name in listed]
            call_name, extern = profiler_name(name)
            call_nodes = computed_nodes(call_name, extern, origins, computed)
            layers.append(self._layer(call_name, extern, call_nodes, computed))
            if not extern and not call_name.startswith(TEMPLATE):
                call_nodes = [node for node in call_nodes if not is_product(node)]
            computed.update(call_nodes)
        return layers

    def _layer(self, name: str, extern: bool, nodes: list[Any], computed: set[Any]) -> Layer:
        """Return the layer of one call with its nodes; nodes in ``computed`` belong to earlier calls."""
        nodes = [node for node in nodes if node.op != "get_attr"] or nodes  # constants may only change their order
        parts = [part for node in nodes for part in parts_of(node)]
        sources = [source for part in parts for source in self._quantized.sources(part, extern)]
        paths = (module_path(source, self._paths) for source in sources)
        new = {node: None for node in nodes if node not in computed}
        reads = [source for node in new for source in node.all_input_nodes if source not in new]
        writes = [node for node in new if any(user not in new for user in node.users)]
        if not new:
            reads = writes = nodes
        operators = tuple(dict.fromkeys(filter(None, map(operator_of, sources))))
        inputs, outputs = node_tensors(dict.fromkeys(reads)), node_tensors(writes)
        return Layer(
            name=name,
            kind=(ONEDNN | INTEGER_PRODUCTS).get(name, name) if extern else kernel_kind(name, operators),
            modules=tuple(dict.fromkeys(path for path in paths if path is not None)),
            operators=operators,
            inputs=inputs,
            outputs=outputs,
            precision=precision_of(name, operators, (*inputs, *outputs)),
        )


def kernel_kind(name: str, operators: Sequence[str]) -> str:
    """Return the kind of a generated kernel, such as a Triton reduction or a mere conversion."""
    if operators and all(map(is_conversion, operators)):
        return operators[-1].rpartition("::")[2]
    return next((KINDS[start] for start in KINDS if name.startswith(start)), name)


def precision_of(name: str, operators: Sequence[str], tensors: Iterable[Tensor]) -> str:
    """Return a call's compute precision: a kernel that dequantizes its inputs computes in fp32."""
    if name in INTEGER_PRODUCTS:
        return "int8"
    if any("::dequantize" in operator for operator in operators):
        return "fp32"
    return first_precision(tensor.dtype for tensor in tensors)


def computed_nodes(name: str, extern: bool, origins: list[Any], computed: set[Any]) -> list[Any]:
    """Return the nodes that a call computes, among those that Inductor lists, which include earlier ones.

    Convolutions and matrix products are computed by libraries and Triton templates, and by no other kernel; nothing
    after a product is computed before it. A kernel that computes nothing works on the last listed node: it changes the
    memory order of weights or results, or computes a result again. Nodes in ``computed`` belong to earlier calls.
    """
    expanded = [part for node in origins for part in with_accumulator(node)] if extern else origins
    products = [node for node in expanded if is_product(node) and node not in computed]
    if name in INTEGER_PRODUCTS:
        return [node for node in products if name in map(target_of, parts_of(node))][:1] or products[:1] or origins
    if extern:
        namesakes = [node for node in origins if target_of(node) == name]
        others = [node for node in expanded if not is_product(node)] if len(expanded) > len(origins) else []
        return [node for node in namesakes if node not in computed] or others or products or namesakes or origins
    if name.startswith(TEMPLATE) and products:
        return [node for node in origins if node not in computed]
    new = [node for node in origins if not (node in computed or is_product(node) or needs_product(node, computed))]
    return new or [node for node in origins if not set(origins).intersection(node.users)]


def with_accumulator(node: Any) -> list[Any]:
    """Return a node, after the node to whose result it adds in place; Inductor lists only the later one."""
    inputs = [source for source in node.all_input_nodes if source.op == "call_function" and "_binary" in node.name]
    return [*(with_accumulator(inputs[-1]) if len(inputs) > 1 else []), node]


def needs_product(node: Any, computed: set[Any]) -> bool:
    """Return whether a node depends on a product that is not computed yet."""
    waiting, visited = list(node.all_input_nodes), set()
    while waiting:
        source = waiting.pop()
        if source in visited or source in computed:
            continue
        if is_product(source):
            return True
        visited.add(source)
        waiting += source.all_input_nodes
    return False


def is_product(node: Any) -> bool:
    """Return whether libraries and templates compute the node."""
    return any(target_of(part) in PRODUCTS for part in parts_of(node))


def parts_of(node: Any) -> list[Any]:
    """Return the node itself, or the nodes of a pattern that Inductor lowers as one node.

    Such a pattern, as a product and the activation behind it, is a partial function of its match.
    """
    match = next(iter(getattr(node.target, "args", ())), None)
    return list(getattr(match, "nodes", ())) or [node]


def profiler_name(name: str) -> tuple[str, bool]:
    """Return a call's name as the profiler shows it, and whether it is a library's operator."""
    parts = name.removeprefix("torch.ops.").split(".")
    if len(parts) == 1:
        return name, False
    return ALIASES.get(parts[1], parts[1]), True


def module_path(node: Any, paths: dict[int, str]) -> str | None:
    """Return the path of a node's module; empty is the model, ``None`` is unknown."""
    path = own_path(node, paths)
    if path is not None or node.op == "placeholder":
        return path
    before = nearest_modules(node, "all_input_nodes", paths)
    behind = nearest_modules(node, "users", paths)
    if is_conversion(target_of(node)):  # a conversion belongs to the node before it
        modules = before or behind
    else:  # constants and last nodes have one neighbor
        modules = before & behind if before and behind else before | behind
    return modules.pop() if len(modules) == 1 else None


def own_path(node: Any, paths: dict[int, str]) -> str | None:
    """Return the path in a node's own stack of modules, or ``None`` where the stack is lost.

    The stack has the ids of modules. An exported program has lost its modules, and its stack has their paths, which
    begin with the model's empty path.
    """
    if is_conversion(operator_of(node)) or is_conversion(target_of(node)):
        return None
    stack = node.meta.get("nn_module_stack") or {}
    is_exported = next((text for text, _ in stack.values()), None) == ""
    for key, (text, _) in reversed(list(stack.items())):
        number = str(key).partition("@")[0]
        if number.isdigit() and int(number) in paths:
            return paths[int(number)]
        if isinstance(text, str):
            path = text.removeprefix("L['self']").removeprefix(".")
            if is_exported or path in paths.values():
                return path
    return "" if node.meta.get("stack_trace") or node.meta.get("source_fn_stack") else None


def nearest_modules(node: Any, attribute: str, paths: dict[int, str]) -> set[str]:
    """Return the modules of the nearest nodes in one direction that have a stack."""
    modules: set[str] = set()
    waiting, visited = list(getattr(node, attribute)), {node}
    while waiting:
        neighbor = waiting.pop()
        if neighbor in visited or neighbor.op in ("placeholder", "output"):
            continue
        visited.add(neighbor)
        path = own_path(neighbor, paths)
        if path is None:
            waiting += list(getattr(neighbor, attribute))
        else:
            modules.add(path)
    return modules


def operator_of(node: Any) -> str:
    """Return the ATen operator of a node, such as ``aten::convolution``."""
    namespace, _, rest = str(node.meta.get("original_aten") or "").partition(".")
    if not rest and is_conversion(target_of(node)):
        return f"quantized_decomposed::{target_of(node)}"
    return f"{namespace}::{rest.partition('.')[0]}" if rest else ""


def node_tensors(nodes: Iterable[Any]) -> tuple[Tensor, ...]:
    """Return the tensors of nodes; free sizes are those of the compilation."""
    tensors = []
    for node in nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else (values,):
            if hasattr(value, "shape") and hasattr(value, "dtype"):
                shape = tuple(size if isinstance(size, int) else int(size.node.hint or 0) for size in value.shape)
                tensors.append(Tensor(name=node.name, shape=shape, dtype=str(value.dtype).removeprefix("torch.")))
    return tuple(tensors)


class InductorNames(OperatorNames):
    """The operators of compiled code."""

    def __init__(self, compiler: TracingCompiler) -> None:
        self.unknown_reason = NO_ORIGINS if compiler.has_provenance else TOO_OLD
        self._count: Counter[str] = Counter()
        self._expected: dict[Call, Layer] = {}  # by ``graph/name`` and the number among equal names
        for number, graph in enumerate(compiler.graphs):
            for layer in graph:
                name = f"{number}/{layer.name}"
                self._expected[name, self._count[name]] = layer
                self._count[name] += 1

    def calls(self, root: TracedOperator) -> list[tuple[Call, TracedOperator]]:
        """Return the calls of each graph's code, by graph and name, and everything else that Python called."""
        calls: list[tuple[Call, TracedOperator]] = []
        others = []
        for operator in outermost_operators(root, lambda name: name.startswith(GRAPH_SPAN) or "::" in name):
            if operator.name.startswith(GRAPH_SPAN):
                calls += self._graph_calls(operator, operator.name.removeprefix(GRAPH_SPAN))
            else:
                others.append(operator)
        return calls + number_calls(others)

    def _graph_calls(self, span: TracedOperator, graph: str) -> list[tuple[Call, TracedOperator]]:
        calls = outermost_operators(span, lambda name: "::" in name or f"{graph}/{plain_name(name)}" in self._count)
        return number_calls(calls, lambda name: f"{graph}/{plain_name(name)}")

    def name_layers(self, times: Mapping[Call, LayerTimes]) -> dict[Call, Layer]:
        """Name layers by call, with the graph if there are several, and a number among equal names."""
        counts = Counter(name for name, _ in times)
        modules: dict[str, set[tuple[str, ...]]] = {}
        for (name, _), layer in self._expected.items():
            modules.setdefault(name, set()).add(layer.modules)
        has_graphs = len({name.partition("/")[0] for name in self._count}) > 1
        title_counts: Counter[str] = Counter()
        layers = {}
        for call in sorted(times, key=lambda call: times[call].begins.get(0, inf)):
            name = call[0]
            is_certain = counts[name] == self._count[name] or len(modules.get(name, ())) == 1
            expected = self._expected.get(call, self._expected.get((name, 0))) if is_certain else None
            title = name if has_graphs and expected else name.partition("/")[2] or name
            title_counts[title] += 1
            number = f" #{title_counts[title]}" if title_counts[title] > 1 else ""
            layer = expected or Layer(name="", kind=plain_name(name), operators=(name,))
            layers[call] = replace(layer, name=title + number)
        return layers


def plain_name(name: str) -> str:
    """Return the name of an operator or kernel as the code calls it."""
    return KERNEL_PREFIX.sub("", name).rpartition("::")[2]
