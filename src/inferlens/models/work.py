"""What a model has to do in one call: FLOPs and bytes of every module, from shapes alone; nothing is computed.

A model that cannot be counted is no failure: its :class:`~inferlens.record.profile.Work` has a note that says why.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferlens.errors import reason
from inferlens.models.inputs import kind_of
from inferlens.models.model import Model
from inferlens.record.profile import ModuleWork, OperatorWork, Work
from inferlens.spec.case import Case, TensorSpec

# Bytes of an element of what a model holds in fp32, by the precision that it runs in.
ELEMENT = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
# Formats that do not show what they compute.
UNCOUNTED = ("torchscript", "openvino", "engine", "torch_tensorrt", "fake")
Makers = Callable[[Path], Mapping[str, tuple[str, ...]]]


def count(model: Model, case: Case, makers: Makers = lambda _: {}) -> Work:
    """The work of ``model`` at the inputs and in the precision of ``case``; never raises.

    ``makers`` gives, of an ONNX file, the paths of the modules that made each tensor, by its name.
    """
    element = ELEMENT.get(case.precision, 4)
    if case.options.get("inference_precision", "case") not in ("case", "f32"):
        element = min(element, 2)  # the backend computes in halves, or may choose to
    try:
        if model.format in UNCOUNTED:
            return Work(note=f"the format {model.format} does not show what is computed; what it was made from does")
        if model.format == "onnx" and model.path is not None:
            return count_onnx(model.path, model.inputs, element, makers(model.path))
        if model.module is None:
            return Work(note="there is no module to count")
        return count_module(model.module, model.inputs, element)
    except Exception as error:  # whatever a model's own code raises; what is measured must not depend on it
        return Work(note=f"counting failed: {reason(error)}")


# Bytes are counted where a tensor crosses the border of a module's call. A tensor is identified by its storage, so a
# view counts as the tensor below it, with its own elements only. Tensors between operators of the same call do not
# count, and a tensor that is read twice counts once.

MOST = 20_000  # operators that are kept one by one


@dataclass(frozen=True)
class TensorAccess:
    """A tensor as an operator sees it: its storage, which part of it, and how many bytes that and all of it has."""

    storage: Hashable
    part: Hashable
    bytes: int
    whole: int


class PartSet:
    """The parts of one storage that were seen, each counted once."""

    def __init__(self) -> None:
        self._parts: set[Hashable] = set()
        self._bytes = 0

    def add(self, tensor: TensorAccess) -> int:
        """How many bytes ``tensor`` adds."""
        if tensor.part in self._parts:
            return 0
        self._parts.add(tensor.part)
        before = self._bytes
        self._bytes = min(before + tensor.bytes, max(tensor.whole, before))
        return self._bytes - before


@dataclass
class WorkSum:
    """What a module, or one call of an operator, has done so far: fields of ModuleWork and of OperatorWork."""

    flops: float = 0.0
    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    sources: Counter[Any] = field(default_factory=Counter)
    returned: int = 0


@dataclass
class ModuleSum(WorkSum):
    """What belongs to a module alone."""

    kind: str = ""
    calls: int = 0
    operators: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class ModuleCall:
    """One call of a module, and what it has read."""

    path: str
    read: dict[Hashable, PartSet] = field(default_factory=dict)


@dataclass(eq=False)
class Write:
    """What a call has written to a storage: by which operator, which part, how many bytes.

    ``read`` is what was read of it: by other calls than that one, and by any operator.
    """

    call: ModuleCall
    operator: int
    part: Hashable
    bytes: int
    read: tuple[PartSet, PartSet] = field(default_factory=lambda: (PartSet(), PartSet()))


class ByteCounter:
    """Adds up operators as they come; what they read and is neither ``given``, an input, nor made is a weight."""

    def __init__(self, input_storages: Iterable[Hashable]) -> None:
        self._input_storages = set(input_storages)
        self._writes: dict[Hashable, list[Write]] = {}  # the newest first
        self._modules: dict[str, ModuleSum] = {}
        self._operators: list[WorkSum] = []
        self._names: list[tuple[str, str]] = []  # of each operator: its module's path, and its own
        self._uncovered: Counter[str] = Counter()

    def begin(self, path: str, kind: str) -> ModuleCall:
        """A module is called."""
        self._modules.setdefault(path, ModuleSum(kind=kind)).calls += 1
        return ModuleCall(path)

    def operator(
        self,
        call: ModuleCall,
        name: str,
        flops: float | None,
        reads: Iterable[TensorAccess],
        writes: Iterable[TensorAccess],
    ) -> None:
        """One of the call's own operators ran; ``flops`` is ``None`` where they are not known."""
        module_sum = self._modules[call.path]
        module_sum.operators[name] += 1
        module_sum.flops += flops or 0.0
        if flops is None:
            self._uncovered[name] += 1
        place, own, seen = len(self._operators), WorkSum(flops=flops or 0.0), dict[Hashable, PartSet]()
        self._operators.append(own)
        self._names.append((call.path, name))
        for tensor in reads:
            for item, portion in self._makers(tensor):
                if not item or item.call is not call:
                    self._count_read(module_sum, call.read, item, portion, 0)
                self._count_read(own, seen, item, portion, 1)
        for tensor in writes:
            before = self._writes.get(tensor.storage, []) if tensor.bytes < tensor.whole else []
            others = (item for item in before if item.part != tensor.part)
            self._writes[tensor.storage] = [Write(call, place, tensor.part, tensor.bytes), *others]

    def returned(self, tensors: Iterable[TensorAccess]) -> None:
        """The model has returned these."""
        for tensor in tensors:
            for item, portion in self._makers(tensor):
                if item:
                    for level in (0, 1):
                        mine = self._writer(item, level)[1]
                        mine.outputs += item.read[level].add(portion)
                        mine.returned += portion.bytes

    def work(self, note: str) -> Work:
        """All of it."""
        operators = zip(self._names, self._operators, strict=True) if len(self._operators) <= MOST else ()
        return Work(
            modules=tuple(ModuleWork(module=path, **vars(module_sum)) for path, module_sum in self._modules.items()),
            operators=tuple(OperatorWork(module=path, operator=name, **vars(item)) for (path, name), item in operators),
            uncovered=dict(self._uncovered),
            note=note,
        )

    def _makers(self, tensor: TensorAccess) -> Iterator[tuple[Write | None, TensorAccess]]:
        """Who made how much of a tensor; ``None``: what nobody has made, a weight or one of the model's inputs.

        Of a part, who wrote just that comes first; then who wrote last: how other parts overlap is not looked at.
        """
        left = tensor.bytes
        makers = self._writes.get(tensor.storage, [])
        if tensor.bytes < tensor.whole:
            makers = sorted(makers, key=lambda maker: maker.part != tensor.part)
        for item in makers:
            size = min(left, item.bytes)
            left -= size
            yield item, TensorAccess(tensor.storage, tensor.part, size, item.bytes)
            if not left:
                return
        yield None, TensorAccess(tensor.storage, tensor.part, left, tensor.whole)

    def _count_read(
        self, reader: WorkSum, reads: dict[Hashable, PartSet], write: Write | None, portion: TensorAccess, level: int
    ) -> None:
        """Adds to what a module (0) or an operator (1) has read, which has ``seen`` so much already."""
        # What is written anew, in place, is another tensor in the same storage.
        size = reads.setdefault(write or portion.storage, PartSet()).add(portion)
        if write or portion.storage in self._input_storages:
            reader.inputs += size
        else:
            reader.weights += size
        if write:
            maker, theirs = self._writer(write, level)
            reader.sources[maker] += size
            theirs.outputs += write.read[level].add(portion)

    def _writer(self, write: Write, level: int) -> tuple[str | int, WorkSum]:
        """The module (0) or the operator (1) that has made something: its path or place, and what it has done."""
        place = write.operator
        return (place, self._operators[place]) if level else (write.call.path, self._modules[write.call.path])


# ONNX graphs are counted from inferred shapes; their weights are not read. Reshapes, transpositions and quantization
# pass the tensor on, because a runtime need not execute them.

_VIEWS = """Cast DequantizeLinear Dropout Expand Flatten Identity QuantizeLinear Reshape Shape Slice Split Squeeze
Transpose Unsqueeze"""
VIEWS = frozenset(_VIEWS.split())
# They read of their first tensor no more than they write.
ONNX_PICKING = frozenset(("Gather", "GatherElements", "GatherND"))
CONSTANTS = frozenset(("Constant", "ConstantOfShape"))
# For each kind of matrix product the places of the two tensors that are multiplied.
PRODUCTS = {
    "Conv": (0, 1), "ConvInteger": (0, 1), "QLinearConv": (0, 3), "ConvTranspose": (0, 1), "Gemm": (0, 1),
    "MatMul": (0, 1), "MatMulInteger": (0, 1), "QLinearMatMul": (0, 3),
}  # fmt: skip
# Operators of ONNX with FLOPs to speak of and no formula here. Those of other domains have none either.
_HEAVY = """Attention DFT DeformConv Det Einsum FlexAttention GRU GridSample If LSTM LinearAttention Loop
NonMaxSuppression RNN RoiAlign STFT Scan"""
ONNX_HEAVY = frozenset(_HEAVY.split())


@dataclass(frozen=True)
class GraphTensor:
    """A tensor of the graph: its shape, and bytes of an element."""

    shape: tuple[int, ...]
    size: int

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.shape)


@dataclass
class GraphTensors:
    """The tensors of a graph whose shapes are known, and which of them are views of which."""

    tensors: dict[str, GraphTensor]
    roots: dict[str, str] = field(default_factory=dict)

    def accesses(self, *names: str) -> list[TensorAccess]:
        """Tensors as an operator sees them, but for those whose shapes are not known."""
        found = []
        for name in names:
            root = self.roots.get(name, name)
            if name in self.tensors and root in self.tensors:
                whole = self.tensors[root].elements * self.tensors[root].size
                found.append(
                    TensorAccess(root, name, min(self.tensors[name].elements * self.tensors[root].size, whole), whole)
                )
        return found


def count_onnx(
    path: Path, inputs: tuple[TensorSpec, ...], element: int, modules: Mapping[str, tuple[str, ...]]
) -> Work:
    """The work of one call of the graph in ``path``. Raises whatever ONNX raises.

    Args:
        inputs: their shapes are put in where the graph leaves them open.
        element: bytes of an element that is float32 in the graph.
        modules: of a tensor's name, the paths of the modules whose operator makes it; of several the first has it all.
    """
    import onnx

    loaded = infer_shapes(path, inputs)
    graph = GraphTensors(graph_tensors(loaded, element))
    counted = ByteCounter(spec.name for spec in inputs)
    calls: dict[str, ModuleCall] = {}
    for node in loaded.graph.node:
        if node.op_type in CONSTANTS or not any(node.output):
            continue
        if node.op_type in VIEWS and node.domain in ("", "ai.onnx"):
            graph.roots.update({name: graph.roots.get(node.input[0], node.input[0]) for name in node.output})
            continue
        origin = (modules.get(node.output[0]) or ("",))[0]
        if origin not in calls:
            calls[origin] = counted.begin(origin, "")
        reads, writes = graph.accesses(*node.input), graph.accesses(*node.output)
        if node.op_type in ONNX_PICKING and graph.accesses(node.input[0]) and writes:
            first = reads[0]
            part = (first.part, node.output[0])
            reads[0] = TensorAccess(first.storage, part, min(first.bytes, writes[0].bytes), first.whole)
        counted.operator(calls[origin], node.op_type, node_flops(node, graph), reads, writes)
    counted.returned(graph.accesses(*(value.name for value in loaded.graph.output)))
    return counted.work(f"counted from the shapes that ONNX {onnx.__version__} infers")


def node_flops(node: Any, graph: GraphTensors) -> float | None:
    """FLOPs of one node; ``None`` where there is no formula, or a shape is not known."""
    if node.op_type not in PRODUCTS:
        return None if node.op_type in ONNX_HEAVY or node.domain not in ("", "ai.onnx") else 0.0
    left, right = (graph.tensors.get(node.input[place]) for place in PRODUCTS[node.op_type])
    made = graph.tensors.get(node.output[0])
    if left is None or right is None or made is None or not left.shape or len(right.shape) < 1:
        return None
    if "MatMul" in node.op_type:
        return 2.0 * made.elements * left.shape[-1]
    if node.op_type == "Gemm":
        transposed = any(item.name == "transA" and item.i for item in node.attribute)
        return 2.0 * made.elements * left.shape[0 if transposed else -1]
    # Each element of the result (of a transposed convolution: of the input) takes part with one filter.
    points = left if node.op_type == "ConvTranspose" else made
    return 2.0 * points.elements * math.prod(right.shape[1:])


def product_shares(loaded: Any) -> dict[str, float]:
    """The share of each node in a graph's multiply-adds, by the first tensor that it writes; none if none is known."""
    graph = GraphTensors(graph_tensors(loaded, 4))
    work = {node.output[0]: node_flops(node, graph) or 0.0 for node in loaded.graph.node if node.output}
    whole = sum(work.values())
    return {name: value / whole for name, value in work.items()} if whole else {}


def infer_shapes(path: Path, inputs: tuple[TensorSpec, ...]) -> Any:
    """The graph with all shapes that follow from those of its inputs."""
    import onnx

    loaded = onnx.load(str(path), load_external_data=False)
    shapes = {spec.name: spec.shape for spec in inputs}
    for value in loaded.graph.input:
        if value.name in shapes:
            dimensions = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in shapes[value.name]]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dimensions))  # it may have had none
    del loaded.graph.value_info[:]  # what was written down may be of another batch
    for value in loaded.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(loaded, data_prop=True)


def graph_tensors(loaded: Any, element: int) -> dict[str, GraphTensor]:
    """Weights, inputs, outputs and what is between them, as far as their shapes are known."""
    import onnx

    def size(kind: int) -> int:
        if kind == onnx.TensorProto.FLOAT:
            return element
        try:
            return int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
        except (KeyError, TypeError):  # texts
            return 0

    graph = loaded.graph
    known = {item.name: GraphTensor(tuple(item.dims), size(item.data_type)) for item in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                known[node.output[0]] = GraphTensor(tuple(attribute.t.dims), size(attribute.t.data_type))
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if value.name not in known and tensor.HasField("shape"):
            shape = tuple(int(item.dim_value) if item.HasField("dim_value") else -1 for item in tensor.shape.dim)
            if min(shape, default=0) >= 0:
                known[value.name] = GraphTensor(shape, size(tensor.elem_type))
    return known


# A PyTorch module is counted by running a copy of it on PyTorch's fake tensors, which have shapes and no data.
# Composite operators are decomposed below autograd. FLOPs are those of matrix products, convolutions and attention, by
# the formulas of :mod:`torch.utils.flop_counter`: a multiplication and an addition are two FLOPs, and a bias is none.

# Operators of ATen with FLOPs to speak of and no formula; of those of other libraries nobody knows. The bytes of all
# others are their work.
HEAVY = re.compile(
    r"attention|cdist|cholesky|conv(?!ert)|euclidean_dist|fft_|geqrf|gru|_linear$|linalg_(?!cross|_powsum|vector)|lstm"
    r"|matmul|(^|_|b|d|p)mm($|_)|pdist|rnn|solve|transformer_encoder|_trilinear$"
)
# They read of their first tensor no more than they write, or than is asked for: see :func:`picked_bytes`.
PICKING = frozenset(
    ("embedding", "gather", "index", "index_select", "_unsafe_index", "embedding_bag", "_embedding_bag")
)
# They write of their first tensor as many elements as their last one has, and read none.
PLACING = frozenset(
    ("index_add_", "index_copy_", "index_put_", "index_reduce_", "masked_scatter_", "put_", "scatter_", "scatter_add_",
     "scatter_reduce_")
)  # fmt: skip
# They write their first tensor and do not read it.
OVERWRITING = frozenset(("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_"))
STACK = "nn_module_stack"  # of a node's meta: from the model down, by call, path and class


def count_module(module: Any, inputs: tuple[TensorSpec, ...], element: int) -> Work:
    """The work of one call of ``module``, which is on any device, in evaluation mode, and left as it is.

    ``element`` is the bytes of an element that is float32 in the module.

    Raises whatever the module raises; also if what it does depends on values, which there are none of.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(fake):
        copied = copy.deepcopy(module)
    with decompose_fused_operators(), torch.no_grad(), fake:
        feed = tuple(torch.empty(spec.shape, dtype=getattr(torch, kind_of(spec))) for spec in inputs)
        counter = ModuleCounter(ByteCounter(_storage(tensor) for tensor in feed), element)
        exported = isinstance(copied, torch.fx.GraphModule) and any(node.meta.get(STACK) for node in copied.graph.nodes)
        result = counter.by_node(copied, feed) if exported else counter.by_call(copied, feed)
        counter.bytes_.returned(map(counter.access, _tensors(result)))
    version = torch.__version__.partition("+")[0]
    return counter.bytes_.work(f"counted from shapes, by the formulas of torch.utils.flop_counter of PyTorch {version}")


@contextmanager
def decompose_fused_operators() -> Iterator[None]:
    """Without operators that stand for several modules, or that hide matrix products."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def module_hooks(entering: Callable[..., None], leaving: Callable[..., None]) -> Iterator[None]:
    """Has every module call ``entering(module, arguments)`` and ``leaving(module, arguments, named, result)``.

    The hooks are PyTorch's global ones. With hooks of its own, ``nn.TransformerEncoderLayer`` leaves its fast path, and
    what is profiled would not be what was timed.
    """
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    handles: list[Any] = []
    try:
        handles.append(register_module_forward_pre_hook(entering))
        handles.append(register_module_forward_hook(leaving, with_kwargs=True, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


class ModuleCounter:
    """Knows which module is being called, and counts every operator to it."""

    def __init__(self, bytes_: ByteCounter, element: int) -> None:
        self.bytes_ = bytes_
        self._element = element
        self._open: list[ModuleCall] = []
        self._live_tensors: list[
            Any
        ] = []  # a storage that was freed would give its address, which is its name, to another

    def by_call(self, module: Any, feed: tuple[Any, ...]) -> Any:
        """Counts one call of ``module``; what it returns. A module that has several paths goes by its first."""
        paths = {id(part): (path, type(part).__name__) for path, part in module.named_modules()}

        def entering(part: Any, _: Any) -> None:
            if id(part) in paths:
                self._open.append(self.bytes_.begin(*paths[id(part)]))

        def leaving(part: Any, *_: Any) -> None:
            if id(part) in paths:
                self._open.pop()

        with module_hooks(entering, leaving), _mode(self._operator):
            return module(*feed)

    def by_node(self, module: Any, feed: tuple[Any, ...]) -> Any:
        """The same of an exported program, which calls no modules: each node is part of the one it came from."""
        import torch

        counter, calls = self, {"": self.bytes_.begin("", type(module).__name__)}

        class ByNode(torch.fx.Interpreter):  # type: ignore[misc]
            """Says for each node which call of a module it is part of."""

            def run_node(self, node: Any) -> Any:
                """One node."""
                stack: dict[str, Any] = node.meta.get(STACK) or {}
                call, (path, kind) = list(stack.items())[-1] if stack else ("", ("", ""))
                if path and call not in calls:
                    name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
                    calls[call] = counter.bytes_.begin(str(path), name.rpartition(".")[2])
                counter._open = [calls.get(call, calls[""])]
                return super().run_node(node)

        with _mode(self._operator):
            return ByNode(module).run(*feed)

    def _operator(self, operator: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        read, made = _tensors((arguments, named)), _tensors(result)
        known = {_storage(tensor) for tensor in read}
        written = [tensor for tensor in made if _storage(tensor) not in known] + _changed(operator, arguments, named)
        self._live_tensors += made
        if not written or operator.is_view:
            return
        short = operator._overloadpacket.__name__
        seen, writes = list(map(self.access, read)), list(map(self.access, written))
        if short in PICKING and seen:
            most = picked_bytes(short, arguments, seen[0].bytes, sum(write.bytes for write in writes))
            seen[0] = self._some(seen[0], most)
        if short in PLACING:
            size = seen[0].bytes // max(read[0].numel(), 1)
            writes = [self._some(seen[0], size * read[-1].numel())]
        if short in OVERWRITING | PLACING:
            seen = seen[1:]
        count = operator_flops(operator, arguments, named, result)
        self.bytes_.operator(self._open[-1], str(operator._overloadpacket), count, seen, writes)

    def _some(self, of: TensorAccess, size: int) -> TensorAccess:
        """So many bytes of a tensor, nobody knows which."""
        return TensorAccess(of.storage, (of.part, len(self._live_tensors)), min(size, of.bytes), of.whole)

    def access(self, tensor: Any) -> TensorAccess:
        """What a tensor looks at; what is repeated along a dimension is there once."""
        import torch

        size = self._element if tensor.dtype == torch.float32 else tensor.element_size()
        sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
        elements = math.prod(n for n, stride in zip(sizes, strides, strict=True) if stride or not n)
        whole = tensor.untyped_storage().nbytes() // tensor.element_size() * size
        return TensorAccess(_storage(tensor), (tensor.storage_offset(), sizes, strides), elements * size, whole)


def _mode(tell: Callable[..., None]) -> Any:
    """A mode of PyTorch's dispatcher that runs every operator and tells of it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        """Sees operators where composite ones have been taken apart."""

        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """Runs one and tells of it."""
            named = kwargs or {}
            result = operator(*args, **named)
            if operator.namespace != "prim":
                tell(operator, args, named, result)
            return result

    return Mode()


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _changed(operator: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """The tensors that an operator writes into."""
    found = []
    for place, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = arguments[place] if place < len(arguments) else named.get(argument.name)
            found += _tensors(value)
    return found


def operator_flops(operator: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> float | None:
    """FLOPs of one call; ``None`` where there is no formula for an operator that may have many."""
    from torch.utils.flop_counter import flop_registry, sdpa_flop_count

    packet = out_of_place(operator)
    if packet in flop_registry:
        return float(flop_registry[packet](*arguments, **named, out_val=result))
    short = packet.__name__
    if short.startswith("_scaled_dot_product"):  # variants of a device that the registry does not name
        return float(sdpa_flop_count(*(tensor.shape for tensor in arguments[:3])))
    if short in ("mv", "dot", "vdot", "addmv"):
        matrix = arguments[1] if short == "addmv" else arguments[0]
        return float(2 * math.prod(matrix.shape))
    if short in ("_int_mm", "_addmm_activation", "addbmm"):
        left, right = arguments[-2:]
        return float(2 * math.prod(left.shape) * right.shape[-1])
    return 0.0 if is_light(operator) else None


def out_of_place(operator: Any) -> Any:
    """The packet of an operator; of one that works in place, that of the one that returns the same anew."""
    import torch

    packet = operator._overloadpacket
    name = str(packet.__name__)
    if str(operator.namespace) != "aten" or not name.endswith("_") or name.endswith("__"):
        return packet
    return getattr(torch.ops.aten, name[:-1], packet)


def is_light(operator: Any) -> bool:
    """Whether an operator's bytes are its work."""
    name = str(operator._overloadpacket.__name__)
    return bool(operator.is_view) or (str(operator.namespace) in ("aten", "prims") and HEAVY.search(name) is None)


def picked_bytes(name: str, arguments: tuple[Any, ...], size: int, written: int) -> int:
    """Bytes that one of :data:`PICKING` reads of its first tensor, of ``size``, at most.

    A bag's rows are added up before they are ``written``, so that does not tell.
    """
    if "bag" in name:
        rows, asked = int(arguments[0].shape[0]), int(arguments[1].numel())
        return min(size, size // max(rows, 1) * asked)
    return min(size, written)
