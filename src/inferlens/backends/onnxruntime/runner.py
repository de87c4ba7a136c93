"""Providers of ONNX Runtime, and runners of an ONNX file on the CPU and on an NVIDIA GPU.

ONNX Runtime lists a provider as available without loading its library. If loading fails, it logs a line and runs on the
CPU. Therefore the library is loaded here first, and the loader's message is the reason of the absence.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from inferlens.backends.availability import unsupported_on_error, warn_ignored_options
from inferlens.backends.base import Absence, Inputs, LayerProfiler, Outputs, Preparation, Runner
from inferlens.backends.clocks import Clock, CudaClock
from inferlens.backends.onnx.graph import output_array, read_nodes
from inferlens.backends.onnxruntime.profile import OPTIMISED, enable_profile, match_kernels, profile_nodes, read_profile
from inferlens.backends.profiling.kernels import MatchedKernels, MatchingTracer
from inferlens.backends.profiling.runs import check_level, trace_single_run
from inferlens.backends.pytorch.runner import host_array, work_stream
from inferlens.errors import LateModule, Unsupported
from inferlens.models.inputs import make_inputs, on_host, single_or_list
from inferlens.models.model import Array, Model
from inferlens.record.profile import Layers
from inferlens.spec.case import Case

ort: Any = LateModule("onnxruntime")
torch: Any = LateModule("torch")


@dataclass(frozen=True)
class Provider:
    """An execution provider. If it ``lowers``, it takes an fp32 graph and lowers the precision itself."""

    name: str
    device: str
    library: str = ""  # empty if built in
    lowers: bool = False


PROVIDERS = {
    "cpu": Provider("CPUExecutionProvider", "cpu"),
    "cuda": Provider("CUDAExecutionProvider", "cuda", "libonnxruntime_providers_cuda.so"),
    "tensorrt": Provider("TensorrtExecutionProvider", "cuda", "libonnxruntime_providers_tensorrt.so", lowers=True),
}
PROVIDER_LIBRARIES = {
    "cuda": "CUDA and cuDNN of its version",
    "tensorrt": "TensorRT of its version (pip install tensorrt)",
}
# Options that only affect the nodes of one provider.
PROVIDER_OPTIONS = {
    "CUDAExecutionProvider": ("tf32", "cudnn_conv_algo_search", "fuse_conv_bias", "prefer_nhwc"),
    "CPUExecutionProvider": ("enable_cpu_mem_arena", "allow_spinning"),
}


def provider_absence(ort: Any, variant: str) -> Absence | None:
    """Return why a variant's provider is missing, or ``None``."""
    provider = PROVIDERS[variant]
    if provider.name not in ort.get_available_providers():
        reason = f"this ONNX Runtime was built without the {provider.name}"
        return Absence(variant, reason, "pip uninstall onnxruntime; pip install onnxruntime-gpu")
    reason = load_error(ort, provider)
    return Absence(variant, reason, f"onnxruntime-gpu needs {PROVIDER_LIBRARIES[variant]}") if reason else None


def load_error(ort: Any, provider: Provider) -> str:
    """Load a provider's library and return the loader's error, or an empty string."""
    if not provider.library:
        return ""
    load_cuda_libraries(ort, provider)
    library = Path(ort.__file__).parent / "capi" / provider.library
    try:
        ctypes.CDLL(str(library.with_name("libonnxruntime_providers_shared.so")), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"the {provider.name} does not load: {error}"
    return ""


def load_cuda_libraries(ort: Any, provider: Provider) -> None:
    """Load CUDA and cuDNN from the Python packages of PyTorch, or those that ONNX Runtime finds."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    if hasattr(ort, "preload_dlls"):
        # It prints missing files; the loader below reports the relevant ones.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(RuntimeError):
            ort.preload_dlls()
    if provider.lowers:
        with contextlib.suppress(ImportError):
            importlib.import_module("tensorrt")  # loads libnvinfer


def provider_list(provider: Provider, case: Case, options: Any, stream: int, cache: Path) -> list[Any]:
    """Return the provider with its options, then the providers that may get its remaining nodes.

    All GPU work runs on ``stream``, so that events recorded there time it.
    """
    if provider.device == "cpu":
        return [provider.name]
    common = {"device_id": "0", "user_compute_stream": str(stream)}
    # The library's default is on. Off, it keeps convolutions of every type from tensor cores, also in fp16.
    tf32 = options.tf32 or case.precision != "fp32"
    cuda = {
        **common,
        "use_tf32": str(int(tf32)),
        "cudnn_conv_algo_search": options.cudnn_conv_algo_search,
        "enable_cuda_graph": str(int(options.cuda_graph and not provider.lowers)),
    }
    # Omitted if off, which is the default: older versions refuse unknown names.
    cuda |= {name: "1" for name in ("fuse_conv_bias", "prefer_nhwc") if getattr(options, name)}
    providers: list[Any] = [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]
    if not provider.lowers:
        return providers
    tensorrt = {
        **common,
        "trt_fp16_enable": str(int(case.precision == "fp16")),
        "trt_cuda_graph_enable": str(int(options.cuda_graph)),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(cache),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(cache),
    }
    if case.precision == "bf16":  # omitted otherwise: older versions refuse unknown names
        tensorrt["trt_bf16_enable"] = "1"
    return [(provider.name, tensorrt), *providers]


# Runners. Inputs and outputs are bound in advance, because ``run()`` would wrap the inputs and copy the outputs in
# every call, which is Python's share and not the inference.

ERRORS_ONLY = 3
DeviceFeed = dict[str, Any]
# ONNX Runtime's type names: the name in NumPy and PyTorch, and the number in onnx.TensorProto.DataType.
TYPES = {
    "tensor(float)": ("float32", 1), "tensor(uint8)": ("uint8", 2), "tensor(int8)": ("int8", 3),
    "tensor(int16)": ("int16", 5), "tensor(int32)": ("int32", 6), "tensor(int64)": ("int64", 7),
    "tensor(bool)": ("bool", 9), "tensor(float16)": ("float16", 10), "tensor(double)": ("float64", 11),
    "tensor(bfloat16)": ("bfloat16", 16),
}  # fmt: skip
NUMPY_TYPES = {name: kind for name, (kind, _) in TYPES.items() if kind != "bfloat16"}  # NumPy has no bfloat16
LEVELS = {"all": "ENABLE_ALL", "extended": "ENABLE_EXTENDED", "basic": "ENABLE_BASIC", "disable": "DISABLE_ALL"}


def session_options(case: Case, options: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the attributes and configuration entries of a session, for runners and scripts."""
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
    """A runner of an ONNX file; subclasses bind and run. ``profiled_levels`` are levels with a profiled session."""

    profiled_levels: ClassVar[tuple[str, ...]] = ()

    path: Path
    provider: Provider
    model: Model
    case: Case
    preparation: Preparation
    options: Any
    _session: Any = field(default=None, init=False)
    _profile_folder: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)

    def give(self, outputs: list[Any]) -> Any:
        return single_or_list(outputs)

    def __exit__(self, *error: Any) -> None:
        self._session = None
        if self._profile_folder is not None:
            self._profile_folder.cleanup()
            self._profile_folder = None

    def load(self, stream: int = 0) -> Any:
        """Return a session for the file on the requested provider and no other."""
        self.preparation.cache.mkdir(parents=True, exist_ok=True)
        providers = provider_list(self.provider, self.case, self.options, stream, self.preparation.cache)
        with unsupported_on_error(f"{self.case.backend_label} cannot load the graph"):
            # Without fallback, a provider that fails raises and the CPU does not run in its place.
            options = self._session_options()
            session = ort.InferenceSession(str(self.path), options, providers=providers, enable_fallback=0)
        if self.provider.name not in session.get_providers():
            reason = load_error(ort, self.provider) or f"the {self.provider.name} was not created"
            raise Unsupported(f"ONNX Runtime fell back to {', '.join(session.get_providers())}: {reason}")
        self._report_nodes(session)
        return session

    def arrays(self, inputs: Inputs) -> dict[str, Array]:
        """Return the graph's inputs by name, in the graph's types.

        The graph may lack an input that the model takes and never uses.
        """
        return {
            name: np.ascontiguousarray(inputs[name], NUMPY_TYPES.get(kind, "float32")) for name, kind in self._types
        }

    @cached_property
    def _types(self) -> list[tuple[str, str]]:
        return [(node.name, node.type) for node in self._session.get_inputs()]

    def _session_options(self) -> Any:
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
            self._profile_folder = tempfile.TemporaryDirectory(prefix="profile-", dir=self.preparation.folder)
            enable_profile(settings, Path(self._profile_folder.name))
        return settings

    def _report_nodes(self, session: Any) -> None:
        """Record how many nodes each provider got before fusion, and warn of nodes on the CPU."""
        if not hasattr(session, "get_provider_graph_assignment_info"):
            return
        subgraphs = session.get_provider_graph_assignment_info()
        nodes = [(subgraph.ep_name, node.op_type) for subgraph in subgraphs for node in subgraph.get_nodes()]
        counts = self.preparation.facts["nodes_by_provider"] = dict(Counter(provider for provider, _ in nodes))
        if self.provider.device == "cpu":
            return
        for name, options in PROVIDER_OPTIONS.items():
            if name not in counts:
                warn_ignored_options(self.options, options, f"no node runs on the {name}.", self.preparation)
        kinds = [kind for provider, kind in nodes if provider == "CPUExecutionProvider"]
        if kinds:
            self.preparation.warn(
                "provider-fallback",
                f"{len(kinds)} of {len(nodes)} nodes run on the CPU: {', '.join(sorted(set(kinds)))}.",
                "Replace these operators in the model: the GPU waits while data crosses to the CPU and back.",
            )


class BoundInputs(NamedTuple):
    """A binding and its input values, which ONNX Runtime before 1.30 does not keep alive."""

    binding: Any
    inputs: list[Any]


class CpuRunner(OnnxRunner, LayerProfiler):
    """ONNX Runtime on the CPU."""

    profiled_levels = ("layer",)

    def __enter__(self) -> CpuRunner:
        import onnxruntime  # noqa: F401 - before the build, which is timed

        with self.preparation.phase("build"):
            self._session = self.load()
        return self

    def profile_layers(self, feed: Any, runs: int) -> Layers:
        check_level(self.preparation)
        if self._profile_folder is None:
            raise Unsupported("ONNX Runtime profiles a session once.", hint="enter the runner again")
        profile_folder, self._profile_folder = self._profile_folder, None
        parallel = self.options.execution_mode == "parallel"
        with profile_folder as folder:
            return profile_nodes(self, self._session, Path(folder), self.path, feed, runs, parallel=parallel)

    def place(self, inputs: Inputs) -> BoundInputs | dict[str, Array]:
        """Return a binding with the inputs, whose outputs stay on the host.

        A graph that outputs a sequence or a map gets plain arrays: a second run would append to a bound output.
        """
        if names := [node.name for node in self._session.get_outputs() if not node.type.startswith("tensor(")]:
            self.preparation.warn(
                "python-outputs",
                f"The output '{names[0]}' is not a tensor: every call makes Python objects of it, which is timed.",
                "An export without it, such as options={'zipmap': False}.",
            )
            return self.arrays(inputs)
        binding = self._session.io_binding()
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.arrays(inputs).items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for node in self._session.get_outputs():
            binding.bind_output(node.name)  # allocated by the first run and reused by the next
        return BoundInputs(binding, [*values.values()])

    def take(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return plain arrays: a single call writes new outputs in less time than a binding takes."""
        return self.arrays(on_host(inputs))

    def infer(self, feed: BoundInputs | dict[str, Array]) -> Any:
        if isinstance(feed, dict):
            return self._session.run(None, feed)
        self._session.run_with_iobinding(feed.binding)
        return feed

    def thread_caller(self) -> Callable[[Any], Any]:
        """Return ``infer``: threads may share a session, and each feed has its own binding."""
        return self.infer

    def collect(self, outputs: BoundInputs | list[Any]) -> Outputs:
        if isinstance(outputs, BoundInputs):
            outputs = [value.numpy() for value in outputs.binding.get_outputs()]
        return [output_array(array) for value in outputs for array in unpack(value)]


class CudaRunner(OnnxRunner):
    """ONNX Runtime with its CUDA or TensorRT provider, on a stream and memory of PyTorch.

    While it is entered, the runner's stream is PyTorch's current one, so the clock records its events on the stream on
    which ONNX Runtime enqueues. ONNX Runtime does not wait for the GPU at the end of a run: ``infer`` only enqueues.
    """

    clock: Clock = CudaClock()
    reuses_outputs = True
    _inputs: DeviceFeed
    _outputs: list[Any]
    _binding: Any = None
    _bound_feed: DeviceFeed | None = None

    def __enter__(self) -> CudaRunner:
        import onnxruntime  # noqa: F401 - before PyTorch, and before the build, which is timed

        load_cuda_libraries(ort, self.provider)
        with ExitStack() as entered:
            stream = work_stream()
            entered.enter_context(torch.cuda.stream(stream))
            with self.preparation.phase("build"):
                self._session = self.load(stream.cuda_stream)
                self._run_options = self.run_options()
                self._inputs = self.place(make_inputs(self.model, self.case.seed))
                self._bind_outputs()
                self.synchronize()
            self._entered = entered.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        # ONNX Runtime is released first, because it holds addresses of the tensors.
        self._binding = None
        super().__exit__(*error)
        self._inputs, self._outputs, self._bound_feed = {}, [], None
        self._entered.close()

    def place(self, inputs: Inputs) -> DeviceFeed:
        """Return tensors on the GPU by name, in the types of the graph."""
        arrays = self.arrays(inputs)
        return {
            name: torch.from_numpy(arrays[name].copy()).to("cuda", getattr(torch, TYPES[kind][0]))
            for name, kind in self._types
        }

    def take(self, inputs: Mapping[str, Any]) -> DeviceFeed:
        """Return the tensors themselves; a call copies them into the bound ones."""
        import torch  # in every call: half a microsecond less than the late module

        return {name: torch.as_tensor(inputs[name]) for name in self._inputs}

    def infer(self, feed: DeviceFeed) -> list[Any]:
        """Enqueue one run; a new feed is copied into the bound tensors first."""
        if feed is not self._bound_feed:
            self.bind(feed)
        self._session.run_with_iobinding(self._binding, self._run_options)
        return self._outputs

    def run_options(self, *, captured: bool = True) -> Any:
        """Return options of a run that only enqueues, and without ``captured`` uses no CUDA graph."""
        options = ort.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if not captured:
            options.add_run_config_entry("gpu_graph_id", "-1")
        return options

    def bind(self, feed: DeviceFeed) -> None:
        for name, tensor in self._inputs.items():
            tensor.copy_(feed[name])
        self._bound_feed = feed

    def tensors_read(self, feed: DeviceFeed) -> list[Any]:  # noqa: ARG002 - every feed is copied into the bound tensors
        return list(self._inputs.values())

    def synchronize(self) -> None:
        torch.cuda.current_stream().synchronize()

    def collect(self, outputs: list[Any]) -> Outputs:
        return [host_array(tensor) for tensor in outputs]

    def _bind_outputs(self) -> None:
        """Bind PyTorch tensors as outputs, so that every run writes to the same memory.

        One run shows the shapes that the graph does not declare; in this run a provider may still refuse an operator.
        The run uses no CUDA graph, which would keep the outputs that ONNX Runtime allocated.
        """
        nodes = self._session.get_outputs()
        for node in nodes:
            if node.type not in TYPES:
                message = f"The output '{node.name}' is a {node.type}, which is not on a GPU."
                raise Unsupported(message, hint="--device cpu")
        shapes = [tuple(node.shape) for node in nodes]
        if not all(isinstance(size, int) for shape in shapes for size in shape):
            first = self._new_binding([])
            with unsupported_on_error(f"{self.case.backend_label} cannot run the graph"):
                self._session.run_with_iobinding(first, self.run_options(captured=False))
            shapes = [tuple(value.shape()) for value in first.get_outputs()]
        self._outputs = [
            torch.empty(shape, dtype=getattr(torch, TYPES[node.type][0]), device="cuda")
            for shape, node in zip(shapes, nodes, strict=True)
        ]
        self._binding = self._new_binding(self._outputs)

    def _new_binding(self, outputs: list[Any]) -> Any:
        """Return a binding of the inputs and, if there are any yet, of ``outputs``."""
        binding = self._session.io_binding()
        kinds = {node.name: TYPES[node.type][1] for node in self._session.get_inputs()}
        for name, tensor in self._inputs.items():
            binding.bind_input(name, "cuda", 0, kinds[name], tuple(tensor.shape), tensor.data_ptr())
        for index, node in enumerate(self._session.get_outputs()):
            if outputs:
                shape, address = tuple(outputs[index].shape), outputs[index].data_ptr()
                binding.bind_output(node.name, "cuda", 0, TYPES[node.type][1], shape, address)
            else:
                binding.bind_output(node.name, "cuda", 0)
        return binding


class CudaNodeRunner(CudaRunner, MatchingTracer):
    """The CUDA provider, whose layers are the nodes of the optimised graph, timed by their kernels.

    ONNX Runtime's profile shows when the host was in each node, and torch.profiler shows when each kernel was launched.
    Both read the system's clock. In a call that both trace, a kernel belongs to the last node that began before the
    kernel's launch. This call runs without a CUDA graph, which calls no nodes.
    """

    profiled_levels = ("layer", "kernel")

    def profile_layers(self, feed: DeviceFeed, runs: int) -> Layers:
        check_level(self.preparation)
        return self.matched_layers(feed, runs, self.case.backend_label)

    def matched_kernels(self) -> MatchedKernels:
        assert self._profile_folder
        replaying, self._run_options = self._run_options, self.run_options(captured=False)
        run = trace_single_run(self, self._bound_feed, on_gpu=True)
        self._run_options = replaying
        events = read_profile(Path(self._session.end_profiling()))
        began = self._session.get_profiling_start_time_ns()
        optimised = read_nodes(Path(self._profile_folder.name) / OPTIMISED)
        return match_kernels(run, events, began, read_nodes(self.path), optimised)


def unpack(value: Any) -> list[Array]:
    """Return an output as arrays: the elements of a sequence, the keys and values of a map."""
    if isinstance(value, dict):
        return [np.asarray([*value]), np.asarray([*value.values()])]
    if isinstance(value, list):
        return [array for element in value for array in unpack(element)]
    return [np.asarray(value)]
