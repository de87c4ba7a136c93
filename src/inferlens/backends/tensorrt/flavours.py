"""The two flavours of TensorRT behind one seam: TensorRT itself, and TensorRT for RTX, which has the same interface.

What a flavour can do is asked of its module, not of its version number. No other file here imports either library.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from inferlens.backends.availability import imported
from inferlens.backends.base import Absence
from inferlens.errors import InferlensError, Unsupported
from inferlens.reasons import reason
from inferlens.record.record import Gpu


class Kind(NamedTuple):
    """A flavour's module, its name for people, and the extra that installs it."""

    module: str
    name: str
    extra: str


KINDS = {
    "trt": Kind("tensorrt", "TensorRT", "tensorrt"),
    "rtx": Kind("tensorrt_rtx", "TensorRT for RTX", "tensorrt-rtx"),
}
OTHERS = "a machine with a GPU, or --backend tensorrt:rtx"
SEVERITIES = ("internal error", "error", "warning")
# Logged after every other error on a machine without a driver; not a cause.
ECHO = re.compile(r"\[checkMacros\.cpp::catchCudaError::\d+\]")
# Plugins that were loaded, by flavour and path: once for the whole process. An empty path stands for TensorRT's own.
_loaded: set[tuple[str, Path]] = set()


@dataclass(frozen=True)
class Flavour:
    """One flavour of TensorRT as it is installed here: the module, its name, its name for people, its version."""

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
    """The flavour of a variant, its library imported."""
    found = find(variant)
    if isinstance(found, Absence):
        raise Unsupported(found.reason, hint=found.hint)
    return found


def find(variant: str) -> Flavour | Absence:
    """The flavour of a variant, or why it is not here, with the hint; never raises for a missing library."""
    kind = KINDS[variant]
    other: Any = sys.modules.get(kind.module)
    alias = Path(getattr(other, "__file__", None) or kind.module).parent.name == "tensorrt_rtx" != kind.module
    if alias:  # Torch-TensorRT for RTX puts TensorRT for RTX under the name ``tensorrt`` as well
        del sys.modules[kind.module]
    try:
        module, absence = imported(kind.module, kind.name, kind.extra)
    finally:
        if alias:
            sys.modules[kind.module] = other
    if absence:
        return Absence(variant, absence.reason, absence.hint)
    return Flavour(variant, kind.module, kind.name, str(module.__version__), module)


def current_gpu() -> Gpu | None:
    """The GPU in use, as PyTorch describes it; ``None`` where there is none, or no PyTorch to ask."""
    try:
        import torch
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's words about a driver that is missing
        if not torch.cuda.is_available():
            return None
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(name=str(gpu.name), memory=int(gpu.total_memory), compute_capability=f"{gpu.major}.{gpu.minor}")


def words(text: str) -> tuple[str, ...]:
    """The values of an option that takes several, joined by ``+``."""
    return tuple(word.strip() for word in text.split("+") if word.strip())


def targets(named: tuple[str, ...], flavour: Flavour, gpu: Gpu | None) -> tuple[str, ...]:
    """The named compute capabilities to build for, in ascending order; empty is the GPU here."""
    known = flavour.targets
    if not named and gpu is None:
        raise Unsupported(
            f"There is no GPU here that {flavour.name} could build an engine for.",
            hint=f"--option tensorrt.compute_capability={'+'.join(known)}, or some of these" if known else OTHERS,
        )
    if unknown := [name for name in named if name not in known]:
        raise Unsupported(
            f"{flavour.title} cannot build for compute capability {', '.join(unknown)}.",
            expected=f"some of {', '.join(known)}" if known else "the GPU of the machine",
            hint="leave the option out on a machine with such a GPU: it builds for the GPU there",
        )
    return tuple(name for name in known if name in named)


def log(flavour: Flavour) -> Any:
    """A new logger, whose ``errors`` are texts in order; it must outlive what it is given to."""
    return _log_class(flavour.module)()


@functools.lru_cache(maxsize=2)
def _log_class(module: Any) -> Any:
    """The class of a module's loggers, which must be a subclass of the module's own."""

    class _Log(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            """Called from TensorRT's threads, which an exception would take down; so nothing here raises."""
            try:
                number = int(severity)
                if number < len(SEVERITIES):
                    sys.stdout.write(f"{SEVERITIES[number]}: {message}\n")
                if number <= 1:
                    self.errors.append(message)
            except Exception:
                return

    return _Log


def condensed(errors: list[str], otherwise: str = "no reason given") -> str:
    """Return the reasons of the errors on one line, each once."""
    texts = ["\n".join(line for line in error.splitlines() if not ECHO.search(line)) for error in errors]
    return "; ".join(dict.fromkeys(reason(text) for text in texts if text.strip())) or otherwise


# Plugins: layers that libraries add to TensorRT, loaded by path and listed by name.


def plugin_files(libraries: str) -> tuple[Path, ...]:
    """The files of libraries of plugins, paths joined by ``+``; nothing is loaded."""
    paths = tuple(Path(name).resolve() for name in words(libraries))
    for path in paths:
        if not path.is_file():
            raise InferlensError(
                f"The plugin library {path} is not a file.", expected="a shared library, such as lib.so"
            )
    return paths


def load_plugins(flavour: Flavour, libraries: str) -> None:
    """Loads libraries of plugins, paths joined by ``+``, and TensorRT's own plugins; each once for the process."""
    for path in (Path(), *plugin_files(libraries)):
        if (flavour.key, path) not in _loaded:
            if path == Path():
                flavour.module.init_libnvinfer_plugins(log(flavour), "")
            else:
                _load_library(flavour, path)
            _loaded.add((flavour.key, path))


def registered_plugins(flavour: Flavour) -> list[str]:
    """Plugins that are registered, TensorRT's own among them, as ``name 1`` or ``namespace::name 1`` (the version)."""
    load_plugins(flavour, "")
    found = flavour.module.get_plugin_registry().all_creators
    names = {f"{getattr(item, 'plugin_namespace', '')}::{item.name} {item.plugin_version}" for item in found}
    return sorted(name.removeprefix("::") for name in names)


def _load_library(flavour: Flavour, path: Path) -> None:
    before = registered_plugins(flavour)
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # says why it cannot be loaded, which the registry does not
    except OSError as error:
        raise Unsupported(
            f"The plugin library {path} cannot be loaded: {reason(error)}.", hint=f"ldd {path} says what it lacks"
        ) from error
    if registered_plugins(flavour) == before:  # it registers its plugins when it is asked to
        flavour.module.get_plugin_registry().load_library(str(path))
