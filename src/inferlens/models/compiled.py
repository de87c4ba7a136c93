"""What a compiled model was made from, by and for: a :class:`Provenance`, a JSON file beside the model's own.

It is read first: opening an engine that was made for another GPU or library can take the process down.
"""

from __future__ import annotations

import shutil
import struct
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError, Unsupported
from inferlens.models.files import OnnxFile, find_file
from inferlens.models.inputs import shapes_fit
from inferlens.models.model import TRUST, Format, LoadRequest, Model, ModelInfo, OpenedModel, Problem, Source
from inferlens.record.file_kind import FileType
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


def new_provenance(file: Path | bytes, kind: str, model: Model, case: Case, **more: Any) -> Provenance:
    """The provenance of a file or its content, just made from ``model`` for ``case``; ``more`` are further fields."""
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Provenance(
        created=created, kind=kind, file_sha256=sha256(file), case=case, model=model.facts, format=model.format,
        **{"inputs": model.inputs, **more},
    )  # fmt: skip


def provenance_path(path: Path) -> Path:
    """Where the provenance of the model at ``path`` is kept."""
    return path.with_name(f"{path.name}.json")


def write_provenance(path: Path, provenance: Provenance) -> None:
    """Writes the provenance of the model at ``path`` beside it, whole or not at all."""
    write_whole(provenance_path(path), msgspec.json.format(msgspec.json.encode(provenance), indent=1) + b"\n")


def copy_with_provenance(model: Path, path: Path) -> None:
    """Copies a compiled model to ``path``, and its provenance, if it has one, beside it."""
    shutil.copyfile(model, path)
    if provenance_path(model).is_file():
        shutil.copyfile(provenance_path(model), provenance_path(path))


def built_option(spec: str, name: str) -> Any:
    """The value of an option that a compiled model such as ``engine:model.engine`` was made with, if known."""
    try:
        return msgspec.json.decode(
            provenance_path(Path(spec.partition(":")[2])).read_bytes(), type=Provenance
        ).options.get(name)
    except (OSError, ValueError, RecursionError):
        return None


def read_provenance(path: Path, content: bytes | None = None) -> Provenance | None:
    """The provenance of the model at ``path``; ``None`` if there is none beside it.

    ``content`` is that of the model's file, if it was read already: whole files are read and hashed once. Raises
    InferlensError if what lies there is none, or the model's file is not the one that was made.
    """
    file = provenance_path(path)
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


# The header of a TensorRT engine, readable without a GPU. Its first 64 bytes are little endian: at 0 four letters of
# the flavour, at 16 the size of the file, at 24 the version as four bytes. ``trtexec --getPlanVersionOnly`` reads
# ``ftrt`` and the version from there; the rest was observed in engines.

SIZE = 64
FLAVOURS = {b"vtrt": "rtx", b"ftrt": "trt", b"ptrt": "trt"}  # ptrt: before TensorRT 8.6
AGAIN = "build it again here: inferlens export MODEL --to FILE"


class Header(Struct, frozen=True):
    """What an engine says of itself: the variant that built it, and its version, if that is told."""

    variant: str
    version: str


def read_engine_header(path: Path) -> Header:
    """The header of the engine in a file.

    Engines of TensorRT do not tell their size: of those, only a file shorter than a header is known to be cut short.
    Raises Unsupported if it is no engine, or is cut short.
    """
    with path.open("rb") as file:
        data, size = file.read(SIZE), path.stat().st_size
    variant = FLAVOURS.get(data[:4])
    if variant is None:
        what = "is empty" if not size else f"is not a TensorRT engine ({size} bytes)"
        raise Unsupported(f"{path} {what}.", hint=AGAIN)
    told = struct.unpack_from("<Q", data, 16)[0] if variant == "rtx" and size >= SIZE else None
    if size < SIZE or told not in (None, size):
        raise Unsupported(f"{path} is damaged: it has {size} of {told or 'more'} bytes.", hint=AGAIN)
    version = "" if data[:4] == b"ptrt" else ".".join(str(part) for part in data[24:28])
    return Header(variant, version)


class Compiled(Source):
    """Files that hold a compiled model."""

    suffixes: ClassVar[tuple[str, ...]]
    title: ClassVar[str]
    more_kinds: ClassVar[tuple[FileType, ...]]  # that it opens where its suffix or prefix says so
    danger: ClassVar[str] = ""  # of every file of this kind, as of ``ModelInfo``

    def find(self, name: str) -> ModelInfo:
        path, _ = find_file(name, *self.kinds, *self.more_kinds)
        made = read_provenance(path)
        first = made.inputs[0].shape if made and made.inputs else ()
        return ModelInfo(
            spec=f"{self.prefix}:{path}",
            name=path.stem,
            format=self.format,
            batch=first[0] if first else None,
            precision=made.case.precision if made else "fp32",
            origin=_origin(made) if made else None,
            origin_format=made.format if made else None,
            danger=self.danger.format(path=path),
            problem=self.problem(path, made),
        )

    def problem(self, path: Path, provenance: Provenance | None) -> Problem | None:  # noqa: ARG002 - of some kinds none is known
        """Why the file cannot run here, as far as its beginning tells without a GPU."""
        return None

    def open(self, name: str, request: LoadRequest) -> OpenedModel:
        path, _ = find_file(name, *self.kinds, *self.more_kinds)
        if self.danger and not request.trust:
            raise InferlensError(self.danger.format(path=path), hint=TRUST)
        made = read_provenance(path)
        source = f"{self.title}, sha256 {made.file_sha256 if made else sha256(path)}"
        if made is None:
            return OpenedModel(format=self.format, path=path, weights=f"in {path.name}", source=source)
        return OpenedModel(
            format=self.format,
            path=path,
            inputs=made.inputs,
            sizes={spec.name: tuple(zip(spec.profile[0], spec.profile[2], strict=True)) for spec in made.inputs},
            weights=made.model.weights,
            weights_sha256=made.model.weights_sha256,
            parameters=made.model.parameters,
            source=source,
        )


class EngineFile(Compiled):
    """TensorRT engines."""

    prefix = "engine"
    format = "engine"
    kinds = (FileType.ENGINE,)
    more_kinds = (
        FileType.EMPTY,
        FileType.DATA,
        FileType.UNKNOWN,
    )  # :meth:`problem` says what is wrong, in a row of the table
    suffixes = (".engine", ".plan")
    title = "TensorRT engine"

    def problem(self, path: Path, provenance: Provenance | None) -> Problem | None:
        """It is no engine, or is cut short."""
        try:
            if provenance is None:  # otherwise its hash told that it is whole
                read_engine_header(path)
        except Unsupported as error:
            return Problem.of(error)
        except OSError as error:
            raise InferlensError(
                f"{path} cannot be read: {error.strerror}.", hint="a file that you may read"
            ) from error
        return None


class TorchTensorRtFile(Compiled):
    """Modules that Torch-TensorRT compiled: TorchScript (``.ts``) and exported programs (``.ep``)."""

    prefix = "torch_tensorrt"
    format: ClassVar[Format] = "torch_tensorrt"
    kinds = (FileType.TORCH_TENSORRT,)
    more_kinds = (FileType.EXPORTED, FileType.TORCHSCRIPT)  # a module may hold no engine
    suffixes = (".ts", ".ep")
    title = "Torch-TensorRT module"
    danger = "{path} is a compiled module, which can run code when it is opened."  # pickles and native code


class OpenVinoFile(Compiled):
    """Graphs as OpenVINO keeps them (``.xml``), with their weights beside them (``.bin``)."""

    prefix = "openvino"
    format: ClassVar[Format] = "openvino"
    kinds = (FileType.OPENVINO,)
    more_kinds = ()
    suffixes = (".xml",)
    title = "OpenVINO IR"

    def problem(self, path: Path, provenance: Provenance | None) -> Problem | None:  # noqa: ARG002
        """Its weights are not there."""
        weights = path.with_suffix(".bin")
        return None if weights.is_file() else Problem(f"{weights}, which holds the weights of {path.name}, is missing.")


def _origin(provenance: Provenance) -> Case:
    """What it was made from. An ONNX file tells its own precision: a builder may have lowered it."""
    precision = provenance.case.precision
    if provenance.format == "onnx":
        with suppress(InferlensError):  # if the file is gone, there is nothing to compare with either
            precision = OnnxFile().find(provenance.case.model.partition(":")[2]).precision
    return msgspec.structs.replace(provenance.case, precision=precision, inputs=provenance.inputs)
