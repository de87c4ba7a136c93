"""The ways into Torch-TensorRT, a runner each: it exports a module, if it does that, compiles it, and is called.

``torch.export`` and Dynamo take a size of 1 for a constant, and Torch-TensorRT takes the example's sizes for those to
be fastest at. So examples have the optimum's sizes, and the largest ones where the optimum is 1.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
from msgspec import structs

from inferlens.backends.availability import quiet, refused
from inferlens.backends.base import Preparation
from inferlens.backends.pytorch.export import (
    WRAPPED,
    example_feed,
    export_dimensions,
    flat_outputs,
    free_sizes,
    tensor_of,
    type_of,
)
from inferlens.backends.pytorch.runner import Feed, not_entered
from inferlens.backends.quantized import check_share, flops_by_module, share_of
from inferlens.backends.torch_tensorrt.layers import collected, detailed_engines
from inferlens.backends.torch_tensorrt.library import EXTRA, dynamo_settings, replaced, script_settings
from inferlens.backends.torch_tensorrt.partitions import (
    OF_SCRIPT,
    Captured,
    Lowered,
    choices_in,
    compiled_partition,
    segments_of,
    watching,
)
from inferlens.backends.torch_tensorrt.runner import ReplayingRunner, compiling
from inferlens.errors import Unsupported, library
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Model
from inferlens.models.samples import calibration_feeds
from inferlens.reasons import reason
from inferlens.record.partition import Partition, Segment, partition_of
from inferlens.spec.case import QUANTIZED, Case, TensorSpec
from inferlens.spec.keep import check_kept, kept


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
