"""Compiled modules in files: exported programs (``.ep``) and TorchScript (``.ts``) with engines in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferlens.backends.availability import first_lines
from inferlens.backends.torch_tensorrt.library import quiet
from inferlens.backends.torchscript import quiet as quiet_script
from inferlens.errors import InferlensError

KINDS = {".ep": "Torch-TensorRT exported program", ".ts": "Torch-TensorRT TorchScript module"}


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
            cure="inferlens export, once more, on this machine",
        ) from error
