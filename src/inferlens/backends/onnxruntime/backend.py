"""ONNX Runtime, one variant for each supported execution provider.

Modules are exported to ONNX; ONNX files run as they are. A provider that is missing is an absence or a refusal, never a
silent run on another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from inferlens.backends.availability import check_cuda_options, import_library, is_installed, torch_gpu
from inferlens.backends.base import (
    Absence,
    Backend,
    Capabilities,
    Deployer,
    Knob,
    Preparation,
    Quantizer,
    Ranges,
    Recommendation,
    Runner,
    Saver,
    Support,
    Tf32,
)
from inferlens.backends.onnx.graph import check_precision, copy_onnx, kept_nodes, onnx_file, onnx_formats, onnx_versions
from inferlens.backends.onnx.quantize import cpu_dialect, keep_in_record, needs_quantizing, quantize_onnx, recorded_file
from inferlens.backends.onnxruntime.runner import (
    PROVIDER_OPTIONS,
    PROVIDERS,
    CpuRunner,
    CudaNodeRunner,
    CudaRunner,
    OnnxRunner,
    provider_absence,
    provider_list,
    session_options,
)
from inferlens.backends.pytorch.runner import DTYPES
from inferlens.backends.scripts import numpy_inputs, program, sibling_path
from inferlens.errors import LateModule, Unsupported
from inferlens.models.model import Format, Model
from inferlens.spec.case import QUANTIZED, Case, Option, TensorSpec
from inferlens.spec.hints import Hint

ort: Any = LateModule("onnxruntime")

NO_GPU_QUANTIZING = "ONNX Runtime is not given quantized graphs for a GPU here; tensorrt is"
LIMITS = {
    "cpu/bf16": "ONNX Runtime has hardly any bf16 operators for the CPU, not even a convolution",
    "cpu/fp8": "ONNX Runtime has no products in fp8 for the CPU",
    "cuda/int8": NO_GPU_QUANTIZING,
    "cuda/fp8": NO_GPU_QUANTIZING,
}


class OnnxRuntimeOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of ONNX Runtime."""

    graph_optimization: Annotated[
        Literal["all", "extended", "basic", "disable"], Meta(description="how far the graph is rewritten when loaded")
    ] = "all"
    execution_mode: Annotated[
        Literal["sequential", "parallel"], Meta(description="parallel: independent branches on several threads")
    ] = "sequential"
    inter_op_threads: Annotated[
        int, Meta(description="threads for execution_mode parallel; 0 is ONNX Runtime's own choice", ge=0)
    ] = 0
    tf32: Tf32 = False
    cudnn_conv_algo_search: Annotated[
        Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"], Meta(description="how cuDNN's convolution algorithms are chosen")
    ] = "EXHAUSTIVE"
    fuse_conv_bias: Annotated[bool, Meta(description="let cuDNN add a convolution's bias in the same kernel")] = False
    prefer_nhwc: Annotated[
        bool, Meta(description="compute convolutions in channels-last (NHWC) memory order on CUDA")
    ] = False
    enable_cpu_mem_arena: Annotated[
        bool, Meta(description="keep memory between calls on the CPU; off: each call asks the system for it")
    ] = True
    allow_spinning: Annotated[
        bool, Meta(description="threads on the CPU wait for work awake; off: they sleep, and are woken for it")
    ] = True
    quantize: Annotated[
        Literal["static", "dynamic"],
        Meta(description="dynamic: ranges are found in every call, for matrix products with weights alone; no data"),
    ] = "static"
    ranges: Ranges = "minmax"
    cuda_graph: Annotated[
        bool, Meta(description="capture the graph's kernels in a CUDA graph; all nodes must run on the GPU")
    ] = False


class OnnxRuntime(Backend, Saver, Quantizer, Deployer):
    """ONNX Runtime."""

    name = "onnxruntime"
    summary = "ONNX Runtime, by provider"
    variants = ("cpu", "cuda", "tensorrt")
    untested_variants = ("tensorrt",)
    options = OnnxRuntimeOptions
    aliases: ClassVar[dict[str, str]] = {"channels_last": "prefer_nhwc"}
    distributions = ("onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu")
    reference_for: ClassVar[dict[Format, tuple[str, dict[str, Option]]]] = {
        "onnx": ("cpu", {"graph_optimization": "disable"})
    }
    saves: ClassVar[dict[str, str]] = {".onnx": "ONNX graph"}
    quantized_suffix = ".onnx"
    knobs = (
        Knob(name="cuda_graph", values=(True,), devices=("cuda",), helps=("host",)),
        Knob(name="tf32", values=(True,), variants=("cuda",), precisions=("fp32",)),
        Knob(name="prefer_nhwc", values=(True,), variants=("cuda",), precisions=("fp32", "fp16"), helps=("layout",)),
        Knob(name="fuse_conv_bias", values=(True,), variants=("cuda",), precisions=("fp32", "fp16"), helps=("memory",)),
        Knob(name="cudnn_conv_algo_search", values=("HEURISTIC",), variants=("cuda",)),
        Knob(name="allow_spinning", values=(False,), devices=("cpu",)),
        Knob(name="graph_optimization", values=("extended",), devices=("cpu",)),
        Knob(name="execution_mode", values=("parallel",), devices=("cpu",)),
        Knob(name="enable_cpu_mem_arena", values=(False,), devices=("cpu",)),
        Knob(name="quantize", values=("dynamic",), variants=("cpu",), precisions=("int8",)),
    )
    recommended = (
        Recommendation("cpu", "cpu"),
        Recommendation("cuda", options={"cuda_graph": True}, fixed_shapes=True),
    )

    def capabilities(self) -> Capabilities:
        formats = onnx_formats()
        ort, missing = import_library("onnxruntime", "ONNX Runtime", "onnx")
        if missing:
            return Capabilities(formats=formats, absent=(missing,))
        gpu = torch_gpu()  # PyTorch has the tensors and events on a GPU
        supports, absent = [], []
        for variant in self.variants:
            device = PROVIDERS[variant].device
            if lack := (gpu.absence if device == "cuda" else None) or provider_absence(ort, variant):
                absent.append(Absence(variant, lack.reason, lack.hint, device))
            elif device == "cuda":
                supports.append(Support(variant, device, (*gpu.precisions, *QUANTIZED)))
            else:
                precisions = ("fp32", "fp16", *QUANTIZED)
                supports.append(Support(variant, device, precisions, (), ("int8",), ("fp32",), {"quantize": "dynamic"}))
        return Capabilities(
            formats=formats,
            supports=tuple(supports),
            absent=tuple(absent),
            limits=gpu.limits | LIMITS,
            dynamic_shapes=True,
            libraries={"onnxruntime": str(ort.__version__)} | onnx_versions() | gpu.versions,
        )

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        options: OnnxRuntimeOptions = self.parse_options(case)
        provider = PROVIDERS[case.variant]
        check_cuda_options(options, case, preparation)
        path = _graph_file(model, case, preparation, options)
        kinds: dict[str, type[OnnxRunner]] = {"cpu": CpuRunner, "cuda": CudaNodeRunner, "tensorrt": CudaRunner}
        return kinds[case.variant](path, provider, model, case, preparation, options)

    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Write the ONNX graph; weights that do not fit into one file go into a second one."""
        graph_file = _graph_file(model, case, preparation, self.parse_options(case))
        if graph_file == model.path:
            raise Unsupported(f"'{model.name}' is an ONNX file already.", expected="a model in PyTorch")
        copy_onnx(graph_file, path)

    def write_quantized(self, model: Model, case: Case, preparation: Preparation, path: Path) -> Path:
        plain = onnx_file(model, case, preparation, "fp32")
        preparation.export_folder = plain.parent  # reuse the export
        copy_onnx(_graph_file(model, case, preparation, self.parse_options(case)), path)
        return plain

    def exports(self, case: Case) -> str:
        return "" if case.precision in QUANTIZED else _graph_precision(case)

    def times_kernels(self, case: Case, *, cached: bool = False) -> bool:
        """Return whether TensorRT builds, or cuDNN times its convolutions in every process's first call."""
        search = case.variant == "cuda" and self.parse_options(case).cudnn_conv_algo_search == "EXHAUSTIVE"
        return search or (case.variant == "tensorrt" and not cached)

    def packages(self, case: Case) -> tuple[str, ...]:
        """Return the script's distributions; on a GPU, PyTorch brings CUDA."""
        return ("numpy", "onnxruntime", "onnxruntime-gpu", *["torch"] * (case.device == "cuda"))

    def deploy_suffix(self, case: Case) -> str:
        if case.precision == "bf16" and not PROVIDERS[case.variant].lowers:
            raise Unsupported("A graph in bf16 cannot be fed by NumPy, which has no bf16.", hint="--precision fp16")
        return ".onnx"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        copy_onnx(_graph_file(model, case, preparation, self.parse_options(case)), path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        options = self.parse_options(case)
        is_file = case.model.startswith("onnx:")  # a file keeps its own types
        floats = "" if is_file else DTYPES.get(_graph_precision(case), "float32")
        on_gpu = case.device == "cuda"
        providers = provider_list(PROVIDERS[case.variant], case, options, 0, Path())
        for provider in providers:  # the script has its own stream
            if not isinstance(provider, str):
                provider[1].pop("user_compute_stream")
        imports = ["import numpy as np", "import onnxruntime as ort"]
        imports += ["import torch  # brings CUDA and cuDNN"] * on_gpu
        lines = [
            "options = ort.SessionOptions()",
            *option_statements(*session_options(case, options)),
            f"session = ort.InferenceSession({sibling_path(file)}, options, providers={providers!r})",
            f"NAMES = {[spec.name for spec in inputs]!r}",
            "taken = [node.name for node in session.get_inputs()]  # the graph lacks those that the model never uses",
            *numpy_inputs(inputs, floats),
            "",
            SCRIPT_ON_GPU if on_gpu else SCRIPT_ON_CPU,
        ]
        return program(case, imports, lines)

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """Offer no CUDA graph to a model that several providers run, and no CUDA options to TensorRT's provider."""
        provider, nodes = PROVIDERS.get(case.variant), facts.get("nodes_by_provider")
        if provider is None:
            return Hint()
        is_divided = isinstance(nodes, dict) and bool(nodes.keys() - {provider.name})
        is_useless = provider.lowers and cls.aliases.get(option, option) in PROVIDER_OPTIONS["CUDAExecutionProvider"]
        if is_useless or (option == "cuda_graph" and is_divided):
            return Hint()
        return super().hint(case, option, value, facts)


def _graph_file(model: Model, case: Case, preparation: Preparation, options: OnnxRuntimeOptions) -> Path:
    """Return the file to run; a quantized one runs as it is."""
    if quantized := recorded_file(preparation, ".onnx"):
        return quantized
    if needs_quantizing(model, case):
        path = onnx_file(model, case, preparation, "fp32")
        dialect = cpu_dialect(dynamic=options.quantize == "dynamic")
        quantized_path = quantize_onnx(path, model, case, preparation, dialect, options.ranges, kept_nodes(path, case))
        return keep_in_record(preparation, quantized_path)
    runs_as_it_is = model.format == "onnx" and not PROVIDERS[case.variant].lowers
    if runs_as_it_is and model.path is not None and is_installed("onnx"):
        check_precision(model.path, case.precision)
    return onnx_file(model, case, preparation, _graph_precision(case))


def _graph_precision(case: Case) -> str:
    """Return the precision of the exported graph: TensorRT's provider lowers an fp32 graph itself."""
    return "fp32" if PROVIDERS[case.variant].lowers else case.precision


# The script that runs a deployed graph with ONNX Runtime alone


SCRIPT_ON_CPU = """
def run(*inputs):
    given = dict(zip(NAMES, inputs))
    return session.run(None, {name: given[name] for name in taken})"""
# Bound once: a CUDA graph reads and writes the same memory in every call.
SCRIPT_ON_GPU = """
host = {name: array.copy() for name, array in zip(NAMES, inputs) if name in taken}
bound = {name: ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in host.items()}
binding = session.io_binding()
for name, value in bound.items():
    binding.bind_ortvalue_input(name, value)
for node in session.get_outputs():
    binding.bind_output(node.name, "cuda")


def run(*inputs):  # with copies to the GPU and back
    given = dict(zip(NAMES, inputs))
    for name, value in bound.items():
        np.copyto(host[name], given[name])  # update_inplace copies bytes: it neither converts nor checks types
        value.update_inplace(host[name])
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()"""


def option_statements(attributes: Mapping[str, Any], entries: Mapping[str, str]) -> Iterator[str]:
    """Yield statements that set the session options which differ from the library's defaults."""
    defaults = ort.SessionOptions()
    for name, value in attributes.items():
        if value == getattr(defaults, name):
            continue
        code = f"ort.{type(value).__name__}.{value.name}" if hasattr(value, "name") else repr(value)
        yield f"options.{name} = {code}"
    for key, text in entries.items():
        if text != "1":  # the default
            yield f"options.add_session_config_entry({key!r}, {text!r})"
