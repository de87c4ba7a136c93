"""Compiled models: TensorRT engines (``.engine``, ``.plan``), and modules that Torch-TensorRT compiled.

What they are and need is read from the :class:`~inferlens.models.provenance.Provenance` beside them; the backend opens
the file itself. An engine that something else built has no provenance: its inputs are then asked for.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import msgspec

from inferlens.errors import InferlensError, Unsupported
from inferlens.models import engine_header as plan_file
from inferlens.models import provenance
from inferlens.models.model import TRUST, Format, ModelInfo, Origin, Problem
from inferlens.models.provenance import Provenance
from inferlens.models.sources.base import LoadRequest, Opened, Source
from inferlens.models.sources.files import existing
from inferlens.models.sources.onnx import OnnxFile
from inferlens.record.files import sha256
from inferlens.spec.case import TensorSpec


class Compiled(Source):
    """Files that hold a compiled model."""

    suffixes: ClassVar[tuple[str, ...]]
    title: ClassVar[str]
    danger: ClassVar[str] = ""  # of every file of this kind, as of ``ModelInfo``

    def find(self, name: str) -> ModelInfo:
        """See :class:`Source`."""
        path = existing(name)
        return self.described(path, provenance.read(path))

    def described(self, path: Path, made: Provenance | None) -> ModelInfo:
        """What a file is found to be, by what was kept beside it."""
        spec, danger = f"{self.prefix}:{path}", self.danger.format(path=path)
        if made is None:
            return ModelInfo(spec=spec, name=path.stem, format=self.format, batch=None, danger=danger)
        return ModelInfo(
            spec=spec, name=path.stem, format=self.format, batch=_batch(made.inputs), precision=made.case.precision,
            origin=_origin(made), danger=danger,
        )  # fmt: skip

    def open(self, name: str, request: LoadRequest) -> Opened:
        """See :class:`Source`."""
        path = existing(name)
        if self.danger and not request.trust:
            raise InferlensError(self.danger.format(path=path), hint=TRUST)
        made = provenance.read(path)
        source = f"{self.title}, sha256 {made.file_sha256 if made else sha256(path)}"
        if made is None:
            return Opened(format=self.format, path=path, weights=f"in {path.name}", source=source)
        shapes = _shapes(made)
        first = shapes[made.inputs[0].name] if made.inputs else ()
        return Opened(
            format=self.format, path=path, inputs=made.inputs, shapes=shapes,
            fixed_batch=bool(first) and first[0] is not None, weights=made.model.weights,
            weights_sha256=made.model.weights_sha256, parameters=made.model.parameters, source=source,
        )  # fmt: skip


class EngineFile(Compiled):
    """TensorRT engines."""

    prefix = "engine"
    format = "engine"
    suffixes = (".engine", ".plan")
    title = "TensorRT engine"

    def find(self, name: str) -> ModelInfo:
        """See :class:`Source`; what is wrong with the file itself is known without a GPU."""
        path = existing(name)
        made = provenance.read(path)
        found = self.described(path, made)
        try:
            check_file(path, made)
        except Unsupported as error:
            problem = Problem(error.what, error.expected, error.hint)
            return msgspec.structs.replace(found, problem=problem)
        except OSError as error:
            raise InferlensError(
                f"{name} cannot be read: {error.strerror}.", hint="a file that you may read"
            ) from error
        return found


class TorchTensorRtFile(Compiled):
    """Modules that Torch-TensorRT compiled: TorchScript (``.ts``) and exported programs (``.ep``)."""

    prefix = "torch_tensorrt"
    format: ClassVar[Format] = "torch_tensorrt"
    suffixes = (".ts", ".ep")
    title = "Torch-TensorRT module"
    danger = "{path} is a compiled module, which can run code when it is opened."  # pickles and native code


def check_file(path: Path, made: Provenance | None) -> None:
    """Refuses an engine's file that cannot run with what is installed here, as far as its beginning tells.

    Raises:
        Unsupported: if it is no plan, is cut short, or was built by another version.
    """
    header = plan_file.read_header(plan_file.start_of(path)[0]) if made else plan_file.whole(path, str(path))
    library = plan_file.installed(header.variant) if header else None
    if header and library:
        plan_file.check_version(str(path), header, made, library)


def _origin(made: Provenance) -> Origin:
    """What it was made from. An ONNX file tells its own precision: a builder may have lowered it."""
    precision = made.case.precision
    if made.format == "onnx":
        with suppress(InferlensError):  # if the file is gone, there is nothing to compare with either
            precision = OnnxFile().find(made.case.model.partition(":")[2]).precision
    return Origin(
        spec=made.case.model, format=made.format, precision=precision, weights=made.case.weights, seed=made.case.seed,
        inputs=made.inputs, variant=made.case.variant,
    )  # fmt: skip


def _batch(inputs: tuple[TensorSpec, ...]) -> int | None:
    return inputs[0].shape[0] if inputs and inputs[0].shape else None


def _shapes(made: Provenance) -> dict[str, tuple[int | None, ...]]:
    """Shapes of the inputs by name, ``None`` for sizes that have a range."""
    return {
        spec.name: tuple(
            low if low == high else None for low, high in zip(spec.profile[0], spec.profile[2], strict=True)
        )
        for spec in made.inputs
    }
