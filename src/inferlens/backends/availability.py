"""Whether a library and a device are there, as answers for ``Capabilities``; and how PyTorch is set.

Nothing here raises for something missing: a library that is absent or broken, and a machine without a GPU, are an
``Absence`` with its hint.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from msgspec import Struct

from inferlens.backends.base import ON_CUDA, Absence, Preparation
from inferlens.errors import InferlensError, MissingLibrary, Unsupported, is_short_of_memory, reason
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case

NO_GPU = Absence("", "no NVIDIA driver shows a GPU", "the NVIDIA driver; nvidia-smi has to list the GPU", device="cuda")


def imported(library: str, title: str, extra: str) -> tuple[Any, Absence | None]:
    """The imported library, or ``None`` and why it cannot be imported; ``extra`` is ours that installs it."""
    try:
        return importlib.import_module(library), None
    except Exception as error:  # a library that was built for another system can raise anything when it is loaded
        if isinstance(error, ModuleNotFoundError) and error.name == library:
            missing = MissingLibrary(title, extra=extra)
            return None, Absence("", missing.what, missing.hint)
        hint = f"pip install --force-reinstall {library}"
        return None, Absence("", f"{title} cannot be loaded: {reason(error)}", hint)


def found(*libraries: str) -> bool:
    """Whether all these libraries are installed; asks without importing them."""
    return all(importlib.util.find_spec(library) is not None for library in libraries)


@cache
def gpu_here() -> bool:
    """Whether NVIDIA's driver shows a GPU: without one nothing that needs it is worth installing."""
    # A missing library, a missing driver and a broken one mean the same here.
    with contextlib.suppress(Exception), nvml_open() as nvml:
        return bool(nvml.nvmlDeviceGetCount())
    return False


@contextmanager
def nvml_open(nvml: Any = None) -> Iterator[Any]:
    """Yield NVML, or what stands in for nvidia-ml-py. Raises whatever the library and the driver come up with."""
    if nvml is None:
        import pynvml

        nvml = pynvml
    nvml.nvmlInit()
    try:
        yield nvml
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def cuda_absence(torch: Any) -> Absence | None:
    """Why PyTorch cannot use a GPU; ``None`` if it can."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return None
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return Absence("", "this PyTorch build is CPU-only", "install a PyTorch build with CUDA", device="cuda")
    if not gpu_here():
        return NO_GPU
    why = "no NVIDIA GPU is visible to PyTorch"
    if heard:  # PyTorch's own words, such as that the driver is too old
        why += f": {reason(str(heard[0].message))}"
    return Absence("", why, "check nvidia-smi, the driver and CUDA_VISIBLE_DEVICES", device="cuda")


def cuda_precisions(torch: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """Precisions of PyTorch on this GPU, and why others are missing, as ``Capabilities.limits`` has it."""
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return PRECISIONS, {}
    return ("fp32", "fp16"), {"cuda/bf16": "this GPU has no bf16 arithmetic, which came with compute capability 8.0"}


def cuda_quantized(torch: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """Precisions that models can be quantized to on this GPU, and why not to others, as ``limits`` has it."""
    capability = torch.cuda.get_device_capability()
    least = {"fp8": (8, 9), "int8": (8, 0)}
    lacking = {
        f"cuda/{name}": f"this GPU has compute capability {'.'.join(map(str, capability))}, and {name} needs "
        f"{'.'.join(map(str, least[name]))}"
        for name in QUANTIZED
        if capability < least[name]
    }
    return tuple(name for name in QUANTIZED if capability >= least[name]), lacking


def warn_no_effect(preparation: Preparation, option: str, device: str) -> None:
    """Says in the record that an option was asked for that does nothing on this device."""
    preparation.warn("no-effect", f"The option {option} does nothing on {device}.", "Leave it out there.")


def check_cuda_options(options: Struct, case: Case, preparation: Preparation) -> None:
    """Says of options that do nothing on the case's device that they were asked for; refuses a CUDA graph there."""
    for name in ON_CUDA:
        if case.device == "cuda" or name not in changed(options):
            continue
        if name == "cuda_graph":
            raise Unsupported(f"There are no CUDA graphs on {case.device}.", hint="a backend on CUDA, or no cuda_graph")
        warn_no_effect(preparation, name, case.device)


def warn_unheeded(options: Struct, names: Iterable[str], why: str, preparation: Preparation) -> None:
    """Says of every option of ``names`` that was asked for at another value than its default that it does nothing."""
    for name in names:
        if name in changed(options):
            preparation.warn("no-effect", f"{name} does nothing: {why}", "Leave it out there.")


def changed(options: Struct) -> set[str]:
    """The options that are not at their defaults."""
    default = type(options)()
    return {name for name in options.__struct_fields__ if getattr(options, name) != getattr(default, name)}


def torch_versions(torch: Any) -> dict[str, str]:
    """Versions of PyTorch and, where they are in it, CUDA and cuDNN."""
    versions = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        versions["CUDA"] = str(torch.version.cuda)
        if torch.backends.cudnn.is_available():
            number = torch.backends.cudnn.version()  # 91900 is 9.19.0 since cuDNN 9
            versions["cuDNN"] = f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number else ""
    return versions


@contextmanager
def torch_settings(*, threads: int | None, tf32: bool, cudnn_benchmark: bool = False) -> Iterator[None]:
    """Sets CPU threads (``None`` leaves them), TF32 in matrix products and cuDNN alike, and cuDNN's benchmark mode."""
    import torch

    before = torch.get_num_threads(), _tf32(), torch.backends.cudnn.benchmark
    if threads is not None:
        torch.set_num_threads(threads)
    _tf32((tf32, tf32))
    torch.backends.cudnn.benchmark = cudnn_benchmark
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _tf32(before[1])
        torch.backends.cudnn.benchmark = before[2]


def _tf32(on: tuple[bool, bool] | None = None) -> tuple[bool, bool]:
    """Whether matrix products and cuDNN may use TF32; sets both if asked to.

    By these attributes, not the ``fp32_precision`` ones that came beside them: after the new ones were set, reading the
    old ones raises, and PyTorch's own compiler reads the old ones.
    """
    from torch import backends

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*TF32", category=UserWarning)
        if on is not None:
            backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = on
        return backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32


@contextmanager
def quiet() -> Iterator[None]:
    """Without notices of what is deprecated: it was asked for, and how versions differ is the backends' business."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield


@contextmanager
def refused(what: str, hint: str = "") -> Iterator[None]:
    """Turns whatever a library raises for a model that it cannot take into the reason of a row; lack of memory is none.

    Exporters, compilers and converters raise nearly every type there is.
    """
    try:
        yield
    except InferlensError:
        raise
    except Exception as error:
        if is_short_of_memory(error):
            raise
        raise Unsupported(f"{what}: {reason(error)}", hint=hint) from error
