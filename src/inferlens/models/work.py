"""The work of a model in one call: FLOPs and bytes of every module, counted from shapes without computing anything.

A model that cannot be counted is no failure: its :class:`~inferlens.record.profile.Work` has a note that says why.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inferlens.errors import LateModule, reason
from inferlens.models.inputs import kind_of
from inferlens.models.model import Model
from inferlens.record.profile import ModuleWork, OperatorWork, Work
from inferlens.spec.case import Case, TensorSpec

onnx: Any = LateModule("onnx")
torch: Any = LateModule("torch")

# Bytes of an element that is float32 in the model, by the precision of the case.
ELEMENT = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
# Formats that do not show what they compute.
UNCOUNTED = ("torchscript", "openvino", "engine", "torch_tensorrt", "fake")
Makers = Callable[[Path], Mapping[str, tuple[str, ...]]]


def count(model: Model, case: Case, makers: Makers = lambda _: {}) -> Work:
    """Return the work of ``model`` at the inputs and in the precision of ``case``; never raises.

    ``makers`` returns, for an ONNX file, the paths of the modules that compute a tensor, by the tensor's name.
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
    except Exception as error:  # of a model's own code; measuring must not depend on it
        return Work(note=f"counting failed: {reason(error)}")


def flops_share(work: Work, modules: Collection[str]) -> float | None:
    """Return the share of the FLOPs that is in these modules, or ``None`` if it is unknown."""
    if not modules:
        return 0.0
    total = sum(part.flops for part in work.modules)
    return sum(part.flops for part in work.modules if part.module in modules) / total if total else None


# Bytes are counted where a tensor enters or leaves a module's call. A tensor is identified by its storage, so a view
# counts as the tensor below it, but only with the elements of the view. Tensors between operators of the same call do
# not count, and a tensor that is read twice counts once.


@dataclass(frozen=True)
class TensorAccess:
    """An operator's access to a part of a storage: the bytes of the part, and those of the whole storage."""

    storage: Hashable
    part: Hashable
    bytes: int
    storage_bytes: int


class PartSet:
    """A set of parts of one storage, with the bytes that they cover."""

    def __init__(self) -> None:
        self._parts: set[Hashable] = set()
        self._bytes = 0

    def add(self, tensor: TensorAccess) -> int:
        """Add a part and return its additional bytes."""
        if tensor.part in self._parts:
            return 0
        self._parts.add(tensor.part)
        before = self._bytes
        self._bytes = min(before + tensor.bytes, max(tensor.storage_bytes, before))
        return self._bytes - before


@dataclass
class WorkSum:
    """The sums of a module or of one call of an operator, with the fields of OperatorWork."""

    flops: float = 0.0
    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    sources: Counter[Any] = field(default_factory=Counter)
    returned: int = 0


@dataclass
class ModuleSum(WorkSum):
    """The sums of a module, with the fields of ModuleWork."""

    kind: str = ""
    calls: int = 0
    operators: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class ModuleCall:
    """One call of a module, and the parts that it read."""

    path: str
    read: dict[Hashable, PartSet] = field(default_factory=dict)


@dataclass(eq=False)
class Write:
    """A write of an operator, by its number, to a part of a storage.

    ``read`` has the parts that were read afterwards: first by other calls, then by any operator.
    """

    call: ModuleCall
    operator: int
    part: Hashable
    bytes: int
    read: tuple[PartSet, PartSet] = field(default_factory=lambda: (PartSet(), PartSet()))


class ByteCounter:
    """A counter of operators in order. Tensors that are read and are neither inputs nor written are weights."""

    def __init__(self, input_storages: Iterable[Hashable]) -> None:
        self._input_storages = set(input_storages)
        self._writes: dict[Hashable, list[Write]] = {}  # the newest first
        self._modules: dict[str, ModuleSum] = {}
        self._operators: list[WorkSum] = []
        self._names: list[tuple[str, str]] = []  # of all operators: the module's path, and the operator's name
        self._uncovered: Counter[str] = Counter()

    def begin(self, path: str, kind: str) -> ModuleCall:
        """Count a call of a module."""
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
        """Count an operator of the call; ``flops`` is ``None`` where there is no formula."""
        module_sum = self._modules[call.path]
        module_sum.operators[name] += 1
        module_sum.flops += flops or 0.0
        if flops is None:
            self._uncovered[name] += 1
        number = len(self._operators)
        operator_sum = WorkSum(flops=flops or 0.0)
        operator_reads: dict[Hashable, PartSet] = {}
        self._operators.append(operator_sum)
        self._names.append((call.path, name))
        for tensor in reads:
            for write, portion in self._writes_of(tensor):
                if not write or write.call is not call:
                    self._count_read(module_sum, call.read, write, portion, 0)
                self._count_read(operator_sum, operator_reads, write, portion, 1)
        for tensor in writes:
            earlier = self._writes.get(tensor.storage, []) if tensor.bytes < tensor.storage_bytes else []
            remaining = (write for write in earlier if write.part != tensor.part)
            self._writes[tensor.storage] = [Write(call, number, tensor.part, tensor.bytes), *remaining]

    def returned(self, tensors: Iterable[TensorAccess]) -> None:
        """Count the tensors that the model returns."""
        for tensor in tensors:
            for write, portion in self._writes_of(tensor):
                if write:
                    for level in (0, 1):
                        work_sum = self._writer(write, level)[1]
                        work_sum.outputs += write.read[level].add(portion)
                        work_sum.returned += portion.bytes

    def work(self, note: str) -> Work:
        """Return all sums."""
        operators = zip(self._names, self._operators, strict=True)
        return Work(
            modules=tuple(ModuleWork(module=path, **vars(sums)) for path, sums in self._modules.items()),
            operators=tuple(OperatorWork(module=path, operator=name, **vars(sums)) for (path, name), sums in operators),
            uncovered=dict(self._uncovered),
            note=note,
        )

    def _writes_of(self, tensor: TensorAccess) -> Iterator[tuple[Write | None, TensorAccess]]:
        """Yield the writes that a tensor consists of, and their portions.

        A write of ``None`` is a weight or one of the model's inputs. A write of exactly this part comes first, then the
        latest writes. Overlaps of other parts are not computed.
        """
        remaining = tensor.bytes
        writes = self._writes.get(tensor.storage, [])
        if tensor.bytes < tensor.storage_bytes:
            writes = sorted(writes, key=lambda write: write.part != tensor.part)
        for write in writes:
            size = min(remaining, write.bytes)
            remaining -= size
            yield write, TensorAccess(tensor.storage, tensor.part, size, write.bytes)
            if not remaining:
                return
        yield None, TensorAccess(tensor.storage, tensor.part, remaining, tensor.storage_bytes)

    def _count_read(
        self, reader: WorkSum, reads: dict[Hashable, PartSet], write: Write | None, portion: TensorAccess, level: int
    ) -> None:
        """Add a read to the sums of a module (level 0) or an operator (level 1) with the parts ``reads``."""
        # A write in place creates another tensor in the same storage.
        size = reads.setdefault(write or portion.storage, PartSet()).add(portion)
        if write or portion.storage in self._input_storages:
            reader.inputs += size
        else:
            reader.weights += size
        if write:
            source, writer = self._writer(write, level)
            reader.sources[source] += size
            writer.outputs += write.read[level].add(portion)

    def _writer(self, write: Write, level: int) -> tuple[str | int, WorkSum]:
        """Return path and sums of the module of a write (level 0), or number and sums of its operator (level 1)."""
        if level:
            return write.operator, self._operators[write.operator]
        return write.call.path, self._modules[write.call.path]


# ONNX graphs are counted from inferred shapes, without reading weights. Reshapes, transpositions and quantization count
# as views of their input, because a runtime need not execute them.

_VIEWS = """Cast DequantizeLinear Dropout Expand Flatten Identity QuantizeLinear Reshape Shape Slice Split Squeeze
Transpose Unsqueeze"""
VIEWS = frozenset(_VIEWS.split())
# These operators read no more bytes of their first tensor than they write.
ONNX_PICKING = frozenset(("Gather", "GatherElements", "GatherND"))
CONSTANTS = frozenset(("Constant", "ConstantOfShape"))
# The indices of the two factors among the inputs of each product.
PRODUCTS = {
    "Conv": (0, 1), "ConvInteger": (0, 1), "QLinearConv": (0, 3), "ConvTranspose": (0, 1), "Gemm": (0, 1),
    "MatMul": (0, 1), "MatMulInteger": (0, 1), "QLinearMatMul": (0, 3),
}  # fmt: skip
# Operators of ONNX with many FLOPs and no formula here. Operators of other domains have no formula either.
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
        return math.prod(self.shape)


@dataclass
class GraphTensors:
    """The tensors of a graph with complete shapes, and the tensors that they are views of."""

    tensors: dict[str, GraphTensor]
    roots: dict[str, str] = field(default_factory=dict)

    def accesses(self, *names: str) -> list[TensorAccess]:
        """Return an operator's accesses to these tensors, without those of incomplete shapes."""
        accesses = []
        for name in names:
            root = self.roots.get(name, name)
            if name in self.tensors and root in self.tensors:
                storage_bytes = self.tensors[root].elements * self.tensors[root].size
                part_bytes = self.tensors[name].elements * self.tensors[root].size
                accesses.append(TensorAccess(root, name, min(part_bytes, storage_bytes), storage_bytes))
        return accesses


def count_onnx(
    path: Path, inputs: tuple[TensorSpec, ...], element: int, modules: Mapping[str, tuple[str, ...]]
) -> Work:
    """Return the work of one call of the graph in ``path``. Raises any error of ONNX.

    Args:
        inputs: the model's inputs, whose shapes replace open ones of the graph.
        element: bytes of an element that is float32 in the graph.
        modules: the paths of the modules that compute a tensor, by its name; the work counts for the first one.
    """
    model = infer_shapes(path, inputs)
    graph = GraphTensors(graph_tensors(model, element))
    counted = ByteCounter(spec.name for spec in inputs)
    calls: dict[str, ModuleCall] = {}
    for node in model.graph.node:
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
            reads[0] = replace(first, part=part, bytes=min(first.bytes, writes[0].bytes))
        counted.operator(calls[origin], node.op_type, node_flops(node, graph), reads, writes)
    counted.returned(graph.accesses(*(value.name for value in model.graph.output)))
    return counted.work(f"counted from the shapes that ONNX {onnx.__version__} infers")


def node_flops(node: Any, graph: GraphTensors) -> float | None:
    """Return the FLOPs of one node; ``None`` where there is no formula, or a shape is incomplete."""
    if node.op_type not in PRODUCTS:
        return None if node.op_type in ONNX_HEAVY or node.domain not in ("", "ai.onnx") else 0.0
    left, right = (graph.tensors.get(node.input[index]) for index in PRODUCTS[node.op_type])
    result = graph.tensors.get(node.output[0])
    if left is None or right is None or result is None or not left.shape or not right.shape:
        return None
    if "MatMul" in node.op_type:
        return 2.0 * result.elements * left.shape[-1]
    if node.op_type == "Gemm":
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return 2.0 * result.elements * left.shape[0 if transposed else -1]
    # Each element of the result, or of the input of a transposed convolution, is multiplied with one filter.
    points = left if node.op_type == "ConvTranspose" else result
    return 2.0 * points.elements * math.prod(right.shape[1:])


def product_shares(model: Any) -> dict[str, float]:
    """Return the share of every node in a graph's multiply-adds, by its first output; none if nothing is counted."""
    graph = GraphTensors(graph_tensors(model, 4))
    flops = {node.output[0]: node_flops(node, graph) or 0.0 for node in model.graph.node if node.output}
    total = sum(flops.values())
    return {name: value / total for name, value in flops.items()} if total else {}


def infer_shapes(path: Path, inputs: tuple[TensorSpec, ...]) -> Any:
    """Return the ONNX model with all shapes that can be inferred from the shapes of its inputs."""
    model = onnx.load(str(path), load_external_data=False)
    shapes = {spec.name: spec.shape for spec in inputs}
    for value in model.graph.input:
        if value.name in shapes:
            dimensions = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in shapes[value.name]]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dimensions))  # there may be no shape
    del model.graph.value_info[:]  # stored shapes may be of another batch
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def graph_tensors(model: Any, element: int) -> dict[str, GraphTensor]:
    """Return weights, inputs, outputs and the tensors between them, if their shapes are complete."""

    def size(kind: int) -> int:
        if kind == onnx.TensorProto.FLOAT:
            return element
        try:
            return int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
        except (KeyError, TypeError):  # texts
            return 0

    graph = model.graph
    tensors = {weight.name: GraphTensor(tuple(weight.dims), size(weight.data_type)) for weight in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                tensors[node.output[0]] = GraphTensor(tuple(attribute.t.dims), size(attribute.t.data_type))
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if value.name not in tensors and tensor.HasField("shape"):
            shape = tuple(int(size.dim_value) for size in tensor.shape.dim if size.HasField("dim_value"))
            if len(shape) == len(tensor.shape.dim) and min(shape, default=0) >= 0:
                tensors[value.name] = GraphTensor(shape, size(tensor.elem_type))
    return tensors


# A PyTorch module is counted by running a copy of it on PyTorch's fake tensors, which have shapes and no data.
# Composite operators are decomposed below autograd. Matrix products, convolutions and attention have FLOPs, by the
# formulas of :mod:`torch.utils.flop_counter`: a multiplication and an addition are two FLOPs, and a bias has none.

# Operators of ATen with many FLOPs and no formula. Operators of other libraries have no formula either. All other
# operators count with their bytes only.
HEAVY = re.compile(
    r"attention|cdist|cholesky|conv(?!ert)|euclidean_dist|fft_|geqrf|gru|_linear$|linalg_(?!cross|_powsum|vector)|lstm"
    r"|matmul|(^|_|b|d|p)mm($|_)|mv$|dot$|pdist|rnn|solve|transformer_encoder|_trilinear$"
)
# These operators read only a part of their first tensor: see :func:`picked_bytes`.
PICKING = frozenset(
    ("embedding", "gather", "index", "index_select", "_unsafe_index", "embedding_bag", "_embedding_bag")
)
# These operators write as many elements of their first tensor as their last tensor has, and do not read the first.
PLACING = frozenset(
    ("index_add_", "index_copy_", "index_put_", "index_reduce_", "masked_scatter_", "put_", "scatter_", "scatter_add_",
     "scatter_reduce_")
)  # fmt: skip
# These operators write their first tensor and do not read it.
OVERWRITING = frozenset(("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_"))


def count_module(module: Any, inputs: tuple[TensorSpec, ...], element: int) -> Work:
    """Return the work of one call of ``module``, which may be on any device and does not change.

    ``element`` is the bytes of an element that is float32 in the module. The module must be in evaluation mode.

    Raises any error of the module, also if its control flow depends on values, because there are none.
    """
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(fake):
        copied = copy.deepcopy(module)
    with decompose_fused_operators(), torch.no_grad(), fake:
        feed = tuple(_empty(spec, copied) for spec in inputs)
        counter = ModuleCounter(ByteCounter(_storage(tensor) for tensor in feed), element)
        result = counter.by_call(copied, feed)
        counter.bytes_.returned(map(counter.access, _tensors(result)))
    version = torch.__version__.partition("+")[0]
    return counter.bytes_.work(f"counted from shapes, by the formulas of torch.utils.flop_counter of PyTorch {version}")


def _empty(spec: TensorSpec, module: Any) -> Any:
    """Return an input on the module's device, in half precision if all weights are."""
    weights = [weight for weight in module.parameters() if weight.is_floating_point()] or [torch.empty(0)]
    dtype, halves = getattr(torch, kind_of(spec)), {weight.dtype for weight in weights}
    if dtype == torch.float32 and halves in ({torch.float16}, {torch.bfloat16}):
        dtype = weights[0].dtype
    return torch.empty(spec.shape, dtype=dtype, device=weights[0].device)


@contextmanager
def decompose_fused_operators() -> Iterator[None]:
    """Turn off fused operators, which replace several modules or hide matrix products."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def module_hooks(entering: Callable[..., None], leaving: Callable[..., None]) -> Iterator[None]:
    """Make every module call ``entering(module, arguments)`` and ``leaving(module, arguments, named, result)``.

    The hooks are PyTorch's global ones. A hook on a ``nn.TransformerEncoderLayer`` would turn off its fast path, and
    the profiled calls would differ from the timed ones.
    """
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    with ExitStack() as hooks:
        hooks.callback(register_module_forward_pre_hook(entering).remove)
        hooks.callback(register_module_forward_hook(leaving, with_kwargs=True, always_call=True).remove)
        yield


class ModuleCounter:
    """A counter that adds every operator to the innermost module that is being called."""

    def __init__(self, bytes_: ByteCounter, element: int) -> None:
        self.bytes_ = bytes_
        self._element = element
        self._open: list[ModuleCall] = []
        # Keeps storages alive, because the address of a freed storage, which is its key here, would be used again.
        self._live_tensors: list[Any] = []

    def by_call(self, module: Any, feed: tuple[Any, ...]) -> Any:
        """Count one call of ``module`` and return its result. A module with several paths has the first."""
        paths = {id(part): (path, type(part).__name__) for path, part in module.named_modules()}

        def entering(part: Any, _: Any) -> None:
            if id(part) in paths:
                self._open.append(self.bytes_.begin(*paths[id(part)]))

        def leaving(part: Any, *_: Any) -> None:
            if id(part) in paths:
                self._open.pop()

        with module_hooks(entering, leaving), _dispatch_mode(self._operator):
            return module(*feed)

    def _operator(self, operator: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        inputs, outputs = _tensors((arguments, named)), _tensors(result)
        input_storages = {_storage(tensor) for tensor in inputs}
        written = [tensor for tensor in outputs if _storage(tensor) not in input_storages]
        written += _mutated_tensors(operator, arguments, named)
        self._live_tensors += outputs
        if not written or operator.is_view:
            return
        name = operator._overloadpacket.__name__
        reads, writes = list(map(self.access, inputs)), list(map(self.access, written))
        if name in PICKING and reads:
            most = picked_bytes(name, arguments, reads[0].bytes, sum(write.bytes for write in writes))
            reads[0] = self._partial_access(reads[0], most)
        if name in PLACING:
            size = reads[0].bytes // max(inputs[0].numel(), 1)
            writes = [self._partial_access(reads[0], size * inputs[-1].numel())]
        if name in OVERWRITING | PLACING:
            reads = reads[1:]
        flops = operator_flops(operator, arguments, named, result)
        self.bytes_.operator(self._open[-1], str(operator._overloadpacket), flops, reads, writes)

    def _partial_access(self, access: TensorAccess, size: int) -> TensorAccess:
        """Return an access to ``size`` bytes of a tensor, at unknown positions."""
        return replace(access, part=(access.part, len(self._live_tensors)), bytes=min(size, access.bytes))

    def access(self, tensor: Any) -> TensorAccess:
        """Return the access to a tensor. Elements that are repeated along a dimension count once."""
        size = self._element if tensor.dtype == torch.float32 else tensor.element_size()
        sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
        elements = math.prod(count for count, stride in zip(sizes, strides, strict=True) if stride or not count)
        storage_bytes = tensor.untyped_storage().nbytes() // tensor.element_size() * size
        part = (tensor.storage_offset(), sizes, strides)
        return TensorAccess(_storage(tensor), part, elements * size, storage_bytes)


def _dispatch_mode(record: Callable[..., None]) -> Any:
    """Return a mode of PyTorch's dispatcher that runs every operator and calls ``record`` with it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):  # type: ignore[misc]
        """A mode below autograd, where composite operators are decomposed."""

        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operator(*args, **(kwargs or {}))
            if operator.namespace != "prim":
                record(operator, args, kwargs or {}, result)
            return result

    return Recording()


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> list[Any]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _mutated_tensors(operator: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Return the tensors among its arguments that an operator writes to."""
    tensors = []
    for index, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            tensors += _tensors(arguments[index] if index < len(arguments) else named.get(argument.name))
    return tensors


def operator_flops(operator: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> float | None:
    """Return the FLOPs of one call; ``None`` without a formula for an operator that may have many."""
    from torch.utils.flop_counter import flop_registry, sdpa_flop_count

    packet = operator._overloadpacket
    if packet in flop_registry:
        return float(flop_registry[packet](*arguments, **named, out_val=result))
    if packet.__name__.startswith("_scaled_dot_product"):  # variants of a device, which the registry lacks
        return float(sdpa_flop_count(*(tensor.shape for tensor in arguments[:3])))
    is_heavy = HEAVY.search(packet.__name__) or str(operator.namespace) not in ("aten", "prims")
    return None if is_heavy and not operator.is_view else 0.0


def picked_bytes(name: str, arguments: tuple[Any, ...], size: int, written: int) -> int:
    """Return the most bytes that an operator of :data:`PICKING` reads of its first tensor, which has ``size`` bytes.

    It reads no more than the bytes ``written``, except for a bag, which adds up the rows that it reads.
    """
    if "bag" in name:
        rows, count = int(arguments[0].shape[0]), int(arguments[1].numel())
        return min(size, size // max(rows, 1) * count)
    return min(size, written)
