"""Torch-TensorRT as it is installed here: its versions, its flavour of TensorRT, and what this build can do.

Torch-TensorRT cannot be imported where there is no GPU: it asks CUDA for one on the way. So nothing imports it before
it is known that there is one. To partition a model no GPU is needed; :func:`gpu_or_assumed` then answers for it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from inferlens.backends.availability import cuda_absence, found, imported
from inferlens.backends.base import Absence
from inferlens.backends.tensorrt.flavours import KINDS
from inferlens.errors import InferlensError, MissingLibrary

EXTRA = "tensorrt-rtx"
TITLE = "Torch-TensorRT"
FLAVOURS = {kind.module: kind.name for kind in KINDS.values()}
ASSUMED = (8, 9)  # compute capability; converters ask for it only to tell Jetson boards


@dataclass(frozen=True)
class Library:
    """The imported library.

    Attributes:
        module: ``torch_tensorrt``.
        package, flavour: the TensorRT it was built for, such as ``tensorrt_rtx``, and its name for people.
        versions: of both, by module name.
        rtx: whether kernels are compiled just in time: then the builder times no tactics.
        script, native: whether this build has the TorchScript front end, and the runtime in C++.
        settings: names that this version honours; a parameter alone may be there for old programs' sake.
        parameters: names of the parameters that the Dynamo front end takes.
    """

    module: Any
    package: str
    flavour: str
    versions: dict[str, str]
    rtx: bool
    script: bool
    native: bool
    settings: frozenset[str]
    parameters: frozenset[str]


def find() -> tuple[Library | None, Absence | None]:
    """The library, or why it cannot be used here, with the hint. Imports it only where there is a GPU."""
    torch, absence = imported("torch", "PyTorch", "torch")
    if torch is not None and found("torch_tensorrt"):
        absence = cuda_absence(torch)
    if absence is not None:
        return None, absence
    try:
        return load(), None
    except InferlensError as error:
        return None, Absence("", error.what, error.hint)


def load() -> Library:
    """The library, imported; a GPU is there or assumed."""
    if not found("torch_tensorrt"):
        raise MissingLibrary(TITLE, extra=EXTRA)
    with quiet():
        module, broken = imported("torch_tensorrt", TITLE, EXTRA)
    if module is None:
        raise InferlensError(broken.reason if broken else "", hint=broken.hint if broken else "")
    package = str(getattr(module, "tensorrt_package_name", "")) or "tensorrt"
    version = str(importlib.import_module(package).__version__)
    features, dynamo = module.ENABLED_FEATURES, module.dynamo
    return Library(
        module,
        package,
        flavour=FLAVOURS.get(package, package),
        versions={"torch_tensorrt": str(module.__version__), package: version},
        rtx=bool(getattr(features, "tensorrt_rtx", False)),
        script=bool(features.torchscript_frontend),
        native=bool(features.torch_tensorrt_runtime),
        settings=frozenset(field.name for field in dataclasses.fields(dynamo.CompilationSettings)),
        parameters=frozenset(inspect.signature(dynamo.compile).parameters),
    )


@contextmanager
def replaced(owner: Any, **new: Any) -> Iterator[None]:
    """While it lasts, attributes of a module or class of the library are others."""
    own = {name: getattr(owner, name) for name in new}
    try:
        for name, value in new.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in own.items():
            setattr(owner, name, value)


@contextmanager
def quiet() -> Iterator[None]:
    """Without notices of what is deprecated: what the versions differ in is this package's business."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield


@contextmanager
def gpu_or_assumed() -> Iterator[str]:
    """Where there is a GPU, nothing, and an empty text; else what is asked of CUDA is answered for an assumed one.

    Yields the compute capability that was assumed, such as ``8.9``. Only lowering and partitioning work then. Not for a
    process that does anything else afterwards: the library stays imported.
    """
    import torch

    if torch.cuda.is_available():
        yield ""
        return
    memory, (major, minor) = 16 * 2**30, ASSUMED
    device = SimpleNamespace(major=major, minor=minor, name="assumed", total_memory=memory, multi_processor_count=1)
    answers: dict[str, Any] = {
        "get_device_capability": ASSUMED, "current_device": 0, "get_device_properties": device,
        "get_device_name": device.name, "mem_get_info": (memory, memory),
    }  # fmt: skip
    with ExitStack() as put_back:
        functions = {name: lambda *_, answer=answer: answer for name, answer in answers.items()}
        put_back.enter_context(replaced(torch.cuda, **functions))
        if found("torch_tensorrt"):
            compiler = importlib.import_module("torch_tensorrt.dynamo._compiler")
            here = torch.device("cpu")  # where what PyTorch runs is moved to
            put_back.enter_context(replaced(compiler, to_torch_device=lambda _: here))
        # The CPU's convolutions are chosen by the batch, so a range of sizes would not go beyond 15 (or not below 16).
        put_back.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        put_back.callback(torch._C._set_nnpack_enabled, torch._C._get_nnpack_enabled())
        torch._C._set_mkldnn_enabled(False)
        torch._C._set_nnpack_enabled(False)
        yield f"{major}.{minor}"
