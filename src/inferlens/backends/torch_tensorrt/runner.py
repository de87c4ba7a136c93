"""Runners of modules with engines in them, and those that come from files.

A CUDA graph is captured around the whole call: the library's own ``enable_cudagraphs`` copies the inputs in every call
and clones the outputs, which no other backend's times have in them, and captures single engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec

from inferlens.backends.abilities import KernelOrigins, Launched, LayerProfiler, Origins
from inferlens.backends.availability import quiet, warn_unheeded
from inferlens.backends.base import Preparation
from inferlens.backends.profiling.layer_runs import check_level
from inferlens.backends.pytorch.runner import Feed, TorchOptions, TorchRunner, not_entered
from inferlens.backends.tensorrt.flavours import current_gpu
from inferlens.backends.torch_tensorrt.layers import Interior, lookup_among
from inferlens.backends.torch_tensorrt.library import TITLE, Library, TorchTensorRTOptions
from inferlens.backends.torch_tensorrt.partitions import OF_FILE, compiled_partition
from inferlens.errors import InferlensError, Unsupported, is_short_of_memory
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.models.provenance import Provenance
from inferlens.reasons import reason
from inferlens.record.file_kind import COMPILED_PROGRAM, file_kind
from inferlens.record.layer_profile import Layers
from inferlens.record.partition import Segment
from inferlens.record.record import Gpu
from inferlens.spec.case import Case

KINDS = {".ep": "Torch-TensorRT exported program", ".ts": "Torch-TensorRT TorchScript module"}
OF_COMPILED = ("cuda_graph", "tf32")  # options that mean something to a module that is compiled already
AGAIN = "inferlens export, once more, on this machine"


class ReplayingRunner(TorchRunner, LayerProfiler, KernelOrigins):
    """Calls a module that has engines in it, or replays the call."""

    def __init__(
        self, model: Model, case: Case, preparation: Preparation, options: TorchTensorRTOptions, library: Library
    ) -> None:
        torch_options = TorchOptions(tf32=options.tf32)
        super().__init__(model, case, preparation, torch_options, autocast=options.autocast, rest="fp16")
        self.options = options
        self.library = library
        self.compiled: Any = None
        self.cuda_graph = options.cuda_graph

    def inside(self) -> tuple[Any, Sequence[Segment]]:
        """What can be looked into for engines: a module, or a list of modules; and who runs what of it, if known."""
        return self.compiled, ()

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        check_level(self.preparation, replays=self.graph is not None)
        layers, bindings = self._interior().profile(self, feed, runs)
        self.preparation.facts["engine_bindings"] = bindings
        return layers

    def scopes(self) -> AbstractContextManager[Any]:
        return self._interior().scopes()

    def origins(self, launched: Sequence[Launched]) -> Origins:
        return self._interior().origins(launched)

    def _interior(self) -> Interior:
        paths = frozenset(path for path, _ in self.model.module.named_modules()) if self.model.module else frozenset()
        folder = self.preparation.folder / "engine-reports"
        return Interior(*self.inside(), folder, import_module(self.library.package), lookup_among(paths))

    def device_memory(self) -> None:
        """Not known: engines take memory past PyTorch's allocator."""

    def __exit__(self, *error: Any) -> None:
        self._call = not_entered
        self.graph = self.compiled = None
        super().__exit__(*error)


class LoadedRunner(ReplayingRunner):
    """Calls a compiled module from a file as it is: neither moved nor cast nor compiled."""

    def __init__(
        self, model: Model, case: Case, preparation: Preparation, options: TorchTensorRTOptions, library: Library
    ) -> None:
        path = self._path = cast("Path", model.path)
        made = provenance.read(path)
        self._made_with = made.options if made else {}
        check_file(path, made, library)
        unheeded = [name for name in options.__struct_fields__ if name not in OF_COMPILED]
        warn_unheeded(options, unheeded, "the module is compiled already.", preparation)
        autocast = bool(self._made_with.get("autocast"))  # then its inputs are fp32, whatever its precision
        super().__init__(model, case, preparation, msgspec.structs.replace(options, autocast=autocast), library)

    def build(self, module: Any) -> Callable[..., Any]:
        """The module as it is; its engines and the operators beside them are a fact, where they can be read."""
        facts = self.preparation.facts
        facts["flavour"] = self.library.flavour
        self.compiled = module
        size = self._made_with.get("min_block_size")
        try:
            partition = compiled_partition(
                module, OF_FILE, front_end=self.case.variant, flavour=self.library.flavour,
                min_block_size=size if isinstance(size, int) else self.options.min_block_size,
            )  # fmt: skip
        except Exception:  # what is in a file depends on the version that wrote it
            partition = None
        if partition is not None:
            facts["partition"] = msgspec.to_builtins(partition)
        with compiling(self.model.name, "capture"):
            return self.captured(module)

    def _moved(self) -> Any:
        return self.model.module or open_module(self._path)


def check_file(path: Path, provenance: Provenance | None, library: Library) -> None:
    """Refuses a file that cannot run here, as far as what lies beside it says: opening it can end the process."""
    if provenance is None:
        return
    here = library.versions[library.package]
    if provenance.flavour != library.flavour or provenance.version.split(".")[:3] != here.split(".")[:3]:
        raise Unsupported(
            f"{path} holds engines of {provenance.flavour} {provenance.version}; here is {library.flavour} {here}.",
            hint=AGAIN,
        )
    gpu = current_gpu() or Gpu(name="")
    same = provenance.compute_capability == gpu.compute_capability and (library.rtx or provenance.gpu == gpu.name)
    # TensorRT for RTX has no engines for other GPUs, though files may say that this was asked for.
    if not same and (library.rtx or not provenance.options.get("hardware_compatible")):
        raise Unsupported(
            f"{path} was built on {provenance.gpu} (compute capability "
            f"{provenance.compute_capability}) and for it; here is {gpu.name} ({gpu.compute_capability}).",
            hint=AGAIN,
        )


def open_module(path: Path) -> Any:
    """The module in a file, on the GPU; both kinds hold pickles, which run what code their author wants."""
    import torch

    try:
        with quiet():
            if path.suffix in (".ep", ".pt2") or file_kind(path).title == COMPILED_PROGRAM:
                return torch.export.load(str(path)).module()
            return torch.jit.load(str(path), map_location="cuda")
    except Exception as error:  # unpickling can raise anything, and so can the engine inside
        raise InferlensError(
            f"{path} cannot be opened: {reason(error)}",
            expected=f"a {KINDS.get(path.suffix, 'compiled module')} for this GPU and this version of TensorRT",
            hint=AGAIN,
        ) from error


@contextmanager
def compiling(name: str, step: str, hint: str = "") -> Iterator[None]:
    """Turns what a step raises for a model that it cannot take into the reason of a row; lack of memory is none."""
    import torch

    try:
        # Outside of PyTorch's inference mode, which an export would trace into the graph.
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
        raise Unsupported(f"{TITLE} cannot {step} '{name}': {reason(inner)}", hint=hint) from error
