"""ONNX Runtime's providers: which variant means which, whether it loads here, and its options.

ONNX Runtime lists a provider as available without loading its library, and when it cannot be loaded runs on the CPU
after a line in the log; so it is loaded here first, and the loader's own words are the reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import tempfile
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from inferlens.backends.availability import refused, warn_unheeded
from inferlens.backends.base import (
    Absence,
    Inputs,
    KernelOrigin,
    KernelOrigins,
    Launched,
    LayerProfiler,
    Origins,
    Outputs,
    Preparation,
    Runner,
    ordered,
)
from inferlens.backends.clocks import Clock, CudaClock
from inferlens.backends.onnx.graph import OnnxNodes, check_shapes, origins
from inferlens.backends.onnxruntime.profile import (
    OPTIMISED,
    Fusion,
    ProfileEvent,
    ask_for_profile,
    layer,
    layers_of,
    runs_of,
    unknown_modules,
)
from inferlens.backends.profiling.kernels import MatchedKernels, kernels_of, layers_of_kernels, origins_by_match
from inferlens.backends.profiling.layers import check_level
from inferlens.backends.profiling.traces import TracedRun, one_run
from inferlens.backends.pytorch.runner import host_array
from inferlens.errors import Unsupported
from inferlens.models.inputs import make_inputs, on_host, one_or_all
from inferlens.models.model import Array, Model
from inferlens.record.layer_profile import Layer, Layers
from inferlens.spec.case import Case


@dataclass(frozen=True)
class Provider:
    """A variant's provider; one that ``lowers`` takes an fp32 graph and lowers the precision itself."""

    name: str
    device: str
    library: str = ""  # empty if it is built in
    lowers: bool = False


PROVIDERS = {
    "cpu": Provider("CPUExecutionProvider", "cpu"),
    "cuda": Provider("CUDAExecutionProvider", "cuda", "libonnxruntime_providers_cuda.so"),
    "tensorrt": Provider("TensorrtExecutionProvider", "cuda", "libonnxruntime_providers_tensorrt.so", lowers=True),
}
NEEDS = {"cuda": "CUDA and cuDNN of its version", "tensorrt": "TensorRT of its version (pip install tensorrt)"}
# Options that act on the nodes of one provider alone.
ACT_ON = {
    "CUDAExecutionProvider": ("tf32", "cudnn_conv_algo_search", "fuse_conv_bias", "prefer_nhwc"),
    "CPUExecutionProvider": ("enable_cpu_mem_arena", "allow_spinning"),
}


def provider_absence(ort: Any, variant: str) -> Absence | None:
    """Why a variant's provider cannot be had; ``None`` if it can."""
    provider = PROVIDERS[variant]
    if provider.name not in ort.get_available_providers():
        reason = f"this ONNX Runtime was built without the {provider.name}"
        return Absence(variant, reason, "pip uninstall onnxruntime; pip install onnxruntime-gpu")
    reason = load_error(ort, provider)
    return Absence(variant, reason, f"onnxruntime-gpu needs {NEEDS[variant]}") if reason else None


def load_error(ort: Any, provider: Provider) -> str:
    """Loads a provider's library and what it needs; the loader's words if that fails, else an empty string."""
    if not provider.library:
        return ""
    preload(ort, provider)
    library = Path(ort.__file__).parent / "capi" / provider.library
    try:
        ctypes.CDLL(str(library.with_name("libonnxruntime_providers_shared.so")), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"the {provider.name} does not load: {error}"
    return ""


def preload(ort: Any, provider: Provider) -> None:
    """Loads CUDA and cuDNN from Python packages: PyTorch's come with PyTorch, what else there is ONNX Runtime finds."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    if hasattr(ort, "preload_dlls"):
        # It prints what it does not find; what matters of that is said by the loader below.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(RuntimeError):
            ort.preload_dlls()
    if provider.lowers:
        with contextlib.suppress(ImportError):
            importlib.import_module("tensorrt")  # brings libnvinfer into the process


def provider_list(provider: Provider, case: Case, options: Any, stream: int, cache: Path) -> list[Any]:
    """What ONNX Runtime is asked for: the provider with its options, then those it may hand nodes to.

    Everything on the GPU runs on ``stream``, so that events recorded there time it.
    """
    if provider.device == "cpu":
        return [provider.name]
    common = {"device_id": "0", "user_compute_stream": str(stream)}
    # ONNX Runtime's own default is on. Off, it keeps convolutions of every type from tensor cores, those in fp16 too.
    tf32 = options.tf32 or case.precision != "fp32"
    cuda = {
        **common,
        "use_tf32": str(int(tf32)),
        "cudnn_conv_algo_search": options.cudnn_conv_algo_search,
        "enable_cuda_graph": str(int(options.cuda_graph and not provider.lowers)),
    }
    # Not named where they are off, which is ONNX Runtime's default: a version that lacks one would refuse its name.
    cuda |= {name: "1" for name in ("fuse_conv_bias", "prefer_nhwc") if getattr(options, name)}
    offered: list[Any] = [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]
    if not provider.lowers:
        return offered
    tensorrt = {
        **common,
        "trt_fp16_enable": str(int(case.precision == "fp16")),
        "trt_cuda_graph_enable": str(int(options.cuda_graph)),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(cache),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(cache),
    }
    if case.precision == "bf16":  # not named otherwise: an ONNX Runtime that is older than this option would refuse it
        tensorrt["trt_bf16_enable"] = "1"
    return [(provider.name, tensorrt), *offered]


# Runners. Inputs and outputs are bound in advance, because ``run()`` would wrap the inputs and copy the outputs in
# every call, which is Python's share and not the inference.

ERRORS_ONLY = 3
DeviceFeed = dict[str, Any]
# ONNX Runtime's name of a type: NumPy's and PyTorch's, and the number in onnx.TensorProto.DataType.
TYPES = {
    "tensor(float)": ("float32", 1), "tensor(uint8)": ("uint8", 2), "tensor(int8)": ("int8", 3),
    "tensor(int16)": ("int16", 5), "tensor(int32)": ("int32", 6), "tensor(int64)": ("int64", 7),
    "tensor(bool)": ("bool", 9), "tensor(float16)": ("float16", 10), "tensor(double)": ("float64", 11),
    "tensor(bfloat16)": ("bfloat16", 16),
}  # fmt: skip
NUMPY = {name: kind for name, (kind, _) in TYPES.items() if kind != "bfloat16"}  # which NumPy lacks
LEVELS = {"all": "ENABLE_ALL", "extended": "ENABLE_EXTENDED", "basic": "ENABLE_BASIC", "disable": "DISABLE_ALL"}


def session_options(case: Case, options: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The attributes and the entries that a session is given, and a script that does without Inferlens too."""
    import onnxruntime as ort

    attributes = {
        "intra_op_num_threads": case.threads or 0,
        "inter_op_num_threads": options.inter_op_threads,
        "graph_optimization_level": getattr(ort.GraphOptimizationLevel, f"ORT_{LEVELS[options.graph_optimization]}"),
        "execution_mode": getattr(ort.ExecutionMode, f"ORT_{options.execution_mode.upper()}"),
        "enable_cpu_mem_arena": options.enable_cpu_mem_arena,
    }
    spinning = str(int(options.allow_spinning))
    return attributes, {f"session.{pool}.allow_spinning": spinning for pool in ("intra_op", "inter_op")}


@dataclass(eq=False)
class OnnxRunner(Runner):
    """Loads the file; subclasses bind and run. A session is profiled at the levels in ``profiled_levels``."""

    profiled_levels: ClassVar[tuple[str, ...]] = ()

    path: Path
    provider: Provider
    model: Model
    case: Case
    preparation: Preparation
    options: Any
    _loaded: Any = field(default=None, init=False)
    _written: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)  # the profile's folder

    def __exit__(self, *error: Any) -> None:
        self._loaded = None
        if self._written is not None:
            self._written.cleanup()
            self._written = None

    def load(self, stream: int = 0) -> Any:
        """ONNX Runtime's object for the file, on the provider asked for and on no other."""
        import onnxruntime as ort

        self.preparation.cache.mkdir(parents=True, exist_ok=True)
        providers = provider_list(self.provider, self.case, self.options, stream, self.preparation.cache)
        with refused(f"{self.case.backend_label} cannot load the graph"):
            # Without its fallback: a provider that fails shall raise, not give way to the CPU.
            loaded = ort.InferenceSession(str(self.path), self._settings(), providers=providers, enable_fallback=0)
        if self.provider.name not in loaded.get_providers():
            reason = load_error(ort, self.provider) or f"the {self.provider.name} was not created"
            raise Unsupported(f"ONNX Runtime fell back to {', '.join(loaded.get_providers())}: {reason}")
        if self.model.format == "onnx":
            check_shapes(((node.name, node.shape) for node in loaded.get_inputs()), self.model.inputs)
        self._tell_nodes(loaded)
        return loaded

    def arrays(self, inputs: Inputs) -> dict[str, Array]:
        """Of each of the graph's inputs the array, in the graph's own type.

        An input that the model takes and never uses may be missing in the graph.
        """
        return {name: np.ascontiguousarray(inputs[name], NUMPY.get(kind, "float32")) for name, kind in self._types}

    @cached_property
    def _types(self) -> list[tuple[str, str]]:
        """Name of each of the graph's inputs, and ONNX Runtime's name of its type."""
        return [(node.name, node.type) for node in self._loaded.get_inputs()]

    def _settings(self) -> Any:
        import onnxruntime as ort

        settings = ort.SessionOptions()
        settings.log_severity_level = ERRORS_ONLY
        attributes, entries = session_options(self.case, self.options)
        for name, value in attributes.items():
            setattr(settings, name, value)
        for key, text in {**entries, "session.record_ep_graph_assignment_info": "1"}.items():
            settings.add_session_config_entry(key, text)
        self.preparation.facts["onnxruntime"] = ort.__version__  # CPU and GPU packages may both be installed
        self.preparation.facts["threads"] = self.case.threads
        if self.preparation.level in self.profiled_levels:
            self.preparation.folder.mkdir(parents=True, exist_ok=True)
            self._written = tempfile.TemporaryDirectory(prefix="profile-", dir=self.preparation.folder)
            ask_for_profile(settings, Path(self._written.name))
        return settings

    def _tell_nodes(self, loaded: Any) -> None:
        """Says which provider got how many nodes, as the graph was split, before nodes were fused."""
        if not hasattr(loaded, "get_provider_graph_assignment_info"):
            return
        nodes = [
            (part.ep_name, node.op_type)
            for part in loaded.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        ]
        found = self.preparation.facts["nodes_by_provider"] = dict(Counter(provider for provider, _ in nodes))
        if self.provider.device == "cpu":
            return
        for name in (name for name in ACT_ON if name not in found):
            warn_unheeded(self.options, ACT_ON[name], f"no node runs on the {name}.", self.preparation)
        strays = Counter(kind for provider, kind in nodes if provider == "CPUExecutionProvider")
        if strays:
            self.preparation.warn(
                "provider-fallback",
                f"{strays.total()} of {len(nodes)} nodes run on the CPU: {', '.join(sorted(strays))}.",
                "Replace these operators in the model: the GPU waits while data crosses to the CPU and back.",
            )


class Bound(NamedTuple):
    """A binding, and the values that it reads, which before ONNX Runtime 1.30 it does not keep from being freed."""

    binding: Any
    inputs: list[Any]


class CpuRunner(OnnxRunner, LayerProfiler):
    """ONNX Runtime on the CPU."""

    profiled_levels = ("layer",)

    def __enter__(self) -> CpuRunner:
        import onnxruntime  # noqa: F401 - before the build, which is timed

        with self.preparation.phase("build"):
            self._loaded = self.load()
        return self

    def profile_layers(self, feed: Any, runs: int) -> Layers:
        check_level(self.preparation)
        if self._written is None:
            raise Unsupported("ONNX Runtime profiles a session once.", hint="enter the runner again")
        written, self._written = self._written, None
        parallel = self.options.execution_mode == "parallel"
        with written as folder:
            return layers_of(self, self._loaded, Path(folder), self.path, feed, runs, parallel=parallel)

    def place(self, inputs: Inputs) -> Bound | dict[str, Array]:
        """A binding with the inputs in it and room for the outputs, which stay on the host.

        Arrays alone of a graph that gives a sequence or a map: a second run would add to one that is bound.
        """
        import onnxruntime as ort

        ordered(inputs, self.model.inputs)  # refuses other names
        if odd := [node.name for node in self._loaded.get_outputs() if not node.type.startswith("tensor(")]:
            self.preparation.warn(
                "python-outputs",
                f"The output '{odd[0]}' is not a tensor: every call makes Python objects of it, which is timed.",
                "An export without it, such as options={'zipmap': False}.",
            )
            return self.arrays(inputs)
        binding = self._loaded.io_binding()
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.arrays(inputs).items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for node in self._loaded.get_outputs():
            binding.bind_output(node.name)  # allocated by the first run, written to again by the next
        return Bound(binding, [*values.values()])

    def take(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """The arrays themselves; a call of them writes to new outputs, and takes less time than a binding for it."""
        return self.arrays(on_host(given))

    def infer(self, feed: Bound | dict[str, Array]) -> Any:
        if isinstance(feed, dict):
            return self._loaded.run(None, feed)
        self._loaded.run_with_iobinding(feed.binding)
        return feed

    def caller(self) -> Callable[[Any], Any]:
        """The same call: a session may run in several threads at once, and each feed has a binding of its own."""
        return self.infer

    def collect(self, outputs: Bound | list[Any]) -> Outputs:
        if isinstance(outputs, Bound):
            outputs = [value.numpy() for value in outputs.binding.get_outputs()]
        return [as_output(array) for value in outputs for array in unpacked(value)]

    def give(self, outputs: list[Array]) -> Any:
        return one_or_all(outputs)


class CudaRunner(OnnxRunner):
    """ONNX Runtime with its CUDA or TensorRT provider, on a stream and with memory of PyTorch's.

    The stream is the runner's own and PyTorch's current one while the runner is entered, so the CUDA clock's events are
    recorded where ONNX Runtime enqueues. ONNX Runtime is told not to wait for the GPU at the end of a run: ``infer``
    enqueues only, as with every other backend on a GPU.
    """

    clock: Clock = CudaClock()
    reuses_outputs = True
    _own: DeviceFeed
    _outputs: list[Any]
    _binding: Any = None
    _bound: DeviceFeed | None = None

    def __enter__(self) -> CudaRunner:
        import onnxruntime as ort
        import torch

        preload(ort, self.provider)
        with ExitStack() as entered:
            stream = torch.cuda.Stream()
            entered.enter_context(torch.cuda.stream(stream))
            with self.preparation.phase("build"):
                self._loaded = self.load(stream.cuda_stream)
                self._run_options = self.run_options()
                self._own = self.place(make_inputs(self.model, self.case.seed))
                self._bind_outputs()
                self.synchronize()
            self._entered = entered.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        # ONNX Runtime goes first: it holds addresses of the tensors, which must outlive it.
        self._binding = None
        super().__exit__(*error)
        self._own, self._outputs, self._bound = {}, [], None
        self._entered.close()

    def place(self, inputs: Inputs) -> DeviceFeed:
        """Tensors on the GPU, in the types that the graph declares, by name."""
        import torch

        ordered(inputs, self.model.inputs)  # refuses other names
        arrays = self.arrays(inputs)
        return {
            name: torch.from_numpy(arrays[name].copy()).to("cuda", getattr(torch, TYPES[kind][0]))
            for name, kind in self._types
        }

    def take(self, given: Mapping[str, Any]) -> DeviceFeed:
        """The tensors themselves: a call copies them into those that are bound, whatever they are."""
        import torch

        return {name: torch.as_tensor(given[name]) for name in self._own}

    def give(self, outputs: list[Any]) -> Any:
        return one_or_all(outputs)

    def infer(self, feed: DeviceFeed) -> list[Any]:
        """Enqueues one run. A feed that is not the last one is copied into the bound tensors first."""
        if feed is not self._bound:
            self.bind(feed)
        self._loaded.run_with_iobinding(self._binding, self._run_options)
        return self._outputs

    def run_options(self, *, captured: bool = True) -> Any:
        """Options of a run that only enqueues. One that is not ``captured`` neither makes nor replays a CUDA graph."""
        import onnxruntime as ort

        options = ort.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if not captured:
            options.add_run_config_entry("gpu_graph_id", "-1")
        return options

    def bind(self, feed: DeviceFeed) -> None:
        for name, own in self._own.items():
            own.copy_(feed[name])
        self._bound = feed

    def read_by(self, feed: DeviceFeed) -> list[Any]:  # noqa: ARG002 - every feed is copied into the bound tensors
        return list(self._own.values())

    def synchronize(self) -> None:
        import torch

        torch.cuda.current_stream().synchronize()

    def collect(self, outputs: list[Any]) -> Outputs:
        return [host_array(tensor) for tensor in outputs]

    def _bind_outputs(self) -> None:
        """Binds tensors of PyTorch's as outputs, so that every run writes to the same place.

        Shapes the graph does not declare are learned from one run, in which a provider may still refuse an operator. It
        is kept out of a CUDA graph, which would hold on to outputs that ONNX Runtime allocated for it.
        """
        import torch

        for node in self._loaded.get_outputs():
            if node.type not in TYPES:
                raise Unsupported(
                    f"The output '{node.name}' is a {node.type}, which is not on a GPU.", hint="--device cpu"
                )
        shapes = [tuple(node.shape) for node in self._loaded.get_outputs()]
        kinds = [TYPES[node.type][0] for node in self._loaded.get_outputs()]
        if not all(isinstance(size, int) for shape in shapes for size in shape):
            first = self._bind([])
            with refused(f"{self.case.backend_label} cannot run the graph"):
                self._loaded.run_with_iobinding(first, self.run_options(captured=False))
            shapes = [tuple(value.shape()) for value in first.get_outputs()]
        self._outputs = [
            torch.empty(shape, dtype=getattr(torch, kind), device="cuda")
            for shape, kind in zip(shapes, kinds, strict=True)
        ]
        self._binding = self._bind(self._outputs)

    def _bind(self, outputs: list[Any]) -> Any:
        """A binding of the own inputs and, if there are any yet, of ``outputs``."""
        binding = self._loaded.io_binding()
        kinds = {node.name: TYPES[node.type][1] for node in self._loaded.get_inputs()}
        for name, tensor in self._own.items():
            binding.bind_input(name, "cuda", 0, kinds[name], tuple(tensor.shape), tensor.data_ptr())
        for index, node in enumerate(self._loaded.get_outputs()):
            if outputs:
                shape, address = tuple(outputs[index].shape), outputs[index].data_ptr()
                binding.bind_output(node.name, "cuda", 0, TYPES[node.type][1], shape, address)
            else:
                binding.bind_output(node.name, "cuda", 0)
        return binding


APART = "not known: the clocks of ONNX Runtime's profile and of torch.profiler's trace differ."


class CudaNodeRunner(CudaRunner, LayerProfiler, KernelOrigins):
    """ONNX Runtime with its CUDA provider: its layers are the nodes of the optimised graph, timed by their kernels.

    The profile of ONNX Runtime says when the host was in each node, and has no kernels. torch.profiler sees the
    kernels, and when each was launched. One call is traced by both, which read the system's clock, and a kernel
    belongs to the node that began last before its launch. A CUDA graph calls no nodes, so that call runs without it.
    """

    profiled_levels = ("layer", "kernel")
    _matched: MatchedKernels | None = None

    def profile_layers(self, feed: DeviceFeed, runs: int) -> Layers:
        check_level(self.preparation)
        kernels = kernels_of(self, feed, runs, self.case.backend_label)
        return layers_of_kernels(kernels, self._matched.layers if self._matched else ())

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """The nodes and modules of the same kernels in one call that both profilers trace."""
        if self._matched is None:
            assert self._written
            replaying, self._run_options = self._run_options, self.run_options(captured=False)
            run = one_run(self, self._bound, on_gpu=True)
            self._run_options = replaying
            text = Path(self._loaded.end_profiling()).read_bytes()
            self._matched = kernels_by_node(
                run,
                msgspec.json.decode(text, type=list[ProfileEvent]),
                self._loaded.get_profiling_start_time_ns(),
                origins(self.path),
                origins(Path(self._written.name) / OPTIMISED),
            )
        return origins_by_match(launched, self._matched)


def kernels_by_node(
    run: TracedRun, events: list[ProfileEvent], began: int, graph: OnnxNodes, optimised: OnnxNodes
) -> MatchedKernels:
    """Return the kernels, copies and fills of a traced run, the last one of a profile, with their nodes.

    Args:
        events: of ONNX Runtime's profile, which ``began`` so many nanoseconds after 1970.
        graph: as it was given; ``optimised``: as it ran.
    """
    ((_, nodes),) = runs_of(events, 1)
    fusion = Fusion(graph, optimised)
    begins = [began + 1000 * node.ts - run.begin for node in nodes]
    if begins[0] < 0 or begins[-1] > run.whole * 1e9:
        return MatchedKernels([], {"modules": APART})
    kernels: list[tuple[Launched, KernelOrigin]] = []
    layers: dict[str, Layer] = {}
    for event in run.events:
        place = bisect(begins, event.launch) - 1
        if place >= 0:
            own = layer(nodes[place], fusion)
            kernels.append((event.launched, KernelOrigin(own.name, own.modules)))
            layers.setdefault(own.name, own)
    return MatchedKernels(kernels, unknown_modules(layers.values(), graph), tuple(layers.values()))


def unpacked(value: Any) -> list[Array]:
    """Return an output as arrays: the elements of a sequence, and of a map its keys and its values."""
    if isinstance(value, dict):
        return [np.asarray([*value]), np.asarray([*value.values()])]
    if isinstance(value, list):
        return [array for element in value for array in unpacked(element)]
    return [np.asarray(value)]


def as_output(array: Any) -> Array:
    """A copy, floats as float32, and text as NumPy's own."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    kind = np.float32 if np.issubdtype(array.dtype, np.floating) else str if array.dtype == object else array.dtype
    return np.array(array, dtype=kind, copy=True)
