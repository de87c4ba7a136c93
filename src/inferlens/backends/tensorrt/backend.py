"""The backend ``tensorrt``: modules are exported to ONNX, ONNX files and engines are used as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any, ClassVar, cast

from inferlens.backends.availability import NO_GPU, has_gpu, is_installed, torch_gpu, warn_no_effect
from inferlens.backends.base import (
    Absence,
    Backend,
    Builder,
    Capabilities,
    Deployer,
    Preparation,
    Quantizer,
    Recommendation,
    Runner,
    Saver,
    Support,
    precision_tolerance,
)
from inferlens.backends.onnx.graph import check_precision, copy_onnx, kept_nodes, onnx_file, onnx_formats, onnx_versions
from inferlens.backends.onnx.quantize import needs_quantizing, quantize_onnx, tensorrt_dialect
from inferlens.backends.scripts import program, sibling_path, torch_inputs
from inferlens.backends.tensorrt.engine import (
    KIND,
    EngineJob,
    build_to,
    cached_engine,
    check_engine,
    check_engine_file,
    engine_examiner,
)
from inferlens.backends.tensorrt.library import (
    FLAVOURS,
    TYPES,
    Flavour,
    current_gpu,
    find_flavour,
    load_flavour,
    plugin_files,
    registered_plugins,
)
from inferlens.backends.tensorrt.options import (
    KNOBS,
    RUN_OPTIONS,
    TACTIC_OPTIONS,
    TensorRTOptions,
    parse_profiles,
    spread_inputs,
)
from inferlens.backends.tensorrt.runner import EngineRunner
from inferlens.errors import InferlensError, Unsupported
from inferlens.models.compiled import built_option, copy_with_provenance
from inferlens.models.model import Model
from inferlens.record.builds import BuildReport
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case, Option, TensorSpec
from inferlens.spec.hints import Hint


class TensorRT(Backend, Saver, Quantizer, Builder, Deployer):
    """TensorRT and TensorRT for RTX, each a variant."""

    name = "tensorrt"
    summary = "TensorRT from ONNX: TensorRT (trt), TensorRT for RTX (rtx)"
    variants = ("trt", "rtx")
    untested_variants = ("trt",)
    options = TensorRTOptions
    distributions = ("tensorrt", "tensorrt-rtx")
    saves: ClassVar[dict[str, str]] = {".engine": KIND, ".plan": KIND}
    quantized_suffix = ".onnx"
    script_packages = ("torch", "tensorrt", "tensorrt-rtx")
    knobs = KNOBS
    recommended = tuple(
        Recommendation(variant, options={"cuda_graph": True}, fixed_shapes=True) for variant in variants
    )

    def capabilities(self) -> Capabilities:
        formats = (*onnx_formats(), "engine")
        flavours = [find_flavour(variant) for variant in self.variants]
        gpu = torch_gpu()  # PyTorch has the tensors, streams and events
        installed = [flavour for flavour in flavours if isinstance(flavour, Flavour)]
        no_gpu = NO_GPU if gpu.absence and not has_gpu() else gpu.absence  # reported before missing libraries
        absent = [absence for absence in flavours if isinstance(absence, Absence) and no_gpu is not NO_GPU]
        if no_gpu:
            variants = self.variants if no_gpu is NO_GPU else [flavour.variant for flavour in installed]
            absent += [Absence(variant, no_gpu.reason, no_gpu.hint, device="cuda") for variant in variants]
        quantizer = is_installed("onnx", "onnxruntime")
        precisions, quantizes = (*PRECISIONS, *gpu.quantized), gpu.quantized if quantizer else ()
        supports = tuple(
            Support(flavour.variant, "cuda", precisions, quantizes=quantizes, keeps=("fp16",))
            for flavour in installed
            if not no_gpu
        )
        writes = tuple(
            Support(variant, "cuda", QUANTIZED, onnx_formats(), quantizes=QUANTIZED, keeps=("fp16",))
            for variant in dict.fromkeys([*(flavour.variant for flavour in installed), *self.variants])
            if quantizer
        )
        versions = {flavour.key: flavour.version for flavour in installed} | onnx_versions()
        return Capabilities(
            formats=formats,
            supports=supports,
            writes=writes,
            absent=tuple(absent),
            limits=gpu.quantized_limits,
            libraries=versions | gpu.versions,
            dynamic_shapes=True,
            contents={f"plugins of {flavour.title}": tuple(registered_plugins(flavour)) for flavour in installed},
        )

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        options, flavour = self._options_and_flavour(case)
        if options.streams > 1 and case.io == "host":
            warn_no_effect(preparation, "streams", "calls with --io host")
        if model.format == "engine":
            return self._prepare_file(model, case, preparation, options, flavour)
        path = self._onnx_file(model, case, preparation, options)

        def content() -> bytes:
            engine = cached_engine(EngineJob(path, model, case, flavour, options, current_gpu()), preparation)
            preparation.facts["engine"] = {
                "bytes": len(engine.content), "sha256": engine.provenance.file_sha256,
                "build_seconds": engine.provenance.build_seconds, "cached": engine.cached,
            }  # fmt: skip
            return engine.content

        return EngineRunner(
            content, model, case, preparation, flavour, options, path, host_code=options.version_compatible
        )

    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        self.build(model, case, preparation, path)

    def build(self, model: Model, case: Case, preparation: Preparation, path: Path, builds: int = 1) -> BuildReport:
        """Write an engine and its provenance; several ``builds`` show how much builds differ."""
        if model.format == "engine":
            raise Unsupported(f"'{model.name}' is an engine already.", expected="a model or an ONNX file")
        options, flavour = self._options_and_flavour(case)
        graph = self._onnx_file(model, case, preparation, options)
        job = EngineJob(graph, model, case, flavour, options, current_gpu())
        examine = engine_examiner(job, preparation) if job.gpu and not options.compute_capability else None
        return build_to(Path(path), job, preparation, builds=builds, examine=examine)

    def write_quantized(self, model: Model, case: Case, preparation: Preparation, path: Path) -> Path:
        """Write the ONNX graph that an engine is built from; needs neither TensorRT nor a GPU."""
        options: TensorRTOptions = self.parse_options(case)
        plain = onnx_file(_with_profile_shapes(model, options), case, preparation, "fp32")
        preparation.export_folder = plain.parent  # reuse the export
        copy_onnx(self._onnx_file(model, case, preparation, options), path)
        return plain

    def deploy_suffix(self, case: Case) -> str:
        if self.parse_options(case).plugins:
            raise Unsupported("An engine does not contain its plugin libraries.", hint="a case without plugins")
        return ".engine"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Write the engine and its provenance, from the cache if possible; copy an engine that is a file."""
        if model.format == "engine" and model.path is not None:
            copy_with_provenance(model.path, path)
        else:
            self.build(model, case, preparation, path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        options: TensorRTOptions = self.parse_options(case)
        kinds = ", ".join(f'"{name}": torch.{kind}' for name, kind in TYPES.items())
        lines = [
            "logger = trt.Logger(trt.Logger.WARNING)",
            'trt.init_libnvinfer_plugins(logger, "")',
            "runtime = trt.Runtime(logger)",
            *["runtime.engine_host_code_allowed = True"] * options.version_compatible,
            f"engine = runtime.deserialize_cuda_engine(open({sibling_path(file)}, 'rb').read())",
            "context = engine.create_execution_context()",
            "stream = torch.cuda.Stream()",
            *[f"context.set_optimization_profile_async({options.profile}, stream.cuda_stream)"] * bool(options.profile),
            f"TYPES = {{{kinds}}}",
            "tensors = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]",
            "kinds = {name: TYPES[engine.get_tensor_dtype(name).name] for name in tensors}",
            f"NAMES = {[spec.name for spec in inputs]!r}",
            *torch_inputs(inputs, "float32", "cuda"),
            BUFFERS,
            *([CAPTURE, REPLAY] if options.cuda_graph else [ENQUEUE]),
        ]
        imports = [f"import {FLAVOURS[case.variant].module} as trt", "import torch"]
        return program(case, imports, lines, "torch.cuda.synchronize()")

    def times_kernels(self, case: Case, *, cached: bool = False) -> bool:
        """Return whether TensorRT builds; TensorRT for RTX compiles kernels as they are called."""
        return not cached and case.variant == "trt" and not case.model.startswith("engine:")

    def tolerance(self, case: Case) -> float:
        """Return the tolerance of TF32 if it is on; TensorRT for RTX always computes fp32 in TF32."""
        is_built = case.model.startswith("engine:")
        tf32 = bool(built_option(case.model, "tf32")) if is_built else self.parse_options(case).tf32
        return precision_tolerance(case, tf32=tf32 or case.variant == "rtx")

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """Offer no build options for a built engine, and no tactic options for TensorRT for RTX."""
        is_built = case.model.startswith("engine:") and option not in RUN_OPTIONS
        if is_built or (case.variant == "rtx" and option in TACTIC_OPTIONS):
            return Hint()
        if case.variant == "rtx" and option == "tf32":
            return Hint(asked=True)
        return super().hint(case, option, value, facts)

    @staticmethod
    def _prepare_file(
        model: Model, case: Case, preparation: Preparation, options: TensorRTOptions, flavour: Flavour
    ) -> EngineRunner:
        path = cast("Path", model.path)
        provenance, options = check_engine_file(model, case, options, flavour, preparation)

        def content() -> bytes:
            check_engine(path, provenance, flavour, current_gpu())
            return path.read_bytes()

        return EngineRunner(content, model, case, preparation, flavour, options, host_code=preparation.trust)

    def _options_and_flavour(self, case: Case) -> tuple[TensorRTOptions, Flavour]:
        """Return the options and the flavour of a case. Raise InferlensError for a wrong file in an option."""
        options: TensorRTOptions = self.parse_options(case)
        plugin_files(options.plugins)
        if options.timing_cache and Path(options.timing_cache).is_dir():
            raise InferlensError(f"The timing_cache {options.timing_cache} is a folder.", expected="a file")
        return options, load_flavour(case.variant)

    def exports(self, case: Case) -> str:
        options = self.parse_options(case)
        if options.profiles or case.precision in QUANTIZED:
            return ""
        return "fp32" if options.weakly_typed else case.precision

    @staticmethod
    def _onnx_file(model: Model, case: Case, preparation: Preparation, options: TensorRTOptions) -> Path:
        """Return the graph for all shapes of the profiles, in the case's precision.

        A weakly typed graph is in fp32. A quantized one is in fp16 except for its products.
        """
        quantizing = needs_quantizing(model, case)
        precision = "fp32" if options.weakly_typed or quantizing else case.precision
        if model.format == "onnx" and model.path is not None and not quantizing:
            check_precision(model.path, precision)
        path = onnx_file(_with_profile_shapes(model, options), case, preparation, precision)
        if not quantizing:
            return path
        dialect, keep = tensorrt_dialect(case.precision), kept_nodes(path, case)
        return quantize_onnx(path, model, case, preparation, dialect, options.ranges, keep)


def _with_profile_shapes(model: Model, options: TensorRTOptions) -> Model:
    """Return the model with free dimensions where profiles have more than one size."""
    return replace(model, inputs=spread_inputs(model.inputs, parse_profiles(options.profiles, model.inputs)))


# The script that runs a deployed engine with TensorRT and PyTorch's tensors alone


BUFFERS = """# Inputs in the engine's types
inputs = [given.to(kinds.get(name, given.dtype)) for name, given in zip(NAMES, inputs)]

# Memory that the engine reads and writes in every call; profile and shapes are those of the inputs above.
own = {name: given.clone() for name, given in zip(NAMES, inputs) if name in kinds}
for name, tensor in own.items():
    context.set_input_shape(name, tuple(tensor.shape))
outputs = {
    name: torch.empty(tuple(context.get_tensor_shape(name)), dtype=kind, device="cuda")
    for name, kind in kinds.items()
    if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT
}
for name, tensor in {**own, **outputs}.items():
    context.set_tensor_address(name, tensor.data_ptr())
torch.cuda.synchronize()


def call():
    if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
        raise RuntimeError("TensorRT did not enqueue the call")"""
CAPTURE = """

with torch.cuda.stream(stream):
    call()  # loads, or compiles, the kernels
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    call()"""
FILL = """
    for name, given in zip(NAMES, inputs):
        if name in own:
            assert given.shape == own[name].shape
            own[name].copy_(given)"""
REPLAY = f"""

def run(*inputs):{FILL}
    graph.replay()
    return list(outputs.values())"""
# On the default stream TensorRT would wait for the GPU.
ENQUEUE = f"""

def run(*inputs):
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):{indent(FILL, "    ")}
        call()
    torch.cuda.current_stream().wait_stream(stream)
    return list(outputs.values())"""
