"""What some backends and runners can do beside running a model: asked for by type, never by a backend's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct

from inferlens.backends.base import Preparation
from inferlens.models.model import Model
from inferlens.record.builds import BuildReport, Partition
from inferlens.record.profile import Layers
from inferlens.spec.case import Case, TensorSpec


class Saver(ABC):
    """An ability of a backend: it writes prepared models to files. ``saves`` has their suffixes, each with its kind."""

    saves: ClassVar[dict[str, str]]

    @abstractmethod
    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Writes ``model``, prepared for ``case``, to a new file whose suffix is one of ``saves``, or refuses."""


class Quantizer(ABC):
    """An ability of a backend: it writes what it quantized to files that it runs, with the suffix ``quantized_as``.

    What it can write where it cannot run it is in ``Capabilities.writes``.
    """

    quantized_as: ClassVar[str]

    @abstractmethod
    def write_quantized(self, model: Model, case: Case, preparation: Preparation, path: Path) -> Path:
        """Writes ``model``, quantized as ``case`` says, to ``path``; gives the ONNX graph in fp32 that it made it of.

        The fact ``quantized_share`` is told, where it can be counted.
        """


class Builder(ABC):
    """An ability of a backend: it builds engines, several times if need be, and says what each build took and chose."""

    @abstractmethod
    def build(self, model: Model, case: Case, preparation: Preparation, path: Path, builds: int = 1) -> BuildReport:
        """Builds ``builds`` engines and writes the last to the new file ``path``, or refuses."""


class Partitioner(ABC):
    """An ability of a backend: it says beforehand which operators its compiler would take, and why not the others."""

    @abstractmethod
    def partition(self, model: Model, case: Case, preparation: Preparation) -> Partition:
        """Which operators would be compiled; compiles nothing. Refuses if that cannot be told beforehand."""


class LayerProfiler(ABC):
    """An ability of a runner: it can time its layers, if it was prepared for the level ``layer``."""

    @abstractmethod
    def profile_layers(self, feed: Any, runs: int) -> Layers:
        """Calls ``infer(feed)`` ``runs`` times, one after the other, and times the layers of every call.

        The runner is entered and warm. What is done between the layers is O(1) for each of them; what they are called
        and where they come from is worked out afterwards. Raises Unsupported if the library does not tell here, with
        what would help.
        """


class Launched(Struct, frozen=True, kw_only=True):
    """Something that a GPU ran in one run, as a trace tells of it: everything but its times."""

    name: str
    kind: str = "kernel"  # ``kernel``, ``copy`` or ``fill``
    operator: str = ""  # the innermost operator around its launch, such as ``aten::add``; empty where there was none
    around: tuple[str, ...] = ()  # names of operators and ``record_function`` scopes around its launch, outermost first
    grid: tuple[int, ...] = ()  # blocks of a grid; ``block``: threads of a block; empty for what is no kernel
    block: tuple[int, ...] = ()
    stream: int | None = None


class KernelOrigin(Struct, frozen=True):
    """Where a kernel came from: the layer, as the backend names it, and the modules; empty where that is not known."""

    layer: str = ""
    modules: tuple[str, ...] = ()


class Origins(Struct, frozen=True):
    """One origin for each kernel of a run, in their order; and what is not known of them, and why."""

    of: tuple[KernelOrigin, ...]
    absent: dict[str, str] = {}


class KernelOrigins(ABC):
    """An ability of a runner: it can tell which layers and modules the kernels of a run came from."""

    def scopes(self) -> AbstractContextManager[Any]:
        """Entered around the traced runs: what has to be there for kernels to be told apart. Here: nothing."""
        return nullcontext()

    @abstractmethod
    def origins(self, launched: Sequence[Launched]) -> Origins:
        """Where the kernels of one run came from: all that the GPU ran in it, in the order of their launches.

        Asked after the traced runs, while the runner is entered, and once for runs that are alike.
        """


class Deployer(ABC):
    """An ability of a backend: what it prepares runs without this library too, from a file and by a short script."""

    script_packages: ClassVar[tuple[str, ...]] = ()  # distributions that every script may need

    def packages(self, case: Case) -> tuple[str, ...]:  # noqa: ARG002 - here all cases need the same
        """Distributions that the script may need; those of them that a record names are asked for, in its versions."""
        return self.script_packages

    @abstractmethod
    def deployed_as(self, case: Case) -> str:
        """The suffix of the file that a script for ``case`` loads; refuses a case for which there is none."""

    @abstractmethod
    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Writes that file, of ``model`` as ``case`` runs it, to the new ``path``."""

    @abstractmethod
    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        """A program in Python that loads ``file`` beside it, runs it on random inputs and prints the latency.

        Its function ``run`` takes the model's inputs in order and returns its outputs.
        """
