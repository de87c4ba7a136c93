"""A :class:`Model`, which a backend prepares, and :class:`ModelInfo`, the meaning of a model's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.errors import InferlensError, Unsupported, suggestion
from inferlens.record.files import FileType
from inferlens.record.record import ModelFacts
from inferlens.spec.case import Case, TensorSpec

if TYPE_CHECKING:
    import torch

    from inferlens.models.samples import Samples

Format = Literal["module", "torchscript", "exported", "onnx", "openvino", "engine", "torch_tensorrt", "fake"]
Array = NDArray[np.generic]
InputsAtBatch = tuple[tuple[TensorSpec, ...], int | None]  # the inputs and the batch of a case
TRUST = "--trust, if you trust its author"


class ModelInfo(Struct, frozen=True, kw_only=True):
    """The meaning of a model's name, before anything heavy is loaded.

    Attributes:
        spec, name: the full name, such as ``torchvision:resnet18``, and the short one, used for the folder and titles.
        format: the format after loading, which decides which backends can take it.
        batch: the batch size of the model's own inputs, if it can be read without loading the model.
        precision: the precision that the model is stored in, and runs in by default.
        origin: the case that the model was compiled from, if it has a provenance. The original model gets the inputs
            of this case, and its precision. ``origin_format`` is the format of the original model.
        danger: a sentence on code that runs when the file is opened; empty if there is none.
        problem: the reason why the file cannot run with the installed libraries.
        unfit: the requested inputs and batches that the file does not take, and why.
        inputs: the sets of inputs of a plan that gives sizes by name; empty before they are computed.
        convolutional: whether the model has 2-D convolutions; false before that is computed.
    """

    spec: str
    name: str
    format: Format
    batch: int | None = 1
    argument: str = ""
    precision: str = "fp32"
    origin: Case | None = None
    origin_format: Format | None = None
    danger: str = ""
    problem: Unsupported | None = None
    unfit: tuple[tuple[InputsAtBatch, Unsupported], ...] = ()
    inputs: tuple[tuple[TensorSpec, ...], ...] = ()
    convolutional: bool = False

    def refusal(self, feed: InputsAtBatch) -> Unsupported | None:
        """Return why no backend can run the model with these inputs; ``None`` if nothing is known against it."""
        return self.problem or dict(self.unfit).get(feed)

    def check(self, trusted: bool, required: bool = True) -> None:
        """Raise InferlensError for a file that would run untrusted code, or for a ``required`` one that cannot run."""
        if self.danger and not trusted:
            raise InferlensError(self.danger, hint=TRUST)
        if self.problem and required:  # with other models, the problem is shown in a row
            raise self.problem


Sizes = tuple[tuple[int, int | None], ...]


@dataclass(frozen=True)
class Model:
    """A model: as its source opens it, then with the weights and inputs of a case.

    Attributes:
        spec, name, format: as in :class:`ModelInfo`; a source leaves the first two empty.
        inputs: the inputs in the order of the arguments, with the batch size of the case; at first the model's own,
            empty if the source does not know them.
        module: the ``nn.Module`` (eval mode, fp32, on the CPU) for formats ``module``, ``torchscript`` and
            ``exported``; it takes the inputs as positional arguments and may return any nesting of tensors.
        path: the file that the model came from, if any; the format ``onnx`` always has one.
        example: input arrays from the user's example or data, by input name; other inputs are drawn from a seed.
        parameters: their number; a source sets it only without a module, as ``weights_sha256``.
        weights: the origin of the weights, such as ``random, seed 0``; a source leaves it empty for random ones.
        weights_sha256: the hash over all parameters and buffers, or of the file.
        source: other words that identify the model, such as the version of the library or the hash of the file.
        sizes: the smallest and the largest size of every dimension, by input name. A largest size of ``None`` is
            unlimited, and ``None`` for an input allows any shape. Inputs without an entry are not checked.
        fresh: whether the weights are random ones of the constructor, which are drawn again or replaced by a file's.
        named_weights: whether the model has the weights of the requested name.
    """

    spec: str = ""
    name: str = ""
    format: Format = "module"
    inputs: tuple[TensorSpec, ...] = ()
    module: torch.nn.Module | None = None
    path: Path | None = None
    example: dict[str, Array] = field(default_factory=dict)
    samples: Samples | None = None
    parameters: int | None = None
    weights: str = ""
    weights_sha256: str = ""
    source: str = ""
    sizes: Mapping[str, Sizes | None] = field(default_factory=dict)
    fresh: bool = False
    named_weights: bool = False

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(**{name: getattr(self, name) for name in ModelFacts.__struct_fields__})


@dataclass(frozen=True)
class LoadRequest:
    """The arguments of :func:`inferlens.models.resolve.load` that a source needs; weights of ``None`` are random."""

    weights: str | None = None
    trust: bool = False
    live: Path | None = None

    @property
    def named_weights(self) -> str | None:
        """Return the requested weights if they are a name. Those in a file are loaded into the module afterwards."""
        return None if self.weights is None or Path(self.weights).suffix else self.weights


class Source(ABC):
    """A source of models, such as a library; ``prefix`` is written before the colon in a model's name."""

    prefix: ClassVar[str]
    runs_code: ClassVar[bool] = False  # whether opening a name imports and calls user code
    vouched: ClassVar[bool] = False  # whether all models of the source load and take their own inputs
    format: ClassVar[Format] = "module"
    kinds: ClassVar[tuple[FileType, ...]] = ()  # the kinds of files that the source opens

    def names(self) -> Sequence[str]:
        """Return all names; empty if they cannot be listed. May raise MissingLibrary."""
        return ()

    @abstractmethod
    def open(self, name: str, request: LoadRequest) -> Model:
        """Return the model called ``name``. Raises InferlensError if it cannot be opened."""

    def preparation(self, name: str, spec: TensorSpec) -> Callable[[Any], Array]:
        """Return the function that converts an image of PIL to an array. Raises InferlensError if there is none."""
        raise InferlensError(
            f"How {self.prefix}:{name} wants images to be prepared for '{spec.name}' is not known.",
            expected="a model of torchvision or timm",
            hint="package.module:factory, which gives prepared arrays, or an .npz file of them",
        )

    def find(self, name: str) -> ModelInfo:
        """Return the meaning of ``name``. Raises InferlensError for an unknown name, with near misses."""
        names = self.names()
        if name not in names:
            raise InferlensError(
                f"{self.prefix} has no model '{name}'.",
                expected=f"one of its {len(names)} models",
                hint=suggestion(name, names) or f"a name that {self.prefix} lists",
            )
        return ModelInfo(spec=f"{self.prefix}:{name}", name=name, format=self.format)
