"""The two flavours of TensorRT, which have the same interface: TensorRT and TensorRT for RTX; and their plugins.

Abilities of a flavour are read from its module, not from its version. No other file here imports either library.
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

from inferlens.backends.availability import import_library, unsupported_on_error
from inferlens.backends.base import Absence
from inferlens.errors import InferlensError, Unsupported, one_line, reason
from inferlens.models.compiled import AGAIN, Provenance
from inferlens.record.record import Gpu


class FlavourKind(NamedTuple):
    """A flavour's module, its name for people, and the extra that installs it."""

    module: str
    name: str
    extra: str


FLAVOURS = {
    "trt": FlavourKind("tensorrt", "TensorRT", "tensorrt"),
    "rtx": FlavourKind("tensorrt_rtx", "TensorRT for RTX", "tensorrt-rtx"),
}
TRUST_HINT = "--trust, if you trust who built it"
GPU_HINT = "a machine with a GPU, or --backend tensorrt:rtx"
SEVERITIES = ("internal error", "error", "warning")
# Logged after every other error on a machine without a driver; not a cause.
ECHOED_ERROR = re.compile(r"\[checkMacros\.cpp::catchCudaError::\d+\]")
# PyTorch's types by the names of TensorRT's.
TYPES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT64": "int64", "INT32": "int32", "INT8": "int8",
    "UINT8": "uint8", "BOOL": "bool", "FP8": "float8_e4m3fn",
}  # fmt: skip
# Loaded plugins by flavour and path, for the whole process. An empty path is TensorRT's own.
_loaded_plugins: set[tuple[str, Path]] = set()


@dataclass(frozen=True)
class Flavour:
    """An installed flavour of TensorRT."""

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
        """Return whether the builder cannot lower precisions."""
        return self.jit or not hasattr(self.module.BuilderFlag, "FP16")  # TensorRT for RTX 1.4 has flags it ignores

    @property
    def jit(self) -> bool:
        """Return whether kernels are compiled when an engine runs, with a runtime cache instead of a timing cache."""
        return hasattr(getattr(self.module, "IRuntimeConfig", None), "create_runtime_cache")

    @property
    def targets(self) -> dict[str, Any]:
        """Compute capabilities (``8.9``) to build for without such a GPU."""
        capability_type = getattr(self.module, "ComputeCapability", None)
        if capability_type is None or not hasattr(self.module.IBuilderConfig, "set_compute_capability"):
            return {}
        names = {name: value for name, value in capability_type.__members__.items() if name.startswith("SM")}
        return {f"{name[2:-1]}.{name[-1]}": value for name, value in names.items()}


def load_flavour(variant: str) -> Flavour:
    """Return the flavour of a variant. Raise Unsupported if it is missing."""
    flavour = find_flavour(variant)
    if isinstance(flavour, Absence):
        raise Unsupported(flavour.reason, hint=flavour.hint)
    return flavour


def find_flavour(variant: str) -> Flavour | Absence:
    """Return the flavour of a variant, or its absence; never raises for a missing library."""
    kind = FLAVOURS[variant]
    loaded: Any = sys.modules.get(kind.module)
    is_alias = Path(getattr(loaded, "__file__", None) or kind.module).parent.name == "tensorrt_rtx" != kind.module
    if is_alias:  # Torch-TensorRT for RTX puts TensorRT for RTX under the name ``tensorrt`` as well
        del sys.modules[kind.module]
    try:
        module, absence = import_library(kind.module, kind.name, kind.extra)
    finally:
        if is_alias:
            sys.modules[kind.module] = loaded
    if absence:
        return Absence(variant, absence.reason, absence.hint)
    return Flavour(variant, kind.module, kind.name, str(module.__version__), module)


def current_gpu() -> Gpu | None:
    """Return the GPU in use, as PyTorch describes it, or ``None``."""
    try:
        import torch
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of a missing driver
        if not torch.cuda.is_available():
            return None
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(name=str(gpu.name), memory=int(gpu.total_memory), compute_capability=f"{gpu.major}.{gpu.minor}")


def check_gpu(path: Path, provenance: Provenance, gpu: Gpu, compatible: str) -> None:
    """Refuse a file for another GPU model; ``compatible`` is a value of the option ``hardware_compatible``."""
    same_capability = provenance.compute_capability == gpu.compute_capability
    fits = {
        "none": provenance.gpu == gpu.name and same_capability,
        "same_compute_capability": same_capability,
        "ampere_plus": int(gpu.compute_capability.partition(".")[0] or 0) >= 8,
    }
    if not fits.get(compatible, False):
        raise Unsupported(
            one_line(
                f"{path} was built on and for {provenance.gpu} (compute capability "
                f"{provenance.compute_capability}); here is {gpu.name} ({gpu.compute_capability})."
            ),
            hint=AGAIN,
        )


def option_words(text: str) -> tuple[str, ...]:
    """Return the values of an option that takes several, joined by ``+``."""
    return tuple(word.strip() for word in text.split("+") if word.strip())


def resolve_targets(requested: tuple[str, ...], flavour: Flavour, gpu: Gpu | None) -> tuple[str, ...]:
    """Return the requested compute capabilities in ascending order; empty is the GPU here."""
    available = flavour.targets
    if not requested and gpu is None:
        hint = f"--option tensorrt.compute_capability={'+'.join(available)}, or some of these"
        message = f"There is no GPU here that {flavour.name} could build an engine for."
        raise Unsupported(message, hint=hint if available else GPU_HINT)
    if unknown := [name for name in requested if name not in available]:
        raise Unsupported(
            f"{flavour.title} cannot build for compute capability {', '.join(unknown)}.",
            expected=f"some of {', '.join(available)}" if available else "the GPU of the machine",
            hint="leave the option out on a machine with such a GPU: it builds for the GPU there",
        )
    return tuple(name for name in available if name in requested)


def new_logger(flavour: Flavour) -> Any:
    """Return a new logger with a list of ``errors``; it must outlive the objects that it is given to."""
    return _log_class(flavour.module)()


@functools.lru_cache(maxsize=2)
def _log_class(module: Any) -> Any:
    """Return the class of a module's loggers, which must be a subclass of the module's own."""

    class _Log(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            """Log a message from a thread of TensorRT, and raise nothing: an exception would end the thread."""
            try:
                number = int(severity)
                if number < len(SEVERITIES):
                    sys.stdout.write(f"{SEVERITIES[number]}: {message}\n")
                if number <= 1:
                    self.errors.append(message)
            except Exception:
                return

    return _Log


def error_summary(errors: list[str], otherwise: str = "no reason given") -> str:
    """Return the distinct reasons of the errors on one line."""
    texts = ["\n".join(line for line in error.splitlines() if not ECHOED_ERROR.search(line)) for error in errors]
    return "; ".join(dict.fromkeys(reason(text) for text in texts if text.strip())) or otherwise


# Plugins: layers that libraries add to TensorRT, loaded by path and listed by name.


def plugin_files(libraries: str) -> tuple[Path, ...]:
    """Return the files of plugin libraries, paths joined by ``+``, without loading them."""
    paths = tuple(Path(name).resolve() for name in option_words(libraries))
    for path in paths:
        if not path.is_file():
            message = f"The plugin library {path} is not a file."
            raise InferlensError(message, expected="a shared library, such as lib.so")
    return paths


def load_plugins(flavour: Flavour, libraries: str) -> None:
    """Load plugin libraries, paths joined by ``+``, and TensorRT's own plugins, once per process."""
    for path in (Path(), *plugin_files(libraries)):
        if (flavour.key, path) in _loaded_plugins:
            continue
        if path == Path():
            flavour.module.init_libnvinfer_plugins(new_logger(flavour), "")
        else:
            plugins_before = registered_plugins(flavour)
            # The registry would not report the reason of a failure.
            with unsupported_on_error(f"The plugin library {path} cannot be loaded", f"ldd {path} says what it lacks"):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            if registered_plugins(flavour) == plugins_before:  # the library does not register plugins by itself
                flavour.module.get_plugin_registry().load_library(str(path))
        _loaded_plugins.add((flavour.key, path))


def registered_plugins(flavour: Flavour) -> list[str]:
    """Return the registered plugins, as ``name 1`` or ``namespace::name 1`` (the version)."""
    load_plugins(flavour, "")
    creators = flavour.module.get_plugin_registry().all_creators
    names = set()
    for creator in creators:
        names.add(f"{getattr(creator, 'plugin_namespace', '')}::{creator.name} {creator.plugin_version}")
    return sorted(name.removeprefix("::") for name in names)
