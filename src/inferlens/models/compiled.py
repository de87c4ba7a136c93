"""The origin of a compiled model: a :class:`Provenance`, a JSON file in the same folder.

It is read first, because opening an engine for another GPU or library can crash the process.
"""

from __future__ import annotations

import shutil
import struct
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError, Unsupported
from inferlens.models.files import OnnxFile, find_file
from inferlens.models.inputs import shapes_fit
from inferlens.models.model import TRUST, Format, LoadRequest, Model, ModelInfo, Source
from inferlens.record.files import FileType, sha256, write_whole
from inferlens.record.record import ModelFacts
from inferlens.spec.case import Case, TensorSpec

SCHEMA = "inferlens.provenance/1"


class Provenance(Struct, frozen=True, kw_only=True):
    """The origin and the requirements of a compiled model.

    Attributes:
        kind: the kind of the file, such as ``TensorRT plan``.
        file_sha256: the hash of the file itself, which detects a file that was cut short.
        case, model, format: the case that it was built for, the loaded model, and the model's original format.
        onnx_sha256: the hash of the ONNX graph that it was built from, if there was one.
        flavour, version: the library that built it, such as ``TensorRT for RTX`` and ``1.4.0.76``.
        gpu, compute_capability: the GPU that it was built on, such as ``9.0``; empty if there was none.
        targets: the compute capabilities that it was built for, if they differ from that GPU's.
        options: all options, including those at their defaults.
        inputs, outputs: the tensors of the compiled model in order, with their ranges of sizes.
        profiles: the shapes (min, opt, max) by input name, one per optimization profile.
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


def new_provenance(file: Path | bytes, kind: str, model: Model, case: Case, **fields: Any) -> Provenance:
    """Return the provenance of a new file, or of its content, that was built from ``model`` for ``case``."""
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Provenance(
        created=created, kind=kind, file_sha256=sha256(file), case=case, model=model.facts, format=model.format,
        **{"inputs": model.inputs, **fields},
    )  # fmt: skip


def provenance_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def write_provenance(path: Path, provenance: Provenance) -> None:
    """Write the provenance of the model at ``path`` into the same folder, whole or not at all."""
    write_whole(provenance_path(path), msgspec.json.format(msgspec.json.encode(provenance), indent=1) + b"\n")


def copy_with_provenance(model: Path, path: Path) -> None:
    """Copy a compiled model to ``path``, with its provenance, if it has one."""
    shutil.copyfile(model, path)
    if provenance_path(model).is_file():
        shutil.copyfile(provenance_path(model), provenance_path(path))


def built_option(spec: str, name: str) -> Any:
    """Return an option that a compiled model such as ``engine:model.engine`` was built with; ``None`` if unknown."""
    try:
        path = provenance_path(Path(spec.partition(":")[2]))
        return msgspec.json.decode(path.read_bytes(), type=Provenance).options.get(name)
    except (OSError, ValueError, RecursionError):
        return None


def read_provenance(path: Path, content: bytes | None = None) -> Provenance | None:
    """Return the provenance of the model at ``path``; ``None`` if there is none.

    ``content`` is the content of the model's file, if it was read already. Raises InferlensError if the JSON file is no
    provenance, or describes another content of the model's file.
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
        message = f"{path} is not the file that {file.name} describes: it was cut short, or replaced."
        raise InferlensError(message, hint="build it again")
    return provenance


# The header of a TensorRT engine, which can be read without a GPU. It has 64 little-endian bytes: four letters for the
# flavour at 0, the size of the file at 16, and the version as four bytes at 24. ``trtexec --getPlanVersionOnly`` reads
# ``ftrt`` and the version from there; the rest was observed in engines.

SIZE = 64
FLAVOURS = {b"vtrt": "rtx", b"ftrt": "trt", b"ptrt": "trt"}  # ptrt: before TensorRT 8.6
AGAIN = "build it again here: inferlens export MODEL --to FILE"


class Header(Struct, frozen=True):
    """The header of an engine: the variant that built it, and its version, if the header has one."""

    variant: str
    version: str


def read_header(path: Path) -> Header:
    """Return the header of the engine in a file. Raises Unsupported if it is no engine, or is cut short."""
    with path.open("rb") as file:
        data, size = file.read(SIZE), path.stat().st_size
    variant = FLAVOURS.get(data[:4])
    is_complete = size >= SIZE
    if variant == "rtx" and is_complete:  # engines of TensorRT do not hold their size
        is_complete = size == struct.unpack_from("<Q", data, 16)[0]
    if variant is None or not is_complete:
        raise Unsupported(f"{path} is not a whole TensorRT engine ({size} bytes).", hint=AGAIN)
    version = "" if data[:4] == b"ptrt" else ".".join(str(part) for part in data[24:28])
    return Header(variant, version)


class Compiled(Source):
    """Files that hold a compiled model."""

    suffixes: ClassVar[tuple[str, ...]]
    title: ClassVar[str]
    more_kinds: ClassVar[tuple[FileType, ...]]  # kinds that are opened if the suffix or the prefix fits
    danger: ClassVar[str] = ""  # as in ``ModelInfo``, for every file of this source

    def find(self, name: str) -> ModelInfo:
        path, _ = find_file(name, *self.kinds, *self.more_kinds)
        provenance = read_provenance(path)
        first = provenance.inputs[0].shape if provenance and provenance.inputs else ()
        return ModelInfo(
            spec=f"{self.prefix}:{path}",
            name=path.stem,
            format=self.format,
            batch=first[0] if first else None,
            precision=provenance.case.precision if provenance else "fp32",
            origin=_origin(provenance) if provenance else None,
            origin_format=provenance.format if provenance else None,
            danger=self.danger.format(path=path),
            problem=self.problem(path, provenance),
        )

    def problem(self, path: Path, provenance: Provenance | None) -> Unsupported | None:  # noqa: ARG002 - some kinds have no problems
        """Return why the file cannot run here, as far as that can be read without a GPU."""
        return None

    def open(self, name: str, request: LoadRequest) -> Model:
        path, _ = find_file(name, *self.kinds, *self.more_kinds)
        if self.danger and not request.trust:
            raise InferlensError(self.danger.format(path=path), hint=TRUST)
        provenance = read_provenance(path)
        source = f"{self.title}, sha256 {provenance.file_sha256 if provenance else sha256(path)}"
        opened = Model(format=self.format, path=path, weights=f"in {path.name}", source=source)
        if provenance is None:
            return opened
        sizes = {spec.name: tuple(zip(spec.profile[0], spec.profile[2], strict=True)) for spec in provenance.inputs}
        facts = {name: getattr(provenance.model, name) for name in ("weights", "weights_sha256", "parameters")}
        return replace(opened, inputs=provenance.inputs, sizes=sizes, **facts)


class EngineFile(Compiled):
    """TensorRT engines."""

    prefix = "engine"
    format = "engine"
    kinds = (FileType.ENGINE,)
    # :meth:`problem` reports what is wrong with files of these kinds, in a row of the table.
    more_kinds = (FileType.EMPTY, FileType.DATA, FileType.UNKNOWN)
    suffixes = (".engine", ".plan")
    title = "TensorRT engine"

    def problem(self, path: Path, provenance: Provenance | None) -> Unsupported | None:
        try:
            if provenance is None:  # otherwise its hash was checked
                read_header(path)
        except Unsupported as error:
            return error
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
    """Graphs of OpenVINO (``.xml``), with their weights in a second file (``.bin``)."""

    prefix = "openvino"
    format: ClassVar[Format] = "openvino"
    kinds = (FileType.OPENVINO,)
    more_kinds = ()
    suffixes = (".xml",)
    title = "OpenVINO IR"

    def problem(self, path: Path, provenance: Provenance | None) -> Unsupported | None:  # noqa: ARG002
        weights = path.with_suffix(".bin")
        missing = Unsupported(f"{weights}, which holds the weights of {path.name}, is missing.")
        return None if weights.is_file() else missing


def _origin(provenance: Provenance) -> Case:
    """Return the case with the original model's precision and inputs. A builder may have lowered an ONNX file's."""
    precision = provenance.case.precision
    if provenance.format == "onnx":
        with suppress(InferlensError):  # without the file there is nothing to compare with
            precision = OnnxFile().find(provenance.case.model.partition(":")[2]).precision
    return msgspec.structs.replace(provenance.case, precision=precision, inputs=provenance.inputs)
