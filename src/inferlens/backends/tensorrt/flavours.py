"""The two flavours of TensorRT behind one seam: TensorRT itself, and TensorRT for RTX, which has the same interface.

What a flavour can do is asked of its module (``hasattr``), not of its version number. Every other file of this package
takes a :class:`Flavour` and never imports either library.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from inferlens.backends.availability import imported
from inferlens.backends.base import Absence
from inferlens.errors import InferlensError, MissingLibrary


class _Kind(NamedTuple):
    module: str
    name: str
    extra: str


KINDS = {
    "trt": _Kind("tensorrt", "TensorRT", "tensorrt"),
    "rtx": _Kind("tensorrt_rtx", "TensorRT for RTX", "tensorrt-rtx"),
}


@dataclass(frozen=True)
class Flavour:
    """One flavour of TensorRT as it is installed here.

    Attributes:
        variant: the backend's variant, ``trt`` or ``rtx``.
        key: the module's name, ``tensorrt`` or ``tensorrt_rtx``; files and records carry it.
        name: for people, such as ``TensorRT for RTX``.
        version: such as ``1.6.1.120``.
        module: the imported library.
    """

    variant: str
    key: str
    name: str
    version: str
    module: Any

    @property
    def title(self) -> str:
        """Name and version, such as ``TensorRT for RTX 1.6.1.120``."""
        return f"{self.name} {self.version}"

    @property
    def strongly_typed_only(self) -> bool:
        """Whether precisions are the network's alone, with no flags that let the builder lower them."""
        return self.jit or not hasattr(self.module.BuilderFlag, "FP16")  # TensorRT for RTX 1.4 has flags it ignores

    @property
    def jit(self) -> bool:
        """Whether kernels are compiled when an engine runs: then there is a runtime cache and no timing cache."""
        return hasattr(getattr(self.module, "IRuntimeConfig", None), "create_runtime_cache")

    @property
    def targets(self) -> dict[str, Any]:
        """Compute capabilities (``8.9``) that engines can be built for without such a GPU; empty if none."""
        known = getattr(self.module, "ComputeCapability", None)
        if known is None or not hasattr(self.module.IBuilderConfig, "set_compute_capability"):
            return {}
        names = {name: value for name, value in known.__members__.items() if name.startswith("SM")}
        return {f"{name[2:-1]}.{name[-1]}": value for name, value in names.items()}


def flavour(variant: str) -> Flavour:
    """The flavour of a variant, its library imported.

    Raises:
        MissingLibrary: if it is not installed.
        InferlensError: if it cannot be loaded, or the variant is unknown.
    """
    if variant not in KINDS:
        raise InferlensError(f"There is no flavour '{variant}' of TensorRT.", expected=f"one of {', '.join(KINDS)}")
    found, absence = find(variant)
    if found is not None:
        return found
    if absence is not None and not absence.reason.endswith("is not installed."):
        raise InferlensError(absence.reason, hint=absence.hint)
    raise MissingLibrary(KINDS[variant].name, extra=KINDS[variant].extra)


def find(variant: str) -> tuple[Flavour | None, Absence | None]:
    """The flavour of a variant, or why it is not here, with the hint; never raises for a missing library."""
    kind = KINDS[variant]
    module, absence = _imported(kind)
    if absence is not None or module is None:
        return None, Absence(variant, absence.reason if absence else "", absence.hint if absence else "")
    return Flavour(variant, kind.module, kind.name, str(module.__version__), module), None


def _imported(kind: _Kind) -> tuple[ModuleType | None, Absence | None]:
    """The library itself: Torch-TensorRT for RTX puts TensorRT for RTX under the name ``tensorrt`` as well."""
    alias = sys.modules.get(kind.module)
    if alias is None or not is_alias(kind.module, alias):
        return imported(kind.module, kind.name, kind.extra)
    del sys.modules[kind.module]
    importlib.invalidate_caches()
    try:
        return imported(kind.module, kind.name, kind.extra)
    finally:
        sys.modules[kind.module] = alias


def is_alias(name: str, module: ModuleType) -> bool:
    """Whether a module that goes by the name ``tensorrt`` is TensorRT for RTX in truth."""
    file = getattr(module, "__file__", None)
    return name == "tensorrt" and file is not None and Path(file).parent.name == "tensorrt_rtx"
