"""What every backend that runs inside PyTorch shares: device, precision, settings, clock, placing and collecting.

The module is moved and cast in place: a case has a process, and so a module, of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

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
from inferlens.backends.clocks import CudaClock, HostClock
from inferlens.backends.pytorch.export import (
    DTYPES,
    cast,
    dtype_of,
    example_feed,
    export_dimensions,
    ready,
    tensor_of,
    type_of,
)
from inferlens.errors import Unsupported
from inferlens.models.files import input_note
from inferlens.models.inputs import flatten, make_inputs
from inferlens.models.model import Array, Format, Model
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case

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
