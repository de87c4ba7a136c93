"""Compiled models: TensorRT engines (``.engine``, ``.plan``), modules that Torch-TensorRT compiled, and graphs of
OpenVINO's.

What they are and need is read from the :class:`~inferlens.models.provenance.Provenance` beside them; the backend opens
the file itself. An engine that something else built has no provenance: its inputs are then asked for.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError, Unsupported
from inferlens.models import provenance
from inferlens.models.model import TRUST, Format, ModelInfo, Problem
from inferlens.models.provenance import Provenance
from inferlens.models.sources.base import LoadRequest, Opened, Source
from inferlens.models.sources.files import existing
from inferlens.models.sources.onnx import OnnxFile
from inferlens.record.file_kind import FileType
from inferlens.record.files import sha256
from inferlens.spec.case import Case

# What a TensorRT engine's file says of itself: whether it is whole, and what built it. Readable without a GPU.
#
# In its first 64 bytes, little endian: at 0 four letters of the flavour, at 16 the whole size, at 24 the version as
# four bytes. ``trtexec --getPlanVersionOnly`` reads ``ftrt`` and the version from there; the rest was seen in engines.

SIZE = 64
FLAVOURS = {b"vtrt": "rtx", b"ftrt": "trt", b"ptrt": "trt"}  # ptrt: before TensorRT 8.6
AGAIN = "build it again here: inferlens export MODEL --to FILE"


class Header(Struct, frozen=True):
    """What an engine says of itself: the variant that built it, and its version, if that is told."""

    variant: str
    version: str


def whole(path: Path) -> Header:
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
        path, _ = existing(name, *self.kinds, *self.more_kinds)
        made = provenance.read(path)
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

    def open(self, name: str, request: LoadRequest) -> Opened:
        path, _ = existing(name, *self.kinds, *self.more_kinds)
        if self.danger and not request.trust:
            raise InferlensError(self.danger.format(path=path), hint=TRUST)
        made = provenance.read(path)
        source = f"{self.title}, sha256 {made.file_sha256 if made else sha256(path)}"
        if made is None:
            return Opened(format=self.format, path=path, weights=f"in {path.name}", source=source)
        return Opened(
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
    )  # :func:`whole` says what is wrong, as a row beside others
    suffixes = (".engine", ".plan")
    title = "TensorRT engine"

    def problem(self, path: Path, provenance: Provenance | None) -> Problem | None:
        """It is no engine, or is cut short."""
        try:
            if provenance is None:  # otherwise its hash told that it is whole
                whole(path)
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
