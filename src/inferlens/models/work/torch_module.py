"""Counts a PyTorch module by running a copy of it on tensors that have shapes and no data.

The copy's weights have none either (PyTorch's fake tensors), so that this takes a moment and touches neither the model
nor a device. Operators are seen below autograd, where composite ones have been taken apart.

FLOPs are those of matrix products, convolutions and attention, by the formulas of :mod:`torch.utils.flop_counter`: a
multiplication and an addition are two, a bias is none. Elementwise operators and reductions have none.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from inferlens.models.inputs import kind_of
from inferlens.models.work.byte_counter import ByteCounter, ModuleCall, Seen
from inferlens.record.work import Work
from inferlens.spec.case import TensorSpec

# Operators of ATen with FLOPs to speak of and no formula; of those of other libraries nobody knows. The bytes of all
# others are their work.
HEAVY = re.compile(
    r"attention|cdist|cholesky|conv(?!ert)|euclidean_dist|fft_|geqrf|gru|_linear$|linalg_(?!cross|_powsum|vector)|lstm"
    r"|matmul|(^|_|b|d|p)mm($|_)|pdist|rnn|solve|transformer_encoder|_trilinear$"
)
# They read of their first tensor no more than they write, or than is asked for: see :func:`picked`.
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
    with taken_apart(), torch.no_grad(), fake:
        feed = tuple(torch.empty(spec.shape, dtype=getattr(torch, kind_of(spec))) for spec in inputs)
        counter = Counter(ByteCounter(_storage(tensor) for tensor in feed), element)
        exported = isinstance(copied, torch.fx.GraphModule) and any(node.meta.get(STACK) for node in copied.graph.nodes)
        result = counter.by_node(copied, feed) if exported else counter.by_call(copied, feed)
        counter.bytes_.returned(map(counter.seen, _tensors(result)))
    version = torch.__version__.partition("+")[0]
    return counter.bytes_.work(f"counted from shapes, by the formulas of torch.utils.flop_counter of PyTorch {version}")


@contextmanager
def taken_apart() -> Iterator[None]:
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
def hooked(entering: Callable[..., None], leaving: Callable[..., None]) -> Iterator[None]:
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


class Counter:
    """Knows which module is being called, and counts every operator to it."""

    def __init__(self, bytes_: ByteCounter, element: int) -> None:
        self.bytes_ = bytes_
        self._element = element
        self._open: list[ModuleCall] = []
        self._kept: list[Any] = []  # a storage that was freed would give its address, which is its name, to another

    def by_call(self, module: Any, feed: tuple[Any, ...]) -> Any:
        """Counts one call of ``module``; what it returns. A module that has several paths goes by its first."""
        paths = {id(part): (path, type(part).__name__) for path, part in module.named_modules()}

        def entering(part: Any, _: Any) -> None:
            if id(part) in paths:
                self._open.append(self.bytes_.begin(*paths[id(part)]))

        def leaving(part: Any, *_: Any) -> None:
            if id(part) in paths:
                self._open.pop()

        with hooked(entering, leaving), _mode(self._operator):
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
        self._kept += made
        if not written or operator.is_view:
            return
        short = operator._overloadpacket.__name__
        seen, writes = list(map(self.seen, read)), list(map(self.seen, written))
        if short in PICKING and seen:
            most = picked(short, arguments, seen[0].bytes, sum(write.bytes for write in writes))
            seen[0] = self._some(seen[0], most)
        if short in PLACING:
            size = seen[0].bytes // max(read[0].numel(), 1)
            writes = [self._some(seen[0], size * read[-1].numel())]
        if short in OVERWRITING | PLACING:
            seen = seen[1:]
        count = flops(operator, arguments, named, result)
        self.bytes_.operator(self._open[-1], str(operator._overloadpacket), count, seen, writes)

    def _some(self, of: Seen, size: int) -> Seen:
        """So many bytes of a tensor, nobody knows which."""
        return Seen(of.storage, (of.part, len(self._kept)), min(size, of.bytes), of.whole)

    def seen(self, tensor: Any) -> Seen:
        """What a tensor looks at; what is repeated along a dimension is there once."""
        import torch

        size = self._element if tensor.dtype == torch.float32 else tensor.element_size()
        sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
        elements = math.prod(n for n, stride in zip(sizes, strides, strict=True) if stride or not n)
        whole = tensor.untyped_storage().nbytes() // tensor.element_size() * size
        return Seen(_storage(tensor), (tensor.storage_offset(), sizes, strides), elements * size, whole)


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


def flops(operator: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> float | None:
    """FLOPs of one call; ``None`` where there is no formula for an operator that may have many."""
    from torch.utils.flop_counter import flop_registry, sdpa_flop_count

    packet = plain(operator)
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


def plain(operator: Any) -> Any:
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


def picked(name: str, arguments: tuple[Any, ...], size: int, written: int) -> int:
    """Bytes that one of :data:`PICKING` reads of its first tensor, of ``size``, at most.

    A bag's rows are added up before they are ``written``, so that does not tell.
    """
    if "bag" in name:
        rows, asked = int(arguments[0].shape[0]), int(arguments[1].numel())
        return min(size, size // max(rows, 1) * asked)
    return min(size, written)
