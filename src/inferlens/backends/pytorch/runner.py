"""What every backend that runs inside PyTorch shares: device, precision, settings, clock, placing and collecting.

The module is moved and cast in place: a case has a process, and so a module, of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from inferlens.backends.availability import (
    check_cuda_options,
    cuda_absence,
    cuda_precisions,
    imported,
    refused,
    torch_settings,
    torch_versions,
)
from inferlens.backends.base import Absence, Capabilities, Inputs, Outputs, Preparation, Runner, Support, ordered
from inferlens.backends.clocks import CudaClock, HostClock, StagedClock
from inferlens.errors import Unsupported
from inferlens.models.inputs import flatten, make_inputs
from inferlens.models.model import Array, Format, Model
from inferlens.models.sources.files import input_note
from inferlens.models.work.torch_module import taken_apart
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case, TensorSpec

Feed = tuple[Any, ...]
WARMUP = 3  # calls before a capture, on a stream of their own, in which cuDNN and cuBLAS initialise themselves


class TorchOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of every backend that runs inside PyTorch."""

    channels_last: Annotated[
        bool, Meta(description="keep images and convolution weights in channels-last (NHWC) memory order")
    ] = False
    tf32: Annotated[
        bool, Meta(description="let fp32 convolutions and matrix products use TF32 on CUDA; off: fp32 is fp32")
    ] = False


def torch_capabilities(
    variants: tuple[str, ...],
    formats: tuple[Format, ...],
    absence: Callable[[Any, str], Absence | None] = lambda _torch, _device: None,
    quantizes: Mapping[str, tuple[str, ...]] | None = None,
    unquantized: str = "modules are run as they are",
) -> Capabilities:
    """Return capabilities inside PyTorch; ``absence`` says what else a device lacks, ``unquantized`` why it is so."""
    torch, missing = imported("torch", "PyTorch", "torch")
    if missing:
        return Capabilities(formats=formats, absent=(missing,))
    no_gpu = cuda_absence(torch)
    lacking = {"cpu": absence(torch, "cpu"), "cuda": no_gpu or absence(torch, "cuda")}
    precisions, limits = (PRECISIONS, {}) if no_gpu else cuda_precisions(torch)
    devices, to = {"cpu": PRECISIONS, "cuda": precisions}, quantizes or {}
    return Capabilities(
        formats=formats,
        supports=tuple(
            Support(variant, device, (*precisions, *to.get(device, ())), quantizes=to.get(device, ()))
            for device, precisions in devices.items()
            if lacking[device] is None
            for variant in variants
        ),
        absent=tuple(reason for reason in lacking.values() if reason is not None),
        limits={f"{device}/{name}": unquantized for device in devices for name in QUANTIZED} | limits,
        libraries=torch_versions(torch),
        dynamic_shapes=True,
    )


class CudaGraph:
    """One call as a CUDA graph: captured once, replayed with a single launch.

    A replay reads and writes the very tensors of the capture. A new feed is therefore copied into the captured inputs,
    once, when it is first seen; replaying with the same feed again copies nothing, as with every other runner whose
    inputs lie ready on the device. The outputs of one replay are overwritten by the next.
    """

    def __init__(self, call: Callable[..., Any], feed: Feed) -> None:
        """Warms ``call`` up on a side stream and captures it with copies of ``feed`` as its inputs, or refuses."""
        import torch

        self.inputs = tuple(tensor.clone() for tensor in feed)
        self._bound: Feed | None = None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                call(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with (
            refused("The model cannot be captured in a CUDA graph", hint="without cuda_graph"),
            torch.cuda.graph(self._graph),
        ):
            self._outputs = call(*self.inputs)

    def __call__(self, feed: Feed) -> Any:
        """Replays on the current stream; returns the outputs' tensors, the same ones every time."""
        if feed is not self._bound:
            self.bind(feed)
        self._graph.replay()
        return self._outputs

    def bind(self, feed: Feed) -> None:
        """Copies ``feed`` into the captured inputs, in order with the replays of the current stream."""
        for own, tensor in zip(self.inputs, feed, strict=True):
            if own.shape != tensor.shape:
                shapes = f"{tuple(own.shape)}, not {tuple(tensor.shape)}"
                raise Unsupported(f"The CUDA graph holds inputs of shape {shapes}.")
            own.copy_(tensor)
        self._bound = feed


class TorchRunner(Runner):
    """Runs a module; subclasses say how in :meth:`build`, and whether several threads may call it at once."""

    overlaps: ClassVar[bool] = True

    def __init__(
        self,
        model: Model,
        case: Case,
        preparation: Preparation,
        options: TorchOptions,
        *,
        autocast: bool = False,
        rest: str = "fp32",
    ) -> None:
        autocast = autocast or getattr(options, "autocast", False)
        if autocast and case.precision == "fp32":
            raise Unsupported("autocast computes in a lower precision than fp32.", hint="--precision fp16,bf16")
        if autocast and case.precision in QUANTIZED:
            raise Unsupported("autocast does not quantize.", hint=f"--precision {case.precision} without autocast")
        self.model = model
        self.case = case
        self.preparation = preparation
        self.autocast = autocast
        own = rest if case.precision in QUANTIZED else case.precision  # rest: of what is not quantized
        self._stored = "fp32" if autocast else own  # of weights and inputs
        self.channels_last = options.channels_last
        self.tf32 = options.tf32
        self.cudnn_benchmark = getattr(options, "cudnn_benchmark", False)
        self.cuda_graph = getattr(options, "cuda_graph", False)
        self.clock = CudaClock() if case.device == "cuda" else HostClock()
        self.cached = False  # whether ``build`` found what it makes in a cache
        self._call: Any = not_entered
        self.graph: CudaGraph | None = None  # the captured call, which is replayed in the place of ``_call``
        self._entered = ExitStack()
        check_cuda_options(options, case, preparation)

    def build(self, module: Any) -> Callable[..., Any]:
        """What to call, with the placed inputs as arguments; the device may be used. Here: the module itself."""
        return self.captured(self.forward(module))

    def without_gradients(self) -> AbstractContextManager[Any]:
        """What it is built and called in."""
        import torch

        made: AbstractContextManager[Any] = torch.inference_mode()
        return made

    def settings(self) -> Any:
        return torch_settings(threads=self.case.threads, tf32=self.tf32, cudnn_benchmark=self.cudnn_benchmark)

    def __enter__(self) -> TorchRunner:
        import torch

        with ExitStack() as entered:
            entered.enter_context(self.settings())
            self.preparation.facts["threads"] = torch.get_num_threads()
            with self.preparation.phase("build") as phase:
                module = self._moved()
                entered.enter_context(self.without_gradients())
                self._call = self.build(module)
                self.synchronize()
                phase.note = "cached" if self.cached else ""
            self._entered = entered.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        import torch

        self._call, self.graph = not_entered, None
        self._entered.close()
        # After an error the device may not answer any more, and asking it would hide the error.
        if self.case.device == "cuda" and kind is None and self.model.module is not None:
            self.model.module.to("cpu")
            torch.cuda.empty_cache()

    def infer(self, feed: Feed) -> Any:
        """One call of what was built, or one replay: that copies ``feed`` in, unless it is there already."""
        return self._call(*feed) if self.graph is None else self.graph(feed)

    def captured(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, which is captured first if the options ask for that."""
        if self.cuda_graph:
            self.graph = CudaGraph(call, self.seeded_feed())
        return call

    def bind(self, feed: Feed) -> None:
        if self.graph is not None:
            self.graph.bind(feed)

    def read_by(self, feed: Feed) -> list[Any]:
        return list(feed if self.graph is None else self.graph.inputs)

    def caller(self) -> Callable[[Feed], Any] | None:
        """The same call, in inference mode, which is a thread's own; none where code is compiled as it is called."""
        import torch

        if self.case.device != "cpu" or not self.overlaps:
            return None

        def infer(feed: Feed) -> Any:
            with torch.inference_mode():
                return self._call(*feed)

        return infer

    def place(self, inputs: Inputs) -> Feed:
        specs = self.model.inputs
        arrays = zip(ordered(inputs, specs), specs, strict=True)
        return tuple(self._placed(tensor_of(array, spec, self._stored)) for array, spec in arrays)

    def take(self, given: Mapping[str, Any]) -> Feed:
        """The tensors themselves, where type, device and memory order are those of :meth:`place`."""
        return tuple([ready(given[name], *form) for name, form in self._expected])

    @cached_property
    def _expected(self) -> list[tuple[str, tuple[Any, Any, Any]]]:
        """The name of each argument, and its type, device and memory order."""
        import torch

        on_gpu = self.case.device == "cuda"
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        specs = self.model.inputs
        return [(spec.name, (type_of(spec, self._stored), device, self._order(len(spec.shape)))) for spec in specs]

    def give(self, outputs: Any) -> Any:
        return outputs

    @property
    def reuses_outputs(self) -> bool:
        return self.graph is not None

    def save_program(self, path: Path, hint: str = "") -> None:
        """Writes the module as an exported program, on the device and in the types in which this runner calls it."""
        import torch

        with self.settings(), torch.no_grad(), self.preparation.phase("export"):
            module, sizes = self._moved(), export_dimensions(self.model.module, self.model.inputs)
            feed = tuple(map(self._placed, example_feed(self.model, self.case, self._stored)))
            with refused(f"torch.export cannot export '{self.model.name}'", hint=hint):
                program = torch.export.export(module, feed, dynamic_shapes=sizes, strict=False)
            torch.export.save(program, str(path), extra_files=input_note(self.model.inputs, DTYPES[self._stored]))

    def collect(self, outputs: Any) -> Outputs:
        return [host_array(tensor) for tensor in flatten(outputs)]

    def synchronize(self) -> None:
        if self.case.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def device_memory(self) -> tuple[int, str] | None:
        if self.case.device != "cuda":
            return None
        import torch

        reserved = torch.cuda.max_memory_reserved()
        basis = f"torch.cuda.max_memory_allocated: tensors only (reserved from the driver: {reserved} bytes)"
        return torch.cuda.max_memory_allocated(), basis

    def memory_parts(self) -> dict[str, int]:
        """The module's parameters and buffers, as they lie on the device; none of a module that was compiled away."""
        module = self.model.module
        if self.case.device != "cuda" or module is None or not hasattr(module, "state_dict"):
            return {}
        on_device = [tensor for tensor in module.state_dict().values() if getattr(tensor, "is_cuda", False)]
        return {"weights": sum(tensor.nbytes for tensor in on_device)} if on_device else {}

    def seeded_feed(self) -> Feed:
        """Inputs to build with: the very ones that will be measured."""
        return self.place(make_inputs(self.model, self.case.seed))

    def forward(self, module: Any) -> Callable[..., Any]:
        """The module as a callable, under autocast if that was asked for, in every call, as in a user's program.

        Entered once around all of them it would keep the cast weights, and the casts would not be timed.
        """
        if not self.autocast:
            return module  # type: ignore[no-any-return]
        import torch

        device, dtype = self.case.device, dtype_of(self.case.precision)

        def autocasting(*feed: Any) -> Any:
            with torch.autocast(device, dtype=dtype):
                return module(*feed)

        return autocasting

    def _moved(self) -> Any:
        """The module on the device and in the precision; under autocast the weights stay fp32."""
        import torch

        module = self.model.module
        if module is None:
            raise Unsupported(f"{self.case.backend_label} needs a model in PyTorch, '{self.model.spec}' has none.")
        cast(module, self._stored)
        module.to(self.case.device)
        if self.channels_last:
            module.to(memory_format=torch.channels_last)
        return module

    def _placed(self, tensor: Any) -> Any:
        """The tensor on the device and in the memory order of the case; itself if it is so."""
        return tensor.to(self.case.device).contiguous(memory_format=self._order(tensor.dim()))

    def _order(self, dimensions: int) -> Any:
        import torch

        return torch.channels_last if self.channels_last and dimensions == 4 else torch.contiguous_format


def not_entered(*_: Any) -> Any:
    """Stands where a call will be, outside of the runner's context."""
    raise RuntimeError("The runner is not entered.")


def host_array(tensor: Any) -> Array:
    """A copy of a tensor on the host, floats as float32; the runner may overwrite the tensor itself."""
    import torch

    tensor = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
    return np.array(tensor.to_dense().numpy(force=True), order="C", copy=True)


# Modules and tensors of PyTorch in a precision; and what tracers need: inputs with free sizes, and flat outputs.

FLOATS = ("float32", "float16", "bfloat16", "float64")
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
WRAPPED = "module"  # the path of the model in what flat_outputs returns


def dtype_of(precision: str) -> Any:
    """PyTorch's type for a precision; refuses those for which modules would have to be quantized."""
    import torch

    if precision not in DTYPES:
        hint = f"--precision fp16, or an ONNX file quantized to {precision}"
        raise Unsupported(f"Modules of PyTorch cannot be cast to {precision}.", expected=", ".join(DTYPES), hint=hint)
    return getattr(torch, DTYPES[precision])


def cast(module: Any, precision: str) -> None:
    """Gives every floating-point parameter and buffer of a module the precision, in place.

    ``module.to(dtype)`` would do the same to complex tensors and drop their imaginary parts; ``module.bfloat16()`` is
    not there for TorchScript.
    """
    import torch

    dtype, script = dtype_of(precision), isinstance(module, torch.jit.ScriptModule)
    for tensor in chain(module.parameters(), module.buffers()):
        if not tensor.is_floating_point() or tensor.dtype == dtype:
            continue
        if tensor._is_view() and not script:  # what it is a view of would keep its type, which exporters refuse
            torch.utils.swap_tensors(tensor, tensor.detach().to(dtype))
        else:
            tensor.data = tensor.data.to(dtype)


def type_of(spec: TensorSpec, precision: str) -> Any:
    """PyTorch's type of an input: floats are in ``precision``, other types as the model names them."""
    import torch

    return dtype_of(precision) if spec.dtype in FLOATS else getattr(torch, spec.dtype)


def tensor_of(array: Array, spec: TensorSpec, precision: str) -> Any:
    """A tensor on the CPU with a copy of ``array``, in the type of :func:`type_of`."""
    import torch

    return torch.tensor(np.asarray(array, np.float32 if spec.dtype in FLOATS else None)).to(type_of(spec, precision))


def ready(value: Any, dtype: Any, device: Any, order: Any) -> Any:
    """A tensor itself, where it is of that type, device and memory order; else, as of an array, a copy that is."""
    import torch

    if value.dtype is dtype and value.device == device and value.is_contiguous(memory_format=order):
        return value
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(np.ascontiguousarray(value))
    return tensor.to(device, dtype).contiguous(memory_format=order)


def free_sizes(spec: TensorSpec) -> dict[int, str]:
    """The dimensions that have a range, each with the name of its size.

    Sizes of one place and range share a name, also in other inputs: a batch, or a length, is the same for all.
    """
    least, _, most = spec.profile
    return {
        index: f"size{index}_{low}_{high}"
        for index, (low, high) in enumerate(zip(least, most, strict=True))
        if low < high
    }


def export_dimensions(module: Any, specs: tuple[TensorSpec, ...]) -> Any:
    """``dynamic_shapes`` for ``torch.export`` of ``module``, for each input; ``None`` if no size has a range."""
    if not any(spec.dynamic for spec in specs):
        return None
    from torch.export import Dim

    known: dict[str, Any] = {}
    for spec in specs:
        least, _, most = spec.profile
        for index, name in free_sizes(spec).items():
            known.setdefault(name, Dim(name, min=least[index], max=most[index]))
    dimensions = tuple({index: known[name] for index, name in free_sizes(spec).items()} for spec in specs)
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    return (dimensions,) if inspect.Parameter.VAR_POSITIONAL in kinds else dimensions


def example_feed(model: Model, case: Case, precision: str = "") -> tuple[Any, ...]:
    """Tensors on the CPU to trace with, in the case's precision or in ``precision``.

    Inputs with a range are at their largest shape: tracers take a size of 1 for a constant.
    """
    if any(spec.dynamic for spec in model.inputs):
        specs = tuple(msgspec.structs.replace(spec, shape=spec.profile[2]) for spec in model.inputs)
        model = replace(model, inputs=specs)
    arrays = zip(ordered(make_inputs(model, case.seed), model.inputs), model.inputs, strict=True)
    return tuple(tensor_of(array, spec, precision or case.precision) for array, spec in arrays)


def flat_outputs(module: Any) -> Any:
    """A module that returns the tensors of ``module``'s outputs, ordered as by ``flatten``: a tuple or the only one."""
    import torch

    class FlatOutputs(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *feed: Any) -> Any:
            flat = tuple(flatten(self.module(*feed)))
            return flat[0] if len(flat) == 1 else flat

    flat = FlatOutputs()
    flat.training = False  # not eval(): an exported program inside is in its mode for good, and refuses
    return flat


def flops_by_module(module: Any, feed: tuple[Any, ...]) -> dict[str, float]:
    """FLOPs of the products in each module, by its path, and of all by the empty one; empty if it cannot be followed.

    Nothing is computed: tensors have no values.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        with taken_apart(), FakeTensorMode(allow_non_fake_inputs=True), counter, torch.no_grad():
            module(*feed)
    except Exception:  # code whose path depends on values, for one
        return {}
    own = f"{type(module).__name__}."
    counts = {name: float(sum(item.values())) for name, item in counter.get_flop_counts().items()}
    return {"": counts["Global"]} | {
        name.removeprefix(own): count for name, count in counts.items() if name.startswith(own)
    }


def share_of(work: dict[str, float], quantized: Collection[str]) -> float | None:
    """The share of the work that is in the ``quantized`` modules; ``None`` if the work is not known."""
    if not quantized:
        return 0.0
    return min(sum(work.get(name, 0.0) for name in quantized) / work[""], 1.0) if work.get("") else None


# Calls with copies from and to the host, on one stream. Host memory is page-locked ("pinned"): from ordinary memory the
# driver would copy twice and block the call. The stages have trtexec's names: H2D, compute, D2H.


@dataclass(frozen=True)
class HostFeed:
    """A feed on the device, the tensors that a call with it reads, and in their order what each is filled from."""

    device: Any
    read: list[Any]
    pinned: list[Any]


class HostIo(Runner):
    """Runs another runner, whose feeds and outputs are PyTorch's tensors on the GPU, with copies in and out."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self._outputs: Any = None
        self._host: list[Any] = []
        self.clock = StagedClock({"H2D time": self._upload, "compute time": self._compute, "D2H time": self._download})

    def __enter__(self) -> HostIo:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._outputs, self._host = None, []
        self._inner.__exit__(*error)

    def place(self, inputs: Inputs) -> HostFeed:
        """The inner runner's feed, and pinned copies of its own tensors: a captured call may still read others."""
        feed = self._inner.place(inputs)
        return HostFeed(feed, self._inner.read_by(feed), [tensor.cpu().pin_memory() for tensor in flatten(feed)])

    def bind(self, feed: HostFeed) -> None:
        self._inner.bind(feed.device)

    def infer(self, feed: HostFeed) -> list[Any]:
        """All three stages, enqueued; the outputs are on the host once the stream has come to its end."""
        self._upload(feed)
        self._compute(feed)
        self._download(feed)
        return self._host

    def synchronize(self) -> None:
        self._inner.synchronize()

    def collect(self, outputs: list[Any]) -> Outputs:
        self._inner.synchronize()
        return self._inner.collect(outputs)

    def device_memory(self) -> tuple[int, str] | None:
        return self._inner.device_memory()

    def memory_parts(self) -> dict[str, int]:
        return self._inner.memory_parts()

    def _upload(self, feed: HostFeed) -> None:
        for tensor, pinned in zip(feed.read, feed.pinned, strict=True):
            tensor.copy_(pinned, non_blocking=True)

    def _compute(self, feed: HostFeed) -> None:
        self._outputs = self._inner.infer(feed.device)

    def _download(self, feed: HostFeed) -> None:  # noqa: ARG002 - a stage is called with the feed
        import torch

        outputs = flatten(self._outputs)
        if not self._host:  # room for the outputs is made by the first call
            self._host = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in outputs]
        for host, tensor in zip(self._host, outputs, strict=True):
            host.copy_(tensor, non_blocking=True)
