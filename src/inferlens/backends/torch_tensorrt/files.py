"""Compiled modules in files: exported programs (``.ep``) and TorchScript (``.ts``) with engines in them.

What a file was made for stands beside it and is read first: opening one that was made for another GPU or by another
TensorRT can take the process down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends.availability import first_lines
from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.flavours import current_gpu
from inferlens.backends.torch_tensorrt.front_ends import compiling
from inferlens.backends.torch_tensorrt.library import Library, quiet
from inferlens.backends.torch_tensorrt.operators import OF_FILE, compiled_partition
from inferlens.backends.torch_tensorrt.runner import ReplayingRunner
from inferlens.backends.torch_tensorrt.settings import Options
from inferlens.backends.torchscript.backend import quiet as quiet_script
from inferlens.errors import InferlensError, Unsupported
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.models.provenance import Provenance
from inferlens.record.partition import Segment
from inferlens.record.record import Gpu
from inferlens.spec.case import Case

KINDS = {".ep": "Torch-TensorRT exported program", ".ts": "Torch-TensorRT TorchScript module"}
OF_COMPILED = ("cuda_graph", "tf32")  # options that mean something to a module that is compiled already
AGAIN = "inferlens export, once more, on this machine"


class LoadedRunner(ReplayingRunner):
    """Calls a compiled module from a file as it is: neither moved nor cast nor compiled."""

    def __init__(self, model: Model, case: Case, preparation: Preparation, options: Options, library: Library) -> None:
        made = provenance.read(model.path) if model.path else None
        self._made_with = made.options if made else {}
        if model.path:
            check(model.path, made, library)
        for name in case.options:
            if name not in OF_COMPILED:
                why = f"{name} does nothing to a module that is compiled already."
                preparation.warn("no-effect", why, "Leave it out there.")
        autocast = bool(self._made_with.get("autocast"))  # then its inputs are fp32, whatever its precision
        super().__init__(model, case, preparation, msgspec.structs.replace(options, autocast=autocast), library)

    def build(self, module: Any) -> Callable[..., Any]:
        """The module as it is; its engines and the operators beside them are a fact, where they can be read."""
        facts = self.preparation.facts
        facts["flavour"] = self.library.flavour
        self._module = module
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

    def inside(self) -> tuple[Any, Sequence[Segment]]:
        """The module of the file."""
        return self._module, ()

    def _moved(self) -> Any:
        if self.model.module is not None:
            return self.model.module
        if self.model.path is None:
            raise Unsupported(f"'{self.model.spec}' is no compiled module.")
        return open_module(self.model.path)


def describe(path: Path, model: Model, case: Case, options: Options, library: Library, seconds: float) -> None:
    """Writes beside the file at ``path`` what it was just made from and for; ``seconds`` is what its build took."""
    gpu = current_gpu() or Gpu(name="")
    made = provenance.of(
        path, KINDS[path.suffix], model, case,
        flavour=library.flavour, version=library.versions[library.package], libraries=library.versions, gpu=gpu.name,
        compute_capability=gpu.compute_capability, options=msgspec.structs.asdict(options), build_seconds=seconds,
    )  # fmt: skip
    provenance.write(path, made)


def check(path: Path, made: Provenance | None, library: Library) -> None:
    """Refuses a file that cannot run here, as far as what lies beside it says."""
    if made is None:
        return
    here = library.versions[library.package]
    if made.flavour != library.flavour or made.version.split(".")[:3] != here.split(".")[:3]:
        raise Unsupported(
            f"{path} holds engines of {made.flavour} {made.version}; here is {library.flavour} {here}.", hint=AGAIN
        )
    gpu = current_gpu() or Gpu(name="")
    same = made.compute_capability == gpu.compute_capability and (library.rtx or made.gpu == gpu.name)
    # TensorRT for RTX has no engines for other GPUs, though files may say that this was asked for.
    if not same and (library.rtx or not made.options.get("hardware_compatible")):
        raise Unsupported(
            f"{path} was built on {made.gpu} (compute capability {made.compute_capability}) and for it; here is "
            f"{gpu.name} ({gpu.compute_capability}).",
            hint=AGAIN,
        )


def open_module(path: Path) -> Any:
    """The module in a file, on the GPU; the library must have been imported, which registers what runs engines.

    Both kinds hold pickles: a file runs what code its author wants when it is opened.
    """
    import torch

    try:
        with quiet(), quiet_script():
            if path.suffix == ".ts":
                return torch.jit.load(str(path), map_location="cuda")
            return torch.export.load(str(path)).module()
    except Exception as error:  # unpickling can raise anything, and so can the engine inside
        raise InferlensError(
            f"{path} cannot be opened: {type(error).__name__}: {first_lines(error)}",
            expected=f"a {KINDS.get(path.suffix, 'compiled module')} for this GPU and this version of TensorRT",
            hint=AGAIN,
        ) from error
