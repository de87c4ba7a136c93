"""The backend ``torch_tensorrt`` and its front ends."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
from msgspec import structs

from inferlens.backends.availability import ignore_deprecations, is_installed, torch_gpu, unsupported_on_error
from inferlens.backends.base import (
    Absence,
    Backend,
    Capabilities,
    Deployer,
    Knob,
    Partitioner,
    Preparation,
    Recommendation,
    Runner,
    Saver,
    Support,
    precision_tolerance,
)
from inferlens.backends.onnx.quantize import check_share
from inferlens.backends.pytorch.runner import (
    Feed,
    dynamic_sizes,
    export_dimensions,
    flat_outputs,
    input_dtype,
    input_tensors,
    not_entered,
)
from inferlens.backends.scripts import LOAD_PROGRAM, sibling_path, torch_script
from inferlens.backends.tensorrt.library import current_gpu
from inferlens.backends.torch_tensorrt.library import (
    DYNAMO,
    EXTRA,
    FLAVOUR_TITLES,
    NOT_IN_SCRIPT,
    TACTIC_OPTIONS,
    TITLE,
    Library,
    TorchTensorRTOptions,
    assume_gpu,
    check_options,
    dynamo_settings,
    find_library,
    load_library,
    replace_attributes,
    script_settings,
)
from inferlens.backends.torch_tensorrt.partitions import (
    CapturedGraphs,
    LoweredGraph,
    compiled_partition,
    partition_choices,
    segments_of,
    watch_partitioner,
)
from inferlens.backends.torch_tensorrt.runner import (
    FILE_KINDS,
    LoadedRunner,
    ReplayingRunner,
    collect_engines,
    compile_step,
    detailed_engines,
)
from inferlens.errors import LateModule, Unsupported, library, reason
from inferlens.models.compiled import built_option, copy_with_provenance, new_provenance, write_provenance
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Format, Model
from inferlens.models.samples import calibration_feeds
from inferlens.models.work import count, flops_share
from inferlens.record.builds import Partition, Segment, partition_of
from inferlens.record.record import Gpu
from inferlens.spec.case import QUANTIZED, Case, Option, TensorSpec, check_kept, kept_layers
from inferlens.spec.hints import Hint

torch: Any = LateModule("torch")

FORMATS: tuple[Format, ...] = ("module", "exported")
LOADED = "loaded"
SCRIPT_FORMATS: dict[str, tuple[Format, ...]] = {"ts-trace": FORMATS, "ts-script": ("module", "torchscript")}
SCRIPTS = tuple(SCRIPT_FORMATS)
DYNAMO_ONLY = "what NVIDIA ModelOpt quantizes is exported for torch_tensorrt:dynamo alone"
NO_MODELOPT = "it takes NVIDIA ModelOpt, which is not installed (pip install nvidia-modelopt requests)"


# Every front end is a runner. ``torch.export`` and Dynamo treat a size of 1 as a constant, and Torch-TensorRT optimizes
# for the example's sizes. Examples therefore have the optimum's sizes, or 2 for a size that varies from 1.


class CompilingRunner(ReplayingRunner):
    """A runner that compiles a module and calls the result; subclasses are the front ends."""

    variant: ClassVar[str]
    exports: ClassVar[bool] = True  # whether the model is exported before it is compiled
    alternative: ClassVar[str] = DYNAMO  # the hint if this front end cannot take a model

    _program: Any = None
    _lowered_graphs: Sequence[LoweredGraph] = ()
    _engines: Sequence[Any] = ()  # modules with an engine, for profiles of layers

    def export(self, module: Any) -> Any:
        """Return the module in the form that :meth:`compile` takes."""
        return module

    @abstractmethod
    def compile(self, program: Any, keywords: dict[str, Any]) -> Callable[..., Any]:
        """Return the function to call with the input tensors."""

    def keywords(self) -> dict[str, Any]:
        return dynamo_settings(self.options, self.case, self.library, self.preparation)

    def save(self, path: Path) -> None:
        """Write the compiled module; the runner is entered."""
        raise Unsupported(f"'{self.variant}' cannot save its compiled model as {path.suffix}.", hint=self.alternative)

    def __enter__(self) -> CompilingRunner:
        if self.exports:
            with self.preparation.phase("export"), self.settings():
                self._program = self._export_module()
        super().__enter__()
        try:
            self._note_facts()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def build(self, module: Any) -> Callable[..., Any]:
        level = self.preparation.level
        with (
            detailed_engines(self.library, level),
            collect_engines(level) as self._engines,
            watch_partitioner() as self._lowered_graphs,
            compile_step(self.model.name, "compile", hint=self.alternative),
        ):
            self.compiled = self.compile(self._program if self.exports else module, self.keywords())
            self._program = None
            return self.capture(self.compiled)

    def __exit__(self, *error: Any) -> None:
        self._program = None
        self._lowered_graphs, self._engines = (), ()
        super().__exit__(*error)

    def compiled_parts(self) -> tuple[Any, Sequence[Segment]]:
        """Return the compiled module, and its partition's segments."""
        return self.compiled, segments_of(self._lowered_graphs)

    def partition(self, assumed_gpu: str) -> Partition:
        """Return the predicted partition; nothing is built, and the runner is not entered."""
        with self.settings():
            program = self._export_module() if self.exports else self._module_on_device()
            with watch_partitioner() as self._lowered_graphs, compile_step(self.model.name, "partition"):
                self.compile(program, self.keywords() | {"dryrun": True, "require_full_compilation": False})
            return structs.replace(self.read_partition(), assumed_gpu=assumed_gpu)

    def read_partition(self) -> Partition:
        return partition_of(
            segments_of(self._lowered_graphs),
            **self._partition_fields(),
            **partition_choices(self._lowered_graphs, self.options.min_block_size),
        )

    def example(self) -> Feed:
        """Return input tensors that show which sizes vary (see :func:`example_shape`)."""
        specs = tuple(structs.replace(spec, shape=example_shape(spec)) for spec in self.model.inputs)
        return self.place(make_inputs(dataclasses.replace(self.model, inputs=specs), self.case.seed))

    def inputs(self) -> list[Any]:
        inputs = []
        for spec in self.model.inputs:
            shapes: dict[str, Any] = {"shape": spec.shape}
            if spec.dynamic:
                shapes = dict(zip(("min_shape", "opt_shape", "max_shape"), spec.profile, strict=True))
            dtype = input_dtype(spec, self._stored_precision)
            inputs.append(self.library.module.Input(**shapes, dtype=dtype, name=spec.name))
        return inputs

    def _partition_fields(self) -> dict[str, Any]:
        size = self.options.min_block_size
        return {"front_end": self.variant, "min_block_size": size, "flavour": self.library.flavour}

    def _export_module(self) -> Any:
        module = self._module_on_device()
        with compile_step(self.model.name, "export", hint=self.alternative):
            return self.export(module)

    def _note_facts(self) -> None:
        """Record the partition; raise Unsupported if PyTorch runs a part against the options."""
        facts, options = self.preparation.facts, self.options
        facts["flavour"] = self.library.flavour
        facts["runtime"] = "Python" if options.use_python_runtime or not self.library.native else "C++"
        try:
            partition = self.read_partition()
        except Exception as error:  # it reads internals of the library; the case runs without it
            if options.require_full_compilation:
                raise
            facts["no_partition"] = f"The partition is unknown: {reason(error)}"
            return
        facts["partition"] = msgspec.to_builtins(partition)
        if not partition.engines:
            why = f"There is no engine: everything ran in PyTorch (min_block_size {options.min_block_size})."
            self.preparation.warn("no-engines", why, "inferlens partition shows why.")
        if options.require_full_compilation and (partition.breaks or partition.interruptions or not partition.engines):
            only_between = partition.interruptions and not partition.breaks
            problem = "Python runs between the compiled graphs" if only_between else "PyTorch runs a part"
            message = f"{problem} of '{self.model.name}', but require_full_compilation is set."
            raise Unsupported(message, hint="inferlens partition, which shows which part and why")


class Dynamo(CompilingRunner):
    """The front end ahead of time: ``torch.export``, then ``torch_tensorrt.dynamo.compile``."""

    variant = "dynamo"
    alternative = "--backend torch_tensorrt:compile"

    def export(self, module: Any) -> Any:
        dimensions = export_dimensions(module, self.model.inputs)
        with self._export_context():
            return torch.export.export(module, self.example(), dynamic_shapes=dimensions, strict=False)

    def compile(self, program: Any, keywords: dict[str, Any]) -> Callable[..., Any]:
        with self._export_context():
            compiled = self.library.module.dynamo.compile(program, arg_inputs=self.inputs(), **keywords)
        return cast("Callable[..., Any]", compiled)

    def _export_context(self) -> AbstractContextManager[None]:
        return export_without_kernels() if self.case.precision in QUANTIZED else nullcontext()

    def save(self, path: Path) -> None:
        """Write an exported program (``.ep``) or TorchScript (``.ts``), which is a trace."""
        kind = {"output_format": "torchscript" if path.suffix == ".ts" else "exported_program"}
        # Ranges are dimensions, because the library would make a separate one for every input's batch.
        dimensions = export_dimensions(self.compiled, self.model.inputs) if path.suffix == ".ep" else None
        dynamic = {} if dimensions is None else {"dynamic_shapes": dimensions}
        with compile_step(self.model.name, f"save as {path.suffix}", hint="the other kind of file, .ts or .ep"):
            self.library.module.save(self.compiled, str(path), arg_inputs=list(self.example()), **kind, **dynamic)


class Compile(CompilingRunner):
    """The front end of ``torch.compile``, which compiles at the first call."""

    variant = "compile"
    exports = False

    _captured_graphs: CapturedGraphs

    def __enter__(self) -> Compile:
        super().__enter__()
        # It was compiled outside of inference mode, and would be compiled again inside.
        self._entered.enter_context(torch.inference_mode(mode=False))
        self._entered.enter_context(torch.no_grad())
        return self

    def __exit__(self, *error: Any) -> None:
        self._call, self.compiled = not_entered, None
        self._captured_graphs = CapturedGraphs()
        torch._dynamo.reset()  # releases the compiled code and its engines
        super().__exit__(*error)

    def compile(self, program: Any, keywords: dict[str, Any]) -> Callable[..., Any]:
        """Return the compiled module, called with both the example and the measured inputs."""
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()
        self._captured_graphs = CapturedGraphs()
        ranges = any(spec.dynamic for spec in self.model.inputs)
        backend, dynamic = self._captured_graphs.backend(program), None if ranges else False
        compiled: Callable[..., Any] = torch.compile(program, backend=backend, options=keywords, dynamic=dynamic)
        example = self.example()
        for tensor, spec in zip(example, self.model.inputs, strict=True):
            for index in dynamic_sizes(spec):
                least, _, most = spec.profile
                torch._dynamo.mark_dynamic(tensor, index, min=least[index], max=most[index])
        compiled(*example)
        if ranges and "dryrun" not in keywords:
            compiled(*self.seeded_feed())
        return compiled

    def compiled_parts(self) -> tuple[Any, Sequence[Segment]]:
        """Return the engines: what ``torch.compile`` returns cannot be inspected."""
        return self._engines, segments_of(self._lowered_graphs)

    def _partition_fields(self) -> dict[str, Any]:
        return super()._partition_fields() | {"interruptions": self._captured_graphs.interruptions()}


class ScriptBase(CompilingRunner):
    """The TorchScript front end, ``torch_tensorrt.ts.compile``, whose partitioner cannot be watched."""

    wrapped_path: ClassVar[str] = ""  # the model's path inside the compiled module

    def keywords(self) -> dict[str, Any]:
        return script_settings(self.options, self.case)

    def compile(self, program: Any, keywords: dict[str, Any]) -> Callable[..., Any]:
        compiled = self.library.module.ts.compile(program, inputs=self.inputs(), **keywords)
        return cast("Callable[..., Any]", compiled)

    def save(self, path: Path) -> None:
        with compile_step(self.model.name, f"save as {path.suffix}"):
            torch.jit.save(self.compiled, str(path))

    def partition(self, assumed_gpu: str) -> Partition:  # noqa: ARG002
        message = "The TorchScript front end has a partition only after it has built."
        raise Unsupported(message, hint=DYNAMO)

    def read_partition(self) -> Partition:
        """Return the partition as far as the compiled module shows it."""
        forced, fields = self.keywords()["torch_executed_ops"], self._partition_fields()
        partition = compiled_partition(self.compiled, forced=forced, wrapped=self.wrapped_path, **fields)
        return cast("Partition", partition)


class TraceFrontEnd(ScriptBase):
    """The TorchScript front end from a trace."""

    variant = "ts-trace"
    wrapped_path = "module"  # as flat_outputs names it

    def export(self, module: Any) -> Any:
        """Return a trace with flat outputs, since the front end takes no dictionaries."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            return torch.jit.trace(flat_outputs(module), self.example(), check_trace=False)


class ScriptFrontEnd(ScriptBase):
    """The TorchScript front end from the module's source."""

    variant = "ts-script"

    def export(self, module: Any) -> Any:
        with ignore_deprecations():
            return torch.jit.script(module)


FRONT_ENDS: dict[str, type[CompilingRunner]] = {
    front_end.variant: front_end for front_end in (Dynamo, Compile, TraceFrontEnd, ScriptFrontEnd)
}


def example_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the sizes of an example that shows which of them vary."""
    least, best, most = spec.profile
    return tuple(2 if low < high and size < 2 else size for low, size, high in zip(least, best, most, strict=True))


# Quantization by NVIDIA ModelOpt, whose layers are exported with their rounding


CONFIGS = {"int8": "INT8_DEFAULT_CFG", "fp8": "FP8_DEFAULT_CFG"}


def quantize_module(model: Model, case: Case, preparation: Preparation) -> None:
    """Quantize convolutions and linear layers of the model's module, in place, on the CPU and in fp32."""
    check_kept(case, dict(model.module.named_modules()) if model.module is not None else ())
    work = count(model, case)
    modelopt = library("modelopt.torch.quantization", extra=EXTRA)  # importing takes seconds

    def calibrate(module: Any) -> None:
        for arrays in calibration_feeds(model, case):
            module(*input_tensors(arrays, model.inputs, "fp32"))

    with preparation.phase("quantize"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        with unsupported_on_error(f"ModelOpt cannot quantize '{model.name}'"):
            modelopt.quantize(model.module, getattr(modelopt, CONFIGS[case.precision]), forward_loop=calibrate)
            for layer in kept_layers(case):
                modelopt.disable_quantizer(model.module, lambda name, layer=layer: name.startswith(f"{layer}."))
        share = flops_share(work, quantized_layers(model.module))
        check_share(share, model, case, preparation, "it has no modules of convolutions or linear layers")


def quantized_layers(module: Any) -> list[str]:
    """Return the paths of the layers whose inputs and weights are both quantized."""
    return [
        path
        for path, part in module.named_modules()
        if all(getattr(getattr(part, f"{name}_quantizer", None), "is_enabled", False) for name in ("input", "weight"))
    ]


@contextmanager
def export_without_kernels() -> Iterator[None]:
    """Export ModelOpt's layers as TensorRT's own operator, which computes nothing.

    Torch-TensorRT calls it with weights as it folds constants, and ignores the result. ModelOpt's own code is CUDA,
    which nvcc would compile for minutes before the first call.
    """
    module = library("modelopt.torch.quantization.tensor_quant", extra=EXTRA)
    names = ("fake_quant_impl", "scaled_e4m3_impl")
    export_mode = library("modelopt.torch.quantization.utils", extra=EXTRA).export_torch_mode
    with replace_attributes(module, **dict.fromkeys(names, lambda inputs, *_, **__: inputs.clone())), export_mode():
        yield


# The backend


def tensorrt_knobs() -> tuple[Knob, ...]:
    """Return the knobs that TensorRT has and TensorRT for RTX lacks, without importing either."""
    if any(metadata.distributions(name="torch-tensorrt-rtx")):
        return ()
    return (
        Knob(name="optimization_level", values=(5,), variants=("dynamo", "compile"), build=2.0),
        Knob(name="tf32", values=(True,), precisions=("fp32",), variants=tuple(FRONT_ENDS)),
    )


class TorchTensorRT(Backend, Saver, Partitioner, Deployer):
    """Torch-TensorRT, through each of its front ends."""

    name = "torch_tensorrt"
    summary = "Torch-TensorRT: engines in a PyTorch module"
    short = "ttrt"
    variants = (*FRONT_ENDS, LOADED)
    options = TorchTensorRTOptions
    distributions = ("torch-tensorrt", "torch-tensorrt-rtx")
    saves = FILE_KINDS
    script_packages = ("torch", "torch-tensorrt", "torch-tensorrt-rtx", "tensorrt", "tensorrt-rtx")
    knobs = (
        Knob(name="cuda_graph", values=(True,), helps=("host",)),
        Knob(name="min_block_size", values=(1, 10), variants=tuple(FRONT_ENDS)),
        *tensorrt_knobs(),
    )
    recommended = tuple(
        Recommendation(variant, options={"cuda_graph": True}, fixed_shapes=True) for variant in ("dynamo", LOADED)
    )

    def capabilities(self) -> Capabilities:
        """Return what works, on NVIDIA GPUs only. Imports the library if there is a GPU."""
        library = find_library()
        if isinstance(library, Absence):
            return Capabilities(formats=(*FORMATS, "torchscript", "torch_tensorrt"), absent=(library,))
        gpu = torch_gpu()
        script = tuple(precision for precision in gpu.precisions if precision != "bf16")
        quantizes = gpu.quantized if is_installed("modelopt") else ()
        limits = gpu.limits | {f"cuda/{name}": DYNAMO_ONLY if quantizes else NO_MODELOPT for name in gpu.quantized}
        limits |= gpu.quantized_limits
        limits |= {f"{name}/cuda/bf16": "the TorchScript front end knows no bf16" for name in SCRIPTS}
        scripts = SCRIPTS if library.script else ()
        no_script = f"this {TITLE} was built without the TorchScript front end"
        return Capabilities(
            formats=(*FORMATS, "torchscript") if scripts else FORMATS,
            supports=(
                Support(
                    "dynamo",
                    "cuda",
                    (*gpu.precisions, *quantizes),
                    FORMATS,
                    quantizes=quantizes,
                    keeps=("fp16",) if quantizes else (),
                ),
                Support("compile", "cuda", gpu.precisions, FORMATS),
                *(Support(name, "cuda", script, SCRIPT_FORMATS[name]) for name in scripts),
                Support(LOADED, "cuda", gpu.precisions, ("torch_tensorrt",)),
            ),
            absent=() if scripts else tuple(Absence(name, no_script, DYNAMO) for name in SCRIPTS),
            limits=limits,
            libraries={**gpu.versions, **library.versions},
            dynamic_shapes=True,
        )

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        make_runner = LoadedRunner if case.variant == LOADED else self._runner
        return make_runner(model, case, preparation, self.parse_options(case), load_library())

    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Compile and write an exported program (``.ep``) or TorchScript (``.ts``), with its provenance."""
        path = Path(path)
        options: TorchTensorRTOptions = structs.replace(self.parse_options(case), cuda_graph=False)
        if case.variant not in ("dynamo", *SCRIPTS) or (path.suffix != ".ts" and case.variant in SCRIPTS):
            message = f"{case.backend_label} cannot save its compiled model as {path.suffix}."
            raise Unsupported(message, hint=DYNAMO + (", or a file .ts" if case.variant in SCRIPTS else ""))
        if options.use_python_runtime:
            raise Unsupported("Engines of the Python runtime cannot be saved.", hint="without use_python_runtime")
        library = find_library()
        if isinstance(library, Absence):
            raise Unsupported(f"{TITLE} cannot build engines here: {library.reason}.", hint=library.hint)
        with self._runner(model, case, preparation, options, library) as runner:
            runner.save(path)
        gpu = current_gpu() or Gpu(name="")
        provenance = new_provenance(
            path, FILE_KINDS[path.suffix], model, case,
            flavour=library.flavour, version=library.versions[library.package], libraries=library.versions,
            gpu=gpu.name, compute_capability=gpu.compute_capability, options=structs.asdict(options),
            build_seconds=sum(phase.seconds for phase in preparation.phases if phase.name == "build"),
        )  # fmt: skip
        write_provenance(path, provenance)

    def deploy_suffix(self, case: Case) -> str:
        """Return the suffix in which the front end saves, or that of a loaded file."""
        if case.variant == LOADED:
            return Path(case.model).suffix
        if case.variant not in ("dynamo", *SCRIPTS):
            raise Unsupported(f"{case.backend_label} cannot save its compiled model.", hint=DYNAMO)
        if case.precision in QUANTIZED:
            hint = "--backend tensorrt, an engine"
            raise Unsupported("Models that ModelOpt quantized cannot be deployed.", hint=hint)
        return ".ts" if case.variant in SCRIPTS else ".ep"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Write the compiled module and its provenance; copy one that is a file."""
        if case.variant == LOADED and model.path is not None:
            copy_with_provenance(model.path, path)
        else:
            self.save(model, case, preparation, path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        options: TorchTensorRTOptions = self.parse_options(case)
        autocast = options.autocast or (case.variant == LOADED and bool(built_option(case.model, "autocast")))
        path = sibling_path(file)
        opened = f"torch.jit.load({path})" if file.endswith(".ts") else LOAD_PROGRAM.format(path, "")
        return torch_script(
            case, structs.replace(options, autocast=False), inputs, [f"model = {opened}"],
            imports=["import torch_tensorrt  # knows what the file holds"], floats="fp32" if autocast else "",
        )  # fmt: skip

    def partition(self, model: Model, case: Case, preparation: Preparation) -> Partition:
        """Return which operators would run in TensorRT, and why not the others, without building.

        It needs no GPU. If a GPU was assumed, the process must not do anything else afterwards.
        """
        with assume_gpu() as assumed:
            case = structs.replace(case, device="cpu" if assumed else "cuda")
            return self._runner(model, case, preparation, self.parse_options(case), load_library()).partition(assumed)

    def times_kernels(self, case: Case, *, cached: bool = False) -> bool:
        """Return whether TensorRT builds; TensorRT for RTX compiles kernels as they are called."""
        return not cached and case.variant != LOADED and not load_library().rtx

    def tolerance(self, case: Case) -> float:
        """Return the tolerance of TF32 if it is on; TensorRT for RTX always computes fp32 in TF32."""
        library = find_library()
        tf32 = self.parse_options(case).tf32 or (case.variant == LOADED and bool(built_option(case.model, "tf32")))
        return precision_tolerance(case, tf32=tf32 or (isinstance(library, Library) and library.rtx))

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """Offer no build options for a loaded module; TensorRT for RTX is as in ``tensorrt``."""
        rtx = facts.get("flavour") == FLAVOUR_TITLES["tensorrt_rtx"]
        is_built = case.variant == LOADED and option != "cuda_graph"
        is_missing = case.variant in SCRIPTS and option in NOT_IN_SCRIPT
        if is_built or is_missing or (rtx and option in TACTIC_OPTIONS):
            return Hint()
        return Hint(asked=True) if rtx and option == "tf32" else super().hint(case, option, value, facts)

    def _runner(
        self, model: Model, case: Case, preparation: Preparation, options: TorchTensorRTOptions, library: Library
    ) -> CompilingRunner:
        check_options(options, case, library, preparation)
        if case.variant not in FRONT_ENDS:
            raise Unsupported(f"{case.backend_label} runs a module that is compiled already.", hint=DYNAMO)
        if model.module is None:
            raise Unsupported(f"'{model.spec}' is not a PyTorch module.", hint="--backend tensorrt, for an ONNX file")
        if case.precision in QUANTIZED:
            if model.format != "module":
                raise Unsupported("ModelOpt quantizes modules, not exported programs.", hint="the original model")
            quantize_module(model, case, preparation)
            options = structs.replace(options, min_block_size=1)  # a pair of roundings may be a block
        return FRONT_ENDS[case.variant](model, case, preparation, options, library)
