"""TensorRT from ONNX as a backend: modules are exported, ONNX files and engines are taken as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any, ClassVar, cast

from inferlens.backends.availability import (
    NO_GPU,
    cuda_absence,
    cuda_quantized,
    found,
    gpu_here,
    imported,
    torch_versions,
    warn_no_effect,
)
from inferlens.backends.base import (
    Absence,
    Backend,
    Builder,
    Capabilities,
    Deployer,
    Knob,
    Preparation,
    Quantizer,
    Recommendation,
    Runner,
    Saver,
    Support,
    tolerance_of,
)
from inferlens.backends.onnx.graph import check_precision, copy_onnx, kept_nodes, onnx_file
from inferlens.backends.onnx.quantize import for_tensorrt, quantized_onnx, to_quantize
from inferlens.backends.onnxruntime.backend import onnx_formats, onnx_versions
from inferlens.backends.scripts import beside, program, torch_inputs
from inferlens.backends.tensorrt.engine import (
    KIND,
    TRUST,
    EngineJob,
    build_to,
    built,
    check_engine,
    checked_file,
    examiner,
)
from inferlens.backends.tensorrt.library import (
    KINDS,
    OF_TACTICS,
    Flavour,
    TensorRTOptions,
    current_gpu,
    find,
    flavour,
    heeded,
    plugin_files,
    profiles,
    registered_plugins,
    spread,
)
from inferlens.backends.tensorrt.runner import TYPES, EngineRunner
from inferlens.errors import InferlensError, Unsupported
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.record.build_report import BuildReport
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case, Option, TensorSpec
from inferlens.spec.hints import Hint


class TensorRT(Backend, Saver, Quantizer, Builder, Deployer):
    """TensorRT and TensorRT for RTX, each a variant."""

    name = "tensorrt"
    summary = "TensorRT from ONNX: TensorRT (trt), TensorRT for RTX (rtx)"
    variants = ("trt", "rtx")
    not_run_by_us = ("trt",)
    options = TensorRTOptions
    distributions = ("tensorrt", "tensorrt-rtx")
    saves: ClassVar[dict[str, str]] = {".engine": KIND, ".plan": KIND}
    quantized_as = ".onnx"
    script_packages = ("torch", "tensorrt", "tensorrt-rtx")
    knobs = (
        Knob(name="cuda_graph", values=(True,), helps=("host",)),
        Knob(name="streams", values=(2, 4), objectives=("throughput",)),
        # TensorRT for RTX uses TF32 unasked, and times no tactics.
        Knob(name="tf32", values=(True,), variants=("trt",), precisions=("fp32",)),
        Knob(name="optimization_level", values=(5, 4), variants=("trt",), build=4.0),
        Knob(name="avg_timing_iterations", values=(8,), variants=("trt",), build=3.0),
        Knob(name="max_num_tactics", values=(1000,), variants=("trt",), build=3.0),
    )
    recommended = tuple(
        Recommendation(variant, options={"cuda_graph": True}, fixed_shapes=True) for variant in variants
    )

    def capabilities(self) -> Capabilities:
        formats = (*onnx_formats(), "engine")
        flavours = [find(variant) for variant in self.variants]
        torch, no_torch = imported("torch", "PyTorch", "torch")  # its tensors, streams and events are used
        no_gpu = no_torch or cuda_absence(torch)
        here = [item for item in flavours if isinstance(item, Flavour)]
        no_gpu = NO_GPU if no_gpu and not gpu_here() else no_gpu  # that comes before what is not installed
        absent = [item for item in flavours if isinstance(item, Absence) and no_gpu is not NO_GPU]
        if no_gpu:
            lack = self.variants if no_gpu is NO_GPU else [item.variant for item in here]
            absent += [Absence(item, no_gpu.reason, no_gpu.hint, device="cuda") for item in lack]
        to, limits = ((), {}) if no_gpu else cuda_quantized(torch)
        quantizer = found("onnx", "onnxruntime")
        supports = tuple(
            Support(item.variant, "cuda", (*PRECISIONS, *to), quantizes=to if quantizer else (), keeps=("fp16",))
            for item in here
            if not no_gpu
        )
        first = [item.variant for item in here] or self.variants
        return Capabilities(
            formats=formats,
            supports=supports,
            writes=tuple(
                Support(fromkey, "cuda", QUANTIZED, onnx_formats(), quantizes=QUANTIZED, keeps=("fp16",))
                for fromkey in dict.fromkeys([*first, *self.variants])
                if quantizer
            ),
            absent=tuple(absent),
            limits=limits,
            libraries={item.key: item.version for item in here}
            | onnx_versions()
            | (torch_versions(torch) if torch else {}),
            dynamic_shapes=True,
            contents={f"plugins of {item.title}": tuple(registered_plugins(item)) for item in here},
        )

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        options, flavour = self._checked(case)
        if options.streams > 1 and case.io == "host":
            warn_no_effect(preparation, "streams", "calls with --io host")
        if model.format == "engine":
            return self._of_file(model, case, preparation, options, flavour)
        path = self._onnx(model, case, preparation, options)

        def content() -> bytes:
            made = built(EngineJob(path, model, case, flavour, options, current_gpu()), preparation)
            preparation.facts["engine"] = {
                "bytes": len(made.content), "sha256": made.provenance.file_sha256,
                "build_seconds": made.provenance.build_seconds, "cached": made.cached,
            }  # fmt: skip
            return made.content

        return EngineRunner(
            content, model, case, preparation, flavour, options, path, host_code=options.version_compatible
        )

    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        self.build(model, case, preparation, path)

    def build(self, model: Model, case: Case, preparation: Preparation, path: Path, builds: int = 1) -> BuildReport:
        """Writes an engine, its provenance beside it; several ``builds`` show how far builds differ."""
        if model.format == "engine":
            raise Unsupported(f"'{model.name}' is an engine already.", expected="a model or an ONNX file")
        options, flavour = self._checked(case)
        job = EngineJob(self._onnx(model, case, preparation, options), model, case, flavour, options, current_gpu())
        examine = examiner(job, preparation) if job.gpu and not options.compute_capability else None
        return build_to(Path(path), job, preparation, builds=builds, examine=examine)

    def write_quantized(self, model: Model, case: Case, preparation: Preparation, path: Path) -> Path:
        """Writes the ONNX graph that an engine is built of; needs neither TensorRT nor a GPU."""
        options: TensorRTOptions = self.parse_options(case)
        plain = onnx_file(_for_all_shapes(model, options), case, preparation, "fp32")
        preparation.exported = plain.parent  # not once more
        copy_onnx(self._onnx(model, case, preparation, options), path)
        return plain

    def deployed_as(self, case: Case) -> str:
        if self.parse_options(case).plugins:
            raise Unsupported("Libraries of plugins do not go with an engine.", hint="a case without plugins")
        return ".engine"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Writes the engine, from the cache if it is there, and what it is beside it; copies one that is in a file."""
        if model.format == "engine" and model.path is not None:
            provenance.copy(model.path, path)
        else:
            self.build(model, case, preparation, path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        return tensorrt_script(case, file, inputs, self.parse_options(case), KINDS[case.variant].module)

    def times_kernels(self, case: Case, *, built: bool = False) -> bool:
        """Return whether TensorRT builds; TensorRT for RTX compiles kernels as they are called."""
        return not built and case.variant == "trt" and not case.model.startswith("engine:")

    def tolerance(self, case: Case) -> float:
        """TF32's where it is on; TensorRT for RTX computes fp32 in TF32 whatever the option says."""
        is_built = case.model.startswith("engine:")
        tf32 = bool(provenance.option_of(case.model, "tf32")) if is_built else self.parse_options(case).tf32
        return tolerance_of(case, tf32=tf32 or case.variant == "rtx")

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """An engine from a file is built already; TensorRT for RTX times no tactics, and uses TF32 unasked."""
        is_built = case.model.startswith("engine:") and option not in heeded(case.variant == "rtx")
        if is_built or (case.variant == "rtx" and option in OF_TACTICS):
            return Hint()
        if case.variant == "rtx" and option == "tf32":
            return Hint(asked=True)
        return super().hint(case, option, value, facts)

    @staticmethod
    def _of_file(
        model: Model, case: Case, preparation: Preparation, options: TensorRTOptions, flavour: Flavour
    ) -> EngineRunner:
        path = cast("Path", model.path)
        provenance, options = checked_file(model, case, options, flavour, preparation)

        def content() -> bytes:
            check_engine(path, provenance, flavour, current_gpu())
            return path.read_bytes()

        # Only the runtime knows whether a file that nothing describes holds code.
        hint = "" if provenance or preparation.trust else f"if it is version-compatible, {TRUST}"
        return EngineRunner(content, model, case, preparation, flavour, options, host_code=preparation.trust, hint=hint)

    def _checked(self, case: Case) -> tuple[TensorRTOptions, Flavour]:
        """Options and flavour of a case; files that options name are looked at before any work."""
        options: TensorRTOptions = self.parse_options(case)
        plugin_files(options.plugins)
        if options.timing_cache and Path(options.timing_cache).is_dir():
            raise InferlensError(f"The timing_cache {options.timing_cache} is a folder.", expected="a file")
        return options, flavour(case.variant)

    def exports(self, case: Case) -> str:
        options = self.parse_options(case)
        if options.profiles or case.precision in QUANTIZED:
            return ""
        return "fp32" if options.weakly_typed else case.precision

    @staticmethod
    def _onnx(model: Model, case: Case, preparation: Preparation, options: TensorRTOptions) -> Path:
        """The graph, in the case's precision (weakly typed: in fp32) and for all shapes of the profiles.

        What is quantized here is in fp16 but for its products.
        """
        quantizing = to_quantize(model, case)
        precision = "fp32" if options.weakly_typed or quantizing else case.precision
        if model.format == "onnx" and model.path is not None and not quantizing:
            check_precision(model.path, precision)
        path = onnx_file(_for_all_shapes(model, options), case, preparation, precision)
        if not quantizing:
            return path
        dialect, keep = for_tensorrt(case.precision), kept_nodes(path, case)
        return quantized_onnx(path, model, case, preparation, dialect, options.ranges, keep)


def _for_all_shapes(model: Model, options: TensorRTOptions) -> Model:
    """The model with the dimensions free that profiles say more than one size of."""
    return replace(model, inputs=spread(model.inputs, profiles(options.profiles, model.inputs)))


# The script that runs a deployed engine with TensorRT and PyTorch's tensors alone


BOUND = """inputs = [given.to(kinds.get(name, given.dtype)) for name, given in zip(NAMES, inputs)]  # the engine's types

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
CAPTURED = """

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


def tensorrt_script(
    case: Case, file: str, inputs: tuple[TensorSpec, ...], options: TensorRTOptions, module: str
) -> str:
    """The script; ``module`` is the flavour's, such as ``tensorrt_rtx``."""
    kinds = ", ".join(f'"{name}": torch.{kind}' for name, kind in TYPES.items())
    lines = [
        "logger = trt.Logger(trt.Logger.WARNING)",
        'trt.init_libnvinfer_plugins(logger, "")',
        "runtime = trt.Runtime(logger)",
        *["runtime.engine_host_code_allowed = True"] * options.version_compatible,
        f"engine = runtime.deserialize_cuda_engine(open({beside(file)}, 'rb').read())",
        "context = engine.create_execution_context()",
        "stream = torch.cuda.Stream()",
        *[f"context.set_optimization_profile_async({options.profile}, stream.cuda_stream)"] * bool(options.profile),
        f"TYPES = {{{kinds}}}",
        "tensors = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]",
        "kinds = {name: TYPES[engine.get_tensor_dtype(name).name] for name in tensors}",
        f"NAMES = {[spec.name for spec in inputs]!r}",
        *torch_inputs(inputs, "float32", "cuda"),
        BOUND,
        *([CAPTURED, REPLAY] if options.cuda_graph else [ENQUEUE]),
    ]
    return program(case, [f"import {module} as trt", "import torch"], lines, "torch.cuda.synchronize()")
