"""Everything that a plan depends on, and the key that two builds share only if they would make the same plan."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.options import Options
from inferlens.backends.tensorrt.plugins import plugin_files
from inferlens.backends.tensorrt.profiles import Profile
from inferlens.models.sources.files import broken_file
from inferlens.record.files import sha256
from inferlens.record.record import Gpu

# They change how an engine is run, not what is built, or stand in the recipe by themselves.
OF_THE_RUN = ("profile", "cuda_graph", "streams", "timing_cache", "plugins", "compute_capability", "profiles")


class Recipe(Struct, frozen=True, kw_only=True):
    """What a plan is built from and for.

    Attributes:
        onnx_sha256: hash of the ONNX file and of the files that hold its weights.
        flavour, version: the library that builds.
        gpu, compute_capability: the GPU it builds on; empty where ``targets`` say what for.
        targets: compute capabilities it builds for.
        precision: the case's.
        options: those that change the plan, with their values, defaults too.
        profiles: optimization profiles, shapes by input name.
        plugins: hashes of the plugin libraries.
        timings: hash of the timing cache, where tactics are chosen by it.
    """

    onnx_sha256: str
    flavour: str
    version: str
    gpu: str = ""
    compute_capability: str = ""
    targets: tuple[str, ...] = ()
    precision: str = "fp32"
    options: dict[str, Any] = {}
    profiles: tuple[Profile, ...] = ()
    plugins: tuple[str, ...] = ()
    timings: str = ""

    @property
    def key(self) -> str:
        """Hexadecimal SHA-256 of all of it."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


def recipe(
    path: Path,
    flavour: Flavour,
    options: Options,
    profiles: tuple[Profile, ...],
    targets: tuple[str, ...],
    gpu: Gpu | None,
    precision: str,
) -> Recipe:
    """The recipe of the ONNX file ``path``; ``gpu`` counts only where no ``targets`` are named.

    Raises:
        InferlensError: if a library of plugins does not exist.
    """
    here = gpu if gpu is not None and not targets else Gpu(name="")
    return Recipe(
        onnx_sha256=onnx_sha256(path),
        flavour=flavour.key,
        version=flavour.version,
        gpu=here.name,
        compute_capability=here.compute_capability,
        targets=targets,
        precision=precision,
        options={name: value for name, value in msgspec.structs.asdict(options).items() if name not in OF_THE_RUN},
        profiles=profiles,
        timings=_timings(options.timing_cache, flavour),
        plugins=tuple(sha256(library) for library in plugin_files(options.plugins)),
    )


def _timings(file: str, flavour: Flavour) -> str:
    if not file or flavour.jit:
        return ""
    return sha256(Path(file)) if Path(file).is_file() else "none yet"


def onnx_sha256(path: Path) -> str:
    """Hash of an ONNX file and of the files beside it that hold its larger weights.

    Raises:
        InferlensError: if it cannot be read.
    """
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    with broken_file(path):
        graph = onnx.load(str(path), load_external_data=False).graph
        beside = {ExternalDataInfo(tensor).location for tensor in graph.initializer if uses_external_data(tensor)}
        return sha256(path, *(path.parent / name for name in sorted(beside)))
