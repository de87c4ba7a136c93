"""What a compiled model was made from, by and for: a :class:`Provenance`, a JSON file beside the model's own.

It is read first: opening an engine that was made for another GPU or library can take the process down.
"""

from __future__ import annotations

import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError
from inferlens.models.model import Format, Model
from inferlens.record.files import sha256, write_whole
from inferlens.record.record import ModelFacts
from inferlens.spec.case import Case, TensorSpec

SCHEMA = "inferlens.provenance/1"


class Provenance(Struct, frozen=True, kw_only=True):
    """Where a compiled model came from and what it needs.

    Attributes:
        kind: what the file is, such as ``TensorRT plan``.
        file_sha256: hash of the file itself, which tells a whole one from one that was cut short.
        case, model, format: what it was made for, the model as it was loaded, and what that was before.
        onnx_sha256: hash of the ONNX graph it was built from, if there was one.
        flavour, version: the library that made it, such as ``TensorRT for RTX`` and ``1.4.0.76``.
        gpu, compute_capability: the GPU it was made on, such as ``9.0``; empty if there was none.
        targets: compute capabilities it was made for, if other than that GPU's.
        options: every option, defaults too.
        inputs, outputs: of the compiled model, in order, with their ranges of sizes.
        profiles: shapes (min, opt, max) by input name, one for each optimization profile.
    """

    schema: str = SCHEMA
    created: str
    kind: str
    file_sha256: str
    case: Case
    model: ModelFacts
    format: Format
    onnx_sha256: str = ""
    flavour: str = ""
    version: str = ""
    libraries: dict[str, str] = {}
    gpu: str = ""
    compute_capability: str = ""
    targets: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    profiles: tuple[dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]], ...] = ()
    build_seconds: float | None = None


def of(file: Path | bytes, kind: str, model: Model, case: Case, **more: Any) -> Provenance:
    """The provenance of a file or its content, just made from ``model`` for ``case``; ``more`` are further fields."""
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Provenance(
        created=created, kind=kind, file_sha256=sha256(file), case=case, model=model.facts, format=model.format,
        **{"inputs": model.inputs, **more},
    )  # fmt: skip


def beside(path: Path) -> Path:
    """Where the provenance of the model at ``path`` is kept."""
    return path.with_name(f"{path.name}.json")


def write(path: Path, provenance: Provenance) -> None:
    """Writes the provenance of the model at ``path`` beside it, whole or not at all."""
    write_whole(beside(path), msgspec.json.format(msgspec.json.encode(provenance), indent=1) + b"\n")


def copy(model: Path, path: Path) -> None:
    """Copies a compiled model to ``path``, and its provenance, if it has one, beside it."""
    shutil.copyfile(model, path)
    if beside(model).is_file():
        shutil.copyfile(beside(model), beside(path))


def option_of(spec: str, name: str) -> Any:
    """The value of an option that a compiled model such as ``engine:model.engine`` was made with, if known."""
    try:
        return msgspec.json.decode(beside(Path(spec.partition(":")[2])).read_bytes(), type=Provenance).options.get(name)
    except (OSError, ValueError, RecursionError):
        return None


def read(path: Path, content: bytes | None = None) -> Provenance | None:
    """The provenance of the model at ``path``; ``None`` if there is none beside it.

    ``content`` is that of the model's file, if it was read already: whole files are read and hashed once. Raises
    InferlensError if what lies there is none, or the model's file is not the one that was made.
    """
    file = beside(path)
    if not file.is_file():
        return None
    try:
        provenance = msgspec.json.decode(file.read_bytes(), type=Provenance)
        if provenance.schema != SCHEMA or not shapes_fit(provenance.inputs):
            raise ValueError(f"it is of schema '{provenance.schema}', or its shapes do not fit together")
    except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InferlensError(f"{file} does not describe {path.name}: {error}.", hint="build it again") from error
    if sha256(path if content is None else content) != provenance.file_sha256:
        raise InferlensError(
            f"{path} is not the file that {file.name} describes: it was cut short, or replaced.", hint="build it again"
        )
    return provenance


def shapes_fit(inputs: tuple[TensorSpec, ...]) -> bool:
    """Whether the shapes of each input fit together, and something could be fed to it."""
    return all(
        len({len(spec.shape), *map(len, spec.profile)}) == 1
        and all(0 < low <= best <= high for low, best, high in zip(*spec.profile, strict=True))
        and all(size > 0 for size in spec.shape)
        for spec in inputs
    )
