"""Shared by all backends inside PyTorch: device, precision, settings, tensors, and copies from the host.

The module is moved and cast in place: a case has its own process, and so its own module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from inferlens.backends.availability import check_cuda_options, torch_gpu, torch_settings, unsupported_on_error
from inferlens.backends.base import Absence, Capabilities, Inputs, Preparation, Runner, Support, Tf32
from inferlens.backends.clocks import CudaClock, HostClock, StagedClock
from inferlens.errors import LateModule, Unsupported
from inferlens.models.files import input_note
from inferlens.models.inputs import flatten, make_inputs
from inferlens.models.model import Array, Format, Model
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case, TensorSpec

torch: Any = LateModule("torch")

Feed = tuple[Any, ...]
WARMUP_CALLS = 3  # calls on another stream before a capture, to initialise cuDNN and cuBLAS


Autocast = Annotated[
    bool, Meta(description="keep weights in fp32 and let torch.autocast choose the precision of each operator")
]
CudnnBenchmark = Annotated[
    bool, Meta(description="let cuDNN try its convolution algorithms at the first call and keep the fastest")
]


class TorchOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of every backend inside PyTorch."""

    channels_last: Annotated[
        bool, Meta(description="keep images and convolution weights in channels-last (NHWC) memory order")
    ] = False
    tf32: Tf32 = False


def torch_capabilities(
    variants: tuple[str, ...],
    formats: tuple[Format, ...],
    absence: Callable[[Any, str], Absence | None] = lambda _torch, _device: None,
    quantizes: Mapping[str, tuple[str, ...]] | None = None,
    unquantized: str = "modules are run as they are",
) -> Capabilities:
    """Return capabilities inside PyTorch.

    Args:
        absence: returns what else a device lacks.
        quantizes: the precisions to which models are quantized, by device.
        unquantized: the reason why models are not quantized to the other precisions.
    """
    gpu = torch_gpu()
    if gpu.missing:
        return Capabilities(formats=formats, absent=(gpu.missing,))
    supports, absent = [], []
    for device, precisions in (("cpu", PRECISIONS), ("cuda", gpu.precisions)):
        if lack := (gpu.absence if device == "cuda" else None) or absence(torch, device):
            absent.append(lack)
            continue
        targets = (quantizes or {}).get(device, ())
        supports += [Support(variant, device, (*precisions, *targets), quantizes=targets) for variant in variants]
    return Capabilities(
        formats=formats,
        supports=tuple(supports),
        absent=tuple(absent),
        limits={f"{device}/{name}": unquantized for device in ("cpu", "cuda") for name in QUANTIZED} | gpu.limits,
        libraries=gpu.versions,
        dynamic_shapes=True,
    )


class CudaGraph:
    """A call as a CUDA graph: captured once, replayed with a single launch.

    A replay reads and writes the tensors of the capture, so a new feed is copied into the captured inputs once. A
    replay with the same feed copies nothing. The next replay overwrites the outputs.
    """

    def __init__(self, call: Callable[..., Any], feed: Feed) -> None:
        """Warm ``call`` up on a side stream and capture it with copies of ``feed``, or raise Unsupported."""
        self.inputs = tuple(tensor.clone() for tensor in feed)
        self._bound: Feed | None = None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP_CALLS):
                call(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with (
            unsupported_on_error("The model cannot be captured in a CUDA graph", hint="without cuda_graph"),
            torch.cuda.graph(self._graph),
        ):
            self._outputs = call(*self.inputs)

    def __call__(self, feed: Feed) -> Any:
        """Replay on the current stream and return the output tensors, the same ones every time."""
        if feed is not self._bound:
            self.bind(feed)
        self._graph.replay()
        return self._outputs

    def bind(self, feed: Feed) -> None:
        """Copy ``feed`` into the captured inputs, in order with the replays of the current stream."""
        for captured, tensor in zip(self.inputs, feed, strict=True):
            if captured.shape != tensor.shape:
                shapes = f"{tuple(captured.shape)}, not {tuple(tensor.shape)}"
                raise Unsupported(f"The CUDA graph holds inputs of shape {shapes}.")
            captured.copy_(tensor)
        self._bound = feed


class TorchRunner(Runner):
    """A runner of a module. Subclasses define :meth:`build`, and whether threads may call it at once."""

    thread_safe: ClassVar[bool] = True

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
        """Set up; ``rest`` is the precision of everything that is not quantized."""
        autocast = autocast or getattr(options, "autocast", False)
        if autocast and case.precision == "fp32":
            raise Unsupported("autocast computes in a lower precision than fp32.", hint="--precision fp16,bf16")
        if autocast and case.precision in QUANTIZED:
            raise Unsupported("autocast does not quantize.", hint=f"--precision {case.precision} without autocast")
        self.model = model
        self.case = case
        self.preparation = preparation
        self.autocast = autocast
        precision = rest if case.precision in QUANTIZED else case.precision
        self._stored_precision = "fp32" if autocast else precision  # of weights and inputs
        self.channels_last = options.channels_last
        self.tf32 = options.tf32
        self.cudnn_benchmark = getattr(options, "cudnn_benchmark", False)
        self.cuda_graph = getattr(options, "cuda_graph", False)
        self.clock = CudaClock() if case.device == "cuda" else HostClock()
        self.built_from_cache = False  # whether ``build`` read its result from a cache
        self._call: Any = not_entered
        self.graph: CudaGraph | None = None  # the captured call, replayed in place of ``_call``
        self._entered = ExitStack()
        check_cuda_options(options, case, preparation)

    def build(self, module: Any) -> Callable[..., Any]:
        """Return the function to call with the placed inputs. The device may be used."""
        return self.capture(self.forward(module))

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Return the context in which the call is built and run."""
        return torch.inference_mode()  # type: ignore[no-any-return]

    def settings(self) -> Any:
        return torch_settings(threads=self.case.threads, tf32=self.tf32, cudnn_benchmark=self.cudnn_benchmark)

    def __enter__(self) -> TorchRunner:
        with ExitStack() as entered:
            entered.enter_context(self.settings())
            self.preparation.facts["threads"] = torch.get_num_threads()
            with self.preparation.phase("build") as phase:
                module = self._module_on_device()
                entered.enter_context(self.without_gradients())
                self._call = self.build(module)
                self.synchronize()
                phase.note = "cached" if self.built_from_cache else ""
            self._entered = entered.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._call, self.graph = not_entered, None
        self._entered.close()
        # After an error the device may not respond, and using it would hide the error.
        if self.case.device == "cuda" and kind is None and self.model.module is not None:
            self.model.module.to("cpu")
            torch.cuda.empty_cache()

    def infer(self, feed: Feed) -> Any:
        """Call the built function, or replay it after copying a new ``feed``."""
        return self._call(*feed) if self.graph is None else self.graph(feed)

    def capture(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, captured first if the options ask for it."""
        if self.cuda_graph:
            self.graph = CudaGraph(call, self.seeded_feed())
        return call

    def bind(self, feed: Feed) -> None:
        if self.graph is not None:
            self.graph.bind(feed)

    def tensors_read(self, feed: Feed) -> list[Any]:
        return list(feed if self.graph is None else self.graph.inputs)

    def thread_caller(self) -> Callable[[Feed], Any] | None:
        """Return a call in inference mode, which every thread has to enter; none if calls may compile code."""
        if self.case.device != "cpu" or not self.thread_safe:
            return None
        inference_mode = torch.inference_mode

        def infer(feed: Feed) -> Any:
            with inference_mode():
                return self._call(*feed)

        return infer

    def place(self, inputs: Inputs) -> Feed:
        return tuple(map(self._tensor_on_device, input_tensors(inputs, self.model.inputs, self._stored_precision)))

    def take(self, inputs: Mapping[str, Any]) -> Feed:
        """Return the tensors themselves if type, device and memory order are those of :meth:`place`."""
        return tuple([converted_tensor(inputs[name], *form) for name, form in self._input_formats])

    @cached_property
    def _input_formats(self) -> list[tuple[str, tuple[Any, Any, Any]]]:
        """The name of each argument with its type, device and memory order."""
        on_gpu = self.case.device == "cuda"
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        return [
            (spec.name, (input_dtype(spec, self._stored_precision), device, self._memory_format(len(spec.shape))))
            for spec in self.model.inputs
        ]

    def give(self, outputs: Any) -> Any:
        return outputs

    @property
    def reuses_outputs(self) -> bool:
        return self.graph is not None

    def save_program(self, path: Path, hint: str = "") -> None:
        """Write the module as an exported program, on the runner's device and in its types."""
        with self.settings(), torch.no_grad(), self.preparation.phase("export"):
            module, sizes = self._module_on_device(), export_dimensions(self.model.module, self.model.inputs)
            feed = tuple(map(self._tensor_on_device, example_feed(self.model, self.case, self._stored_precision)))
            with unsupported_on_error(f"torch.export cannot export '{self.model.name}'", hint=hint):
                program = torch.export.export(module, feed, dynamic_shapes=sizes, strict=False)
            notes = input_note(self.model.inputs, DTYPES[self._stored_precision])
            torch.export.save(program, str(path), extra_files=notes)

    def collect(self, outputs: Any) -> list[Array]:
        return [host_array(tensor) for tensor in flatten(outputs)]

    def synchronize(self) -> None:
        if self.case.device == "cuda":
            torch.cuda.synchronize()

    def device_memory(self) -> tuple[int, str] | None:
        if self.case.device != "cuda":
            return None
        reserved = torch.cuda.max_memory_reserved()
        basis = f"torch.cuda.max_memory_allocated: tensors only (reserved from the driver: {reserved} bytes)"
        return torch.cuda.max_memory_allocated(), basis

    def memory_parts(self) -> dict[str, int]:
        """Return the bytes of the module's tensors on the device; nothing for a module that was compiled away."""
        module = self.model.module
        if self.case.device != "cuda" or module is None or not hasattr(module, "state_dict"):
            return {}
        on_device = [tensor for tensor in module.state_dict().values() if getattr(tensor, "is_cuda", False)]
        return {"weights": sum(tensor.nbytes for tensor in on_device)} if on_device else {}

    def seeded_feed(self) -> Feed:
        """Return the inputs that will be measured, to build with."""
        return self.place(make_inputs(self.model, self.case.seed))

    def forward(self, module: Any) -> Callable[..., Any]:
        """Return the module as a callable, which enters autocast in every call if it is on, as a user's program does.

        Autocast around all calls would keep the cast weights, and the casts would not be timed.
        """
        if not self.autocast:
            return module  # type: ignore[no-any-return]
        autocast, device, dtype = torch.autocast, self.case.device, precision_dtype(self.case.precision)

        def call_under_autocast(*feed: Any) -> Any:
            with autocast(device, dtype=dtype):
                return module(*feed)

        return call_under_autocast

    def _module_on_device(self) -> Any:
        """Return the module on the device and in the precision; under autocast the weights stay fp32."""
        module = self.model.module
        if module is None:
            raise Unsupported(f"{self.case.backend_label} needs a model in PyTorch, '{self.model.spec}' has none.")
        with torch.inference_mode(mode=False):  # another runner may be entered, and export refuses inference tensors
            cast(module, self._stored_precision)
            module.to(self.case.device)
            if self.channels_last:
                module.to(memory_format=torch.channels_last)
        return module

    def _tensor_on_device(self, tensor: Any) -> Any:
        """Return the tensor on the device and in the memory order of the case."""
        return tensor.to(self.case.device).contiguous(memory_format=self._memory_format(tensor.dim()))

    def _memory_format(self, dimensions: int) -> Any:
        return torch.channels_last if self.channels_last and dimensions == 4 else torch.contiguous_format


def not_entered(*_: Any) -> Any:
    """Raise an error in place of a call, outside of the runner's context."""
    raise RuntimeError("The runner is not entered.")


def work_stream() -> Any:
    """Return a new CUDA stream, or that of the runner around this one, so that the work of both stays in order."""
    current = torch.cuda.current_stream()
    return torch.cuda.Stream() if current == torch.cuda.default_stream() else current


def host_array(tensor: Any) -> Array:
    """Return a copy of a tensor on the host, floats as float32; the runner may overwrite the tensor."""
    tensor = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
    return np.array(tensor.to_dense().numpy(force=True), order="C", copy=True)


# Modules and tensors in a precision, and inputs and outputs for tracers

FLOATS = ("float32", "float16", "bfloat16", "float64")
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def precision_dtype(precision: str) -> Any:
    """Return PyTorch's type for a precision, or refuse one that needs quantizing."""
    if precision not in DTYPES:
        hint = f"--precision fp16, or an ONNX file quantized to {precision}"
        raise Unsupported(f"Modules of PyTorch cannot be cast to {precision}.", expected=", ".join(DTYPES), hint=hint)
    return getattr(torch, DTYPES[precision])


def cast(module: Any, precision: str) -> None:
    """Cast every floating-point parameter and buffer of a module, in place.

    ``module.to(dtype)`` would also cast complex tensors and drop their imaginary parts; ``module.bfloat16()`` is
    missing in TorchScript.
    """
    dtype = precision_dtype(precision)
    is_script = isinstance(module, torch.jit.ScriptModule)
    for tensor in chain(module.parameters(), module.buffers()):
        if not tensor.is_floating_point() or tensor.dtype == dtype:
            continue
        if tensor._is_view() and not is_script:  # the base of a view would keep its type, which exporters refuse
            torch.utils.swap_tensors(tensor, tensor.detach().to(dtype))
        else:
            tensor.data = tensor.data.to(dtype)


def input_dtype(spec: TensorSpec, precision: str) -> Any:
    """Return PyTorch's type of an input: floats are in ``precision``, other inputs in their own type."""
    return precision_dtype(precision) if spec.dtype in FLOATS else getattr(torch, spec.dtype)


def input_tensors(arrays: Inputs, specs: tuple[TensorSpec, ...], precision: str) -> tuple[Any, ...]:
    """Return tensors on the CPU with copies of ``arrays``, in order and in the types of :func:`input_dtype`."""
    tensors = []
    for spec in specs:
        tensor = torch.tensor(np.asarray(arrays[spec.name], np.float32 if spec.dtype in FLOATS else None))
        tensors.append(tensor.to(input_dtype(spec, precision)))
    return tuple(tensors)


def converted_tensor(value: Any, dtype: Any, device: Any, order: Any) -> Any:
    """Return a tensor of this type, device and memory order: the value itself, or a copy."""
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(np.ascontiguousarray(value))
    return tensor.to(device, dtype).contiguous(memory_format=order)


def dynamic_sizes(spec: TensorSpec) -> dict[int, str]:
    """Return the names of the sizes that have a range, by dimension.

    Sizes of the same dimension and range have the same name in all inputs, because a batch or a length is shared.
    """
    least, _, most = spec.profile
    ranges = enumerate(zip(least, most, strict=True))
    return {index: f"size{index}_{low}_{high}" for index, (low, high) in ranges if low < high}


def export_dimensions(module: Any, specs: tuple[TensorSpec, ...]) -> Any:
    """Return ``dynamic_shapes`` for ``torch.export`` of ``module``, or ``None`` if no size has a range."""
    if not any(spec.dynamic for spec in specs):
        return None
    from torch.export import Dim

    by_name: dict[str, Any] = {}
    for spec in specs:
        least, _, most = spec.profile
        for index, name in dynamic_sizes(spec).items():
            by_name.setdefault(name, Dim(name, min=least[index], max=most[index]))
    dimensions = tuple({index: by_name[name] for index, name in dynamic_sizes(spec).items()} for spec in specs)
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    return (dimensions,) if inspect.Parameter.VAR_POSITIONAL in kinds else dimensions


def example_feed(model: Model, case: Case, precision: str = "") -> tuple[Any, ...]:
    """Return tensors on the CPU to trace with, in ``precision`` or the case's own.

    Inputs with a range have their largest shape, because tracers treat a size of 1 as a constant.
    """
    if any(spec.dynamic for spec in model.inputs):
        specs = tuple(msgspec.structs.replace(spec, shape=spec.profile[2]) for spec in model.inputs)
        model = replace(model, inputs=specs)
    return input_tensors(make_inputs(model, case.seed), model.inputs, precision or case.precision)


def flat_outputs(module: Any) -> Any:
    """Return a module that returns the tensors of ``module``'s outputs in the order of ``flatten``."""

    class FlatOutputs(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            self.training = False  # not eval(), which an exported program inside refuses

        def forward(self, *feed: Any) -> Any:
            tensors = tuple(flatten(self.module(*feed)))
            return tensors[0] if len(tensors) == 1 else tensors

    return FlatOutputs()


# Calls with copies from and to the host, on one stream. Host memory is page-locked ("pinned"), because the driver would
# copy ordinary memory twice and block the call. The stages have the names in trtexec: H2D, compute, D2H.


@dataclass(frozen=True)
class HostFeed:
    """A feed on the device, the device tensors that a call reads, and their sources in pinned memory."""

    device: Any
    tensors: list[Any]
    pinned: list[Any]


class HostIoRunner(Runner):
    """A runner around another one on the GPU, with copies in and out."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self._outputs: Any = None
        self._host_outputs: list[Any] = []
        self.clock = StagedClock({"H2D time": self._upload, "compute time": self._compute, "D2H time": self._download})

    def __enter__(self) -> HostIoRunner:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._outputs, self._host_outputs = None, []
        self._inner.__exit__(*error)

    def place(self, inputs: Inputs) -> HostFeed:
        """Return the inner feed and pinned copies of its tensors: a captured call may read other ones."""
        feed = self._inner.place(inputs)
        return HostFeed(feed, self._inner.tensors_read(feed), [tensor.cpu().pin_memory() for tensor in flatten(feed)])

    def bind(self, feed: HostFeed) -> None:
        self._inner.bind(feed.device)

    def infer(self, feed: HostFeed) -> list[Any]:
        """Enqueue all three stages; the outputs are on the host once the stream has ended."""
        self._upload(feed)
        self._compute(feed)
        self._download(feed)
        return self._host_outputs

    def synchronize(self) -> None:
        self._inner.synchronize()

    def collect(self, outputs: list[Any]) -> list[Array]:
        self._inner.synchronize()
        return self._inner.collect(outputs)

    def device_memory(self) -> tuple[int, str] | None:
        return self._inner.device_memory()

    def memory_parts(self) -> dict[str, int]:
        return self._inner.memory_parts()

    def _upload(self, feed: HostFeed) -> None:
        for tensor, pinned in zip(feed.tensors, feed.pinned, strict=True):
            tensor.copy_(pinned, non_blocking=True)

    def _compute(self, feed: HostFeed) -> None:
        self._outputs = self._inner.infer(feed.device)

    def _download(self, feed: HostFeed) -> None:  # noqa: ARG002 - a stage is called with the feed
        outputs = flatten(self._outputs)
        if not self._host_outputs:  # the first call allocates memory for the outputs
            self._host_outputs = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in outputs]
        for host, tensor in zip(self._host_outputs, outputs, strict=True):
            host.copy_(tensor, non_blocking=True)
