"""Availability of libraries and devices, as answers for ``Capabilities``, and PyTorch's settings.

A library that is absent or broken, and a machine without a GPU, are an ``Absence`` with a hint, never an exception.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct

from inferlens.backends.base import ON_CUDA, Absence, Preparation
from inferlens.errors import InferlensError, LateModule, MissingLibrary, Unsupported, is_short_of_memory, reason
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case

torch: Any = LateModule("torch")

NO_GPU = Absence("", "no NVIDIA driver shows a GPU", "the NVIDIA driver; nvidia-smi has to list the GPU", device="cuda")


def import_library(library: str, title: str, extra: str) -> tuple[Any, Absence | None]:
    """Return the imported library, or ``None`` and the absence; ``extra`` is our extra that installs it."""
    try:
        return importlib.import_module(library), None
    except Exception as error:  # loading a library for another system can raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == library:
            missing = MissingLibrary(title, extra=extra)
            return None, Absence("", missing.what, missing.hint)
        hint = f"pip install --force-reinstall {library}"
        return None, Absence("", f"{title} cannot be loaded: {reason(error)}", hint)


def is_installed(*libraries: str) -> bool:
    """Return whether all these libraries are installed, without importing them."""
    return all(importlib.util.find_spec(library) is not None for library in libraries)


@cache
def has_gpu() -> bool:
    """Return whether NVIDIA's driver shows a GPU. Return false if the library or the driver is missing or broken."""
    with contextlib.suppress(Exception), open_nvml() as nvml:
        return bool(nvml.nvmlDeviceGetCount())
    return False


@contextmanager
def open_nvml() -> Iterator[Any]:
    """Yield NVML. Errors of the library and the driver are passed on."""
    import pynvml as nvml

    nvml.nvmlInit()
    try:
        yield nvml
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def cuda_absence(torch: Any) -> Absence | None:
    """Return why PyTorch cannot use a GPU, or ``None``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return None
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return Absence("", "this PyTorch build is CPU-only", "install a PyTorch build with CUDA", device="cuda")
    if not has_gpu():
        return NO_GPU
    why = "no NVIDIA GPU is visible to PyTorch"
    if caught:  # PyTorch's reason, such as an old driver
        why += f": {reason(str(caught[0].message))}"
    return Absence("", why, "check nvidia-smi, the driver and CUDA_VISIBLE_DEVICES", device="cuda")


def cuda_precisions(torch: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return PyTorch's precisions on this GPU, and ``Capabilities.limits`` for the others."""
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return PRECISIONS, {}
    return ("fp32", "fp16"), {"cuda/bf16": "this GPU has no bf16 arithmetic, which came with compute capability 8.0"}


def cuda_quantized(torch: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the precisions that this GPU can be quantized to, and ``Capabilities.limits`` for the others."""
    capability = torch.cuda.get_device_capability()
    precisions, limits = [], {}
    for name in QUANTIZED:
        needed = {"fp8": (8, 9), "int8": (8, 0)}[name]
        if capability >= needed:
            precisions.append(name)
        else:
            has, needs = (".".join(map(str, numbers)) for numbers in (capability, needed))
            limits[f"cuda/{name}"] = f"this GPU has compute capability {has}, and {name} needs {needs}"
    return tuple(precisions), limits


class TorchGpu(NamedTuple):
    """The GPU as PyTorch sees it; without a GPU there are no precisions and no limits."""

    missing: Absence | None  # the absence of PyTorch itself
    absence: Absence | None  # why PyTorch cannot use a GPU; ``missing`` if PyTorch is not there
    versions: dict[str, str]
    precisions: tuple[str, ...] = ()
    limits: dict[str, str] = {}
    quantized: tuple[str, ...] = ()  # the precisions to which models can be quantized
    quantized_limits: dict[str, str] = {}


def torch_gpu() -> TorchGpu:
    """Return whether PyTorch can use a GPU, and what the GPU can compute."""
    torch, missing = import_library("torch", "PyTorch", "torch")
    if missing:
        return TorchGpu(missing, missing, {})
    if absence := cuda_absence(torch):
        return TorchGpu(None, absence, torch_versions(torch))
    return TorchGpu(None, None, torch_versions(torch), *cuda_precisions(torch), *cuda_quantized(torch))


def warn_no_effect(preparation: Preparation, option: str, device: str) -> None:
    """Warn that an option of the case has no effect on this device."""
    preparation.warn("no-effect", f"The option {option} does nothing on {device}.", "Leave it out there.")


def check_cuda_options(options: Struct, case: Case, preparation: Preparation) -> None:
    """Warn of CUDA options on another device, and refuse a CUDA graph there."""
    if case.device == "cuda":
        return
    for name in changed_options(options, ON_CUDA):
        if name == "cuda_graph":
            raise Unsupported(f"There are no CUDA graphs on {case.device}.", hint="a backend on CUDA, or no cuda_graph")
        warn_no_effect(preparation, name, case.device)


def warn_ignored_options(options: Struct, names: Iterable[str], why: str, preparation: Preparation) -> None:
    """Warn of every option in ``names`` that is not at its default, with the reason why it is ignored."""
    for name in changed_options(options, names):
        preparation.warn("no-effect", f"{name} does nothing: {why}", "Leave it out there.")


def changed_options(options: Struct, names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that are options which are not at their defaults."""
    default = type(options)()
    return [name for name in names if getattr(options, name, None) != getattr(default, name, None)]


def torch_versions(torch: Any) -> dict[str, str]:
    """Return the versions of PyTorch and, if it has them, of CUDA and cuDNN."""
    versions = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        versions["CUDA"] = str(torch.version.cuda)
        if torch.backends.cudnn.is_available():
            number = torch.backends.cudnn.version()  # 91900 is 9.19.0 since cuDNN 9
            versions["cuDNN"] = f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number else ""
    return versions


@contextmanager
def torch_settings(*, threads: int | None, tf32: bool, cudnn_benchmark: bool = False) -> Iterator[None]:
    """Set CPU threads (``None`` keeps them), TF32 in matrix products and cuDNN, and cuDNN's benchmark mode."""
    before = torch.get_num_threads(), _allow_tf32(), torch.backends.cudnn.benchmark
    if threads is not None:
        torch.set_num_threads(threads)
    _allow_tf32((tf32, tf32))
    torch.backends.cudnn.benchmark = cudnn_benchmark
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _allow_tf32(before[1])
        torch.backends.cudnn.benchmark = before[2]


def _allow_tf32(on: tuple[bool, bool] | None = None) -> tuple[bool, bool]:
    """Return whether matrix products and cuDNN may use TF32, after setting both if ``on`` is given.

    It does not use the newer attributes ``fp32_precision``: once they are set, reading the older ones raises, and
    PyTorch's compiler reads the older ones.
    """
    from torch import backends

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*TF32", category=UserWarning)
        if on is not None:
            backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = on
        return backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32


@contextmanager
def ignore_deprecations() -> Iterator[None]:
    """Ignore deprecation warnings, because backends handle the differences between versions."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield


@contextmanager
def unsupported_on_error(message: str, hint: str = "") -> Iterator[None]:
    """Turn an exception of a library, which may be of any type, into Unsupported, except for a lack of memory."""
    try:
        yield
    except InferlensError:
        raise
    except Exception as error:
        if is_short_of_memory(error):
            raise
        raise Unsupported(f"{message}: {reason(error)}", hint=hint) from error
