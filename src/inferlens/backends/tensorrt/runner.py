"""Running an engine: the opened :class:`Engine`, and :class:`BoundContext`, a call of it with its own memory.

A context reads and writes memory by address, so a :class:`BoundContext` keeps every tensor while its context lives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from inferlens.backends.availability import unsupported_on_error
from inferlens.backends.base import (
    GpuLaunch,
    Inputs,
    KernelSources,
    KernelTracer,
    LayerProfiler,
    Outputs,
    Preparation,
    Runner,
)
from inferlens.backends.clocks import Clock, CudaClock, Lane
from inferlens.backends.profiling.kernels import layers_of_kernels, trace_kernels
from inferlens.backends.profiling.runs import check_level
from inferlens.backends.pytorch.runner import converted_tensor, host_array, work_stream
from inferlens.backends.tensorrt.layers import absences, inspected_layers, kernel_sources, onnx_lookup, parse_inspection
from inferlens.backends.tensorrt.library import TRUST_HINT, TYPES, Flavour, error_summary, load_plugins, new_logger
from inferlens.backends.tensorrt.options import Shape, TensorRTOptions, shape_text
from inferlens.errors import LateModule, Unsupported, one_line
from inferlens.models.inputs import make_inputs, single_or_list
from inferlens.models.model import Model
from inferlens.record.files import write_whole
from inferlens.record.profile import Layers
from inferlens.spec.case import Case, TensorSpec

torch: Any = LateModule("torch")


class Engine:
    """An engine, opened on the GPU; ``inputs`` and ``outputs`` are the names of its tensors in order.

    ``content`` was checked by ``check_engine``. ``host_code`` allows the code in a version-compatible engine: only for
    engines that were built here or are trusted. The file ``cache`` keeps kernels of flavours that compile them when an
    engine runs.
    """

    def __init__(
        self, content: bytes, flavour: Flavour, *, plugins: str = "", cache: Path | None = None, host_code: bool = False
    ) -> None:
        load_plugins(flavour, plugins)
        trt: Any = flavour.module
        self.flavour = flavour
        self.log = new_logger(flavour)
        self._runtime = trt.Runtime(self.log)
        if host_code and not flavour.jit:  # engines of TensorRT for RTX hold no code
            self._runtime.engine_host_code_allowed = True
        self.cuda_engine: Any = self._runtime.deserialize_cuda_engine(content)
        if self.cuda_engine is None:
            hint = "" if host_code else f"if it is version-compatible, {TRUST_HINT}"
            raise self._error("cannot open the engine", hint)
        names = [self.cuda_engine.get_tensor_name(index) for index in range(self.cuda_engine.num_io_tensors)]
        modes = {name: self.cuda_engine.get_tensor_mode(name) for name in names}
        self.inputs = [name for name in names if modes[name] == trt.TensorIOMode.INPUT]
        self.outputs = [name for name in names if modes[name] == trt.TensorIOMode.OUTPUT]
        self._cache = cache
        self._config: Any = None
        self._kernels: Any = None
        if cache is not None and flavour.jit:
            self._use_cache(cache)

    def dtype(self, name: str) -> Any:
        kind = self.cuda_engine.get_tensor_dtype(name).name
        if kind not in TYPES:
            raise Unsupported(f"The engine's tensor '{one_line(name)}' is {kind}, which PyTorch lacks.")
        return getattr(torch, TYPES[kind])

    def context(self) -> Any:
        create = self.cuda_engine.create_execution_context
        context = create() if self._config is None else create(self._config)
        if context is None:
            raise self._error("created no context")
        return context

    def save_kernels(self) -> None:
        """Write the kernels compiled so far to the cache file, if there is one."""
        if self._kernels is not None and self._cache is not None:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._cache, bytes(self._kernels.serialize()))

    def information(self) -> tuple[list[Any], list[str]]:
        """Return the inspector's entries of the layers, and the names of inputs and outputs."""
        inspector = self.cuda_engine.create_engine_inspector()
        return parse_inspection(inspector.get_engine_information(self.flavour.module.LayerInformationFormat.JSON))

    def _error(self, message: str, hint: str = "") -> Exception:
        reason = f"{self.flavour.title} {message}: {error_summary(self.log.errors)}."
        return MemoryError(reason) if "memory" in reason.lower() else Unsupported(reason, hint=hint)

    def _use_cache(self, path: Path) -> None:
        self._config = self.cuda_engine.create_runtime_config()
        self._kernels = self._config.create_runtime_cache()
        content = path.read_bytes() if path.is_file() else b""
        if content and self._kernels.deserialize(content) is False:  # older versions return None
            message = f"{path} holds no kernels, or those of another GPU, driver or version."
            raise Unsupported(message, hint="another timing_cache")
        self._config.set_runtime_cache(self._kernels)


class BoundContext:
    """A context of an engine on a stream, with its inputs and outputs bound."""

    def __init__(self, engine: Engine, stream: Any, shapes: dict[str, Shape], profile: int = 0) -> None:
        """Bind outputs for inputs of ``shapes``, also those whose shape is known only after a call."""
        self.engine = engine
        self.stream = stream
        self._handle = stream.cuda_stream
        self.context = engine.context()
        self._inputs: dict[str, Any] = {}
        self._outputs: list[Any] = []  # tensors, or allocators where the shape depends on the data
        self.has_dynamic_outputs = False
        if profile:
            self.context.set_optimization_profile_async(profile, self._handle)
            stream.synchronize()
        self._profile = profile
        self.reshape(shapes)
        self._bind_outputs()

    def reshape(self, shapes: dict[str, Shape]) -> None:
        """Set other input shapes, by name, that the profile takes. Outputs keep their memory."""
        for name, shape in shapes.items():
            if not self.context.set_input_shape(name, shape):
                least, _, most = map(tuple, self.engine.cuda_engine.get_tensor_profile_shape(name, self._profile))
                accepted = f"takes {one_line(name)} from {shape_text(least)} to {shape_text(most)}"
                raise Unsupported(f"The engine {accepted}, not {shape_text(shape)}.")

    def bind(self, tensors: dict[str, Any]) -> None:
        """Read the inputs from ``tensors`` without copies: contiguous, on the GPU, of the engine's types."""
        for name, tensor in tensors.items():
            self.context.set_tensor_address(name, tensor.data_ptr())
        self._inputs = dict(tensors)

    def enqueue(self) -> None:
        """Enqueue one inference on the stream. Raise RuntimeError if TensorRT could not."""
        if not self.context.execute_async_v3(self._handle):
            raise RuntimeError(f"{self.engine.flavour.name} did not run: {error_summary(self.engine.log.errors)}")

    def close(self) -> None:
        """Release the context, then the memory that it has addresses of."""
        self.stream.synchronize()
        self.context = None
        self._inputs, self._outputs = {}, []

    @property
    def outputs(self) -> list[Any]:
        """The output tensors; shapes that depend on the data are known once the stream has ended."""
        return [output.tensor() if hasattr(output, "notify_shape") else output for output in self._outputs]

    def _bind_outputs(self) -> None:
        for name in self.engine.outputs:
            shape = tuple(self.context.get_tensor_shape(name))
            dtype = self.engine.dtype(name)
            if all(size >= 0 for size in shape):
                tensor = torch.empty(shape, dtype=dtype, device="cuda")
                self.context.set_tensor_address(name, tensor.data_ptr())
                self._outputs.append(tensor)
            else:
                allocator = _output_allocator_class(self.engine.flavour.module)(dtype)
                self.context.set_output_allocator(name, allocator)
                self._outputs.append(allocator)
                self.has_dynamic_outputs = True


@functools.lru_cache(maxsize=2)
def _output_allocator_class(module: Any) -> Any:
    """Return the class of outputs whose shape depends on the data, a subclass of the module's allocator."""

    class _OutputAllocator(module.IOutputAllocator):  # type: ignore[misc]
        """Memory that TensorRT requests while it runs, kept between calls and never shrunk."""

        def __init__(self, dtype: Any) -> None:
            module.IOutputAllocator.__init__(self)
            self._dtype = dtype
            self._memory: Any = None
            self._shape: Shape = ()

        def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int:
            return self._room(size)

        def reallocate_output_async(self, _name: str, _memory: int, size: int, _alignment: int, _stream: int) -> int:
            return self._room(size)

        def notify_shape(self, _name: str, shape: Any) -> None:
            self._shape = tuple(shape)

        def tensor(self) -> Any:
            """Return the output of the last call."""
            return self._memory.view(self._dtype)[: math.prod(self._shape)].reshape(self._shape)

        def _room(self, size: int) -> int:
            if self._memory is None or self._memory.numel() < size:
                self._memory = torch.empty(max(size, 256) + 15 & ~15, dtype=torch.uint8, device="cuda")
            return int(self._memory.data_ptr())

    return _OutputAllocator


# The runner of the backend ``tensorrt``

Feed = dict[str, Any]
ALIGNMENT = 256  # bytes that setTensorAddress requires, in NvInferRuntime.h


@dataclass(eq=False)
class EngineRunner(Runner, LayerProfiler, KernelTracer):
    """A runner that makes its engine by ``build`` when it is entered, on a stream of its own.

    With a CUDA graph a call is a replay that reads captured inputs, into which feeds are copied. Without it the engine
    reads the feed's tensors. ``host_code`` is that of :class:`Engine`.
    """

    reuses_outputs = True

    build: Callable[[], bytes]
    model: Model
    case: Case
    preparation: Preparation
    flavour: Flavour
    options: TensorRTOptions
    onnx: Path | None = None  # the source of the engine
    host_code: bool = False

    def __post_init__(self) -> None:
        self.calls: list[BoundContext] = []
        self._graphs: list[Any] = []
        self._outputs: Any = None
        self._bound_feed: Feed | None = None
        self._entered = ExitStack()
        self.clock: Clock = CudaClock()

    def __enter__(self) -> EngineRunner:
        content = self.build()
        with ExitStack() as entered:
            stream = work_stream()
            entered.enter_context(torch.cuda.stream(stream))
            with self.preparation.phase("build"):
                self.engine = self._open_engine(content)
                shapes = {spec.name: spec.shape for spec in self.model.inputs if spec.name in self.engine.inputs}
                streams = [stream, *(torch.cuda.Stream() for _ in range(self.options.streams - 1))]
                self.calls = [BoundContext(self.engine, stream, shapes, self.options.profile) for stream in streams]
                self._inputs = self.place(make_inputs(self.model, self.case.seed))
                if self.case.io == "host" and self.calls[0].has_dynamic_outputs:
                    raise Unsupported("The shape of an output depends on the data, so no host memory can be reserved.")
                for call in self.calls:
                    call.bind(self._inputs)
                    call.enqueue()  # the first call loads or compiles kernels
                torch.cuda.synchronize()
                if self.options.cuda_graph:
                    self._graphs = [self._capture(call) for call in self.calls]
                    self.follows_stream = True  # without a graph, the default stream would wait for the GPU
            self._entered = entered.pop_all()
        self._outputs = self.calls[0] if self.calls[0].has_dynamic_outputs else self.calls[0].outputs
        self.clock = CudaClock(self._lanes())
        self._note_facts()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is None:
            torch.cuda.synchronize(self.calls[0].stream.device)  # for all streams
            self.engine.save_kernels()
            self._graphs = []
            for call in self.calls:
                call.close()
        self.calls, self._bound_feed = [], None
        self._entered.close()

    def place(self, inputs: Inputs) -> Feed:
        specs = [spec for spec in self.model.inputs if spec.name in self.engine.inputs]
        return {spec.name: self._tensor(inputs[spec.name], spec) for spec in specs}

    def take(self, inputs: Mapping[str, Any]) -> Feed:
        """Return the tensors themselves where they have the engine's types, are contiguous, aligned and on the GPU."""
        import torch  # in every call: half a microsecond less than the late module

        feed = {}
        for name, bound in self._inputs.items():
            converted = converted_tensor(inputs[name], bound.dtype, bound.device, torch.contiguous_format)
            feed[name] = converted.clone() if converted.data_ptr() % ALIGNMENT else converted
        return feed

    def give(self, outputs: Any) -> Any:
        """Return the output tensors; waits only where their shapes depend on the data."""
        if not isinstance(outputs, BoundContext):
            return single_or_list(outputs)
        self.synchronize()
        return single_or_list(outputs.outputs)

    def infer(self, feed: Feed) -> Any:
        """Enqueue one call; a new feed is bound first, or copied where a graph is replayed."""
        if feed is not self._bound_feed:
            self.bind(feed)
        if self._graphs:
            self._graphs[0].replay()
        else:
            self.calls[0].enqueue()
        return self._outputs

    def tensors_read(self, feed: Feed) -> list[Any]:
        return list((self._inputs if self._graphs else feed).values())

    def synchronize(self) -> None:
        self.calls[0].stream.synchronize()

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        """Time the engine's layers by their kernels: TensorRT's own profiler would keep layers apart."""
        check_level(self.preparation)
        entries, self.preparation.facts["engine_bindings"] = self.engine.information()
        lookup, missing = onnx_lookup(self.onnx)
        kernels = trace_kernels(self, feed, runs)
        layers = layers_of_kernels(kernels, inspected_layers(entries, lookup))
        return replace(layers, absent=layers.absent | absences(entries, layers.layers, missing))

    def kernel_sources(self, launched: Sequence[GpuLaunch]) -> KernelSources:
        """Return the engine's layers and modules; a CUDA graph replays kernels in their order, too."""
        entries, _ = self.engine.information()
        lookup, missing = onnx_lookup(self.onnx)
        return kernel_sources(launched, inspected_layers(entries, lookup), absences(entries, (), missing))

    def memory_parts(self) -> dict[str, int]:
        """Return the bytes of the contexts' activations, and of weights where TensorRT reports them."""
        cuda_engine = self.engine.cuda_engine
        names = {"activations": ("device_memory_size_v2", len(self.calls)), "weights": ("streamable_weights_size", 1)}
        sizes = {part: getattr(cuda_engine, name, 0) * times for part, (name, times) in names.items()}
        return {part: size for part, size in sizes.items() if size > 0}

    def collect(self, outputs: Any) -> Outputs:
        tensors = outputs.outputs if isinstance(outputs, BoundContext) else outputs
        return [host_array(tensor) for tensor in tensors]

    def bind(self, feed: Feed) -> None:
        """Make the next calls on every stream read ``feed``; it is copied where graphs are replayed."""
        if self._graphs:
            for name, captured in self._inputs.items():
                captured.copy_(feed[name])
        else:
            for call in self.calls:
                call.bind(feed)
        self._bound_feed = feed

    def _open_engine(self, content: bytes) -> Engine:
        """Return the engine, checked to have the case's inputs and profile."""
        cache = Path(self.options.timing_cache) if self.options.timing_cache and self.flavour.jit else None
        engine = Engine(content, self.flavour, plugins=self.options.plugins, cache=cache, host_code=self.host_code)
        names, cuda_engine = {spec.name for spec in self.model.inputs}, engine.cuda_engine
        if not set(engine.inputs) <= names:
            shapes = (f"{name}={shape_text(tuple(cuda_engine.get_tensor_shape(name)))}" for name in engine.inputs)
            message = f"The engine takes {', '.join(shapes)}, not {', '.join(sorted(names))}."
            raise Unsupported(one_line(message), hint="--input for each")
        count = cuda_engine.num_optimization_profiles
        if self.options.profile >= count:
            raise Unsupported(f"There is no profile {self.options.profile}: the engine has {count}, counted from 0.")
        return engine

    def _lanes(self) -> list[Lane]:
        if not self._graphs:
            return [Lane(lambda _, call=call: call.enqueue(), call.stream) for call in self.calls]  # type: ignore[misc]
        pairs = zip(self._graphs, self.calls, strict=True)
        return [Lane(_graph_replay(graph, call.stream), call.stream) for graph, call in pairs]

    def _tensor(self, array: Any, spec: TensorSpec) -> Any:
        return torch.from_numpy(np.array(array, order="C", copy=True)).to("cuda", self.engine.dtype(spec.name))

    def _capture(self, call: BoundContext) -> Any:
        if call.has_dynamic_outputs:
            message = "The shape of an output depends on the data, which a CUDA graph cannot hold."
            raise Unsupported(message, hint="without cuda_graph")
        graph = torch.cuda.CUDAGraph()
        with (
            unsupported_on_error("The engine cannot be captured in a CUDA graph", hint="without cuda_graph"),
            torch.cuda.graph(graph, stream=call.stream),
        ):
            call.enqueue()
        return graph

    def _note_facts(self) -> None:
        cuda_engine, facts = self.engine.cuda_engine, self.preparation.facts
        facts["flavour"] = self.flavour.title
        facts["layers"] = cuda_engine.num_layers
        facts["profiles"] = cuda_engine.num_optimization_profiles
        facts["streams"] = len(self.calls)


def _graph_replay(graph: Any, stream: Any) -> Callable[[Feed], None]:
    """Return a call that replays ``graph`` on ``stream``: a replay uses the current stream."""

    on_stream = torch.cuda.stream

    def replay(_: Feed) -> None:
        with on_stream(stream):
            graph.replay()

    return replay
