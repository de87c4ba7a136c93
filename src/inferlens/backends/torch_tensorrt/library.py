"""The installed Torch-TensorRT: its versions, its flavour of TensorRT, the abilities of this build, and its options.

It cannot be imported without a GPU, because it asks CUDA for one: see :func:`assume_gpu`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from inferlens.backends.availability import (
    changed_options,
    cuda_absence,
    has_gpu,
    ignore_deprecations,
    import_library,
    is_installed,
    warn_ignored_options,
)
from inferlens.backends.base import Absence, Preparation
from inferlens.backends.pytorch.runner import precision_dtype
from inferlens.backends.tensorrt.library import FLAVOURS, option_words
from inferlens.errors import InferlensError, LateModule, MissingLibrary, Unsupported, suggestion
from inferlens.spec.case import Case

torch: Any = LateModule("torch")

EXTRA = "tensorrt-rtx"
TITLE = "Torch-TensorRT"
FLAVOUR_TITLES = {kind.module: kind.name for kind in FLAVOURS.values()}
DEFAULT_LEVEL = 3  # TensorRT's default
# Options that the TorchScript front end lacks.
NOT_IN_SCRIPT = (
    "optimization_level", "autocast", "version_compatible", "hardware_compatible", "use_python_runtime",
)  # fmt: skip
DYNAMO = "--backend torch_tensorrt:dynamo"  # a hint
# Options for the choice of tactics, which TensorRT for RTX ignores: see the backend ``tensorrt``.
TACTIC_OPTIONS = ("optimization_level", "num_avg_timing_iters", "sparse_weights")
NOT_IN_RTX = {"hardware_compatible": "levels of hardware compatibility", "version_compatible": "lean runtime"}
ASSUMED_CAPABILITY = (8, 9)  # compute capability, which converters only use to detect Jetson boards


@dataclass(frozen=True)
class Library:
    """The imported library."""

    module: Any  # ``torch_tensorrt``
    package: str  # the TensorRT it was built for, such as ``tensorrt_rtx``
    flavour: str
    versions: dict[str, str]
    rtx: bool  # whether kernels are compiled at run time, without timed tactics
    script: bool  # whether it has the TorchScript front end; ``native``: the runtime in C++
    native: bool
    settings: frozenset[str]  # settings that have an effect; a parameter may exist only for old programs
    parameters: frozenset[str]  # parameters of the Dynamo front end


def find_library() -> Library | Absence:
    """Return the library or its absence. Imports it only where there is a GPU."""
    torch, absence = import_library("torch", "PyTorch", "torch")
    if torch is not None and (is_installed("torch_tensorrt") or not has_gpu()):
        absence = cuda_absence(torch)
    if absence:
        return absence
    try:
        return load_library()
    except InferlensError as error:
        return Absence("", error.what, error.hint)


def load_library() -> Library:
    """Import the library; a GPU is there or assumed."""
    if not is_installed("torch_tensorrt"):
        raise MissingLibrary(TITLE, extra=EXTRA)
    with ignore_deprecations():
        module, broken = import_library("torch_tensorrt", TITLE, EXTRA)
    if broken:
        raise InferlensError(broken.reason, hint=broken.hint)
    package = str(getattr(module, "tensorrt_package_name", "")) or "tensorrt"
    version = str(importlib.import_module(package).__version__)
    features, dynamo = module.ENABLED_FEATURES, module.dynamo
    return Library(
        module,
        package,
        flavour=FLAVOUR_TITLES.get(package, package),
        versions={"torch_tensorrt": str(module.__version__), package: version},
        rtx=bool(getattr(features, "tensorrt_rtx", False)),
        script=bool(features.torchscript_frontend),
        native=bool(features.torch_tensorrt_runtime),
        settings=frozenset(field.name for field in dataclasses.fields(dynamo.CompilationSettings)),
        parameters=frozenset(inspect.signature(dynamo.compile).parameters),
    )


@contextmanager
def replace_attributes(owner: Any, **new: Any) -> Iterator[None]:
    """Replace attributes of a module or class while the context lasts."""
    originals = {name: getattr(owner, name) for name in new}
    try:
        for name, value in new.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in originals.items():
            setattr(owner, name, value)


@contextmanager
def assume_gpu() -> Iterator[str]:
    """Without a GPU, answer CUDA's queries for an assumed GPU, and yield its compute capability.

    Only lowering and partitioning work then. The library stays imported, so the process must not do anything else
    afterwards.
    """
    if torch.cuda.is_available():
        yield ""
        return
    memory, (major, minor) = 16 * 2**30, ASSUMED_CAPABILITY
    device = SimpleNamespace(major=major, minor=minor, name="assumed", total_memory=memory, multi_processor_count=1)
    answers: dict[str, Any] = {
        "get_device_capability": ASSUMED_CAPABILITY, "current_device": 0, "get_device_properties": device,
        "get_device_name": device.name, "mem_get_info": (memory, memory),
    }  # fmt: skip
    with ExitStack() as restored:
        functions = {name: lambda *_, answer=answer: answer for name, answer in answers.items()}
        restored.enter_context(replace_attributes(torch.cuda, **functions))
        if is_installed("torch_tensorrt"):
            compiler = importlib.import_module("torch_tensorrt.dynamo._compiler")
            cpu = torch.device("cpu")  # the device of PyTorch's parts
            restored.enter_context(replace_attributes(compiler, to_torch_device=lambda _: cpu))
        # The CPU chooses convolutions by batch, so a range of sizes would end at 15 (or begin at 16).
        restored.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        restored.callback(torch._C._set_nnpack_enabled, torch._C._get_nnpack_enabled())
        torch._C._set_mkldnn_enabled(False)
        torch._C._set_nnpack_enabled(False)
        yield f"{major}.{minor}"


# Options, under the library's names


class TorchTensorRTOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of Torch-TensorRT, under the library's names."""

    min_block_size: Annotated[
        int, Meta(description="fewest operators of an engine; PyTorch runs smaller blocks", ge=1)
    ] = 5
    require_full_compilation: Annotated[bool, Meta(description="refuse a model that PyTorch would run in part")] = False
    torch_executed_ops: Annotated[str, Meta(description="operators for PyTorch, as aten.relu+aten.mean.dim")] = ""
    optimization_level: Annotated[int, Meta(description="how long the builder searches, 0 to 5", ge=0, le=5)] = 3
    workspace_size: Annotated[int, Meta(description="most GPU memory for a tactic, in bytes; 0: no limit", ge=0)] = 0
    num_avg_timing_iters: Annotated[int, Meta(description="how often a tactic is timed; the mean counts", ge=1)] = 1
    truncate_double: Annotated[bool, Meta(description="compute float64 in float32")] = False
    autocast: Annotated[bool, Meta(description="weights in fp32; the library's autocast lowers operators")] = False
    tf32: Annotated[bool, Meta(description="TF32 in fp32 convolutions and matrix products; off: fp32 is fp32")] = False
    sparse_weights: Annotated[bool, Meta(description="let tactics use weights of which two in four are zero")] = False
    immutable_weights: Annotated[bool, Meta(description="engines whose weights cannot be replaced")] = True
    version_compatible: Annotated[bool, Meta(description="engines that later versions of TensorRT can run")] = False
    hardware_compatible: Annotated[bool, Meta(description="engines for other GPUs too, Ampere and newer")] = False
    use_python_runtime: Annotated[bool, Meta(description="run engines from Python rather than from C++")] = False
    cuda_graph: Annotated[bool, Meta(description="capture the call in a CUDA graph once and replay it")] = False


def check_options(options: TorchTensorRTOptions, case: Case, library: Library, preparation: Preparation) -> None:
    """Refuse, or warn of, options that the front end or the installed version lacks."""
    if case.variant.startswith("ts-"):
        for name in changed_options(options, NOT_IN_SCRIPT):
            raise Unsupported(f"The TorchScript front end has no '{name}'.", hint=DYNAMO)
    if options.autocast and case.variant == "compile":
        raise Unsupported("autocast is part of an export, and torch.compile makes none.", hint=DYNAMO)
    if options.use_python_runtime and "use_python_runtime" not in library.settings:
        raise Unsupported("This version chooses its runtime itself.", hint="without use_python_runtime")
    if library.rtx:  # Torch-TensorRT would ignore these silently
        for name, feature in NOT_IN_RTX.items():
            if getattr(options, name):
                raise Unsupported(f"{library.flavour} has no {feature}.", hint=f"no {name}; build where it is to run")
        warn_ignored_options(options, TACTIC_OPTIONS, f"{library.flavour} times no tactics.", preparation)


def dynamo_settings(
    options: TorchTensorRTOptions, case: Case, library: Library, preparation: Preparation
) -> dict[str, Any]:
    """Return the arguments of ``dynamo.compile``, or options of ``torch.compile``, that this version knows."""
    names = library.settings if case.variant == "compile" else library.settings & library.parameters
    settings = structs.asdict(options) | {
        "torch_executed_ops": set(executed_ops(options.torch_executed_ops)),
        "optimization_level": None if options.optimization_level == DEFAULT_LEVEL else options.optimization_level,
        "disable_tf32": not options.tf32,
        # By default builds share timings in a temporary folder; here every case begins without.
        "timing_cache_path": str(preparation.folder / "timing.cache"),
        "cache_built_engines": False,
        "reuse_cached_engines": False,
        # A build that fails is reported, and PyTorch does not run instead.
        "pass_through_build_failures": True,
        # The default in new versions; in older ones the builder chooses types.
        "use_explicit_typing": True,
    }
    if not options.use_python_runtime:
        del settings["use_python_runtime"]
    if options.autocast:
        settings |= {"enable_autocast": True, "autocast_low_precision_type": precision_dtype(case.precision)}
    return {name: value for name, value in settings.items() if name in names}


def script_settings(options: TorchTensorRTOptions, case: Case) -> dict[str, Any]:
    """Return the arguments of ``torch_tensorrt.ts.compile``."""
    names = (name.removeprefix("torch.ops.").split(".") for name in executed_ops(options.torch_executed_ops))
    return {
        "min_block_size": options.min_block_size,
        "require_full_compilation": options.require_full_compilation,
        "torch_executed_ops": sorted({f"{space}::{name}" for space, name, _ in names}),
        "workspace_size": options.workspace_size,
        "num_avg_timing_iters": options.num_avg_timing_iters,
        "truncate_long_and_double": options.truncate_double,
        "disable_tf32": not options.tf32,
        "sparse_weights": options.sparse_weights,
        "refit": not options.immutable_weights,
        "enabled_precisions": {torch.float32, precision_dtype(case.precision)},
    }


def executed_ops(text: str) -> list[str]:
    """Return ``torch.ops.aten.relu.default`` and so on; a word without an overload stands for all of them."""
    return [name for word in option_words(text) for name in _overloads(word)]


def _overloads(word: str) -> Iterator[str]:
    space, _, rest = word.removeprefix("torch.ops.").replace("::", ".").partition(".")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space), name, None) if name else None
    overloads = packet.overloads() if packet is not None else []
    if packet is None or (overload and overload not in overloads):
        raise InferlensError(
            f"torch_executed_ops names '{word}', which is not an operator.",
            expected="names such as aten.relu or aten.relu.default, joined by +",
            hint=suggestion(name, dir(getattr(torch.ops, space))) or "inferlens partition shows the names",
        )
    for suffix in [overload] if overload else overloads:
        yield f"torch.ops.{space}.{name}.{suffix}"
