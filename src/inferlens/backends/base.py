"""The seam between a way of running models and everything else.

A :class:`Backend` says what it can do (:class:`Capabilities`) and prepares a model for a case; the :class:`Runner` it
returns is then entered, fed, timed and left. Nothing outside a backend asks for its name: abilities are asked for.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inferlens.case import Case
from inferlens.clocks import Clock, HostClock
from inferlens.errors import InferlensError, Unsupported, suggestion
from inferlens.models.model import Array, Format, Model
from inferlens.record import Artefact, Phase, PhaseName, Warning

Inputs = dict[str, Array]
Outputs = list[NDArray[np.generic]]


class Support(Struct, frozen=True):
    """A variant works on a device in these precisions. The first on a device is the default variant there."""

    variant: str
    device: str
    precisions: tuple[str, ...]


class Absence(Struct, frozen=True):
    """Why a variant (or, if empty, the whole backend) is not available here, and the command that cures it.

    If ``device`` is named, that holds for this device only.
    """

    variant: str
    reason: str
    cure: str = ""
    device: str = ""


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a backend can do on this machine.

    Attributes:
        formats: formats of models it takes.
        supports: what works here; empty if nothing does.
        absent: what does not, with reason and cure.
        limits: why some precision is missing on a device, by ``variant/device/precision`` or ``device/precision``.
        libraries: versions of the libraries it uses.
        dynamic_shapes: whether one prepared model runs at several input shapes.
    """

    formats: tuple[Format, ...]
    supports: tuple[Support, ...] = ()
    absent: tuple[Absence, ...] = ()
    limits: dict[str, str] = {}
    libraries: dict[str, str] = {}
    dynamic_shapes: bool = False

    @property
    def available(self) -> bool:
        """Whether anything works."""
        return bool(self.supports)

    def default_variant(self, device: str) -> str | None:
        """The first variant that works on ``device``; ``None`` if none does."""
        return next((support.variant for support in self.supports if support.device == device), None)

    def refusal(self, case: Case, format: Format) -> Unsupported | None:
        """Why ``case`` cannot run here; ``None`` if, as far as can be told beforehand, it can."""
        for absence in self.absent:
            if absence.variant in ("", case.variant) and absence.device in ("", case.device):
                return Unsupported(absence.reason, cure=absence.cure)
        here = [support for support in self.supports if support.variant == case.variant]
        on_device = [support for support in here if support.device == case.device]
        if not on_device:
            devices = ", ".join(support.device for support in here) or "no device of this machine"
            return Unsupported(f"{case.backend_label} does not run on {case.device}, only on {devices}.")
        if case.precision not in on_device[0].precisions:
            keys = (f"{case.variant}/{case.device}/{case.precision}", f"{case.device}/{case.precision}")
            why = next((self.limits[key] for key in keys if key in self.limits), "")
            return Unsupported(
                f"{case.backend_label} does not run {case.precision} on {case.device}{f': {why}' if why else ''}.",
                cure=f"--precision {','.join(on_device[0].precisions)}",
            )
        if format not in self.formats:
            return Unsupported(
                f"{case.backend_label} cannot run a model of format '{format}'.",
                expected=f"format {', '.join(self.formats)}",
            )
        return None


class Preparation:
    """What a backend may use and say while it prepares a model: folders, phases, facts, artefacts, warnings."""

    def __init__(
        self,
        folder: Path,
        cache: Path,
        began: Callable[[PhaseName], None] = lambda _: None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            folder: the case's own folder; what is left here is kept beside the record.
            cache: for artefacts worth keeping between cases; name them by their content.
            began: told the name of each phase as it begins.
            now: the clock of the phases, in seconds.
        """
        self.folder = folder
        self.cache = cache
        self.phases: list[Phase] = []
        self.facts: dict[str, Any] = {}
        self.artefacts: list[Artefact] = []
        self.warnings: list[Warning] = []
        self._began = began
        self._now = now

    @contextmanager
    def phase(self, name: PhaseName, note: str = "") -> Iterator[None]:
        """Times what happens inside as one phase; a phase that fails is kept too."""
        self._began(name)
        begin = self._now()
        try:
            yield
        finally:
            self.phases.append(Phase(name, self._now() - begin, note))

    def keep(self, path: Path, kind: str) -> None:
        """Lists a file under ``folder`` as an artefact of the record."""
        self.artefacts.append(Artefact(str(path.relative_to(self.folder)), kind, path.stat().st_size))

    def warn(self, code: str, message: str, advice: str = "") -> None:
        """Adds a warning to the record, once for each code and message."""
        warning = Warning(code, message, advice)
        if warning not in self.warnings:
            self.warnings.append(warning)


class Runner(ABC):
    """A model made ready by a backend. The device is untouched before entry and released on exit.

    ``place`` and ``collect`` move data and are never timed; ``infer`` is.
    """

    clock: Clock = HostClock()

    @abstractmethod
    def __enter__(self) -> Runner:
        """Takes the device: moves, builds, compiles."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases the device."""

    @abstractmethod
    def place(self, inputs: Inputs) -> Any:
        """Inputs in the runner's own form, on its device and in its precision: what ``infer`` takes."""

    @abstractmethod
    def infer(self, feed: Any) -> Any:
        """One call. Enqueues only, where the device has a queue; its outputs stay on the device."""

    def synchronize(self) -> None:  # noqa: B027 - right for devices without a queue
        """Returns when all enqueued work is done."""

    @abstractmethod
    def collect(self, outputs: Any) -> Outputs:
        """The tensors in ``outputs``, any nesting flattened in order, as arrays on the host; floats as float32."""

    def device_memory(self) -> tuple[int, str] | None:
        """Peak device memory by the library's own account and what that counts; ``None`` if it does not tell."""
        return None


class Backend(ABC):
    """A way of running models. Subclasses are found through the entry-point group ``inferlens.backends``."""

    name: ClassVar[str]
    summary: ClassVar[str]
    variants: ClassVar[tuple[str, ...]] = ("",)
    options: ClassVar[type[Struct]]

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What works on this machine. May import the backend's library; never raises for a missing one."""

    @abstractmethod
    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        """Makes ``model`` ready for ``case``; host work only (export, for example), the device is left alone.

        Raises:
            Unsupported: if this model cannot be run this way.
        """

    def tolerance(self, case: Case) -> float:
        """Largest relative L2 error against the fp32 reference that counts as right for this case."""
        return TOLERANCES[case.precision]

    @classmethod
    def parse_options(cls, case: Case) -> Any:
        """``case.options`` as ``cls.options``, texts converted to the types it names.

        Raises:
            InferlensError: for an unknown option (near misses are suggested) or a value of the wrong type.
        """
        known = {field.name for field in msgspec.structs.fields(cls.options)}
        for name in case.options:
            if name not in known:
                raise InferlensError(
                    f"Backend '{cls.name}' has no option '{name}'.",
                    expected=f"one of {', '.join(sorted(known)) or 'none'}",
                    cure=suggestion(name, known) or f"inferlens backends {cls.name}",
                )
        try:
            return msgspec.convert(case.options, cls.options, strict=False)
        except msgspec.ValidationError as error:
            raise InferlensError(
                f"An option of backend '{cls.name}' has a wrong value: {error}.",
                cure=f"inferlens backends {cls.name}",
            ) from error


# Relative L2 error against fp32 that counts as right. Unit roundoffs: 6e-8 (fp32), 5e-4 (fp16, TF32), 4e-3 (bf16);
# the factor above them leaves room for the depth of the network and another order of summation.
TOLERANCES = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2, "bf16": 1e-1}


def split_label(text: str, known: Sequence[str]) -> tuple[str, str | None]:
    """``("onnxruntime", "cpu")`` from ``onnxruntime:cpu``; the variant is ``None`` where none is named.

    Raises:
        InferlensError: if the backend is not among ``known``.
    """
    name, colon, variant = text.partition(":")
    if name not in known:
        raise InferlensError(
            f"There is no backend '{name}'.",
            expected=f"one of {', '.join(known)}",
            cure=suggestion(name, known) or "inferlens doctor",
        )
    return name, variant if colon else None
