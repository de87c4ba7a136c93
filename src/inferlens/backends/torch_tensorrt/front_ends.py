"""The ways into Torch-TensorRT: each exports a module, if it does that, and compiles it.

``torch.export`` and Dynamo take a size of 1 for a constant, and Torch-TensorRT takes the example's sizes for those to
be fastest at. So examples have the optimum's sizes, and the largest ones where the optimum is 1.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from msgspec import structs

from inferlens.backends.availability import first_lines
from inferlens.backends.pytorch.cast import FLOATS, dtype_of
from inferlens.backends.pytorch.export import WRAPPED, export_dimensions, flat_outputs, free_sizes
from inferlens.backends.torch_tensorrt.captured import Captured
from inferlens.backends.torch_tensorrt.library import TITLE, Library, quiet
from inferlens.backends.torchscript.backend import quiet as quiet_script
from inferlens.errors import InferlensError, Unsupported, is_short_of_memory
from inferlens.models.adapter import ByKeyword
from inferlens.spec.case import TensorSpec

Feed = tuple[Any, ...]
Specs = tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Work:
    """What a front end works with.

    Attributes:
        library: the installed one.
        specs: the model's inputs.
        precision: of weights and inputs.
        settings: keyword arguments for the library.
        example: input tensors that show which sizes vary (see :func:`example_specs`).
        feed: the input tensors that are measured.
        captured: gets the graphs that Dynamo captures.
    """

    library: Library
    specs: Specs
    precision: str
    settings: dict[str, Any]
    example: Feed
    feed: Feed
    captured: Captured = field(default_factory=Captured)

    def inputs(self) -> list[Any]:
        """``torch_tensorrt.Input`` of each input."""
        import torch

        inputs = []
        for spec in self.specs:
            dtype = dtype_of(self.precision) if spec.dtype in FLOATS else getattr(torch, spec.dtype)
            shapes: dict[str, Any] = {"shape": spec.shape}
            if spec.dynamic:
                shapes = dict(zip(("min_shape", "opt_shape", "max_shape"), spec.profile, strict=True))
            inputs.append(self.library.module.Input(**shapes, dtype=dtype, name=spec.name))
        return inputs


class FrontEnd(ABC):
    """A way in."""

    variant: ClassVar[str]
    exports: ClassVar[bool] = True  # whether there is a step before the compilation
    one_mode: ClassVar[bool] = False  # whether it must be called in the grad mode it was compiled in
    script: ClassVar[bool] = False  # whether it is the TorchScript front end, whose partitioner cannot be watched
    wrapped: ClassVar[str] = ""  # the path of the model in what is compiled, if that is not the model itself
    instead: ClassVar[str] = "--backend torch_tensorrt:dynamo"  # what to try where this one cannot take a model

    def export(self, module: Any, work: Work) -> Any:  # noqa: ARG002
        """The module in the form that :meth:`compile` takes."""
        return module

    @abstractmethod
    def compile(self, program: Any, work: Work) -> Callable[..., Any]:
        """What to call, with the input tensors as arguments."""

    def save(self, compiled: Any, work: Work, path: Path) -> None:  # noqa: ARG002
        """Writes what :meth:`compile` returned to ``path``."""
        raise Unsupported(
            f"What {TITLE} compiles through '{self.variant}' cannot be saved as {path.suffix}.", hint=self.instead
        )


class Dynamo(FrontEnd):
    """Ahead of time: ``torch.export``, then ``torch_tensorrt.dynamo.compile``."""

    variant = "dynamo"
    instead = "--backend torch_tensorrt:compile"

    def export(self, module: Any, work: Work) -> Any:
        """An exported program."""
        import torch

        dimensions = export_dimensions(module, work.specs)
        return torch.export.export(module, work.example, dynamic_shapes=dimensions, strict=False)

    def compile(self, program: Any, work: Work) -> Callable[..., Any]:
        """A graph module with engines in it."""
        compiled: Callable[..., Any] = work.library.module.dynamo.compile(
            program, arg_inputs=work.inputs(), **work.settings
        )
        return compiled

    def save(self, compiled: Any, work: Work, path: Path) -> None:
        """As an exported program (``.ep``) or as TorchScript (``.ts``), which is a trace."""
        kind = {"output_format": "torchscript" if path.suffix == ".ts" else "exported_program"}
        # Ranges are given as dimensions: from its own Inputs the library would make one for each input's batch.
        dimensions = export_dimensions(compiled, work.specs) if path.suffix == ".ep" else None
        more = {} if dimensions is None else {"dynamic_shapes": dimensions}
        with quiet(), quiet_script():
            work.library.module.save(compiled, str(path), arg_inputs=list(work.example), **kind, **more)


class Compile(FrontEnd):
    """``torch.compile`` with Torch-TensorRT as its backend; compiles when it is first called."""

    variant = "compile"
    exports = False
    one_mode = True

    def compile(self, program: Any, work: Work) -> Callable[..., Any]:
        """The compiled module, called with both the example and what will be measured, so that both are compiled."""
        import torch
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()
        ranges = any(spec.dynamic for spec in work.specs)
        compiled: Callable[..., Any] = torch.compile(
            program,
            backend=work.captured.backend(program),
            options=work.settings,
            dynamic=None if ranges else False,
        )
        if ranges:
            for tensor, spec in zip(work.example, work.specs, strict=True):
                for index in free_sizes(spec):
                    least, _, most = spec.profile
                    torch._dynamo.mark_dynamic(tensor, index, min=least[index], max=most[index])
            compiled(*work.example)
        compiled(*work.feed)
        return compiled


class Script(FrontEnd):
    """The TorchScript front end: ``torch_tensorrt.ts.compile``."""

    script = True

    def compile(self, program: Any, work: Work) -> Callable[..., Any]:
        """A script module with engines in it."""
        compiled: Callable[..., Any] = work.library.module.ts.compile(program, inputs=work.inputs(), **work.settings)
        return compiled

    def save(self, compiled: Any, work: Work, path: Path) -> None:
        """As TorchScript (``.ts``)."""
        import torch

        if path.suffix != ".ts":
            super().save(compiled, work, path)
        with quiet_script():
            torch.jit.save(compiled, str(path))


class Trace(Script):
    """From a trace."""

    variant = "ts-trace"
    wrapped = WRAPPED

    def export(self, module: Any, work: Work) -> Any:
        """A trace; its outputs are a flat tuple, for the front end takes no dictionaries."""
        import torch

        with quiet_script(), warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            return torch.jit.trace(flat_outputs(module), work.example, check_trace=False)


class Scripted(Script):
    """From the module's source."""

    variant = "ts-script"

    def export(self, module: Any, work: Work) -> Any:  # noqa: ARG002
        """The scripted module."""
        import torch

        with quiet_script():
            return torch.jit.script(ByKeyword.in_source(module)[0])


FRONT_ENDS: dict[str, FrontEnd] = {each.variant: each for each in (Dynamo(), Compile(), Trace(), Scripted())}


def example_specs(specs: Specs) -> Specs:
    """The inputs with the sizes of an example that shows which of them vary."""
    return tuple(structs.replace(spec, shape=_example(spec)) for spec in specs)


def moved_optimum(specs: Specs) -> dict[str, tuple[int, ...]]:
    """The shapes to be fastest at, by input name, where they cannot be those that were asked for."""
    return {spec.name: _example(spec) for spec in specs if spec.dynamic and _example(spec) != spec.profile[1]}


def _example(spec: TensorSpec) -> tuple[int, ...]:
    least, best, most = spec.profile
    return tuple(2 if low < high and size < 2 else size for low, size, high in zip(least, best, most, strict=True))


@contextmanager
def compiling(name: str, step: str, hint: str = "") -> Iterator[None]:
    """Turns what a step raises for a model that it cannot take into the reason of a row; running out of memory is none.

    Args:
        name: the model's.
        step: what is done, such as ``export``.
        hint: what to try instead.
    """
    import torch

    try:
        with quiet(), torch.inference_mode(mode=False), torch.no_grad():
            yield
    except (torch.OutOfMemoryError, MemoryError, InferlensError):
        raise
    except Exception as error:  # exporters, compilers and converters raise nearly every type there is
        inner = getattr(error, "inner_exception", None) or error
        if isinstance(inner, InferlensError):
            raise inner from error
        if is_short_of_memory(inner) or "CUDA error" in str(inner):  # that is not the model's fault
            raise
        if isinstance(inner, AssertionError) and "require_full_compilation" in str(inner):
            raise Unsupported(
                f"PyTorch would run a part of '{name}', and require_full_compilation was asked for.",
                hint="inferlens partition, which shows which part and why",
            ) from error
        raise Unsupported(
            f"{TITLE} cannot {step} '{name}': {type(inner).__name__}: {first_lines(inner)}", hint=hint
        ) from error
