"""The runner of the backend ``tensorrt``: an engine on a stream of its own, fed by PyTorch's tensors without a copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from msgspec.structs import replace

from inferlens.backends.abilities import KernelOrigins, Launched, LayerProfiler, Origins
from inferlens.backends.availability import refused
from inferlens.backends.base import Inputs, Outputs, Preparation, Runner, ordered
from inferlens.backends.clocks import Clock, CudaClock, Lane
from inferlens.backends.profiling.kernel_runs import kernels_of, layers_of_kernels
from inferlens.backends.profiling.layer_runs import check_level
from inferlens.backends.pytorch.export import ready
from inferlens.backends.pytorch.runner import host_array
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.kernels import kernel_origins
from inferlens.backends.tensorrt.layers import absences, inspected_layers, onnx_lookup
from inferlens.backends.tensorrt.options import TensorRTOptions
from inferlens.backends.tensorrt.profiles import shape_text
from inferlens.backends.tensorrt.runtime import BoundContext, Engine
from inferlens.errors import Unsupported, one_line
from inferlens.models.inputs import make_inputs, one_or_all
from inferlens.models.model import Model
from inferlens.record.layer_profile import Layers
from inferlens.spec.case import Case, TensorSpec

Feed = dict[str, Any]
ALIGNED = 256  # bytes; what setTensorAddress asks for, in NvInferRuntime.h


@dataclass(eq=False)
class EngineRunner(Runner, LayerProfiler, KernelOrigins):
    """Opens an engine when it is entered and calls it; the engine is made by ``build``, inside of the entry.

    With a CUDA graph a call is a replay, which reads the captured inputs: feeds are copied into those. Without, the
    engine reads the feed's own tensors. ``host_code`` and ``hint`` are as of :class:`Engine`.
    """

    reuses_outputs = True

    build: Callable[[], bytes]
    model: Model
    case: Case
    preparation: Preparation
    flavour: Flavour
    options: TensorRTOptions
    onnx: Path | None = None  # the file that the engine is built from
    host_code: bool = False
    hint: str = ""

    def __post_init__(self) -> None:
        self.calls: list[BoundContext] = []
        self._graphs: list[Any] = []
        self._outputs: Any = None
        self._bound: Feed | None = None
        self._entered = ExitStack()
        self.clock: Clock = CudaClock()

    def __enter__(self) -> EngineRunner:
        import torch

        content = self.build()
        with ExitStack() as entered:
            stream = torch.cuda.Stream()
            entered.enter_context(torch.cuda.stream(stream))
            with self.preparation.phase("build"):
                self.engine = self._opened(content)
                shapes = {spec.name: spec.shape for spec in self.model.inputs if spec.name in self.engine.inputs}
                streams = [stream, *(torch.cuda.Stream() for _ in range(self.options.streams - 1))]
                self.calls = [BoundContext(self.engine, stream, shapes, self.options.profile) for stream in streams]
                self._own = self.place(make_inputs(self.model, self.case.seed))
                if self.case.io == "host" and self.calls[0].grows:
                    raise Unsupported("The shape of an output depends on the data, so no host memory can be reserved.")
                for call in self.calls:
                    call.bind(self._own)
                    call.enqueue()  # kernels are loaded, or compiled, at the first call
                torch.cuda.synchronize()
                if self.options.cuda_graph:
                    self._graphs = [self._captured(call) for call in self.calls]
                    self.follows_stream = True  # an engine itself, on the default stream, would wait for the GPU
            self._entered = entered.pop_all()
        self._outputs = self.calls[0] if self.calls[0].grows else self.calls[0].outputs
        self.clock = CudaClock(self._lanes())
        self._note_facts()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import torch

        if kind is None:
            torch.cuda.synchronize(self.calls[0].stream.device)  # whichever streams it was called on
            self.engine.keep_kernels()
            self._graphs = []
            for call in self.calls:
                call.close()
        self.calls, self._bound = [], None
        self._entered.close()

    def place(self, inputs: Inputs) -> Feed:
        specs = self.model.inputs
        arrays = zip(specs, ordered(inputs, specs), strict=True)
        return {spec.name: self._tensor(array, spec) for spec, array in arrays if spec.name in self.engine.inputs}

    def take(self, given: Mapping[str, Any]) -> Feed:
        """The tensors themselves, where they are of the engine's types, contiguous, aligned and on the GPU."""
        import torch

        taken = {}
        for name, own in self._own.items():
            value = ready(given[name], own.dtype, own.device, torch.contiguous_format)
            taken[name] = value.clone() if value.data_ptr() % ALIGNED else value
        return taken

    def give(self, outputs: Any) -> Any:
        """The tensors that the engine writes to; it waits only where their shapes depend on the data."""
        if not isinstance(outputs, BoundContext):
            return one_or_all(outputs)
        self.synchronize()
        return one_or_all(outputs.outputs)

    def infer(self, feed: Feed) -> Any:
        """Enqueues one call; a feed that is not the last one is bound first, or copied where a graph is replayed."""
        if feed is not self._bound:
            self.bind(feed)
        if self._graphs:
            self._graphs[0].replay()
        else:
            self.calls[0].enqueue()
        return self._outputs

    def read_by(self, feed: Feed) -> list[Any]:
        return list((self._own if self._graphs else feed).values())

    def synchronize(self) -> None:
        self.calls[0].stream.synchronize()

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        """Time the engine's layers by their kernels: the profiler of TensorRT itself would keep them apart."""
        check_level(self.preparation)
        entries, self.preparation.facts["engine_bindings"] = self.engine.information()
        lookup, missing = onnx_lookup(self.onnx)
        kernels = kernels_of(self, feed, runs)
        layers = layers_of_kernels(kernels, inspected_layers(entries, lookup))
        return replace(layers, absent=layers.absent | absences(entries, layers.layers, missing))

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """The engine's layers, and their modules; a CUDA graph replays kernels in their order too."""
        entries, _ = self.engine.information()
        lookup, missing = onnx_lookup(self.onnx)
        return kernel_origins(launched, inspected_layers(entries, lookup), absences(entries, (), missing))

    def memory_parts(self) -> dict[str, int]:
        """The contexts' memory for activations, and the engine's weights where this TensorRT has them."""
        opened = self.engine.opened
        names = {"activations": ("device_memory_size_v2", len(self.calls)), "weights": ("streamable_weights_size", 1)}
        sizes = {part: getattr(opened, name, 0) * times for part, (name, times) in names.items()}
        return {part: size for part, size in sizes.items() if size > 0}

    def collect(self, outputs: Any) -> Outputs:
        tensors = outputs.outputs if isinstance(outputs, BoundContext) else outputs
        return [host_array(tensor) for tensor in tensors]

    def bind(self, feed: Feed) -> None:
        """Has the next calls, on every stream, read ``feed``; copied in where graphs are replayed."""
        if self._graphs:
            for name, own in self._own.items():
                own.copy_(feed[name])
        else:
            for call in self.calls:
                call.bind(feed)
        self._bound = feed

    def _opened(self, content: bytes) -> Engine:
        """The engine, checked to have the case's inputs and profile."""
        cache = Path(self.options.timing_cache) if self.options.timing_cache and self.flavour.jit else None
        engine = Engine(
            content, self.flavour, plugins=self.options.plugins, cache=cache, host_code=self.host_code,
            hint=self.hint,
        )  # fmt: skip
        known = {spec.name for spec in self.model.inputs}
        if not set(engine.inputs) <= known:
            shapes = {name: shape_text(tuple(engine.opened.get_tensor_shape(name))) for name in engine.inputs}
            wanted = ", ".join(f"{name}={shape}" for name, shape in shapes.items())
            raise Unsupported(
                one_line(f"The engine takes {wanted}, not {', '.join(sorted(known))}."), hint="--input for each"
            )
        count = engine.opened.num_optimization_profiles
        if self.options.profile >= count:
            raise Unsupported(f"There is no profile {self.options.profile}: the engine has {count}, counted from 0.")
        return engine

    def _lanes(self) -> list[Lane]:
        """What enqueues a call on each of the streams, reading what is bound."""
        calls = self.calls
        if not self._graphs:
            return [Lane(lambda _, call=call: call.enqueue(), call.stream) for call in calls]  # type: ignore[misc]
        return [Lane(_replay(graph, call.stream), call.stream) for graph, call in zip(self._graphs, calls, strict=True)]

    def _tensor(self, array: Any, spec: TensorSpec) -> Any:
        import torch

        return torch.from_numpy(np.array(array, order="C", copy=True)).to("cuda", self.engine.dtype(spec.name))

    def _captured(self, call: BoundContext) -> Any:
        import torch

        if call.grows:
            raise Unsupported(
                "The shape of an output depends on the data, which a CUDA graph cannot hold.", hint="without cuda_graph"
            )
        graph = torch.cuda.CUDAGraph()
        with (
            refused("The engine cannot be captured in a CUDA graph", hint="without cuda_graph"),
            torch.cuda.graph(graph, stream=call.stream),
        ):
            call.enqueue()
        return graph

    def _note_facts(self) -> None:
        opened, facts = self.engine.opened, self.preparation.facts
        facts["flavour"] = self.flavour.title
        facts["layers"] = opened.num_layers
        facts["profiles"] = opened.num_optimization_profiles
        facts["streams"] = len(self.calls)
        if hasattr(opened, "device_memory_size_v2"):
            facts["activation_bytes"] = opened.device_memory_size_v2


def _replay(graph: Any, stream: Any) -> Callable[[Feed], None]:
    """Replays ``graph`` on ``stream``: a replay goes to whatever stream is the current one."""
    import torch

    def replay(_: Feed) -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay
