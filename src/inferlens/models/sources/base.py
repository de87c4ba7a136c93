"""The seam of a source of models: it knows names, and opens one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from inferlens.errors import InferlensError, suggestion
from inferlens.models.model import Array, Format, ModelInfo
from inferlens.record.file_kind import FileType
from inferlens.spec.case import TensorSpec

if TYPE_CHECKING:
    import torch


Sizes = tuple[tuple[int, int | None], ...]


@dataclass(frozen=True)
class LoadRequest:
    """How a model is to be opened.

    Attributes:
        weights: name or file of weights; ``None`` is random.
        trust: whether pickles that can run code may be opened.
        live: where the parent process left a live module.
    """

    weights: str | None = None
    trust: bool = False
    live: Path | None = None

    @property
    def named_weights(self) -> str | None:
        """Weights asked for by name; those in a file are loaded into the module afterwards, whatever the source."""
        return None if self.weights is None or Path(self.weights).suffix else self.weights


@dataclass(frozen=True)
class Opened:
    """What a source gives: a module or a file, and what it knows of the inputs.

    Attributes:
        inputs: the model's own inputs; empty if it does not know them.
        sizes: the least and the most of each size of an input, by its name; the most is ``None`` where there is none,
            all are where any shape will do. What has no name here is not checked.
        fresh: whether its weights are the constructor's random ones, to be made healthy or replaced by a file's.
        named_weights: whether it has the weights that were asked for by name.
        parameters, weights_sha256: where there is no module to ask.
        weights: where its weights came from, if they are not random.
        source: what identifies it, such as the library's version or the file's hash.
    """

    format: Format
    inputs: tuple[TensorSpec, ...] = ()
    module: torch.nn.Module | None = None
    path: Path | None = None
    example: dict[str, Array] = field(default_factory=dict)
    sizes: Mapping[str, Sizes | None] = field(default_factory=dict)
    fresh: bool = False
    parameters: int | None = None
    named_weights: bool = False
    weights: str = ""
    weights_sha256: str = ""
    source: str = ""


class Source(ABC):
    """One kind of place that models come from; ``prefix`` is written before the colon."""

    prefix: ClassVar[str]
    runs_code: ClassVar[bool] = False  # whether a name alone makes it import and call what is written there
    vouched: ClassVar[bool] = False  # whether all its models are known to load, and to take their own inputs
    format: ClassVar[Format] = "module"
    kinds: ClassVar[tuple[FileType, ...]] = ()  # of the files that it opens, whatever their names

    def names(self) -> Sequence[str]:
        """Every name it knows; empty if they cannot be listed. May raise MissingLibrary."""
        return ()

    @abstractmethod
    def open(self, name: str, request: LoadRequest) -> Opened:
        """The model called ``name``. Raises InferlensError if it cannot be opened."""

    def preparation(self, name: str, spec: TensorSpec) -> Callable[[Any], Array]:
        """What makes an array of an image of PIL's, as the model wants it. Raises InferlensError if it is not known."""
        raise InferlensError(
            f"How {self.prefix}:{name} wants images to be prepared for '{spec.name}' is not known.",
            expected="a model of torchvision or timm",
            hint="package.module:factory, which gives prepared arrays, or an .npz file of them",
        )

    def find(self, name: str) -> ModelInfo:
        """What ``name`` means here. Raises InferlensError if it means nothing; near misses are suggested."""
        names = self.names()
        if name not in names:
            raise InferlensError(
                f"{self.prefix} has no model '{name}'.",
                expected=f"one of its {len(names)} models",
                hint=suggestion(name, names) or f"a name that {self.prefix} lists",
            )
        return ModelInfo(spec=f"{self.prefix}:{name}", name=name, format=self.format)
