"""Compiled modules in files: exported programs (``.ep``) and TorchScript (``.ts``) with engines in them.

What a file was made for stands beside it and is read first: opening one that was made for another GPU or by another
TensorRT can take the process down.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends.availability import first_lines
from inferlens.backends.torch_tensorrt.library import Library, quiet
from inferlens.backends.torch_tensorrt.options import Options
from inferlens.backends.torchscript.backend import quiet as quiet_script
from inferlens.errors import InferlensError, Unsupported
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.models.provenance import Provenance
from inferlens.spec.case import Case

KINDS = {".ep": "Torch-TensorRT exported program", ".ts": "Torch-TensorRT TorchScript module"}
AGAIN = "inferlens export, once more, on this machine"


def tell(path: Path, model: Model, case: Case, options: Options, library: Library, seconds: float) -> None:
    """Writes beside the file at ``path`` what it was just made from and for; ``seconds`` is what its build took."""
    gpu, capability = _gpu()
    made = provenance.of(
        path, KINDS[path.suffix], model, case,
        flavour=library.flavour, version=library.versions[library.package], libraries=library.versions, gpu=gpu,
        compute_capability=capability, options=msgspec.structs.asdict(options), build_seconds=seconds,
    )  # fmt: skip
    provenance.write(path, made)


def check(path: Path, made: Provenance | None, library: Library) -> None:
    """Refuses a file that cannot run here, as far as what lies beside it tells.

    Raises:
        Unsupported: saying what it was made for and what is here.
    """
    if made is None:
        return
    here = library.versions[library.package]
    if made.flavour != library.flavour or made.version.split(".")[:3] != here.split(".")[:3]:
        raise Unsupported(
            f"{path} holds engines of {made.flavour} {made.version}; here is {library.flavour} {here}.", hint=AGAIN
        )
    gpu, capability = _gpu()
    same = made.compute_capability == capability and (library.rtx or made.gpu == gpu)
    # TensorRT for RTX has no engines for other GPUs, though files may say that this was asked for.
    if not same and (library.rtx or not made.options.get("hardware_compatible")):
        raise Unsupported(
            f"{path} was built on {made.gpu} (compute capability {made.compute_capability}) and for it; here is {gpu} "
            f"({capability}).",
            hint=AGAIN,
        )


def open_module(path: Path) -> Any:
    """The module in a file, on the GPU; the library must have been imported, which registers what runs engines.

    Both kinds hold pickles: a file runs what code its author wants when it is opened.

    Raises:
        InferlensError: if it cannot be opened: another kind of file, cut short, or for another version or GPU.
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


def _gpu() -> tuple[str, str]:
    """Name and compute capability of the GPU in use."""
    import torch

    return str(torch.cuda.get_device_name()), ".".join(map(str, torch.cuda.get_device_capability()))
