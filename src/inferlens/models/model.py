"""A :class:`Model`, which a backend is given to prepare, and :class:`ModelInfo`, what a name turned out to mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.errors import InferlensError, Unsupported
from inferlens.record.record import ModelFacts
from inferlens.spec.case import Case, TensorSpec

if TYPE_CHECKING:
    import torch

    from inferlens.models.samples import Samples

Format = Literal["module", "torchscript", "exported", "onnx", "openvino", "engine", "torch_tensorrt", "fake"]
Array = NDArray[np.generic]
InputsAtBatch = tuple[tuple[TensorSpec, ...], int | None]  # what a case says of its inputs


TRUST = "--trust, if you trust its author"


class Problem(Struct, frozen=True):
    """What stands against a model: an error, as data."""

    what: str
    expected: str = ""
    hint: str = ""

    @staticmethod
    def of(error: InferlensError) -> Problem:
        """An error, as data."""
        return Problem(error.what, error.expected, error.hint)

    def error(self) -> InferlensError:
        """The error."""
        return InferlensError(self.what, expected=self.expected, hint=self.hint)

    def refusal(self) -> Unsupported:
        """The error, where a case cannot run."""
        return Unsupported(self.what, expected=self.expected, hint=self.hint)


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What a model's name was found to mean, before anything heavy is loaded.

    Attributes:
        spec, name: the full name, such as ``torchvision:resnet18``, and the short one, used for the folder and titles.
        format: what the model will be once loaded; decides which backends can take it.
        batch: batch size of its own inputs, if known without loading it.
        precision: what it is in and runs in, if nothing else is asked for.
        origin: what it was compiled from and for, where that is known: its inputs are those that both are fed with,
            its precision that of what it was compiled from; and the format of that.
        danger: what of the file can run code when it is opened, one sentence; empty if nothing is known of such.
        problem: why the file cannot run with what is installed here.
        unfit: inputs and batches that were asked for and the file does not take, and why.
        inputs: the sets of inputs that a plan asks for, with sizes by name; empty until it was asked.
        convolutional: whether it has 2-D convolutions, as far as that was asked.
    """

    spec: str
    name: str
    format: Format
    batch: int | None = 1
    asked: str = ""
    precision: str = "fp32"
    origin: Case | None = None
    origin_format: Format | None = None
    danger: str = ""
    problem: Problem | None = None
    unfit: tuple[tuple[InputsAtBatch, Problem], ...] = ()
    inputs: tuple[tuple[TensorSpec, ...], ...] = ()
    convolutional: bool = False

    def refusal(self, feed: InputsAtBatch) -> Unsupported | None:
        """Why it cannot run with these inputs, whatever the backend; ``None`` if nothing is known against it."""
        problem = self.problem or dict(self.unfit).get(feed)
        return problem.refusal() if problem else None

    def check(self, trusted: bool, alone: bool = True) -> None:
        """Raises InferlensError for a file that would run code nobody asked for, or cannot run and is ``alone``."""
        if self.danger and not trusted:
            raise InferlensError(self.danger, hint=TRUST)
        if self.problem and alone:  # beside others it is a row
            raise self.problem.refusal()


@dataclass(frozen=True)
class Model:
    """A loaded model.

    Attributes:
        spec, name, format: as in :class:`ModelInfo`.
        inputs: its inputs, batch size put in, in the order of its arguments.
        module: the ``nn.Module`` (eval mode, fp32, on the CPU) for formats ``module``, ``torchscript`` and
            ``exported``; it takes the inputs as positional arguments and may return any nesting of tensors.
        path: the file it came from, if it did; for format ``onnx`` always.
        example: real input arrays, by input name, of the user's example or data; else they are drawn from a seed.
        weights: where its weights came from, such as ``random, seed 0``.
        weights_sha256: hash over all parameters and buffers, or of the file.
        source: what else identifies it, such as the version of the library or the hash of the file.
    """

    spec: str
    name: str
    format: Format
    inputs: tuple[TensorSpec, ...]
    module: torch.nn.Module | None = None
    path: Path | None = None
    example: dict[str, Array] = field(default_factory=dict)
    samples: Samples | None = None
    parameters: int | None = None
    weights: str = ""
    weights_sha256: str = ""
    source: str = ""

    @property
    def facts(self) -> ModelFacts:
        """What records and files say of the model."""
        return ModelFacts(**{name: getattr(self, name) for name in ModelFacts.__struct_fields__})
