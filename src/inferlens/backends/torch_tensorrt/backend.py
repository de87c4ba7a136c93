"""The backend ``torch_tensorrt``: what works here, and who prepares, saves and partitions."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from msgspec import structs

from inferlens.backends.abilities import Deployer, Partitioner, Saver
from inferlens.backends.availability import cuda_precisions, cuda_quantized, found, torch_versions
from inferlens.backends.base import (
    Absence,
    Backend,
    Capabilities,
    Knob,
    Preparation,
    Recommendation,
    Runner,
    Support,
    tolerance_of,
)
from inferlens.backends.pytorch.script import PROGRAM, torch_script
from inferlens.backends.scripts import beside
from inferlens.backends.tensorrt.flavours import current_gpu
from inferlens.backends.torch_tensorrt.front_ends import FRONT_ENDS, CompilingRunner, quantize_module
from inferlens.backends.torch_tensorrt.library import (
    FLAVOURS,
    NOT_IN_SCRIPT,
    OF_TACTICS,
    TITLE,
    Library,
    TorchTensorRTOptions,
    check,
    find,
    gpu_or_assumed,
    load,
)
from inferlens.backends.torch_tensorrt.runner import KINDS, LoadedRunner
from inferlens.errors import Unsupported
from inferlens.models import provenance
from inferlens.models.model import Format, Model
from inferlens.record.partition import Partition
from inferlens.record.record import Gpu
from inferlens.spec.case import QUANTIZED, Case, Option, TensorSpec
from inferlens.spec.hints import Hint

FORMATS: tuple[Format, ...] = ("module", "exported")
LOADED = "loaded"
DYNAMO = "--backend torch_tensorrt:dynamo"
SCRIPTS = ("ts-trace", "ts-script")
SCRIPTED = "ts-script"  # takes TorchScript too, as it is
QUANTIZING = "dynamo"  # the front end that takes what ModelOpt has quantized
OF_DYNAMO = "what NVIDIA ModelOpt quantizes is exported for torch_tensorrt:dynamo alone"
NO_MODELOPT = "it takes NVIDIA ModelOpt, which is not installed (pip install nvidia-modelopt requests)"


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
