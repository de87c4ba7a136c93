"""The backend ``torch_tensorrt``: what works here, and who prepares, saves and partitions."""

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

from inferlens.backends.availability import cuda_precisions, cuda_quantized, found, quiet, refused, torch_versions
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
    tolerance_of,
)
from inferlens.backends.onnx.quantize import check_share
from inferlens.backends.pytorch.runner import (
    WRAPPED,
    Feed,
    example_feed,
    export_dimensions,
    flat_outputs,
    flops_by_module,
    free_sizes,
    not_entered,
    share_of,
    tensor_of,
    type_of,
)
from inferlens.backends.scripts import PROGRAM, beside, torch_script
from inferlens.backends.tensorrt.library import current_gpu
from inferlens.backends.torch_tensorrt.library import (
    EXTRA,
    FLAVOURS,
    NOT_IN_SCRIPT,
    OF_TACTICS,
    TITLE,
    Library,
    TorchTensorRTOptions,
    check,
    dynamo_settings,
    find,
    gpu_or_assumed,
    load,
    replaced,
    script_settings,
)
from inferlens.backends.torch_tensorrt.partitions import (
    OF_SCRIPT,
    Captured,
    Lowered,
    choices_in,
    compiled_partition,
    segments_of,
    watching,
)
from inferlens.backends.torch_tensorrt.runner import (
    KINDS,
    LoadedRunner,
    ReplayingRunner,
    collected,
    compiling,
    detailed_engines,
)
from inferlens.errors import Unsupported, library
from inferlens.models import provenance
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Format, Model
from inferlens.models.samples import calibration_feeds
from inferlens.reasons import reason
from inferlens.record.partition import Partition, Segment, partition_of
from inferlens.record.record import Gpu
from inferlens.spec.case import QUANTIZED, Case, Option, TensorSpec
from inferlens.spec.hints import Hint
from inferlens.spec.keep import check_kept, kept

FORMATS: tuple[Format, ...] = ("module", "exported")
LOADED = "loaded"
DYNAMO = "--backend torch_tensorrt:dynamo"
SCRIPTS = ("ts-trace", "ts-script")
SCRIPTED = "ts-script"  # takes TorchScript too, as it is
QUANTIZING = "dynamo"  # the front end that takes what ModelOpt has quantized
OF_DYNAMO = "what NVIDIA ModelOpt quantizes is exported for torch_tensorrt:dynamo alone"
NO_MODELOPT = "it takes NVIDIA ModelOpt, which is not installed (pip install nvidia-modelopt requests)"


# The front ends, a runner each. ``torch.export`` and Dynamo treat a size of 1 as a constant, and Torch-TensorRT
# optimizes for the example's sizes. Examples therefore have the optimum's sizes, and the largest where the optimum is
# 1.


class CompilingRunner(ReplayingRunner):
    """Compiles a module and calls what came out; subclasses are the ways to do that."""

    variant: ClassVar[str]
    exports: ClassVar[bool] = True  # whether there is a step before the compilation
    instead: ClassVar[str] = "--backend torch_tensorrt:dynamo"  # what to try where this one cannot take a model

    _program: Any = None
    _graphs: Sequence[Lowered] = ()
    _engines: Sequence[Any] = ()  # modules with an engine, noted where layers are to be profiled

    def export(self, module: Any) -> Any:
        """The module in the form that :meth:`compile` takes."""
        return module

    @abstractmethod
    def compile(self, program: Any, keywords: dict[str, Any]) -> Callable[..., Any]:
        """What to call, with the input tensors as arguments."""

    def keywords(self) -> dict[str, Any]:
        return dynamo_settings(self.options, self.case, self.library, self.preparation)

    def save(self, path: Path) -> None:
        """Writes the compiled module; the runner is entered."""
        raise Unsupported(f"What '{self.variant}' compiles cannot be saved as {path.suffix}.", hint=self.instead)

    def __enter__(self) -> CompilingRunner:
        if self.exports:
            with self.preparation.phase("export"), self.settings():
                self._program = self._exported()
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
            collected(level) as self._engines,
            watching() as self._graphs,
            compiling(self.model.name, "compile", hint=self.instead),
        ):
            self.compiled = self.compile(self._program if self.exports else module, self.keywords())
            self._program = None
            return self.captured(self.compiled)

    def __exit__(self, *error: Any) -> None:
        self._program = None
        self._graphs, self._engines = (), ()
        super().__exit__(*error)

    def inside(self) -> tuple[Any, Sequence[Segment]]:
        """The compiled module, and its partition's segments."""
        return self.compiled, segments_of(self._graphs)

    def partition(self, assumed_gpu: str) -> Partition:
        """How the model would be partitioned; nothing is built, and the runner is not entered."""
        with self.settings():
            program = self._exported() if self.exports else self._moved()
            with watching() as self._graphs, compiling(self.model.name, "partition"):
                self.compile(program, self.keywords() | {"dryrun": True, "require_full_compilation": False})
            self._warn_of_sizes()
            return structs.replace(self.found_partition(), assumed_gpu=assumed_gpu)

    def found_partition(self) -> Partition:
        return partition_of(
            segments_of(self._graphs), **self._known(), **choices_in(self._graphs, self.options.min_block_size)
        )

    def example(self) -> Feed:
        """Input tensors that show which sizes vary (see :func:`example_shape`)."""
        specs = tuple(structs.replace(spec, shape=example_shape(spec)) for spec in self.model.inputs)
        return self.place(make_inputs(dataclasses.replace(self.model, inputs=specs), self.case.seed))

    def inputs(self) -> list[Any]:
        inputs = []
        for spec in self.model.inputs:
            shapes: dict[str, Any] = {"shape": spec.shape}
            if spec.dynamic:
                shapes = dict(zip(("min_shape", "opt_shape", "max_shape"), spec.profile, strict=True))
            inputs.append(self.library.module.Input(**shapes, dtype=type_of(spec, self._stored), name=spec.name))
        return inputs

    def _known(self) -> dict[str, Any]:
        size = self.options.min_block_size
        return {"front_end": self.variant, "min_block_size": size, "flavour": self.library.flavour}

    def _exported(self) -> Any:
        module = self._moved()
        with compiling(self.model.name, "export", hint=self.instead):
            return self.export(module)

    def _note_facts(self) -> None:
        """What was built, as facts and warnings; refused, if PyTorch runs a part and that was not wanted."""
        facts, options = self.preparation.facts, self.options
        facts["flavour"] = self.library.flavour
        facts["runtime"] = "Python" if options.use_python_runtime or not self.library.native else "C++"
        self._warn_of_sizes()
        try:
            partition = self.found_partition()
        except Exception as error:  # it is read from what the library keeps for itself; the case runs all the same
            if options.require_full_compilation:
                raise
            facts["no_partition"] = f"What runs in TensorRT is not known: {reason(error)}"
            return
        facts["partition"] = msgspec.to_builtins(partition)
        if not partition.engines:
            why = f"There is no engine: everything ran in PyTorch (min_block_size {options.min_block_size})."
            self.preparation.warn("no-engines", why, "inferlens partition shows why.")
        if options.require_full_compilation and (partition.breaks or partition.interruptions):
            what = "PyTorch runs a part" if partition.breaks else "Python runs between the compiled graphs"
            raise Unsupported(
                f"{what} of '{self.model.name}', and require_full_compilation was asked for.",
                hint="inferlens partition, which shows which part and why",
            )

    def _warn_of_sizes(self) -> None:
        """Warns where engines cannot be fastest at the sizes that were asked for."""
        moved = moved_optimum(self.model.inputs)
        if moved:
            places = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in moved.items())
            why = f"The engines are built to be fastest at {places}: a size of 1 is a constant to this front end."
            self.preparation.warn("moved-optimum", why, "opt=2 or more, or --backend torch_tensorrt:ts-script.")


class Dynamo(CompilingRunner):
    """Ahead of time: ``torch.export``, then ``torch_tensorrt.dynamo.compile``."""

    variant = "dynamo"
    instead = "--backend torch_tensorrt:compile"

    def export(self, module: Any) -> Any:
        import torch

        dimensions = export_dimensions(module, self.model.inputs)
        with self._exporting():
            return torch.export.export(module, self.example(), dynamic_shapes=dimensions, strict=False)

    def compile(self, program: Any, keywords: dict[str, Any]) -> Callable[..., Any]:
        with self._exporting():
            compiled = self.library.module.dynamo.compile(program, arg_inputs=self.inputs(), **keywords)
        return cast("Callable[..., Any]", compiled)

    def _exporting(self) -> AbstractContextManager[None]:
        return exporting() if self.case.precision in QUANTIZED else nullcontext()

    def save(self, path: Path) -> None:
        """As an exported program (``.ep``) or as TorchScript (``.ts``), which is a trace."""
        kind = {"output_format": "torchscript" if path.suffix == ".ts" else "exported_program"}
        # Ranges are given as dimensions: from its own Inputs the library would make one for each input's batch.
        dimensions = export_dimensions(self.compiled, self.model.inputs) if path.suffix == ".ep" else None
        more = {} if dimensions is None else {"dynamic_shapes": dimensions}
        with compiling(self.model.name, f"save as {path.suffix}", hint="the other kind of file, .ts or .ep"):
            self.library.module.save(self.compiled, str(path), arg_inputs=list(self.example()), **kind, **more)


class Compile(CompilingRunner):
    """``torch.compile`` with Torch-TensorRT as its backend; compiles when it is first called."""

    variant = "compile"
    exports = False

    _captured: Captured

    def __enter__(self) -> Compile:
        import torch

        super().__enter__()
        # It was compiled outside of inference mode, and would compile again inside.
        self._entered.enter_context(torch.inference_mode(mode=False))
        self._entered.enter_context(torch.no_grad())
        return self

    def __exit__(self, *error: Any) -> None:
        import torch

        self._call, self.compiled = not_entered, None
        self._captured = Captured()
        torch._dynamo.reset()  # lets go of the compiled code and of the engines in it
        super().__exit__(*error)

    def compile(self, program: Any, keywords: dict[str, Any]) -> Callable[..., Any]:
        """The compiled module, called with both the example and what will be measured, so that both are compiled."""
        import torch
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()
        self._captured = Captured()
        ranges = any(spec.dynamic for spec in self.model.inputs)
        compiled: Callable[..., Any] = torch.compile(
            program, backend=self._captured.backend(program), options=keywords, dynamic=None if ranges else False
        )
        example = self.example()
        for tensor, spec in zip(example, self.model.inputs, strict=True):
            for index in free_sizes(spec):
                least, _, most = spec.profile
                torch._dynamo.mark_dynamic(tensor, index, min=least[index], max=most[index])
        compiled(*example)
        if ranges and "dryrun" not in keywords:
            compiled(*self.seeded_feed())
        return compiled

    def inside(self) -> tuple[Any, Sequence[Segment]]:
        """The engines that it made: what ``torch.compile`` returns cannot be looked into."""
        return self._engines, segments_of(self._graphs)

    def _known(self) -> dict[str, Any]:
        return super()._known() | {"interruptions": self._captured.interruptions()}


class ScriptedFrontEnd(CompilingRunner):
    """The TorchScript front end: ``torch_tensorrt.ts.compile``. Its partitioner cannot be watched."""

    wrapped: ClassVar[str] = ""  # the path of the model in what is compiled, if that is not the model itself

    def keywords(self) -> dict[str, Any]:
        return script_settings(self.options, self.case)

    def compile(self, program: Any, keywords: dict[str, Any]) -> Callable[..., Any]:
        compiled = self.library.module.ts.compile(program, inputs=self.inputs(), **keywords)
        return cast("Callable[..., Any]", compiled)

    def save(self, path: Path) -> None:
        import torch

        with compiling(self.model.name, f"save as {path.suffix}"):
            torch.jit.save(self.compiled, str(path))

    def partition(self, assumed_gpu: str) -> Partition:  # noqa: ARG002
        raise Unsupported(
            "The TorchScript front end has a partition only when it has built.", hint="--backend torch_tensorrt:dynamo"
        )

    def found_partition(self) -> Partition:
        """As far as the compiled module shows it."""
        forced = self.keywords()["torch_executed_ops"]
        partition = compiled_partition(self.compiled, OF_SCRIPT, forced=forced, wrapped=self.wrapped, **self._known())
        return cast("Partition", partition)

    def _warn_of_sizes(self) -> None:
        """It takes a size of 1 as it is."""


class TracedFrontEnd(ScriptedFrontEnd):
    """From a trace."""

    variant = "ts-trace"
    wrapped = WRAPPED

    def export(self, module: Any) -> Any:
        """A trace; its outputs are a flat tuple, for the front end takes no dictionaries."""
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            return torch.jit.trace(flat_outputs(module), self.example(), check_trace=False)


class Scripted(ScriptedFrontEnd):
    """From the module's source."""

    variant = "ts-script"

    def export(self, module: Any) -> Any:
        import torch

        with quiet():
            return torch.jit.script(module)


FRONT_ENDS: dict[str, type[CompilingRunner]] = {
    item.variant: item for item in (Dynamo, Compile, TracedFrontEnd, Scripted)
}


def moved_optimum(specs: tuple[TensorSpec, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes to be fastest at, by input name, where they cannot be those that were asked for."""
    examples = {spec.name: example_shape(spec) for spec in specs}
    return {spec.name: examples[spec.name] for spec in specs if spec.dynamic and examples[spec.name] != spec.profile[1]}


def example_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The sizes of an example that shows which of them vary."""
    least, best, most = spec.profile
    return tuple(2 if low < high and size < 2 else size for low, size, high in zip(least, best, most, strict=True))


# Quantizing, by NVIDIA ModelOpt: layers become ones that round, and are exported so


CONFIGS = {"int8": "INT8_DEFAULT_CFG", "fp8": "FP8_DEFAULT_CFG"}


def quantize_module(model: Model, case: Case, preparation: Preparation) -> None:
    """Quantizes convolutions and linear layers of the model's module, in place, on the CPU and in fp32."""
    import torch

    check_kept(case, dict(model.module.named_modules()) if model.module is not None else ())
    work = flops_by_module(model.module, example_feed(model, case, "fp32"))
    modelopt = library("modelopt.torch.quantization", extra=EXTRA)  # late: it takes seconds

    def calibrate(module: Any) -> None:
        for feed in calibration_feeds(model, case):
            module(*(tensor_of(feed[spec.name], spec, "fp32") for spec in model.inputs))

    with preparation.phase("quantize"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        with refused(f"ModelOpt cannot quantize '{model.name}'"):
            modelopt.quantize(model.module, getattr(modelopt, CONFIGS[case.precision]), forward_loop=calibrate)
            for layer in kept(case):
                modelopt.disable_quantizer(model.module, lambda name, layer=layer: name.startswith(f"{layer}."))
        share = share_of(work, quantized_layers(model.module))
        check_share(share, model, case, preparation, "it has no modules of convolutions or linear layers")


def quantized_layers(module: Any) -> list[str]:
    """The paths of the layers whose inputs and weights are both quantized."""
    return [
        path
        for path, item in module.named_modules()
        if all(getattr(getattr(item, f"{name}_quantizer", None), "is_enabled", False) for name in ("input", "weight"))
    ]


@contextmanager
def exporting() -> Iterator[None]:
    """While it lasts, what ModelOpt quantized is exported as TensorRT's own operator, which computes nothing.

    Torch-TensorRT calls it with weights as it folds constants, and does not use what it gives. Its own code is CUDA's,
    which ModelOpt compiles on each machine by nvcc before the first call, in minutes.
    """
    module = library("modelopt.torch.quantization.tensor_quant", extra=EXTRA)
    names = ("fake_quant_impl", "scaled_e4m3_impl")
    export_mode = library("modelopt.torch.quantization.utils", extra=EXTRA).export_torch_mode
    with replaced(module, **dict.fromkeys(names, lambda inputs, *_, **__: inputs.clone())), export_mode():
        yield


# The backend


def of_tensorrt() -> tuple[Knob, ...]:
    """What TensorRT acts on and TensorRT for RTX does not: nothing, where that is installed. Asked without imports."""
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
    saves = KINDS
    script_packages = ("torch", "torch-tensorrt", "torch-tensorrt-rtx", "tensorrt", "tensorrt-rtx")
    knobs = (
        Knob(name="cuda_graph", values=(True,), helps=("host",)),
        Knob(name="min_block_size", values=(1, 10), variants=tuple(FRONT_ENDS)),
        *of_tensorrt(),
    )
    recommended = tuple(
        Recommendation(item, options={"cuda_graph": True}, fixed_shapes=True) for item in ("dynamo", LOADED)
    )

    def capabilities(self) -> Capabilities:
        """On NVIDIA GPUs alone. Imports the library where there is one."""
        library = find()
        if isinstance(library, Absence):
            return Capabilities(formats=(*FORMATS, "torchscript", "torch_tensorrt"), absent=(library,))
        import torch

        precisions, limits = cuda_precisions(torch)
        script = tuple(precision for precision in precisions if precision != "bf16")
        able, lacking = cuda_quantized(torch)
        to = able if found("modelopt") else ()
        limits |= {f"cuda/{name}": OF_DYNAMO if to else NO_MODELOPT for name in able} | lacking
        limits |= {f"{name}/cuda/bf16": "the TorchScript front end knows no bf16" for name in SCRIPTS}
        scripts = SCRIPTS if library.script else ()
        no_script = f"this {TITLE} was built without the TorchScript front end"
        return Capabilities(
            formats=(*FORMATS, "torchscript") if scripts else FORMATS,
            supports=(
                Support(QUANTIZING, "cuda", (*precisions, *to), FORMATS, quantizes=to, keeps=("fp16",) if to else ()),
                Support("compile", "cuda", precisions, FORMATS),
                *(Support(name, "cuda", script, _formats(name)) for name in scripts),
                Support(LOADED, "cuda", precisions, ("torch_tensorrt",)),
            ),
            absent=() if scripts else tuple(Absence(name, no_script, DYNAMO) for name in SCRIPTS),
            limits=limits,
            libraries={**torch_versions(torch), **library.versions},
            dynamic_shapes=True,
        )

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        made = LoadedRunner if case.variant == LOADED else self._runner
        return made(model, case, preparation, self.parse_options(case), load())

    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Compiles and writes an exported program (``.ep``) or TorchScript (``.ts``), and beside it what it is."""
        path = Path(path)
        options: TorchTensorRTOptions = structs.replace(self.parse_options(case), cuda_graph=False)
        if case.variant not in ("dynamo", *SCRIPTS) or (path.suffix != ".ts" and case.variant in SCRIPTS):
            raise Unsupported(
                f"What {case.backend_label} compiles cannot be saved as {path.suffix}.",
                hint=DYNAMO + (", or a file .ts" if case.variant in SCRIPTS else ""),
            )
        if options.use_python_runtime:
            raise Unsupported("Engines of the Python runtime cannot be saved.", hint="without use_python_runtime")
        library = find()
        if isinstance(library, Absence):
            raise Unsupported(f"{TITLE} cannot build engines here: {library.reason}.", hint=library.hint)
        with self._runner(model, case, preparation, options, library) as runner:
            runner.save(path)
        gpu = current_gpu() or Gpu(name="")
        made = provenance.of(
            path, KINDS[path.suffix], model, case,
            flavour=library.flavour, version=library.versions[library.package], libraries=library.versions,
            gpu=gpu.name, compute_capability=gpu.compute_capability, options=structs.asdict(options),
            build_seconds=sum(phase.seconds for phase in preparation.phases if phase.name == "build"),
        )  # fmt: skip
        provenance.write(path, made)

    def deployed_as(self, case: Case) -> str:
        """What the front end can be saved as; of a file, what it is."""
        if case.variant == LOADED:
            return Path(case.model).suffix
        if case.variant not in ("dynamo", *SCRIPTS):
            raise Unsupported(f"What {case.backend_label} compiles cannot be saved.", hint=DYNAMO)
        if case.precision in QUANTIZED:
            raise Unsupported("What ModelOpt quantized is not deployed.", hint="--backend tensorrt, an engine")
        return ".ts" if case.variant in SCRIPTS else ".ep"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Compiles and writes the module, and what it is beside it; copies one that is in a file."""
        if case.variant == LOADED and model.path is not None:
            provenance.copy(model.path, path)
        else:
            self.save(model, case, preparation, path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        options: TorchTensorRTOptions = self.parse_options(case)
        autocast = options.autocast or (case.variant == LOADED and bool(provenance.option_of(case.model, "autocast")))
        opened = f"torch.jit.load({beside(file)})" if file.endswith(".ts") else PROGRAM.format(beside(file), "")
        return torch_script(
            case, structs.replace(options, autocast=False), inputs, [f"model = {opened}"],
            imports=["import torch_tensorrt  # knows what the file holds"], floats="fp32" if autocast else "",
        )  # fmt: skip

    def partition(self, model: Model, case: Case, preparation: Preparation) -> Partition:
        """Which operators would run in TensorRT and which in PyTorch, and why; builds nothing, and needs no GPU.

        Where one had to be assumed, the process is good for nothing else afterwards.
        """
        with gpu_or_assumed() as assumed:
            here = structs.replace(case, device="cpu" if assumed else "cuda")
            return self._runner(model, here, preparation, self.parse_options(case), load()).partition(assumed)

    def times_kernels(self, case: Case, *, built: bool = False) -> bool:
        """Return whether TensorRT builds; TensorRT for RTX compiles kernels as they are called."""
        return not built and case.variant != LOADED and not load().rtx

    def tolerance(self, case: Case) -> float:
        """TF32's where it is on; TensorRT for RTX computes fp32 in TF32 whatever the option says."""
        library = find()
        tf32 = self.parse_options(case).tf32 or bool(provenance.option_of(case.model, "tf32"))
        return tolerance_of(case, tf32=tf32 or (isinstance(library, Library) and library.rtx))

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """A module from a file is compiled already; as for TensorRT for RTX, see the backend ``tensorrt``."""
        rtx = facts.get("flavour") == FLAVOURS["tensorrt_rtx"]
        is_built = case.variant == LOADED and option != "cuda_graph"
        unknown = case.variant in SCRIPTS and option in NOT_IN_SCRIPT
        if is_built or unknown or (rtx and option in OF_TACTICS):
            return Hint()
        return Hint(asked=True) if rtx and option == "tf32" else super().hint(case, option, value, facts)

    def _runner(
        self, model: Model, case: Case, preparation: Preparation, options: TorchTensorRTOptions, library: Library
    ) -> CompilingRunner:
        check(options, case, library, preparation)
        if case.variant not in FRONT_ENDS:
            raise Unsupported(f"{case.backend_label} runs a module that is compiled already.", hint=DYNAMO)
        if model.module is None:
            raise Unsupported(f"'{model.spec}' is not a PyTorch module.", hint="--backend tensorrt, for an ONNX file")
        if model.format not in _formats(case.variant) or (model.format == "exported" and case.variant == SCRIPTED):
            raise Unsupported(
                f"{case.backend_label} does not take '{model.spec}', of the format {model.format}.",
                hint=f"--backend torch_tensorrt:{SCRIPTED if model.format == 'torchscript' else 'ts-trace'}",
            )
        if case.precision in QUANTIZED:
            if model.format != "module":
                raise Unsupported("ModelOpt quantizes modules, not what was exported.", hint="the model it came from")
            quantize_module(model, case, preparation)
            options = structs.replace(options, min_block_size=1)  # a pair of roundings may stand alone
        return FRONT_ENDS[case.variant](model, case, preparation, options, library)


def _formats(variant: str) -> tuple[Format, ...]:
    return (*FORMATS, "torchscript") if variant == SCRIPTED else FORMATS
